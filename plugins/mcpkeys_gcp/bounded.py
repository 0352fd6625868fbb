"""Deadlines that hold, for libraries whose time-outs count each socket operation, or not at all."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from mcpkeys_gcp.quiet import quiet

T = TypeVar("T")


class DeadlinePassed(Exception):
    """The work did not end in time. It may still be going on."""


class _Box(Generic[T]):
    def __init__(self) -> None:
        self.value: T | None = None
        self.error: BaseException | None = None
        self.done = False


def bounded(work: Callable[[], T], deadline: float) -> T:
    """What `work()` returns or raises; `DeadlinePassed` at `deadline` (a `time.monotonic()` value) at the latest.

    It runs on a daemon thread of its own, silenced (`quiet`): credential look-ups and HTTP reads cannot be
    interrupted, only left behind. Each of them also has a time-out of its own, so that what is left behind ends.
    """
    box: _Box[T] = _Box()

    def run() -> None:
        try:
            with quiet():
                box.value = work()
        except BaseException as exc:
            box.error = exc
        box.done = True

    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise DeadlinePassed
    thread = threading.Thread(target=run, name="mcpkeys-gcp", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # Python 3.12 starts no thread at exit, where a farewell is written: its own time-outs must do
        run()
    else:
        thread.join(seconds)
    if not box.done:
        raise DeadlinePassed
    if box.error is not None:
        raise box.error
    return box.value  # type: ignore[return-value]  # done without error: it is what work returned


def left(deadline: float) -> float:
    """Seconds until `deadline`; raises `DeadlinePassed`."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise DeadlinePassed
    return seconds


def pause(attempt: int, deadline: float, *, base: float, cap: float) -> bool:
    """Sleep with full jitter (uniform in 0 to base * 2^attempt, at most cap). False, without sleep: no time is left."""
    seconds = random.uniform(0, min(cap, base * 2**attempt))  # noqa: S311 - spreads load, hides nothing
    if time.monotonic() + seconds >= deadline:
        return False
    time.sleep(seconds)
    return True
