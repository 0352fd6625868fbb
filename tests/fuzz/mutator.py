"""Mutations of bytes, of text and of JSON: what a fuzzer does to an input; seeded, to repeat a run."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

MAX_BYTES = 20_000
ODD_TEXTS = (
    *(
        "",
        " ",
        "\x00",
        "\n",
        "\r\n",
        "\x1b[31m",
        "\u202e",
        "\ud800",
        "\udcff",
        "é",
        "😀",
        "\ufeff",
        "٣",
        "İ",
        "ß",
        "\x85",
    ),
    *("null", "true", "NaN", "Infinity", "-0", "1e999", "0x10", "9" * 400, "A" * 5000, "../" * 20, "%00", "%2e%2e%2f"),
    *(
        "mk1.",
        "v1.",
        "kms1.",
        "=",
        "==",
        "+",
        "/",
        "-",
        "_",
        "ed25519:",
        "sha256:",
        "local://",
        "file://",
        "s3://",
        "gs://",
    ),
    *(
        "vaultkv://",
        "awskms:///",
        "gcpkms://",
        "hashivault://",
        "arn:aws:kms:",
        "?",
        "#",
        "&",
        "@",
        ":",
        "[",
        "]",
        "{",
        "}",
    ),
    *("2026-11-29T22:51:00.123Z", "9999-12-31T23:59:59.999Z", "0000-00-00T00:00:00.000Z", "9223372036854775807"),
    *('"requestState"', "requestState", '"params"', "tools/call", "rejected", "data:", "\\u0000", "\\ud800", "\\"),
)
ODD_VALUES: tuple[Callable[[random.Random], Any], ...] = (
    lambda r: None,
    lambda r: r.choice([True, False]),
    lambda r: r.choice([0, 1, -1, 2**31, 2**53 - 1, 2**53, -(2**53), 2**63, 10**30, 1.5, 1e308]),
    lambda r: r.choice(ODD_TEXTS),
    lambda r: [],
    lambda r: {},
    lambda r: _nested(r.choice([3, 11, 13, 60])),
    lambda r: ["x"] * r.choice([1, 9, 200]),
    lambda r: {r.choice(ODD_TEXTS): r.choice(ODD_TEXTS)},
    lambda r: "x" * r.choice([12, 43, 63, 64, 86, 255, 256, 1001]),
)


def mutate(data: bytes, r: random.Random, others: Sequence[bytes] = (b"",)) -> bytes:
    """`data` changed in one to five places; as JSON where it is JSON and the dice say so."""
    for _ in range(r.choice([1, 1, 1, 2, 3, 5])):
        if r.random() < 0.5:
            changed = _as_json(data, r)
            data = _bytes(data, r, others) if changed is None else changed
        else:
            data = _bytes(data, r, others)
    return data[:MAX_BYTES]


def _bytes(data: bytes, r: random.Random, others: Sequence[bytes]) -> bytes:
    at, end = sorted((r.randint(0, len(data)), r.randint(0, len(data))))
    kind = r.randrange(9)
    if kind == 0:
        return data[:at] + r.randbytes(r.choice([1, 1, 2, 8, 64])) + data[at:]
    if kind == 1:
        return data[:at] + data[at + r.choice([1, 1, 2, 3, 4, 16]) :]
    if kind == 2 and data:
        at = r.randrange(len(data))
        return data[:at] + bytes([data[at] ^ (1 << r.randrange(8))]) + data[at + 1 :]
    if kind == 3:
        return data[:at] + r.choice(ODD_TEXTS).encode("utf-8", "surrogatepass") + data[r.choice([at, end]) :]
    if kind == 4:
        other = r.choice(others)
        cut = r.randint(0, len(other))
        return data[:at] + other[cut:]
    if kind == 5:
        return data[:at] + data[at:end] * r.choice([2, 3, 50]) + data[end:]
    if kind == 6:
        return data[:at] + data[end:]
    if kind == 7 and data:
        at = r.randrange(len(data))
        return data[:at] + bytes([r.choice(b'AZaz09-_+/=."{}[],: \n\x00\xff')]) + data[at + 1 :]
    return data[: r.randint(0, len(data))]


def _as_json(data: bytes, r: random.Random) -> bytes | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    places = list(_places(value)) if isinstance(value, dict | list) else []
    if not places:
        return None
    holder, name = r.choice(places)
    kind = r.randrange(6)
    if kind == 0:
        del holder[name]
    elif kind == 1 and isinstance(holder, dict):
        holder[r.choice([*holder, *ODD_TEXTS])] = holder.pop(name)
    elif kind == 2:
        other, place = r.choice(places)
        if isinstance(other, dict) or place < len(other):
            holder[name] = json.loads(json.dumps(other[place]))
    elif kind == 3 and isinstance(holder, list):
        holder.append(json.loads(json.dumps(holder[name])))
    elif kind == 4 and isinstance(holder[name], str):
        holder[name] = _text(holder[name], r)
    else:
        holder[name] = r.choice(ODD_VALUES)(r)
    try:
        return json.dumps(value, ensure_ascii=r.random() < 0.5).encode("utf-8", "surrogatepass")
    except RecursionError:
        return None


def _text(text: str, r: random.Random) -> str:
    at = r.randint(0, len(text))
    return text[:at] + r.choice(ODD_TEXTS) + text[at + r.choice([0, 1, 3]) :]


def _places(value: Any) -> Any:
    """(holder, name) of every value inside, at most a few thousand."""
    stack, found = [value], 0
    while stack and found < 3000:
        holder = stack.pop()
        for name in list(holder) if isinstance(holder, dict) else range(len(holder)):
            found += 1
            yield holder, name
            if isinstance(holder[name], dict | list):
                stack.append(holder[name])


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value
