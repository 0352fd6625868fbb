"""`mcpkeys triage`: many refused tokens at once, from server logs, captured requests or bare tokens, mixed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import click

from mcpkeys import capture
from mcpkeys.encoding import parse_ms
from mcpkeys.errors import McpkeysError, SettingError
from mcpkeys.glimpse import glimpse_of_path
from mcpkeys.triage import Fleet, Summary, Triage
from mcpkeys_cli.callopts import audience_of, now_of, principal_given, who_options
from mcpkeys_cli.output import Answer, colour, document, escape, of_error
from mcpkeys_cli.sight import Sight, sight_of, sight_options

PROGRESS_FROM_BYTES = 4 << 20
WIDTH = 60
_BARS = " ▁▂▃▄▅▆▇█"
_HEADS = {
    "reason": "by reason",
    "key": "by key",
    "minted_by": "minted by",
    "audience": "by audience",
    "method": "by method",
    "instance": "logged or captured at",
}
EPILOG = """Reads, mixed and line by line: servers' logs, JSON-RPC requests, NDJSON of a proxy, a HAR, bare tokens.

\b
  mcpkeys triage server.log
  kubectl logs -l app=orders --prefix --tail=-1 | mcpkeys triage -
  mcpkeys triage capture.ndjson --audience acme-orders --output ndjson
"""


@click.command("triage", epilog=EPILOG)
@click.argument("file")
@who_options
@sight_options
@click.option("--output", type=click.Choice(["text", "json", "ndjson"]), default="text", show_default=True)
def command(file: str, output: str, **given: Any) -> Answer | int:
    """What was refused, by reason, key, minting instance, audience, method and minute; then the next command."""
    if output != "ndjson":
        return _run(file, given, records=False)
    try:
        answer = _run(file, given, records=True)
    except McpkeysError as exc:
        answer = of_error("triage", exc)
    print(json.dumps(document(answer)))
    return answer.exit


def _run(file: str, given: dict[str, Any], *, records: bool) -> Answer:
    moment = now_of(given)
    sight = sight_of(given)
    fleet = Fleet(
        sight.ring,
        time.time() if moment is None else moment,
        sight.keyset,
        sight.reports,
        audience_of(given),
        principal_given(given),
    )
    triage = Triage(fleet)
    with nullcontext(sys.stdin.buffer) if file == "-" else _opened(file) as stream:
        for captured in capture.scan(_lines(stream, file)):
            record = triage.feed(captured)
            if records and record is not None:
                print(json.dumps(record.as_dict()))
    return _answer(triage.summary(), sight)


def _opened(file: str) -> BinaryIO:
    try:
        return Path(file).open("rb")
    except OSError as exc:
        raise SettingError(
            f"{glimpse_of_path(file)} cannot be read",
            why=exc.strerror or type(exc).__name__,
            next="name a file you may read, or - for stdin",
            code="file",
        ) from None


def _lines(stream: BinaryIO, file: str) -> Iterator[bytes]:
    """The stream's lines, with a progress bar on stderr where a person waits for a long file."""
    size = 0 if file == "-" else Path(file).stat().st_size
    if size < PROGRESS_FROM_BYTES or not colour(sys.stderr):
        yield from capture.read_lines(stream)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=size)
        for line in capture.read_lines(stream):
            yield line
            progress.advance(task, len(line))


def _answer(summary: Summary, sight: Sight) -> Answer:
    data: Mapping[str, Any] = {
        "summary": asdict(summary),
        "held_against": {
            "source": sight.source,
            "generation": None if sight.keyset is None else sight.keyset.generation,
            "reports": len(sight.reports),
        },
        "notes": _notes(summary, sight),
        "contacted": "no MCP server",
    }
    answer = Answer("triage", data=data, text=lambda: _text(summary, sight), next=summary.next)
    counts = summary.counts
    if counts["tokens"] and counts["tokens"] == counts["unverified"]:
        error = sight.error
        answer.exit = 2 if error is None else error.exit_code
        answer.code = "unverified" if error is None else error.code
        answer.message = "not one token could be verified"
        answer.why = "no key to open them with" if error is None else error.what
    return answer


def _text(summary: Summary, sight: Sight) -> str:
    counts = summary.counts
    head = f"{counts['tokens']:,} tokens: {counts['accepted']:,} accepted as far as checked, "
    head += f"{counts['rejected']:,} rejected, {counts['unverified']:,} not verified"
    more = {"log_lines": "refusals in logs", "first_rounds": "first rounds", "too_long": "lines too long to read"}
    tails = [f"{counts[name]:,} {words}" for name, words in more.items() if counts[name]]
    lines = [head + (f"; {', '.join(tails)}" if tails else "")]
    if summary.expired_since:
        lines.append(f"{summary.expired_since:,} of them have no time of capture and may have expired only since")
    for name, title in _HEADS.items():
        if summary.by[name]:
            lines += ["", f"{title}:", *_counted(summary.by[name])]
    if summary.histogram:
        lines += ["", *_histogram(summary)]
    if summary.stale:
        lines += [
            "",
            "instances that refuse what inspects as accepted:",
            *(f"  - {name}" for name in summary.stale[:20]),
        ]
    lines += ["", "most likely:", *(f"  - {line}" for line in summary.likely), ""]
    lines += [f"note: {text}" for text in _notes(summary, sight)]
    held = f", generation {sight.keyset.generation}" if sight.keyset is not None else ""
    lines.append(f"held against {sight.source}{held}; no MCP server was contacted, nothing was sent to one")
    return "\n".join(escape(line).replace("\n", "\\n") for line in lines)


def _notes(summary: Summary, sight: Sight) -> list[str]:
    """What could not be had, and what the counts do not say."""
    counts, notes = summary.counts, list(sight.notes)
    if counts["log_lines"] and counts["tokens"]:
        # A log line names neither token nor call: to match it with a capture would be to guess.
        notes.append("log lines and captured tokens may be of the same refusals: by reason and over time, each counts")
    return notes


def _counted(counts: Mapping[str, int], limit: int = 12) -> list[str]:
    largest = max(counts.values())
    lines = [f"  {count:>9,}  {_bar(count, largest, 20):<20}  {name}" for name, count in list(counts.items())[:limit]]
    if len(counts) > limit:
        lines.append(f"  {sum(list(counts.values())[limit:]):>9,}  {'':<20}  {len(counts) - limit} more")
    return lines


def _bar(count: int, largest: int, width: int) -> str:
    mark = "█" if _draws() else "#"
    return mark * max(1, round(count * width / largest))


def _histogram(summary: Summary) -> list[str]:
    starts = [parse_ms(start) // 60_000 for start, _ in summary.histogram]
    first, last = starts[0], starts[-1] + summary.minutes
    per = max(summary.minutes, -(-(last - first) // WIDTH))
    columns = [0] * (-(-(last - first) // per))
    for start, (_, count) in zip(starts, summary.histogram, strict=True):
        columns[(start - first) // per] += count
    largest = max(columns)
    marks = _BARS if _draws() else " .:-=+*#@"
    drawn = "".join(marks[0 if not n else max(1, round(n * 8 / largest))] for n in columns)
    unit = "minute" if per == 1 else f"{per} minutes"
    ends = f"{summary.histogram[0][0][:16]}Z to {summary.histogram[-1][0][:16]}Z"
    return [f"over time, one column per {unit}, at most {largest:,}:", f"  |{drawn}|", f"  {ends}"]


def _draws() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
