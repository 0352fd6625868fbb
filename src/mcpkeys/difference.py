"""Where two rounds' arguments differ, as the digest sees it. Values are never shown: they are the user's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from mcpkeys import claims as claims_of
from mcpkeys.findings import printable

MAX_FOUND = 1000
MAX_DEPTH = 40
MAX_NAME_CHARS = 60


def differences(before: Any, after: Any) -> list[tuple[str, str]]:
    """Where two JSON values differ as the digest sees it: `1` and `1.0` do. At most 1,000; values are not shown."""
    return list(islice(_found(before, after, "", MAX_DEPTH), MAX_FOUND))


def _found(before: Any, after: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth == 0:
        yield path, "nested too deeply to compare"
    elif isinstance(before, dict) and isinstance(after, dict):
        for name in [*before, *(name for name in after if name not in before)]:
            at = f"{path}.{printable(str(name), MAX_NAME_CHARS)}"
            if name not in after:
                yield at, "missing in the retry"
            elif name not in before:
                yield at, "new in the retry"
            else:
                yield from _found(before[name], after[name], at, depth - 1)
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield path, f"{len(before)} items, then {len(after)}"
            return
        for i, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _found(one, other, f"{path}[{i}]", depth - 1)
    elif type(before) is not type(after):
        yield path, f"{_typed(before)}, then {_typed(after)}"
    elif json.dumps(before) != json.dumps(after):
        yield path, "another value"


def _typed(value: Any) -> str:
    if isinstance(value, float):
        return "a number with a fraction or exponent"
    return "an integer" if type(value) is int else claims_of.kind(value)
