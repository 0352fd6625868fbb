"""Timing side by side: every contestant is timed in short batches, in turn, in random order.

What a call takes is the median over many short batches, spread over the run; a ratio is of two of these.
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class Timed:
    """Seconds per call of each contestant, one value a turn; the same turn stands at the same index."""

    turns: Mapping[str, Sequence[float]]

    def seconds(self, name: str) -> float:
        """Seconds per call: the median of the turns."""
        return statistics.median(self.turns[name])

    def ratio(self, name: str, base: str) -> float:
        """How long `name` takes in units of `base`."""
        return self.seconds(name) / self.seconds(base)

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
    """Times calls that raise one of these each time, catching it included. AssertionError where one does not."""

    def once(call: Callable[[object], object], inputs: Sequence[object]) -> float:
        caught = 0
        started = time.perf_counter()
        for value in inputs:
            try:
                call(value)
            except errors:
                caught += 1
        taken = time.perf_counter() - started
        assert caught == len(inputs)
        return taken / len(inputs)

    return once


def side_by_side(
    work: Mapping[str, tuple[Callable[[object], object], Sequence[object]]], *, turns: int, timer: Timer = returned
) -> Timed:
    """Time each contestant's call over its own inputs, which differ from call to call.

    Args:
        work: name -> (callable of one argument, its inputs).
        turns: how often each is timed.
        timer: gives the seconds per call over some inputs; of calls that raise, `refused`.
    """
    batches = {name: _batch(call, inputs, timer) for name, (call, inputs) in work.items()}
    found: dict[str, list[float]] = {name: [] for name in work}
    order = list(work)
    collecting = gc.isenabled()
    gc.disable()
    # glibc gives the heap's end back to the kernel, and takes it again page by page, until it has seen one large block
    # freed, as any server has. Whom that hits in a run without one is chance: it depends on what lies behind.
    bytearray(16 << 20)
    try:
        for _ in range(turns):
            random.shuffle(order)
            for name in order:
                found[name].append(timer(work[name][0], batches[name]))
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
