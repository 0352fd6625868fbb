"""AwsKms against the contract: moto behind a proxy that can fail as AWS fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from servers.aws_faults import FaultyProxy, answering, kms_error, slow
from servers.moto import Moto

from mcpkeys.errors import KekUnusable, KmsDenied, UnwrapRefused
from mcpkeys.kms import Kms
from mcpkeys.testing import KmsContract
from mcpkeys_aws.kms import AwsKms

TOKEN = "FwoGZXIvYXdzE" + os.urandom(24).hex()


class TestAwsKms(KmsContract):
    # moto answers AccessDeniedException where AWS answers IncorrectKeyException or InvalidCiphertextException;
    # test_kms_answers.py has AWS's own answers, test_localstack.py a stricter server.
    foreign_errors = (UnwrapRefused, KmsDenied)
    tamper_errors = (UnwrapRefused, KekUnusable, KmsDenied)
    call_seconds = 20.0

    @pytest.fixture(autouse=True)
    def server(self, aws: Moto, faulty: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moto, self.proxy = aws, faulty
        self.key, self.other = aws.create_key(), aws.create_key()
        self.environ = monkeypatch
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI" + "K7MDENGbPxRfiCY")
        monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)

    def make_kms(self) -> AwsKms:
        return AwsKms(self.key)

    def make_foreign_kms(self) -> AwsKms:
        return AwsKms(self.other)

    def make_missing_kms(self) -> AwsKms:
        return AwsKms(self.key[:-12] + os.urandom(6).hex())

    def secrets(self) -> tuple[bytes, ...]:
        return (os.environ.get("AWS_SECRET_ACCESS_KEY", "").encode(), TOKEN.encode())

    @contextmanager
    def disabled(self, kms: Kms) -> Iterator[Kms]:
        key_id = self.key.rsplit("/", 1)[-1]
        self.moto.client("kms").disable_key(KeyId=key_id)

        def fault(exchange, forward):  # moto goes on using a disabled key
            return forward() if "Describe" in exchange.action else refuse(exchange, forward)

        refuse = kms_error("DisabledException", f"{self.key} is disabled.")
        with self.proxy.failing(fault):
            yield kms
        self.moto.client("kms").enable_key(KeyId=key_id)

    @contextmanager
    def gone(self, kms: Kms) -> Iterator[Kms]:
        self.moto.client("kms").schedule_key_deletion(KeyId=self.key.rsplit("/", 1)[-1], PendingWindowInDays=7)

        def fault(exchange, forward):  # moto goes on using a key that is pending deletion
            return forward() if "Describe" in exchange.action else refuse(exchange, forward)

        refuse = kms_error("KMSInvalidStateException", f"{self.key} is pending deletion.")
        with self.proxy.failing(fault):
            yield kms

    def denied(self, kms: Kms):
        told = "User: arn:aws:iam::123456789012:user/x is not authorized to perform: kms:Decrypt"
        return self._failing(kms, kms_error("AccessDeniedException", told))

    def unauthenticated(self, kms: Kms):
        told = f"The Canonical String for this request should have been 'POST / x-amz-security-token:{TOKEN}'"
        return self._failing(kms, kms_error("InvalidSignatureException", told))

    def throttled(self, kms: Kms):
        return self._failing(kms, kms_error("ThrottlingException", "Rate exceeded"))

    def unreachable(self, kms: Kms):
        return self._failing(kms, kms_error("KMSInternalException", status=500))

    def slow(self, kms: Kms, seconds: float):
        return self._failing(kms, slow(seconds))

    def garbled(self, kms: Kms):
        return self._failing(kms, answering(200, b'{"KeyId": 7}'))

    @contextmanager
    def _failing(self, kms: Kms, fault) -> Iterator[Kms]:
        with self.proxy.failing(fault):
            yield kms
