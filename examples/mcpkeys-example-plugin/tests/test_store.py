"""The store contract, held by `sqlite:///`."""

import os
import sqlite3
from contextlib import contextmanager

import pytest

from mcpkeys.errors import UriError
from mcpkeys.registry import open_store
from mcpkeys.testing import StoreContract


class TestSqliteStore(StoreContract):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path, monkeypatch):
        self.path = tmp_path / "fleet.db"
        self.monkeypatch = monkeypatch

    def make_store(self):
        return open_store(f"sqlite://{self.path}?name=fleet")

    def make_neighbour(self):
        return open_store(f"sqlite://{self.path}?name=fleet2")

    def plant(self, body):
        """Somebody else's write, past the plugin; another keyset's write makes the tables first."""
        self.make_neighbour().put_report("A" * 22, b"", deadline=self.soon())
        with sqlite3.connect(self.path) as database:
            version = database.execute("INSERT INTO version DEFAULT VALUES").lastrowid
            database.execute("REPLACE INTO document VALUES ('fleet', ?, ?, 0)", (version, body))

    @contextmanager
    def unreachable(self, store):
        """Another program holds the database."""
        database = sqlite3.connect(self.path, isolation_level=None)
        database.execute("BEGIN EXCLUSIVE")
        yield store
        database.execute("ROLLBACK")
        database.close()

    @contextmanager
    def read_only(self, store):
        if os.geteuid() == 0:
            pytest.skip("root may write any file")
        self.path.chmod(0o400)
        yield store
        self.path.chmod(0o600)


@pytest.mark.parametrize(
    "uri", ["sqlite://fleet.db?name=fleet", "sqlite:///fleet.db", "sqlite:///fleet.db?name=", "sqlite:///f.db?name=A"]
)
def test_what_names_no_keyset_is_refused(uri):
    with pytest.raises(UriError):
        open_store(uri)
