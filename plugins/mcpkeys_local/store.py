"""`file:///path/to/fleet.keyset.json`, or a plain path: a keyset in a file, reports in a folder beside it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from typing import Any

from mcpkeys.errors import (
    ConfigurationError,
    Conflict,
    McpkeysError,
    NotFound,
    StoreDenied,
    StoreUnreachable,
)
from mcpkeys.store import MAX_BODY_BYTES, MAX_REPORT_BYTES, Found, check_instance, scheme_of
from mcpkeys_local.lock import writer_lock
from mcpkeys_local.path import checked, hazards_of, path_of, uri_of
from mcpkeys_local.replacement import OwnerLost, replace_file, sweep, write_small
from mcpkeys_local.snapshot import NotRegular, Snapshot, read_snapshot, version_of

_EXAMPLE = "file:///etc/mcpkeys/fleet.keyset.json"
_SUFFIX = ".json"
_DRAFT_SECONDS = 3600.0
_RESOLUTION = 0.01
"""Seconds: files are stamped by the kernel's tick (at most 10 ms), the clock that is read here runs ahead of it."""


class FileStore:
    """A keyset in a file.

    - Reading follows symbolic links, so that a ConfigMap or secret mount works, also read-only.
    - Writing takes the lock file `<keyset>.lock`, compares, writes a draft beside the keyset, flushes it, renames it
      over the keyset and flushes the folder. Killed at any point, the old or the new document is there, whole.
    - Reports are files in the folder `<keyset>.reports`, which the first server creates. Servers under several
      users share it by a group (`chmod 2770`, a common group) or, with less protection, as `/tmp` is (`chmod 1777`);
      forged reports are refused by their MAC either way, deleted ones are missed by `rotate`.

    Several machines may share it on a network filesystem whose locks and renames work between them (NFS 4).
    The deadline is checked before each step and bounds the wait for the lock; a filesystem that hangs, hangs the call.

    Permissions needed. Server: to read the keyset; to create and write `<keyset>.reports`, or to write in it.
    Operator: to write the keyset's folder, and to read `<keyset>.reports`.
    """

    own_clock = False
    """`now` reads this machine's clock: for `mcpkeys doctor`."""

    def __init__(self, uri: str, *, session: Any = None) -> None:
        """Raises `UriError`. Opens nothing. A relative path is taken from the working directory of this moment.

        `session` means nothing here and is ignored.
        """
        if scheme_of(uri) != "file":
            raise ValueError("FileStore serves file:// and plain paths only")
        if uri.startswith("file://"):
            self.path = path_of(uri, "file", _EXAMPLE)
        else:
            names_folder = uri.rpartition("/")[2] in ("", ".", "..")
            self.path = checked(f"/{uri}" if names_folder else os.path.abspath(uri), uri, _EXAMPLE)
        self.uri = uri_of(self.path, "file")
        self._folder, self._name = os.path.split(self.path)
        self._reports = self.path + ".reports"
        self._swept = False

    def __repr__(self) -> str:
        return f"FileStore({self.uri!r})"

    def read(self, known: str | None, *, fresh: bool, deadline: float) -> Found | None:
        """`fresh` changes nothing: a local file is always read fresh."""
        _in_time(deadline)
        found = self._current()
        if found is None:
            raise self._absent()
        if found.version == known:
            return None
        return Found(found.body, found.version, found.status.st_mtime_ns / 1e9)

    def replace(self, body: bytes, expected: str | None, *, deadline: float) -> str:
        """At most 1 MiB, ValueError otherwise. `StoreDenied` also where the file cannot be replaced whole."""
        if len(body) > MAX_BODY_BYTES:
            raise ValueError("a keyset document is at most 1 MiB")
        _in_time(deadline)
        self._refuse_links()
        try:
            with writer_lock(self.path + ".lock", deadline):
                return self._replace_locked(body, expected)
        except OSError as error:
            raise self._write_error(error) from None

    def _replace_locked(self, body: bytes, expected: str | None) -> str:
        old = self._current()
        if (None if old is None else old.version) != expected:
            raise self._conflict(old, expected)
        sweep(self._folder, self._name, older_than=float("inf"))  # whoever wrote them held this lock, and died
        status = replace_file(self.path, body, None if old is None else old.status)
        return version_of(status, body)

    def reports(self, *, deadline: float) -> Iterator[Found]:
        """Drafts, links, foreign names and files deleted meanwhile are no reports; an unreadable one is an error."""
        _in_time(deadline)
        try:
            names = os.listdir(self._reports)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._read_error(error, self._reports) from None
        for name in names:
            instance = name.removesuffix(_SUFFIX)
            if instance == name or not _is_instance(instance):
                continue
            _in_time(deadline)
            path = os.path.join(self._reports, name)
            try:
                found = read_snapshot(path, MAX_REPORT_BYTES, follow=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno == errno.ELOOP or isinstance(error, NotRegular):
                    continue
                raise self._read_error(error, path) from None
            yield Found(found.body, found.version, found.status.st_mtime_ns / 1e9, instance)

    def put_report(self, instance: str, body: bytes, *, deadline: float) -> None:
        """ValueError for what is no instance id."""
        path = os.path.join(self._reports, check_instance(instance) + _SUFFIX)
        _in_time(deadline)
        try:
            try:
                write_small(path, body)
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self._reports)
                write_small(path, body)
        except OSError as error:
            raise self._report_error(error) from None
        if not self._swept:
            self._swept = True
            sweep(self._reports, "", older_than=time.time() - _DRAFT_SECONDS)

    def delete_report(self, instance: str, *, deadline: float) -> None:
        """ValueError for what is no instance id."""
        path = os.path.join(self._reports, check_instance(instance) + _SUFFIX)
        _in_time(deadline)
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._report_error(error) from None

    def now(self, *, deadline: float) -> tuple[float, float]:
        """This machine's clock: the kernel stamps local files by it. It is read without writing anything, so that a
        read-only place works too; on a network filesystem the server stamps reports by a clock of its own."""
        _in_time(deadline)
        return time.time(), _RESOLUTION

    def hazards(self, *, deadline: float) -> list[str]:
        """What lets other users replace the file: for `mcpkeys doctor`."""
        return hazards_of(self.path)

    def close(self) -> None:
        """Nothing is held open."""

    def _current(self) -> Snapshot | None:
        try:
            return read_snapshot(self.path, MAX_BODY_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._read_error(error, self.path) from None

    def _refuse_links(self) -> None:
        try:
            status = os.lstat(self.path)
        except OSError:
            return  # the steps that follow tell it better
        if stat.S_ISLNK(status.st_mode):
            raise StoreDenied(
                f"the keyset {self.path} is a symbolic link and is not replaced",
                why="a ConfigMap or secret mount looks like this, and what it shows is written elsewhere",
                next="write it where it comes from, or name the file that the link points to",
            )

    def _absent(self) -> NotFound:
        return NotFound(
            f"there is no keyset at {self.path}",
            why="it is a symbolic link to nothing" if os.path.islink(self.path) else "nothing is at this path",
            next=f"create one: mcpkeys init NAME --keyset {self.uri} --kek URI; or correct MCPKEYS_KEYSET",
        )

    def _conflict(self, old: Snapshot | None, expected: str | None) -> Conflict:
        if old is None:
            why = "it was deleted meanwhile"
        elif expected is None:
            why = "one is there already"
        else:
            why = "another writer changed it meanwhile"
        return Conflict(f"the keyset {self.path} is not written", why=why, next="read it again: mcpkeys status")

    def _read_error(self, error: OSError, path: str) -> McpkeysError:
        reason = _reason(error)
        if error.errno in (errno.EACCES, errno.EPERM):
            return StoreDenied(
                f"{path} may not be read",
                why=f"{reason}, as user {os.geteuid()}",
                next="let this user read it and enter each folder above it; keyset and reports hold no secrets",
            )
        if isinstance(error, NotRegular) or error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
            return ConfigurationError(
                f"{path} holds no document", why=reason, next="correct the path of the keyset", code="keyset-path"
            )
        return StoreUnreachable(
            f"{path} cannot be read", why=reason, next="check the disk or mount that holds it, then try again"
        )

    def _write_error(self, error: OSError) -> McpkeysError:
        what, reason = f"the keyset {self.path} cannot be replaced", _reason(error)
        if isinstance(error, OwnerLost):
            return StoreDenied(what, why=reason, next=f"run as user {_owner(self.path)} or as root")
        if error.errno in (errno.EBUSY, errno.EXDEV):
            return StoreDenied(
                what,
                why=f"{reason}: the file itself is mounted here, and only its folder could be changed whole",
                next="mount the folder instead of the file, or write it on the host; nothing was changed",
            )
        if error.errno == errno.EROFS:
            return StoreDenied(what, why=reason, next="write it where this mount comes from")
        if error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP):
            return StoreDenied(
                what,
                why=f"{reason}, as user {os.geteuid()}",
                next=f"run as a user who may write in the folder {self._folder}",
            )
        if error.errno == errno.ENOENT:
            return NotFound(
                what, why=f"the folder {self._folder} does not exist", next=f"create it: mkdir -p {self._folder}"
            )
        if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
            return ConfigurationError(what, why=reason, next="correct the path of the keyset", code="keyset-path")
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StoreUnreachable(what, why=reason, next="free some space, then try again; nothing was changed")
        return StoreUnreachable(what, why=reason, next="read it again before anything else: mcpkeys status")

    def _report_error(self, error: OSError) -> McpkeysError:
        what, reason = f"no report can be written in {self._reports}", _reason(error)
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return StoreDenied(
                what,
                why=f"{reason}, as user {os.geteuid()}",
                next="give the servers one group and the folder `chmod 2770`; where servers may not write at all,"
                " the keyset needs `--evidence attest`",
            )
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP):
            return ConfigurationError(what, why=reason, next="correct the path of the keyset", code="keyset-path")
        return StoreUnreachable(what, why=reason, next="check the disk or mount that holds it, then try again")


def _is_instance(name: str) -> bool:
    try:
        check_instance(name)
    except ValueError:
        return False
    return True


def _owner(path: str) -> str:
    try:
        return str(os.lstat(path).st_uid)
    except OSError:
        return "who owns it"


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _in_time(deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise StoreUnreachable(
            "the file store was not asked", why="the deadline had passed before", next="try again; is the machine busy?"
        )
