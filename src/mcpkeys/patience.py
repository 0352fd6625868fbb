"""Trying again: how long a start or a refresh bears with a KMS or store that does not answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mcpkeys.clock import Clock
from mcpkeys.errors import KmsUnreachable, Unreachable

if TYPE_CHECKING:
    from tenacity import RetryCallState

TOTAL_SECONDS = 10.0
THROTTLED_SECONDS = 60.0
CALL_SECONDS = 2.0
MAX_PAUSE_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.2

T = TypeVar("T")


class Patience:
    """A time for all tries together, from now on: 10 seconds, or 60 once something answered "throttled".

    Pauses have full jitter (uniform from 0), doubling to 5 seconds at most: a thousand instances that were refused
    together do not return together. Thread-safe: the calls of one start share one patience.
    """

    def __init__(
        self,
        clock: Clock,
        jitter: random.Random,
        *,
        total: float = TOTAL_SECONDS,
        throttled: float = THROTTLED_SECONDS,
    ) -> None:
        self._clock = clock
        self._jitter = jitter
        self._began = clock.monotonic()
        self._total = total
        self._throttled = throttled

    def call(self, work: Callable[[], T], on: type[Unreachable]) -> T:
        """`work()`, tried again while it raises `on` and one more call of 2 seconds fits in; its last error then."""
        try:
            return work()
        except on as exc:
            first = [exc]
        # tenacity imports asyncio, which costs a command as much as its own work; the first try is seldom not enough.
        from tenacity import Retrying, retry_if_exception_type

        def attempt() -> T:
            if first:
                raise first.pop()
            return work()

        retrying = Retrying(
            retry=retry_if_exception_type(on),
            wait=lambda state: self._jitter.uniform(
                0.0, min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(state.attempt_number, 10))
            ),
            stop=self._exhausted,
            sleep=self._clock.sleep,
            reraise=True,
        )
        return retrying(attempt)

    @property
    def over(self) -> bool:
        """Whether no further try fits in. Never within the time of the first one, however short the patience is."""
        return self._clock.monotonic() - self._began >= max(self._total - CALL_SECONDS, CALL_SECONDS)

    def _exhausted(self, state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome is not None else None
        if isinstance(error, KmsUnreachable) and error.throttled:
            self._total = max(self._total, self._throttled)
        return self._clock.monotonic() - self._began + state.upcoming_sleep + CALL_SECONDS > self._total
