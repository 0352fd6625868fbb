"""Fuzz for as long as asked: `python tests/fuzz/run.py --seconds 600 [--target NAME] [--keep] [--engine own|atheris]`.

`atheris` (a coverage-guided fuzzer over libFuzzer) is used where it is installed; otherwise an engine of our own does
the same more slowly: it follows which lines of the package an input reaches and goes on from inputs that reach new
ones. What breaks a promise is printed, written beside the corpus as `crash-...`, and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import random
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from fuzz import corpus  # noqa: E402

PACKAGES = ("mcpkeys", "mcpkeys_local", "mcpkeys_aws", "mcpkeys_gcp", "mcpkeys_vault")


class Coverage:
    """The lines of our packages that were reached, by `sys.settrace`."""

    def __init__(self) -> None:
        self.seen: set[tuple[CodeType, int]] = set()
        self._new = False
        self._ours: dict[str, bool] = {}

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        name = frame.f_code.co_filename
        ours = self._ours.get(name)
        if ours is None:
            ours = self._ours[name] = frame.f_globals.get("__name__", "").partition(".")[0] in PACKAGES
        return self._line if ours else None

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        at = frame.f_code, frame.f_lineno
        if at not in self.seen:
            self.seen.add(at)
            self._new = True
        return self._line

    def reaches_new(self, call: Any, data: bytes) -> bool:
        """Call it; whether it came where nothing had come before."""
        self._new = False
        sys.settrace(self._trace)
        try:
            call(data)
        finally:
            sys.settrace(None)
        return self._new


def own(name: str, seconds: float, seed: int) -> tuple[list[bytes], list[bytes], int]:
    """(inputs that reached new places, inputs that broke a promise, executions)."""
    from fuzz.mutator import mutate
    from fuzz.targets import TARGETS

    target, r, coverage = TARGETS[name], random.Random(seed), Coverage()
    pool, crashes, executions = [], [], 0
    for data in [*target.seeds(), *corpus.read(name)]:
        coverage.reaches_new(target.check, data)
        pool.append(data)
    found: list[bytes] = []
    ends = time.monotonic() + seconds
    places: set[str] = set()
    while time.monotonic() < ends:
        data = mutate(r.choice(pool), r, pool)
        executions += 1
        try:
            if executions % 4:
                target.check(data)
                continue
            if coverage.reaches_new(target.check, data):
                found.append(data)
                pool.append(data)
        except Exception as exc:
            place = repr([(f.filename, f.lineno) for f in traceback.extract_tb(exc.__traceback__)][-1])
            if place not in places:
                places.add(place)
                crashes.append(data)
                traceback.print_exc()
                print(f"{name}: {data[:300]!r}", flush=True)
    return found, crashes, executions


ATHERIS = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import atheris, random
with atheris.instrument_imports(include=["mcpkeys", "mcpkeys_local", "mcpkeys_aws", "mcpkeys_gcp", "mcpkeys_vault"]):
    from fuzz.targets import TARGETS
from fuzz.mutator import mutate
target = TARGETS[sys.argv.pop(1)]
seeds = target.seeds()
def custom(data, limit, seed):
    r = random.Random(seed)
    return mutate(bytes(data), r, seeds)[:limit] if r.random() < 0.7 else atheris.Mutate(data, limit)
atheris.Setup(sys.argv, target.check, custom_mutator=custom)
atheris.Fuzz()
"""


def atheris(name: str, seconds: float, seed: int) -> tuple[list[bytes], list[bytes], int]:
    """The same by atheris, in a process of its own, until the time is over or something breaks."""
    from fuzz.targets import TARGETS

    with tempfile.TemporaryDirectory() as folder:
        inputs, crashes = Path(folder, "corpus"), Path(folder, "crashes")
        inputs.mkdir()
        crashes.mkdir()
        start = [*TARGETS[name].seeds(), *corpus.read(name)]
        for i, data in enumerate(start):
            (inputs / f"seed-{i}").write_bytes(data)
        options = [f"-max_total_time={int(seconds)}", f"-seed={seed % (1 << 31)}", "-max_len=20000", "-timeout=20"]
        command = [
            sys.executable,
            "-c",
            ATHERIS,
            str(ROOT),
            name,
            str(inputs),
            f"-artifact_prefix={crashes}/",
            *options,
        ]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        broken = [path.read_bytes() for path in crashes.iterdir()]
        if broken or done.returncode:
            print(done.stdout[-3000:], done.stderr[-3000:], flush=True)
        runs = [line.split()[1] for line in done.stderr.splitlines() if line.startswith("Done ")]
        found = [path.read_bytes() for path in inputs.iterdir() if not path.name.startswith("seed-")]
        return found, broken, int(runs[0]) if runs else 0


def main(arguments: list[str]) -> int:
    """Fuzz; 1 where something broke its promise."""
    from fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="in all, shared evenly by the targets")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="only this one (repeatable)")
    parser.add_argument("--seed", type=int, default=time.time_ns(), help="to repeat a run of our own engine")
    parser.add_argument("--keep", action="store_true", help="add what reached new places to the corpus")
    parser.add_argument("--engine", choices=["own", "atheris"], default=None)
    given = parser.parse_args(arguments)
    engine = given.engine or ("atheris" if importlib.util.find_spec("atheris") else "own")
    names = given.target or list(TARGETS)
    broken = 0
    for name in names:
        found, crashes, executions = {"own": own, "atheris": atheris}[engine](
            name, given.seconds / len(names), given.seed
        )
        print(f"{name}: {executions:,} inputs by {engine}, {len(found)} new, {len(crashes)} broken", flush=True)
        broken += len(crashes)
        for data in crashes:
            (corpus.FOLDER / f"crash-{name}-{hashlib.sha256(data).hexdigest()[:10]}").write_bytes(data)
        if given.keep:
            corpus.write(name, [*corpus.read(name), *found, *crashes])
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
