"""The KMS contract, held by GcpKms with the real google-cloud-kms client against the gRPC double."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from google.oauth2.credentials import Credentials
from servers.gcpkms import DESTROYED, DISABLED, Fault, GcpKmsDouble

from mcpkeys.kms import Kms
from mcpkeys.testing import KmsContract
from mcpkeys_gcp.kms import GcpKms

RING = "projects/acme-prod/locations/europe-west3/keyRings/mcpkeys/cryptoKeys"
TOKEN = "planted-token-6f1c0b7e2d9a4835"


@pytest.fixture(scope="module")
def server() -> Iterator[GcpKmsDouble]:
    with GcpKmsDouble() as double:
        yield double


class TestGcpKms(KmsContract):
    numbers = itertools.count()

    @pytest.fixture(autouse=True)
    def place(self, server: GcpKmsDouble) -> None:
        self.double = server
        self.name = f"{RING}/key-{next(self.numbers)}"
        self.key = server.add_key(self.name)
        server.add_key(f"{self.name}-foreign")

    def open(self, uri: str) -> GcpKms:
        return GcpKms(uri, session=(Credentials(token=TOKEN), self.channel))

    def channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self.double.endpoint)

    def make_kms(self) -> Kms:
        return self.open(f"gcpkms://{self.name}")

    def parse(self, uri: str) -> Kms:
        return self.open(uri)

    def make_foreign_kms(self) -> Kms:
        return self.open(f"gcpkms://{self.name}-foreign")

    def make_missing_kms(self) -> Kms:
        return self.open(f"gcpkms://{self.name}-missing")

    def secrets(self) -> tuple[bytes, ...]:
        return (TOKEN.encode(),)

    @contextmanager
    def disabled(self, kms: Kms) -> Iterator[Kms]:
        before = dict(self.key.states)
        self.key.states.update(dict.fromkeys(before, DISABLED))
        yield kms
        self.key.states.update(before)

    @contextmanager
    def gone(self, kms: Kms) -> Iterator[Kms]:
        self.key.states.update(dict.fromkeys(self.key.states, DESTROYED))
        yield kms

    @contextmanager
    def rotated(self, kms: Kms) -> Iterator[Kms]:
        self.key.rotate()
        yield kms

    @contextmanager
    def version_gone(self, kms: Kms) -> Iterator[Kms]:
        old = self.key.primary
        self.key.rotate()
        self.key.states[old] = DESTROYED
        yield kms

    @contextmanager
    def _faulty(self, kms: Kms, fault: Fault) -> Iterator[Kms]:
        with self.double.fault(fault):
            yield kms

    def denied(self, kms: Kms):
        return self._faulty(kms, Fault(code=grpc.StatusCode.PERMISSION_DENIED, details="Permission denied on resource"))

    def unauthenticated(self, kms: Kms):
        return self._faulty(kms, Fault(code=grpc.StatusCode.UNAUTHENTICATED, details="invalid credentials"))

    def throttled(self, kms: Kms):
        return self._faulty(kms, Fault(code=grpc.StatusCode.RESOURCE_EXHAUSTED, details="Quota exceeded"))

    def slow(self, kms: Kms, seconds: float):
        return self._faulty(kms, Fault(delay=seconds))

    def garbled(self, kms: Kms):
        return self._faulty(kms, Fault(corrupt="garbage"))

    @contextmanager
    def unreachable(self, kms: Kms) -> Iterator[Kms]:
        self.double.stop()
        try:
            yield kms
        finally:
            self.double.start(self.double.port)
