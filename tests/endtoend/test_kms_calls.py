"""A recorded count of KMS calls: none per token, live keys and one at start (in parallel), one canary a day."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from cli.conftest import Shell
from endtoend.wire import BaoWire, Together, aws_calls, counted
from servers.aws_faults import FaultyProxy
from servers.moto import Moto
from servers.openbao import Bao

from mcpkeys import EnvelopeCodec
from mcpkeys.authoring import Author
from mcpkeys.instance import Instance
from mcpkeys.keks import Keks
from mcpkeys.kms import Wrap, WrapContext
from mcpkeys.loading import Loader, Pins
from mcpkeys.refresh import Refresher
from mcpkeys.registry import open_store
from mcpkeys.settings import load_settings
from mcpkeys.testing import FakeClock, FakeKek, FakeKms, FakePlace

TOKENS = 1000
LIVE = 5


def grow(environ: dict[str, str], live: int) -> None:
    """Write the keyset again with so many live keys: one mints, the others verify."""
    settings = load_settings({k: v for k, v in environ.items() if k.startswith("MCPKEYS_")})
    author = Author(open_store(settings.keyset), Keks.open(settings.keks), Pins(settings.name, settings.signers))
    try:
        stored = author.read()
        keyset = stored.keyset
        more = [author.data_key(keyset.name, keyset.keks, now_ms=keyset.keys[0].created_at) for _ in range(live - 1)]
        grown = replace(keyset, keys=(*keyset.keys, *more), generation=keyset.generation + 1)
        author.write(grown, stored.version, author.signer(keyset))
    finally:
        author.close()


@contextmanager
def opened(environ: dict[str, str]) -> Iterator[EnvelopeCodec]:
    settings = load_settings({k: v for k, v in environ.items() if k.startswith("MCPKEYS_")})
    codec = EnvelopeCodec.open(settings.name, keyset=settings.keyset, keks=settings.keks, signers=settings.signers)
    try:
        yield codec
    finally:
        codec.close()


def use(codec: EnvelopeCodec) -> None:
    """A thousand rounds, and a hundred refusals of every kind."""
    for _ in range(TOKENS):
        payload = os.urandom(48)
        token = codec.seal(payload)
        assert codec.unseal(token) == payload
    from mcp.server.request_state import InvalidRequestState

    for other in (token[:-4] + "AAAA", "mk1.unknownkidAA" + token[16:], "", "v1.x", token + "="):
        for _ in range(20):
            with pytest.raises(InvalidRequestState):
                codec.unseal(other)


def init(shell: Shell, kek: str) -> None:
    answer = shell.json("init", "fleet", "--keyset", str(shell.keyset), "--kek", kek)
    assert answer["ok"], answer
    shell.environ |= answer["settings"]


def test_aws_a_start_costs_live_keys_and_one_at_once_and_a_token_nothing(
    shell: Shell, aws: Moto, faulty: FaultyProxy
) -> None:
    init(shell, aws.create_key())
    grow(shell.environ, LIVE)
    faulty.seen.clear()
    together = Together(LIVE + 1)
    with faulty.failing(together.aws("kms:Decrypt")), opened(shell.environ) as codec:
        assert counted(aws_calls(faulty)) == {("Decrypt", "seal"): LIVE, ("Decrypt", "report"): 1}
        assert len(together.times) == LIVE + 1
        assert together.overlapped, together.times
        use(codec)
        codec.refresher.step()
        assert len(aws_calls(faulty)) == LIVE + 1
    assert len(aws_calls(faulty)) == LIVE + 1, "a farewell costs no call either"


def test_openbao_a_start_costs_live_keys_and_one_at_once_and_a_token_nothing(
    shell: Shell, bao: Bao, at_bao: BaoWire
) -> None:
    init(shell, f"hashivault://{bao.transit_key()}")
    grow(shell.environ, LIVE)
    at_bao.reset()
    together = Together(LIVE + 1)
    at_bao.fault = together.bao
    with opened(shell.environ) as codec:
        assert counted(at_bao.calls) == {("decrypt", "seal"): LIVE, ("decrypt", "report"): 1}
        assert len(together.times) == LIVE + 1
        assert together.overlapped, together.times
        use(codec)
        codec.refresher.step()
    assert len(at_bao.calls) == LIVE + 1
    others = {path for _, path in at_bao.proxy.seen if "/transit/" not in path}
    assert others <= {"/v1/auth/token/lookup-self"}, "the login's own, which no token triggers"


class HeldKms(FakeKms):
    """A fake whose unwraps wait for one another."""

    def __init__(self, kek: FakeKek, together: Together) -> None:
        super().__init__(kek)
        self.together = together

    def unwrap(self, wrap: Wrap, context: WrapContext, *, deadline: float) -> bytes:
        key: bytes = self.together.hold(lambda: super(HeldKms, self).unwrap(wrap, context, deadline=deadline))
        return key


def fake_fleet(kek: FakeKek, place: FakePlace, clock: Any = None, keks: int = 1) -> tuple[Author, Pins]:
    author = Author(place.open(), Keks([kek.open()]), Pins("fleet", ()), clock=clock)
    keyset, _ = author.create("fleet", audience="fleet", sign_keks=(kek.uri,), now_ms=1_790_000_000_000)
    return author, Pins("fleet", (keyset.signer.public,))


def test_a_counting_fake_sees_live_keys_and_one_at_once_and_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    kek, place = FakeKek(), FakePlace()
    author, pins = fake_fleet(kek, place)
    stored = author.read()
    more = [author.data_key("fleet", (kek.uri,), now_ms=1_790_000_000_000) for _ in range(LIVE - 1)]
    author.pins = pins
    grown = replace(stored.keyset, keys=(*stored.keyset.keys, *more), generation=2)
    author.write(grown, stored.version, author.signer(stored.keyset))
    kek.gate.calls.clear()
    together = Together(LIVE + 1)
    loader = Loader(place.open(), Keks([HeldKms(kek, together)]), pins)
    with EnvelopeCodec._begin(loader, Instance("fake"), inline=False, mint_sdk=False) as codec:
        assert kek.gate.calls == {"unwrap": LIVE + 1}
        assert together.overlapped, together.times
        use(codec)
        threads = [threading.Thread(target=codec.seal, args=(b"x",)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert kek.gate.calls == {"unwrap": LIVE + 1}


@pytest.mark.parametrize("seed", range(3))
def test_one_canary_a_day_and_no_other_call(seed: int) -> None:
    clock = FakeClock()
    kek, place = FakeKek(clock=clock), FakePlace(clock=clock)
    _author, pins = fake_fleet(kek, place, clock)
    loader = Loader(place.open(), Keks([kek.open()], clock=clock, parallel=False), pins, clock=clock)
    refresher = Refresher(loader, Instance("one"), lambda ring: None, clock=clock, jitter=random.Random(seed))
    refresher.begin()
    kek.gate.calls.clear()
    kek.gate.grants.clear()
    began, days = clock.monotonic(), 12
    while clock.monotonic() < began + days * 86_400:
        # Ten minutes in place of a refresh interval: the schedule of canaries is what is watched.
        clock.advance(600)
        refresher.step()
    assert set(kek.gate.calls) == {"unwrap"}
    assert days * 0.75 <= kek.gate.calls["unwrap"] <= days * 1.25 + 1
    grants = kek.gate.grants
    assert all(
        0.75 * 86_400 - 600 <= later - earlier <= 1.25 * 86_400 + 600 for earlier, later in itertools.pairwise(grants)
    )


def test_canaries_of_a_fleet_that_started_together_are_spread_over_the_day() -> None:
    clock = FakeClock()
    kek, place = FakeKek(clock=clock), FakePlace(clock=clock)
    _author, pins = fake_fleet(kek, place, clock)
    fleet = []
    for number in range(40):
        loader = Loader(place.open(), Keks([kek.open()], clock=clock, parallel=False), pins, clock=clock)
        fleet.append(Refresher(loader, Instance("one"), lambda ring: None, clock=clock, jitter=random.Random(number)))
        fleet[-1].begin()
    kek.gate.grants.clear()
    for _ in range(2 * 24):
        clock.advance(3600)
        for refresher in fleet:
            refresher.step()
    first_day = Counter(int((at - 1000.0) // 21_600) for at in kek.gate.grants)
    assert all(first_day[quarter] >= 2 for quarter in range(4)), first_day


@pytest.mark.slow
def test_rotation_steps_cost_the_operator_and_an_instance_what_they_must(
    shell: Shell, aws: Moto, faulty: FaultyProxy
) -> None:
    """Operator: the report key at both looks, the signer once, a new key once. Instance: each new key once."""
    answer = shell.json(
        "init", "fleet", "--keyset", str(shell.keyset), "--kek", aws.create_key(), "--ttl", "1", "--skew", "0",
        "--refresh", "1",
    )  # fmt: skip
    shell.environ |= answer["settings"]
    looks = {("Decrypt", "report"): 2, ("Decrypt", "sign"): 1}
    spent: list[Counter[tuple[str, str]]] = []

    def step(phase: int) -> None:
        while True:
            faulty.seen.clear()
            answer = shell.json("rotate", "--phase", str(phase), "--yes")
            spent.append(counted(aws_calls(faulty)))
            if answer["exit"] != 6:
                assert answer["exit"] == 0, answer
                return
            assert spent[-1] == {("Decrypt", "report"): 1}, "a step that is not due costs one look"
            time.sleep(0.2)
            adopt({})

    def adopt(calls: dict[tuple[str, str], int]) -> None:
        faulty.seen.clear()
        codec.refresher.step()
        assert counted(aws_calls(faulty)) == calls

    settings = load_settings({k: v for k, v in shell.environ.items() if k.startswith("MCPKEYS_")})
    codec = EnvelopeCodec.open(
        settings.name, keyset=settings.keyset, keks=settings.keks, signers=settings.signers, refresh="inline"
    )
    with codec:
        step(1)
        assert spent[-1] == {**looks, ("GenerateDataKeyWithoutPlaintext", "seal"): 1}
        adopt({("Decrypt", "seal"): 1})
        step(2)
        assert spent[-1] == looks
        adopt({})
        step(3)
        assert spent[-1] == looks
        adopt({})
        step(3)
        assert spent[-1] == {("Decrypt", "report"): 1}, "a step that is done costs one look"
        faulty.seen.clear()
        assert shell.json("status")["exit"] == 0
        assert counted(aws_calls(faulty)) == {("Decrypt", "report"): 1}
