"""The MCP conformance scenarios for requestState, against a server with this codec (`make conformance`).

The suite is an npm package, run by npx with a node of the version it needs; the server is the SDK's own, out of its
sdist. Neither is committed. Then the control: with a codec that checks nothing, the scenario for tampered state
has to fail, or its passing says nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "sdk"))

from run import fetched, unpacked  # noqa: E402  (the sdist that make test-sdk fetches)

SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
# Offline where it can: fetched once, not asked about for every scenario.
NPX = ("npx", "--yes", "--prefer-offline", "-p", "node@22", "-p", SUITE, "conformance")
WORK = HERE.parents[1] / ".cache" / "conformance"
PREFIX = "input-required-result-"
SCENARIOS = (
    "basic-elicitation",
    "basic-sampling",
    "basic-list-roots",
    "request-state",
    "multi-round",
    "tampered-state",
    "multiple-input-requests",
    "missing-input-response",
    "non-tool-request",
    "result-type",
    "unsupported-methods",
    "capability-check",
    "ignore-extra-params",
    "validate-input",
)
CONTROL = "tampered-state"


@contextmanager
def serving(folder: Path, codec: str) -> Iterator[str]:
    """The URL of a server with that codec, stopped afterwards."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MCPKEYS_")}
    command = [sys.executable, str(HERE / "server.py"), str(folder), codec]
    WORK.mkdir(parents=True, exist_ok=True)
    with (
        (WORK / f"server-{codec}.log").open("w") as log,
        subprocess.Popen(command, env=clean, stdout=subprocess.PIPE, stderr=log, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            if not url:
                raise SystemExit(f"conformance: the server did not start; {log.name} says why")
            yield url
        finally:
            server.terminate()


def passes(url: str, scenario: str) -> tuple[bool, str]:
    """Whether the server passes one scenario, and what the suite said."""
    command = [*NPX, "server", "--url", url, "--scenario", PREFIX + scenario]
    done = subprocess.run(
        command, cwd=WORK, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180, check=False
    )
    return done.returncode == 0, done.stdout + done.stderr


def main() -> int:
    if shutil.which("npx") is None:
        print("conformance: npx is not on PATH. Next: install Node.js with npm, then run this again.", file=sys.stderr)
        return 2
    folder = unpacked(fetched(), "conformance") / "examples" / "servers" / "everything-server"
    failed = []
    with serving(folder, "mcpkeys") as url:
        for scenario in SCENARIOS:
            passed, said = passes(url, scenario)
            print(f"{'passed' if passed else 'FAILED'}  {PREFIX}{scenario}", flush=True)
            if not passed:
                failed.append(scenario)
                print(said)
    with serving(folder, "none") as url:
        passed, said = passes(url, CONTROL)
        # A suite that could not run fails as well; the control counts only if the scenario itself said no.
        refused = not passed and "FAILURE" in said and PREFIX + CONTROL in said
        print(f"{'passed' if refused else 'FAILED'}  control: without integrity, {PREFIX}{CONTROL} fails", flush=True)
        if not refused:
            failed.append("control")
            print(said)
    print(f"{len(SCENARIOS) + 1 - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
