"""What goes wrong between a fake KMS or store and its caller, and how often it was called."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, fields

from mcpkeys.clock import Clock
from mcpkeys.errors import McpkeysError


@dataclass
class Faults:
    """Switches, read at each call; set them while a test runs.

    Attributes:
        outage: nobody answers.
        denied: the identity may do nothing.
        read_only: the identity may read, or unwrap, and nothing else.
        per_second: at most so many calls are granted in any second; the others are throttled. 0: none. None: no limit.
        latency: seconds that each call takes.
        fail_next: so many calls from now on meet an outage; counts down.
    """

    outage: bool = False
    denied: bool = False
    read_only: bool = False
    per_second: int | None = None
    latency: float = 0.0
    fail_next: int = 0

    def clear(self) -> None:
        """All well again."""
        for switch in fields(self):
            setattr(self, switch.name, switch.default)


@dataclass(frozen=True)
class Answers:
    """The errors that a fake raises, made fresh at each call from one word of why."""

    late: Callable[[str], McpkeysError]
    throttled: Callable[[str], McpkeysError]
    denied: Callable[[str], McpkeysError]


class Gate:
    """Where each call passes: counted, delayed, refused. Thread-safe.

    Attributes:
        calls: how often each operation was called.
        granted: how often each was let through.
        grants: `clock.monotonic()` of each call that was let through.
    """

    def __init__(self, clock: Clock, answers: Answers) -> None:
        self.calls: Counter[str] = Counter()
        self.granted: Counter[str] = Counter()
        self.grants: list[float] = []
        self._clock = clock
        self._answers = answers
        self._recent: deque[float] = deque()
        self._lock = threading.Lock()

    def busiest_second(self) -> int:
        """The largest number of calls that were granted in any one second."""
        most, start = 0, 0
        for end, at in enumerate(self.grants):
            while at - self.grants[start] >= 1.0:
                start += 1
            most = max(most, end - start + 1)
        return most

    def enter(self, operation: str, faults: tuple[Faults, ...], deadline: float, *, writes: bool) -> None:
        """Let the call through or raise. Waits for the latency, and no longer than the deadline, by the clock."""
        with self._lock:
            self.calls[operation] += 1
        left = deadline - self._clock.monotonic()
        if left <= 0:
            raise self._answers.late("the deadline had passed before the call")
        latency = sum(fault.latency for fault in faults)
        if latency:
            self._clock.sleep(min(latency, left))
            if latency >= left:
                raise self._answers.late("no answer before the deadline")
        with self._lock:
            for fault in faults:
                self._check(fault, writes)
            now = self._clock.monotonic()
            limits = [fault.per_second for fault in faults if fault.per_second is not None]
            if limits:
                while self._recent and now - self._recent[0] >= 1.0:
                    self._recent.popleft()
                if len(self._recent) >= min(limits):
                    raise self._answers.throttled("the quota is used up")
                self._recent.append(now)
            self.granted[operation] += 1
            self.grants.append(now)

    def _check(self, fault: Faults, writes: bool) -> None:
        if fault.fail_next > 0:
            fault.fail_next -= 1
            raise self._answers.late("nobody answers")
        if fault.outage:
            raise self._answers.late("nobody answers")
        if fault.denied or (fault.read_only and writes):
            raise self._answers.denied("this identity may not do this")
