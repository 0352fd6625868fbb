"""Time as an argument: everything that waits or compares times takes a `Clock`."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What this package needs of time. All values are float seconds."""

    def time(self) -> float:
        """Wall clock, since the epoch."""
        ...

    def monotonic(self) -> float:
        """Never goes back; what deadlines are made of."""
        ...

    def boottime(self) -> float:
        """As monotonic, and goes on while the machine sleeps."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


# macOS has no CLOCK_BOOTTIME; its monotonic clock is the nearest thing.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's own clocks."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.clock_gettime(_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
