"""Keeping a ring current: background refresh, last known good, max_stale, reports, the daily canary.

One `Refresher` per open codec. `begin` is the start-up (join, read again, serve), `step` is one refresh; the thread
calls `step` until `stop`. Nothing here is ever called from `seal` or `unseal`, but for `refresh="inline"`.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from mcpkeys import reports
from mcpkeys.clock import Clock, SystemClock
from mcpkeys.encoding import to_ms
from mcpkeys.errors import KmsUnreachable, McpkeysError, StoreDenied
from mcpkeys.instance import Instance
from mcpkeys.loading import Loader
from mcpkeys.metrics import tracer
from mcpkeys.reports import Canary, ReportState
from mcpkeys.ring import Ring

logger = logging.getLogger("mcpkeys")

WRITE_SECONDS = 5.0
FAREWELL_SECONDS = 2.0
INLINE_SECONDS = 2.0
CANARY_SECONDS = 86_400.0
PROOF_REFRESHES = 10
"""With several KEKs the first canary comes within so many refresh intervals."""
POKE_SECONDS = 5.0
"""An unknown kid asks for at most one early refresh in this time (or half a refresh interval where that is less)."""


@dataclass(slots=True)
class Freshness:
    """When the last successful refresh began, on two clocks, and how old it may be (None: for ever)."""

    boottime: float
    wall: float
    max_stale: float | None

    def age(self, clock: Clock) -> float:
        """Seconds since then: the larger of boot time and wall clock, so that neither a sleep nor a step hides it."""
        return max(clock.boottime() - self.boottime, clock.time() - self.wall)

    def left(self, clock: Clock) -> float | None:
        """Seconds until the ring is stale, negative when it is; None where it never is."""
        return None if self.max_stale is None else self.max_stale - self.age(clock)


class Refresher:
    """Loads, refreshes and reports for one instance; tells `swap` each new ring."""

    def __init__(
        self,
        loader: Loader,
        instance: Instance,
        swap: Callable[[Ring], None],
        *,
        clock: Clock | None = None,
        jitter: random.Random | None = None,
    ) -> None:
        self.loader = loader
        self.instance = instance
        self.freshness = Freshness(0.0, 0.0, None)
        self.ring: Ring | None = None
        self.successes = 0
        self.failures = 0
        self.last_error: McpkeysError | None = None
        self.report_error: McpkeysError | None = None
        self.reported: Callable[[], None] = lambda: None
        self._swap = swap
        self._clock = clock or SystemClock()
        self._jitter = jitter or random.SystemRandom()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._next_poke = 0.0
        self._next_canary = 0.0
        self.due = 0.0

    # --- start-up ------------------------------------------------------------------------------------------

    def begin(self) -> Ring:
        """Load, join, load again, serve. Raises what makes serving impossible.

        The order matters: whoever reads the reports after this instance read the keyset sees it joining. With
        `evidence: reports` an instance that cannot report does not start.
        """
        started = self._clock.time(), self._clock.boottime()
        ring = self.loader.first()
        assert ring.keyset is not None
        if ring.keyset.evidence == "reports":
            self._write_report("joining", None, ring.name, started[0])
            started = self._clock.time(), self._clock.boottime()
            loaded = self.loader.load(ring, fresh=True)
            if loaded.error is not None:
                raise loaded.error
            ring = loaded.ring
        self._serve(ring, started)
        self._plan_canary(first=True)
        try:
            self._report(started[0])
        except McpkeysError:
            # It has joined; the thread tries again, and `joining` keeps every step waiting until then.
            logger.warning("report not written yet", extra={"event": "report.failed"})
        self._plan()
        return ring

    def _serve(self, ring: Ring, started: tuple[float, float]) -> None:
        keyset = ring.keyset
        assert keyset is not None
        limit = keyset.max_stale_seconds
        self.freshness = Freshness(started[1], started[0], None if limit is None else float(limit))
        self.ring = ring
        self._swap(ring)
        # After the swap: from this moment on the former key mints nothing here.
        self.instance.note_minting(ring.minting, self._clock.time())

    # --- one refresh ------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One refresh and one report. Never raises; single-flight: a second caller waits for nothing and returns."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            with tracer.start_as_current_span("mcpkeys.refresh", record_exception=False):
                self._step()
        finally:
            self._plan()
            self._lock.release()

    def _step(self) -> None:
        current = self.ring
        assert current is not None
        started = self._clock.time(), self._clock.boottime()
        error: McpkeysError | None = None
        try:
            loaded = self.loader.load(current)
        except McpkeysError as exc:
            error = exc
        else:
            error = loaded.error
            if loaded.changed:
                fresh = started if loaded.complete else (self.freshness.wall, self.freshness.boottime)
                self._serve(loaded.ring, fresh)
                logger.info(
                    "keyset %s: generation %d is in use", loaded.ring.name, loaded.ring.generation,
                    extra={"event": "keyset.adopted", "generation": loaded.ring.generation},
                )  # fmt: skip
                self._next_canary = min(self._next_canary, self._clock.monotonic())
            elif loaded.complete:
                self.freshness.wall, self.freshness.boottime = started
        self._note(error)
        self._canaries()
        try:
            self._report(started[0])
        except McpkeysError as exc:
            self._note_report(exc)
        else:
            self._note_report(None)

    def _note(self, error: McpkeysError | None) -> None:
        """Count, and say a change of state once: the log of a week's outage is two lines."""
        if error is None:
            self.successes += 1
        else:
            self.failures += 1
        before, self.last_error = self.last_error, error
        if error is not None and (before is None or before.code != error.code):
            logger.warning(
                "keyset not refreshed, the last good ring stays in use: %s", error,
                extra={"event": "refresh.failed", "code": error.code},
            )  # fmt: skip
        elif error is None and before is not None:
            logger.warning("keyset refreshed again", extra={"event": "refresh.recovered"})

    def _note_report(self, error: McpkeysError | None) -> None:
        before, self.report_error = self.report_error, error
        # An outage of the store is one event, told by the refresh already.
        if error is not None and before is None and self.last_error is None:
            logger.warning("report not written: %s", error, extra={"event": "report.failed", "code": error.code})
        elif error is None and before is not None and self.last_error is None:
            logger.info("report written again", extra={"event": "report.recovered"})

    def _report(self, started: float) -> None:
        ring = self.ring
        assert ring is not None
        assert ring.keyset is not None
        if ring.keyset.evidence == "reports":
            self._write_report("serving", ring, ring.name, started)

    def _write_report(
        self, state: ReportState, ring: Ring | None, name: str, started: float, seconds: float = WRITE_SECONDS
    ) -> None:
        key = self.loader.report_key
        if key is None:
            raise KmsUnreachable("the report key is not unwrapped, so nothing can be reported")
        report = self.instance.report(
            state, ring, keyset=name, now=self._clock.time(), started=started, unwraps_by=self.loader.unwraps_by
        )
        body = reports.encode(report, key)
        try:
            self.loader.store.put_report(report.instance, body, deadline=self._clock.monotonic() + seconds)
            self.reported()
        except StoreDenied as exc:
            raise StoreDenied(
                "this instance may not write its report",
                why=f"{exc.what}: {exc.why}" if exc.why else exc.what,
                next="allow it to write under <keyset>.reports/, or create the keyset with --evidence attest",
                code="report-denied",
            ) from None

    # --- the canary ------------------------------------------------------------------------------------------

    def _plan_canary(self, *, first: bool = False) -> None:
        low, longest = (0.0 if first else 0.5), CANARY_SECONDS
        if first and len(self.loader.keks.uris) > 1:
            # A KEK that has not opened anything here yet is tried soon: `rewrap --remove-kek` waits for the proof.
            longest = PROOF_REFRESHES * self._interval()
        self._next_canary = self._clock.monotonic() + longest * self._jitter.uniform(low, 1.0)

    def _canaries(self) -> None:
        """One unwrap a day by the nearest KEK; and one, once, by each pinned KEK that has not opened anything yet."""
        ring = self.ring
        if ring is None or ring.keyset is None or self._clock.monotonic() < self._next_canary:
            return
        fresh = [uri for uri in self.loader.keks.uris if uri not in self.loader.unwraps_by]
        daily = [uri for uri in self.loader.keks.uris if uri in self.loader.unwraps_by][:1] if not fresh else []
        if not fresh and self._is_recent(daily):
            self._plan_canary()
            return
        for uri in fresh or daily:
            ok = self.loader.prove(ring.keyset, uri)
            if ok is None:
                continue
            before = self.instance.canary.get(uri)
            self.instance.canary[uri] = Canary(to_ms(self._clock.time()), ok)
            if not ok and (before is None or before.ok):
                logger.warning(
                    "the KEK %s no longer opens the minting key; running servers go on, new ones may not start",
                    uri, extra={"event": "canary.failed"},
                )  # fmt: skip
        self._plan_canary()

    def _is_recent(self, uris: list[str]) -> bool:
        limit = to_ms(self._clock.time() - CANARY_SECONDS / 4)
        return all(uri in self.instance.canary and self.instance.canary[uri].at > limit for uri in uris)

    # --- schedule ------------------------------------------------------------------------------------------

    def _interval(self) -> float:
        ring = self.ring
        return 30.0 if ring is None or ring.keyset is None else float(ring.keyset.refresh_seconds)

    def _plan(self) -> None:
        # At most one interval, so that a fleet is out within two; at least 3/4 of it, so that it spreads.
        self.due = self._clock.monotonic() + self._interval() * self._jitter.uniform(0.75, 1.0)

    def poke(self) -> None:
        """An unknown kid was seen: refresh early, at most once in `POKE_SECONDS`. Costs nanoseconds."""
        now = self._clock.monotonic()
        if now >= self._next_poke:
            self._next_poke = now + min(POKE_SECONDS, self._interval() / 2)
            self.due = now
            self._wake.set()

    def start(self) -> None:
        """Start the thread. Also in the child after fork."""
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="mcpkeys-refresh", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped:
            self._wake.wait(max(0.0, self.due - self._clock.monotonic()))
            self._wake.clear()
            if not self._stopped and self._clock.monotonic() >= self.due:
                self.step()

    def inline(self) -> None:
        """`refresh="inline"`: the refresh that an overdue ring owes, on the caller's thread, bounded."""
        if self._clock.monotonic() >= self.due:
            self.step()

    def after_fork(self) -> None:
        """In the child: nothing of the parent's thread, locks, sockets or identity is left."""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self.loader.close()
        self.instance.redraw()
        ring = self.ring
        self.instance.note_minting(None if ring is None else ring.minting, self._clock.time())
        self._plan_canary(first=True)
        # At once: the child serves an inherited ring that nobody knows of yet.
        self.due = self._clock.monotonic()

    def farewell(self) -> None:
        """Tell that this instance is gone for good. Never raises; at most two seconds."""
        ring = self.ring
        if ring is None or ring.keyset is None or ring.keyset.evidence != "reports":
            return
        try:
            self._write_report("farewell", ring, ring.name, self._clock.time(), FAREWELL_SECONDS)
        except (McpkeysError, ValueError) as exc:
            logger.info("farewell not written: %s", exc, extra={"event": "farewell.failed"})

    def stop(self) -> None:
        """End the thread (waits at most two seconds for a refresh under way) and say farewell."""
        self._stopped = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(FAREWELL_SECONDS)
        self.farewell()
        self.loader.close()
