"""How a body lies in a KV v2 secret, and how a version of it is named."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

TEXT, BYTES = "document", "document_base64"
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_VERSION = re.compile(r"([1-9][0-9]{0,14})-([0-9]{1,20})")


@dataclass(frozen=True, slots=True)
class Slot:
    """What a KV v2 data read tells.

    Attributes:
        number: the current version's number, deleted ones included; 0 where there never was one.
        created_ns: when that version was written, nanoseconds since the epoch; 0 likewise.
        body: its bytes; None where it is deleted or never was.
    """

    number: int = 0
    created_ns: int = 0
    body: bytes | None = None

    @property
    def version(self) -> str:
        """Number and time of writing: the number alone starts anew once a secret's metadata was deleted."""
        return f"{self.number}-{self.created_ns}"

    @property
    def modified_at(self) -> float:
        return self.created_ns / 1e9


def pack(body: bytes) -> dict[str, str]:
    """The secret's fields: readable text where the body is text, base64 otherwise."""
    try:
        return {TEXT: body.decode("utf-8")}
    except UnicodeDecodeError:
        return {BYTES: base64.b64encode(body).decode()}


def unpack(data: Mapping[str, Any]) -> Slot | None:
    """Read the `data` object of a KV v2 data answer; None where it is not one (a KV v1 mount, garbage).

    A secret that somebody wrote with other fields has a body that no keyset parser accepts: the empty one.
    """
    metadata = data.get("metadata")
    if not isinstance(metadata, dict):
        return None
    number, created = metadata.get("version"), nanoseconds(metadata.get("created_time"))
    if not isinstance(number, int) or isinstance(number, bool) or number < 1 or created is None:
        return None
    fields = data.get("data")
    if fields is None or metadata.get("deletion_time") or metadata.get("destroyed") is True:
        return Slot(number, created, None)
    body = b""
    if isinstance(fields, dict):
        text, raw = fields.get(TEXT), fields.get(BYTES)
        if isinstance(text, str):
            body = text.encode("utf-8", "surrogatepass")
        elif isinstance(raw, str):
            try:
                body = base64.b64decode(raw, validate=True)
            except ValueError:
                body = b""
    return Slot(number, created, body)


def number_of(version: str) -> int | None:
    """The KV number in `Slot.version`; None where that is no version of this store."""
    match = _VERSION.fullmatch(version)
    return int(match[1]) if match else None


def nanoseconds(text: Any) -> int | None:
    """An RFC 3339 time of Vault's, exactly (a float would lose the digits that tell two writes apart)."""
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    try:
        whole = datetime.fromisoformat(match[1] + ("+00:00" if match[3] == "Z" else match[3]))
    except ValueError:
        return None
    since = whole - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * 10**9 + int((match[2] or "").ljust(9, "0") or 0)
