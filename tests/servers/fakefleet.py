"""A keyset under fake KEKs in a fake store, on a clock that the test moves; and instances of it."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mcpkeys import EnvelopeCodec, reports
from mcpkeys.document import public_of, sign
from mcpkeys.encoding import b64u
from mcpkeys.instance import Instance
from mcpkeys.keks import Keks
from mcpkeys.keyset import Key, Keyset, ReportKey, Signer, digest, dumps
from mcpkeys.kms import Purpose, Wrap, WrapContext
from mcpkeys.loading import Loader, Pins
from mcpkeys.testing import FakeClock, FakeKek, FakePlace

LABEL = "worker"


@dataclass
class Fleet:
    """One service: its KEKs, its store, its signer, and the document that is stored now.

    Attributes:
        keks: the KEKs that wrap every key and that servers pin, nearest first.
        keys: the data keys by kid, and the report key: what only a test may see.
    """

    name: str = "fleet"
    clock: Any = field(default_factory=FakeClock)
    keks: Sequence[FakeKek] = ()
    place: Any = None
    keys: dict[str, bytes] = field(default_factory=dict, repr=False)
    private: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    keyset: Keyset = None  # type: ignore[assignment]
    opened: list[EnvelopeCodec] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.keks = self.keks or (FakeKek(clock=self.clock),)
        self.place = self.place or FakePlace(clock=self.clock)

    # --- the operator -----------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return int(self.clock.time() * 1000)

    def wrapped(
        self, purpose: Purpose, kid: str, key: bytes, keks: Sequence[FakeKek] | None = None
    ) -> tuple[Wrap, ...]:
        return tuple(kek.seal(key, WrapContext(purpose, self.name, kid)) for kek in keks or self.keks)

    def data_key(self, state: str = "verifying", keks: Sequence[FakeKek] | None = None) -> Key:
        kid, key = b64u(secrets.token_bytes(9)), os.urandom(32)
        self.keys[kid] = key
        return Key(kid, state, self.now_ms, self.now_ms, self.wrapped("seal", kid, key, keks))  # type: ignore[arg-type]

    def report_key(self) -> ReportKey:
        kid, key = b64u(secrets.token_bytes(9)), os.urandom(32)
        self.keys[kid] = key
        return ReportKey(kid, self.wrapped("report", kid, key))

    def create(self, **changes: Any) -> Keyset:
        """Sign and store the first generation."""
        sign_kid = b64u(secrets.token_bytes(9))
        signer = Signer(
            public_of(self.private), sign_kid, self.wrapped("sign", sign_kid, self.private.private_bytes_raw())
        )
        fields: dict[str, Any] = {
            "name": self.name,
            "audience": "acme-orders",
            "ttl_seconds": 600,
            "skew_seconds": 60,
            "refresh_seconds": 30,
            "max_stale_seconds": None,
            "max_token_chars": 1_048_576,
            "evidence": "reports",
            "generation": 1,
            "previous": None,
            "keks": tuple(kek.uri for kek in self.keks),
            "sign_keks": tuple(kek.uri for kek in self.keks),
            "keys": (self.data_key("minting"),),
            "report_key": self.report_key(),
            "rotation": None,
            "past_ttls": (),
            "history": (),
            "signer": signer,
        }
        return self.store(Keyset(**fields | changes))

    def signed(self, keyset: Keyset) -> Keyset:
        return sign(keyset, self.private)

    def store(self, keyset: Keyset) -> Keyset:
        """Sign and store."""
        self.keyset = self.signed(keyset)
        self.place.put(dumps(self.keyset))
        return self.keyset

    def next(self, **changes: Any) -> Keyset:
        """Sign and store the next generation with these fields changed."""
        following = {"generation": self.keyset.generation + 1, "previous": digest(self.keyset)}
        return self.store(replace(self.keyset, **following | changes))

    def learn(self, keks: Sequence[FakeKek] | None = None) -> Keyset:
        """As phase 1: one more key that verifies."""
        return self.next(keys=(*self.keyset.keys, self.data_key(keks=keks)))

    def turn(self) -> Keyset:
        """As phase 2: the newest key mints, all others verify."""
        *old, new = self.keyset.keys
        kept = [replace(key, state="verifying") if key.state == "minting" else key for key in old]
        return self.next(keys=(*kept, replace(new, state="minting")))

    def burn(self, kid: str, keks: Sequence[FakeKek] | None = None, **changes: Any) -> Keyset:
        """As --emergency on the minter: a fresh key mints at once, the report key is new."""
        keys = [replace(key, state="retired") if key.kid == kid else key for key in self.keyset.keys]
        if all(key.state != "minting" for key in keys):
            keys.append(self.data_key("minting", keks))
        return self.next(keys=tuple(keys), **{"report_key": self.report_key()} | changes)

    # --- the servers ------------------------------------------------------------------------------------------

    def loader(self, *, parallel: bool = False, min_generation: int = 0, pinned: Sequence[FakeKek] = ()) -> Loader:
        keks = Keks(
            [kek.open() for kek in pinned or self.keks],
            clock=self.clock,
            jitter=random.Random(secrets.randbits(64)),
            parallel=parallel,
        )
        pins = Pins(self.name, (public_of(self.private),), min_generation)
        return Loader(self.place.open(), keks, pins, clock=self.clock)

    def open(self, label: str = LABEL, *, inline: bool = False, thread: bool = False, **options: Any) -> EnvelopeCodec:
        """An instance; without `thread` it refreshes when the test says so."""
        codec = EnvelopeCodec._begin(
            self.loader(**options),
            Instance(label),
            inline=inline,
            thread=thread and not inline,
            clock=self.clock,
            jitter=random.Random(secrets.randbits(64)),
        )
        self.opened.append(codec)
        return codec

    def close(self) -> None:
        for codec in self.opened:
            codec.close()

    # --- what is seen -----------------------------------------------------------------------------------------

    def gathered(self) -> reports.Gathered:
        """The reports, authenticated as the operator does."""
        found = self.place.open().reports(deadline=self.clock.monotonic() + 5)
        return reports.gather(found, [self.keys[self.keyset.report_key.kid]], keyset=self.name)

    def report(self, codec: EnvelopeCodec) -> reports.Report:
        """What this instance last said."""
        identity = codec.status()["instance"]["id"]
        return next(entry.report for entry in self.gathered().received if entry.report.instance == identity)

    @property
    def unwraps(self) -> int:
        """KMS calls that unwrap, over all KEKs."""
        return sum(kek.gate.calls["unwrap"] for kek in self.keks)


def refresh(codec: EnvelopeCodec) -> None:
    """One refresh now, on this thread."""
    refresher = codec._refresher
    assert refresher is not None
    refresher.step()


def pass_time(
    codec: EnvelopeCodec, seconds: float, *, each: Callable[[], None] = lambda: None, tick: float = 1.0
) -> None:
    """Let time pass with `codec` refreshing whenever it is due, and `each` called at every tick."""
    refresher = codec._refresher
    assert refresher is not None
    clock = refresher._clock
    end = clock.monotonic() + seconds
    while clock.monotonic() < end:
        clock.sleep(tick)
        refresher.inline() if codec._inline else (clock.boottime() >= refresher.due and refresher.step())
        each()
