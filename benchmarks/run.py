"""Measure everything that docs/performance.md tells, in one run, side by side.

    python benchmarks/run.py [--smoke] [--only PART] [--json FILE] [--check] [--write] [--keep FILE ...]

The commands (`make bench BENCH_ARGS=...`): `--smoke` is small and quick, to show that everything still runs;
`--check` exits 1 where a target is missed; `--write` keeps the run as its Python version's and writes the page.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import machine
import page
import parallel
import plot
import refusals
import sealing
import startup
import states
import tables
import triaging
from targets import targets

DOCS = Path(__file__).parent.parent / "docs"


def parts(folder: Path, *, smoke: bool) -> dict[str, Callable[[], dict[str, Any]]]:
    """Every part of a run, in the order of the page."""
    turns = 12 if smoke else 100
    return {
        "sealing": lambda: sealing.by_size(folder, (300, 4096) if smoke else states.SIZES, turns=turns),
        "rings": lambda: sealing.by_ring(folder, turns=turns),
        "refusals": lambda: refusals.by_length(
            folder,
            turns=12 if smoke else 25,
            passes=1 if smoke else 6,
            lengths=refusals.LENGTHS[::3] if smoke else refusals.LENGTHS,
            beyond=refusals.BEYOND[:1] if smoke else refusals.BEYOND,
        ),
        "throughput": lambda: parallel.throughput(folder, seconds=0.3 if smoke else 3.0),
        "stall": lambda: parallel.loop_stall(folder, seconds=0.3 if smoke else 3.0),
        "kms": lambda: startup.under_kms(
            keys=(1, 3, 10), latencies=(0.010,) if smoke else (0.010, 0.050), turns=1 if smoke else 7
        ),
        "commands": lambda: startup.imports_and_commands(folder, turns=1 if smoke else 9),
        "triage": lambda: triaging.rate(folder, tokens=2_000 if smoke else 40_000, turns=1 if smoke else 5),
    }


def published() -> None:
    """The page and its plots, of the kept runs."""
    versions = page.kept()
    page.write(versions, DOCS / "performance.md")
    plot.draw(versions[-1][-1], DOCS / "assets")


def main(arguments: list[str]) -> int:
    """One run; its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="small and quick: does everything still run?")
    parser.add_argument("--only", action="append", metavar="PART", help="only this part (repeatable)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    parser.add_argument("--write", action="store_true", help="keep the run and write docs/performance.md and its plots")
    parser.add_argument("--keep", nargs="+", type=Path, metavar="FILE", help="write the page of these, measure nothing")
    given = parser.parse_args(arguments)
    if given.keep:
        for path in given.keep:
            page.keep(json.loads(path.read_text()))
        published()
        return 0
    found: dict[str, Any] = {"machine": machine.described()}
    with tempfile.TemporaryDirectory(prefix="mcpkeys-bench-") as folder:
        measured = parts(Path(folder), smoke=given.smoke)
        if unknown := sorted(set(given.only or ()) - set(measured)):
            parser.error(f"no part {', '.join(unknown)}; there are {', '.join(measured)}")
        if given.write and (given.smoke or given.only):
            parser.error("--write takes a whole run")
        for name, measure in measured.items():
            if given.only and name not in given.only:
                continue
            started = time.perf_counter()
            found[name] = measure()
            print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    checked = targets(found)
    for table in tables.tables(found):
        print(table.text(), end="\n\n")
    if checked:
        print(tables.checked(checked).text())
    for name in found.get("sealing", {}).get("missing", ()):
        print(f"not compared with {name}: not installed (requirements/bench.txt)", file=sys.stderr)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    if given.write:
        page.keep(found)
        published()
    missed = [one for one in checked if not one.met]
    print(
        f"\n{len(checked) - len(missed)} of {len(checked)} targets met"
        + (" (a small run proves none)" if given.smoke else "")
    )
    return 1 if given.check and missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
