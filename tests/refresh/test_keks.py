"""Unwrapping by any one of several KEKs: the nearest first, the next after half a second, all of them named at last."""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from mcpkeys import keks as kekss
from mcpkeys.errors import KeysetLocked, KmsUnreachable, PluginError
from mcpkeys.keks import MAX_PARALLEL, Job, Keks, Unwrapped
from mcpkeys.kms import WrapContext
from mcpkeys.patience import CALL_SECONDS, TOTAL_SECONDS, Patience
from mcpkeys.testing import FakeClock, FakeKek, FakeKms


def jobs(keks: list[FakeKek], count: int = 1) -> tuple[list[Job], dict[str, bytes]]:
    keys = {f"{number:012d}": os.urandom(32) for number in range(count)}
    made = []
    for kid, key in keys.items():
        context = WrapContext("seal", "fleet", kid)
        made.append(Job(context, tuple(kek.seal(key, context) for kek in keks)))
    return made, keys


@pytest.fixture
def two() -> list[FakeKek]:
    return [FakeKek("fake:///near"), FakeKek("fake:///far")]


def opened(keks: list[FakeKek], work: list[Job]) -> dict:
    return Keks([kek.open() for kek in keks]).unwrap(work)


def test_only_the_nearest_is_asked_where_it_answers(two: list[FakeKek]) -> None:
    work, keys = jobs(two)
    (answer,) = opened(two, work).values()
    assert (answer.key, answer.kek) == (*keys.values(), "fake:///near")
    assert two[1].gate.calls["unwrap"] == 0


def test_the_next_one_joins_after_half_a_second(two: list[FakeKek]) -> None:
    two[0].faults.latency = 1.8
    work, _ = jobs(two)
    before = time.monotonic()
    (answer,) = opened(two, work).values()
    assert answer.kek == "fake:///far"
    assert 0.5 <= time.monotonic() - before < 1.6


def test_the_next_one_joins_at_once_where_the_first_fails(two: list[FakeKek]) -> None:
    two[0].enabled = False
    work, _ = jobs(two)
    before = time.monotonic()
    (answer,) = opened(two, work).values()
    assert answer.kek == "fake:///far"
    assert time.monotonic() - before < 0.5


def test_the_pins_order_decides_not_the_documents(two: list[FakeKek]) -> None:
    work, _ = jobs(two[::-1])
    (answer,) = opened(two, work).values()
    assert answer.kek == "fake:///near"


@pytest.mark.parametrize("slow", [0.0, 0.6])
def test_more_keys_than_workers_under_two_keks_do_not_wait_for_each_other(two: list[FakeKek], slow: float) -> None:
    work, keys = jobs(two, 4 * MAX_PARALLEL)
    two[0].faults.latency = slow
    before = time.monotonic()
    answers = opened(two, work)
    assert {kid: answer.key for kid, answer in answers.items()} == keys
    assert time.monotonic() - before < 9


def test_keys_are_unwrapped_in_parallel(two: list[FakeKek]) -> None:
    two[0].faults.latency = 0.2
    work, _ = jobs(two[:1], 10)
    before = time.monotonic()
    opened(two[:1], work)
    assert time.monotonic() - before < 1.5


def test_every_kek_tried_is_named_with_its_cause(two: list[FakeKek]) -> None:
    two[0].enabled = False
    two[1].exists = False
    work, _ = jobs(two)
    (error,) = opened(two, work).values()
    assert isinstance(error, KeysetLocked)
    for part in ("fake:///near", "it is disabled", "fake:///far", "it does not exist", "doctor"):
        assert part in str(error)


def test_a_plugin_s_own_mistake_carries_nothing_that_it_held(two: list[FakeKek]) -> None:
    work, keys = jobs(two[:1])
    (key,) = keys.values()

    class Broken(FakeKms):
        def unwrap(self, wrap, context, *, deadline):
            held = super().unwrap(wrap, context, deadline=deadline)
            raise ValueError(held)

    (error,) = Keks([Broken(two[0])]).unwrap(work).values()
    assert isinstance(error, PluginError)
    assert key.hex() not in repr(error) + str(error)
    assert repr(key) not in repr(error) + str(error)
    assert error.__suppress_context__


@pytest.mark.parametrize("answer", [b"", b"x" * 31, b"x" * 33, None, 7])
def test_what_is_no_key_of_32_bytes_is_refused(two: list[FakeKek], answer: object) -> None:
    class Odd(FakeKms):
        def unwrap(self, wrap, context, *, deadline):
            return answer

    keks = Keks([Odd(two[0])])
    work, _ = jobs(two[:1])
    (error,) = keks.unwrap(work, patience=keks.impatient()).values()
    assert isinstance(error, KmsUnreachable | PluginError)


def test_no_repr_shows_a_key(two: list[FakeKek]) -> None:
    work, keys = jobs(two)
    (answer,) = opened(two, work).values()
    assert isinstance(answer, Unwrapped)
    assert repr(*keys.values()) not in repr(answer)


class Hanging:
    """A KEK that answers nothing: in virtual time until its deadline, or really until it is let go."""

    uri = "fake:///near"

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock, self.calls = clock, 0
        self.let_go = threading.Event()

    def unwrap(self, wrap, context, *, deadline: float) -> bytes:
        self.calls += 1
        if self.clock is None:
            self.let_go.wait(30)
        else:
            self.clock.advance(deadline - self.clock.monotonic())
        raise KmsUnreachable("no answer")

    def close(self) -> None:
        self.let_go.set()


def test_a_kek_that_hangs_keeps_no_key_from_the_next_one(two: list[FakeKek], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where its plugin overstays every deadline, and the keys are many."""
    monkeypatch.setattr(kekss, "HEDGE_SECONDS", 0.05)
    near = Hanging()
    work, keys = jobs(two, 4 * MAX_PARALLEL)
    keks = Keks([near, two[1].open()])
    try:
        answers = keks.unwrap(work)
    finally:
        keks.close()
    assert {kid: answer.key for kid, answer in answers.items()} == keys
    assert near.calls <= MAX_PARALLEL, "calls that had not begun when the other KEK answered are not made"


def test_the_time_for_all_keys_together_is_kept_however_many_they_are(two: list[FakeKek]) -> None:
    clock = FakeClock()
    began = clock.monotonic()
    near = Hanging(clock)
    work, _ = jobs(two[:1], 129)
    answers = Keks([near], clock=clock, jitter=random.Random(7), parallel=False).unwrap(work)
    assert clock.monotonic() - began <= TOTAL_SECONDS + CALL_SECONDS
    assert all(isinstance(answer, KmsUnreachable) for answer in answers.values())
    first, *_, last = answers.values()
    assert first.what == "no answer"
    assert "was not asked for" in last.what
    assert "no answer" in last.why
    assert len(answers) == len(work)


def test_an_impatient_unwrap_asks_for_every_key_once_while_one_call_may_last() -> None:
    clock = FakeClock()
    impatient = Patience(clock, random.Random(7), total=0.0, throttled=0.0)
    assert not impatient.over
    clock.advance(CALL_SECONDS - 0.1)
    assert not impatient.over
    clock.advance(0.2)
    assert impatient.over
    patient = Patience(clock, random.Random(7))
    clock.advance(TOTAL_SECONDS - CALL_SECONDS - 0.1)
    assert not patient.over
    clock.advance(0.2)
    assert patient.over


def test_a_slow_kek_is_waited_for_as_long_as_it_answers(two: list[FakeKek]) -> None:
    """Beyond the patience too: only where a key was given up are the others not asked for."""
    clock = FakeClock()

    class Slow(Hanging):
        def unwrap(self, wrap, context, *, deadline: float) -> bytes:
            clock.advance(1.0)
            return bytes(32)

    work, _ = jobs(two[:1], 40)
    answers = Keks([Slow(clock)], clock=clock, parallel=False).unwrap(work)
    assert all(isinstance(answer, Unwrapped) for answer in answers.values())
