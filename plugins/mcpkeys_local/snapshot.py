"""A file as read at one moment: its bytes and the name of that version."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from dataclasses import dataclass

_TRIES = 5


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was read.

    Attributes:
        body: at most `limit + 1` bytes.
        status: of the open file, the same before and after reading.
        version: device, inode, size, mtime and ctime in nanoseconds, and a digest of the bytes read.
    """

    body: bytes
    status: os.stat_result
    version: str


class NotRegular(OSError):
    """A folder, a pipe, a device: nothing that could hold a document."""


def read_snapshot(path: str, limit: int, *, follow: bool = True) -> Snapshot:
    """Read `path`, at most one byte beyond `limit`. Raises OSError.

    The bytes are always read: a document is small, and a clock tick of the kernel (4 ms) is long enough for two
    writes that leave inode, size and times alike. Reading again while the file changes keeps bytes and identity
    together, for writers that do not replace atomically.

    Args:
        path: the file.
        limit: bytes.
        follow: whether a symbolic link is followed (Kubernetes mounts a ConfigMap as links) or refused.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    fd = os.open(path, flags)
    try:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            raise NotRegular(errno.EINVAL, "Not a regular file", path)
        for _ in range(_TRIES):
            body = _read_up_to(fd, limit + 1)
            after = os.fstat(fd)
            if _times(before) == _times(after):
                break
            before = after
        return Snapshot(body, after, version_of(after, body))
    finally:
        os.close(fd)


def version_of(status: os.stat_result, body: bytes) -> str:
    """The version of a file with this status and these first bytes."""
    return "-".join((*map(str, _times(status)), hashlib.sha256(body).hexdigest()[:32]))


def _times(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _read_up_to(fd: int, length: int) -> bytes:
    parts: list[bytes] = []
    offset = 0
    while offset < length:
        part = os.pread(fd, length - offset, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
    return b"".join(parts)
