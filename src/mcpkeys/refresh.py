"""Keeping a ring current: background refresh, last known good, max_stale, reports.

One `Refresher` per open codec. `begin` is the start-up (load, join, load again, serve), `step` is one refresh; the
thread calls `step` until `stop`. Nothing here is ever called from `seal` or `unseal`, but for `refresh="inline"`.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from mcpkeys import reports
from mcpkeys.canary import Canaries
from mcpkeys.clock import Clock, SystemClock
from mcpkeys.errors import KmsUnreachable, McpkeysError, PluginError, StoreDenied, StoreUnreachable
from mcpkeys.instance import Instance
from mcpkeys.loading import READ_SECONDS, Loaded, Loader
from mcpkeys.metrics import tracer
from mcpkeys.patience import CALL_SECONDS, Patience
from mcpkeys.reports import ReportState
from mcpkeys.ring import Ring

logger = logging.getLogger("mcpkeys")

WRITE_SECONDS = 5.0
FAREWELL_SECONDS = 2.0
POKE_SECONDS = 5.0
"""An unknown kid asks for at most one early refresh in this time (or half a refresh interval where that is less)."""
SLICE_SECONDS = 5.0
"""The thread looks at the clock so often at least: a machine that slept wakes up with a timer that did not run."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment on two clocks."""

    wall: float
    boottime: float

    @classmethod
    def now(cls, clock: Clock) -> Moment:
        return cls(clock.time(), clock.boottime())


@dataclass(frozen=True, slots=True)
class Freshness:
    """When the last successful refresh began, and how old it may be (None: for ever). Swapped whole, never changed."""

    since: Moment
    max_stale: float | None

    def age(self, clock: Clock) -> float:
        """Seconds since then: the larger of boot time and wall clock, so that neither a sleep nor a step hides it."""
        return max(clock.boottime() - self.since.boottime, clock.time() - self.since.wall)

    def left(self, clock: Clock) -> float | None:
        """Seconds until the ring is stale, negative when it is; None where it never is."""
        return None if self.max_stale is None else self.max_stale - self.age(clock)


class Refresher:
    """Loads, refreshes and reports for one instance; tells `swap` each new ring.

    Attributes:
        ring: what is in use, None before `begin`.
        freshness: of it.
        successes, failures: refreshes so far.
        last_error, report_error: of the last refresh and the last report; None where all is well.
        reported: called after each report.
        early: an early refresh is asked for; it begins at most once in `POKE_SECONDS`.
        due: boot time at which the next refresh begins.
    """

    def __init__(
        self,
        loader: Loader,
        instance: Instance,
        swap: Callable[[Ring], None],
        *,
        clock: Clock | None = None,
        jitter: random.Random | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._jitter = jitter or random.SystemRandom()
        self.loader = loader
        self.instance = instance
        self.freshness = Freshness(Moment(0.0, 0.0), None)
        self.ring: Ring | None = None
        self.successes = 0
        self.failures = 0
        self.last_error: McpkeysError | None = None
        self.report_error: McpkeysError | None = None
        self.reported: Callable[[], None] = lambda: None
        self.due = 0.0
        self._swap = swap
        self._canaries = Canaries(loader, instance, self._clock, self._jitter)
        self._stopped = False
        self.early = False
        self._early_at = 0.0
        self._report_told = False
        self._inherited = False
        self._thread: threading.Thread | None = None
        self._renew()

    def _renew(self) -> None:
        self._one_step = threading.Lock()
        self._one_report = threading.Lock()
        self._wake = threading.Event()

    # --- start-up ------------------------------------------------------------------------------------------

    def begin(self) -> Ring:
        """Load, join, load again, serve. Raises what makes serving impossible.

        The order matters: whoever reads the reports after this instance read the keyset sees it joining. With
        `evidence: reports` an instance that cannot report does not start.
        """
        patience = Patience(self._clock, self._jitter)
        started = Moment.now(self._clock)
        ring = patience.call(lambda: self.loader.first(patience=patience), on=StoreUnreachable)
        assert ring.keyset is not None
        if ring.keyset.evidence == "reports":
            try:
                ring, started = self._join(ring, patience)
            except BaseException:
                # Or every rotation would wait for an instance that never was.
                self._withdraw(None, ring.name)
                raise
        self._serve(ring, started)
        self._canaries.begin(self._interval())
        self._warn_of_signer(ring)
        self._try_report(started)
        self._plan()
        return ring

    def _join(self, ring: Ring, patience: Patience) -> tuple[Ring, Moment]:
        patience.call(lambda: self._write_report("joining", None, ring.name, Moment.now(self._clock)), StoreUnreachable)
        started = Moment.now(self._clock)
        loaded = patience.call(lambda: self.loader.load(ring, fresh=True, patience=patience), StoreUnreachable)
        if loaded.changed and not loaded.complete:
            loaded = self.loader.load(loaded.ring, fresh=True, patience=patience)
        if loaded.error is not None:
            raise loaded.error
        return loaded.ring, started

    def _serve(self, ring: Ring, started: Moment) -> None:
        keyset = ring.keyset
        assert keyset is not None
        limit = keyset.max_stale_seconds
        self.freshness = Freshness(started, None if limit is None else float(limit))
        self.ring = ring
        self._swap(ring)
        # After the swap: from this moment on the former key mints nothing here.
        self.instance.note_minting(ring.minting, self._clock.time())

    def _warn_of_signer(self, ring: Ring) -> None:
        assert ring.keyset is not None
        openers = self.loader.signer_openers(ring.keyset)
        if openers:
            logger.warning(
                "this server could open the signer of keyset %s by %s, which cannot restrict by purpose: name a KEK "
                "that only operators may use, by --sign-kek",
                ring.name, ", ".join(openers), extra={"event": "signer.exposed"},
            )  # fmt: skip

    # --- one refresh ------------------------------------------------------------------------------------------

    def step(self, *, quick: bool = False) -> None:
        """One refresh and one report. Never raises; single-flight: a second caller waits for nothing and returns.

        `quick`: a caller waits for it; 2 seconds for the read, 2 for all unwraps, 2 for the report.
        """
        lock = self._one_step
        if self._stopped or not lock.acquire(blocking=False):
            return
        try:
            self.early = False
            with tracer.start_as_current_span("mcpkeys.refresh", record_exception=False):
                self._step(quick)
        finally:
            self._plan()
            lock.release()

    def _step(self, quick: bool) -> None:
        started = Moment.now(self._clock)
        try:
            if self._inherited:
                # The parent's connections. Here and not at the fork, which must never wait for a plugin's lock.
                self.loader.close()
                self._inherited = False
            self._note(self._refresh(started, quick))
        except McpkeysError as exc:
            self._note(exc)
        except Exception as exc:
            self._note(_broken("refresh", exc))
        ring = self.ring
        try:
            if ring is not None and ring.keyset is not None:
                self._canaries.run(ring.keyset)
        except Exception as exc:
            self._note(_broken("canary", exc))
        self._try_report(started, CALL_SECONDS if quick else WRITE_SECONDS)

    def _refresh(self, started: Moment, quick: bool) -> McpkeysError | None:
        """What is wrong with what is stored, or None. Raises what the store answers."""
        current = self.ring
        assert current is not None
        patience = self.loader.keks.impatient() if quick else None
        seconds = CALL_SECONDS if quick else READ_SECONDS
        loaded = self.loader.load(current, patience=patience, seconds=seconds)
        if loaded.changed and not loaded.complete:
            self._adopt(loaded, started)
            loaded = self.loader.load(loaded.ring, patience=patience, seconds=seconds)
        if loaded.changed:
            self._adopt(loaded, started)
        elif loaded.complete:
            self.freshness = replace(self.freshness, since=started)
        return loaded.error

    def _adopt(self, loaded: Loaded, started: Moment) -> None:
        before, after = self.ring, loaded.ring
        assert before is not None
        assert before.keyset is not None
        assert after.keyset is not None
        self._serve(after, started if loaded.complete else self.freshness.since)
        self._canaries.follow(before.keyset, after.keyset)
        if after.generation != before.generation:
            logger.info(
                "keyset %s: generation %d is in use", after.name, after.generation,
                extra={"event": "keyset.adopted", "generation": after.generation},
            )  # fmt: skip

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

    # --- reports ----------------------------------------------------------------------------------------------

    def _try_report(self, started: Moment, seconds: float = WRITE_SECONDS) -> None:
        ring = self.ring
        try:
            if ring is not None and ring.keyset is not None and ring.keyset.evidence == "reports":
                self._write_report("serving", ring, ring.name, started, seconds)
        except McpkeysError as exc:
            self._note_report(exc)
        except Exception as exc:
            self._note_report(_broken("report", exc))
        else:
            self._note_report(None)

    def _note_report(self, error: McpkeysError | None) -> None:
        before, self.report_error = self.report_error, error
        # Said at the second time, while refreshes succeed: an outage is one event, and the refresh tells it.
        if error is not None and before is not None and self.last_error is None and not self._report_told:
            self._report_told = True
            logger.warning("report not written: %s", error, extra={"event": "report.failed", "code": error.code})
        elif error is None and self._report_told:
            self._report_told = False
            logger.info("report written again", extra={"event": "report.recovered"})

    def _write_report(
        self, state: ReportState, ring: Ring | None, name: str, started: Moment, seconds: float = WRITE_SECONDS
    ) -> None:
        with self._one_report:
            # A report that overtook the farewell would raise the dead.
            if not self._stopped:
                self._put(state, ring, name, started, seconds)

    def _put(self, state: ReportState, ring: Ring | None, name: str, started: Moment, seconds: float) -> None:
        report = self.instance.report(
            state, ring, keyset=name, now=self._clock.time(), started=started.wall, unwraps_by=self.loader.unwraps_by
        )
        body = self._encoded(report)
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

    def _encoded(self, report: reports.Report) -> bytes:
        # A frame of its own: tracebacks show the locals of every frame that an error crosses.
        key = self.loader.report_key
        if key is not None:
            try:
                return reports.encode(report, key)
            except ValueError:
                pass
            finally:
                del key
            raise PluginError("the report is too long", why="more than 64 KiB", next="report this", code="report-size")
        raise KmsUnreachable("the report key is not unwrapped, so nothing can be reported")

    def _withdraw(self, ring: Ring | None, name: str) -> None:
        """Tell that this instance is gone for good. Never raises; at most twice two seconds."""
        held = self._one_report.acquire(timeout=FAREWELL_SECONDS)
        try:
            self._put("farewell", ring, name, Moment.now(self._clock), FAREWELL_SECONDS)
        except Exception as exc:
            logger.info("farewell not written: %s", exc, extra={"event": "farewell.failed"})
        finally:
            if held:
                self._one_report.release()

    # --- schedule ------------------------------------------------------------------------------------------

    def _interval(self) -> float:
        ring = self.ring
        return 30.0 if ring is None or ring.keyset is None else float(ring.keyset.refresh_seconds)

    def _plan(self) -> None:
        # At most one interval, so that a fleet is out within two; at least 3/4 of it, so that it spreads.
        due = self._clock.boottime() + self._interval() * self._jitter.uniform(0.75, 1.0)
        self.due = min(due, self._early_at) if self.early else due

    def poke(self) -> None:
        """An unknown kid was seen: refresh early. For callers that look at `early` first: nanoseconds in a flood."""
        now = self._clock.boottime()
        self._early_at = max(now, self._early_at + min(POKE_SECONDS, self._interval() / 2))
        self.early = True
        self.due = min(self.due, self._early_at)
        self._wake.set()

    def start(self) -> None:
        """Start the thread. Also in the child after fork."""
        self._thread = threading.Thread(target=self._run, name="mcpkeys-refresh", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped:
            left = self.due - self._clock.boottime()
            if left <= 0:
                self.step()
            elif self._wake.wait(min(left, SLICE_SECONDS)):
                self._wake.clear()

    def inline(self) -> None:
        """`refresh="inline"`: the refresh that an overdue ring owes, on the caller's thread, bounded."""
        if self._clock.boottime() >= self.due:
            self.step(quick=True)

    def after_fork(self) -> None:
        """In the child: nothing of the parent's thread, locks, sockets or identity is left. Never raises."""
        self._renew()
        self.instance.redraw()
        ring = self.ring
        self.instance.note_minting(None if ring is None else ring.minting, self._clock.time())
        self._canaries.begin(self._interval())
        # At once: the child serves an inherited ring that nobody knows of yet.
        self.due = self._clock.boottime()
        self._inherited = True

    def stop(self) -> None:
        """End the thread (waits at most two seconds for a refresh under way) and say farewell."""
        self._stopped = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(FAREWELL_SECONDS)
        ring = self.ring
        if ring is not None and ring.keyset is not None and ring.keyset.evidence == "reports":
            self._withdraw(ring, ring.name)
        self.loader.forget()
        self.loader.close()


def _broken(what: str, exc: Exception) -> McpkeysError:
    """A plugin's own mistake, told without what it held."""
    return PluginError(
        f"the {what} failed unexpectedly", why=type(exc).__name__, next="report this", code="plugin-broken"
    )
