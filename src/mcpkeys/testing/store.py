"""The contract of a store plugin, as tests: subclass `StoreContract` and run pytest."""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import ClassVar, NoReturn

import pytest

from mcpkeys.errors import Conflict, McpkeysError, NotFound, StoreDenied, StoreUnreachable
from mcpkeys.store import MAX_BODY_BYTES, MAX_REPORT_BYTES, Found, Store
from mcpkeys.testing.child import in_child
from mcpkeys.testing.leaks import Listener, leaked, shown

Fault = AbstractContextManager[Store]


class StoreContract:
    """What every store plugin must do. Subclass it under a name that begins with `Test`, provide `make_store`.

    Every other hook is optional: a test whose hook is absent is skipped and names it. A fault hook takes a healthy
    `Store` and is a context manager that yields the `Store` to call while the fault lasts (the same one or another).
    Each test needs a place of its own: let an autouse fixture choose it.

        class TestAcmeStore(StoreContract):
            @pytest.fixture(autouse=True)
            def place(self, acme_server): self.place = acme_server.new_folder()

            def make_store(self): return AcmeStore(f"acme://{self.place}/fleet.keyset.json")

            def make_neighbour(self): return AcmeStore(f"acme://{self.place}/fleet.keyset.json2")
    """

    call_seconds: ClassVar[float] = 10.0
    """The deadline given to calls that should succeed."""
    deadline_slack: ClassVar[float] = 1.0
    """A call may return so many seconds after its deadline, on a busy machine."""
    clock_tolerance: ClassVar[float] = 5.0
    """`now()` may differ so many seconds from this machine's clock, beyond its own resolution."""
    report_count: ClassVar[int] = 25
    """Reports that are listed at once. Set it above the page size of your store, or make its pages small."""
    threads: ClassVar[int] = 8
    race_writes: ClassVar[int] = 5
    """Compare-and-swap writes that each racing thread wins before it stops."""

    # Hooks.

    def make_store(self) -> Store:
        """A new object for the place under test: one and the same place within a test, empty at its start."""
        raise NotImplementedError("a StoreContract needs make_store()")

    def make_neighbour(self) -> Store:
        """Another keyset beside the one under test, whose name begins with the whole name of that one."""
        self._absent("make_neighbour")

    def parse(self, uri: str) -> Store:
        """The plugin's object for `uri`, contacting nobody. Default: the class of `make_store()`, called with it."""
        factory: Callable[[str], Store] = type(self.make_store())
        return factory(uri)

    def secrets(self) -> tuple[bytes, ...]:
        """Credentials that this test session uses and that nothing may show."""
        return ()

    def plant(self, body: bytes) -> None:
        """Store `body` as the keyset, past the plugin: somebody else's doing."""
        self._absent("plant")

    def plant_stray(self) -> None:
        """Put something beside the reports that is none: a temporary file, a foreign name."""
        self._absent("plant_stray")

    def denied(self, store: Store) -> Fault:
        """While entered, the identity may neither read nor write."""
        self._absent("denied")

    def read_only(self, store: Store) -> Fault:
        """While entered, the identity may read and not write."""
        self._absent("read_only")

    def unreachable(self, store: Store) -> Fault:
        """While entered, nobody listens, or the server answers with a server error."""
        self._absent("unreachable")

    def throttled(self, store: Store) -> Fault:
        """While entered, the store answers that a quota is used up."""
        self._absent("throttled")

    def slow(self, store: Store, seconds: float) -> Fault:
        """While entered, the store answers after `seconds`."""
        self._absent("slow")

    def garbled(self, store: Store) -> Fault:
        """While entered, the store answers success with a reply that makes no sense."""
        self._absent("garbled")

    def reply_lost(self, store: Store) -> Fault:
        """While entered, the next keyset write is carried out and its reply never arrives."""
        self._absent("reply_lost")

    def reply_lost_and_overtaken(self, store: Store, body: bytes) -> Fault:
        """As `reply_lost`; then, before the plugin can look, somebody else stores `body` on top."""
        self._absent("reply_lost_and_overtaken")

    def listing_breaks(self, store: Store) -> Fault:
        """While entered, the first page of a listing arrives and a later one, or one report in it, fails."""
        self._absent("listing_breaks")

    def stale(self, store: Store) -> Fault:
        """While entered, reads that are not fresh answer what was stored at the moment of entering."""
        self._absent("stale")

    def run_in_child(self, work: Callable[[], str]) -> str:
        """Run `work` in a forked child."""
        return in_child(work)

    # What the tests share.

    def _absent(self, hook: str) -> NoReturn:
        pytest.skip(f"{type(self).__name__} does not provide the hook {hook}()")

    def _has(self, hook: str) -> bool:
        return getattr(type(self), hook) is not getattr(StoreContract, hook)

    def soon(self) -> float:
        """A deadline that a healthy store meets."""
        return time.monotonic() + self.call_seconds

    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = self.make_store()
        yield store
        store.close()

    def _read(self, store: Store, known: str | None = None, *, fresh: bool = True) -> Found | None:
        return store.read(known, fresh=fresh, deadline=self.soon())

    def _found(self, store: Store) -> Found:
        found = self._read(store)
        assert found is not None, "read(None) answers the document, never None"
        return found

    def _create(self, store: Store, body: bytes | None = None) -> tuple[bytes, str]:
        body = a_body() if body is None else body
        return body, store.replace(body, None, deadline=self.soon())

    def _reports(self, store: Store) -> dict[str, bytes]:
        listed = [(found.name, found.body) for found in store.reports(deadline=self.soon())]
        reports = dict(listed)
        assert len(reports) == len(listed), "a report is listed twice"
        return reports

    # Reading.

    def test_an_empty_place_is_not_found(self, store: Store) -> None:
        for fresh in (True, False):
            with pytest.raises(NotFound) as caught:
                self._read(store, fresh=fresh)
            self._well_told(caught.value)
        with pytest.raises(NotFound):
            self._read(store, "1234")

    def test_what_is_written_is_read_back(self, store: Store) -> None:
        body, version = self._create(store)
        for fresh in (True, False):
            found = self._read(store, fresh=fresh)
            assert found is not None
            assert (found.body, found.version, found.name) == (body, version, "")
        assert version

    def test_a_known_version_is_answered_by_none(self, store: Store) -> None:
        _, version = self._create(store)
        assert self._read(store, version) is None
        assert self._read(store, version, fresh=False) is None

    def test_a_version_that_is_no_longer_stored_is_answered_by_the_document(self, store: Store) -> None:
        _, version = self._create(store)
        body = a_body()
        newer = store.replace(body, version, deadline=self.soon())
        assert newer != version
        found = self._read(store, version)
        assert found is not None
        assert (found.body, found.version) == (body, newer)

    def test_versions_do_not_return_when_a_body_does(self, store: Store) -> None:
        body, first = self._create(store)
        second = store.replace(a_body(), first, deadline=self.soon())
        third = store.replace(body, second, deadline=self.soon())
        assert len({first, second, third}) == 3
        with pytest.raises(Conflict):
            store.replace(a_body(), first, deadline=self.soon())

    def test_another_object_reads_what_this_one_wrote(self, store: Store) -> None:
        body, version = self._create(store)
        other = self.make_store()
        try:
            found = self._found(other)
            assert (found.body, found.version) == (body, version)
            assert self._read(other, version) is None
        finally:
            other.close()

    def test_a_fresh_read_sees_an_answered_write_where_others_may_not(self, store: Store) -> None:
        _, version = self._create(store)
        with self.stale(store) as behind:
            body = a_body()
            newer = behind.replace(body, version, deadline=self.soon())
            found = self._read(behind, version, fresh=True)
            assert found is not None
            assert (found.body, found.version) == (body, newer)

    def test_modification_is_timed_by_the_stores_clock(self, store: Store) -> None:
        before, resolution = store.now(deadline=self.soon())
        self._create(store)
        after, _ = store.now(deadline=self.soon())
        slack = resolution + 0.1
        assert before - slack <= self._found(store).modified_at <= after + slack

    def test_a_document_put_there_by_other_means_is_read(self, store: Store) -> None:
        _, version = self._create(store)
        body = a_body()
        self.plant(body)
        found = self._read(store, version)
        assert found is not None
        assert found.body == body
        with pytest.raises(Conflict):
            store.replace(a_body(), version, deadline=self.soon())

    # Writing.

    def test_creating_over_something_is_a_conflict(self, store: Store) -> None:
        body, version = self._create(store)
        with pytest.raises(Conflict) as caught:
            self._create(store)
        self._well_told(caught.value)
        assert (self._found(store).body, self._found(store).version) == (body, version)

    def test_replacing_an_unexpected_version_is_a_conflict(self, store: Store) -> None:
        _, version = self._create(store)
        body = a_body()
        newer = store.replace(body, version, deadline=self.soon())
        with pytest.raises(Conflict) as caught:
            store.replace(a_body(), version, deadline=self.soon())
        self._well_told(caught.value)
        assert (self._found(store).body, self._found(store).version) == (body, newer)

    def test_replacing_what_is_not_there_is_a_conflict(self, store: Store) -> None:
        other = self.make_neighbour()
        try:
            _, version = self._create(other)
            with pytest.raises(Conflict):
                store.replace(a_body(), version, deadline=self.soon())
            with pytest.raises(NotFound):
                self._read(store)
        finally:
            other.close()

    def test_a_version_that_means_nothing_is_a_conflict(self, store: Store) -> None:
        body, _ = self._create(store)
        for nonsense in ("", "nonsense", "*", "0", "-1", '"', "9" * 30):
            with pytest.raises(Conflict):
                store.replace(a_body(), nonsense, deadline=self.soon())
        assert self._found(store).body == body

    def test_a_write_whose_reply_was_lost_is_recognised_as_ones_own(self, store: Store) -> None:
        _, version = self._create(store)
        body = a_body()
        with self.reply_lost(store) as lossy:
            newer = lossy.replace(body, version, deadline=self.soon())
        found = self._found(store)
        assert (found.body, found.version) == (body, newer)

    def test_a_creation_whose_reply_was_lost_is_recognised_as_ones_own(self, store: Store) -> None:
        body = a_body()
        with self.reply_lost(store) as lossy:
            version = lossy.replace(body, None, deadline=self.soon())
        found = self._found(store)
        assert (found.body, found.version) == (body, version)

    def test_a_lost_reply_is_not_taken_for_success_when_another_body_is_stored(self, store: Store) -> None:
        _, version = self._create(store)
        theirs = a_body()
        with (
            self.reply_lost_and_overtaken(store, theirs) as lossy,
            pytest.raises((Conflict, StoreUnreachable)) as caught,
        ):
            lossy.replace(a_body(), version, deadline=self.soon())
        self._well_told(caught.value)
        assert self._found(store).body == theirs

    # Races.

    @pytest.mark.parametrize("start", ["creating", "replacing"])
    def test_a_race_has_exactly_one_winner(self, store: Store, start: str) -> None:
        expected = None if start == "creating" else self._create(store)[1]
        gate = threading.Barrier(self.threads)
        bodies = [a_body() for _ in range(self.threads)]

        def work(body: bytes) -> str | None:
            own = self.make_store()
            try:
                gate.wait(timeout=30)
                return own.replace(body, expected, deadline=self.soon())
            except Conflict:
                return None
            finally:
                own.close()

        with ThreadPoolExecutor(self.threads) as pool:
            versions = list(pool.map(work, bodies))
        won = [(body, version) for body, version in zip(bodies, versions, strict=True) if version is not None]
        assert len(won) == 1
        found = self._found(store)
        assert (found.body, found.version) == won[0]

    def test_no_update_is_lost_among_racing_writers(self, store: Store) -> None:
        self._create(store, b"0")
        shared = store

        def work(writer: int) -> None:
            wins = 0
            while wins < self.race_writes:
                found = self._found(shared)
                try:
                    # No two documents are alike: by that a store may tell its own write after a reply was lost.
                    body = b"%d by %d" % (int(found.body.split()[0]) + 1, writer)
                    shared.replace(body, found.version, deadline=self.soon())
                    wins += 1
                except Conflict:
                    continue

        writers = max(2, self.threads // 2)
        with ThreadPoolExecutor(writers) as pool:
            list(pool.map(work, range(writers)))
        assert int(self._found(store).body.split()[0]) == writers * self.race_writes

    # Sizes.

    @pytest.mark.parametrize("length", [0, 1, 4096, MAX_BODY_BYTES])
    def test_bodies_of_any_legal_length_are_kept(self, store: Store, length: int) -> None:
        body, version = self._create(store, os.urandom(length))
        found = self._found(store)
        assert found.body == body
        assert self._read(store, version) is None

    def test_a_body_beyond_a_megabyte_is_cut_one_byte_beyond_it(self, store: Store) -> None:
        body = os.urandom(1000) * (3 * MAX_BODY_BYTES // 1000)
        self.plant(body)
        assert self._found(store).body == body[: MAX_BODY_BYTES + 1]

    # Reports.

    def test_a_place_without_reports_lists_none(self, store: Store) -> None:
        assert self._reports(store) == {}
        self._create(store)
        assert self._reports(store) == {}

    def test_reports_are_written_listed_overwritten_and_deleted(self, store: Store) -> None:
        one, two = an_instance(), an_instance()
        bodies = {one: a_body(), two: a_body()}
        for instance, body in bodies.items():
            store.put_report(instance, body, deadline=self.soon())
        assert self._reports(store) == bodies
        bodies[one] = a_body()
        store.put_report(one, bodies[one], deadline=self.soon())
        assert self._reports(store) == bodies
        store.delete_report(two, deadline=self.soon())
        assert self._reports(store) == {one: bodies[one]}

    def test_deleting_a_report_that_is_not_there_is_no_error(self, store: Store) -> None:
        store.delete_report(an_instance(), deadline=self.soon())
        instance = an_instance()
        store.put_report(instance, a_body(), deadline=self.soon())
        store.delete_report(instance, deadline=self.soon())
        store.delete_report(instance, deadline=self.soon())
        assert self._reports(store) == {}

    def test_a_deleted_report_can_be_written_again(self, store: Store) -> None:
        instance, body = an_instance(), a_body()
        store.put_report(instance, a_body(), deadline=self.soon())
        store.delete_report(instance, deadline=self.soon())
        store.put_report(instance, body, deadline=self.soon())
        assert self._reports(store) == {instance: body}

    def test_reports_are_timed_by_the_stores_clock(self, store: Store) -> None:
        before, resolution = store.now(deadline=self.soon())
        store.put_report(an_instance(), a_body(), deadline=self.soon())
        after, _ = store.now(deadline=self.soon())
        (found,) = store.reports(deadline=self.soon())
        slack = resolution + 0.1
        assert before - slack <= found.modified_at <= after + slack

    def test_a_listing_longer_than_a_page_is_complete(self, store: Store) -> None:
        bodies = {an_instance(): a_body() for _ in range(self.report_count)}
        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(lambda item: store.put_report(*item, deadline=self.soon()), bodies.items()))
        assert self._reports(store) == bodies

    def test_a_listing_that_breaks_is_an_error_and_never_a_shorter_listing(self, store: Store) -> None:
        for _ in range(self.report_count):
            store.put_report(an_instance(), a_body(), deadline=self.soon())
        with self.listing_breaks(store) as broken, pytest.raises((StoreUnreachable, StoreDenied)) as caught:
            list(broken.reports(deadline=time.monotonic() + 2.0))
        self._well_told(caught.value)

    def test_the_largest_report_is_kept(self, store: Store) -> None:
        instance, body = an_instance(), os.urandom(MAX_REPORT_BYTES)
        store.put_report(instance, body, deadline=self.soon())
        assert self._reports(store) == {instance: body}

    @pytest.mark.parametrize(
        "instance",
        ["", ".", "..", "../" * 7 + "x", "a/b", "a" * 21, "a" * 23, "a" * 21 + "/", "a" * 21 + "\n", "ä" * 22],
    )
    def test_an_instance_id_cannot_climb_out(self, store: Store, instance: str) -> None:
        with pytest.raises(ValueError, match="instance"):
            store.put_report(instance, b"{}", deadline=self.soon())
        with pytest.raises(ValueError, match="instance"):
            store.delete_report(instance, deadline=self.soon())
        assert self._reports(store) == {}

    def test_reports_and_keyset_do_not_touch(self, store: Store) -> None:
        body, version = self._create(store)
        instance = an_instance()
        store.put_report(instance, b"report", deadline=self.soon())
        assert self._read(store, version) is None
        newer = store.replace(a_body(), version, deadline=self.soon())
        assert newer != version
        assert self._reports(store) == {instance: b"report"}
        assert body not in self._reports(store).values()

    def test_a_neighbours_reports_are_not_listed(self, store: Store) -> None:
        other = self.make_neighbour()
        try:
            mine, theirs = an_instance(), an_instance()
            store.put_report(mine, b"mine", deadline=self.soon())
            other.put_report(theirs, b"theirs", deadline=self.soon())
            self._create(other)
            assert self._reports(store) == {mine: b"mine"}
            assert self._reports(other) == {theirs: b"theirs"}
            with pytest.raises(NotFound):
                self._read(store)
        finally:
            other.close()

    def test_strays_beside_the_reports_are_not_listed(self, store: Store) -> None:
        instance = an_instance()
        store.put_report(instance, b"report", deadline=self.soon())
        self.plant_stray()
        assert self._reports(store) == {instance: b"report"}

    # The clock.

    def test_the_stores_clock_is_a_clock(self, store: Store) -> None:
        before = time.time()
        now, resolution = store.now(deadline=self.soon())
        after = time.time()
        assert 0 <= resolution <= 2
        assert before - self.clock_tolerance - resolution <= now <= after + self.clock_tolerance + resolution

    # Faults.

    def _calls(self, store: Store, deadline: Callable[[], float]) -> dict[str, Callable[[], object]]:
        return {
            "read": lambda: store.read(None, fresh=True, deadline=deadline()),
            "replace": lambda: store.replace(a_body(), "1", deadline=deadline()),
            "create": lambda: store.replace(a_body(), None, deadline=deadline()),
            "reports": lambda: list(store.reports(deadline=deadline())),
            "put_report": lambda: store.put_report(an_instance(), a_body(), deadline=deadline()),
            "delete_report": lambda: store.delete_report(an_instance(), deadline=deadline()),
        }

    def _all_raise(self, store: Store, kind: type[McpkeysError], seconds: float, *names: str) -> None:
        calls = self._calls(store, lambda: time.monotonic() + seconds)
        for name in names or calls:
            begun = time.monotonic()
            with pytest.raises(kind) as caught:
                calls[name]()
            assert time.monotonic() - begun < max(seconds, 0) + self.deadline_slack, name
            self._well_told(caught.value)

    def test_a_denied_identity_is_told_so(self, store: Store) -> None:
        self._create(store)
        with self.denied(store) as broken:
            self._all_raise(broken, StoreDenied, self.call_seconds, "read", "reports", "put_report")

    def test_a_read_only_identity_reads_and_is_told_that_it_may_not_write(self, store: Store) -> None:
        body, version = self._create(store)
        with self.read_only(store) as broken:
            assert self._found(broken).body == body
            with pytest.raises(StoreDenied) as caught:
                broken.replace(a_body(), version, deadline=self.soon())
            self._well_told(caught.value)
            with pytest.raises(StoreDenied):
                broken.put_report(an_instance(), a_body(), deadline=self.soon())
        assert (self._found(store).body, self._found(store).version) == (body, version)

    def test_an_outage_is_told_within_the_deadline(self, store: Store) -> None:
        body, _ = self._create(store)
        with self.unreachable(store) as broken:
            self._all_raise(broken, StoreUnreachable, 1.0)
        assert self._found(store).body == body

    def test_a_used_up_quota_is_told_within_the_deadline(self, store: Store) -> None:
        body, _ = self._create(store)
        with self.throttled(store) as broken:
            self._all_raise(broken, StoreUnreachable, 1.0, "read", "create", "reports", "put_report")
        assert self._found(store).body == body

    def test_a_garbled_answer_is_never_taken_for_a_document(self, store: Store) -> None:
        self._create(store)
        with self.garbled(store) as broken:
            self._all_raise(broken, StoreUnreachable, 1.0, "read")

    def test_a_deadline_is_kept_when_the_store_is_slow(self, store: Store) -> None:
        self._create(store)
        with self.slow(store, 3.0) as late:
            self._all_raise(late, StoreUnreachable, 0.4)

    def test_a_deadline_that_has_passed_is_refused_at_once_and_changes_nothing(self, store: Store) -> None:
        body, version = self._create(store)
        self._all_raise(store, StoreUnreachable, -1.0)
        with pytest.raises(StoreUnreachable):
            store.replace(a_body(), version, deadline=time.monotonic() - 1.0)
        with pytest.raises(StoreUnreachable):
            store.now(deadline=time.monotonic() - 1.0)
        assert (self._found(store).body, self._found(store).version) == (body, version)
        assert self._reports(store) == {}

    def test_nothing_shows_a_credential(self, store: Store) -> None:
        """Messages, tracebacks with local variables, and logs with the root logger at DEBUG."""
        hidden = self.secrets()
        if not hidden:
            self._absent("secrets")
        errors: list[BaseException] = []
        with Listener() as listener:
            fresh = self.make_store()
            self._create(fresh)
            self._reports(fresh)
            for hook in ("denied", "read_only", "throttled", "unreachable", "garbled"):
                if self._has(hook):
                    with getattr(self, hook)(fresh) as broken:
                        for call in self._calls(broken, lambda: time.monotonic() + 0.7).values():
                            try:
                                call()
                            except Exception as error:
                                errors.append(error)
            try:
                self._create(fresh)
            except Conflict as error:
                errors.append(error)
            fresh.close()
        assert errors
        assert not leaked(listener.text, hidden), "a log record shows a credential"
        for caught in errors:
            assert not leaked(shown(caught, skip=(__file__,)), hidden), f"{type(caught).__name__} shows a credential"

    def _well_told(self, error: McpkeysError) -> None:
        assert error.what, "an error says what happened"
        assert error.why, "an error says why"
        assert error.next, "an error says what to do next"
        told = f"{error} {error.what} {error.why} {error.next}"
        assert "\n" not in told, "an error is one line"
        assert not leaked(told, self.secrets()), "the message shows a credential"

    # Threads, processes, closing.

    def test_threads_share_one_object(self, store: Store) -> None:
        body, _ = self._create(store)
        gate = threading.Barrier(self.threads)

        def work(_: int) -> bool:
            gate.wait(timeout=30)
            instance = an_instance()
            store.put_report(instance, instance.encode(), deadline=self.soon())
            listed = self._reports(store)
            return listed[instance] == instance.encode() and self._found(store).body == body

        with ThreadPoolExecutor(self.threads) as pool:
            assert all(pool.map(work, range(self.threads)))
        assert len(self._reports(store)) == self.threads

    def test_closing_is_idempotent_and_the_object_works_again(self, store: Store) -> None:
        store.close()
        body, version = self._create(store)
        store.close()
        store.close()
        assert self._found(store).body == body
        store.replace(a_body(), version, deadline=self.soon())

    @pytest.mark.parametrize("closing", ["closed first", "as it is"])
    def test_a_forked_child_can_use_it_and_the_parent_still_can(self, store: Store, closing: str) -> None:
        _, version = self._create(store)
        instance = an_instance()

        def work() -> str:
            if closing == "closed first":
                store.close()
            store.put_report(instance, b"child", deadline=self.soon())
            return store.replace(b"by the child", version, deadline=self.soon())

        newer = self.run_in_child(work)
        found = self._found(store)
        assert (found.body, found.version) == (b"by the child", newer)
        assert self._reports(store) == {instance: b"child"}
        store.replace(a_body(), newer, deadline=self.soon())

    # The URI.

    def test_the_canonical_uri_is_stable(self, store: Store) -> None:
        again = self.parse(store.uri)
        assert again.uri == store.uri
        assert store.uri.isprintable()
        again.close()


def a_body() -> bytes:
    """64 random bytes in hexadecimal between braces: looks like a small document, equals no other one."""
    return b'{"x":"' + os.urandom(64).hex().encode() + b'"}'


def an_instance() -> str:
    """A random instance id: 16 bytes, base64url, 22 characters."""
    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
