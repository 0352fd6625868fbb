"""`plan`: whether a step of a rotation may be taken, and the document that takes it. Pure, no I/O.

    phase 0  [CUR*]           steady
    phase 1  [OLD*, NEW]      every instance learns to verify NEW; OLD mints
    phase 2  [NEW*, OLD]      NEW mints; OLD keeps verifying
    phase 3  [NEW*]           one ttl after phase 2 is fully out: OLD retired        (* mints)

How to use it without a race (docs/rotation-invariants.md says why):

1. gather the reports, **then** read the keyset (fresh), then the store's clock;
2. `plan(...)`; show it, ask, draw what `needs_key`, `needs_report_key`, `needs_rotation_id` name;
3. read and plan **again** right before the write (a person may have thought for minutes), `complete`, sign, and
   write by compare-and-swap on the version that was read. A plan older than half of skew_seconds is not written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mcpkeys.answers import (
    STATUS,
    command,
    confirmation,
    disbelieving,
    do,
    done,
    evidence,
    instances,
    out_of_order,
    overrides,
    refused,
    unsafe,
)
from mcpkeys.emergency import burn
from mcpkeys.encoding import to_ms
from mcpkeys.gates import assess
from mcpkeys.keyset import Ended, Keyset, Phase, Rotation, State, StepEvidence
from mcpkeys.preconditions import check_step, last_write, other_rotation, restored
from mcpkeys.reports import ReceivedReport
from mcpkeys.standing import NOBODY_RUNS, Gate, Words
from mcpkeys.steps import Blocking, Plan, Step, To, named, span
from mcpkeys.transitions import begun, complete, entered, present, stamp, succeed, with_present

__all__ = ["Blocking", "Plan", "Step", "complete", "gate_of", "plan"]


def plan(keyset: Keyset, reports: Iterable[ReceivedReport], step: Step, now: float) -> Plan:
    """Decide one step.

    Args:
        keyset: the stored document, verified, read after the reports were gathered.
        reports: every authentic report of this keyset.
        step: what the operator asks for.
        now: seconds since the epoch by the store's clock.

    Raises:
        ConfigurationError: what was asked for makes no sense: no such key or instance, a reason is missing.
    """
    received = {entry.report.instance: entry for entry in reports}
    at = to_ms(now)
    check_step(keyset, step)
    burns = step.to == "emergency"
    # A compromised server holds the report key and may claim any generation: it must not keep its own key alive by
    # that, so an emergency does without the word of those that the operator names.
    old = restored(keyset, {i: e for i, e in received.items() if not (burns and i in step.allow_missing)})
    if old is not None:
        return unsafe(step, "gate-restored", old[1], disbelieving(step, old[0]) if burns else "mcpkeys restore FILE")
    if burns:
        return burn(keyset, received, step, at)
    other = other_rotation(keyset, step)
    if other is not None:
        return other
    return _take(keyset, received, step, at)


def _take(keyset: Keyset, reports: Mapping[str, ReceivedReport], step: Step, now: int) -> Plan:
    if step.to == "auto":
        return _auto(keyset, reports, step, now)
    if step.to == 1:
        return _begin(keyset, reports, step, now)
    if step.to == 2:
        return _second(keyset, reports, step, now)
    if step.to == 3:
        return _third(keyset, reports, step, now)
    return _rollback(keyset, reports, step, now)


# --- the steps -----------------------------------------------------------------------------------------------


def gate_of(keyset: Keyset, to: To) -> Gate | None:
    """The gate before a step, or None where the step asks nothing of the fleet (or cannot be taken now)."""
    running = keyset.running
    verifying = frozenset(key.kid for key in keyset.live if key.state == "verifying")
    minting = keyset.minting
    if running is not None and running.phase == 1 and to == 2:
        return Gate("verifies", running.to_kid, frozenset(), running.steps[-1].entered_at)
    if running is not None and running.phase == "rolling_back" and to == "rollback":
        # An instance that still holds phase 1 mints OLD as well, but has not heard of the rollback.
        return Gate("mints", minting.kid, verifying, minting.state_since, _generation_since(keyset))
    if to == 3 and (running.phase == 2 if running is not None else bool(verifying)):
        return Gate("mints", minting.kid, verifying, minting.state_since)
    return None


def _generation_since(keyset: Keyset) -> int:
    """The generation in which the minting key began to mint, or the newest where history has forgotten it."""
    at = keyset.minting.state_since
    return max((entry.generation for entry in keyset.history if entry.at == at), default=keyset.generation)


def due(keyset: Keyset) -> To | None:
    """The step that continues what was begun, or None where nothing is open."""
    running = keyset.running
    if running is None:
        return 3 if len(keyset.live) > 1 else None
    if running.phase == "rolling_back":
        return "rollback"
    return 2 if running.phase == 1 else 3


def _begin(keyset: Keyset, reports: Mapping[str, ReceivedReport], step: Step, now: int) -> Plan:
    running = keyset.running
    if running is not None and running.phase == 1:
        return done(step, f"rotation {running.id} is in phase 1 already{last_write(keyset)}", command(2), running.id)
    if running is not None:
        return out_of_order(step, running)
    if step.rotation is not None and keyset.rotation is not None and keyset.rotation.id == step.rotation:
        return done(step, f"rotation {step.rotation} has been through phase 1 and has ended", STATUS)
    at = stamp(keyset, now)
    # A word on record holds until the instance reports again, or cron would stop at the same dead pod each month.
    words = Words.of(keyset, 0).missing
    stopped = {i for i, moment in words.items() if i in reports and to_ms(reports[i].modified_at) <= moment}
    roster = tuple(i for i in present(reports) if i not in stopped)
    void = step.expect == 0 and bool(roster)
    if void:
        step = replace(step, expect=None)
    rotation = begun(keyset, step, at, roster, tuple(sorted(stopped)))
    overrides = [NOBODY_RUNS] if step.expect == 0 else []
    document = succeed(
        keyset,
        step,
        at,
        f"phase 1 of rotation {rotation.id}: {rotation.to_kid} is to follow {rotation.from_kid}",
        overrides=overrides,
        fresh="verifying",
        rotation=rotation,
    )
    why = f"every instance learns to verify a new key; {rotation.from_kid} goes on minting; {instances(len(roster))}"
    if void:
        why += "; --expect 0 is void, since a report is live"
    return do(1, why, command(2), document)


def _second(keyset: Keyset, reports: Mapping[str, ReceivedReport], step: Step, now: int) -> Plan:
    running = keyset.running
    if running is not None and running.phase == 2:
        return done(step, f"rotation {running.id} is in phase 2 already{last_write(keyset)}", command(3), running.id)
    gate = gate_of(keyset, 2)
    if running is None or gate is None:
        return out_of_order(step, running)
    found = assess(keyset, reports, step, now, gate)
    refusal = refused(keyset, step, 2, found)
    if refusal is not None:
        return refusal
    at = stamp(keyset, now)
    document = succeed(
        keyset,
        step,
        at,
        f"phase 2 of rotation {running.id}: {running.to_kid} mints",
        overrides=overrides(found),
        states={running.to_kid: "minting", running.from_kid: "verifying"},
        rotation=entered(running, 2, at, evidence(found), roster=found.roster),
    )
    why = f"{running.to_kid} mints from now on, {running.from_kid} keeps verifying; {confirmation(found)}"
    return do(2, why, command(3), document)


def _third(keyset: Keyset, reports: Mapping[str, ReceivedReport], step: Step, now: int) -> Plan:
    rotation = keyset.rotation
    if keyset.running is None and rotation is not None and rotation.ended in ("done", "emergency") and not due(keyset):
        return done(step, f"rotation {rotation.id} is over and no key is left to retire", STATUS, rotation.id)
    gate = gate_of(keyset, 3)
    if rotation is None or gate is None:
        return out_of_order(step, keyset.running)
    return _retire(keyset, rotation, reports, step, now, gate)


def _retire(
    keyset: Keyset, rotation: Rotation, reports: Mapping[str, ReceivedReport], step: Step, now: int, gate: Gate
) -> Plan:
    """Retire what only verifies: the last step of a rotation, of a rollback, and after an emergency."""
    to: To = "rollback" if rotation.phase == "rolling_back" and rotation.ended is None else 3
    found = assess(keyset, reports, step, now, gate)
    refusal = refused(keyset, step, to, found)
    if refusal is not None and not (refusal.verdict == "not_yet" and found.to_record):
        return refusal
    at = stamp(keyset, now)
    leaving = named(sorted(gate.leaving))
    if refusal is not None:
        document = succeed(
            keyset,
            step,
            at,
            f"the operator's word on rotation {rotation.id}; the wait starts here",
            overrides=overrides(found),
            rotation=entered(rotation, rotation.phase, at, evidence(found), ended=rotation.ended),
        )
        why = f"your word is recorded and the wait starts now: {leaving} may have minted until this moment"
        return replace(
            do(to, why, refusal.next, document), completes=False, earliest=refusal.earliest, code=refusal.code
        )
    if rotation.ended is None:
        phase: Phase = "rolling_back" if to == "rollback" else 3
        ended: Ended = "rolled_back" if to == "rollback" else "done"
        after = entered(rotation, phase, at, evidence(found), roster=found.roster, ended=ended)
        what = f"rotation {rotation.id} is {'rolled back' if ended == 'rolled_back' else 'done'}: {leaving} retired"
    else:
        after = replace(entered(rotation, 3, at, evidence(found)), phase=rotation.phase, ended=rotation.ended)
        what = f"phase 3 after rotation {rotation.id} ended early: {leaving} retired"
    retired: dict[str, State] = dict.fromkeys(gate.leaving, "retired")
    document = succeed(keyset, step, at, what, overrides=overrides(found), states=retired, rotation=after)
    why = f"no token minted under {leaving} can be alive; {confirmation(found)}"
    return do(to, why, STATUS, document)


def _rollback(keyset: Keyset, reports: Mapping[str, ReceivedReport], step: Step, now: int) -> Plan:
    running = keyset.running
    if running is None:
        last = keyset.rotation
        if last is not None and last.ended == "rolled_back":
            return done(step, f"rotation {last.id} is rolled back", STATUS, last.id)
        return out_of_order(step, None)
    gate = gate_of(keyset, "rollback")
    if gate is not None:
        return _retire(keyset, running, reports, step, now, gate)
    at = stamp(keyset, now)
    if running.phase == 1:
        document = succeed(
            keyset,
            step,
            at,
            f"rotation {running.id} is rolled back from phase 1: {running.to_kid}, which nobody minted, is retired",
            states={running.to_kid: "retired"},
            rotation=entered(running, 1, at, StepEvidence("none"), ended="rolled_back"),
        )
        why = f"{running.to_kid} is dropped, nobody minted it; {running.from_kid} goes on as before"
        return do("rollback", why, STATUS, document)
    document = succeed(
        keyset,
        step,
        at,
        f"rotation {running.id} is being rolled back: {running.from_kid} mints again",
        states={running.from_kid: "minting", running.to_kid: "verifying"},
        rotation=entered(
            running, "rolling_back", at, StepEvidence("none"), roster=with_present(running.roster, reports)
        ),
    )
    why = (
        f"{running.from_kid} mints again, which every instance verifies; {running.to_kid} keeps verifying for one ttl "
        "and skew from its last mint, then a second --rollback retires it"
    )
    return do("rollback", why, command("rollback"), document)


def _auto(keyset: Keyset, reports: Mapping[str, ReceivedReport], step: Step, now: int) -> Plan:
    to = due(keyset)
    if to is not None:
        return _take(keyset, reports, replace(step, to=to), now)
    age = now - keyset.minting.created_at
    if step.max_age is not None and age >= step.max_age * 1000:
        return _take(keyset, reports, replace(step, to=1), now)
    why = f"nothing is due: {keyset.minting.kid} is {span(age)} old"
    at = None
    if step.max_age is not None:
        at = keyset.minting.created_at / 1000 + step.max_age
        why += f", the next rotation begins when it is {span(step.max_age * 1000)} old"
    return replace(done(step, why, STATUS), earliest=at)
