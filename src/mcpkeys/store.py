"""The store plugin interface: where a keyset lives and where instances leave their reports.

A plugin registers under the entry-point group `mcpkeys.stores`, keyed by URI scheme, a callable
`(uri, *, session=None) -> Store`. `mcpkeys.testing.StoreContract` pins the behaviour.

Vendor exceptions stop at the plugin's edge; a method raises only `NotFound`, `Conflict`, `StoreUnreachable`,
`StoreDenied`, or `ConfigurationError` for a store that cannot do what a keyset needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from mcpkeys.errors import UriError
from mcpkeys.glimpse import SCHEME, glimpse, is_path
from mcpkeys.kms import MAX_URI_CHARS

MAX_BODY_BYTES = 1 << 20
"""A keyset document is at most 1 MiB; a store refuses to read more than one byte beyond it."""
MAX_REPORT_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Found:
    """What was read.

    Attributes:
        body: the document's bytes.
        version: the store's opaque name of this version (ETag, generation, KV version, or a file's identity).
        modified_at: seconds since the epoch by the store's clock.
        name: of a report, the instance id it was stored under; empty for a keyset.
    """

    body: bytes
    version: str
    modified_at: float
    name: str = ""


class Store(Protocol):
    """One keyset's home. Thread-safe; opens no connection before the first call.

    `deadline` is a `time.monotonic()` value by which the call has returned or raised.
    """

    @property
    def uri(self) -> str:
        """The canonical URI."""
        ...

    def read(self, known: str | None, *, fresh: bool, deadline: float) -> Found | None:
        """The keyset document, or None where its version is still `known`.

        `fresh=True` is linearizable: it sees every write that was answered before the call began.
        Raises `NotFound` where there is none. A body over 1 MiB is cut at 1 MiB + 1 byte.
        """
        ...

    def replace(self, body: bytes, expected: str | None, *, deadline: float) -> str:
        """Compare-and-swap: write `body` if the stored version is `expected` (None: nothing is stored).

        Returns the new version. Raises `Conflict` where another version is stored; a lost reply is
        resolved by reading back (own bytes = success). All or nothing, also under `kill -9`.
        """
        ...

    def reports(self, *, deadline: float) -> Iterator[Found]:
        """Every report, in no order: complete, or an error."""
        ...

    def put_report(self, instance: str, body: bytes, *, deadline: float) -> None:
        """Write or overwrite one instance's report."""
        ...

    def delete_report(self, instance: str, *, deadline: float) -> None:
        """Delete one report; one that is not there is no error."""
        ...

    def now(self, *, deadline: float) -> tuple[float, float]:
        """The store's clock (seconds since the epoch) and its resolution in seconds."""
        ...

    def close(self) -> None:
        """Drop connections. Idempotent; the object works again after it, also in the child after fork."""
        ...


class StoreFactory(Protocol):
    """What an entry point of the group `mcpkeys.stores` names."""

    def __call__(self, uri: str, *, session: Any = None) -> Store: ...


_INSTANCE = re.compile(r"[A-Za-z0-9_-]{22}")


def scheme_of(uri: str) -> str:
    """The scheme of a keyset URI; a plain path is `file`.

    Raises `UriError` for control characters or emptiness, and for what is no plausible path: a secret that was pasted
    here would become a file's name and stand in every message.
    """
    if not uri or len(uri) > MAX_URI_CHARS or not uri.isprintable():
        raise UriError(
            "a keyset URI must be printable and 1 to 1,024 characters long",
            next="for example file:///etc/mcpkeys/fleet.keyset.json, s3://bucket/key, gs://bucket/object, vaultkv://mount/path",
        )
    match = SCHEME.match(uri)
    if match is None and not is_path(uri):
        raise UriError(
            f"{glimpse(uri)} is no keyset URI",
            why="it has no scheme, and looks more like a secret than like a path",
            next="for example /etc/mcpkeys/fleet.keyset.json, or ./NAME for a file in this folder",
        )
    return "file" if match is None else match[1]


def check_instance(instance: str) -> str:
    """`instance` itself if it is an instance id (16 bytes, base64url, 22 characters); raises ValueError otherwise.

    Every store calls it before it builds a name, so that an id can never climb out of the reports' prefix.
    """
    if _INSTANCE.fullmatch(instance) is None:
        raise ValueError("an instance id is 22 characters of base64url")
    return instance
