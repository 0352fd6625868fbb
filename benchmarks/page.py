"""docs/performance.md: the last kept run of each Python version, side by side where that says something."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tables import Table, checked, size_name, tables
from targets import SEAL, UNSEAL, targets

RESULTS = Path(__file__).parent / "results"
_INTRODUCTION = """# Performance

Written by `make bench BENCH_ARGS=--write`; do not edit. The numbers are of one machine, the ratios say more than the
microseconds: everything in a table was timed in one run, in turn, in short batches, over inputs that differ from call
to call; what a call takes is the lower quartile of its batches. `make bench` measures it where you are;
`make bench BENCH_ARGS=--check` fails where a target is missed.

![Time of one seal and unseal by size, and ratios to the SDK's built-in codec](assets/performance.svg)

Where the time goes: a codec of this kind cannot be faster than randomness, the cipher and base64 (`limit`). The
built-in codec encodes with the standard library's base64, which at 16 KiB costs ten times what the cipher costs.
"""
_REFUSALS = """![Time to refuse a token by its length](assets/refusals.svg)
"""


def keep(found: dict[str, Any]) -> Path:
    """Keep a run as the one of its Python version."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"python-{'.'.join(found['machine']['python'].split('.')[:2])}.json"
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    return path


def kept() -> list[dict[str, Any]]:
    """The kept runs, in order of the version."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("python-*.json"))]


def write(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """The page. The tables below the first are of the newest Python version measured."""
    last = runs[-1]
    parts = [_INTRODUCTION, _versions(runs).markdown(), checked(targets(last), "Targets").markdown()]
    for table in tables(last):
        parts.append(table.markdown())
        if table.title == "Refusals":
            parts.append(_REFUSALS)
    machine = last["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    parts.append(
        "## The machine\n\n"
        f"{machine['processor']}, {machine['cores']} cores, {machine['system']}; "
        f"Python {', '.join(run['machine']['python'] for run in runs)}; {versions}. "
        f"Load before the runs: {', '.join(str(run['machine']['load']) for run in runs)}.\n"
    )
    if max(run["machine"]["load"] for run in runs) > machine["cores"] / 2:
        parts.append(
            "The machine was busy with other work meanwhile, so that the tails of these numbers are not its own.\n"
        )
    path.write_text("\n".join(parts))


def _versions(runs: Sequence[dict[str, Any]]) -> Table:
    """mcpkeys against the built-in codec, per version and size."""
    rows = []
    for operation, bounds in (("seal", SEAL), ("unseal", UNSEAL)):
        for size, bound in bounds.items():
            found = [_ratio(run, operation, size) for run in runs]
            rows.append((f"{operation} {size_name(size)}", f"≤ {bound:.2f}", *(f"{value:.2f}" for value in found)))
    return Table(
        "Against the SDK's built-in codec",
        "Ratio of the time of one call: 0.25 is four times as fast. All bookkeeping is included: state of the ring, "
        "counters, times of last use, limits.",
        ("operation", "target", *(f"Python {run['machine']['python']}" for run in runs)),
        rows,
    )


def _ratio(run: dict[str, Any], operation: str, size: int) -> float:
    return next(
        float(row["ratio"])
        for row in run["sealing"]["rows"]
        if (row["name"], row["operation"], row["bytes"]) == ("mcpkeys", operation, size)
    )
