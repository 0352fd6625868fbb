"""`mcpkeys purge`: the past is bounded, and nothing that still counts goes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from servers.operated import instance

from mcpkeys import document
from mcpkeys.keyset import Keyset


def stored(shell: Any) -> Keyset:
    return document.read(shell.keyset.read_bytes())


def reports(shell: Any) -> list[Path]:
    return sorted(Path(f"{shell.keyset}.reports").glob("*.json"))


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_wraps_of_retired_keys_go_and_their_kids_stay(shell):
    shell.init()
    kid = stored(shell).minting.kid
    shell.json("rotate", "--emergency", "--kid", kid, "--reason", "leaked", "--yes")
    assert stored(shell).key(kid).wrapped
    assert shell.json("purge", "--yes")["verdict"] == "done", "kept for inspection for 30 days"
    time.sleep(0.002)
    answer = shell.json("purge", "--older-than", "0s", "--yes")
    assert (answer["exit"], answer["wraps"], answer["generation"]) == (0, [kid], 3)
    after = stored(shell).key(kid)
    assert (after.state, after.wrapped) == ("retired", ())
    assert shell.json("purge", "--older-than", "0s", "--yes")["verdict"] == "done"


def test_history_is_trimmed_to_what_is_asked_for_and_the_purge(shell):
    shell.init()
    for minutes in (1, 2, 3, 4):
        shell.json("set", "--ttl", f"{minutes}m", "--yes")
    answer = shell.json("purge", "--keep-history", "2", "--yes")
    assert (answer["exit"], answer["history"]) == (0, 3)
    assert [entry.generation for entry in stored(shell).history] == [4, 5, 6]
    assert shell.json("history")["complete"] is False


def test_a_withdrawn_report_goes_after_an_hour(shell):
    shell.init()
    with instance(shell.environ):
        pass
    assert shell.json("purge", "--yes")["verdict"] == "done"
    (report,) = reports(shell)
    age(report, 3700)
    answer = shell.json("purge", "--yes")
    assert (answer["exit"], answer["reports_deleted"], answer["written"]) == (0, 1, False)
    assert reports(shell) == []


def test_a_silent_instance_goes_only_by_the_operators_word(shell):
    shell.init("--refresh", "1")
    with instance(shell.environ, "cut off"), instance(shell.environ, "alive"):
        silent = next(path for path in reports(shell) if "cut off" in path.read_text())
        age(silent, 86_400)
        listed = shell.json("purge", "--yes")
        assert listed["verdict"] == "done"
        assert [entry["instance"] for entry in listed["silent"]] == [silent.stem]
        assert shell.json("purge", "--silent-for", "2s", "--yes")["exit"] == 2, "a living one may be silent so long"
        answer = shell.json("purge", "--silent-for", "1h", "--yes")
        assert (answer["exit"], answer["reports"], answer["written"]) == (0, [silent.stem], True)
        assert silent not in reports(shell)
        assert len(reports(shell)) == 1
        assert silent.stem in stored(shell).history[-1].overrides[0]


def test_no_report_goes_while_a_step_may_wait_for_it(shell):
    shell.init("--refresh", "1")
    with instance(shell.environ):
        shell.json("rotate", "--phase", "1", "--yes")
        (report,) = reports(shell)
        age(report, 86_400)
        answer = shell.json("purge", "--silent-for", "1h", "--yes")
        assert (answer["verdict"], answer["reports"]) == ("done", [])
        assert "counts" in answer["why"]
        assert reports(shell) == [report]


def test_past_ttls_go_by_the_operators_word_unless_a_report_contradicts(shell):
    shell.init()
    with instance(shell.environ) as one:
        shell.json("set", "--ttl", "1m", "--yes")
        now = int(time.time())
        one.seal(f'{{"v":1,"iat":{now},"exp":{now + 600},"x":1}}'.encode())
        one._refresher.step()
        refused = shell.json("purge", "--past-ttls", "--yes")
        assert (refused["exit"], refused["error"]["code"]) == (5, "purge-contradiction")
    answer = shell.json("purge", "--past-ttls", "--yes")
    assert (answer["exit"], stored(shell).past_ttls) == (0, ())
    assert "restarted" in stored(shell).history[-1].overrides[0]


def test_a_dry_run_deletes_nothing_and_a_person_is_asked(shell):
    shell.init()
    with instance(shell.environ):
        pass
    (report,) = reports(shell)
    age(report, 7200)
    dry = shell.json("purge", "--dry-run")
    assert (dry["exit"], dry["reports"], dry["reports_deleted"]) == (0, [report.stem], 0)
    assert shell.json("purge")["error"]["code"] == "confirmation-needed"
    assert reports(shell) == [report]
    ran = shell.run("purge", "--yes")
    assert ran.out.rstrip().splitlines()[-1].startswith("next: ")


def test_an_emergency_drops_farewells_that_nobody_could_read_afterwards(shell):
    kid = shell.init("--refresh", "1")["kid"]
    with instance(shell.environ, "left"), instance(shell.environ, "leaves"):
        pass
    left = next(path for path in reports(shell) if "left" in path.read_text())
    (leaves,) = (path for path in reports(shell) if path != left)
    age(left, 3700)
    answer = shell.json("rotate", "--emergency", "--kid", kid, "--reason", "leaked", "--yes", "--wait", "0")
    # A farewell of the last hour is kept, as a purge keeps it; the operator is told to name its instance.
    assert reports(shell) == [leaves]
    assert answer["behind"] == [leaves.stem]


def test_an_emergency_drops_no_farewell_while_a_key_is_left_to_retire(shell):
    shell.init("--refresh", "1")
    with instance(shell.environ):
        pass
    (report,) = reports(shell)
    age(report, 3700)
    shell.json("rotate", "--phase", "1", "--yes")
    time.sleep(3.1)  # a phase lasts at least 3 refresh intervals, by the store's clock
    assert shell.json("rotate", "--phase", "2", "--expect", "0", "--yes")["written"]
    minting = stored(shell).minting.kid
    shell.json("rotate", "--emergency", "--kid", minting, "--reason", "leaked", "--yes", "--wait", "0")
    assert len(stored(shell).live) == 2
    assert reports(shell) == [report]
