"""A keyset in Amazon S3, or in a clone that honours conditional writes: `s3://bucket/key`."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

from mcpkeys.errors import (
    ConfigurationError,
    Conflict,
    McpkeysError,
    NotFound,
    StoreDenied,
    StoreUnreachable,
    UriError,
)
from mcpkeys.glimpse import glimpse_of_uri
from mcpkeys.store import MAX_BODY_BYTES, MAX_REPORT_BYTES, Found, check_instance
from mcpkeys_aws import objects
from mcpkeys_aws.calls import AwsCalls, Pending
from mcpkeys_aws.failures import cause_of

_URI = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/(?P<key>.+)")
_MAX_KEY_BYTES = 900  # S3 allows 1,024; the reports' names are longer than the keyset's
_IN_FLIGHT = 16
_PUT_SHARE = 0.6
_PAUSE_SECONDS = 0.05


class S3Store:
    """One keyset as an S3 object, its reports as objects under `<key>.reports/`.

    Compare-and-swap is PutObject with If-Match or If-None-Match. S3 is strongly consistent, so every read is fresh.
    A version is an ETag. Before its first write, an S3Store proves that the server honours both headers (`self_test`).

    Permissions: a server needs s3:GetObject on the key, s3:PutObject and s3:DeleteObject under `<key>.reports/`;
    an operator s3:GetObject and s3:PutObject on the key, s3:PutObject on `<key>.selftest`, s3:GetObject and
    s3:DeleteObject under `<key>.reports/`, and s3:ListBucket (`mcpkeys policy aws --role ...`).

    Args:
        uri: `s3://bucket/key`; the key is taken literally, nothing is percent-decoded.
        session: a `boto3.Session` with the caller's own credentials; None for boto3's default chain. Region and
            endpoint come from the AWS configuration (AWS_REGION, AWS_ENDPOINT_URL_S3).

    Raises:
        UriError: the URI names no object.
        ModuleNotFoundError: boto3 is not installed.
    """

    def __init__(self, uri: str, *, session: Any = None) -> None:
        match = _URI.fullmatch(uri)
        if match is None or len(match["key"].encode()) > _MAX_KEY_BYTES or not _plain(match["key"]):
            raise UriError(
                f"{glimpse_of_uri(uri)} does not name an S3 object",
                why="it needs a bucket and a key of at most 900 bytes, without empty, '.' or '..' segments",
                next="for example s3://acme-keys/fleet.keyset.json",
            )
        self._bucket, self._key = match["bucket"], match["key"]
        self._prefix = f"{self._key}.reports/"
        self._calls = AwsCalls("s3", None, session, self._explain)
        self._proven = threading.Event()

    def __repr__(self) -> str:
        return f"S3Store({self.uri!r})"

    @property
    def uri(self) -> str:
        """The canonical URI."""
        return f"s3://{self._bucket}/{self._key}"

    def read(self, known: str | None, *, fresh: bool, deadline: float) -> Found | None:
        """GetObject with If-None-Match. Raises `NotFound`, `StoreDenied`, `StoreUnreachable`."""
        del fresh  # S3 has read-after-write consistency: there is no other kind of read
        got = self._start_get(self._key, known, MAX_BODY_BYTES, deadline).result()
        if got is objects.ABSENT:
            raise NotFound(f"there is no keyset at {self.uri}", why="nothing is stored", next=_INIT)
        return got if isinstance(got, Found) else None

    def replace(self, body: bytes, expected: str | None, *, deadline: float) -> str:
        """Conditional PutObject; a reply that was lost is resolved by reading back.

        Raises:
            Conflict: another version is stored.
            StoreUnreachable: no answer; where it is unknown whether the write took place, says so.
            StoreDenied, ConfigurationError: no right; no bucket; a server without conditional writes.
        """
        if not self._proven.is_set():
            self.self_test(deadline)
        doubt = False  # whether an earlier attempt of this call may have been written
        pause = _PAUSE_SECONDS
        while True:
            # Part of the time is kept for reading back.
            limit = deadline - (deadline - time.monotonic()) * (1 - _PUT_SHARE)
            work = partial(objects.put, self._bucket, self._key, body, objects.must_be(expected))
            try:
                put = self._calls.call("s3:PutObject", work, limit)
            except StoreUnreachable as exc:
                doubt = doubt or not isinstance(exc, _NothingDone)
                if not doubt:
                    raise
                failure = exc.with_traceback(None)
            else:
                if put.etag is not None:
                    return put.etag
                if put.lost and not doubt:
                    raise self._conflict()
                failure = self._busy()
            stored = self._read_back(failure, doubt, deadline)
            if doubt and stored is not None and stored.body == body:
                return stored.version
            if (None if stored is None else stored.version) != expected:
                raise self._conflict()
            wait = random.uniform(0.5, 1.5) * pause  # noqa: S311 - spreads writers, hides nothing
            if time.monotonic() + 2 * wait >= deadline:
                raise failure
            time.sleep(wait)
            pause *= 2

    def reports(self, *, deadline: float) -> Iterator[Found]:
        """List all pages, then get each object, up to 16 at a time. One that is deleted meanwhile is left out."""
        names = self._calls.call("s3:ListBucket", partial(objects.names, self._bucket, self._prefix), deadline)
        under_way: deque[tuple[str, Pending[Any]]] = deque()
        for name in names:
            instance = name.removeprefix(self._prefix).removesuffix(".json")
            if not name.endswith(".json") or not _is_instance(instance):
                continue  # not a report: nothing of ours has such a name
            under_way.append((instance, self._start_get(name, None, MAX_REPORT_BYTES, deadline)))
            if len(under_way) == _IN_FLIGHT:
                yield from _found(*under_way.popleft())
        while under_way:
            yield from _found(*under_way.popleft())

    def put_report(self, instance: str, body: bytes, *, deadline: float) -> None:
        """PutObject under the reports' prefix. Raises `StoreDenied`, `StoreUnreachable`, `ValueError` (instance)."""
        self._calls.call("s3:PutObject", partial(objects.put, self._bucket, self._report(instance), body, {}), deadline)

    def delete_report(self, instance: str, *, deadline: float) -> None:
        """DeleteObject; S3 does not mind one that is not there."""
        self._calls.call("s3:DeleteObject", partial(objects.delete, self._bucket, self._report(instance)), deadline)

    def now(self, *, deadline: float) -> tuple[float, float]:
        """The Date header of a HeadObject: S3's clock, whole seconds, cut off."""
        return self._calls.call("s3:GetObject", partial(objects.date, self._bucket, self._key), deadline), 1.0

    def self_test(self, deadline: float) -> None:
        """Prove with the object `<key>.selftest` that If-None-Match and If-Match are honoured; remembered.

        Raises:
            ConfigurationError: the server overwrites what it was told not to; compare-and-swap cannot work there.
            StoreDenied, StoreUnreachable: as every call.
        """
        work = partial(objects.honours_conditions, self._bucket, f"{self._key}.selftest")
        if not self._calls.call("s3:PutObject", work, deadline):
            raise ConfigurationError(
                f"the server of {self.uri} ignores If-None-Match or If-Match on PutObject",
                why="two operators could overwrite each other's keyset there",
                next="use Amazon S3, or a server or gateway version that supports conditional writes",
                code="store-without-cas",
            )
        self._proven.set()

    def credentials(self, *, deadline: float) -> str:
        """Where credentials were found: for `mcpkeys doctor`. Raises as every call."""
        return self._calls.credentials(deadline)

    def close(self) -> None:
        """Drop the client; the next call builds another."""
        self._calls.close()

    def _start_get(self, key: str, known: str | None, limit: int, deadline: float) -> Pending[Any]:
        return self._calls.start("s3:GetObject", partial(objects.get, self._bucket, key, known, limit), deadline)

    def _report(self, instance: str) -> str:
        return f"{self._prefix}{check_instance(instance)}.json"

    def _read_back(self, failure: McpkeysError, doubt: bool, deadline: float) -> Found | None:
        try:
            return self.read(None, fresh=True, deadline=deadline)
        except NotFound:
            return None
        except McpkeysError as exc:
            again = exc
        if not doubt:
            raise failure from None
        raise StoreUnreachable(
            f"the reply to a write of {self.uri} was lost, and reading back failed",
            why=again.why or again.what,
            next="mcpkeys status shows whether it was written; the same command resumes",
            code="write-unknown",
        )

    def _conflict(self) -> Conflict:
        return Conflict(
            f"{self.uri} was changed by another writer",
            why="its ETag is no longer the one that was read",
            next="mcpkeys status shows what it is now; then repeat the command",
        )

    def _busy(self) -> StoreUnreachable:
        return StoreUnreachable(
            f"{self.uri} could not be written", why="other writers kept S3 busy (409)", next="try again"
        )

    def _explain(self, exc: BaseException, action: str) -> McpkeysError:
        cause = cause_of(exc)
        what = f"{action} for {self.uri} failed"
        code = cause.code or None
        if cause.kind == "denied":
            absent = "; S3 also answers 403 for a missing key to who may not s3:ListBucket" if "Get" in action else ""
            step = cause.next or f"allow {action} (see mcpkeys policy aws){absent}"
            return StoreDenied(what, why=cause.why, next=step, code=code)
        if cause.kind == "throttled":
            code = "store-throttled"
        if cause.kind in ("throttled", "unreachable"):
            failure = _NothingDone if cause.nothing_done else StoreUnreachable
            return failure(what, why=cause.why, next=cause.next, code=code)
        if cause.name == "NoSuchBucket":
            return ConfigurationError(
                f"the bucket {self._bucket} does not exist",
                next="create it (with versioning), or correct the URI, AWS_REGION or AWS_ENDPOINT_URL_S3",
                code="bucket-not-found",
            )
        return ConfigurationError(
            what, why=cause.why, next=cause.next or "check bucket, AWS_REGION and endpoint", code=code
        )


_INIT = "mcpkeys init creates a keyset; or correct the bucket or the key"


class _NothingDone(StoreUnreachable):
    """The request was not sent, or refused for its rate: nothing can have been written."""


def _plain(key: str) -> bool:
    return not any(segment in ("", ".", "..") for segment in key.split("/"))


def _is_instance(text: str) -> bool:
    try:
        check_instance(text)
    except ValueError:
        return False
    return True


def _found(instance: str, pending: Pending[Any]) -> Iterator[Found]:
    got = pending.result()
    if isinstance(got, Found):
        yield Found(got.body, got.version, got.modified_at, instance)
