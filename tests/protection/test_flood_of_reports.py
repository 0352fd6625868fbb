"""Whoever may write a report may write many: no command hangs over them or runs out of memory."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from cli.conftest import Shell
from servers.operated import instance

from mcpkeys import listing
from mcpkeys.encoding import b64u
from mcpkeys.errors import StoreUnreachable
from mcpkeys.testing import FakeClock

BODY = b'{"schema":"mcpkeys.report/1","mac":"' + b"A" * 43 + b'","x":[' + b"0," * 20_000 + b"0]}"
COUNT = 40


@pytest.fixture
def flooded(tmp_path: Path) -> Shell:
    """A keyset in whose reports somebody wrote, and a backup of it."""
    shell = Shell(tmp_path)
    shell.init()
    shutil.copy(shell.keyset, shell.folder / "backup.json")
    folder = shell.folder / "fleet.keyset.json.reports"
    folder.mkdir()
    for _ in range(COUNT):
        (folder / f"{b64u(os.urandom(16))}.json").write_bytes(BODY)
    return shell


@pytest.fixture(params=[("MAX_BYTES", 1 << 20), ("LOOK_SECONDS", 0.0)], ids=["memory", "time"])
def bounded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, *request.param)


def replacing(shell: Shell) -> list[str]:
    where = ["--keyset", str(shell.keyset), "--kek", f"local://{shell.kek}"]
    return ["init", "fleet", *where, "--replace", "--reason", "drill"]


@pytest.mark.parametrize("word", ["status", "rotate", "restore", "init"])
@pytest.mark.usefixtures("bounded")
def test_a_command_that_needs_the_reports_ends_and_says_why(flooded: Shell, word: str) -> None:
    lines = {
        "status": ["status"],
        "rotate": ["rotate", "--phase", "1", "--yes"],
        "restore": ["restore", "backup.json", "--reason", "drill", "--yes"],
        "init": replacing(flooded),
    }
    before = flooded.keyset.read_bytes()
    answer = flooded.json(*lines[word])
    assert (answer["exit"], answer["error"]["code"]) == (4, "reports-flooded"), answer
    assert flooded.keyset.read_bytes() == before


def test_a_command_that_can_do_without_the_reports_does_so_and_says_it(
    flooded: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with instance(flooded.environ) as codec:
        token = codec.seal(b"{}")
    monkeypatch.setattr(listing, "MAX_BYTES", 1 << 20)
    for command in ("inspect", "triage"):
        ran = flooded.run(command, "-", stdin=token.encode())
        assert "more reports than can be looked at" in ran.out + ran.err, ran
        assert ran.code in (0, 3), ran
    (found,) = [entry for entry in flooded.json("doctor")["findings"] if entry["code"] == "reports-flooded"]
    assert found["level"] == "refused"


def test_without_a_flood_the_same_commands_work(flooded: Shell) -> None:
    """Forty of them are none."""
    assert flooded.json("restore", "backup.json", "--reason", "drill", "--yes", "--dry-run")["exit"] in (0, 5)
    assert flooded.json(*replacing(flooded))["ok"]


def test_who_looks_too_long_is_stopped_at_the_next_report() -> None:
    clock = FakeClock()
    seen: list[int] = []

    def look() -> Iterator[None]:
        for entry in listing.in_time([3, 1, 4, 1, 5], seconds=2.0, clock=clock):
            seen.append(entry)
            clock.advance(1.5)
            yield

    with pytest.raises(StoreUnreachable, match="more reports") as caught:
        list(look())
    assert seen == [3, 1]
    assert caught.value.why.startswith("2 of 5 reports")


def test_every_reader_of_reports_reads_them_through_the_bound() -> None:
    roots = [Path(find_spec(name).origin).parent for name in ("mcpkeys", "mcpkeys_cli")]
    files = [path for root in roots for path in root.rglob("*.py") if "testing" not in path.parts]
    assert len(files) > 50
    found = {path.name for path in files if re.search(r"\.reports\(\s*deadline", path.read_text())}
    assert found == {"listing.py"}
