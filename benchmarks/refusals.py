"""What a refused token costs, by kind and length: an attacker chooses both."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keysets
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from mcp.server.request_state import InvalidRequestState
from pybase64 import b64decode
from states import payloads
from timing import Timed, refused, side_by_side

from mcpkeys import EnvelopeCodec
from mcpkeys.token import ALPHABET, PADDING, URLSAFE

CHEAP = ("unknown kid", "foreign prefix", "oversized", "garbage")
"""Refused before any work: the bound is a constant."""
LIMIT = "limit: base64 and cipher"
"""What refusing a wrong tag takes where nothing but the two libraries is called."""
LENGTHS = (70, 300, 1_400, 5_500, 22_000, 65_536, 262_144, 1_048_576)
BEYOND = (1_048_577, 4_194_304, 16_777_216)


def by_length(
    folder: Path, *, turns: int, passes: int, lengths: Sequence[int], beyond: Sequence[int]
) -> dict[str, Any]:
    """Microseconds per refusal, the exception included.

    Each pass times every length: a bound in microseconds has no neighbour that would be as slow in a slow moment, so
    that what is measured at one length is spread over the run.
    """
    timed: dict[int, Timed] = {}
    with EnvelopeCodec.open(**keysets.local(folder / "refusals", keys=3)) as codec:
        state = payloads(300, 1)[0]
        sealed = codec.seal(state)
        codec.unseal(sealed)  # its header is known: what follows is the worst case, not the first look-up
        for _ in range(passes):
            for length in (*lengths, *beyond):
                kinds = _beyond(sealed, length) if length in beyond else _kinds(sealed, length)
                found = _measure(codec, kinds, length, turns)
                timed[length] = timed[length] + found if length in timed else found
    return {
        "rows": [
            {"kind": name, "chars": length, "us": found.seconds(name) * 1e6, "bound": _bound(name, length)}
            for length, found in timed.items()
            for name in found.turns
        ],
        "aside": max(found.aside() for found in timed.values()),
    }


def _beyond(sealed: str, length: int) -> dict[str, Callable[[], str]]:
    """Longer than any token may be."""
    return {"oversized": lambda: sealed[:32] + _text(length - 32), "garbage": lambda: _text(length)}


def _kinds(sealed: str, length: int) -> dict[str, Callable[[], str]]:
    head, body = sealed[:32], max(38, length - 32)
    prefix = sealed[16:32]
    return {
        "unknown kid": lambda: "mk1." + _text(12) + prefix + _text(body),
        "foreign prefix": lambda: "v1." + _text(length - 3),
        "garbage": lambda: _text(length),
        "wrong tag": lambda: head + _canonical(body),
        "foreign character at the end": lambda: head + _text(body - 1) + "é",
        "not canonical": lambda: head + _text(body - 1) + "=",
        "fresh prefix, wrong tag": lambda: sealed[:16] + _text(16) + _canonical(body),
    }


def _measure(codec: EnvelopeCodec, kinds: dict[str, Callable[[], str]], length: int, turns: int) -> Timed:
    # Several of each, so that no cache of one string's hash or form flatters; few of the long ones, to bound memory.
    count = max(2, min(50, 4_000_000 // length))
    work: dict[str, tuple[Callable[[Any], object], list[str]]] = {
        name: (codec.unseal, [make() for _ in range(count)]) for name, make in kinds.items()
    }
    if "wrong tag" in work:
        work[LIMIT] = (_limit(), [token[32:] + PADDING[len(token) % 4] for token in work["wrong tag"][1]])
    return side_by_side(work, turns=turns, timer=refused(InvalidRequestState, InvalidTag))


def _limit() -> Callable[[str], bytes]:
    """Base64 by SIMD and AES-256-GCM with a wrong tag, nothing else: what no codec in Python refuses faster."""
    aead = AESGCM(os.urandom(32))

    def unseal(body: str) -> bytes:
        raw = b64decode(body, URLSAFE, True)
        return aead.decrypt(raw[:12], memoryview(raw)[12:], None)

    return unseal


def _bound(kind: str, length: int) -> float | None:
    """Microseconds: 1.5 whatever the length before any work, else 25 for each started 64 Ki characters."""
    if kind == LIMIT:
        return None
    return 1.5 if kind in CHEAP else 25.0 * -(-length // 65536)


def _text(length: int) -> str:
    """Random characters of the token's alphabet."""
    return os.urandom(length).translate(_TABLE).decode()


_TABLE = bytes(ord(ALPHABET[i & 63]) for i in range(256))


def _canonical(length: int) -> str:
    """The same, decodable: of a length that base64 has, its last character without bits over."""
    length -= length % 4 == 1
    return _text(length - 1) + random.choice("AQgw")
