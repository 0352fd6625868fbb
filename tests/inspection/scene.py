"""A keyset, its rings and tokens for the tests of inspection: random keys, nothing stored."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from mcpkeys import token
from mcpkeys.encoding import b64u
from mcpkeys.keyset import HistoryEntry, Key, Keyset, ReportKey, Signer
from mcpkeys.kms import Wrap
from mcpkeys.ring import Ring

NOW = 1_796_000_000.25
MINTING, VERIFYING, RETIRED, DROPPED = "AAAAminting1", "BBBBverify-2", "CCCCretired3", "DDDDdropped4"


class Scene:
    """One keyset `fleet` in generation 7 with four keys, and everything that can be made from them."""

    def __init__(self, *, name: str = "fleet", audience: str = "acme-orders", generation: int = 7) -> None:
        kek = "local:///keys/kek.key"
        wrap = (Wrap(kek, "", b"w" * 60),)
        born = int(NOW * 1000) - 86_400_000

        def key(kid: str, state: Any, since: int, wrapped: tuple[Wrap, ...] = wrap) -> Key:
            return Key(kid, state, born - 1000, since, wrapped)

        self.data_keys = {kid: os.urandom(32) for kid in (MINTING, VERIFYING, RETIRED)}
        self.prefix = os.urandom(12)
        self.keyset = Keyset(
            name=name,
            audience=audience,
            ttl_seconds=600,
            skew_seconds=60,
            refresh_seconds=30,
            max_stale_seconds=None,
            max_token_chars=1_048_576,
            evidence="reports",
            generation=generation,
            previous=None,
            keks=(kek,),
            sign_keks=(kek,),
            keys=(
                key(MINTING, "minting", born + 3_600_000),
                key(VERIFYING, "verifying", born + 3_600_000),
                key(RETIRED, "retired", born + 7_200_000),
                key(DROPPED, "retired", born, ()),
            ),
            report_key=ReportKey("EEEEreport-5", wrap),
            rotation=None,
            past_ttls=(),
            history=(HistoryEntry(born, "ops@acme", "init", 1),),
            signer=Signer("ed25519:" + b64u(os.urandom(32)), "FFFFsigner-6", wrap),
        )

    def ring(self, kids: Sequence[str] = (MINTING, VERIFYING), **more: Any) -> Ring:
        """The ring with these kids unwrapped: a codec's by default."""
        return Ring.from_keyset(self.keyset, {kid: self.data_keys[kid] for kid in kids}, **more)

    def seal(self, payload: bytes, kid: str = MINTING, *, data_key: bytes | None = None) -> str:
        """A token under any of the keys, retired or not."""
        head = token.header(kid, self.prefix)
        key = data_key or self.data_keys.get(kid) or os.urandom(32)
        nonce = os.urandom(12)
        aead = token.xaes_key(key, self.keyset.name).derive(self.prefix)
        return token.encode(head, nonce + aead.encrypt(nonce, payload, head.encode()))


def payload(claims: Any) -> bytes:
    """What the boundary seals: compact JSON."""
    return json.dumps(claims, separators=(",", ":")).encode()
