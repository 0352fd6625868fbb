"""The KMS contract, held by the local KEK file."""

import os
import time
from contextlib import contextmanager

import pytest

from mcpkeys.testing import KmsContract
from mcpkeys_local.kekfile import create_kek
from mcpkeys_local.kms import LocalKms


class TestLocalKms(KmsContract):
    tamper_positions = 0

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path, monkeypatch):
        self.path = tmp_path / "kek.key"
        self.other = tmp_path / "other.key"
        self.nowhere = tmp_path / "nowhere.key"
        self.monkeypatch = monkeypatch
        create_kek(self.path)
        create_kek(self.other)

    def make_kms(self):
        return LocalKms(f"local://{self.path}")

    def make_foreign_kms(self):
        return LocalKms(f"local://{self.other}")

    def make_missing_kms(self):
        return LocalKms(f"local://{self.nowhere}")

    def secrets(self):
        return tuple(path.read_bytes() for path in (self.path, self.other) if path.exists())

    @contextmanager
    def disabled(self, kms):
        self.path.chmod(0o644)
        yield kms
        self.path.chmod(0o600)

    @contextmanager
    def gone(self, kms):
        self.path.unlink()
        yield kms

    @contextmanager
    def denied(self, kms):
        """Root may read any file, so the refusal of the system is played."""

        def refuse(path, *args, **kwargs):
            raise PermissionError(13, "Permission denied", path)

        with self.monkeypatch.context() as patch:
            patch.setattr(os, "open", refuse)
            yield kms

    @contextmanager
    def unreachable(self, kms):
        def fail(fd, length):
            raise OSError(5, "Input/output error")

        with self.monkeypatch.context() as patch:
            patch.setattr(os, "read", fail)
            yield kms

    def test_the_clock_is_monotonic(self, kms):
        """A deadline is no time of day."""
        assert kms.describe(deadline=time.monotonic() + 1).enabled
