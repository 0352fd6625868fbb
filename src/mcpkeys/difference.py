"""Where two rounds' arguments differ, as the digest sees it. Values are never shown: they are the user's."""

from __future__ import annotations

import json
from typing import Any

from mcpkeys import claims as claims_of
from mcpkeys.findings import printable

MAX_FOUND = 1000


def differences(before: Any, after: Any, path: str = "", depth: int = 40) -> list[tuple[str, str]]:
    """Where two JSON values differ as the digest sees it: `1` and `1.0` do. At most 1,000; values are not shown."""
    if depth == 0:
        return [(path, "nested too deeply to compare")]
    if isinstance(before, dict) and isinstance(after, dict):
        found: list[tuple[str, str]] = []
        for name in [*before, *(name for name in after if name not in before)]:
            at = f"{path}.{printable(str(name), 60)}"
            if name not in after:
                found.append((at, "missing in the retry"))
            elif name not in before:
                found.append((at, "new in the retry"))
            else:
                found += differences(before[name], after[name], at, depth - 1)
            if len(found) > MAX_FOUND:
                break
        return found
    if isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            return [(path, f"{len(before)} items, then {len(after)}")]
        found = []
        for i, (one, other) in enumerate(zip(before, after, strict=True)):
            found += differences(one, other, f"{path}[{i}]", depth - 1)
            if len(found) > MAX_FOUND:
                break
        return found
    if type(before) is type(after) and json.dumps(before) == json.dumps(after):
        return []
    if type(before) is not type(after):
        return [(path, f"{_typed(before)}, then {_typed(after)}")]
    return [(path, "another value")]


def _typed(value: Any) -> str:
    if isinstance(value, float):
        return "a number with a fraction or exponent"
    return "an integer" if type(value) is int else claims_of.kind(value)
