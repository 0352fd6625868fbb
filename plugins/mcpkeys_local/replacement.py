"""Replacing a file whole: draft, flush, rename, flush the folder."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import secrets
import stat
import time

_ACL = "system.posix_acl_access"


class OwnerLost(OSError):
    """The new file could not be given to the old one's owner, who might then not be able to read it."""


def replace_file(path: str, body: bytes, old: os.stat_result | None) -> os.stat_result:
    """Put `body` at `path`: after a kill at any point, all of the old file is there or all of the new one.

    Mode, owner, group and access list of `old` are kept; a new file follows the umask. The modification time grows
    with each replacement, also where the filesystem reuses the inode within one tick of its clock, so that a
    version never returns.

    Raises OSError, with the old file in place. Where the last flush fails, the new one may be in place.
    Returns the new file's status.
    """
    folder, name = os.path.split(path)
    draft = os.path.join(folder, _draft_name(name))
    # Closed to others until it has the old file's rights.
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600 if old else 0o666)
    try:
        try:
            if old is not None:
                _keep_rights(fd, path, old)
            _write_all(fd, body)
            now = time.time_ns()
            os.utime(fd, ns=(now, now if old is None else max(now, old.st_mtime_ns + 1)))
            os.fsync(fd)
            os.replace(draft, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
        flush_folder(folder)
        return os.fstat(fd)
    finally:
        os.close(fd)


def write_small(path: str, body: bytes) -> None:
    """As `replace_file`, for a file that one writer owns: mode by the umask, times by the filesystem."""
    folder, name = os.path.split(path)
    draft = os.path.join(folder, _draft_name(name))
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        try:
            _write_all(fd, body)
            os.fsync(fd)  # or a power cut may leave an empty file under the final name
        finally:
            os.close(fd)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def sweep(folder: str, name: str, *, older_than: float) -> None:
    """Remove drafts of `name` (of any name, if empty) that killed writers left, last modified before `older_than`.

    `older_than` is in seconds since the epoch. What cannot be removed stays: it is in nobody's way.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _is_draft(entry.name, name):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < older_than:
                        os.unlink(entry.path)


def flush_folder(folder: str) -> None:
    """Put a folder's entries on the disk. A folder that may be written and not read cannot be flushed; it is left."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a filesystem on which folders need and know no flush
            raise
    finally:
        os.close(fd)


def _draft_name(name: str) -> str:
    return f".{name}.{secrets.token_hex(8)}.tmp"


def _is_draft(candidate: str, name: str) -> bool:
    front, tail = f".{name}.", ".tmp"
    if not (candidate.startswith(front) if name else candidate.startswith(".")) or not candidate.endswith(tail):
        return False
    middle = candidate[: -len(tail)].rpartition(".")[2]
    return len(middle) == 16 and (not name or len(candidate) == len(front) + 16 + len(tail))


def _write_all(fd: int, body: bytes) -> None:
    view = memoryview(body)
    while view:
        view = view[os.write(fd, view) :]


def _keep_rights(fd: int, path: str, old: os.stat_result) -> None:
    mine = os.fstat(fd)
    if (mine.st_uid, mine.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(fd, old.st_uid, old.st_gid)
        except PermissionError:
            _keep_group(fd, path, old)
    os.fchmod(fd, stat.S_IMODE(old.st_mode) & 0o777)
    try:
        access_list = os.getxattr(path, _ACL)
    except OSError:
        return  # none, or a filesystem without them
    os.setxattr(fd, _ACL, access_list)


def _keep_group(fd: int, path: str, old: os.stat_result) -> None:
    """Operators who share a group may each own the file in turn, as long as the old owner can still read it."""
    try:
        os.fchown(fd, -1, old.st_gid)
        by_group = bool(old.st_mode & 0o040) and _is_member(old.st_uid, old.st_gid)
    except PermissionError:
        by_group = False
    if not by_group and not old.st_mode & 0o004:
        raise OwnerLost(errno.EPERM, f"its owner, user {old.st_uid}, could no longer read it", path)


def _is_member(user: int, group: int) -> bool:
    try:
        entry = pwd.getpwuid(user)
    except KeyError:
        return False
    return group in os.getgrouplist(entry.pw_name, entry.pw_gid)
