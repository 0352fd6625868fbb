"""The KMS contract, held by `envkek:///`."""

import base64
import os
from contextlib import contextmanager

import pytest

from mcpkeys.errors import UriError
from mcpkeys.registry import open_kms
from mcpkeys.testing import KmsContract


class TestEnvKms(KmsContract):
    tamper_positions = 0  # nothing goes over a network, so every byte is tried

    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch):
        self.monkeypatch = monkeypatch
        self.values = [base64.b64encode(os.urandom(32)).decode() for _ in range(2)]
        monkeypatch.setenv("ACME_KEK", self.values[0])
        monkeypatch.setenv("ACME_OTHER_KEK", self.values[1])

    def make_kms(self):
        return open_kms("envkek:///ACME_KEK")

    def make_foreign_kms(self):
        return open_kms("envkek:///ACME_OTHER_KEK")

    def make_missing_kms(self):
        return open_kms("envkek:///ACME_NO_KEK")

    def secrets(self):
        return tuple(base64.b64decode(value) for value in self.values)

    @contextmanager
    def gone(self, kms):
        self.monkeypatch.delenv("ACME_KEK")
        yield kms

    @contextmanager
    def disabled(self, kms):
        self.monkeypatch.setenv("ACME_KEK", "replaced by something that is no key")
        yield kms
        self.monkeypatch.setenv("ACME_KEK", self.values[0])


@pytest.mark.parametrize(
    "uri", ["envkek://ACME_KEK", "envkek:///", "envkek:///acme", "envkek:///A?x=1", "envkek:///A/B"]
)
def test_what_names_no_variable_is_refused(uri):
    with pytest.raises(UriError):
        open_kms(uri)
