"""Who confirms a step, who lags, who is gone, and until when a leaving key may have been minted. Pure.

A gate asks one thing of every instance: that it verifies a key (1 -> 2), or that it mints one (2 -> 3, the end of
a rollback, the end of a key that outlived an emergency). `assess` answers for the whole fleet; `rotation.plan`
decides by it and `fleet.describe` shows it, so that the two cannot disagree. docs/rotation-invariants.md says
why each rule is needed. Times are integer milliseconds by the store's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from mcpkeys.encoding import to_ms
from mcpkeys.errors import ConfigurationError
from mcpkeys.keyset import Keyset
from mcpkeys.reports import ReceivedReport, Report
from mcpkeys.steps import Blocking, Step, named, span

SILENT_REFRESHES = 3
PHASE_REFRESHES = 3
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


@dataclass(frozen=True, slots=True)
class Refusal:
    """What stands against a step as a whole, not one instance."""

    code: str
    why: str
    late: bool


@dataclass(frozen=True, slots=True)
class Assessment:
    """The fleet before a gate.

    Attributes:
        standings: in order of instance id.
        refusals: against the step as a whole.
        longest_ttl: milliseconds: the keyset's, past and observed ones.
        mints_until: the last moment at which anyone may have minted a leaving key.
        safe_at: the earliest moment at which time alone would allow the step.
        to_record: the gate waits from words that are not yet in the document.
        attest: the word the step goes by, or empty.
        nobody: the step goes by the word that no server runs.
    """

    standings: tuple[Standing, ...]
    refusals: tuple[Refusal, ...]
    longest_ttl: int
    mints_until: int
    safe_at: int
    to_record: bool
    attest: str
    nobody: bool

    @property
    def blocking(self) -> tuple[Blocking, ...]:
        """Who is in the way, those that waiting does not help first."""
        found = [standing.blocking for standing in self.standings if standing.blocking is not None]
        return tuple(sorted(found, key=lambda entry: not entry.late))

    def ids(self, *states: StandingState) -> tuple[str, ...]:
        """The instances that stand so."""
        return tuple(standing.instance for standing in self.standings if standing.state in states)

    @property
    def roster(self) -> tuple[str, ...]:
        """Whom the next step waits for: everyone but those withdrawn, named or proven gone."""
        gone = {"farewell", "named", "gone", "missing", "unreadable"}
        return tuple(s.instance for s in self.standings if s.state not in gone)


def silent_after(keyset: Keyset) -> int:
    """Milliseconds without a report after which an instance counts as silent."""
    return SILENT_REFRESHES * keyset.refresh_seconds * 1000


def clock_tolerance(keyset: Keyset) -> int:
    """Milliseconds that a clock may be off: half of skew_seconds. A keyset without skew gets one second, since no
    report travels in no time."""
    return keyset.skew_seconds * 500 or 1000


def longest_ttl(keyset: Keyset, reports: Mapping[str, ReceivedReport]) -> int:
    """Milliseconds: no token of this keyset lives longer, as far as anyone can know."""
    observed = [entry.report.ttl_observed or 0 for entry in reports.values()]
    past = [past.ttl_seconds * 1000 for past in keyset.past_ttls]
    return max([keyset.ttl_seconds * 1000, *past, *observed])


def assess(keyset: Keyset, reports: Mapping[str, ReceivedReport], step: Step, now: int, gate: Gate) -> Assessment:
    """The whole fleet before `gate`. Raises ConfigurationError where `step` names an instance nobody knows."""
    words = Words.of(keyset, gate.entered)
    rejected = dict(step.rejected)
    attesting = keyset.evidence == "attest"
    if step.attest is not None and not attesting:
        raise ConfigurationError(
            "--attest says nothing to this keyset",
            why="its evidence is reports: instances speak for themselves",
            next="name stopped instances by --allow-missing ID; --expect 0 says that no server runs",
        )
    roster = set(keyset.rotation.roster) if keyset.rotation is not None else set()
    _check_names(step, roster | set(reports) | set(rejected) | set(words.missing))
    judge = _Judge(keyset, reports, step, now, gate, words, roster, attesting)
    heard = {instance: judge.standing(instance, rejected.get(instance)) for instance in set(reports) | set(rejected)}
    says_nobody = step.expect == 0 or words.nobody is not None or _expected_nobody(keyset) is not None
    if not attesting and not (says_nobody and not _present(heard.values())):
        heard.update({instance: judge.standing(instance, None) for instance in roster - set(heard)})
    standings = tuple(heard[instance] for instance in sorted(heard))

    present = _present(standings)
    refusals: list[Refusal] = []
    moments = [s.mints_until for s in standings if s.mints_until is not None]
    to_record = gate.asks == "mints" and any(s.fresh for s in standings)
    attest = ""
    nobody = False
    if attesting:
        given = step.attest or ""
        recorded = words.attest is not None and given in ("", words.attest[1])
        moment, attest = words.attest if words.attest is not None and recorded else (now, given)
        if attest:
            moments.append(moment)
            to_record |= gate.asks == "mints" and not recorded
        else:
            refusals.append(Refusal("gate-attest", "this keyset goes by attestation, and none was given", True))
    elif not present:
        word = words.nobody if words.nobody is not None else _expected_nobody(keyset)
        nobody = says_nobody
        if not nobody:
            refusals.append(Refusal("gate-empty", "no instance reports: an empty fleet proves nothing", True))
        elif gate.asks == "mints":
            moments.append(now if word is None else word)
            to_record |= word is None
    refusals += _count(keyset, step, standings, present)

    # A child forked just before its parent changed serves what it inherited until its own first refresh.
    mints_until = max([gate.entered + keyset.refresh_seconds * 1000, *moments])
    longest = longest_ttl(keyset, reports)
    young = gate.entered + PHASE_REFRESHES * keyset.refresh_seconds * 1000
    safe_at = young
    if now < young:
        why = (
            f"a phase lasts at least {PHASE_REFRESHES} refresh intervals; this one began {span(now - gate.entered)} ago"
        )
        refusals.append(Refusal("gate-young", why, False))
    if gate.asks == "mints":
        ripe = mints_until + longest + keyset.skew_seconds * 1000
        safe_at = max(young, ripe)
        if now < ripe:
            why = (
                f"a token minted under {named(sorted(gate.leaving))} may live for another {span(ripe - now)}: last "
                f"possible mint {span(now - mints_until)} ago, longest ttl {span(longest)}, "
                f"skew {keyset.skew_seconds} s"
            )
            refusals.append(Refusal("gate-ttl", why, False))
    refusals += _operator_clock(keyset, step, now)
    return Assessment(standings, tuple(refusals), longest, mints_until, safe_at, to_record, attest, nobody)


def _present(standings: Iterable[Standing]) -> list[Standing]:
    return [s for s in standings if s.state not in ("farewell", "named", "gone")]


def _check_names(step: Step, known: set[str]) -> None:
    unknown = [instance for instance in step.allow_missing if instance not in known]
    if unknown:
        raise ConfigurationError(
            f"no instance is called {named(unknown)}",
            why="--allow-missing takes the id of an instance in the roster or with a report",
            next="mcpkeys status shows every instance's id",
        )


def _expected_nobody(keyset: Keyset) -> int | None:
    """When this rotation was begun with the word that no server runs."""
    rotation = keyset.rotation
    return rotation.steps[0].entered_at if rotation is not None and rotation.expect == 0 else None


def _count(keyset: Keyset, step: Step, standings: tuple[Standing, ...], present: list[Standing]) -> list[Refusal]:
    """`--expect N`: said now, it counts those that are there; said when the rotation began, also those named since."""
    if step.expect is not None:
        if step.expect == 0 and present:
            who = named(s.label or s.instance for s in present)
            return [Refusal("gate-contradiction", f"--expect 0 says that no server runs, but {who} reports", True)]
        expected, counted = step.expect, len(present)
    elif keyset.rotation is not None and keyset.rotation.expect and keyset.evidence == "reports":
        expected, counted = keyset.rotation.expect, sum(s.state != "farewell" for s in standings)
    else:
        return []
    if counted < expected:
        return [Refusal("gate-shrunken", f"{expected} instances are expected, there are {counted}", True)]
    return []


def _operator_clock(keyset: Keyset, step: Step, now: int) -> list[Refusal]:
    if step.operator_clock is None:
        return []
    off = to_ms(step.operator_clock) - now
    if abs(off) <= clock_tolerance(keyset) + to_ms(step.resolution):
        return []
    way = "ahead of" if off > 0 else "behind"
    why = f"this machine's clock is {span(abs(off))} {way} the store's, more than half of skew_seconds"
    return [Refusal("gate-clock", why, True)]


@dataclass(frozen=True, slots=True)
class _Judge:
    """Judges one instance at a time."""

    keyset: Keyset
    reports: Mapping[str, ReceivedReport]
    step: Step
    now: int
    gate: Gate
    words: Words
    roster: set[str]
    attesting: bool

    def standing(self, instance: str, rejected: str | None) -> Standing:
        received = self.reports.get(instance)
        if received is None:
            return self._without_report(instance, rejected)
        report, seen = received.report, to_ms(received.modified_at)
        until = self._minted(received)
        if report.state == "farewell":
            return Standing(instance, report.label, "farewell", received, None, until)
        confirms = self.gate.confirmed_by(report)
        silent = self.now - seen > silent_after(self.keyset)

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
        later = [r.report for r in self.reports.values() if r.report.generation >= report.generation]
        held = [entry.max_stale for entry in later if entry.state == "serving"]
        own = self.keyset.max_stale_seconds
        longest = 0
        for limit in [report.max_stale, None if own is None else own * 1000, *held]:
            if limit is None:
                return None
            longest = max(longest, limit)
        return self.gate.entered + longest

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
