"""The KMS contract on a real OpenBao, for a plain and for a derived Transit key."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from servers.fault_proxy import FaultProxy
from servers.openbao import Bao

from mcpkeys.kms import Kms
from mcpkeys.testing import KmsContract
from mcpkeys_vault.kms import VaultKms

GARBAGE = [b"<html>", b"[]", b'{"data": {"plaintext": 7, "ciphertext": "x"}}', b'{"data": {"plaintext": "!!!"}}', b"{}"]


class TestVaultKms(KmsContract):
    derived = False

    @pytest.fixture(autouse=True)
    def server(self, at_proxy: FaultProxy, bao: Bao, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proxy, self.bao, self.env = at_proxy, bao, monkeypatch
        self.key = bao.transit_key(derived=self.derived)

    def make_kms(self) -> Kms:
        return VaultKms(f"hashivault://{self.key}")

    def make_foreign_kms(self) -> Kms:
        return VaultKms(f"hashivault://{self.bao.transit_key(derived=self.derived)}")

    def make_missing_kms(self) -> Kms:
        return VaultKms("hashivault://missing-" + secrets.token_hex(4))

    def secrets(self) -> tuple[bytes, ...]:
        return (self.bao.token.encode(),)

    @contextmanager
    def gone(self, kms: Kms) -> Iterator[Kms]:
        self.bao.api("POST", f"transit/keys/{self.key}/config", {"deletion_allowed": True})
        self.bao.api("DELETE", f"transit/keys/{self.key}")
        yield kms

    @contextmanager
    def disabled(self, kms: Kms) -> Iterator[Kms]:
        self.bao.api("POST", f"transit/keys/{self.key}/config", {"deletion_allowed": True})
        self.bao.api("DELETE", f"transit/keys/{self.key}/soft-delete")
        yield kms
        self.bao.api("POST", f"transit/keys/{self.key}/soft-delete-restore", {})

    @contextmanager
    def rotated(self, kms: Kms) -> Iterator[Kms]:
        self.bao.api("POST", f"transit/keys/{self.key}/rotate", {})
        yield kms

    @contextmanager
    def version_gone(self, kms: Kms) -> Iterator[Kms]:
        self.bao.api("POST", f"transit/keys/{self.key}/rotate", {})
        self.bao.api("POST", f"transit/keys/{self.key}/config", {"min_decryption_version": 2})
        yield kms

    @contextmanager
    def denied(self, kms: Kms) -> Iterator[Kms]:
        self.env.setenv("VAULT_TOKEN", self.bao.token_for('path "cubbyhole/x" { capabilities = ["read"] }'))
        yield self.make_kms()
        self.env.setenv("VAULT_TOKEN", self.bao.token)

    @contextmanager
    def unauthenticated(self, kms: Kms) -> Iterator[Kms]:
        self.env.setenv("VAULT_TOKEN", "s." + os.urandom(12).hex())
        yield self.make_kms()
        self.env.setenv("VAULT_TOKEN", self.bao.token)

    @contextmanager
    def throttled(self, kms: Kms) -> Iterator[Kms]:
        # The server's own answer, seen in test_answers.py; a quota of one path would hit other tests' keys.
        said = f'request path "transit/decrypt/{self.key}": rate limit quota exceeded'
        with self.proxy.answering(429, json.dumps({"errors": [said]}).encode(), under="/transit/"):
            yield kms

    @contextmanager
    def unreachable(self, kms: Kms) -> Iterator[Kms]:
        with self.proxy.faulty(lambda request, forward: None):
            yield kms

    @contextmanager
    def slow(self, kms: Kms, seconds: float) -> Iterator[Kms]:
        with self.proxy.late(seconds):
            yield kms

    @contextmanager
    def garbled(self, kms: Kms) -> Iterator[Kms]:
        with self.proxy.answering(200, GARBAGE[secrets.randbelow(len(GARBAGE))], under="/transit/decrypt"):
            yield kms


class TestVaultDerivedKms(TestVaultKms):
    derived = True
