"""`mcpkeys rotate`: one step of a rotation, or the steps that are due, or why not."""

from __future__ import annotations

import shlex
from typing import Any

import click

from mcpkeys.authoring import whoami
from mcpkeys.errors import SettingError
from mcpkeys.purger import drop_withdrawn
from mcpkeys.stepping import observe
from mcpkeys.steps import Step, To
from mcpkeys_cli.options import DURATION, author_of, carried, keyset_options, output_option
from mcpkeys_cli.output import Answer, note
from mcpkeys_cli.patience import Patience, RollOut, Walk, follow
from mcpkeys_cli.rotated import answer

EPILOG = """Examples:

\b
  mcpkeys rotate --phase 1                     every instance learns to verify NEW
  mcpkeys rotate --phase 2 --wait 10m          NEW mints, once all verify it; follow the fleet
  mcpkeys rotate --phase 3 --wait 30m          OLD is retired, once nothing rides on it
  mcpkeys rotate --auto --once --yes --max-age 30d      from cron: 0 done, 6 not yet, 5 look at it
  mcpkeys rotate --emergency --kid K --reason "leaked in a core dump"
"""


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
    if once and waiting is not None:
        raise SettingError(
            "--once never waits", next="leave --wait out; run it again, or use --auto alone", code="usage"
        )
    if kid is not None and not emergency:
        raise SettingError(
            "--kid names a key to burn, and goes with --emergency",
            next=f"mcpkeys rotate --emergency --kid {shlex.quote(kid)} --reason R --dry-run",
            code="usage",
        )
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
            observed = observe(author, blindly=emergency)
            return _carrying(answer(observed.plan(step), observed, None, dry=True, kid=kid, reason=reason), given)
        walk = Walk(author, step, patience, yes, bounded=waiting is not None)
        taken = walk.take()
        if auto and not once:
            # One rotation at most: with a small --max-age the next one would be due at once.
            while taken.written is not None and len(taken.written.live) > 1:
                following = walk.take()
                if following.plan.verdict == "done":
                    break
                taken = following
        out: RollOut | None = None
        keyset = taken.written or taken.observed.stored.keyset
        if emergency and taken.plan.verdict in ("do", "done"):
            if taken.written is not None:
                note(f"generation {keyset.generation} is written, {kid} is burnt; following it out (Ctrl-C is safe)")
                drop_withdrawn(author, taken.observed, taken.written)
            time_to_confirm = 3.0 * keyset.refresh_seconds if waiting is None else waiting
            out = follow(author, taken, Patience(time_to_confirm), stopped=allow_missing)
        elif waiting is not None and (taken.written is not None or (taken.plan.verdict == "done" and not auto)):
            # Also where the step was taken before: the same command resumes.
            out = follow(author, taken, patience, stopped=allow_missing)
        return _carrying(answer(taken.plan, taken.observed, taken.written, out=out, kid=kid, reason=reason), given)


def _carrying(made: Answer, given: dict[str, Any]) -> Answer:
    """The next command with the same pins as this one, so that it can be pasted."""
    made.next = carried(made.next, given)
    return made


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


def _patience(waiting: float | None, *, auto: bool, once: bool) -> Patience:
    if once:
        return Patience(0.0)
    if waiting is None:
        return Patience(float("inf") if auto else 0.0)
    return Patience(waiting)
