"""The lock of a writer: a file beside the keyset that the kernel unlocks when its holder dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mcpkeys.errors import StoreUnreachable

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.05


@contextmanager
def writer_lock(path: str, deadline: float) -> Iterator[None]:
    """Hold `path` exclusively among processes and threads. Raises OSError, or `StoreUnreachable` at the deadline.

    The file stays when the lock is released: removing it would let two writers hold two files of one name. It is
    writable by its owner and group only, so that whoever may just read the keyset cannot hold up its writers.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o660)
    try:
        _acquire(fd, path, deadline)
        try:
            yield
        finally:
            # Named, since a process forked meanwhile shares this open file: closing alone would not unlock.
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def _acquire(fd: int, path: str, deadline: float) -> None:
    pause = _FIRST_PAUSE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            left = deadline - time.monotonic()
            if left <= 0:
                raise StoreUnreachable(
                    "the keyset is being written by another process",
                    why=f"{path} stayed locked until the deadline",
                    next="try again; `fuser` with this path names the process that holds it",
                ) from None
            time.sleep(min(pause, left))
            pause = min(pause * 2, _LONGEST_PAUSE)
