"""A keyset, its rings and tokens for the tests of inspection: random keys, nothing stored."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from typing import Any

from mcpkeys import token
from mcpkeys.call import arguments, arguments_digest, target
from mcpkeys.encoding import b64u
from mcpkeys.keyset import HistoryEntry, Key, Keyset, ReportKey, Signer
from mcpkeys.kms import Wrap
from mcpkeys.reports import ReceivedReport, Report
from mcpkeys.ring import Ring

NOW = 1_796_000_000.25
MINTING, VERIFYING, RETIRED, DROPPED = "AAAAminting1", "BBBBverify-2", "CCCCretired3", "DDDDdropped4"


class Scene:
    """One keyset `fleet` in generation 7 with four keys, and everything that can be made from them."""

    def __init__(
        self, *, name: str = "fleet", audience: str = "acme-orders", generation: int = 7, seed: int | None = None
    ) -> None:
        # With a seed everything is the same in every run: for outputs that are compared with files.
        self.random = os.urandom if seed is None else random.Random(seed).randbytes
        kek = "local:///keys/kek.key"
        wrap = (Wrap(kek, "", b"w" * 60),)
        born = int(NOW * 1000) - 86_400_000

        def key(kid: str, state: Any, since: int, wrapped: tuple[Wrap, ...] = wrap) -> Key:
            return Key(kid, state, born - 1000, since, wrapped)

        self.data_keys = {kid: self.random(32) for kid in (MINTING, VERIFYING, RETIRED)}
        self.prefix = self.random(12)
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
            signer=Signer("ed25519:" + b64u(self.random(32)), "FFFFsigner-6", wrap),
        )

    def ring(self, kids: Sequence[str] = (MINTING, VERIFYING), **more: Any) -> Ring:
        """The ring with these kids unwrapped: a codec's by default."""
        return Ring.from_keyset(self.keyset, {kid: self.data_keys[kid] for kid in kids}, **more)

    def seal(self, payload: bytes, kid: str = MINTING, *, data_key: bytes | None = None) -> str:
        """A token under any of the keys, retired or not."""
        head = token.header(kid, self.prefix)
        key = data_key or self.data_keys.get(kid) or self.random(32)
        nonce = self.random(12)
        aead = token.xaes_key(key, self.keyset.name).derive(self.prefix)
        return token.encode(head, nonce + aead.encrypt(nonce, payload, head.encode()))

    def report(self, label: str, *, verifies: Sequence[str] = (MINTING, VERIFYING), **fields: Any) -> ReceivedReport:
        """What an instance of this fleet reported a second ago."""
        report = Report(
            keyset=self.keyset.name,
            instance=b64u(label.encode().ljust(16, b".")[:16]),
            label=label,
            pid=7,
            state=fields.pop("state", "serving"),
            seq=1,
            generation=fields.pop("generation", self.keyset.generation),
            digest="",
            verifies=tuple(verifies),
            clock=int(NOW * 1000) - 1000,
            **fields,
        )
        return ReceivedReport(report, NOW - 1)

    def claims(self, method: str = "tools/call", params: Any = None, **changes: Any) -> dict[str, Any]:
        """What the boundary seals for this call, minted 5 seconds before `NOW`."""
        params = {"name": "deploy", "arguments": {"env": "prod"}} if params is None else params
        sealed: dict[str, Any] = {
            "v": 1,
            "iat": NOW - 5,
            "exp": NOW + 595,
            "m": method,
            "t": target(method, params),
            "a": arguments_digest(arguments(method, params)),
            "s": "step=2 colour=blue",
            "aud": self.keyset.audience,
        }
        return {name: value for name, value in (sealed | changes).items() if value is not ...}

    def token(self, kid: str = MINTING, **changes: Any) -> str:
        """A token with these claims; `...` leaves one out."""
        return self.seal(payload(self.claims(**changes)), kid)


CALL = {"method": "tools/call", "params": {"name": "deploy", "arguments": {"env": "prod"}}}


def payload(claims: Any) -> bytes:
    """What the boundary seals: compact JSON."""
    return json.dumps(claims, separators=(",", ":")).encode()
