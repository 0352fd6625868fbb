"""Waiting at the command line: for a gate to open, for a step to be out. Says what it waits for once, not each second.

Waiting outlives an outage of the store: that is when nobody wants to start over.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, replace

from mcpkeys.authoring import Author
from mcpkeys.errors import Conflict, McpkeysError, Unreachable
from mcpkeys.fleet import InstanceView
from mcpkeys.stepping import Observed, Taken, observe, take
from mcpkeys.steps import Plan, Step, named
from mcpkeys_cli.options import confirm
from mcpkeys_cli.output import duration, escape, note, paint

POLL_SECONDS = 1.0
RACES = 5
# Waiting alone does not help against these, but an operator who waits means them too: a restart may be under way.
_PASSING = ("gate-lagging", "gate-joining")
_SILENT = ("silent", "missing", "unreadable")


class Patience:
    """How long this command waits in all."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._said = ""

    @property
    def left(self) -> float:
        return self._until - time.monotonic()

    def heard(self, code: str) -> None:
        """The reader knows this one already."""
        self._said = code

    def wait(self, code: str, why: str, seconds: float = POLL_SECONDS) -> bool:
        """Wait a little; False where the patience is over. `code` tells whether `why` is news."""
        if self.left <= 0:
            return False
        if code != self._said:
            note(f"{paint('waiting', 'yellow')}: {escape(why)}")
            self._said = code
        time.sleep(max(0.05, min(seconds, self.left)))
        return True


@dataclass(slots=True)
class Walk:
    """One operator's walk through the steps: plan, ask, write, wait.

    Attributes:
        yes: do not ask.
        bounded: the operator said how long to wait (--wait).
    """

    author: Author
    step: Step
    patience: Patience
    yes: bool
    bounded: bool
    _agreed: object = None

    def take(self) -> Taken:
        """Take the step; while only time is missing, wait and try again. Raises what `stepping.take` raises."""
        races = 0
        while True:
            try:
                taken = take(self.author, self.step, agreed=self._agree)
            except Conflict as exc:
                # What is due, and a burn, are the same whoever wrote meanwhile; only what was seen is planned anew.
                races += 1
                if self.step.to not in ("auto", "emergency") or races > RACES:
                    raise
                note(f"{paint('again', 'yellow')}: {escape(f'{exc.what}: {exc.why}')}")
                continue
            except Unreachable as exc:
                if not self.patience.wait(exc.code, str(exc)):
                    raise
                continue
            plan = taken.plan
            if not self._waits(taken):
                return taken
            if self.patience.left > 0:
                self._agree_to_wait(plan)
            pause = POLL_SECONDS
            if plan.earliest is not None:
                pause = max(POLL_SECONDS, min(plan.earliest - taken.observed.now, 30.0))
            if not self.patience.wait(_code(plan), plan.why, pause):
                if plan.verdict == "unsafe":
                    # The wait is over, and who lags may still come: the same command goes on (exit 6).
                    return replace(taken, plan=replace(plan, verdict="not_yet"))
                return taken

    def _waits(self, taken: Taken) -> bool:
        plan = taken.plan
        if plan.verdict == "not_yet" or (taken.written is not None and not plan.completes):
            return True
        late = [entry for entry in plan.blocking if entry.late]
        return (
            self.bounded
            and plan.verdict == "unsafe"
            and plan.code in _PASSING
            and all(entry.code in _PASSING for entry in late)
        )

    def _agree(self, plan: Plan, observed: Observed) -> None:
        if self._agreed != plan.to:
            if not self.yes:
                note(plan_text(plan, observed))
            confirm("Go ahead?", yes=self.yes)
            self._agreed = plan.to

    def _agree_to_wait(self, plan: Plan) -> None:
        """Asked before the wait, so that nobody comes back to a question."""
        if self._agreed == plan.to or self.yes:
            return
        if sys.stdin.isatty():
            note(f"{paint('not yet', 'yellow')}: {escape(plan.why)}")
        step = f"--{plan.to}" if isinstance(plan.to, str) else f"phase {plan.to}"
        confirm(f"Wait, and take {step} as soon as it is safe?", yes=False)
        self.patience.heard(_code(plan))
        self._agreed = plan.to


def _code(plan: Plan) -> str:
    """What makes a reason for waiting another one; the seconds in it do not."""
    return f"{plan.to} {plan.code} {len(plan.blocking)}"


def plan_text(plan: Plan, observed: Observed) -> str:
    """The plan as a person is asked about it: why, and each key's state now and then."""
    from mcpkeys_cli.output import table

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


@dataclass(frozen=True, slots=True)
class RollOut:
    """How far a generation is out.

    Attributes:
        generation: that was written.
        behind: who is not known to hold it.
        of: how many count.
        withdrawn: those of them that had said farewell under the report key that the step renewed: they left, but
            nothing that can be read says so any more.
        why: what kept this command from seeing more, or empty.
        next: what the step that comes next asks for, as `mcpkeys status` says it.
    """

    generation: int
    behind: tuple[InstanceView, ...]
    of: int
    why: str
    next: str
    withdrawn: tuple[InstanceView, ...] = ()

    @property
    def complete(self) -> bool:
        """Everyone who counts holds it."""
        return not self.behind and not self.why


def follow(author: Author, taken: Taken, patience: Patience, *, stopped: Collection[str] = ()) -> RollOut:
    """Wait until every instance holds what the step left; ends early where all that is missing is silent.

    Args:
        stopped: ids that the operator has named.
    """
    began = time.monotonic()
    generation = (taken.written or taken.observed.stored.keyset).generation
    # After an emergency a report cannot be read until its instance has written another; its label is known from before.
    before = {entry.report.instance: entry.report for entry in taken.observed.gathered.received}
    left = {id for id, report in before.items() if report.state == "farewell"} if taken.written is not None else set()
    while True:
        try:
            observed = observe(author)
        except Unreachable as exc:
            if not patience.wait(exc.code, str(exc)):
                return RollOut(generation, (), 0, str(exc), "mcpkeys status --watch")
            continue
        except McpkeysError as exc:
            # The step is written whatever can be seen of it now.
            return RollOut(generation, (), 0, str(exc), exc.next or "mcpkeys status --watch")
        view = observed.fleet()
        counted = [entry for entry in view.instances if entry.counts and entry.id not in stopped]
        behind = tuple(
            replace(entry, label=entry.label or (before[entry.id].label if entry.id in before else ""))
            for entry in counted
            if _is_behind(entry, generation)
        )
        withdrawn = tuple(entry for entry in behind if entry.id in left and entry.state == "unreadable")
        out = RollOut(generation, behind, len(counted), "", view.next, withdrawn)
        patient = time.monotonic() - began < 3 * observed.stored.keyset.refresh_seconds + 2
        hopeless = all(
            entry.state == "silent" or entry in withdrawn or (entry.state in _SILENT and not patient)
            for entry in behind
        )
        if not behind or hopeless:
            return out
        who = named([entry.label or entry.id for entry in behind], most=3)
        held = f"{len(counted) - len(behind)} of {len(counted)} instances hold generation {generation}"
        if not patience.wait(f"out {len(behind)}", f"{held}; not yet {who}"):
            return out


def _is_behind(entry: InstanceView, generation: int) -> bool:
    return entry.generation is None or entry.generation < generation or entry.state == "joining"


def behind_text(out: RollOut, now: float) -> list[str]:
    """Who does not hold it, for a person."""
    from mcpkeys_cli.output import table

    rows = [
        (
            entry.id,
            entry.label or "-",
            "nothing readable" if entry.generation is None else f"generation {entry.generation}",
            "-" if entry.last_seen is None else f"{duration(now - entry.last_seen)} ago",
            entry.state,
        )
        for entry in out.behind[:20]
    ]
    lines = [f"{out.of - len(out.behind)} of {out.of} instances hold generation {out.generation}"]
    if rows:
        lines.append(table(("INSTANCE", "LABEL", "HOLDS", "LAST SEEN", "STATE"), rows))
    if len(out.behind) > 20:
        lines.append(f"... and {len(out.behind) - 20} more (--output json has all)")
    if out.withdrawn:
        who = escape(named([entry.label or entry.id for entry in out.withdrawn]))
        lines.append(
            f"{who} had said farewell, which the renewed report key no longer proves. Where you know that it is gone: "
            "name it with --allow-missing, as below, or no step goes on; later, mcpkeys purge --silent-for 2h drops "
            "its report"
        )
    return lines
