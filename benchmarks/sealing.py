"""Seal and unseal by size, against everything else; and with 1, 3 and 100 keys in the ring."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keysets
from rivals import Rival, all_rivals
from states import payloads
from timing import Timed, side_by_side

from mcpkeys import EnvelopeCodec

OURS = "mcpkeys"
SDK = "SDK built-in"


def by_size(folder: Path, sizes: Sequence[int], *, turns: int) -> dict[str, Any]:
    """Microseconds and ratios to the SDK's built-in codec, per contestant and size."""
    rivals, missing = all_rivals()
    with EnvelopeCodec.open(**keysets.local(folder / "sealing")) as codec:
        contestants = [Rival(OURS, codec.seal, codec.unseal), *rivals]
        rows: list[dict[str, Any]] = []
        aside: list[float] = []
        for size in sizes:
            states = payloads(size, 64)
            tokens = {one.name: [one.seal(state) for state in states] for one in contestants}
            for one in contestants:
                assert [one.unseal(token) for token in tokens[one.name][:3]] == states[:3], one.name
            timed = {
                "seal": side_by_side({one.name: (one.seal, states) for one in contestants}, turns=turns),
                "unseal": side_by_side({one.name: (one.unseal, tokens[one.name]) for one in contestants}, turns=turns),
            }
            rows += [
                _row(operation, size, one.name, found) for operation, found in timed.items() for one in contestants
            ]
            aside += [found.aside() for found in timed.values()]
    return {"rows": rows, "missing": missing, "aside": max(aside)}


def _row(operation: str, size: int, name: str, found: Timed) -> dict[str, Any]:
    return {
        "operation": operation,
        "bytes": size,
        "name": name,
        "us": found.seconds(name) * 1e6,
        "ratio": found.ratio(name, SDK),
    }


def by_ring(folder: Path, *, turns: int, keys: Sequence[int] = (1, 3, 100), size: int = 1024) -> dict[str, Any]:
    """Microseconds of one unseal with that many keys in the ring, the token being under any of them."""
    codecs = {n: EnvelopeCodec.open(**keysets.local(folder / f"ring-{n}", keys=n)) for n in keys}
    try:
        work = {}
        for n, codec in codecs.items():
            minters = [codec.ring.keys[kid] for kid in codec.ring.keys]
            tokens = [_seal_under(codec, minters[i % len(minters)].kid, s) for i, s in enumerate(payloads(size, 200))]
            work[f"{n}"] = (codec.unseal, tokens)
        timed = side_by_side(work, turns=turns)  # type: ignore[arg-type]
        first = f"{keys[0]}"
        rows = [{"keys": n, "us": timed.seconds(f"{n}") * 1e6, "ratio": timed.ratio(f"{n}", first)} for n in keys]
    finally:
        for codec in codecs.values():
            codec.close()
    return {"rows": rows, "bytes": size, "aside": timed.aside()}


def _seal_under(codec: EnvelopeCodec, kid: str, payload: bytes) -> str:
    """A token under any key of the ring, as the instance that mints under it would have made it."""
    import os

    from mcpkeys import token

    prefix, nonce = _prefix(kid), os.urandom(12)
    head = token.header(kid, prefix)
    return token.encode(head, nonce + codec.ring.keys[kid].derive(prefix).encrypt(nonce, payload, head.encode()))


def _prefix(kid: str) -> bytes:
    """One minting process per key, as in a fleet: the same 12 bytes for the same kid."""
    import hashlib

    return hashlib.sha256(kid.encode()).digest()[:12]
