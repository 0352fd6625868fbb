"""The claims that the boundary seals into every token: `v iat exp m t a s`, with `aud` and `p` where there are any.

Read exactly as the boundary reads them (SDK: `RequestStateBoundary._unseal`): `json.loads` with all it accepts
(NaN, duplicate names, UTF-16), `True` and `1.0` for version 1. Claims are authentic only if the tag verified, and even
then whoever holds a key wrote them: nothing here trusts their types, depth or size.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

VERSION: Final = 1
FUTURE_SKEW_SECONDS: Final = 60.0
"""How far ahead another instance's clock may be (SDK: `_FUTURE_SKEW`); not the keyset's skew_seconds."""

NAMES: Final = ("v", "iat", "exp", "m", "t", "a", "aud", "p")
"""What `shown` shows; `s`, the state itself, is told by its size only."""

MAX_SHOWN_CHARS: Final = 1000
MAX_OTHERS: Final = 20

_raw_decode = json.JSONDecoder().raw_decode
_KINDS = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}


class BadEnvelope(Exception):
    """Not an envelope. `raises`: the boundary does not refuse this but fails on it, with no log word."""

    def __init__(self, why: str, *, raises: bool = False) -> None:
        super().__init__(why)
        self.raises = raises


def parse(payload: bytes) -> dict[str, Any]:
    """The object that a payload holds, whatever its names and types.

    Raises:
        BadEnvelope: the payload is no JSON object. The boundary refuses it as `malformed`, or fails on it.
    """
    try:
        value = _object(payload) if payload[:2] == b'{"' else json.loads(payload)
    except RecursionError:
        raise BadEnvelope("nested too deeply: the boundary raises RecursionError on it", raises=True) from None
    except ValueError:
        raise BadEnvelope("the sealed payload is not JSON") from None
    if not isinstance(value, dict):
        raise BadEnvelope(f"the sealed payload is {kind(value)}, not an object")
    return value


def _object(payload: bytes) -> Any:
    """What json.loads makes of bytes that begin so, in a third of the time."""
    text = payload.decode("utf-8", "surrogatepass")
    value, end = _raw_decode(text)
    return value if end == len(text) else json.loads(text)


def fault(claims: dict[str, Any]) -> str | None:
    """Why the boundary refuses these claims as `malformed` before it looks at any of their meanings, or None."""
    for name in ("v", "iat", "exp", "s"):
        if name not in claims:
            return f"the claim {name!r} is missing"
    if claims["v"] != VERSION:
        return "the claim 'v' is not 1: sealed by another version of the SDK"
    if not isinstance(claims["s"], str):
        return f"the claim 's' is {kind(claims['s'])}, not a string"
    return None


def kind(value: object) -> str:
    """What a JSON value is, with its article."""
    if value is None:
        return "null"
    return _KINDS.get(type(value), f"a {type(value).__name__}")


def seconds(value: object) -> float | None:
    """A time claim as a finite number of seconds since the epoch, or None where it is none."""
    if not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def scalar(value: object) -> str | int | float | bool | None:
    """A claim as strict JSON can carry it: long text is cut, other numbers and structures become words."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value if len(value) <= MAX_SHOWN_CHARS else value[:MAX_SHOWN_CHARS] + "…"
    if isinstance(value, int):
        return value if abs(value) < 1 << 53 else "an integer beyond 2^53"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return kind(value)


def shown(claims: dict[str, Any]) -> dict[str, Any]:
    """The claims without the state, as strict JSON can carry them. `others` lists the names nobody knows."""
    result: dict[str, Any] = {}
    for name in NAMES:
        if name in claims:
            value = claims[name]
            # The ordinary case first: many tokens are inspected in a row.
            result[name] = value if value.__class__ is str and len(value) <= MAX_SHOWN_CHARS else scalar(value)
    if len(claims) > len(result) + 1 or "s" not in claims:
        others = [scalar(name) for name in claims if name not in NAMES and name != "s"]
        if others:
            result["others"] = others[:MAX_OTHERS]
    return result
