"""`describe`: the fleet as an operator wants to see it, judged by the very code that decides the next step. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from mcpkeys.encoding import to_ms
from mcpkeys.gates import assess, longest_ttl
from mcpkeys.keyset import Ended, Keyset, Phase, State
from mcpkeys.reports import ReceivedReport
from mcpkeys.rotation import due, gate_of, plan
from mcpkeys.standing import Gate, Standing, StandingState
from mcpkeys.steps import Blocking, Plan, Step

InstanceState = Literal[
    "serving", "lagging", "joining", "silent", "missing", "unreadable", "clock", "contradicting", "farewell",
    "named", "gone",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class KeyView:
    """One key as the fleet uses it.

    Attributes:
        created_at, state_since: milliseconds.
        last_mint, last_unseal: the latest that any report tells (milliseconds of that instance's clock), or None.
        unsealing: how many instances unsealed a token of it within the longest ttl: who still has rounds riding on it.
        alive_until: when the last token that a report tells of expires at the latest, or None.
    """

    kid: str
    state: State
    created_at: int
    state_since: int
    last_mint: int | None
    last_unseal: int | None
    unsealing: int
    alive_until: int | None


@dataclass(frozen=True, slots=True)
class InstanceView:
    """One instance.

    Attributes:
        state: `serving` is all well. `named`: an operator said that it is stopped. `gone`: max_stale proves it.
        generation: what it holds; None where no report can be believed. `lag`: generations behind, or None.
        last_seen: seconds by the store's clock, or None.
        confirms: it does what the next step asks of it.
        accepts_retired: retired keys that its last report still verifies.
        clock_off: seconds that its clock seemed ahead of the store's when it last reported, or None.
        why: what is wrong, or empty.
    """

    id: str
    label: str
    state: InstanceState
    generation: int | None
    lag: int | None
    verifies: tuple[str, ...]
    mints: str | None
    last_seen: float | None
    confirms: bool
    accepts_retired: tuple[str, ...]
    clock_off: float | None
    why: str

    @property
    def counts(self) -> bool:
        """Whether the fleet includes it: neither withdrawn, named as stopped nor proven gone."""
        return self.state not in ("farewell", "named", "gone")


@dataclass(frozen=True, slots=True)
class FleetView:
    """The whole of `mcpkeys status`.

    Attributes:
        phase: 0 while no rotation runs. `ended`: how the last rotation ended, None while one runs or none was.
        phase_since: seconds.
        due: the plan of the step that comes next, for what it waits, its earliest time and its command.
    """

    generation: int
    phase: Phase | Literal[0]
    ended: Ended | None
    rotation: str | None
    from_kid: str | None
    to_kid: str | None
    phase_since: float
    keys: tuple[KeyView, ...]
    instances: tuple[InstanceView, ...]
    due: Plan

    @property
    def waiting_for(self) -> tuple[Blocking, ...]:
        """Who is in the way of the next step."""
        return self.due.blocking

    @property
    def earliest(self) -> float | None:
        """Seconds before which the next step cannot be safe, or None."""
        return self.due.earliest

    @property
    def next(self) -> str:
        """The exact next command."""
        return self.due.next

    @property
    def behind(self) -> tuple[InstanceView, ...]:
        """Who is not known to hold the stored generation: the last write is out once this is empty."""
        return tuple(view for view in self.instances if view.counts and (view.lag != 0 or view.state == "joining"))


def describe(
    keyset: Keyset,
    reports: Iterable[ReceivedReport],
    now: float,
    *,
    rejected: tuple[tuple[str, str], ...] = (),
    operator_clock: float | None = None,
    resolution: float = 0.0,
    max_age: float | None = 0.0,
) -> FleetView:
    """The fleet at `now` (seconds by the store's clock). Arguments as `Step` has them.

    With `max_age` None the next step of a steady keyset is "nothing is due"; 0 shows phase 1 as the next command.
    """
    received = tuple(reports)
    by_id = {entry.report.instance: entry for entry in received}
    step = Step(
        "auto", rejected=rejected, operator_clock=operator_clock, resolution=resolution, max_age=max_age
    )  # never writes: the document of this plan is dropped
    answer = plan(keyset, received, step, now)
    if answer.verdict == "do" and answer.to == 1:
        # Nothing has to be done: rotating is what could be done next.
        answer = replace(answer, verdict="done", why="steady", next="mcpkeys rotate --phase 1")
    elif answer.verdict == "do":
        command = f"--{answer.to}" if isinstance(answer.to, str) else f"--phase {answer.to}"
        answer = replace(answer, next=f"mcpkeys rotate {command}")
    at = to_ms(now)
    open_step = due(keyset)
    gate = gate_of(keyset, open_step) if open_step is not None else None
    if gate is not None:
        found = assess(keyset, by_id, step, at, gate)
    else:
        # Steady: nobody is waited for, so a roster of the past counts no more; who was named as stopped still is.
        gate = Gate("mints", keyset.minting.kid, frozenset(), keyset.minting.state_since)
        last = keyset.rotation
        past = None if last is None else replace(last, roster=(), expect=None)
        found = assess(replace(keyset, rotation=past), by_id, step, at, gate)
    instances = tuple(_instance(keyset, gate, standing) for standing in found.standings)
    troubled = [view for view in instances if view.counts and view.state not in ("serving", "joining")]
    if answer.why == "steady" and troubled:
        # A rotation is not what a fleet in trouble wants next, and somebody tired would paste it.
        first = troubled[0].label or troubled[0].id
        answer = replace(answer, next=f"mcpkeys doctor --as-server, on {first}: {troubled[0].why or troubled[0].state}")
    running, last = keyset.running, keyset.rotation
    since = running.steps[-1].entered_at if running is not None else keyset.minting.state_since
    if running is not None:
        since = next(s.entered_at for s in running.steps if s.phase == running.phase)
    elif last is not None:
        since = last.steps[-1].entered_at
    return FleetView(
        generation=keyset.generation,
        phase=running.phase if running is not None else 0,
        ended=last.ended if last is not None else None,
        rotation=last.id if last is not None else None,
        from_kid=last.from_kid if last is not None else None,
        to_kid=last.to_kid if last is not None else None,
        phase_since=since / 1000,
        keys=_keys(keyset, by_id, at),
        instances=instances,
        due=replace(answer, document=None),
    )


def _instance(keyset: Keyset, gate: Gate, standing: Standing) -> InstanceView:
    why = standing.blocking.why if standing.blocking is not None else ""
    if standing.received is None:
        return InstanceView(
            standing.instance, standing.label, _state(standing.state), None, None, (), None, None, False, (), None, why
        )
    report = standing.received.report
    return InstanceView(
        id=report.instance,
        label=report.label,
        state=_state(standing.state),
        generation=report.generation,
        lag=keyset.generation - report.generation,
        verifies=report.verifies,
        mints=report.mints,
        last_seen=standing.received.modified_at,
        confirms=gate.confirmed_by(report),
        accepts_retired=tuple(kid for kid in report.verifies if kid in keyset.retired),
        clock_off=report.clock / 1000 - standing.received.modified_at,
        why=why,
    )


def _state(state: StandingState) -> InstanceState:
    return "serving" if state == "confirmed" else state


def _keys(keyset: Keyset, reports: dict[str, ReceivedReport], now: int) -> tuple[KeyView, ...]:
    longest = longest_ttl(keyset, reports)
    views = []
    for key in keyset.keys:
        minted = [e.report.last_mint[key.kid] for e in reports.values() if key.kid in e.report.last_mint]
        unsealed = [e.report.last_unseal[key.kid] for e in reports.values() if key.kid in e.report.last_unseal]
        last = max(minted, default=None)
        views.append(
            KeyView(
                kid=key.kid,
                state=key.state,
                created_at=key.created_at,
                state_since=key.state_since,
                last_mint=last,
                last_unseal=max(unsealed, default=None),
                unsealing=sum(moment > now - longest for moment in unsealed),
                alive_until=None if last is None else last + longest + keyset.skew_seconds * 1000,
            )
        )
    return tuple(views)
