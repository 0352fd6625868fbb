"""The lock of a writer: a file beside the keyset that the kernel unlocks when its holder dies."""

from __future__ import annotations

import contextlib
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

    The file stays when the lock is released: removing it would let two writers hold two files of one name.
    """
    fd = _open(path)
    try:
        _acquire(fd, path, deadline)
        try:
            yield
        finally:
            # Named, since a process forked meanwhile shares this open file: closing alone would not unlock.
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def _open(path: str) -> int:
    """The lock file opened: its owner's alone, or its folder's group's where that group may write the folder.

    Whoever may just read the keyset cannot open it, and so cannot hold up its writers.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        try:
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        with contextlib.suppress(OSError):
            folder = os.stat(os.path.dirname(path))
            if folder.st_mode & 0o020:
                os.fchown(fd, -1, folder.st_gid)
                os.fchmod(fd, 0o660)
        return fd


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
