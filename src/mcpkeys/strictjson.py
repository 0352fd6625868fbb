"""JSON as the security-relevant documents need it: one reading only.

`json.loads` accepts duplicate names (last wins), NaN, floats and integers of any size; two parsers that differ
there can be made to see two documents. Here all of these are refused, for keysets, reports and bundles alike.
"""

from __future__ import annotations

import json
from typing import Any

import rfc8785

MAX_DEPTH = 12
MAX_INTEGER = (1 << 53) - 1


class NotStrict(ValueError):
    """The text is not strict JSON; the message says what and, where it is known, where."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise NotStrict(f"the name {name[:40]!r} stands twice in one object")
            seen.add(name)
    return result


def _integer(text: str) -> int:
    # Length first: int() of a megabyte of digits is quadratic work.
    if len(text) > 17:
        raise NotStrict("an integer is larger than 2^53 - 1")
    value = int(text)
    if not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise NotStrict("an integer is larger than 2^53 - 1")
    return value


def _no_float(text: str) -> Any:
    raise NotStrict(f"{text[:20]!r} is not an integer, and no other number is allowed")


def loads(body: bytes, *, max_bytes: int) -> dict[str, Any]:
    """Parse one JSON object.

    Args:
        body: UTF-8 without a byte order mark.
        max_bytes: the cap, checked before any work.

    Raises:
        NotStrict: too long, not UTF-8, not JSON, not an object, duplicate names, a number that is no integer of
            at most 53 bits, nested deeper than 12, or a string that is not Unicode text (lone surrogates).
    """
    if len(body) > max_bytes:
        raise NotStrict(f"longer than {max_bytes:,} bytes")
    if not body.strip():
        raise NotStrict("empty")
    try:
        text = body.decode("utf-8", "strict")
        value = json.loads(
            text, object_pairs_hook=_pairs, parse_int=_integer, parse_float=_no_float, parse_constant=_no_float
        )
    except NotStrict:
        raise
    except UnicodeDecodeError:
        raise NotStrict("not UTF-8 text") from None
    except json.JSONDecodeError as exc:
        raise NotStrict(f"not JSON: {exc.msg} at line {exc.lineno}, column {exc.colno}") from None
    except RecursionError:
        raise NotStrict(f"nested deeper than {MAX_DEPTH}") from None
    if not isinstance(value, dict):
        raise NotStrict("not a JSON object")
    _check(value, MAX_DEPTH)
    return value


def _check(value: Any, depth: int) -> None:
    if depth == 0:
        raise NotStrict(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        for name, inner in value.items():
            _check(name, depth)
            _check(inner, depth - 1)
    elif isinstance(value, list):
        for inner in value:
            _check(inner, depth - 1)
    elif isinstance(value, str) and not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise NotStrict("a string holds half of a surrogate pair") from None


def canonical(value: dict[str, Any]) -> bytes:
    """The RFC 8785 form of a value that `loads` returned or this package built."""
    return rfc8785.dumps(value)
