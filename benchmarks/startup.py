"""What starting costs: a server's codec under a slow KMS, the imports, the commands."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keysets
from states import payloads

from mcpkeys import EnvelopeCodec
from mcpkeys.instance import Instance
from mcpkeys.keks import Keks
from mcpkeys.keyset import dumps
from mcpkeys.loading import Loader, Pins
from mcpkeys.testing import FakeKek, FakePlace

BARE = """import click
import pydantic_settings

@click.command()
@click.option("--name", default="world")
def command(name: str) -> None:
    click.echo(f"hello {name}")

command()
"""
"""A bare click program that imports pydantic-settings: what any command of this kind starts from."""


def under_kms(*, keys: Sequence[int], latencies: Sequence[float], turns: int) -> dict[str, Any]:
    """Milliseconds of `EnvelopeCodec.open` and its KMS calls, the KMS taking `latency` seconds for each."""
    rows = []
    for count in keys:
        for latency in latencies:
            taken, calls = [], 0
            for _ in range(turns):
                kek, place = FakeKek(), FakePlace()
                document = keysets.signed_keyset([kek.open()], keys=count)
                place.document = dumps(document)
                before = kek.gate.calls["unwrap"]
                kek.faults.latency = latency
                loader = Loader(place.open(), Keks([kek.open()]), Pins(document.name, (document.signer.public,)))
                started = time.perf_counter()
                codec = EnvelopeCodec._begin(loader, Instance("bench"), inline=False, mint_sdk=False)
                taken.append(time.perf_counter() - started)
                calls = kek.gate.calls["unwrap"] - before
                codec.close()
            rows.append(
                {
                    "keys": count,
                    "latency_ms": latency * 1e3,
                    "open_ms": statistics.median(taken) * 1e3,
                    "kms_calls": calls,
                }
            )
    return {"rows": rows}


def imports_and_commands(folder: Path, *, turns: int) -> dict[str, Any]:
    """Milliseconds from the start of a process to its end, and ratios to a bare click program."""
    opened = keysets.local(folder / "commands")
    with EnvelopeCodec.open(**opened) as codec:
        token = codec.seal(payloads(300, 1)[0])
    sealed, bare = folder / "token.txt", folder / "bare.py"
    sealed.write_text(token)
    bare.write_text(BARE)
    command = [sys.executable, "-c", "from mcpkeys_cli.start import run; run()"]
    rows = _processes(
        {
            "python -c pass": [sys.executable, "-c", "pass"],
            "bare click program": [sys.executable, str(bare)],
            "mcpkeys --help": [*command, "--help"],
            "mcpkeys inspect, local keyset": [*command, "inspect", "--file", str(sealed), "--no-reports"],
            "mcpkeys inspect, local keyset, reports": [*command, "inspect", "--file", str(sealed)],
            "mcpkeys status": [*command, "status"],
            "import mcpkeys": [sys.executable, "-c", "import mcpkeys"],
            "import mcp.server": [sys.executable, "-c", "import mcp.server"],
            "import EnvelopeCodec": [sys.executable, "-c", "from mcpkeys import EnvelopeCodec"],
        },
        {**_quiet(), **keysets.environ(opened)},
        turns,
    )
    return {"rows": rows, "foreign": _foreign(command, sealed, {**_quiet(), **keysets.environ(opened)})}


def _quiet() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MCPKEYS_")}
    # A plugin of pydantic that happens to be installed here would load with every model: not what is measured.
    return {**kept, "NO_COLOR": "1", "AWS_EC2_METADATA_DISABLED": "true", "PYDANTIC_DISABLE_PLUGINS": "__all__"}


def _processes(work: Mapping[str, Sequence[str]], env: Mapping[str, str], turns: int) -> list[dict[str, Any]]:
    taken: dict[str, list[float]] = {name: [] for name in work}
    order = list(work)
    for turn in range(turns + 1):
        random.shuffle(order)
        for name in order:
            started = time.perf_counter()
            done = subprocess.run(work[name], env=env, capture_output=True, check=False)
            if turn:  # the first one wrote the byte code
                taken[name].append(time.perf_counter() - started)
            assert done.returncode == 0, (name, done.returncode, done.stderr[-300:])
    bare = taken["bare click program"]
    return [
        {
            "name": name,
            "ms": statistics.median(times) * 1e3,
            "ratio": statistics.median(a / b for a, b in zip(times, bare, strict=True)),
        }
        for name, times in taken.items()
    ]


def _foreign(command: Sequence[str], sealed: Path, env: Mapping[str, str]) -> list[str]:
    """Modules of the SDK or of a cloud that `--help` or `inspect` imported: none."""
    found: set[str] = set()
    for arguments in (["--help"], ["inspect", "--file", str(sealed)]):
        probe = [command[0], "-X", "importtime", *command[1:], *arguments]
        done = subprocess.run(probe, env=env, capture_output=True, text=True, check=False)
        names = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
        found |= names & {"mcp", "boto3", "botocore", "google", "grpc", "hvac"}
    return sorted(found)
