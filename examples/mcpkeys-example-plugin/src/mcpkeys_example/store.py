"""`sqlite:///path/to/fleet.db?name=fleet`: a keyset and its reports in an SQLite database."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import quote

from mcpkeys.errors import Conflict, NotFound, StoreDenied, StoreUnreachable, UriError
from mcpkeys.store import MAX_BODY_BYTES, Found, check_instance

_URI = re.compile(r"sqlite:///([^?#%]+)\?name=([a-z0-9][a-z0-9._-]{0,62})")
# AUTOINCREMENT: a number is never given twice, not even after its row was deleted.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS version (number INTEGER PRIMARY KEY AUTOINCREMENT);
CREATE TABLE IF NOT EXISTS document (name TEXT PRIMARY KEY, version INTEGER, body BLOB, modified REAL);
CREATE TABLE IF NOT EXISTS report (
    name TEXT, instance TEXT, version INTEGER, body BLOB, modified REAL, PRIMARY KEY (name, instance));
"""
_DENIED = (sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_AUTH)


class SqliteStore:
    """A keyset in a row of an SQLite database; compare-and-swap is a transaction.

    A connection is made for each call and closed after it: SQLite connections do not survive fork, and a file is
    opened in less time than it takes to explain a pool.

    Permissions needed. Server: to read the file, and to write it and its folder for reports. Operator: the same.
    """

    def __init__(self, uri: str, *, session: Any = None) -> None:
        match = _URI.fullmatch(uri)
        if match is None:
            raise UriError(
                "the URI names no keyset in an SQLite database",
                why="it has an absolute path, and ?name= with the keyset's name",
                next="for example sqlite:///var/lib/acme/fleet.db?name=fleet",
            )
        self.path, self.name = "/" + match[1].lstrip("/"), match[2]
        self.uri = f"sqlite://{self.path}?name={self.name}"
        self.own_clock = False  # what `now` reads is this machine's

    def __repr__(self) -> str:
        return f"SqliteStore({self.uri!r})"

    def read(self, known: str | None, *, fresh: bool, deadline: float) -> Found | None:
        # One file, one truth: every read is fresh.
        query = "SELECT version, substr(body, 1, ?), modified FROM document WHERE name = ?"
        with self._connection(deadline, writes=False) as database:
            row = database.execute(query, (MAX_BODY_BYTES + 1, self.name)).fetchone()
        if row is None:
            raise self._absent()
        version, body, modified = str(row[0]), row[1] or b"", row[2]  # SQLite's part of an empty blob is NULL
        return None if version == known else Found(body, version, modified)

    def replace(self, body: bytes, expected: str | None, *, deadline: float) -> str:
        with self._connection(deadline, writes=True) as database:
            row = database.execute("SELECT version FROM document WHERE name = ?", (self.name,)).fetchone()
            stored = None if row is None else str(row[0])
            if stored != expected:
                raise Conflict(
                    f"{self.uri} is not written",
                    why=f"version {stored or 'none'} is stored, {expected or 'none'} was expected",
                    next="read it again: mcpkeys status",
                )
            version = _next_version(database)
            values = (self.name, version, body, time.time())
            database.execute("REPLACE INTO document VALUES (?, ?, ?, ?)", values)
        return str(version)

    def reports(self, *, deadline: float) -> Iterator[Found]:
        query = "SELECT instance, version, body, modified FROM report WHERE name = ?"
        try:
            with self._connection(deadline, writes=False) as database:
                # All of one transaction, before the first is handed out: complete, or an error.
                rows = database.execute(query, (self.name,)).fetchall()
        except NotFound:
            return
        for instance, version, body, modified in rows:
            yield Found(body, str(version), modified, instance)

    def put_report(self, instance: str, body: bytes, *, deadline: float) -> None:
        check_instance(instance)
        with self._connection(deadline, writes=True) as database:
            values = (self.name, instance, _next_version(database), body, time.time())
            database.execute("REPLACE INTO report VALUES (?, ?, ?, ?, ?)", values)

    def delete_report(self, instance: str, *, deadline: float) -> None:
        check_instance(instance)
        with self._connection(deadline, writes=True) as database:
            database.execute("DELETE FROM report WHERE name = ? AND instance = ?", (self.name, instance))

    def now(self, *, deadline: float) -> tuple[float, float]:
        _in_time(deadline)
        return time.time(), 0.001

    def close(self) -> None:
        pass  # nothing is held open

    @contextmanager
    def _connection(self, deadline: float, *, writes: bool) -> Iterator[sqlite3.Connection]:
        """A transaction: committed at the end, rolled back by an error. SQLite's errors become ours."""
        _in_time(deadline)
        mode = "rwc" if writes else "ro"
        try:
            connection = sqlite3.connect(
                f"file:{quote(self.path)}?mode={mode}",
                uri=True,
                timeout=max(0.0, deadline - time.monotonic()),  # how long to wait for another writer
                isolation_level=None,
            )
            with closing(connection) as database:
                if writes:
                    database.executescript(_SCHEMA)
                database.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                try:
                    yield database
                except BaseException:
                    database.execute("ROLLBACK")
                    raise
                database.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._told(error, writes) from None

    def _told(self, error: sqlite3.Error, writes: bool) -> Exception:
        # The low byte is the primary code, the others refine it.
        code = (error.sqlite_errorcode or 0) & 0xFF
        if not writes and (code == sqlite3.SQLITE_CANTOPEN or "no such table" in str(error)):
            return self._absent()
        if code in _DENIED or (writes and code == sqlite3.SQLITE_CANTOPEN):
            return StoreDenied(
                f"{self.path} may not be {'written' if writes else 'read'}",
                why=error.sqlite_errorname,
                next="run as a user who may write the file and its folder",
            )
        return StoreUnreachable(
            f"{self.path} cannot be used", why=error.sqlite_errorname or type(error).__name__, next="try again"
        )

    def _absent(self) -> NotFound:
        return NotFound(f"there is no keyset at {self.uri}", why="nothing is stored", next="create one: mcpkeys init")


def _next_version(database: sqlite3.Connection) -> int:
    number = database.execute("INSERT INTO version DEFAULT VALUES").lastrowid
    database.execute("DELETE FROM version WHERE number < ?", (number,))
    assert number is not None
    return number


def _in_time(deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise StoreUnreachable("the database was not asked", why="the deadline had passed before", next="try again")
