"""Timing side by side: every contestant is timed in short batches, in turn, in random order.

What a call takes is the median over many short batches, spread over the run; a ratio is of two of these.

A processor that is shared, as every virtual one is, has two speeds, and changes between them many times a second.
A median over both belongs to neither, and a ratio of two such medians to nothing at all. So a yardstick, the same plain
loop each time, is timed on both sides of every batch, and only batches at the better speed count. A batch runs twice,
and the second time is taken: the first finds in the processor's caches what the contestant before it left there.
"""

from __future__ import annotations

import bisect
import contextlib
import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Timer = Callable[[Callable[[object], object], Sequence[object]], float]
"""(call, inputs) -> seconds per call."""

BATCH_SECONDS = 0.0004
"""About as long as a batch lasts: far below the time slice of a busy machine, far above the step of its clock."""
SLOWED = 1.15
"""A yardstick that took this many times its best was timed while something else used the processor too."""
PATIENCE = 8
"""How many times the turns asked for are taken at most, until a third of that number counts."""

_SEEN: list[float] = []
"""Every yardstick of the run, the shortest first: a part of it may meet the worse speed alone."""


def yardstick() -> float:
    """Seconds that a plain loop takes here and now: about a tenth of a millisecond."""
    started, total = time.perf_counter(), 0
    for number in range(3000):
        total += number
    taken = time.perf_counter() - started
    bisect.insort(_SEEN, taken)
    return taken


def counting(timed: Sequence[tuple[float, float]]) -> list[float]:
    """Of (what was timed, the slower yardstick beside it): what counts, being timed at the better speed.

    The best yardstick is that of one in twenty, so that no single one decides.
    """
    longest = SLOWED * _SEEN[len(_SEEN) // 20]
    return [taken for taken, beside in timed if beside <= longest]


def aside(timed: Sequence[tuple[float, float]]) -> float:
    """The share, 0 to 1, of what does not count."""
    return 1 - len(counting(timed)) / len(timed)


@dataclass(frozen=True)
class Timed:
    """Seconds per call of each contestant, one value a turn, each with the slower of the yardsticks beside it."""

    turns: Mapping[str, Sequence[tuple[float, float]]]

    def seconds(self, name: str) -> float:
        """Seconds per call: the median of the turns that count; of all, where of one contestant none does."""
        turns = self.turns[name]
        return statistics.median(counting(turns) if self.counted() else [taken for taken, _ in turns])

    def ratio(self, name: str, base: str) -> float:
        """How long `name` takes in units of `base`."""
        return self.seconds(name) / self.seconds(base)

    def counted(self) -> int:
        """Of the contestant with the fewest: how many turns count."""
        return min(len(counting(turns)) for turns in self.turns.values())

    def aside(self) -> float:
        """The share of batches, 0 to 1, that do not count."""
        return aside([turn for turns in self.turns.values() for turn in turns])

    def __add__(self, later: Timed) -> Timed:
        """Both as one: more turns of the same contestants."""
        return Timed({name: [*turns, *later.turns[name]] for name, turns in self.turns.items()})


def returned(call: Callable[[object], object], inputs: Sequence[object]) -> float:
    """Seconds per call over all inputs."""
    started = time.perf_counter()
    for value in inputs:
        call(value)
    return (time.perf_counter() - started) / len(inputs)


def refused(*errors: type[Exception]) -> Timer:
    """Times calls that raise one of these each time, catching it included. AssertionError where one does not raise."""

    def once(call: Callable[[object], object], inputs: Sequence[object]) -> float:
        caught = 0
        started = time.perf_counter()
        for value in inputs:
            try:
                call(value)
            except Exception:  # a tuple of classes would be searched, which is not the call's time
                caught += 1
        taken = time.perf_counter() - started
        assert caught == len(inputs)
        with contextlib.suppress(*errors):  # nothing else was caught: the last one again
            call(inputs[-1])
        return taken / len(inputs)

    return once


def side_by_side(
    work: Mapping[str, tuple[Callable[[object], object], Sequence[object]]], *, turns: int, timer: Timer = returned
) -> Timed:
    """Time each contestant's call over its own inputs, which differ from call to call.

    Args:
        work: name -> (callable of one argument, its inputs).
        turns: how often each is timed; more often where too few of them count, see `PATIENCE`.
        timer: gives the seconds per call over some inputs; of calls that raise, `refused`.
    """
    batches = {name: _batch(call, inputs, timer) for name, (call, inputs) in work.items()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
    order = list(work)
    collecting = gc.isenabled()
    gc.disable()
    # glibc gives the heap's end back to the kernel, and takes it again page by page, until it has seen one large block
    # freed, as any server has. Whom that hits in a run without one is chance: it depends on what lies behind.
    bytearray(16 << 20)
    try:
        for turn in range(PATIENCE * turns):
            if turn and turn % turns == 0 and Timed(found).counted() >= turns / 3:
                break
            random.shuffle(order)
            before = yardstick()
            for name in order:
                call, batch = work[name][0], batches[name]
                timer(call, batch)
                seconds = timer(call, batch)
                after = yardstick()
                found[name].append((seconds, max(before, after)))
                before = after
            gc.collect(0)
    finally:
        if collecting:
            gc.enable()
    return Timed(found)


def _batch(call: Callable[[object], object], inputs: Sequence[object], timer: Timer) -> list[object]:
    """The inputs, repeated to fill `BATCH_SECONDS`; also the warm-up."""
    timer(call, inputs)
    each = timer(call, inputs)
    count = max(1, min(2000, int(BATCH_SECONDS / each)))
    return [inputs[i % len(inputs)] for i in range(count)]


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
