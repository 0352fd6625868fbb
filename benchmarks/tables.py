"""The results as tables: rows of strings, printed as aligned text or as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from targets import Target


@dataclass(frozen=True)
class Table:
    """A heading, one sentence of what is shown, the columns' names and the rows."""

    title: str
    about: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """For a terminal."""
        widths = [max(len(row[i]) for row in [self.columns, *self.rows]) for i in range(len(self.columns))]
        lines = [
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in [self.columns, *self.rows]
        ]
        return "\n".join([self.title, *(f"  {line}" for line in lines)])

    def markdown(self) -> str:
        """For a page."""
        rule = ["---", *["---:"] * (len(self.columns) - 1)]
        lines = ["| " + " | ".join(row) + " |" for row in [self.columns, rule, *self.rows]]
        return "\n".join([f"## {self.title}", "", self.about, "", *lines, ""])


def tables(found: dict[str, Any]) -> list[Table]:
    """One for each part that was measured."""
    made: list[Table] = []
    if "sealing" in found:
        made += [_sealing(found["sealing"], operation) for operation in ("seal", "unseal")]
    if "rings" in found:
        made.append(_rings(found["rings"]))
    if "refusals" in found:
        made.append(_refusals(found["refusals"]))
    if "throughput" in found:
        made.append(_throughput(found["throughput"]))
    if "stall" in found:
        made.append(_stall(found["stall"]))
    if "kms" in found:
        made.append(_kms(found["kms"]))
    if "commands" in found:
        made.append(_commands(found["commands"]))
    if "triage" in found:
        made.append(_triage(found["triage"]))
    return made


def checked(results: Sequence[Target], title: str = "Targets") -> Table:
    """Every target with what was measured and what is left of its bound."""
    return Table(
        title,
        "What has to hold, what was measured, and how much of the bound is left.",
        ("target", "measured", "bound", "left", ""),
        [
            (
                one.name,
                f"{_short(one.measured)}{one.unit}",
                f"{'≥' if one.at_least else '≤'} {_short(one.bound)}{one.unit}",
                f"{one.margin:+.0%}" if one.bound else "",
                "met" if one.met else "MISSED",
            )
            for one in results
        ],
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.3g}"


def size_name(size: int) -> str:
    """300 B, 4 KiB."""
    return f"{size} B" if size % 1024 else f"{size // 1024} KiB"


def _sealing(found: dict[str, Any], operation: str) -> Table:
    rows = [row for row in found["rows"] if row["operation"] == operation]
    sizes, names = list(dict.fromkeys(r["bytes"] for r in rows)), list(dict.fromkeys(r["name"] for r in rows))
    by = {(row["name"], row["bytes"]): row for row in rows}
    return Table(
        operation.capitalize(),
        f"Microseconds of one {operation} by size of the payload; in brackets the ratio to the SDK's built-in codec.",
        (operation, *map(size_name, sizes)),
        [(name, *(f"{by[name, size]['us']:.2f} ({by[name, size]['ratio']:.2f})" for size in sizes)) for name in names],
    )


def _rings(found: dict[str, Any]) -> Table:
    return Table(
        "Keys in the ring",
        f"Unsealing {size_name(found['bytes'])} under any of the ring's keys.",
        ("keys", "µs", "ratio to 1"),
        [(str(row["keys"]), f"{row['us']:.2f}", f"{row['ratio']:.2f}") for row in found["rows"]],
    )


def _refusals(found: dict[str, Any]) -> Table:
    rows = found["rows"]
    lengths, kinds = sorted({row["chars"] for row in rows}), list(dict.fromkeys(row["kind"] for row in rows))
    by = {(row["kind"], row["chars"]): row for row in rows}
    return Table(
        "Refusals",
        "Microseconds to refuse a token, the exception included, by its length in characters. `wrong tag` has a known "
        "header and a body that decodes: the worst legal case.",
        ("refused for", *(f"{length:,}" for length in lengths)),
        [(kind, *(f"{by[kind, n]['us']:.2f}" if (kind, n) in by else "" for n in lengths)) for kind in kinds],
    )


def _throughput(found: dict[str, Any]) -> Table:
    return Table(
        "Two threads, two processes",
        f"Rounds (one seal, one unseal, {size_name(found['bytes'])}) per second.",
        ("codec", "1 thread", "2 threads", "2 processes"),
        [
            (row["name"], f"{row['thread']:,.0f}", f"{row['threads_2']:,.0f}", f"{row['processes_2']:,.0f}")
            for row in found["rows"]
        ],
    )


def _stall(found: dict[str, Any]) -> Table:
    return Table(
        "An event loop beside a busy thread",
        f"Microseconds for which one round ({size_name(found['bytes'])}) holds the event loop, alone and beside a "
        "thread that runs Python without pause.",
        ("codec", "busy thread", "median", "99 %", "worst"),
        [
            (
                row["name"],
                "yes" if row["busy"] else "no",
                f"{row['median_us']:,.0f}",
                f"{row['p99_us']:,.0f}",
                f"{row['max_us']:,.0f}",
            )
            for row in found["rows"]
        ],
    )


def _kms(found: dict[str, Any]) -> Table:
    return Table(
        "Start under a KMS",
        "Milliseconds until `EnvelopeCodec.open` has every key, by what a call to the KMS takes; all in parallel.",
        ("live keys", "KMS latency, ms", "open, ms", "KMS calls"),
        [
            (str(row["keys"]), f"{row['latency_ms']:.0f}", f"{row['open_ms']:.0f}", str(row["kms_calls"]))
            for row in found["rows"]
        ],
    )


def _commands(found: dict[str, Any]) -> Table:
    return Table(
        "Imports and commands",
        "Milliseconds from the start of a process to its end, and the ratio to a bare click program that imports "
        "pydantic-settings.",
        ("process", "ms", "ratio"),
        [(row["name"], f"{row['ms']:.0f}", f"{row['ratio']:.2f}") for row in found["rows"]],
    )


def _triage(found: dict[str, Any]) -> Table:
    return Table(
        "Triage",
        f"Tokens judged per second of one core, of {found['tokens']:,} different ones.",
        ("input", "tokens/s"),
        [(row["name"], f"{row['tokens_per_second']:,.0f}") for row in found["rows"]],
    )
