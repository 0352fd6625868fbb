"""What a fleet as a whole says to a step: who is in the way, and until when a leaving key may have been minted. Pure.

`assess` answers for a gate; `rotation.plan` decides by it and `fleet.describe` shows it, so that the two cannot
disagree. docs/rotation-invariants.md says why each rule is needed. Times are integer milliseconds by the store's
clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mcpkeys.encoding import to_ms
from mcpkeys.errors import ConfigurationError
from mcpkeys.keyset import Keyset
from mcpkeys.reports import ReceivedReport
from mcpkeys.standing import (
    Gate,
    Judge,
    Standing,
    StandingState,
    Words,
    clock_tolerance,
    held_max_stale,
)
from mcpkeys.steps import Blocking, Step, named, span

PHASE_REFRESHES = 3


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
    judge = Judge(keyset, reports, step, now, gate, words, roster, attesting, held_max_stale(reports.values()))
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
