"""The store contract, held by the file store."""

import os
from contextlib import contextmanager

import pytest

from mcpkeys.testing import StoreContract
from mcpkeys_local.store import FileStore


class TestFileStore(StoreContract):
    report_count = 60

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path, monkeypatch):
        self.path = tmp_path / "fleet.keyset.json"
        self.monkeypatch = monkeypatch

    def make_store(self):
        return FileStore(f"file://{self.path}")

    def make_neighbour(self):
        return FileStore(f"file://{self.path}2")

    def plant(self, body):
        self.path.write_bytes(body)

    def plant_stray(self):
        reports = self.path.with_name(self.path.name + ".reports")
        (reports / ".AAAAAAAAAAAAAAAAAAAAAA.json.0123456789abcdef.tmp").write_bytes(b"{")
        (reports / "README").write_bytes(b"foreign")
        (reports / "AAAAAAAAAAAAAAAAAAAAAA.json~").write_bytes(b"{}")
        (reports / "AAAAAAAAAAAAAAAAAAAAAA").mkdir()
        (reports / "BAAAAAAAAAAAAAAAAAAAAA.json").mkdir()
        (reports / "CAAAAAAAAAAAAAAAAAAAAA.json").symlink_to("/etc/hostname")
        os.mkfifo(reports / "DAAAAAAAAAAAAAAAAAAAAA.json")

    @contextmanager
    def denied(self, store):
        """Root may do anything, so the refusals of the system are played."""

        def refuse(path, *args, **kwargs):
            raise PermissionError(13, "Permission denied", path)

        with self.monkeypatch.context() as patch:
            patch.setattr(os, "open", refuse)
            patch.setattr(os, "listdir", refuse)
            yield store

    @contextmanager
    def read_only(self, store):
        real = os.open

        def refuse(path, flags, *args, **kwargs):
            if flags & (os.O_WRONLY | os.O_RDWR):
                raise OSError(30, "Read-only file system", path)
            return real(path, flags, *args, **kwargs)

        with self.monkeypatch.context() as patch:
            patch.setattr(os, "open", refuse)
            yield store

    @contextmanager
    def unreachable(self, store):
        def fail(path, *args, **kwargs):
            raise OSError(5, "Input/output error", path)

        with self.monkeypatch.context() as patch:
            for name in ("open", "listdir", "unlink"):
                patch.setattr(os, name, fail)
            yield store

    @contextmanager
    def listing_breaks(self, store):
        real, seen = os.open, []

        def sometimes(path, *args, **kwargs):
            seen.append(path)
            if len(seen) == 40:
                raise OSError(5, "Input/output error", path)
            return real(path, *args, **kwargs)

        with self.monkeypatch.context() as patch:
            patch.setattr(os, "open", sometimes)
            yield store
