"""`mcpkeys status`: the ring, the phase, each instance, what the next step waits for, the exact next command."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from mcpkeys.encoding import format_ms, to_ms
from mcpkeys.errors import McpkeysError
from mcpkeys.fleet import FleetView, InstanceView
from mcpkeys.stepping import Observed, observe
from mcpkeys.steps import named
from mcpkeys_cli.options import DURATION, author_of, carried, keyset_options, output_option
from mcpkeys_cli.output import Answer, colour, duration, escape, moment, note, paint, relative, table

GROUP_ABOVE = 12
BAR = 24
_COLOURS = {
    "serving": "green",
    "lagging": "yellow",
    "joining": "yellow",
    "farewell": "dim",
    "gone": "dim",
    "named": "dim",
}
_PHASES = {0: "steady", 1: "phase 1", 2: "phase 2", "rolling_back": "rolling back", 3: "phase 3"}
_ENDED = {"done": "rotated", "rolled_back": "rolled back", "emergency": "ended by an emergency"}


@click.command("status", epilog="Examples: mcpkeys status    mcpkeys status --watch    mcpkeys status --output json")
@click.option("--watch", is_flag=True, help="Go on until interrupted.")
@click.option("--interval", type=DURATION, default=2, show_default=True, help="With --watch: how often to look.")
@keyset_options
@output_option
def command(watch: bool, interval: float, output: str, **given: Any) -> Answer:
    """Show the ring, the phase, every instance and what it holds, and what the next step waits for."""
    with author_of(given) as author:
        if not watch:
            return _answer(observe(author), given)
        while True:
            try:
                answer = _answer(observe(author), given)
            except McpkeysError as exc:
                # A watch outlives an outage: that is when it is looked at.
                note(f"{paint('error:', 'red')} {escape(str(exc))}")
            else:
                _show(answer, as_json=output == "json")
            time.sleep(interval)


def _show(answer: Answer, *, as_json: bool) -> None:
    from mcpkeys_cli.output import emit

    if not as_json and colour(sys.stdout):
        # Home and clear below, rather than clear all: no flicker.
        sys.stdout.write("\x1b[H\x1b[J")
    emit(answer, form="line" if as_json else "text")
    sys.stdout.flush()


def _answer(observed: Observed, given: dict[str, Any]) -> Answer:
    view, keyset = observed.fleet(), observed.stored.keyset
    data: dict[str, Any] = {
        "name": keyset.name,
        "audience": keyset.audience,
        "ttl_seconds": keyset.ttl_seconds,
        "generation": view.generation,
        "phase": view.phase,
        "phase_since": format_ms(to_ms(view.phase_since)),
        "rotation": None
        if view.rotation is None
        else {"id": view.rotation, "ended": view.ended, "from": view.from_kid, "to": view.to_kid},
        "keys": [
            {
                "kid": key.kid,
                "state": key.state,
                "created_at": format_ms(key.created_at),
                "state_since": format_ms(key.state_since),
                "last_mint": _time(key.last_mint),
                "last_unseal": _time(key.last_unseal),
                "unsealing": key.unsealing,
            }
            for key in view.keys
        ],
        "instances": [
            {
                "id": entry.id,
                "label": entry.label,
                "state": entry.state,
                "generation": entry.generation,
                "verifies": list(entry.verifies),
                "mints": entry.mints,
                "last_seen": None if entry.last_seen is None else format_ms(to_ms(entry.last_seen)),
                "confirms": entry.confirms,
                "accepts_retired": list(entry.accepts_retired),
                "why": entry.why,
            }
            for entry in view.instances
        ],
        "waiting_for": [{"instance": entry.instance, "why": entry.why} for entry in view.waiting_for],
        "behind": [
            {"instance": entry.id, "label": entry.label, "generation": entry.generation, "state": entry.state}
            for entry in view.behind
        ],
        "rejected_reports": [{"instance": instance, "why": why} for instance, why in observed.gathered.rejected],
        "earliest": None if view.earliest is None else format_ms(to_ms(view.earliest)),
        "warnings": list(observed.warnings()),
        "now": format_ms(to_ms(observed.now)),
    }
    return Answer("status", data=data, text=lambda: _text(observed, view), next=carried(view.next, given))


def _time(ms: int | None) -> str | None:
    return None if ms is None else format_ms(ms)


def _text(observed: Observed, view: FleetView) -> str:
    keyset, now = observed.stored.keyset, observed.now
    out = sys.stdout
    phase = _PHASES[view.phase]
    if view.phase == 0 and view.ended is not None:
        phase += f" (last rotation: {_ENDED[view.ended]})"
    lines = [
        f"{paint(keyset.name, 'bold', out)}  generation {view.generation}  {paint(phase, 'bold', out)} for "
        f"{duration(now - view.phase_since)}  ttl {keyset.ttl_seconds} s  audience {escape(keyset.audience)}",
        "",
    ]
    lines += _keys(view, now)
    lines += ["", *_instances(view.instances, now), *_roll_out(view)]
    if view.phase != 0 or view.waiting_for:
        lines += ["", *_waiting(view, now)]
    lines += [f"{paint('warning:', 'yellow', out)} {escape(warning)}" for warning in observed.warnings()]
    lines += [
        f"{paint('warning:', 'yellow', out)} the report of {escape(instance)} says nothing: {escape(why)}"
        for instance, why in observed.gathered.rejected[:10]
    ]
    return "\n".join([*lines, ""])


def _keys(view: FleetView, now: float) -> list[str]:
    shown = [key for key in view.keys if key.state != "retired"]
    retired = [key for key in view.keys if key.state == "retired"]
    rows = [
        (
            key.kid,
            key.state,
            relative(key.created_at, now),
            relative(key.state_since, now),
            "never" if key.last_mint is None else relative(key.last_mint, now),
            f"{key.unsealing} instances" if key.unsealing else "-",
        )
        for key in [*shown, *sorted(retired, key=lambda key: -key.state_since)[:3]]
    ]
    lines = [table(("KEY", "STATE", "CREATED", "SINCE", "LAST MINT", "ROUNDS SEEN ON"), rows)]
    if len(retired) > 3:
        lines.append(f"... and {len(retired) - 3} older retired keys")
    return lines


def _instances(instances: Sequence[InstanceView], now: float) -> list[str]:
    if not instances:
        return ["no instance has reported"]
    groups: dict[tuple[object, ...], list[InstanceView]] = {}
    for entry in instances:
        groups.setdefault((entry.state, entry.generation, entry.mints, entry.confirms), []).append(entry)
    rows: list[tuple[str, ...]] = []
    for members in groups.values():
        alike = len(instances) > GROUP_ABOVE and len(members) > 3
        for entry in members[:1] if alike else members:
            rows.append(
                (
                    f"{len(members)} alike" if alike else entry.id,
                    f"{entry.label} ..." if alike else entry.label,
                    entry.state,
                    "-" if entry.generation is None else str(entry.generation),
                    entry.mints or "-",
                    "-" if entry.last_seen is None else relative(to_ms(entry.last_seen), now),
                    entry.why,
                )
            )
    head = ("INSTANCE", "LABEL", "STATE", "HOLDS", "MINTS", "LAST SEEN", "")
    lines = table(head, rows).split("\n")
    # Coloured after the columns are aligned: escape sequences have no width.
    return [
        line
        if not line_state
        else line.replace(
            f"  {line_state}  ", f"  {paint(line_state, _COLOURS.get(line_state, 'red'), sys.stdout)}  ", 1
        )
        for line, line_state in zip(lines, ["", *[row[2] for row in rows]], strict=True)
    ]


def _roll_out(view: FleetView) -> list[str]:
    """How far the last write is out, who confirms the next step, and how many count no more."""
    counted = [entry for entry in view.instances if entry.counts]
    if not counted:
        return []
    behind = view.behind
    line = f"generation {view.generation} is held by {len(counted) - len(behind)} of {len(counted)} instances"
    if behind:
        line += f"; not yet by {escape(named([entry.label or entry.id for entry in behind], most=4))}"
    past = len(view.instances) - len(counted)
    if past:
        line += f" ({past} more have said farewell or are known to be stopped)"
    still = [entry.label or entry.id for entry in counted if entry.accepts_retired]
    lines = [line]
    if still:
        lines.append(f"{paint('retired keys still accepted', 'red', sys.stdout)} by {escape(named(still, most=4))}")
    return lines


def _waiting(view: FleetView, now: float) -> list[str]:
    plan = view.due
    step = (
        f"phase {plan.to}" if isinstance(plan.to, int) else {"rollback": "the rollback"}.get(plan.to, "the next step")
    )
    if plan.verdict in ("unsafe", "not_yet"):
        told = paint(f"{step} waits:", "red" if plan.verdict == "unsafe" else "yellow", sys.stdout)
    else:
        told = paint(f"{step} can be taken now:", "green", sys.stdout)
    lines = [f"{told} {escape(plan.why)}"]
    if view.earliest is not None and view.earliest > now:
        lines.append(f"{_bar(view.phase_since, now, view.earliest)} earliest: {moment(to_ms(view.earliest), now)}")
    return lines


def _bar(begun: float, now: float, end: float) -> str:
    """How much of the wait is over."""
    share = min(1.0, max(0.0, (now - begun) / max(end - begun, 0.001)))
    full = int(share * BAR)
    return f"[{'#' * full}{'-' * (BAR - full)}]"
