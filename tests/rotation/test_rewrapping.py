"""Rewrapping on fakes: all or nothing, no key seen where the KMS can hide it, the dead never stop the living."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpkeys import document, rewrapping
from mcpkeys.authoring import Author
from mcpkeys.clock import SystemClock
from mcpkeys.errors import ConfigurationError, KmsUnreachable, McpkeysError
from mcpkeys.keks import Keks
from mcpkeys.keyset import Keyset
from mcpkeys.kms import KekState, Wrap, identity
from mcpkeys.loading import Pins
from mcpkeys.revising import Fleet
from mcpkeys.rewrapper import rewrap
from mcpkeys.rewrapping import Request
from mcpkeys.stepping import take
from mcpkeys.steps import Step
from mcpkeys.testing.fakekms import FakeKek
from mcpkeys.testing.fakestore import FakePlace
from mcpkeys.testing.leaks import leaked, shown


class Calendar(SystemClock):
    """The store's clock, so many days ahead."""

    days = 0

    def time(self) -> float:
        return super().time() + self.days * 86_400


class World:
    """A keyset in memory under one or more fake KEKs."""

    def __init__(self, *keks: FakeKek) -> None:
        self.keks = list(keks)
        self.clock = Calendar()
        self.place = FakePlace(clock=self.clock)
        author = self.author()
        made, _ = author.create("fleet", audience="fleet", sign_keks=[kek.uri for kek in keks], now_ms=1)
        self.signer = made.signer.public

    def author(self, *more: FakeKek) -> Author:
        pins = Pins("fleet", (self.signer,) if hasattr(self, "signer") else ())
        return Author(self.place.open(), Keks([kek.open() for kek in (*self.keks, *more)]), pins)

    @property
    def keyset(self) -> Keyset:
        assert self.place.document is not None
        return document.read(self.place.document.body)

    def secrets(self, kek: FakeKek) -> list[bytes]:
        """Every key of the keyset in the clear."""
        keyset = self.keyset
        items = [("seal", key.kid, key.wrapped) for key in keyset.live]
        items += [("report", keyset.report_key.kid, keyset.report_key.wrapped)]
        items += [("sign", keyset.signer.kid, keyset.signer.wrapped)]
        return [kek.unseal(wraps[0].blob, rewrapping.WrapContext(p, "fleet", kid)) for p, kid, wraps in items]

    def opens(self, kek: FakeKek) -> bool:
        """Whether this KEK alone opens every live key, the report key and the signer, and to the same keys."""
        keyset = self.keyset
        items = [("seal", key.kid, key.wrapped) for key in keyset.live]
        items += [("report", keyset.report_key.kid, keyset.report_key.wrapped)]
        items += [("sign", keyset.signer.kid, keyset.signer.wrapped)]
        for purpose, kid, wrapped in items:
            own = [wrap for wrap in wrapped if identity(wrap.kek) == identity(kek.uri)]
            if not own:
                return False
            kek.unseal(own[0].blob, rewrapping.WrapContext(purpose, "fleet", kid))
        return True


def uris(*keks: FakeKek) -> tuple[str, ...]:
    return tuple(kek.uri for kek in keks)


def test_a_kms_that_can_hide_keys_shows_none():
    kek = FakeKek("fake:///one")
    world = World(kek)
    kek.rotate()
    before = kek.gate.calls["unwrap"]
    done = rewrap(world.author(), Request())
    assert done.revised.written is not None
    assert kek.gate.calls["rewrap"] == 3
    # Two looks at the reports and the signer: the operator's own keys, no data key.
    assert kek.gate.calls["unwrap"] - before == 3
    assert kek.gate.calls["wrap"] == 2, "those of its creation"
    kek.trim()
    assert world.opens(kek)


def fail_at(number: int, *keks: FakeKek) -> list[int]:
    """From now on the n-th call to any of them meets an outage; how many were made, as a list of one."""
    calls = [0]

    def counting(enter):
        def call(*args, **kwargs):
            calls[0] += 1
            if calls[0] == number:
                raise KmsUnreachable("injected")
            return enter(*args, **kwargs)

        return call

    for kek in keks:
        kek.gate.enter = counting(kek.gate.enter)  # type: ignore[method-assign]
    return calls


@pytest.mark.parametrize("hides", [True, False])
def test_whichever_call_fails_it_is_all_or_nothing(hides):
    """The n-th call to either KEK meets an outage: nothing is written, or everything."""
    written = 0
    for failing in range(40):
        one, two = FakeKek("fake:///one", hides_keys=hides), FakeKek("fake:///two", hides_keys=hides)
        world = World(one)
        one.rotate()
        before = world.keyset
        secrets = world.secrets(one)
        calls = fail_at(failing + 1, one, two)
        try:
            rewrap(world.author(two), Request(add=uris(two)))
        except McpkeysError as error:
            told = shown(error, skip=(__file__,))
        else:
            told = ""
        assert not leaked(told, secrets), f"call {failing + 1}"
        if told:
            assert world.keyset == before
            continue
        if world.keyset != before:
            written += 1
            for kek in (one, two):
                kek.gate.enter = lambda *args, **kwargs: None
            assert world.opens(one)
            assert world.opens(two)
        if calls[0] <= failing:
            break
    assert written


def test_an_old_version_that_is_gone_is_mended_through_another_kek():
    one, two = FakeKek("fake:///one"), FakeKek("fake:///two")
    world = World(one, two)
    one.rotate()
    one.trim()
    assert rewrap(world.author(), Request()).revised.written is not None
    assert world.opens(one)
    assert world.opens(two)


def test_a_retired_key_that_cannot_be_rewrapped_stops_nothing():
    one, two = FakeKek("fake:///one", hides_keys=False), FakeKek("fake:///two", hides_keys=False)
    world = World(one)
    kid = world.keyset.minting.kid
    taken = take(world.author(), Step("emergency", kid=kid, reason="leaked", who="test"))
    assert taken.written is not None
    broken = world.keyset.key(kid)
    assert broken is not None
    unseal = one.unseal

    def forgetful(blob, context):
        if blob == broken.wrapped[0].blob:
            raise KmsUnreachable("gone")
        return unseal(blob, context)

    one.unseal = forgetful  # type: ignore[method-assign]
    author = world.author(two)
    author.keks._clock = Quick()  # type: ignore[assignment]
    done = rewrap(author, Request(add=uris(two)))
    assert done.revised.written is not None
    assert [left for left, _ in done.left] == [kid]
    assert world.opens(two)
    assert world.keyset.key(kid) == broken


class Quick:
    """A clock on which every wait is over at once."""

    def __init__(self) -> None:
        self.at = 0.0

    def monotonic(self) -> float:
        import time

        return time.monotonic() + self.at

    def time(self) -> float:
        return self.at

    def boottime(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += 0.0 if seconds < 0.001 else 5.0


def test_wraps_that_were_kept_long_enough_are_not_made_anew():
    one, two = FakeKek("fake:///one"), FakeKek("fake:///two")
    world = World(one)
    kid = world.keyset.minting.kid
    take(world.author(), Step("emergency", kid=kid, reason="leaked", who="test"))
    world.clock.days = 31
    assert rewrap(world.author(two), Request(add=uris(two))).revised.written is not None
    old = world.keyset.key(kid)
    assert old is not None
    assert old.wrapped == ()


def test_a_wrap_that_does_not_open_again_is_never_written():
    one, two = FakeKek("fake:///one", hides_keys=False), FakeKek("fake:///two")
    world = World(one)
    before = world.keyset
    seal = two.seal
    two.seal = lambda key, context: seal(bytes(reversed(key)), context)  # type: ignore[method-assign]
    with pytest.raises(McpkeysError):
        rewrap(world.author(two), Request(add=uris(two)))
    assert world.keyset == before


def test_replicas_of_one_multi_region_key_are_one_kek():
    here, there = (
        f"awskms:///arn:aws:kms:{region}:111122223333:key/mrk-1234abcd12ab34cd56ef1234567890ab"
        for region in ("eu-west-1", "us-east-1")
    )
    world = World(FakeKek(here))
    assert rewrapping.targets(world.keyset, Request(add=(there,))) == ((here,), (here,))
    with pytest.raises(McpkeysError):
        rewrapping.targets(world.keyset, Request(remove=(there,)))


def test_an_attesting_fleet_loses_a_kek_only_by_a_word():
    one, two = FakeKek("fake:///one"), FakeKek("fake:///two")
    keyset = replace(World(one, two).keyset, evidence="attest")
    states = {identity(two.uri): KekState(True, True, "1", "1")}
    fleet = Fleet((), frozenset(), ())
    for attest, verdict in (("", "unsafe"), ("deploy 4711 pins two", "do")):
        revision, _ = rewrapping.decide(keyset, fleet, Request(remove=uris(one), attest=attest), states, now=10.0)
        assert revision.verdict == verdict
    assert revision.document is not None
    assert revision.document.history[-1].overrides == ("--attest deploy 4711 pins two",)


def test_who_writes_meanwhile_wins_and_is_named():
    one, two = FakeKek("fake:///one"), FakeKek("fake:///two")
    world = World(one)

    def somebody_else(revision, observed, layout):
        taken = take(world.author(), Step(1, who="alice@console"))
        assert taken.written is not None

    with pytest.raises(McpkeysError) as lost:
        rewrap(world.author(two), Request(add=uris(two)), agreed=somebody_else)
    assert lost.value.code == "conflict"
    assert "alice@console" in lost.value.why
    assert world.keyset.generation == 2


NAMES = [f"fake:///{n}" for n in range(4)]


@given(
    keks=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True),
    add=st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
    remove=st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
    skip=st.lists(st.sampled_from(NAMES), max_size=1),
    newest=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["1", "2"])),
    renew=st.booleans(),
    seed=st.randoms(use_true_random=False),
)
def test_after_a_rewrap_every_live_key_has_the_wraps_it_should_have(keks, add, remove, skip, newest, renew, seed):
    def wraps() -> tuple[Wrap, ...]:
        some = [name for name in keks if seed.random() < 0.7] or keks[:1]
        return tuple(Wrap(name, seed.choice("12"), b"old") for name in some)

    keyset = replace(
        PLAIN,
        keks=tuple(keks),
        sign_keks=tuple(keks),
        keys=(replace(PLAIN.keys[0], wrapped=wraps()),),
        report_key=replace(PLAIN.report_key, wrapped=wraps()),
        signer=replace(PLAIN.signer, wrapped=wraps()),
    )
    request = Request(add=tuple(add), remove=tuple(remove), skip=tuple(skip), renew=renew)
    states = {name: KekState(True, True, version, "1") for name, version in newest.items()}
    fleet = Fleet((), frozenset(), ())
    try:
        revision, planned = rewrapping.decide(keyset, fleet, request, states, now=10.0)
    except ConfigurationError as exc:
        refusal = exc.code
    else:
        refusal = ""
    if refusal:
        assert refusal in ("kek-last", "kek-both")
        return
    if revision.document is None:
        assert revision.verdict == "done"
        assert planned.due == ()
        return
    new = {i.context.kid: {k: Wrap(k, newest.get(k, ""), b"new") for k, _ in i.todo} for i in planned.due}
    after = rewrapping.complete(revision.document, planned, new)
    assert after.generation == keyset.generation + 1
    before = {item.kid: {wrap.kek: wrap for wrap in item.wrapped} for item in wrapped_items(keyset)}
    for item in wrapped_items(after):
        have = {wrap.kek: wrap for wrap in item.wrapped}
        assert have, "a key without a wrap opens nowhere"
        assert set(have) == {name for name in after.keks if name not in skip or name in before[item.kid]}
        for name, wrap in have.items():
            if name in skip:
                assert wrap == before[item.kid][name]
            elif name in newest:
                assert wrap.version == newest[name]
    # Doing it again changes nothing, where versions show.
    if not renew:
        again, _ = rewrapping.decide(after, fleet, request, states, now=11.0)
        assert again.verdict == "done"


def wrapped_items(keyset: Keyset) -> tuple:
    return (*keyset.live, keyset.report_key, keyset.signer)


PLAIN = World(FakeKek("fake:///0")).keyset
