"""The answers a step may get: do, done, unsafe, not yet; and the evidence and overrides that a document records."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from mcpkeys.gates import Assessment
from mcpkeys.keyset import Keyset, Rotation, StepEvidence
from mcpkeys.standing import NOBODY_RUNS, StandingState
from mcpkeys.steps import Blocking, Plan, Step, To, named

FOLLOW = "mcpkeys status --watch"
STATUS = "mcpkeys status"
_HEARD: tuple[StandingState, ...] = ("confirmed", "lagging", "joining", "clock", "contradicting", "farewell")
_GONE = ("gate-silent", "gate-report-missing", "gate-report-rejected")


def unsafe(step: Step, code: str, why: str, then: str, rotation: str | None = None) -> Plan:
    """Something must be done first."""
    return Plan("unsafe", why, (), None, then, None, code, step.to, rotation)


def done(step: Step, why: str, then: str, rotation: str | None = None) -> Plan:
    """It is so already, or nothing is due."""
    return Plan("done", why, (), None, then, None, "done", step.to, rotation)


def do(to: To, why: str, then: str, document: Keyset) -> Plan:
    """Write this document."""
    rotation = document.rotation.id if document.rotation is not None else None
    return Plan("do", why, (), None, then, document, "do", to, rotation)


def out_of_order(step: Step, running: Rotation | None) -> Plan:
    """A step that is skipped or backwards."""
    if running is None:
        where, then = "no rotation is running", STATUS if step.to == "rollback" else command(1)
    elif running.phase == "rolling_back":
        where, then = f"rotation {running.id} is being rolled back", command("rollback")
    else:
        where, then = f"rotation {running.id} is in phase {running.phase}", command(2 if running.phase == 1 else 3)
    asked = "--rollback" if step.to == "rollback" else f"--phase {step.to}"
    why = f"{where}; {asked} is not the step that follows"
    return unsafe(step, "gate-order", why, then, running.id if running is not None else None)


def refused(keyset: Keyset, step: Step, to: To, found: Assessment) -> Plan | None:
    """The refusal that the fleet's state amounts to, or None. What cannot be waited out comes first."""
    blocking = found.blocking
    if not blocking and not found.refusals:
        return None
    reasons = [(refusal.code, refusal.why) for refusal in found.refusals if refusal.late]
    for late in (True, False):
        reasons += _grouped([entry for entry in blocking if entry.late is late])
    reasons += [(refusal.code, refusal.why) for refusal in found.refusals if not refusal.late]
    unsafe_now = any(entry.late for entry in blocking) or any(refusal.late for refusal in found.refusals)
    code = reasons[0][0]
    return Plan(
        verdict="unsafe" if unsafe_now else "not_yet",
        why="; ".join(why for _, why in reasons[:3]),
        blocking=blocking,
        earliest=found.safe_at / 1000,
        next=_then(step, to, code, blocking, heard=bool(found.ids(*_HEARD))),
        document=None,
        code=code,
        to=to,
        rotation=keyset.rotation.id if keyset.rotation is not None else None,
    )


def _grouped(blocking: list[Blocking]) -> list[tuple[str, str]]:
    groups: dict[str, list[Blocking]] = {}
    for entry in blocking:
        groups.setdefault(entry.code, []).append(entry)
    return [
        (code, f"{_many(alike)}{named(entry.label or entry.instance for entry in alike)}: {alike[0].why}")
        for code, alike in groups.items()
    ]


def _many(alike: list[Blocking]) -> str:
    return f"{len(alike)} instances, " if len(alike) > 1 else ""


def _then(step: Step, to: To, code: str, blocking: tuple[Blocking, ...], *, heard: bool) -> str:
    if code in _GONE and not heard:
        # Not one instance is heard of: the store, this machine's view of it or everything is down. Naming the whole
        # fleet as stopped is the last thing to try.
        return "mcpkeys doctor"
    stopped = {entry.instance for entry in blocking if entry.late and entry.code in (*_GONE, "gate-joining")}
    if stopped and code in (*_GONE, "gate-joining"):
        return naming(to, stopped | (set(step.allow_missing) if to == 2 else set()))
    if code == "gate-empty":
        return f"{command(to)} --expect 0"
    if code == "gate-attest":
        return f'{command(to)} --attest "deploy 4711 finished"'
    if code == "gate-clock":
        return "mcpkeys doctor"
    if code in ("gate-shrunken", "gate-contradiction", "gate-lagging", "gate-joining"):
        return FOLLOW
    # Phase 2 takes the operator's words with the step itself; later steps have put them on record.
    return _said_again(step) if to == 2 else command(to)


def _said_again(step: Step) -> str:
    """Phase 2 with the words that this attempt was given."""
    words = [naming(2, step.allow_missing)]
    if step.attest is not None:
        words.append(f"--attest {shlex.quote(step.attest)}")
    if step.expect is not None:
        words.append(f"--expect {step.expect}")
    return " ".join(words)


def command(to: To) -> str:
    """The command that takes this step."""
    return f"mcpkeys rotate --{to}" if isinstance(to, str) else f"mcpkeys rotate --phase {to}"


def naming(to: To, stopped: Iterable[str]) -> str:
    """The command that takes this step and names exactly these instances as stopped."""
    return " ".join([command(to), *(f"--allow-missing={shlex.quote(instance)}" for instance in sorted(stopped))])


def disbelieving(step: Step, instance: str) -> str:
    """What an operator does who has to burn a key while a report claims a document that is not stored."""
    words = ["mcpkeys rotate --emergency", f"--kid={step.kid}", f"--reason={shlex.quote(step.reason or '')}"]
    named = sorted({instance, *step.allow_missing})
    burn = " ".join([*words, *(f"--allow-missing={shlex.quote(entry)}" for entry in named)])
    return f"mcpkeys restore FILE, then this again; if a compromised server forged that report: {burn}"


def evidence(found: Assessment) -> StepEvidence:
    """On whose word a step is taken, for the document."""
    return StepEvidence(
        kind="attest" if found.attest else "reports",
        confirmed=found.ids("confirmed"),
        missing=found.ids("named"),
        proven_gone=found.ids("gone"),
        word=found.attest or (NOBODY_RUNS if found.nobody else ""),
    )


def overrides(found: Assessment) -> list[str]:
    """Which rules the operator's word stood in for, for the history."""
    words = [f"--allow-missing {instance}" for instance in found.ids("named")]
    if found.attest:
        words.append(f"--attest {found.attest}")
    return words + ([NOBODY_RUNS] if found.nobody else [])


def confirmation(found: Assessment) -> str:
    """Who carries the step, as half a sentence."""
    if found.attest:
        return f"on the operator's word: {found.attest}"
    if found.nobody:
        return "on the operator's word that no server runs"
    gone = found.ids("named", "gone")
    return f"{instances(len(found.ids('confirmed')))} confirmed" + (f", {len(gone)} are stopped" if gone else "")


def instances(n: int) -> str:
    """`1 instance`, `4 instances`."""
    return "1 instance" if n == 1 else f"{n} instances"
