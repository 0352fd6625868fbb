"""`mcpkeys rotate`: one step of a rotation, or the steps that are due, or why not."""

from __future__ import annotations

import time
from typing import Any

import click

from mcpkeys.authoring import Author, whoami
from mcpkeys.encoding import format_ms, to_ms
from mcpkeys.errors import SettingError
from mcpkeys.keyset import Keyset
from mcpkeys.stepping import Observed, Taken, observe, take
from mcpkeys.steps import Plan, Step, To
from mcpkeys_cli.options import DURATION, author_of, confirm, keyset_options, output_option
from mcpkeys_cli.output import Answer, duration, escape, moment, note, paint, table

EPILOG = """Examples:

\b
  mcpkeys rotate --phase 1                     every instance learns to verify NEW
  mcpkeys rotate --phase 2 --wait 10m          NEW mints, once all verify it; follow the fleet
  mcpkeys rotate --phase 3 --wait 30m          OLD is retired, once nothing rides on it
  mcpkeys rotate --auto --once --yes --max-age 30d      from cron: 0 done, 6 not yet, 5 look at it
  mcpkeys rotate --emergency --kid K --reason "leaked in a core dump"
"""
POLL_SECONDS = 1.0


@click.command("rotate", epilog=EPILOG)
@click.option("--phase", type=click.IntRange(1, 3), help="The phase to enter.")
@click.option("--auto", "auto", is_flag=True, help="The steps that are due, one after the other.")
@click.option("--once", is_flag=True, help="With --auto: at most one step, never wait. Made for cron.")
@click.option("--max-age", type=DURATION, default="30d", show_default=True, help="With --auto: replace an older key.")
@click.option("--rollback", is_flag=True, help="One step back.")
@click.option("--emergency", is_flag=True, help="Burn the key --kid at once; needs --reason.")
@click.option("--kid", metavar="K", help="The key to burn.")
@click.option("--reason", metavar="R", help="Why; recorded in the history.")
@click.option("--dry-run", is_flag=True, help="Only show the plan.")
@click.option("--wait", "waiting", type=DURATION, metavar="DURATION", help="Wait for the gate and follow the roll-out.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--expect", type=click.IntRange(0), metavar="N", help="How many instances run, as you know it.")
@click.option("--allow-missing", multiple=True, metavar="ID", help="An instance you know is stopped; repeatable.")
@click.option("--attest", metavar="TEXT", help="Your word that a deployment is out (evidence: attest).")
@click.option("--rotation", metavar="ID", help="Only this rotation, as mcpkeys status names it.")
@click.option("--skip-kek", multiple=True, metavar="URI", help="Emergency: do without this KEK; rewrap later.")
@keyset_options
@output_option
def command(
    phase: int | None,
    auto: bool,
    once: bool,
    max_age: float,
    rollback: bool,
    emergency: bool,
    kid: str | None,
    reason: str | None,
    dry_run: bool,
    waiting: float | None,
    yes: bool,
    expect: int | None,
    allow_missing: tuple[str, ...],
    attest: str | None,
    rotation: str | None,
    skip_kek: tuple[str, ...],
    output: str,
    **given: Any,
) -> Answer:
    """Take one step of a rotation, or say why not. Nothing is ever half done; the same command resumes."""
    to = _to(phase, auto, rollback, emergency)
    if once and not auto:
        raise SettingError("--once goes with --auto", next="mcpkeys rotate --auto --once", code="usage")
    step = Step(
        to=to,
        rotation=rotation,
        expect=expect,
        allow_missing=allow_missing,
        attest=attest,
        kid=kid,
        reason=reason,
        who=whoami(),
        max_age=max_age,
    )
    patience = _patience(waiting, auto=auto, once=once)
    with author_of(given, skip=skip_kek) as author:
        if dry_run:
            observed = observe(author)
            return _answer(observed.plan(step), observed, None, dry=True)
        taken = _until(author, step, patience, yes=yes)
        if auto and not once:
            # One rotation at most: with a small --max-age the next one would be due at once.
            while taken.written is not None and len(taken.written.live) > 1:
                following = _until(author, step, patience, yes=yes)
                if following.plan.verdict == "done":
                    break
                taken = following
        lagging: list[str] = []
        if taken.written is not None and waiting is not None:
            lagging = _follow(author, taken.written, patience)
        return _answer(taken.plan, taken.observed, taken.written, lagging=lagging)


def _to(phase: int | None, auto: bool, rollback: bool, emergency: bool) -> To:
    chosen: list[To] = [to for to, given in (("auto", auto), ("rollback", rollback), ("emergency", emergency)) if given]  # type: ignore[misc]
    if phase is not None:
        chosen.append(phase)  # type: ignore[arg-type]
    if len(chosen) != 1:
        raise SettingError(
            "which step?" if not chosen else "only one step at a time",
            why="one of --phase, --auto, --rollback and --emergency",
            next="mcpkeys status names the next command; mcpkeys rotate --help",
            code="usage",
        )
    return chosen[0]


class _Patience:
    """How long this command waits in all, and how it does it: one line when something changes, not one a second."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._said = ""

    @property
    def left(self) -> float:
        return self._until - time.monotonic()

    def wait(self, code: str, why: str, seconds: float) -> bool:
        """Wait a little; False where the patience is over. `code` tells whether `why` is news."""
        if self.left <= 0:
            return False
        if code != self._said:
            note(f"{paint('waiting', 'yellow')}: {escape(why)}")
            self._said = code
        time.sleep(max(0.05, min(seconds, self.left)))
        return True


def _patience(waiting: float | None, *, auto: bool, once: bool) -> _Patience:
    if once:
        return _Patience(0.0)
    if waiting is None:
        return _Patience(float("inf") if auto else 0.0)
    return _Patience(waiting)


def _until(author: Author, step: Step, patience: _Patience, *, yes: bool) -> Taken:
    """Take the step; while only time is missing, wait and try again."""

    def agreed(plan: Plan, observed: Observed) -> None:
        if not yes:
            note(_plan_text(plan, observed))
        confirm("Go ahead?", yes=yes)

    while True:
        taken = take(author, step, agreed=agreed)
        plan = taken.plan
        waits = plan.verdict == "not_yet" or (taken.written is not None and not plan.completes)
        if not waits:
            return taken
        pause = POLL_SECONDS
        if plan.earliest is not None:
            pause = max(POLL_SECONDS, min(plan.earliest - taken.observed.now, 30.0))
        if not patience.wait(f"{plan.to} {plan.code}", plan.why, pause):
            return taken


def _follow(author: Author, written: Keyset, patience: _Patience) -> list[str]:
    """Wait until every instance that reports holds this generation; the labels of those that do not when time is up."""
    while True:
        behind = [
            f"{entry.report.label} ({entry.report.instance})"
            for entry in observe(author).gathered.received
            if entry.report.state != "farewell" and entry.report.generation < written.generation
        ]
        if not behind or not patience.wait(
            f"out {len(behind)}",
            f"generation {written.generation} is not held yet by {', '.join(behind)}",
            POLL_SECONDS,
        ):
            return behind


def _answer(
    plan: Plan, observed: Observed, written: Keyset | None, *, dry: bool = False, lagging: list[str] | None = None
) -> Answer:
    keyset = written or observed.stored.keyset
    current = keyset.rotation
    data: dict[str, Any] = {
        "step": plan.to,
        "verdict": plan.verdict,
        "code": plan.code,
        "why": plan.why,
        "rotation": current.id if current is not None else plan.rotation,
        "from": current.from_kid if current is not None else None,
        "to": current.to_kid if current is not None else None,
        "blocking": [
            {"instance": entry.instance, "label": entry.label, "why": entry.why, "code": entry.code}
            for entry in plan.blocking
        ],
        "earliest": None if plan.earliest is None else format_ms(to_ms(plan.earliest)),
        "generation": keyset.generation,
        "dry_run": dry,
        "written": written is not None,
        "rolled_out": None if lagging is None or written is None else not lagging,
    }
    if plan.to == "emergency":
        data |= _emergency_data(plan, keyset)
    exit_code, message, why, code = plan.exit_code, plan.why, "", plan.code
    if dry and plan.verdict == "do":
        exit_code = 0
    if exit_code == 0 and lagging:
        exit_code, code = 6, "roll-out"
        message = f"generation {keyset.generation} is written, but not everyone holds it yet"
        why = ", ".join(lagging)
    return Answer(
        "rotate",
        data=data,
        text=_text(plan, observed, written, dry=dry),
        next=plan.next,
        exit=exit_code,
        code=code,
        message=message,
        why=why,
    )


def _emergency_data(plan: Plan, keyset: Keyset) -> dict[str, Any]:
    return {
        "still_accepting": list(plan.still_accepting),
        "exposure_seconds": keyset.max_stale_seconds,
        "min_generation": keyset.generation,
        "revoke": [
            f"{wrap.kek}: whoever can unwrap there can open kid {key.kid} from a copy of the document"
            for key in keyset.keys
            if key.state == "retired"
            for wrap in key.wrapped
        ][-8:],
    }


def _plan_text(plan: Plan, observed: Observed) -> str:
    keyset = observed.stored.keyset
    lines = [f"{paint('plan', 'bold')}: {escape(plan.why)}", f"keyset {keyset.name}, generation {keyset.generation}"]
    if plan.document is not None:
        before = {key.kid: key.state for key in keyset.keys}
        rows = [
            (key.kid if before.get(key.kid) else "(new)", before.get(key.kid, "-"), key.state)
            for key in plan.document.keys
            if before.get(key.kid) != "retired"
        ]
        lines += ["", table(("KID", "NOW", "THEN"), rows)]
    return "\n".join(lines)


def _text(plan: Plan, observed: Observed, written: Keyset | None, *, dry: bool) -> str:
    """What a person reads on stdout; a refusal's reason is told as the error."""
    lines: list[str] = []
    if dry and plan.verdict == "do":
        lines.append(_plan_text(plan, observed))
        lines.append("\nnothing was written (--dry-run)")
    elif plan.verdict in ("do", "done") and plan.completes:
        lines.append(f"{'done' if written is not None else 'nothing to do'}: {escape(plan.why)}")
    if plan.blocking:
        rows = [(entry.instance or "-", entry.label or "-", entry.why) for entry in plan.blocking[:20]]
        lines.append(table(("INSTANCE", "LABEL", "WHY"), rows))
        if len(plan.blocking) > 20:
            lines.append(f"... and {len(plan.blocking) - 20} more (--output json has all)")
    if plan.earliest is not None and plan.verdict == "not_yet":
        lines.append(f"earliest: {moment(to_ms(plan.earliest), observed.now)}")
    if plan.to == "emergency" and written is not None:
        lines += _emergency_text(plan, written)
    return "\n".join(lines)


def _emergency_text(plan: Plan, written: Keyset) -> list[str]:
    exposure = (
        f"until each has refreshed ({duration(written.refresh_seconds)}), or is restarted; one cut off from the store "
        + ("for ever" if written.max_stale_seconds is None else f"for {duration(written.max_stale_seconds)}")
    )
    lines = [f"still accepting the burnt key, as last reported: {len(plan.still_accepting)}"]
    lines += [f"  {instance}" for instance in plan.still_accepting[:20]]
    lines += [
        f"worst case: {exposure}",
        f"restart what does not confirm, with MCPKEYS_MIN_GENERATION={written.generation}",
        "revoke in the KMS: decrypt rights of whoever the key leaked to, and the KEK versions that wrapped it",
    ]
    return lines
