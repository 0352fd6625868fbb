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

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace

from mcpkeys.encoding import to_ms
from mcpkeys.errors import ConfigurationError
from mcpkeys.gates import NOBODY_RUNS, Assessment, Gate, assess, silent_after
from mcpkeys.keyset import Keyset, ReportKey, Rotation, State, StepEvidence, digest
from mcpkeys.reports import ReceivedReport
from mcpkeys.steps import NEW_KID, REPORT_KID, Blocking, Plan, Step, To, named, span
from mcpkeys.transitions import begun, complete, entered, stamp, succeed

__all__ = ["Blocking", "Plan", "Step", "complete", "gate_of", "plan"]

_NEXT_STATUS = "mcpkeys status --watch"
_PHASE_WORDS = {1: "verified by all before it mints", 2: "NEW mints", 3: "OLD is retired"}


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
    _check_step(keyset, step)
    restored = _restored(keyset, received)
    if restored is not None:
        return _unsafe(step, "gate-restored", restored, "mcpkeys restore FILE")
    if step.to == "emergency":
        return _emergency(keyset, received, step, at)
    other = _other_rotation(keyset, step)
    if other is not None:
        return other
    if step.to == "auto":
        return _auto(keyset, received, step, at)
    if step.to == 1:
        return _begin(keyset, received, step, at)
    if step.to == 2:
        return _second(keyset, received, step, at)
    if step.to == 3:
        return _third(keyset, received, step, at)
    return _rollback(keyset, received, step, at)


# --- before any step -----------------------------------------------------------------------------------------


def _check_step(keyset: Keyset, step: Step) -> None:
    if step.to not in (1, 2, 3, "rollback", "emergency", "auto"):
        raise ConfigurationError(f"there is no step {step.to!r}", next="--phase 1, 2 or 3; --rollback; --emergency")
    if step.expect is not None and not 0 <= step.expect <= 1_000_000:
        raise ConfigurationError("--expect takes a number of instances", next="--expect 4")
    if step.attest is not None and not step.attest.strip():
        raise ConfigurationError("--attest is empty", next='--attest "deploy 4711 finished"')
    if step.to != "emergency":
        return
    if not step.kid:
        raise ConfigurationError("--emergency burns one key, and none is named", next="add --kid K (mcpkeys status)")
    if keyset.key(step.kid) is None:
        kids = ", ".join(key.kid for key in keyset.live)
        raise ConfigurationError(
            f"this keyset has no key {step.kid[:64]!r}", why=f"its live keys are {kids}", next="mcpkeys status"
        )
    if not (step.reason or "").strip():
        raise ConfigurationError("an emergency has a reason", next="add --reason R; it is kept in the history")


def _restored(keyset: Keyset, reports: Mapping[str, ReceivedReport]) -> str | None:
    """Why this document is an old one put back, or None."""
    newest = max((entry.report for entry in reports.values()), key=lambda report: report.generation, default=None)
    if newest is not None and newest.generation > keyset.generation:
        return (
            f"the stored keyset is generation {keyset.generation}, but {newest.label or newest.instance} holds "
            f"{newest.generation}: a backup was restored"
        )
    own = digest(keyset)
    for entry in reports.values():
        report = entry.report
        if report.generation == keyset.generation and report.digest and report.digest != own:
            return (
                f"{report.label or report.instance} holds another document of generation {keyset.generation}: "
                "a backup was restored and written on"
            )
    return None


def _other_rotation(keyset: Keyset, step: Step) -> Plan | None:
    if step.rotation is None:
        return None
    current = keyset.rotation
    if current is not None and current.id == step.rotation:
        return None
    if step.to == 1 and keyset.running is None:
        return None
    last = keyset.history[-1] if keyset.history else None
    who = f" ({last.who}: {last.what})" if last is not None else ""
    running = f"rotation {current.id}{who} is there instead" if current is not None else "there is none"
    why = f"the step names rotation {step.rotation}, but {running}"
    return _unsafe(step, "gate-other-rotation", why, "mcpkeys status")


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
        return _done(step, f"rotation {running.id} is in phase 1 already", "mcpkeys rotate --phase 2", running.id)
    if running is not None:
        return _order(step, running)
    if step.rotation is not None and keyset.rotation is not None and keyset.rotation.id == step.rotation:
        return _done(step, f"rotation {step.rotation} has been through phase 1 and has ended", "mcpkeys status")
    at = stamp(keyset, now)
    roster = tuple(sorted(id for id, entry in reports.items() if entry.report.state != "farewell"))
    rotation = begun(keyset, step, at, roster)
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
    why = f"every instance learns to verify a new key; {rotation.from_kid} goes on minting; {_count(len(roster))}"
    return _do(step, 1, why, "mcpkeys rotate --phase 2", document)


def _second(keyset: Keyset, reports: Mapping[str, ReceivedReport], step: Step, now: int) -> Plan:
    running = keyset.running
    if running is not None and running.phase == 2:
        return _done(step, f"rotation {running.id} is in phase 2 already", "mcpkeys rotate --phase 3", running.id)
    gate = gate_of(keyset, 2)
    if running is None or gate is None:
        return _order(step, running)
    found = assess(keyset, reports, step, now, gate)
    refused = _refused(keyset, step, 2, found)
    if refused is not None:
        return refused
    at = stamp(keyset, now)
    document = succeed(
        keyset,
        step,
        at,
        f"phase 2 of rotation {running.id}: {running.to_kid} mints",
        overrides=_overrides(found),
        states={running.to_kid: "minting", running.from_kid: "verifying"},
        rotation=entered(running, 2, at, _evidence(found), roster=found.roster),
    )
    why = f"{running.to_kid} mints from now on, {running.from_kid} keeps verifying; {_confirmed(found)}"
    return _do(step, 2, why, "mcpkeys rotate --phase 3", document)


def _third(keyset: Keyset, reports: Mapping[str, ReceivedReport], step: Step, now: int) -> Plan:
    rotation = keyset.rotation
    if keyset.running is None and rotation is not None and rotation.ended in ("done", "emergency") and not due(keyset):
        return _done(
            step, f"rotation {rotation.id} is over and no key is left to retire", "mcpkeys status", rotation.id
        )
    gate = gate_of(keyset, 3)
    if rotation is None or gate is None:
        return _order(step, keyset.running)
    return _retire(keyset, rotation, reports, step, now, gate)


def _retire(
    keyset: Keyset, rotation: Rotation, reports: Mapping[str, ReceivedReport], step: Step, now: int, gate: Gate
) -> Plan:
    """Retire what only verifies: the last step of a rotation, of a rollback, and after an emergency."""
    to: To = "rollback" if rotation.phase == "rolling_back" and rotation.ended is None else 3
    found = assess(keyset, reports, step, now, gate)
    refused = _refused(keyset, step, to, found)
    if refused is not None and not (refused.verdict == "not_yet" and found.to_record):
        return refused
    at = stamp(keyset, now)
    leaving = named(sorted(gate.leaving))
    if refused is not None:
        document = succeed(
            keyset,
            step,
            at,
            f"the operator's word on rotation {rotation.id}; the wait starts here",
            overrides=_overrides(found),
            rotation=entered(rotation, rotation.phase, at, _evidence(found), ended=rotation.ended),
        )
        why = f"your word is recorded and the wait starts now: {leaving} may have minted until this moment"
        return replace(
            _do(step, to, why, refused.next, document), completes=False, earliest=refused.earliest, code=refused.code
        )
    if rotation.ended is None:
        ended = "rolled_back" if to == "rollback" else "done"
        after = entered(
            rotation,
            "rolling_back" if to == "rollback" else 3,
            at,
            _evidence(found),
            roster=found.roster,
            ended="rolled_back" if to == "rollback" else "done",
        )
        what = f"rotation {rotation.id} {'is rolled back' if ended == 'rolled_back' else 'is done'}: {leaving} retired"
    else:
        after = replace(entered(rotation, 3, at, _evidence(found)), phase=rotation.phase, ended=rotation.ended)
        what = f"phase 3 after rotation {rotation.id} ended early: {leaving} retired"
    retired: dict[str, State] = dict.fromkeys(gate.leaving, "retired")
    document = succeed(keyset, step, at, what, overrides=_overrides(found), states=retired, rotation=after)
    why = f"no token minted under {leaving} can be alive; {_confirmed(found)}"
    return _do(step, to, why, "mcpkeys status", document)


def _rollback(keyset: Keyset, reports: Mapping[str, ReceivedReport], step: Step, now: int) -> Plan:
    running = keyset.running
    if running is None:
        last = keyset.rotation
        if last is not None and last.ended == "rolled_back":
            return _done(step, f"rotation {last.id} is rolled back", "mcpkeys status", last.id)
        return _order(step, None)
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
        return _do(step, "rollback", why, "mcpkeys status", document)
    roster = tuple(sorted(id for id, entry in reports.items() if entry.report.state != "farewell"))
    document = succeed(
        keyset,
        step,
        at,
        f"rotation {running.id} is being rolled back: {running.from_kid} mints again",
        states={running.from_kid: "minting", running.to_kid: "verifying"},
        rotation=entered(running, "rolling_back", at, StepEvidence("none"), roster=_joined(running.roster, roster)),
    )
    why = (
        f"{running.from_kid} mints again, which every instance verifies; {running.to_kid} keeps verifying for one ttl "
        "and skew from its last mint, then a second --rollback retires it"
    )
    return _do(step, "rollback", why, "mcpkeys rotate --rollback", document)


def _emergency(keyset: Keyset, reports: Mapping[str, ReceivedReport], step: Step, now: int) -> Plan:
    key = keyset.key(step.kid or "")
    assert key is not None
    if key.state == "retired":
        return _done(step, f"{key.kid} is retired already; no instance that has refreshed accepts it", _NEXT_STATUS)
    at = stamp(keyset, now)
    running = keyset.running
    states: dict[str, State] = {key.kid: "retired"}
    burns_minter = key.state == "minting"
    if burns_minter and running is not None and running.phase == 1:
        # Not every instance verifies NEW yet, and nobody minted it: it is dropped as by a rollback.
        states[running.to_kid] = "retired"
    rotation = keyset.rotation
    # Only of who is silent: a later report voids the word, an earlier one may contradict it.
    silent = {id for id, entry in reports.items() if now - to_ms(entry.modified_at) > silent_after(keyset)}
    stopped = tuple(id for id in step.allow_missing if id not in reports or id in silent)
    if rotation is not None:
        here = tuple(sorted(id for id, entry in reports.items() if entry.report.state != "farewell"))
        ended = "emergency" if running is not None else rotation.ended
        rotation = replace(
            entered(rotation, rotation.phase, at, StepEvidence("none", missing=stopped, word=f"{key.kid} is burnt")),
            ended=ended,
            roster=_joined(rotation.roster, here),
        )
    document = succeed(
        keyset,
        step,
        at,
        f"emergency: {key.kid} is burnt" + (f", {NEW_KID} mints" if burns_minter else ""),
        overrides=[f"--allow-missing {instance}" for instance in stopped],
        states=states,
        fresh="minting" if burns_minter else None,
        rotation=rotation,
        report_key=ReportKey(REPORT_KID, ()),
    )
    left = [entry.kid for entry in document.live if entry.state == "verifying"]
    why = f"{key.kid} verifies nowhere once an instance has refreshed; rounds in flight under it are refused. "
    if burns_minter:
        why += (
            "A fresh key mints at once: for one refresh interval its rounds may be refused by instances that have "
            "not refreshed. "
        )
    else:
        why += f"{keyset.minting.kid} goes on minting. "
    if left:
        why += f"{named(left)} keeps verifying and waits for --phase 3."
    accepting = sorted(
        id for id, entry in reports.items() if key.kid in entry.report.verifies and entry.report.state != "farewell"
    )
    return replace(_do(step, "emergency", why.strip(), _NEXT_STATUS, document), still_accepting=tuple(accepting))


def _auto(keyset: Keyset, reports: Mapping[str, ReceivedReport], step: Step, now: int) -> Plan:
    to = due(keyset)
    if to is not None:
        return plan(keyset, reports.values(), replace(step, to=to), now / 1000)
    age = now - keyset.minting.created_at
    if step.max_age is not None and age >= step.max_age * 1000:
        return plan(keyset, reports.values(), replace(step, to=1), now / 1000)
    why = f"nothing is due: {keyset.minting.kid} is {span(age)} old"
    at = None
    if step.max_age is not None:
        at = keyset.minting.created_at / 1000 + step.max_age
        why += f", the next rotation begins when it is {span(step.max_age * 1000)} old"
    return replace(_done(step, why, "mcpkeys status"), earliest=at)


# --- answers -------------------------------------------------------------------------------------------------


def _refused(keyset: Keyset, step: Step, to: To, found: Assessment) -> Plan | None:
    """The refusal that the fleet's state amounts to, or None. What cannot be waited out comes first."""
    blocking = found.blocking
    if not blocking and not found.refusals:
        return None
    late = [entry for entry in blocking if entry.late]
    never = [refusal for refusal in found.refusals if refusal.late]
    reasons: list[tuple[str, str]] = [(refusal.code, refusal.why) for refusal in never]
    for entries in (late, [entry for entry in blocking if not entry.late]):
        for code in dict.fromkeys(entry.code for entry in entries):
            alike = [entry for entry in entries if entry.code == code]
            who = named(entry.label or entry.instance for entry in alike)
            reasons.append(
                (
                    code,
                    f"{who}: {alike[0].why}" if len(alike) == 1 else f"{len(alike)} instances, {who}: {alike[0].why}",
                )
            )
    reasons += [(refusal.code, refusal.why) for refusal in found.refusals if not refusal.late]
    unsafe = bool(late or never)
    code = reasons[0][0]
    return Plan(
        verdict="unsafe" if unsafe else "not_yet",
        why="; ".join(why for _, why in reasons[:3]),
        blocking=blocking,
        earliest=found.safe_at / 1000,
        next=_next(keyset, step, to, code, blocking),
        document=None,
        code=code,
        to=to,
        rotation=keyset.rotation.id if keyset.rotation is not None else None,
    )


def _next(keyset: Keyset, step: Step, to: To, code: str, blocking: tuple[Blocking, ...]) -> str:
    command = _command(to)
    if code in ("gate-silent", "gate-report-missing", "gate-report-rejected"):
        stopped = [
            b.instance for b in blocking if b.code in ("gate-silent", "gate-report-missing", "gate-report-rejected")
        ]
        stopped += [b.instance for b in blocking if b.code == "gate-joining" and b.late]
        return " ".join([command, *(f"--allow-missing {shlex.quote(instance)}" for instance in sorted(stopped))])
    if code == "gate-joining" and any(b.late for b in blocking if b.code == code):
        stopped = [b.instance for b in blocking if b.code == code and b.late]
        return " ".join([command, *(f"--allow-missing {shlex.quote(instance)}" for instance in sorted(stopped))])
    if code == "gate-empty":
        return f"{command} --expect 0"
    if code == "gate-attest":
        return f'{command} --attest "deploy 4711 finished"'
    if code == "gate-clock":
        return "mcpkeys doctor"
    if code in ("gate-shrunken", "gate-contradiction", "gate-lagging", "gate-joining"):
        return _NEXT_STATUS
    # Phase 2 takes names with the step itself; later steps have put them on record.
    if step.allow_missing and to == 2:
        return " ".join([command, *(f"--allow-missing {shlex.quote(instance)}" for instance in step.allow_missing)])
    return command


def _command(to: To) -> str:
    return f"mcpkeys rotate --{to}" if isinstance(to, str) else f"mcpkeys rotate --phase {to}"


def _order(step: Step, running: Rotation | None) -> Plan:
    if running is None:
        where, following = "no rotation is running", "mcpkeys rotate --phase 1"
        if step.to == "rollback":
            following = "mcpkeys status"
    elif running.phase == "rolling_back":
        where, following = f"rotation {running.id} is being rolled back", "mcpkeys rotate --rollback"
    else:
        where = f"rotation {running.id} is in phase {running.phase}"
        following = f"mcpkeys rotate --phase {2 if running.phase == 1 else 3}"
    asked = "--rollback" if step.to == "rollback" else f"--phase {step.to}"
    why = f"{where}; {asked} is not the step that follows"
    return _unsafe(step, "gate-order", why, following, running.id if running is not None else None)


def _unsafe(step: Step, code: str, why: str, following: str, rotation: str | None = None) -> Plan:
    return Plan("unsafe", why, (), None, following, None, code, step.to, rotation)


def _done(step: Step, why: str, following: str, rotation: str | None = None) -> Plan:
    return Plan("done", why, (), None, following, None, "done", step.to, rotation)


def _do(step: Step, to: To, why: str, following: str, document: Keyset) -> Plan:
    rotation = document.rotation.id if document.rotation is not None else None
    return Plan("do", why, (), None, following, document, "do", to, rotation)


def _evidence(found: Assessment) -> StepEvidence:
    return StepEvidence(
        kind="attest" if found.attest else "reports",
        confirmed=found.ids("confirmed"),
        missing=found.ids("named"),
        proven_gone=found.ids("gone"),
        word=found.attest or (NOBODY_RUNS if found.nobody else ""),
    )


def _overrides(found: Assessment) -> list[str]:
    words = [f"--allow-missing {instance}" for instance in found.ids("named")]
    if found.attest:
        words.append(f"--attest {found.attest}")
    return words + ([NOBODY_RUNS] if found.nobody else [])


def _confirmed(found: Assessment) -> str:
    if found.attest:
        return f"on the operator's word: {found.attest}"
    if found.nobody:
        return "on the operator's word that no server runs"
    gone = found.ids("named", "gone")
    return f"{_count(len(found.ids('confirmed')))} confirmed" + (f", {len(gone)} are stopped" if gone else "")


def _count(n: int) -> str:
    return "1 instance" if n == 1 else f"{n} instances"


def _joined(roster: tuple[str, ...], here: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(roster) | set(here)))
