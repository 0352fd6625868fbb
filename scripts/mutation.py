"""Mutation testing of the pure cores: `python scripts/mutation.py [MODULE ...] [--sample N] [--seed S] [--json FILE]`.

For each mutant (scripts/mutants.py) a forked process loads the mutated module in place of the right one and runs the
tests that are about it, until the first one fails. A mutant that no test notices survives: a test is missing, or the
change makes no difference. `--write` writes docs/mutation.md, with the reasons kept in scripts/mutation.json.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.util
import json
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(Path(__file__).parent))

from mutants import Mutant, mutants  # noqa: E402

_BOUNDS = "tests/core/test_bounds.py"
_TOKENS = ["tests/core/test_ring.py", _BOUNDS, "tests/vectors/test_vectors.py", "tests/core/test_token.py"]
_DOCUMENTS = ["tests/core/test_document.py", "tests/vectors/test_vectors.py"]
# Not the model check, nor the differential test against the SDK's boundary: 10 to 20 s of the processor for each
# survivor, in which they could only raise the score.
_ROTATION = [
    f"tests/rotation/test_{name}.py" for name in ("standing", "gates", "written", "describe", "plan_properties")
]
_INSPECTION = ["tests/inspection/test_inspection.py", "tests/inspection/test_golden.py"]
TESTS: dict[str, list[str]] = {
    "token": _TOKENS,
    "ring": _TOKENS,
    "encoding": [
        "tests/core/test_document.py",
        _BOUNDS,
        "tests/vectors/test_vectors.py",
        "tests/fuzz/test_found.py",
        "tests/core/test_token.py",
    ],
    "strictjson": _DOCUMENTS,
    "keyset": [*_DOCUMENTS, _BOUNDS, "tests/rotation/test_gates.py"],
    "document": _DOCUMENTS,
    "rotation": ["tests/rotation/test_written.py", *_ROTATION],
    "gates": _ROTATION,
    "transitions": ["tests/core/test_transitions.py", _BOUNDS, *_ROTATION],
    "steps": [*_ROTATION, "tests/core/test_emergency.py", "tests/core/test_transitions.py"],
    "fleet": ["tests/rotation/test_describe.py", *_ROTATION],
    "standing": _ROTATION,
    "preconditions": ["tests/rotation/test_preconditions.py", *_ROTATION],
    "emergency": ["tests/core/test_emergency.py", *_ROTATION],
    "inspection": _INSPECTION,
    "claims": ["tests/core/test_claims.py", _BOUNDS, "tests/inspection/test_inspection.py"],
    "opening": ["tests/core/test_opening.py", _BOUNDS, *_INSPECTION],
    "call": _INSPECTION,
    "difference": ["tests/inspection/test_explanation.py", _BOUNDS, "tests/inspection/test_golden.py"],
    "audience": ["tests/audience/test_audience_names.py", "tests/audience/test_audience_command.py"],
}
REASONS = Path(__file__).with_suffix(".json")
EXAMPLES = 40
"""Of hypothesis, for each property and mutant."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the mutated module for its name, and nothing else."""

    def __init__(self, name: str, path: Path, mutant: Mutant) -> None:
        self.name, self.path, self.mutant = name, path, mutant

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.mutant.tree, str(self.path), "exec"), module.__dict__)  # noqa: S102


class _Fewer:
    """Bounds hypothesis, whatever a test asks for."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        from hypothesis import settings

        for item in items:
            held = getattr(item.obj, "_hypothesis_internal_use_settings", None)
            if held is not None:
                item.obj._hypothesis_internal_use_settings = settings(
                    held, max_examples=min(held.max_examples, EXAMPLES), database=None, deadline=None
                )


def survives(module: str, mutant: Mutant, seconds: float) -> str:
    """`killed`, `timeout` or `survived`."""
    child = os.fork()
    if child == 0:
        os.setpgrp()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        code = 1
        # Of the processor: on a busy machine a survivor would run out of time by the clock, and count as killed.
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 1))
        try:
            import pytest

            sys.meta_path.insert(0, _Finder(f"mcpkeys.{module}", ROOT / f"src/mcpkeys/{module}.py", mutant))
            options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", "no:xdist"]
            # The first file alone: it kills most, and collecting the others costs more than running it.
            code = int(pytest.main([*options, *TESTS[module][:1]], plugins=[_Fewer()]))
            if code == 0 and TESTS[module][1:]:
                code = int(pytest.main([*options, *TESTS[module][1:]], plugins=[_Fewer()]))
        finally:
            os._exit(code)
    ends = time.monotonic() + 20 * seconds
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return "survived" if code == 0 else "timeout" if code in (-signal.SIGXCPU, -signal.SIGKILL) else "killed"
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def preload() -> None:
    """What every child needs and no mutant touches: imported once, inherited by fork."""
    import hypothesis.strategies
    import pytest
    from mcp.server.request_state import AESGCMRequestStateCodec

    assert hypothesis.strategies
    assert pytest
    assert AESGCMRequestStateCodec
    assert not [name for name in sys.modules if name == "mcpkeys" or name.startswith("mcpkeys.")]


def run(module: str, sample: int, seed: int, seconds: float) -> dict[str, Any]:
    """The score of one module, over at most `sample` of its mutants."""
    every = list(mutants((ROOT / f"src/mcpkeys/{module}.py").read_text()))
    chosen = every if len(every) <= sample else random.Random(f"{seed} {module}").sample(every, sample)  # noqa: S311
    survivors, killed = [], 0
    for mutant in sorted(chosen, key=lambda mutant: mutant.line):
        verdict = survives(module, mutant, seconds)
        if verdict == "survived":
            survivors.append({"line": mutant.line, "what": mutant.what, "source": mutant.source})
            print(f"  {module}:{mutant.line}: {mutant.what}: {mutant.source}", flush=True)
        else:
            killed += 1
            if verdict == "timeout":
                print(f"  {module}:{mutant.line}: {mutant.what}: killed for taking too long", flush=True)
    print(f"{module}: {killed} of {len(chosen)} killed ({len(every)} in all)", flush=True)
    counts = {"mutants": len(every), "tried": len(chosen), "killed": killed}
    return {"module": module, "seed": seed, **counts, "survivors": survivors}


def _earlier(path: Path) -> str:
    """The score of a seed whose survivors were read."""
    results = json.loads(path.read_text())
    tried, killed = sum(r["tried"] for r in results), sum(r["killed"] for r in results)
    return f"seed {results[0]['seed']}, {killed} of {tried} ({killed / tried:.1%}) in {len(results)} modules"


def write(results: list[dict[str, Any]], given: argparse.Namespace) -> None:
    """docs/mutation.md."""
    reasons = {(r["module"], r["what"], r["source"]): r["why"] for r in json.loads(REASONS.read_text())}
    tried, killed = sum(r["tried"] for r in results), sum(r["killed"] for r in results)
    left = [name for name in TESTS if name not in {r["module"] for r in results}]
    lines = [
        "# Mutation testing",
        "",
        "Written by `python scripts/mutation.py --write`; do not edit. Each mutant is a pure core with one thing "
        "changed (a comparison, a constant, a condition, a statement left out, a value not returned) that the tests "
        f"about it have to notice. At most {given.sample} mutants a module were tried, drawn with seed "
        f"{results[0]['seed']}; hypothesis had at most {EXAMPLES} examples a property. The slowest tests, the search "
        "of every interleaving (tests/rotation/test_model_check.py) and the comparison with the SDK's boundary "
        "(tests/inspection/test_differential.py), did not take part: they could only kill more.",
        "",
        f"**{killed} of {tried} killed: {killed / tried:.1%}.**",
        "",
        "This seed is fresh: it was drawn when the tests were finished, and the score is from then. Where a gap that "
        "it found has been closed since, the table of survivors says so; the score stays."
        + (
            " The tests were written against the survivors of other seeds, which scored while they were written: "
            f"{'; '.join(_earlier(path) for path in given.earlier)}."
            if given.earlier
            else ""
        ),
        *(["", f"Not tried in these results: {', '.join(f'`{name}`' for name in left)}."] if left else []),
        "",
        "| module | mutants | tried | killed | score |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(
            f"| `{r['module']}` | {r['mutants']} | {r['tried']} | {r['killed']} | {r['killed'] / r['tried']:.0%} |"
            for r in results
        ),
        "",
        "## Survivors",
        "",
        "| where | change | line | why it survives |",
        "| --- | --- | --- | --- |",
    ]
    for r in results:
        for s in r["survivors"]:
            why = reasons.get((r["module"], s["what"], s["source"]), "not looked into yet")
            source = s["source"].replace("|", "\\|")
            lines.append(f"| `{r['module']}` | {s['what'].replace('|', chr(92) + '|')} | `{source}` | {why} |")
    (ROOT / "docs/mutation.md").write_text("\n".join(lines) + "\n")


def main(arguments: list[str]) -> int:
    """Try them; 1 where the score is below 90 %."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module", nargs="*", help=f"of {', '.join(TESTS)}; all by default")
    parser.add_argument("--sample", type=int, default=10_000, help="at most so many mutants a module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=90, help="of the processor for one mutant; then it is killed")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--write", nargs="*", type=Path, help="write docs/mutation.md, of these results where given")
    parser.add_argument("--earlier", nargs="*", type=Path, default=[], help="results that tests were written against")
    given = parser.parse_args(arguments)
    os.chdir(ROOT)
    if given.write:
        results = [result for path in given.write for result in json.loads(path.read_text())]
    else:
        preload()
        results = []
        for module in given.module or TESTS:
            results.append(run(module, given.sample, given.seed, given.seconds))
            if given.json:
                given.json.write_text(json.dumps(results, indent=1) + "\n")
    if given.write is not None:
        write(results, given)
    tried, killed = sum(r["tried"] for r in results), sum(r["killed"] for r in results)
    print(f"{killed} of {tried} killed: {killed / tried:.1%}")
    return 0 if killed >= 0.9 * tried else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
