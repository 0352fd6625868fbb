"""What `mcpkeys rotate` answers: the plan, what was written, how far it is out; and what an emergency leaves to do."""

from __future__ import annotations

import shlex
from typing import Any

from mcpkeys.encoding import format_ms, to_ms
from mcpkeys.keyset import Keyset
from mcpkeys.stepping import Observed
from mcpkeys.steps import NEW_KID, ROTATION_ID, Plan
from mcpkeys_cli.output import Answer, duration, escape, moment, table
from mcpkeys_cli.patience import RollOut, behind_text, plan_text

MOST_ROWS = 20


def answer(
    plan: Plan,
    observed: Observed,
    written: Keyset | None,
    *,
    dry: bool = False,
    out: RollOut | None = None,
    kid: str | None = None,
    reason: str | None = None,
) -> Answer:
    """The answer to one step.

    Args:
        observed: what the plan was made from.
        written: the keyset that was written, or None.
        out: how far it is out, where that was looked at.
        kid, reason: of an emergency.
    """
    keyset = written or observed.stored.keyset
    # A dry run tells of the rotation that would be there; ids that are drawn with the write are null.
    would_be = plan.document if dry else None
    current = (would_be or keyset).rotation
    data: dict[str, Any] = {
        "step": plan.to,
        "verdict": plan.verdict,
        "code": plan.code,
        "why": plan.why,
        "rotation": _drawn(current.id if current is not None else plan.rotation),
        "from": current.from_kid if current is not None else None,
        "to": _drawn(current.to_kid if current is not None else None),
        "blocking": [
            {"instance": entry.instance, "label": entry.label, "why": entry.why, "code": entry.code}
            for entry in plan.blocking
        ],
        "earliest": None if plan.earliest is None else format_ms(to_ms(plan.earliest)),
        "generation": keyset.generation,
        "dry_run": dry,
        "written": written is not None,
        "rolled_out": None if out is None else out.complete,
        "behind": [] if out is None else [entry.id for entry in out.behind],
    }
    if plan.to == "emergency":
        data |= _emergency_data(plan, keyset, kid, out, generation=(would_be or keyset).generation)
    exit_code, why, code, following = plan.exit_code, plan.why, plan.code, plan.next
    message = _refusal(plan)
    if dry and plan.verdict == "do":
        exit_code = 0
    if exit_code == 0 and out is not None and not out.complete:
        exit_code, code = 6, "roll-out"
        message = f"generation {keyset.generation} is written, but not everyone is known to hold it"
        why = out.why or f"not known of {len(out.behind)} of {out.of} instances"
        following = _after(plan, out, kid, reason)
    return Answer(
        "rotate",
        data=data,
        text=_text(plan, observed, written, dry=dry, out=out, kid=kid),
        next=following,
        exit=exit_code,
        code=code,
        message=message,
        why=why,
    )


def _drawn(id: str | None) -> str | None:
    """An id, or None for one that is drawn only when the document is written."""
    return None if id in (NEW_KID, ROTATION_ID) else id


def _refusal(plan: Plan) -> str:
    step = {"auto": "the step that is due", "rollback": "the rollback", "emergency": "the emergency"}
    name = f"phase {plan.to}" if isinstance(plan.to, int) else step[plan.to]
    if plan.verdict == "unsafe":
        return f"{name} is refused, nothing was changed: something must be done first"
    if not plan.completes:
        return f"{name} is not taken yet: your word is recorded, and the wait has begun"
    return f"{name} is not safe yet, nothing was changed: only time is missing"


def _after(plan: Plan, out: RollOut, kid: str | None, reason: str | None) -> str:
    """What to do about those that are behind."""
    silent = [entry.id for entry in out.behind if entry.state in ("silent", "missing", "unreadable")]
    if plan.to != "emergency":
        return out.next if silent and "--allow-missing" in out.next else "mcpkeys status --watch"
    words = ["mcpkeys", "rotate", "--emergency", "--kid", kid or "", "--reason", reason or "", "--yes"]
    # Restarted, they confirm and the command says so; stopped for good, they have to be named.
    return shlex.join([*words, *(f"--allow-missing={instance}" for instance in silent)])


def _emergency_data(
    plan: Plan, keyset: Keyset, kid: str | None, out: RollOut | None, *, generation: int
) -> dict[str, Any]:
    return {
        "still_accepting": list(plan.still_accepting) if out is None else [entry.id for entry in out.behind],
        "withdrawn": [] if out is None else [entry.id for entry in out.withdrawn],
        "exposure_seconds": keyset.max_stale_seconds,
        "min_generation": generation,
        "revoke": [
            f"{kek}: whoever can unwrap there can open kid {kid} from a copy of the document"
            for kek in _wrapped_by(keyset, kid)
        ],
    }


def _text(
    plan: Plan, observed: Observed, written: Keyset | None, *, dry: bool, out: RollOut | None, kid: str | None
) -> str:
    """What a person reads on stdout; a refusal's reason is told as the error."""
    lines: list[str] = []
    if dry and plan.verdict == "do":
        lines.append(plan_text(plan, observed))
        if plan.to == "emergency":
            lines.append(f"accepting it now, as last reported: {len(plan.still_accepting)} instances")
        lines.append("\nnothing was written (--dry-run)")
    elif plan.verdict in ("do", "done") and plan.completes:
        lines.append(f"{'done' if written is not None else 'nothing to do'}: {escape(plan.why)}")
    if plan.blocking:
        rows = [(entry.instance or "-", entry.label or "-", entry.why) for entry in plan.blocking[:MOST_ROWS]]
        lines.append(table(("INSTANCE", "LABEL", "WHY"), rows))
        if len(plan.blocking) > MOST_ROWS:
            lines.append(f"... and {len(plan.blocking) - MOST_ROWS} more (--output json has all)")
    if plan.earliest is not None and plan.verdict == "not_yet":
        lines.append(f"earliest: {moment(to_ms(plan.earliest), observed.now)}")
    if out is not None:
        lines += behind_text(out, observed.now)
    if plan.to == "emergency" and not dry:
        lines += _emergency_text(written or observed.stored.keyset, kid, out)
    return "\n".join(lines)


def _emergency_text(keyset: Keyset, kid: str | None, out: RollOut | None) -> list[str]:
    lines: list[str] = []
    if out is not None and not out.of and not out.why:
        lines.append(f"nobody reports, so nobody confirms: restart every server, or it may accept {kid}")
    elif out is not None and out.complete:
        lines.append(f"out: no instance accepts {kid} any more")
    else:
        cut_off = "for ever" if keyset.max_stale_seconds is None else f"for {duration(keyset.max_stale_seconds)}"
        lines += [
            f"NOT OUT: each of them may accept {kid} until it refreshes (every {duration(keyset.refresh_seconds)}) or "
            f"restarts; one that is cut off from the store, {cut_off}",
            f"restart what does not confirm, with MCPKEYS_MIN_GENERATION={keyset.generation} in its environment",
        ]
    keks = _wrapped_by(keyset, kid)
    lines.append(
        f"set MCPKEYS_MIN_GENERATION={keyset.generation} for every server: an old copy of the keyset is refused then"
    )
    lines.append("revoke in the KMS: the decrypt right of whoever the key leaked to" + (", on:" if keks else ""))
    return lines + [f"  {kek}" for kek in keks]


def _wrapped_by(keyset: Keyset, kid: str | None) -> list[str]:
    burnt = keyset.key(kid or "")
    return [] if burnt is None else sorted({wrap.kek for wrap in burnt.wrapped})
