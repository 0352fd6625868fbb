"""Virtual time for many actors: real blocking code, one thread each, of which only one runs at any moment."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable


class VirtualTime:
    """A `mcpkeys.clock.Clock` and the scheduler behind it. `sleep` hands over to whoever is to wake up next.

    Deterministic: the order of events depends on nothing but the times at which actors sleep.
    """

    def __init__(self, now: float = 1_790_000_000.0) -> None:
        self._epoch = now
        self._now = 0.0
        self._order = itertools.count()
        self._sleeping: list[tuple[float, int, threading.Semaphore]] = []
        self._idle = threading.Semaphore(0)

    def time(self) -> float:
        return self._epoch + self._now

    def monotonic(self) -> float:
        return self._now

    def boottime(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        wake = threading.Semaphore(0)
        heapq.heappush(self._sleeping, (self._now + max(0.0, seconds), next(self._order), wake))
        self._idle.release()
        wake.acquire()

    def spawn(self, actor: Callable[[], None]) -> None:
        """An actor that begins now, as soon as `run` goes on."""
        begun = threading.Semaphore(0)

        def run() -> None:
            begun.acquire()
            try:
                actor()
            finally:
                self._idle.release()

        threading.Thread(target=run, daemon=True).start()
        heapq.heappush(self._sleeping, (self._now, next(self._order), begun))

    def run(self, until: float) -> None:
        """Let everything happen up to a moment of the monotonic clock."""
        while self._sleeping and self._sleeping[0][0] <= until:
            self._now, _, wake = heapq.heappop(self._sleeping)
            wake.release()
            self._idle.acquire()
        self._now = until
