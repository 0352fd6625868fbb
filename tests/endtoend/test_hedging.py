"""Several KEKs: nearest first, the next one after 500 ms, whatever the first one does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from mcpkeys import patience
from mcpkeys.errors import KekUnusable, KeysetLocked, KmsDenied, KmsUnreachable, McpkeysError, PluginError
from mcpkeys.keks import Job, Keks, Unwrapped
from mcpkeys.kms import Wrap, WrapContext
from mcpkeys.testing import FakeKek, FakeKms

NEAR, FAR = "fake:///near", "fake:///far"


class Timed(FakeKms):
    """A fake that keeps when its unwraps began, and does something first."""

    def __init__(self, kek: FakeKek, first: Callable[[float], None] = lambda deadline: None) -> None:
        super().__init__(kek)
        self.first = first
        self.began: list[float] = []

    def unwrap(self, wrap: Wrap, context: WrapContext, *, deadline: float) -> bytes:
        self.began.append(time.monotonic())
        self.first(deadline)
        return super().unwrap(wrap, context, deadline=deadline)


def hang_until_the_deadline(deadline: float) -> None:
    time.sleep(max(0.0, deadline - time.monotonic()))
    raise KmsUnreachable("nobody answers", why="no answer before the deadline")


def raising(error: Exception) -> Callable[[float], None]:
    def first(deadline: float) -> None:
        raise error

    return first


def jobs(count: int, *keks: FakeKek) -> tuple[list[Job], dict[str, bytes]]:
    made, keys = [], {}
    for number in range(count):
        context, key = WrapContext("seal", "fleet", f"kid{number:09d}"), os.urandom(32)
        made.append(Job(context, tuple(kek.seal(key, context) for kek in keks)))
        keys[context.kid] = key
    return made, keys


def opened(answers: dict[str, Unwrapped | McpkeysError]) -> dict[str, bytes]:
    return {kid: answer.key for kid, answer in answers.items() if isinstance(answer, Unwrapped)}


@pytest.fixture
def pair() -> tuple[FakeKek, FakeKek]:
    return FakeKek(NEAR), FakeKek(FAR)


def test_the_first_still_wins_where_the_second_fails(pair: tuple[FakeKek, FakeKek]) -> None:
    near = Timed(pair[0], lambda deadline: time.sleep(0.7))
    far = Timed(pair[1], raising(KmsDenied("no")))
    work, keys = jobs(2, *pair)
    answers = Keks([near, far]).unwrap(work)
    assert opened(answers) == keys
    assert {answer.kek for answer in answers.values() if isinstance(answer, Unwrapped)} == {NEAR}


@pytest.mark.slow
def test_128_keys_start_within_ten_seconds_where_the_nearest_kek_hangs(pair: tuple[FakeKek, FakeKek]) -> None:
    work, keys = jobs(129, *pair)
    begun = time.monotonic()
    answers = Keks([Timed(pair[0], hang_until_the_deadline), FakeKms(pair[1])]).unwrap(work)
    assert opened(answers) == keys
    assert time.monotonic() - begun < patience.TOTAL_SECONDS


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ((KmsUnreachable("a"), KmsDenied("b")), KmsUnreachable),
        ((KmsDenied("a"), KmsDenied("b")), KmsDenied),
        ((KekUnusable("a"), KmsDenied("b")), KeysetLocked),
        ((KekUnusable("a"), PluginError("b")), KeysetLocked),
    ],
)
def test_one_error_names_every_kek_tried_and_its_cause(
    pair: tuple[FakeKek, FakeKek], hurried: float, errors: tuple[McpkeysError, ...], kind: type[McpkeysError]
) -> None:
    both = [Timed(kek, raising(error)) for kek, error in zip(pair, errors, strict=True)]
    work, _ = jobs(1, *pair)
    begun = time.monotonic()
    (answer,) = Keks(both).unwrap(work).values()
    assert time.monotonic() - begun < hurried + 3
    assert type(answer) is kind
    assert f"{NEAR}: a" in answer.why
    assert f"{FAR}: b" in answer.why
    assert "doctor" in answer.next


def test_a_plugin_that_ignores_its_deadline_does_not_keep_a_start_from_ending(
    pair: tuple[FakeKek, FakeKek], hurried: float
) -> None:
    stop = threading.Event()

    def hang(deadline: float) -> None:
        stop.wait(20)

    try:
        work, keys = jobs(2, *pair)
        assert opened(Keks([Timed(pair[0], hang), FakeKms(pair[1])]).unwrap(work)) == keys
        begun = time.monotonic()
        for answer in Keks([Timed(pair[0], hang), Timed(pair[1], hang)]).unwrap(work).values():
            assert isinstance(answer, KmsUnreachable)
            assert NEAR in answer.why
            assert FAR in answer.why
        for answer in Keks([Timed(pair[0], hang)]).unwrap(work).values():
            assert isinstance(answer, KmsUnreachable)
            assert NEAR in answer.what
            assert "deadline" in answer.next
        assert time.monotonic() - begun < 10
    finally:
        stop.set()
