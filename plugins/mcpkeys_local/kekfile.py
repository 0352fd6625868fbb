"""A local KEK: a file of exactly 32 random bytes that only its owner can read."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from mcpkeys.errors import ConfigurationError, KekUnusable, KmsDenied, KmsUnreachable

KEK_BYTES = 32
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


@dataclass(frozen=True, slots=True)
class KekFile:
    """What was read.

    Attributes:
        key: the 32 bytes; not shown by `repr`.
        version: 8 hexadecimal digits derived one-way from the key (HKDF-SHA256): another key, another version.
        detail: size, mode and owner, for a person.
    """

    key: bytes = field(repr=False)
    version: str
    detail: str


def read_kek(path: str) -> KekFile:
    """The KEK in `path`. Follows symbolic links (secrets are mounted as such), checks what it opened.

    Raises `KekUnusable` (missing, no regular file, wrong length, accessible to group or others), `KmsDenied`
    (this user may not read it) or `KmsUnreachable` (the disk fails).
    """
    try:
        # Without O_NONBLOCK a named pipe would wait for its writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _refusal(path, error) from None
    try:
        status = os.fstat(fd)
        _check(path, status)
        content = os.read(fd, KEK_BYTES + 1)
    except OSError as error:
        raise _refusal(path, error) from None
    finally:
        os.close(fd)
    if len(content) != KEK_BYTES:
        del content  # a part of a key is a secret too, and tracebacks show locals
        raise _wrong_length(path, status.st_size)
    return KekFile(content, version_of(content), f"{KEK_BYTES} bytes, {_access(status)}")


def version_of(key: bytes) -> str:
    """8 hexadecimal digits that tell one KEK from another and nothing about it: HKDF-Expand (RFC 5869) of the key."""
    return HKDFExpand(SHA256(), 4, b"mcpkeys/local/version").derive(key).hex()


def create_kek(path: str | os.PathLike[str]) -> None:
    """Create a KEK file: 32 bytes of the system's randomness, mode 0600. Never overwrites, all or nothing.

    It is on the disk when this returns: what it wraps could otherwise outlive it.

    Raises `ConfigurationError` where anything is there already or the folder is missing, `KmsDenied` where this
    user may not write there, `KmsUnreachable` where the disk fails.
    """
    path = os.fspath(path)
    folder = os.path.dirname(path) or "."
    # A name of its own first, so that a kill leaves no file of fewer than 32 bytes under the real one.
    draft = os.path.join(folder, f".{os.path.basename(path)}.{secrets.token_hex(8)}.tmp")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                os.fchmod(fd, 0o600)  # the umask may have taken even the owner's rights
                os.write(fd, os.urandom(KEK_BYTES))
                os.fsync(fd)
            finally:
                os.close(fd)
            os.link(draft, path, follow_symlinks=False)  # unlike a rename, refuses to replace
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder_fd)
        finally:
            os.close(folder_fd)
    except FileExistsError:
        raise ConfigurationError(
            f"the KEK file {path} is not created",
            why="something is there already, and a KEK is never overwritten",
            next="use it as it is, or choose another path",
            code="kek-exists",
        ) from None
    except FileNotFoundError:
        raise ConfigurationError(
            f"the KEK file {path} is not created",
            why=f"the folder {folder} does not exist",
            next=f"create it: mkdir -p -m 700 {folder}",
            code="kek-unusable",
        ) from None
    except OSError as error:
        raise _refusal(path, error, doing="created") from None


def _check(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KekUnusable(
            f"the KEK {path} is not a regular file",
            why=f"it is {_KINDS.get(stat.S_IFMT(status.st_mode), 'something else')}",
            next="name a file of exactly 32 random bytes; `mcpkeys init` creates a missing one",
        )
    if status.st_mode & 0o077:
        raise KekUnusable(
            f"the KEK file {path} is accessible to others than its owner",
            why=_access(status),
            next=f"chmod 600 {path}; if others could read it, wrap by a new KEK: mcpkeys rewrap --add-kek",
            code="kek-exposed",
        )
    if status.st_size != KEK_BYTES:
        raise _wrong_length(path, status.st_size)


def _wrong_length(path: str, size: int) -> KekUnusable:
    return KekUnusable(
        f"the KEK file {path} has the wrong length",
        why=f"it has {size:,} bytes and a KEK has exactly {KEK_BYTES}, raw",
        next="restore it from a backup; to begin anew, move it away and let `mcpkeys init` create one",
    )


def _access(status: os.stat_result) -> str:
    return f"mode {stat.S_IMODE(status.st_mode):04o}, owner {status.st_uid}, group {status.st_gid}"


def _refusal(path: str, error: OSError, doing: str = "opened") -> KekUnusable | KmsDenied | KmsUnreachable:
    what = f"the KEK file {path} cannot be {doing}"
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    if error.errno == errno.ENOENT:
        dangling = os.path.islink(path)
        return KekUnusable(
            f"there is no KEK file {path}",
            why="it is a symbolic link to nothing" if dangling else "nothing is at this path",
            next="`mcpkeys init` creates a missing one; otherwise correct the path",
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return KmsDenied(
            what,
            why=f"{reason}, as user {os.geteuid()}",
            next=f"run as the file's owner, or give it to this user: chown {os.geteuid()} {path}",
        )
    if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.ENXIO):
        return KekUnusable(what, why=reason, next="correct the path in the KEK's URI")
    return KmsUnreachable(what, why=reason, next="check the disk or mount that holds it, then try again")
