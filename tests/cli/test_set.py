"""`mcpkeys set`: a setting or the signer changes under a live fleet, and nobody is surprised."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import Any

import pytest
from servers.localkeyset import local_keyset
from servers.operated import instance, refresh

from mcpkeys import document
from mcpkeys.changing import MAX_PAST_TTLS, past_ttls
from mcpkeys.errors import KeysetMismatch
from mcpkeys.keyset import Keyset


def stored(shell: Any) -> Keyset:
    return document.read(shell.keyset.read_bytes())


def test_a_ttl_change_is_written_and_the_past_one_is_remembered(shell):
    shell.init("--ttl", "10m")
    answer = shell.json("set", "--ttl", "5m", "--yes")
    assert (answer["exit"], answer["written"], answer["generation"]) == (0, True, 2)
    assert "restart" in answer["next"]
    keyset = stored(shell)
    assert (keyset.ttl_seconds, [past.ttl_seconds for past in keyset.past_ttls]) == (300, [600])
    assert "ttl_seconds 600 -> 300" in keyset.history[-1].what
    again = shell.json("set", "--ttl", "5m", "--yes")
    assert (again["exit"], again["verdict"], again["generation"]) == (0, "done", 2)


def test_of_many_past_ttls_the_longest_stay(tmp_path):
    keyset = local_keyset(tmp_path, ttl_seconds=5400).document
    for minutes in range(1, MAX_PAST_TTLS + 3):
        keyset = replace(keyset, past_ttls=past_ttls(keyset, minutes * 1000), ttl_seconds=minutes * 60)
    past = [entry.ttl_seconds for entry in keyset.past_ttls]
    assert len(past) == MAX_PAST_TTLS
    assert (min(past), max(past)) == (180, 5400)


def test_every_setting_at_once(shell):
    shell.init()
    answer = shell.json(
        "set", "--skew", "30s", "--refresh", "10s", "--max-stale", "5m", "--max-token-chars", "2097152", "--yes"
    )
    assert answer["settings"] == {
        "audience": "fleet", "ttl_seconds": 600, "skew_seconds": 30, "refresh_seconds": 10, "max_stale_seconds": 300,
        "max_token_chars": 2_097_152, "evidence": "reports",
    }  # fmt: skip
    assert shell.json("set", "--max-stale", "off", "--yes")["settings"]["max_stale_seconds"] is None


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--ttl", "0"),
        ("--refresh", "0s"),
        ("--max-stale", "1m"),
        ("--max-token-chars", "10"),
        ("--ttl", "1500ms"),
        ("--skew", "2d"),
        ("--audience", ""),
        ("--audience", "mcp-server"),
        ("--evidence", "faith"),
        ("--new-signer", "f", "--ttl", "1m"),
    ],
)
def test_a_wrong_value_is_refused_and_nothing_is_written(shell, options):
    shell.init()
    before = shell.keyset.read_bytes()
    answer = shell.json("set", *options, "--yes")
    assert answer["exit"] == 2
    assert answer["error"]["message"]
    assert shell.keyset.read_bytes() == before


def test_another_audience_on_a_live_fleet_needs_a_reason(shell):
    shell.init()
    assert shell.json("set", "--audience", "orders", "--yes")["exit"] == 0, "nobody runs"
    with instance(shell.environ, "pod-7"):
        before = shell.keyset.read_bytes()
        refused = shell.json("set", "--audience", "billing", "--yes")
        assert (refused["exit"], refused["error"]["code"]) == (5, "set-audience")
        assert "pod-7" in refused["error"]["message"]
        assert "--reason" in refused["next"]
        assert shell.keyset.read_bytes() == before
        assert shell.json("set", "--audience", "billing", "--reason", "renamed", "--yes")["exit"] == 0
    assert stored(shell).history[-1].reason == "renamed"


def test_a_shorter_token_limit_on_a_live_fleet_needs_a_reason(shell):
    shell.init()
    with instance(shell.environ):
        assert shell.json("set", "--max-token-chars", "4096", "--yes")["error"]["code"] == "set-token-limit"
        assert shell.json("set", "--max-token-chars", "4096", "--reason", "ours are small", "--yes")["exit"] == 0


def test_what_a_rotation_measures_by_does_not_change_under_it(shell):
    shell.init()
    shell.json("rotate", "--phase", "1", "--yes")
    for options in (("--skew", "5s"), ("--refresh", "5s"), ("--evidence", "attest")):
        refused = shell.json("set", *options, "--yes")
        assert (refused["exit"], refused["error"]["code"]) == (5, "set-rotation-runs")
    assert shell.json("set", "--ttl", "20m", "--yes")["exit"] == 0, "the longest ttl counts, so this may"


def test_running_servers_obey_with_their_next_refresh(shell):
    shell.init()
    with instance(shell.environ) as one:
        shell.json("set", "--max-token-chars", "256", "--reason", "test", "--yes")
        refresh(one)
        assert one.ring.keyset.max_token_chars == 256
        assert shell.json("status")["instances"][0]["generation"] == 2


def test_a_dry_run_says_what_would_happen_and_writes_nothing(shell):
    shell.init()
    before = shell.keyset.read_bytes()
    ran = shell.run("set", "--ttl", "5m", "--dry-run")
    assert ran.code == 0
    assert "nothing was written" in ran.out
    assert ran.out.rstrip().splitlines()[-1].startswith("next: ")
    assert shell.keyset.read_bytes() == before


# --- the signer ------------------------------------------------------------------------------------------------


def prepared(shell: Any) -> tuple[str, str]:
    """(old, new) public halves; the file is new.json."""
    old = shell.environ["MCPKEYS_SIGNERS"]
    answer = shell.json("set", "--new-signer", "new.json")
    assert (answer["exit"], answer["stage"], answer["written"]) == (0, "prepare", False)
    assert answer["signers"] == f"{old},{answer['signer']}"
    return old, answer["signer"]


def test_a_new_signer_takes_over_and_no_server_loses_sight_of_the_keyset(shell):
    shell.init()
    before = shell.keyset.read_bytes()
    old, new = prepared(shell)
    assert shell.keyset.read_bytes() == before, "preparing changes nothing"
    switch = ("set", "--new-signer", "new.json", "--yes")
    unpinned = shell.json(*switch)
    assert (unpinned["exit"], unpinned["error"]["code"]) == (2, "signer-unpinned")
    assert f"{old},{new}" in unpinned["next"]
    shell.environ["MCPKEYS_SIGNERS"] = f"{old},{new}"
    with instance(shell.environ) as one:
        refused = shell.json(*switch)
        assert (refused["exit"], refused["error"]["code"]) == (5, "set-signer-pins")
        assert shell.keyset.read_bytes() == before
        done = shell.json(*switch, "--attest", "deploy 4711 pins both")
        assert (done["exit"], done["generation"], done["signer"]) == (0, 2, new)
        refresh(one)
        assert one.ring.generation == 2
        assert shell.json(*switch)["verdict"] == "done"
        shell.environ["MCPKEYS_SIGNERS"] = new
        assert shell.json("rotate", "--phase", "1", "--yes")["exit"] == 0
    assert any("deploy 4711" in override for override in stored(shell).history[1].overrides)
    with pytest.raises(KeysetMismatch), instance({**shell.environ, "MCPKEYS_SIGNERS": old}):
        pass


def test_the_way_back_to_the_former_signer_is_kept(shell):
    shell.init()
    old, new = prepared(shell)
    shell.environ["MCPKEYS_SIGNERS"] = f"{old},{new}"
    assert shell.json("set", "--new-signer", "new.json", "--yes")["former"] == "new.json.former"
    back = shell.json("set", "--new-signer", "new.json.former", "--yes")
    assert (back["exit"], back["signer"]) == (0, old)
    assert shell.json("rotate", "--phase", "1", "--yes")["exit"] == 0


def test_an_exchanged_or_foreign_signer_file_is_refused(shell, tmp_path):
    shell.init()
    old, new = prepared(shell)
    shell.environ["MCPKEYS_SIGNERS"] = f"{old},{new}"
    file = tmp_path / "new.json"
    good = json.loads(file.read_text())
    before = shell.keyset.read_bytes()
    shutil.copy(file, tmp_path / "kept")
    for name, value in (
        ("kid", "AAAAAAAAAAAA"), ("keyset", "other"), ("signature", good["signature"][::-1]), ("wrapped", []),
        ("by", new), ("schema", "mcpkeys.signer/2"), ("public", 7),
    ):  # fmt: skip
        file.write_text(json.dumps({**good, name: value}))
        answer = shell.json("set", "--new-signer", "new.json", "--yes")
        assert (answer["exit"], answer["error"]["code"]) == (2, "signer-file"), name
    file.write_bytes(b"\x00" * 10)
    assert shell.json("set", "--new-signer", "new.json", "--yes")["error"]["code"] == "signer-file"
    assert shell.keyset.read_bytes() == before
    assert "private" not in (tmp_path / "kept").read_text()


def test_the_second_stage_without_its_file_does_not_prepare_another_one(shell, tmp_path):
    shell.init()
    answer = shell.json("set", "--new-signer", "mistyped.json", "--attest", "both are pinned", "--yes")
    assert (answer["exit"], answer["error"]["code"]) == (2, "signer-file")
    assert not (tmp_path / "mistyped.json").exists()
