"""How a change of the keyset is agreed and told: the same for `set`, `restore` and `purge`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mcpkeys.revising import Revised, Revision
from mcpkeys.stepping import Observed
from mcpkeys_cli.options import confirm
from mcpkeys_cli.output import Answer, escape, note, paint, table


def asking(*, yes: bool) -> Callable[[Revision, Observed], None]:
    """Shows the plan and asks; raises where the answer is no."""

    def agreed(revision: Revision, observed: Observed) -> None:
        if not yes:
            note(f"{paint('plan', 'bold')}: {escape(revision.why)}")
            for effect in revision.effects:
                note(f"  {escape(effect)}")
        confirm("Go ahead?", yes=yes)

    return agreed


def answer(
    command: str, revised: Revised, *, dry: bool, more: Mapping[str, Any] | None = None, extra: str = ""
) -> Answer:
    """The answer that a change makes. `more`: further fields; `extra`: further lines."""
    revision, written = revised.revision, revised.written
    keyset = written or revised.observed.stored.keyset
    data: dict[str, Any] = {
        "verdict": revision.verdict,
        "code": revision.code,
        "why": revision.why,
        "generation": keyset.generation,
        "effects": list(revision.effects),
        "blocking": [
            {"instance": entry.instance, "label": entry.label, "why": entry.why, "code": entry.code}
            for entry in revision.blocking
        ],
        "dry_run": dry,
        "written": written is not None,
        **(more or {}),
    }
    return Answer(
        command,
        data=data,
        text=_text(revised, dry=dry, extra=extra),
        next=revision.next,
        exit=revision.exit_code,
        code=revision.code,
        message=revision.why,
    )


def _text(revised: Revised, *, dry: bool, extra: str) -> str:
    revision, written = revised.revision, revised.written
    lines: list[str] = []
    if revision.verdict == "do":
        done = "nothing was written (--dry-run)" if written is None else f"generation {written.generation} is written"
        lines += [escape(revision.why), *[f"  {escape(effect)}" for effect in revision.effects], done]
        lines = lines if written is not None or dry else lines[:-1]
    elif revision.verdict == "done":
        lines.append(escape(revision.why))
    elif revision.blocking:
        rows = [(entry.instance, entry.label or "-", entry.why) for entry in revision.blocking[:20]]
        lines.append(table(("INSTANCE", "LABEL", "WHY"), rows))
    return "\n".join([*lines, *([extra] if extra else [])])
