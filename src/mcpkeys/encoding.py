"""How bytes and times are spelled in documents: base64url without padding, RFC 3339 with milliseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from pybase64 import b64decode, b64encode_as_string

MAX_MS = 1 << 46
"""The year 4199: no time from outside counts as later, so that what is added to one can still be written."""

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)


def b64u(data: bytes) -> str:
    """Base64url without padding (RFC 4648, section 5)."""
    return b64encode_as_string(data, b"-_").rstrip("=")


def unb64u(text: str) -> bytes:
    """The strict inverse of `b64u`. Raises ValueError for every string that `b64u` does not produce."""
    if "+" in text or "/" in text:
        # pybase64 warns about these before it decodes them, and an application may have made warnings errors.
        raise ValueError("not canonical base64url")
    data = b64decode(text + "=" * (-len(text) % 4), b"-_", True)
    if b64u(data) != text:
        raise ValueError("not canonical base64url")
    return data


def format_ms(ms: int) -> str:
    """Milliseconds since the epoch -> `2026-11-29T22:51:00.123Z`."""
    moment = datetime.fromtimestamp(ms // 1000, UTC)
    # Not strftime: its %Y has four digits only from the year 1000 on.
    return f"{moment.isoformat()[:19]}.{ms % 1000:03d}Z"


def parse_ms(text: str) -> int:
    """The strict inverse of `format_ms`. Raises ValueError."""
    if _TIME.fullmatch(text) is None:
        raise ValueError("a time is spelled 2026-11-29T22:51:00.123Z")
    moment = datetime.strptime(text[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    ms = int(moment.timestamp()) * 1000 + int(text[20:23])
    if ms > MAX_MS:
        raise ValueError("a time is no later than the year 4199")
    return ms


def to_ms(seconds: float) -> int:
    """Seconds since the epoch, as `time.time()` gives them -> integer milliseconds, rounded down."""
    return int(seconds * 1000)
