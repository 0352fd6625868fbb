"""Five bad nights: each fault is planted in a real fleet, and the runbook is followed until it names the cause.

Only what an engineer on call has is used: the runbook, its commands, and the files that `plant.py` leaves.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from drills import runbook
from drills.plant import FAULTS

PLANT = str(Path(__file__).with_name("plant.py"))
NUMBER = {name: number for number, name in FAULTS.items()}
LOOK, ASK, TAKE = "Look at the fleet", "Ask the logs which check refuses", "Look at one refused request"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


class OnCall:
    """Types the runbook's commands, in the place of the service that it uses as its example."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, command: str, *, at: str | None = None) -> str:
        """Everything that a command says."""
        command = command.replace("acme.orders:app", "orders:mcp").replace("capture.ndjson", "capture/ingress.ndjson")
        command = re.sub(r"^kubectl logs [^|>]*", "./logs ", command)
        command = command if at is None else f"./exec {at} {command}"
        ran = subprocess.run(
            ["sh", "-c", f". ./env.sh; {command}"],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        print(f"$ {command}\n{ran.stdout}{ran.stderr}")
        assert ran.returncode in (0, 2, 3, 4, 5, 6, 7), ran
        return ran.stdout + ran.stderr

    def follow(self, heading: str, start: str, *, at: str | None = None) -> str:
        """The runbook's own command, of those in a section, that begins like this (the last one)."""
        found = [command for command in runbook.commands(heading) if command.startswith(start)]
        assert found, f"{heading!r} no longer says {start!r}: {runbook.commands(heading)}"
        return self.run(found[-1], at=at)

    def states(self) -> dict[str, str]:
        """Step 1: each instance's state."""
        shown = self.follow(LOOK, "mcpkeys status")
        rows = re.findall(r"^\S{22}  (\S+)  +(\S+)  +\S", shown, re.M)
        assert len(rows) >= 3, shown
        return dict(rows)

    def reasons(self) -> list[str]:
        """Step 2: the reasons in the logs, the most frequent one first."""
        self.follow(ASK, "kubectl logs")
        return table(self.follow(ASK, "mcpkeys triage"), "by reason")

    @property
    def captured(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "capture/ingress.ndjson").read_text().splitlines()]


def table(shown: str, title: str) -> list[str]:
    """The names in one of triage's tables."""
    block = shown.partition(f"{title}:\n")[2].partition("\n\n")[0]
    return re.findall(r"^ *[\d,]+  \S+ +(.*)$", block, re.M)


@contextmanager
def on_call(folder: Path, fault: str) -> Iterator[tuple[OnCall, Callable[[], str | None]]]:
    """A planted fault; the second value ends the fleet and tells which instance it was."""
    process = subprocess.Popen(
        [sys.executable, PLANT, str(NUMBER[fault]), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    answer: dict[str, Any] = {}

    def end() -> str | None:
        said, problems = process.communicate(timeout=40)
        assert process.returncode == 0, problems
        answer.update(json.loads(said.splitlines()[-1]))
        assert answer["fault"] == fault
        assert not [*_running(folder)]
        return answer["instance"]

    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("you are on call"), (line, process.communicate(timeout=40))
        hint = (folder / "README.md").read_text() + (folder / "env.sh").read_text()
        assert not re.search(r"\b(stale|clock|renamed|rewrit\w+|permission)\b", hint), "the README tells the cause"
        yield OnCall(folder), end
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=40)


def _running(folder: Path) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd").startswith(str(folder)):
                yield int(entry.name)
        except OSError:
            continue


def test_a_renamed_audience_is_found(tmp_path: Path) -> None:
    with on_call(tmp_path / "night", "renamed audience") as (engineer, end):
        assert set(engineer.states().values()) == {"serving"}, "step 1 shows nothing unusual"
        assert engineer.reasons() == ["audience"]
        assert runbook.sent_to(ASK, "audience") == ["A renamed audience"]
        shown = {
            name: engineer.follow("A renamed audience", "mcpkeys check", at=name)
            for name in ("orders-1", "orders-2", "orders-3")
        }
        odd = [name for name, said in shown.items() if "audience-differs" in said]
        assert "'acme-order-service'" in shown[odd[0]]
        assert "'acme-orders'" in shown[odd[0]]
        assert odd == [end()]


def test_a_stale_instance_is_found_though_it_was_given_up(tmp_path: Path) -> None:
    with on_call(tmp_path / "night", "stale instance") as (engineer, end):
        odd = [name for name, state in engineer.states().items() if state != "serving"]
        (state,) = {state for state in engineer.states().values() if state != "serving"}
        assert runbook.sent_to(LOOK, state) == ["A stale instance"]
        reasons = engineer.reasons()
        assert reasons
        assert set(reasons) <= {"unknown key", "retired key"}
        for reason in reasons:
            assert "A stale instance" in runbook.sent_to(ASK, reason)
        assert "no findings" in engineer.follow("A stale instance", "mcpkeys doctor", at=odd[0])
        there = engineer.run("mcpkeys status", at=odd[0])
        assert "mcpkeys status" in runbook.commands("A stale instance")
        assert "generation 1 " in there
        assert there.count("silent") >= 2
        assert odd == [end()]


def test_a_wrong_clock_is_found(tmp_path: Path) -> None:
    with on_call(tmp_path / "night", "wrong clock") as (engineer, end):
        states = engineer.states()
        odd = [name for name, state in states.items() if state == "clock"]
        assert runbook.sent_to(LOOK, "clock") == ["A wrong clock"]
        assert engineer.reasons() == ["minted in the future"]
        assert runbook.sent_to(ASK, "minted in the future") == ["A wrong clock"]
        shown = engineer.follow(ASK, "cat refused.log")
        assert re.search(rf"minted in the future, \d+ times, all minted by {odd[0]} ", shown)
        said = engineer.follow(TAKE, "mcpkeys inspect")
        assert "minted 5 min in the future" in said
        assert re.search(rf"{odd[0]} \(\S+\) reports a clock 5 min ahead", said)
        assert odd == [end()]


def test_a_proxy_that_rewrites_arguments_is_found(tmp_path: Path) -> None:
    with on_call(tmp_path / "night", "rewritten arguments") as (engineer, end):
        assert set(engineer.states().values()) == {"serving"}
        assert engineer.reasons() == ["request binding"]
        assert runbook.sent_to(ASK, "request binding") == ["A proxy rewrites arguments"]
        said = engineer.follow(TAKE, "mcpkeys inspect")
        assert re.search(r"FAIL +arguments", said)
        assert "arguments.currency: new in the retry" in said
        assert "arguments.order: another value" in said
        # Captured in front of the gateway nothing is wrong, and the runbook says what that means.
        edge = [json.loads(line) for line in (engineer.folder / "capture/edge.ndjson").read_text().splitlines()]
        retry = next(one for one in reversed(edge) if "requestState" in one["request"].get("params", {}))
        (engineer.folder / "refused.json").write_text(json.dumps(retry))
        assert engineer.follow(TAKE, "mcpkeys inspect").startswith("ACCEPTED")
        assert "**accepted**" in runbook.section("A proxy rewrites arguments")
        assert end() is None


def test_a_missing_right_to_the_kek_is_found(tmp_path: Path) -> None:
    with on_call(tmp_path / "night", "KEK permission") as (engineer, end):
        odd = [name for name, state in engineer.states().items() if state != "serving"]
        assert runbook.sent_to(LOOK, "lagging") == ["A stale instance"]
        assert engineer.reasons() == ["stale ring"]
        assert runbook.sent_to(ASK, "stale ring") == ["KEK or store"]
        for heading in ("A stale instance", "KEK or store"):
            said = engineer.follow(heading, "mcpkeys doctor", at=odd[0])
            assert "grant update on transit/decrypt/acme-orders" in said
            assert "permission denied" in said
        assert "mcpkeys policy aws --role server" in runbook.commands("KEK or store")
        assert 'path "transit/decrypt/acme-orders"' in engineer.run("mcpkeys policy vault --role server")
        started = (engineer.folder / "orders-4/server.log").read_text()
        assert "transit/decrypt/acme-orders" in started.splitlines()[-1], "why the new replica does not start"
        assert odd == [end()]
