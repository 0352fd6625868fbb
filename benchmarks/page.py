"""docs/performance.md: the last runs of each Python version, side by side where that says something."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tables import Table, checked, size_name, tables
from targets import SEAL, UNSEAL, Target, targets
from timing import SLOWED

RESULTS = Path(__file__).parent / "results"
RUNS = 3
"""In a row, per Python version: what the page tells of."""
_INTRODUCTION = """# Performance

Written by `make bench BENCH_ARGS=--write`; do not edit. The numbers are of one machine, the ratios say more than the
microseconds: everything in a table was timed in one run, in turn, in short batches, over inputs that differ from call
to call; what a call takes is the median of its batches. Only batches count beside which a plain loop ran at the better
speed that it has on the machine: a shared processor, as every virtual one is, has two. `make bench` measures it where
you are; `make bench BENCH_ARGS=--check` fails where a target is missed.

![Time of one seal and unseal by size, and ratios to the SDK's built-in codec](assets/performance.svg)

Where the time goes: a codec of this kind cannot be faster than randomness, the cipher and base64 (`limit`). The
built-in codec encodes with the standard library's base64, which at 16 KiB costs ten times what the cipher costs.
"""
_REFUSALS = """Of a token whose header is known, base64 and the cipher have to be run before anything can be refused:
`limit` is what the two libraries take for it, here and in this run, with nothing around them. Where that alone is above
25 µs for 65,536 characters, the bound cannot be met on the machine.

![Time to refuse a token by its length](assets/refusals.svg)
"""


def keep(found: dict[str, Any]) -> Path:
    """Keep a run, and the two before it, as those of its Python version."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"python-{'.'.join(found['machine']['python'].split('.')[:2])}.json"
    before = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*before[1 - RUNS :], found], indent=1, sort_keys=True) + "\n")
    return path


def kept() -> list[list[dict[str, Any]]]:
    """The kept runs of each version, in order of the version, the latest last."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("python-*.json"))]


def write(versions: Sequence[Sequence[dict[str, Any]]], path: Path) -> None:
    """The page. The tables below the second are of the last run of the newest Python version measured."""
    runs = [run for of_version in versions for run in of_version]
    last = runs[-1]
    parts = [_INTRODUCTION, _versions(versions).markdown(), _worst(runs).markdown()]
    for table in tables(last):
        parts.append(table.markdown())
        if table.title == "Refusals":
            parts.append(_REFUSALS)
    machine = last["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    parts.append(
        "## The machine\n\n"
        f"{machine['processor']}, {machine['cores']} cores, {machine['system']}; "
        f"Python {', '.join(of_version[-1]['machine']['python'] for of_version in versions)}; {packages}. "
        f"Load before the runs: {', '.join(str(run['machine']['load']) for run in runs)}.\n"
    )
    if not all(run["machine"]["optimised"] for run in runs):
        parts.append(
            "Not all of these Pythons were built with `--enable-optimizations`: what is not base64 or cipher takes "
            "longer in them than in those that distributions ship.\n"
        )
    parts.append(_aside(runs))
    path.write_text("\n".join(parts))


def _versions(versions: Sequence[Sequence[dict[str, Any]]]) -> Table:
    """mcpkeys against the built-in codec, per version and size."""
    rows = []
    for operation, bounds in (("seal", SEAL), ("unseal", UNSEAL)):
        for size, bound in bounds.items():
            found = [max(_ratio(run, operation, size) for run in runs) for runs in versions]
            rows.append((f"{operation} {size_name(size)}", f"≤ {bound:.2f}", *(f"{value:.2f}" for value in found)))
    return Table(
        "Against the SDK's built-in codec",
        "Ratio of the time of one call, the worst of the runs in a row: 0.25 is four times as fast. All bookkeeping is "
        "included: state of the ring, counters, times of last use, limits.",
        ("operation", "target", *(f"Python {runs[-1]['machine']['python']}, {len(runs)} runs" for runs in versions)),
        rows,
    )


def _worst(runs: Sequence[dict[str, Any]]) -> Table:
    """Every target, by the run that came nearest to its bound or missed it by most."""
    found: dict[str, list[Target]] = {}
    for run in runs:
        for target in targets(run):
            found.setdefault(target.name.partition(", worst at")[0], []).append(target)
    missed = {name: sum(not one.met for one in measured) for name, measured in found.items()}
    worst = checked([min(measured, key=lambda one: one.margin) for measured in found.values()])
    return Table(
        "Targets",
        f"What has to hold, the worst of {len(runs)} runs, and how much of the bound is left there.",
        (*worst.columns[:-1], "runs missed"),
        [(*row[:-1], str(missed[name]) if missed[name] else "") for name, row in zip(found, worst.rows, strict=True)],
    )


def _aside(runs: Sequence[dict[str, Any]]) -> str:
    """How much of what was timed does not count."""
    worst = {name: max(run[name]["aside"] for run in runs) for name in ("sealing", "rings", "refusals", "triage")}
    listed = ", ".join(f"{share:.0%} of {name}" for name, share in worst.items())
    return (
        f"Set aside, because the plain loop beside it took over {SLOWED} times its best, in the worst table of the "
        f"worst run: {listed}. Where less than a third of the turns asked for would be left, more were taken. The load "
        "tells little of it: in a row it is that of the run before, and what shares a virtual processor is not in it. "
        "What has no such loop beside it is told as it was timed: threads, the event loop, starts and commands.\n"
    )


def _ratio(run: dict[str, Any], operation: str, size: int) -> float:
    return next(
        float(row["ratio"])
        for row in run["sealing"]["rows"]
        if (row["name"], row["operation"], row["bytes"]) == ("mcpkeys", operation, size)
    )
