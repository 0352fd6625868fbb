"""The keyset store in Google Cloud Storage: `gs://bucket/object`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib.util import find_spec
from typing import Any, TypeVar
from urllib.parse import quote

from mcpkeys.errors import Conflict, McpkeysError, NotFound, StoreDenied
from mcpkeys.store import MAX_BODY_BYTES, MAX_REPORT_BYTES, Found, check_instance
from mcpkeys_gcp import forks
from mcpkeys_gcp.bounded import DeadlinePassed, bounded, left, pause
from mcpkeys_gcp.outcomes import conflict, explain, garbage, late, missing
from mcpkeys_gcp.quiet import quiet
from mcpkeys_gcp.uri import parse_generation, parse_keyset

T = TypeVar("T")

CLOCK_RESOLUTION = 1.0
"""Seconds: `now()` reads the Date header, which has whole seconds, cut off."""
ATTEMPTS = 3
"""Tries per call at most where nobody answers. Throttled calls are tried until the deadline."""
PARALLEL = 16
"""Reports read at a time."""
_SUFFIX = ".json"
_MOVED = 5
"""Reads of an object that is overwritten between its metadata and its content, before that is an error."""
_FIELDS = "items(name,generation,size,timeCreated),nextPageToken"


@dataclass(frozen=True, slots=True)
class _Line:
    pid: int
    client: Any
    bucket: Any


class GcsStore:
    """One object of a bucket, and reports beside it at `OBJECT.reports/INSTANCE.json`.

    Compare-and-swap is `ifGenerationMatch`; a version is the object's generation. Cloud Storage reads and lists are
    strongly consistent, so every read is fresh; objects are written with `Cache-Control: no-store`, since public
    objects would otherwise be cached for an hour.

    Needs `storage.objects.get` on the object to read; `storage.objects.create` and `.delete` to write (overwriting
    is both); the same under the reports' prefix to report; `storage.objects.list` on the bucket to gather reports.
    `STORAGE_EMULATOR_HOST` is honoured by the client library.

    Args:
        uri: `gs://bucket/object`; the object's name may contain slashes, not `?` or `#`.
        session: the caller's own `google.auth.credentials.Credentials` (or a pair that begins with them).

    Raises:
        UriError: `uri` is not of this form.
        ModuleNotFoundError: google-cloud-storage is not installed.
    """

    page_size = 1000

    def __init__(self, uri: str, *, session: Any = None) -> None:
        self._bucket, self._object = parse_keyset(uri)
        self._uri = f"gs://{self._bucket}/{self._object}"
        self._prefix = f"{self._object}.reports/"
        for module in ("google.auth", "google.cloud.storage", "requests"):
            if find_spec(module) is None:
                raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        self._credentials = session[0] if isinstance(session, tuple) else session
        self._lock = threading.Lock()
        self._line: _Line | None = None
        forks.join(self)

    def __repr__(self) -> str:
        return f"GcsStore({self._uri!r})"

    @property
    def uri(self) -> str:
        return self._uri

    def read(self, known: str | None, *, fresh: bool, deadline: float) -> Found | None:
        """The object, or None where its generation is `known`: asked for by its metadata first, read by generation."""

        def work(line: _Line, seconds: float) -> Found | None:
            return self._fetch(line, self._object, known, MAX_BODY_BYTES, deadline)

        return self._run(work, deadline)

    def replace(self, body: bytes, expected: str | None, *, deadline: float) -> str:
        """Write if the stored generation is `expected` (None: nothing is stored). See `mcpkeys.store.Store`."""
        generation = 0 if expected is None else parse_generation(expected)
        if generation is None:
            raise conflict(self._uri)
        unsure = False

        def work(line: _Line, seconds: float) -> str:
            nonlocal unsure
            try:
                # Half of the time that is left: if no reply comes, what was written can still be read back.
                return self._upload(line, self._object, body, left(deadline) / 2, generation)
            except Exception as exc:
                error, chance = explain(exc, self._uri)
                if chance == "unsure":
                    unsure = True
                elif not (unsure and isinstance(error, Conflict)):
                    raise
            found = self._own(line, body, generation, deadline)
            if found is None:
                raise error  # not there: the write may be tried again, its condition still holds
            return found

        return self._run(work, deadline)

    def _own(self, line: _Line, body: bytes, generation: int, deadline: float) -> str | None:
        """After a reply was lost: the generation of our own bytes, or None where the object is as it was before."""
        try:
            found = self._fetch(line, self._object, None, MAX_BODY_BYTES, deadline)
        except NotFound:
            if generation == 0:
                return None
            raise conflict(self._uri) from None
        assert found is not None
        if found.version == str(generation):
            return None
        if found.body == body:
            return found.version
        raise conflict(self._uri)

    def reports(self, *, deadline: float) -> Iterator[Found]:
        """Every report, all pages, read sixteen at a time; one deleted meanwhile is left out."""

        def work(line: _Line, seconds: float) -> list[Found]:
            names = self._listed(line, deadline)
            with ThreadPoolExecutor(min(PARALLEL, len(names) or 1), thread_name_prefix="mcpkeys-gcp") as pool:
                return [found for found in pool.map(lambda name: self._report(line, name, deadline), names) if found]

        return iter(self._run(work, deadline))

    def _listed(self, line: _Line, deadline: float) -> list[str]:
        """The instances that have reports, from every page of the listing."""
        names: list[str] = []
        listing = line.client.list_blobs(
            self._bucket,
            prefix=self._prefix,
            delimiter="/",
            fields=_FIELDS,
            page_size=self.page_size,
            timeout=left(deadline),
            retry=None,
        )
        for page in listing.pages:
            for blob in page:
                instance = blob.name.removeprefix(self._prefix).removesuffix(_SUFFIX)
                if blob.name == f"{self._prefix}{instance}{_SUFFIX}" and _is_instance(instance):
                    names.append(instance)
            left(deadline)
        return names

    def _report(self, line: _Line, instance: str, deadline: float) -> Found | None:
        name = f"{self._prefix}{instance}{_SUFFIX}"
        try:
            with quiet():
                found = self._fetch(line, name, None, MAX_REPORT_BYTES, deadline)
        except NotFound:
            return None
        assert found is not None
        return Found(found.body, found.version, found.modified_at, instance)

    def put_report(self, instance: str, body: bytes, *, deadline: float) -> None:
        name = f"{self._prefix}{check_instance(instance)}{_SUFFIX}"
        self._run(lambda line, seconds: self._upload(line, name, body, seconds, None), deadline)

    def delete_report(self, instance: str, *, deadline: float) -> None:
        name = f"{self._prefix}{check_instance(instance)}{_SUFFIX}"

        def work(line: _Line, seconds: float) -> None:
            line.bucket.blob(name).delete(timeout=seconds, retry=None)

        try:
            self._run(work, deadline)
        except NotFound:
            return

    def now(self, *, deadline: float) -> tuple[float, float]:
        """The Date header of a look at the object, whether or not it is there; it lags by less than a second."""

        def work(line: _Line, seconds: float) -> float:
            where = f"/storage/v1/b/{self._bucket}/o/{quote(self._object, safe='')}?fields=generation"
            # The client's own requests session: its methods return JSON and drop the headers.
            reply = line.client._http.get(line.client.api_endpoint + where, timeout=seconds)
            if reply.status_code in (401, 403, 429) or reply.status_code >= 500:
                from google.api_core.exceptions import from_http_status

                raise from_http_status(reply.status_code, "")  # type: ignore[no-untyped-call]
            return parsedate_to_datetime(reply.headers["Date"]).timestamp()

        return self._run(work, deadline), CLOCK_RESOLUTION

    def close(self) -> None:
        """Drop connections."""
        line, self._line = self._line, None
        if line is not None and line.pid == os.getpid():
            line.client.close()

    def after_fork(self) -> None:
        """In the child: its own lock, and no connection of the parent's."""
        self._lock = threading.Lock()
        line, self._line = self._line, None
        if line is not None:
            forks.keep(line)

    # Calls.

    def _run(self, work: Callable[[_Line, float], T], deadline: float) -> T:
        """`work(line, seconds left)`, tried again where that may help. Raises our errors only, in time."""
        outcome: T | McpkeysError
        try:
            outcome = bounded(lambda: self._attempts(work, deadline), deadline)
        except DeadlinePassed:
            outcome = late(self._uri)
        if isinstance(outcome, McpkeysError):
            raise outcome
        return outcome

    def _attempts(self, work: Callable[[_Line, float], T], deadline: float) -> T | McpkeysError:
        """The errors are returned: the frames of Google's clients hold credentials and must not be in a traceback."""
        attempt = 0
        while True:
            try:
                return work(self._connect(), left(deadline))
            except Exception as exc:
                error, chance = explain(exc, self._uri)
                error.__traceback__ = error.__context__ = error.__cause__ = None
            attempt += 1
            if isinstance(error, StoreDenied | NotFound | Conflict) or (attempt >= ATTEMPTS and chance != "throttled"):
                return error
            if not pause(attempt, deadline, base=0.1 if chance != "throttled" else 0.25, cap=2.0):
                return error

    def _connect(self) -> _Line:
        with self._lock:
            if self._line is None:
                from google.cloud.storage import Client  # type: ignore[import-untyped]

                client = Client(project=None, credentials=self._credentials)
                # Newer clients ask for the bucket's metadata behind our back, for tracing: a call that nobody granted.
                if hasattr(client, "_bucket_metadata_cache"):
                    client._bucket_metadata_cache = None
                self._line = _Line(os.getpid(), client, client.bucket(self._bucket))
            return self._line

    def _fetch(self, line: _Line, name: str, known: str | None, most: int, deadline: float) -> Found | None:
        """One object, cut one byte beyond `most`. None where its generation is `known`."""
        from google.api_core import exceptions as api

        for _ in range(_MOVED):
            head = line.bucket.blob(name)
            try:
                head.reload(timeout=left(deadline), retry=None)
            except api.NotFound:
                raise missing(self._uri) from None
            if not isinstance(head.generation, int) or head.time_created is None or head.size is None:
                raise garbage(self._uri, "the reply is no object's metadata")
            version, modified = str(head.generation), head.time_created.timestamp()
            if version == known:
                return None
            if head.size == 0:  # a range of nothing would be refused
                return Found(b"", version, modified)
            exact = line.bucket.blob(name, generation=head.generation)
            cut = {"end": most} if head.size > most else {}  # inclusive; a part has no checksum
            try:
                body = exact.download_as_bytes(timeout=left(deadline), retry=None, **cut)
            except api.NotFound:
                continue  # overwritten or deleted since: look again
            if len(body) != min(head.size, most + 1):
                raise garbage(self._uri, "the content has not the length that was announced")
            return Found(body, version, modified)
        raise garbage(self._uri, "it changes faster than it can be read")

    def _upload(self, line: _Line, name: str, body: bytes, seconds: float, generation: int | None) -> str:
        blob = line.bucket.blob(name)
        blob.cache_control = "no-store"
        blob.upload_from_string(
            body,
            content_type="application/json",
            if_generation_match=generation,
            timeout=seconds,
            checksum="crc32c",
            retry=None,
        )
        if not isinstance(blob.generation, int):
            raise garbage(self._uri, "the reply names no generation")
        return str(blob.generation)


def _is_instance(text: str) -> bool:
    try:
        check_instance(text)
    except ValueError:
        return False
    return True
