"""A store in memory that fails when told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from mcpkeys.clock import Clock, SystemClock
from mcpkeys.errors import Conflict, NotFound, StoreDenied, StoreUnreachable
from mcpkeys.store import MAX_BODY_BYTES, Found, check_instance
from mcpkeys.testing.faults import Answers, Faults, Gate

_ANSWERS = Answers(
    late=lambda why: StoreUnreachable("the fake store gave no answer", why=why, next="clear its faults"),
    throttled=lambda why: StoreUnreachable("the fake store is busy", why=why, next="wait a second"),
    denied=lambda why: StoreDenied("the fake store refuses", why=why, next="clear its faults"),
)


class FakePlace:
    """The store's side of one keyset: the document, the reports, faults and counts. Open as many `FakeStore` as needed.

    Attributes:
        faults: for every caller.
        gate: counts.
        document: what is stored; assign it to play somebody who writes past the plugin, None to delete.
        stored_reports: what instances left, by instance id; edit it to play an attacker.
        lose_replies: so many writes from now on are carried out without an answer; counts down.
        lost_for_good: with a lost reply the store cannot be asked afterwards either, until `faults.clear()`.
        overtake: called after a write whose reply was lost, before the caller can look: somebody else writes.
        breaks_listing: listings fail halfway.
    """

    def __init__(self, uri: str = "fake://place/fleet.keyset.json", *, clock: Clock | None = None) -> None:
        self.uri = uri
        self.clock = clock or SystemClock()
        self.faults = Faults()
        self.gate = Gate(self.clock, _ANSWERS)
        self.lock = threading.RLock()
        self.stored_reports: dict[str, Found] = {}
        self.lose_replies = 0
        self.lost_for_good = False
        self.overtake: Callable[[], None] | None = None
        self.breaks_listing = False
        self._document: Found | None = None
        self._stale: tuple[Found | None] | None = None
        self._version = 0

    def __repr__(self) -> str:
        return f"FakePlace({self.uri!r}, version {self._version}, {len(self.stored_reports)} reports)"

    @property
    def document(self) -> Found | None:
        return self._document

    @document.setter
    def document(self, body: bytes | None) -> None:
        if body is None:
            self._document = None
        else:
            self.put(body)

    def put(self, body: bytes) -> Found:
        """Store `body` whatever was there."""
        with self.lock:
            self._document = found = self.stamp(body)
            return found

    def stamp(self, body: bytes, name: str = "") -> Found:
        """`body` as stored now, under a version that was never given before."""
        with self.lock:
            self._version += 1
            return Found(body, str(self._version), self.clock.time(), name)

    def freeze(self) -> None:
        """Until `thaw()`, reads that are not fresh answer what is stored now."""
        self._stale = (self._document,)

    def thaw(self) -> None:
        """All reads answer what is stored."""
        self._stale = None

    def visible(self, *, fresh: bool) -> Found | None:
        """What a read sees."""
        return self._document if fresh or self._stale is None else self._stale[0]

    def open(self) -> FakeStore:
        """A caller of this place."""
        return FakeStore(self)


class FakeStore:
    """A `mcpkeys.store.Store` in memory. Versions are counted: "1", "2", ... over keyset and reports together.

    Args:
        place: what to call; by default one of its own, `FakeStore().place`.

    Attributes:
        faults: between this caller and the store, beside those of `place.faults`.
    """

    def __init__(self, place: FakePlace | None = None) -> None:
        self.place = place or FakePlace()
        self.faults = Faults()
        self.uri = self.place.uri

    def __repr__(self) -> str:
        return f"FakeStore({self.uri!r})"

    @property
    def gate(self) -> Gate:
        """The place's counts, of all callers."""
        return self.place.gate

    def _enter(self, operation: str, deadline: float, *, writes: bool = False) -> None:
        self.gate.enter(operation, (self.place.faults, self.faults), deadline, writes=writes)

    def read(self, known: str | None, *, fresh: bool, deadline: float) -> Found | None:
        self._enter("read", deadline)
        found = self.place.visible(fresh=fresh)
        if found is None:
            raise NotFound(
                f"there is no keyset at {self.uri}", why="nothing is stored", next="create one: mcpkeys init"
            )
        if found.version == known:
            return None
        return Found(found.body[: MAX_BODY_BYTES + 1], found.version, found.modified_at)

    def replace(self, body: bytes, expected: str | None, *, deadline: float) -> str:
        self._enter("replace", deadline, writes=True)
        place = self.place
        with place.lock:
            stored = place.document
            if (None if stored is None else stored.version) != expected:
                raise self._conflict()
            written = place.put(body)
            lost = place.lose_replies > 0
            place.lose_replies -= lost
        return self._look(body, deadline) if lost else written.version

    def _look(self, body: bytes, deadline: float) -> str:
        """After a lost reply: own bytes are a success."""
        if self.place.overtake is not None:
            self.place.overtake()
        if self.place.lost_for_good:
            self.place.faults.outage = True
        found = self.read(None, fresh=True, deadline=deadline)
        if found is None or found.body != body:
            raise self._conflict()
        return found.version

    def _conflict(self) -> Conflict:
        return Conflict(f"{self.uri} is not written", why="another version is stored", next="read it again")

    def reports(self, *, deadline: float) -> Iterator[Found]:
        self._enter("reports", deadline)
        with self.place.lock:
            listed = list(self.place.stored_reports.values())
        for number, found in enumerate(listed):
            if self.place.breaks_listing and number >= len(listed) // 2:
                raise StoreUnreachable("the fake store broke off", why="breaks_listing is set", next="clear it")
            yield found

    def put_report(self, instance: str, body: bytes, *, deadline: float) -> None:
        check_instance(instance)
        self._enter("put_report", deadline, writes=True)
        with self.place.lock:
            self.place.stored_reports[instance] = self.place.stamp(body, instance)

    def delete_report(self, instance: str, *, deadline: float) -> None:
        check_instance(instance)
        self._enter("delete_report", deadline, writes=True)
        with self.place.lock:
            self.place.stored_reports.pop(instance, None)

    def now(self, *, deadline: float) -> tuple[float, float]:
        self._enter("now", deadline)
        return self.place.clock.time(), 0.001

    def close(self) -> None:
        """Nothing is held open."""
