"""`mcpkeys history`: who did what, when and why. Reads the document only: no KMS, no reports."""

from __future__ import annotations

import time
from typing import Any

import click

from mcpkeys import document, registry
from mcpkeys import keyset as keysets
from mcpkeys.encoding import format_ms
from mcpkeys.keyset import HistoryEntry
from mcpkeys_cli.options import keyset_options, output_option, settings_of
from mcpkeys_cli.output import Answer, escape, moment, paint

READ_SECONDS = 10.0


@click.command("history", epilog="Examples: mcpkeys history    mcpkeys history --limit 5 --output json")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the newest N entries.")
@keyset_options
@output_option
def command(limit: int | None, output: str, **given: Any) -> Answer:
    """Show who did what, when, why, and which rule was overridden; the newest last."""
    settings = settings_of(given, "keyset", "signers")
    store = registry.open_store(settings.keyset)
    try:
        found = store.read(None, fresh=True, deadline=time.monotonic() + READ_SECONDS)
    finally:
        store.close()
    assert found is not None
    keyset = document.read(found.body, signers=settings.signers, name=settings.name or None)
    keysets.check_succession(keysets.Seen(settings.min_generation), keyset)
    entries = keyset.history if limit is None else keyset.history[-limit:]
    data: dict[str, Any] = {
        "name": keyset.name,
        "generation": keyset.generation,
        "entries": [
            {
                "at": format_ms(entry.at),
                "who": entry.who,
                "what": entry.what,
                "generation": entry.generation,
                "reason": entry.reason,
                "overrides": list(entry.overrides),
            }
            for entry in entries
        ],
        "earlier": len(keyset.history) - len(entries),
        "complete": bool(keyset.history) and keyset.history[0].generation == 1,
    }
    now = time.time()
    text = "\n".join(_shown(entry, now) for entry in entries) or "no history is kept"
    if data["earlier"]:
        text = f"... {data['earlier']} earlier entries (without --limit all are shown)\n{text}"
    elif not data["complete"]:
        text = f"... earlier entries are not kept (at most {keysets.MAX_HISTORY})\n{text}"
    return Answer("history", data=data, text=text, next="mcpkeys status")


def _shown(entry: HistoryEntry, now: float) -> str:
    lines = [
        f"{paint(f'generation {entry.generation}', 'bold')}  {moment(entry.at, now)}  {escape(entry.who)}",
        f"  {escape(entry.what)}",
    ]
    lines += [f"  reason: {escape(entry.reason)}"] if entry.reason else []
    lines += [f"  overridden: {escape(override)}" for override in entry.overrides]
    return "\n".join(lines)
