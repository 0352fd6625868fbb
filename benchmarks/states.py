"""Payloads as the SDK's boundary seals them: compact JSON claims, of an exact size, no two alike."""

from __future__ import annotations

import json
import random
import time

SIZES = (300, 1024, 4096, 16384)
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 -_=/"


def payloads(size: int, count: int) -> list[bytes]:
    """`count` payloads of `size` bytes (at least 250)."""
    return [_payload(size) for _ in range(count)]


def _payload(size: int) -> bytes:
    now = time.time()
    claims = {
        "v": 1,
        "iat": now,
        "exp": now + 600,
        "m": "tools/call",
        "t": "deploy",
        "a": f"{random.getrandbits(256):064x}",
        "aud": "acme-orders",
        "s": "",
    }
    missing = size - len(json.dumps(claims, separators=(",", ":")))
    claims["s"] = "".join(random.choices(_LETTERS, k=missing))
    return json.dumps(claims, separators=(",", ":")).encode()
