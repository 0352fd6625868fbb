"""Taking one step of a rotation: observe, plan, draw what the plan needs, observe and plan again, write once.

`rotation.plan` decides; this is the edge around it. The order of `observe` (reports, then the keyset, then the clock)
and the second look right before the write are what the gates rely on: docs/rotation-invariants.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mcpkeys import fleet, rotation, wraphealth
from mcpkeys.authoring import Author, Stored, new_kid
from mcpkeys.clock import Clock, SystemClock
from mcpkeys.encoding import to_ms
from mcpkeys.errors import Conflict, McpkeysError
from mcpkeys.fleet import FleetView
from mcpkeys.keyset import Key, Keyset, ReportKey
from mcpkeys.reports import Gathered
from mcpkeys.steps import Plan, Step


@dataclass(frozen=True, slots=True)
class Observed:
    """What an operator sees at one moment.

    Attributes:
        stored: the keyset, read after the reports.
        gathered: the reports.
        now, resolution: the store's clock and its resolution, seconds.
        operator_clock: this machine's wall clock when `now` was read, seconds.
        blind: why the reports could not be read, where the caller goes on without them; empty where they were.
    """

    stored: Stored
    gathered: Gathered
    now: float
    resolution: float
    operator_clock: float
    blind: str = ""

    def plan(self, step: Step) -> Plan:
        """What comes of a step now."""
        step = replace(
            step,
            operator_clock=self.operator_clock,
            resolution=self.resolution,
            rejected=self.gathered.rejected,
            blind=self.blind,
        )
        return rotation.plan(self.stored.keyset, self.gathered.received, step, self.now)

    def fleet(self) -> FleetView:
        """The fleet as the gates judge it now."""
        return fleet.describe(
            self.stored.keyset,
            self.gathered.received,
            self.now,
            rejected=self.gathered.rejected,
            operator_clock=self.operator_clock,
            resolution=self.resolution,
        )

    def warnings(self) -> tuple[str, ...]:
        """What is not urgent today and will be: KEKs that no longer open, wraps that are missing."""
        return wraphealth.warnings(self.stored.keyset, [entry.report for entry in self.gathered.received])


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a step.

    Attributes:
        plan: the last plan; where it says `do` it was written.
        observed: what it was made from.
        written: the keyset that was written, or None.
    """

    plan: Plan
    observed: Observed
    written: Keyset | None


def observe(author: Author, *, clock: Clock | None = None, blindly: bool = False) -> Observed:
    """Gather the reports, then read the keyset linearizably, then the clock. Raises the store's and KMS's errors.

    `blindly`: reports that cannot be read are no error. For an emergency: they lie where every server may write, and
    whoever the key leaked to must not be able to keep it alive by what it puts there.
    """
    clock = clock or SystemClock()
    before = author.read().keyset
    gathered, blind = _gathered(author, before, blindly)
    stored = author.read()
    if stored.keyset.report_key.kid != before.report_key.kid:
        # An emergency renewed the report key in between: what was gathered says nothing any more.
        gathered, blind = _gathered(author, stored.keyset, blindly)
        stored = author.read()
    now, resolution = author.now()
    return Observed(stored, gathered, now, resolution, clock.time(), blind)


def _gathered(author: Author, keyset: Keyset, blindly: bool) -> tuple[Gathered, str]:
    try:
        return author.gather(keyset), ""
    except McpkeysError as exc:
        if not blindly:
            raise
        return Gathered((), ()), f"{exc.what}: {exc.why}" if exc.why else exc.what


def take(
    author: Author,
    step: Step,
    *,
    agreed: Callable[[Plan, Observed], None] = lambda plan, observed: None,
    clock: Clock | None = None,
) -> Taken:
    """Take one step if it is safe.

    Args:
        agreed: called with the first plan that would be written; raises what stops it (a person says no).

    Raises:
        Conflict: another writer was faster; the error names who and what.
        McpkeysError: what the store and the KEKs answer. Nothing is half written, ever.
    """
    blindly = step.to == "emergency"
    observed = observe(author, clock=clock, blindly=blindly)
    plan = observed.plan(step)
    if plan.document is None:
        return Taken(plan, observed, None)
    agreed(plan, observed)
    keyset = observed.stored.keyset
    key: Key | None = None
    report_key: ReportKey | None = None
    if plan.needs_key:
        key = author.data_key(keyset.name, keyset.keks, now_ms=to_ms(observed.now))
    if plan.needs_report_key:
        report_key = author.new_report_key(keyset.name, keyset.keks)
    private = author.signer(keyset)
    rotation_id = new_kid()
    # Drawing took KMS calls, agreeing took a person's minutes: only what is seen now is written.
    observed = observe(author, clock=clock, blindly=blindly)
    plan = observed.plan(step)
    if plan.document is None:
        return Taken(plan, observed, None)
    if (plan.needs_key and key is None) or (plan.needs_report_key and report_key is None):
        raise Conflict(
            "the keyset changed while this step was being prepared",
            why=last_write(observed.stored.keyset),
            next="run the same command again",
        )
    document = rotation.complete(plan.document, key=key, rotation_id=rotation_id, report_key=report_key)
    try:
        written, _ = author.write(document, observed.stored.version, private)
    except Conflict:
        observed = observe(author, clock=clock, blindly=blindly)
        plan = observed.plan(step)
        if plan.verdict == "done":
            return Taken(plan, observed, None)
        raise Conflict(
            "another operator was faster; nothing of this step was written",
            why=last_write(observed.stored.keyset),
            next="mcpkeys status, then run the same command again if it is still wanted",
        ) from None
    return Taken(plan, observed, written)


def last_write(keyset: Keyset) -> str:
    """Who wrote last, and what."""
    if not keyset.history:
        return f"generation {keyset.generation} is stored now"
    last = keyset.history[-1]
    return f"{last.who} wrote generation {last.generation}: {last.what}"
