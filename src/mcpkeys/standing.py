"""One instance before a gate: does it confirm, lag, is it gone, until when may it have minted a leaving key. Pure.

A gate asks one thing of every instance: that it verifies a key (1 -> 2), or that it mints one (2 -> 3, the end of
a rollback, the end of a key that outlived an emergency). Times are integer milliseconds by the store's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from mcpkeys.encoding import to_ms
from mcpkeys.keyset import Keyset
from mcpkeys.reports import ReceivedReport, Report
from mcpkeys.steps import Blocking, Step, span

SILENT_REFRESHES = 3
WRITE_DEADLINE_MS = 2_000
NOBODY_RUNS = "no server runs (--expect 0)"

StandingState = Literal[
    "confirmed", "lagging", "joining", "silent", "missing", "unreadable", "clock", "contradicting", "farewell",
    "named", "gone",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gate:
    """What a step asks of every instance.

    Attributes:
        asks: `verifies` or `mints`.
        kid: the key that they must verify or mint.
        leaving: the keys to be retired by the step, whose last possible mint counts.
        entered: when the document that brought it about was written.
        generation: a report counts from this generation on.
    """

    asks: Literal["verifies", "mints"]
    kid: str
    leaving: frozenset[str]
    entered: int
    generation: int = 0

    def confirmed_by(self, report: Report) -> bool:
        """Whether this report says what the gate asks."""
        if report.state == "joining" or report.generation < self.generation:
            return False
        return self.kid in report.verifies if self.asks == "verifies" else report.mints == self.kid


@dataclass(frozen=True, slots=True)
class Standing:
    """One instance before a gate.

    Attributes:
        mints_until: the last moment it may have minted a leaving key, or None.
        fresh: the operator's word about it is new and has to be recorded before a wait can begin.
    """

    instance: str
    label: str
    state: StandingState
    received: ReceivedReport | None
    blocking: Blocking | None = None
    mints_until: int | None = None
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """What operators have put on record for the running rotation: who is stopped, what is out, that nobody runs."""

    missing: Mapping[str, int] = field(default_factory=dict)
    attest: tuple[int, str] | None = None
    nobody: int | None = None

    @classmethod
    def of(cls, keyset: Keyset, entered: int) -> Words:
        """The words in the document; an attestation counts only from after `entered`."""
        missing: dict[str, int] = {}
        attest: tuple[int, str] | None = None
        nobody: int | None = None
        rotation = keyset.rotation
        for step in rotation.steps if rotation is not None else ():
            for instance in step.evidence.missing:
                missing[instance] = step.entered_at
            if step.evidence.kind == "attest" and step.entered_at > entered:
                attest = (step.entered_at, step.evidence.word)
            if step.evidence.word == NOBODY_RUNS and nobody is None:
                nobody = step.entered_at
        return cls(missing, attest, nobody)


def silent_after(keyset: Keyset) -> int:
    """Milliseconds without a report after which an instance counts as silent."""
    return SILENT_REFRESHES * keyset.refresh_seconds * 1000


def clock_tolerance(keyset: Keyset) -> int:
    """Milliseconds that a clock may be off: half of skew_seconds. A keyset without skew gets one second, since no
    report travels in no time."""
    return keyset.skew_seconds * 500 or 1000


def held_max_stale(reports: Iterable[ReceivedReport]) -> dict[int, int | None]:
    """By generation: the largest max_stale (milliseconds) of that and every later one, as far as reports tell.

    None is off, for ever. One pass over a thousand instances, not one for each of them.
    """
    held: dict[int, int | None] = {}
    longest: int | None = 0
    for report in sorted((entry.report for entry in reports), key=lambda report: -report.generation):
        if report.state == "serving":
            off = longest is None or report.max_stale is None
            longest = None if off else max(longest or 0, report.max_stale or 0)
        held[report.generation] = longest
    return held


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges one instance at a time."""

    keyset: Keyset
    reports: Mapping[str, ReceivedReport]
    step: Step
    now: int
    gate: Gate
    words: Words
    roster: set[str]
    attesting: bool
    held: Mapping[int, int | None]

    def standing(self, instance: str, rejected: str | None) -> Standing:
        received = self.reports.get(instance)
        if received is None:
            return self._without_report(instance, rejected)
        report, seen = received.report, to_ms(received.modified_at)
        until = self._minted(received)
        if report.state == "farewell":
            return Standing(instance, report.label, "farewell", received, None, until)
        confirms = self.gate.confirmed_by(report)
        silent = self.now - seen > silent_after(self.keyset) + to_ms(self.step.resolution)

        def blocked(state: StandingState, code: str, why: str, late: bool) -> Standing:
            block = Blocking(instance, report.label, why, code, late)
            return Standing(instance, report.label, state, received, block, until)

        moment, fresh = self._named(instance, seen)
        if moment is not None:
            if silent or not fresh:
                worst = until if confirms else max(moment, until or 0)
                return Standing(instance, report.label, "named", received, None, worst, fresh and not confirms)
            if not confirms:
                why = f"named as missing, but it reported {span(self.now - seen)} ago {self._holds(report)}"
                return blocked("contradicting", "gate-contradiction", why, True)
        stops = self._stopped_by(report) if silent else None
        if stops is not None and self.now >= stops + self.keyset.skew_seconds * 1000:
            worst = until if confirms else max(stops, until or 0)
            return Standing(instance, report.label, "gone", received, None, worst)
        if report.state == "joining":
            why = f"joining since {span(self.now - seen)}, serves nothing as far as it says"
            return blocked("joining", "gate-joining", why, silent)
        if self.attesting and not confirms:
            return blocked(
                "contradicting", "gate-contradiction", f"its report contradicts: {self._holds(report)}", True
            )
        if silent and not self.attesting:
            why = f"silent for {span(self.now - seen)}, {self._holds(report)}"
            if stops is not None:
                # Only time is missing: max_stale will prove what silence alone does not.
                left = stops + self.keyset.skew_seconds * 1000 - self.now
                return blocked("silent", "gate-silent", f"{why}; max_stale proves it stopped in {span(left)}", False)
            return blocked("silent", "gate-silent", why, True)
        off = self._clock(received)
        if off is not None:
            return blocked("clock", "gate-clock", *off)
        if not confirms:
            late = seen > self.gate.entered + silent_after(self.keyset)
            return blocked("lagging", "gate-lagging", self._holds(report), late)
        return Standing(instance, report.label, "confirmed", received, None, until)

    def _without_report(self, instance: str, rejected: str | None) -> Standing:
        moment, fresh = self._named(instance, 0)
        if moment is not None:
            return Standing(instance, "", "named", None, None, moment, fresh)
        if rejected is not None:
            why = f"its report cannot be believed ({rejected}): older than the report key, or forged"
            return Standing(
                instance, "", "unreadable", None, Blocking(instance, "", why, "gate-report-rejected", True), None
            )
        why = "in the roster, but its report is gone without a farewell"
        return Standing(instance, "", "missing", None, Blocking(instance, "", why, "gate-report-missing", True), None)

    def _named(self, instance: str, seen: int) -> tuple[int | None, bool]:
        """When an operator named it as stopped, and whether that is new; a report from after that voids the word."""
        moment = self.words.missing.get(instance)
        if moment is not None and seen <= moment:
            return moment, False
        return (self.now, True) if instance in self.step.allow_missing else (None, False)

    def _holds(self, report: Report) -> str:
        what = f"holds generation {report.generation} of {self.keyset.generation}"
        if report.state == "joining":
            return "joining"
        if self.gate.asks == "verifies":
            if self.gate.kid not in report.verifies:
                return f"{what}, does not verify {self.gate.kid}"
        elif report.mints != self.gate.kid:
            return f"{what}, mints {report.mints or 'nothing'}, not {self.gate.kid}"
        return what

    def _behind(self, received: ReceivedReport) -> int:
        """How far its clock may be behind the store's, at most: the report's journey counts as well."""
        seen = to_ms(received.modified_at + self.step.resolution)
        return max(0, seen - received.report.clock)

    def _minted(self, received: ReceivedReport) -> int | None:
        """The last moment at which it minted a leaving key, by its own word, in the store's time."""
        report, behind = received.report, self._behind(received)
        refresh = self.keyset.refresh_seconds * 1000
        moments = [report.last_mint[kid] + behind for kid in self.gate.leaving if kid in report.last_mint]
        if self.gate.asks == "mints" and self.gate.confirmed_by(report):
            # Who was there before the phase began minted the leaving key until it changed, and a child forked just
            # then a refresh longer. A later joiner began with the new key, or its own last mint tells.
            if report.instance in self.roster:
                since = report.minting_since if report.minting_since is not None else report.clock
                moments.append(since + behind + refresh)
        elif report.state == "farewell":
            moments.append(to_ms(received.modified_at + self.step.resolution) + refresh)
        return max(moments, default=None)

    def _stopped_by(self, report: Report) -> int | None:
        """When max_stale has stopped its ring, whatever that held; None is never.

        Its ring may obey what its last report said, or what any later document said.
        """
        if report.state == "joining":
            return None
        own = self.keyset.max_stale_seconds
        later = self.held[report.generation]
        if report.max_stale is None or own is None or later is None:
            return None
        return self.gate.entered + max(report.max_stale, own * 1000, later)

    def _clock(self, received: ReceivedReport) -> tuple[str, bool] | None:
        off = received.report.clock - to_ms(received.modified_at)
        tolerance = clock_tolerance(self.keyset)
        if off > tolerance + to_ms(self.step.resolution):
            return f"its clock is {span(off)} ahead of the store's, more than half of skew_seconds", True
        if -off > tolerance:
            why = f"its clock is {span(-off)} behind the store's, more than half of skew_seconds"
            # So little may also be the time that the report took to arrive; the next one tells.
            return why, -off > tolerance + WRITE_DEADLINE_MS
        return None
