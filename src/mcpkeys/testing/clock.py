"""A clock that a test moves."""

from __future__ import annotations

import threading


class FakeClock:
    """A `mcpkeys.clock.Clock` that stands still until it is told otherwise; `sleep` moves it and returns at once.

    Args:
        now: wall clock at the start, seconds since the epoch. Monotonic and boot time start at 1,000 s.
    """

    def __init__(self, now: float = 1_790_000_000.0) -> None:
        self._lock = threading.Lock()
        self._now = now
        self._monotonic = 1000.0
        self._asleep = 0.0

    def time(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def boottime(self) -> float:
        return self._monotonic + self._asleep

    def sleep(self, seconds: float) -> None:
        """Move all three clocks."""
        with self._lock:
            self._now += max(0.0, seconds)
            self._monotonic += max(0.0, seconds)

    advance = sleep

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or (negative) back, as an administrator or NTP does."""
        with self._lock:
            self._now += seconds

    def suspend(self, seconds: float) -> None:
        """As a machine that slept: wall clock and boot time go on, the monotonic clock does not."""
        with self._lock:
            self._now += seconds
            self._asleep += seconds
