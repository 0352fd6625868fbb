"""The demo keeps its promises, and leaves nothing behind however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the demo's children in /proc"),
]
FROZEN = {"code": -32602, "message": "Invalid or expired requestState", "data": {"reason": "invalid_request_state"}}


def children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name_ends = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(name_ends[1]) == parent and name_ends[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def alive(pids: list[int]) -> list[int]:
    left = []
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                left.append(pid)
        except OSError:
            continue
    return left


def within(seconds: float, reached: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


@contextmanager
def demo(folder: Path) -> Iterator[subprocess.Popen[str]]:
    environ = {**os.environ, "TMPDIR": str(folder), "MCPKEYS_KEYSET": "/nowhere", "NO_COLOR": "1"}
    with (folder / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "mcpkeys_cli", "demo", "--output", "json"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def at_work(process: subprocess.Popen[str], folder: Path) -> list[int]:
    """Once the clients call: the pids of the servers and the balancer."""
    assert within(60, lambda: "clients call" in (folder / "stderr").read_text()), (folder / "stderr").read_text()
    started = children(process.pid)
    assert len(started) == 4
    return started


def test_the_demo_says_what_it_promises(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        out, _ = process.communicate(timeout=200)
    said = json.loads(out)
    assert (process.returncode, said["ok"], said["rounds_refused"], said["calls_failed"]) == (0, True, 0, {}), said
    assert said["calls_completed"] >= 300
    assert said["rounds_completed"] > said["calls_completed"], "calls of several rounds"
    assert said["processes"] >= 3
    assert said["restarts"] == 1
    assert [phase["phase"] for phase in said["phases"]] == [1, 2, 3]
    assert all(phase["started_at"] < phase["finished_at"] for phase in said["phases"])
    assert all(phase["calls"] > 0 for phase in said["phases"]), "traffic went on in each phase"
    assert [ran["exit"] for ran in said["commands"]] == [0, 0, 0, 0], "init and the three phases, by the command"
    reasons = [(refusal["kind"].split()[0], refusal["reason"]) for refusal in said["refusals"]]
    assert reasons == [
        ("tampered", "seal"),
        ("expired", "expired"),
        ("replayed", "request binding"),
        ("foreign", "unknown key"),
    ]
    assert all(refusal["wire"] == FROZEN for refusal in said["refusals"])
    assert not list(tmp_path.glob("mcpkeys-demo-*"))


def test_a_helper_that_dies_ends_the_demo_with_its_last_words(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        started = at_work(process, tmp_path)
        os.kill(started[0], signal.SIGKILL)
        out, _ = process.communicate(timeout=60)
        error = json.loads(out)["error"]
        assert (process.returncode, error["code"]) == (4, "process-ended"), error
        assert "SIGKILL" in error["message"]
        assert alive(started) == []
        assert not list(tmp_path.glob("mcpkeys-demo-*"))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_demo(tmp_path: Path, how: signal.Signals) -> None:
    with demo(tmp_path) as process:
        started = at_work(process, tmp_path)
        process.send_signal(how)
        process.communicate(timeout=60)
        assert process.returncode == (-signal.SIGKILL if how == signal.SIGKILL else 130)
        assert within(15, lambda: not alive(started)), "a child outlived it"
        if how != signal.SIGKILL:
            assert not list(tmp_path.glob("mcpkeys-demo-*"))
