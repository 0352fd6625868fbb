"""Threads, signals, cloned processes, an event loop, and long lives: nothing breaks, repeats, blocks or grows."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster
from mcp.server.request_state import InvalidRequestState
from servers.fakefleet import Fleet, refresh

from mcpkeys import EnvelopeCodec
from mcpkeys.clock import SystemClock
from mcpkeys.ring import MAX_OPENERS
from mcpkeys.testing import FakeClock


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    made = Fleet(clock=FakeClock())
    made.create()
    yield made
    made.close()


@pytest.fixture
def live() -> Iterator[Fleet]:
    """On the machine's own clock, refreshed every second by a thread."""
    made = Fleet(clock=SystemClock())
    made.create(refresh_seconds=1)
    yield made
    made.close()


# --- threads and signals ------------------------------------------------------------------------------------------


def test_threads_seal_and_unseal_while_rings_come_and_go(fleet: Fleet) -> None:
    codecs = [fleet.open(), fleet.open()]
    stop, errors, rounds = threading.Event(), [], []

    def work(number: int) -> None:
        mine, other = codecs[number % 2], codecs[1 - number % 2]
        count = 0
        try:
            while not stop.is_set():
                payload = secrets.token_bytes(40)
                assert mine.unseal(mine.seal(payload)) == payload
                try:
                    assert other.unseal(mine.seal(payload)) == payload
                except InvalidRequestState as refused:
                    # Only for a key that the other one has not learnt, between the two refreshes below.
                    assert str(refused) == "unknown key"  # noqa: PT017
                count += 1
        except BaseException as error:
            errors.append(error)
        rounds.append(count)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        for change in (fleet.learn, fleet.turn):
            change()
            for codec in codecs:
                refresh(codec)
        if len(fleet.keyset.live) > 20:
            fleet.next(keys=fleet.keyset.keys[-3:])
            for codec in codecs:
                refresh(codec)
    stop.set()
    for thread in threads:
        thread.join(20)
    assert not errors
    assert sum(rounds) > 100


def test_a_signal_handler_may_use_the_codec_amid_anything(live: Fleet) -> None:
    codec = live.open(thread=True)
    rounds = []

    def handler(number: int, frame: object) -> None:
        rounds.append(codec.unseal(codec.seal(b"in a handler")))
        codec._use(None)

    former = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            codec._use(None)
            codec.seal(b"outside")
            codec.status()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert len(rounds) > 20
    assert set(rounds) == {b"in a handler"}


def test_closing_from_many_threads_says_one_farewell(fleet: Fleet) -> None:
    codec = fleet.open()
    threads = [threading.Thread(target=codec.close) for _ in range(8)]
    written = fleet.place.gate.calls["put_report"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert fleet.place.gate.calls["put_report"] == written + 1


# --- a cloned process image ---------------------------------------------------------------------------------------


def test_clones_of_one_process_image_never_repeat_a_nonce(fleet: Fleet) -> None:
    """As a snapshot that is restored twice: no handler runs, both go on with the same prefix."""
    codec = fleet.open()
    codec.seal(b"warm")
    fork = ctypes.PyDLL(None).fork
    tokens: list[str] = []
    for _ in range(4):
        reader, writer = os.pipe()
        pid = fork()
        if pid == 0:  # pragma: no cover
            try:
                os.write(writer, "\n".join(codec.seal(b"the same state") for _ in range(100)).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            tokens += pipe.read().split("\n")
        os.waitpid(pid, 0)
    tokens += [codec.seal(b"the same state") for _ in range(100)]
    assert len({token[:32] for token in tokens}) == 1, "they share the prefix: no handler ran"
    assert len({token[32:48] for token in tokens}) == 500, "the nonce's 12 bytes are the body's first 16 characters"


# --- the event loop -----------------------------------------------------------------------------------------------


def test_the_event_loop_is_never_blocked_by_a_slow_store_and_a_slow_kms(live: Fleet) -> None:
    live.place.faults.latency = live.keks[0].faults.latency = 0.3
    codec = live.open(thread=True)
    detector = BlockBuster(["mcpkeys", "mcp"])
    generations, slowest = set(), 0.0

    async def traffic() -> None:
        nonlocal slowest
        end = asyncio.get_running_loop().time() + 3.5
        number = 0
        while asyncio.get_running_loop().time() < end:
            before = time.thread_time()
            for _ in range(5):
                assert codec.unseal(codec.seal(b"state")) == b"state"
                number += 1
                with pytest.raises(InvalidRequestState):
                    codec.unseal(f"mk1.{number:012d}" + "A" * 76)
            codec.ready()
            codec.status()
            slowest = max(slowest, time.thread_time() - before)
            generations.add(codec.ring.generation)
            await asyncio.sleep(0.01)

    writer = threading.Timer(0.8, live.learn)
    writer.start()
    detector.activate()
    try:
        asyncio.run(traffic())
    finally:
        detector.deactivate()
        writer.join()
    assert generations == {1, 2}
    assert codec.refresher.last_error is None
    assert slowest < 0.1


def test_the_detector_would_have_seen_it(live: Fleet) -> None:
    detector = BlockBuster()

    async def blocked() -> None:
        refresh(codec)

    codec = live.open()
    live.place.faults.latency = 0.01
    detector.activate()
    try:
        asyncio.run(blocked())
    finally:
        detector.deactivate()
    assert "Blocking" in str(codec.refresher.last_error) or codec.refresher.last_error.why == "BlockingError"


# --- long lives ---------------------------------------------------------------------------------------------------


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def grows(work: Callable[[int], None], *, warm: int, times: int) -> float:
    """MiB by which this process grew over `times` turns, after `warm` of them."""
    for number in range(warm):
        work(number)
    before = resident()
    for number in range(warm, warm + times):
        work(number)
    return (resident() - before) / (1 << 20)


linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
TIMES = [1, pytest.param(25, marks=pytest.mark.slow)]


@linux
@pytest.mark.parametrize("times", TIMES)
def test_tokens_leave_nothing_behind(fleet: Fleet, times: int) -> None:
    codec = fleet.open()
    assert grows(lambda _: codec.unseal(codec.seal(b"x" * 300)), warm=4000, times=40_000 * times) < 2


@linux
@pytest.mark.parametrize("times", TIMES)
def test_refreshes_leave_nothing_behind(fleet: Fleet, times: int) -> None:
    codec = fleet.open()

    def work(number: int) -> None:
        if number % 20 == 0:
            fleet.learn()
        elif number % 20 == 10:
            fleet.turn()
            fleet.next(keys=fleet.keyset.keys[-2:], history=())
        fleet.place.gate.grants.clear()
        for kek in fleet.keks:
            kek.gate.grants.clear()
        fleet.clock.advance(30)
        refresh(codec)

    assert grows(work, warm=200, times=400 * times) < 4
    assert len(codec.refresher.loader.uses) <= 3
    assert len(codec.refresher.loader._held) <= 3
    assert codec.refresher.failures == 0


@linux
@pytest.mark.parametrize("times", TIMES)
def test_a_flood_of_unknown_kids_leaves_nothing_behind(fleet: Fleet, times: int) -> None:
    codec = fleet.open()

    def work(number: int) -> None:
        with pytest.raises(InvalidRequestState):
            codec.unseal(f"mk1.{number:012d}{number:016d}" + "A" * 60)

    assert grows(work, warm=2000, times=20_000 * times) < 2
    assert len(codec.refusals_by_key_state) == 1


@linux
@pytest.mark.parametrize("times", TIMES)
def test_a_flood_of_fresh_prefixes_is_bounded_whether_genuine_or_not(fleet: Fleet, times: int) -> None:
    """Forged prefixes are never remembered; genuine ones, of many processes, up to a limit."""
    codec, minter = fleet.open(), fleet.open()
    kid = codec.ring.minting

    def forged(number: int) -> None:
        with pytest.raises(InvalidRequestState):
            codec.unseal(f"mk1.{kid}{number:016d}" + "A" * 60)

    def genuine(number: int) -> None:
        minter._instance.new_prefix()
        minter._use(None)
        codec.unseal(minter.seal(b"x"))

    assert grows(forged, warm=1000, times=2000 * times) < 2
    assert not codec.ring.openers
    assert grows(genuine, warm=MAX_OPENERS, times=2000 * times) < 2
    assert len(codec.ring.openers) <= MAX_OPENERS
    assert len(fleet.report(minter).prefixes) <= 64


def test_codecs_from_secrets_are_collected(fleet: Fleet) -> None:
    from mcpkeys import lifetime

    before = len(lifetime._known)
    for _ in range(50):
        EnvelopeCodec.from_secrets([b"a secret of at least thirty-two bytes"])
    gc.collect()
    assert len(lifetime._known) <= before
