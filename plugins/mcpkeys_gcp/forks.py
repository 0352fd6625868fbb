"""What happens to Google's clients at fork.

gRPC keeps threads and sockets that a forked child does not have. A child builds its own channel; that works where no
call was in flight at the moment of the fork (a child forked amid one was seen to hang in its first call). So a fork
waits for this package's own calls, `WAIT_SECONDS` at most; they are few: at start, and one canary a day.

Leave `GRPC_ENABLE_FORK_SUPPORT` unset: with it set, to 1 or to 0, children forked amid calls hung for good.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

WAIT_SECONDS = 1.0


class Forkable(Protocol):
    def after_fork(self) -> None:
        """In the child: forget connections and locks of the parent. Must neither block nor raise."""
        ...


_idle = threading.Condition(threading.Lock())
_calls = 0
_forking = False
_members: weakref.WeakSet[Forkable] = weakref.WeakSet()
_inherited: list[object] = []


def join(member: Forkable) -> None:
    """Have `member.after_fork()` called in forked children for as long as it lives."""
    _members.add(member)


def keep(inherited: object) -> None:
    """In a child: never finalise this object of the parent. A channel's finaliser would wait for lost threads."""
    _inherited.append(inherited)


@contextmanager
def in_flight() -> Iterator[None]:
    """Around each gRPC call: a fork waits for it."""
    global _calls
    with _idle:
        while _forking:  # or a stream of calls would never let a fork through
            _idle.wait()
        _calls += 1
    pid = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == pid:
            with _idle:
                _calls -= 1
                if _calls == 0:
                    _idle.notify_all()


def _before() -> None:
    global _forking
    _idle.acquire()
    _forking = True
    end = time.monotonic() + WAIT_SECONDS
    while _calls and (left := end - time.monotonic()) > 0:
        _idle.wait(left)


def _in_parent() -> None:
    global _forking
    _forking = False
    _idle.notify_all()
    _idle.release()


def _in_child() -> None:
    global _idle, _calls, _forking
    _idle, _calls, _forking = threading.Condition(threading.Lock()), 0, False
    for member in list(_members):
        member.after_fork()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
