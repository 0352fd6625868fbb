"""`mcpkeys rewrap`: new KEK versions and other KEKs under a live fleet, no token touched."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from servers.operated import instance, refresh

from mcpkeys import EnvelopeCodec, document
from mcpkeys.keyset import Keyset
from mcpkeys_local.kekfile import create_kek


def kek(folder: Path, name: str) -> str:
    create_kek(folder / name)
    return f"local://{folder / name}"


def stored(shell: Any) -> Keyset:
    return document.read(shell.keyset.read_bytes())


def wraps_of(keyset: Keyset) -> dict[str, list[str]]:
    items = [*keyset.live, keyset.report_key, keyset.signer]
    return {item.kid: [wrap.kek for wrap in item.wrapped] for item in items}


def test_a_fleet_moves_from_one_kek_to_another_and_no_token_is_touched(shell, tmp_path):
    shell.init()
    old, new = shell.environ["MCPKEYS_KEKS"], kek(tmp_path, "new.key")
    with instance(shell.environ, "a") as a:
        token = a.seal(b"minted before the move")
        added = shell.json("rewrap", "--add-kek", new, "--yes")
        assert (added["verdict"], added["written"], added["generation"]) == ("do", True, 2)
        assert new in added["next"]
        assert "MCPKEYS_KEKS" in added["next"]
        assert all(set(uris) == {old, new} for uris in wraps_of(stored(shell)).values())
        refresh(a)
        assert a.ring.generation == 2
        assert a.unseal(token) == b"minted before the move"

        # It has not shown that it can do without: the old KEK stays.
        shell.environ["MCPKEYS_KEKS"] = f"{old},{new}"
        before = shell.keyset.read_bytes()
        refused = shell.json("rewrap", "--remove-kek", old, "--yes")
        assert (refused["exit"], refused["error"]["code"]) == (5, "rewrap-unproven")
        assert [entry["label"] for entry in refused["blocking"]] == ["a"]
        assert shell.keyset.read_bytes() == before

    with instance(shell.environ, "a again") as a:  # restarted with both pinned
        assert shell.json("rewrap", "--remove-kek", old, "--yes")["exit"] == 5
        refresh(a, canaries=True)
        removed = shell.json("rewrap", "--remove-kek", old, "--yes")
        assert (removed["exit"], removed["generation"]) == (0, 3)
        assert all(uris == [new] for uris in wraps_of(stored(shell)).values())
        refresh(a)
        assert a.unseal(token) == b"minted before the move"
        again = shell.json("rewrap", "--remove-kek", old, "--yes")
        assert (again["exit"], again["verdict"], again["written"], again["generation"]) == (0, "done", False, 3)

    shell.environ["MCPKEYS_KEKS"] = new
    os.remove(old.removeprefix("local://"))
    assert shell.json("rotate", "--phase", "1", "--yes")["written"], "the signer moved too"
    with instance(shell.environ, "new") as one:
        assert one.unseal(token) == b"minted before the move"
    entries = stored(shell).history
    assert [entry.generation for entry in entries] == [1, 2, 3, 4]
    assert "KEK removed" in entries[2].what


def test_nothing_due_writes_nothing(shell):
    shell.init()
    before = shell.keyset.read_bytes()
    answer = shell.json("rewrap", "--yes")
    assert (answer["exit"], answer["verdict"], answer["written"]) == (0, "done", False)
    assert shell.keyset.read_bytes() == before


def test_a_dry_run_shows_each_wrap_and_writes_nothing(shell, tmp_path):
    shell.init()
    before = shell.keyset.read_bytes()
    answer = shell.json("rewrap", "--add-kek", kek(tmp_path, "new.key"), "--dry-run")
    assert {row["purpose"] for row in answer["wraps"]} == {"seal", "report", "sign"}
    assert (answer["written"], answer["generation"]) == (False, 1)
    assert shell.keyset.read_bytes() == before


def test_the_last_kek_cannot_be_removed(shell):
    shell.init()
    answer = shell.json("rewrap", "--remove-kek", shell.environ["MCPKEYS_KEKS"], "--yes")
    assert (answer["exit"], answer["error"]["code"]) == (2, "kek-last")


def test_a_kek_that_is_not_there_wraps_nothing(shell, tmp_path):
    shell.init()
    before = shell.keyset.read_bytes()
    answer = shell.json("rewrap", "--add-kek", f"local://{tmp_path}/absent.key", "--yes")
    assert (answer["exit"], answer["error"]["code"]) == (2, "kek-unusable")
    assert "absent.key" in answer["error"]["next"]
    assert shell.keyset.read_bytes() == before


def test_a_signer_with_a_kek_of_its_own_stays_with_it(shell, tmp_path):
    mine, new = kek(tmp_path, "sign.key"), kek(tmp_path, "new.key")
    shell.init("--sign-kek", mine)
    answer = shell.json("rewrap", "--add-kek", new, "--yes")
    assert {row["purpose"] for row in answer["wraps"]} == {"seal", "report"}
    other = kek(tmp_path, "sign-2.key")
    shell.environ["MCPKEYS_KEKS"] += f",{new}"
    moved = shell.json("rewrap", "--add-sign-kek", other, "--remove-sign-kek", mine, "--yes")
    assert (moved["exit"], moved["sign_keks"]) == (0, [other])
    os.remove(mine.removeprefix("local://"))
    assert shell.json("rotate", "--phase", "1", "--yes")["exit"] == 0


def test_a_kek_skipped_in_an_emergency_is_wrapped_again_later(shell, tmp_path):
    """`rotate --skip-kek` while one KEK is away; status asks for rewrap, and rewrap mends it."""
    second = kek(tmp_path, "second.key")
    shell.init("--kek", second)
    hidden = tmp_path / "hidden"
    os.rename(tmp_path / "second.key", hidden)
    kid = stored(shell).minting.kid
    burn = ("rotate", "--emergency", "--kid", kid, "--reason", "leaked", "--yes")
    assert shell.json(*burn)["exit"] == 2
    burnt = shell.json(*burn, "--skip-kek", second)
    assert (burnt["exit"], burnt["written"]) == (0, True)
    assert len(stored(shell).minting.wrapped) == 1
    assert any("rewrap" in warning for warning in shell.json("status")["warnings"])
    assert shell.json("rewrap", "--yes")["exit"] == 2, "it is still away"
    os.rename(hidden, tmp_path / "second.key")
    assert shell.json("rewrap", "--yes")["written"]
    assert len(stored(shell).minting.wrapped) == 2
    assert shell.json("status")["warnings"] == []


def test_an_instance_known_to_be_stopped_can_be_named_but_not_one_that_reports(shell, tmp_path):
    old = shell.init("--refresh", "1")["settings"]["MCPKEYS_KEKS"]
    new = kek(tmp_path, "new.key")
    with instance(shell.environ, "cut off") as a:
        name = a._refresher.instance.id
        shell.environ["MCPKEYS_KEKS"] = f"{old},{new}"
        assert shell.json("rewrap", "--add-kek", new, "--yes")["exit"] == 0
        remove = ("rewrap", "--remove-kek", old, "--yes", "--allow-missing", name)
        refused = shell.json(*remove)
        assert refused["exit"] == 5
        assert "reports" in refused["blocking"][0]["why"]
        (report,) = Path(f"{shell.keyset}.reports").glob("*.json")
        os.utime(report, (1_700_000_000, 1_700_000_000))
        unnamed = shell.json("rewrap", "--remove-kek", old, "--yes")
        assert unnamed["exit"] == 5
        assert f"--allow-missing {name}" in unnamed["error"]["next"]
        assert shell.json(*remove)["exit"] == 0
    assert f"--allow-missing {name}" in stored(shell).history[-1].overrides


def test_a_failing_canary_is_no_proof(shell, tmp_path):
    old = shell.init()["settings"]["MCPKEYS_KEKS"]
    new = kek(tmp_path, "new.key")
    shell.environ["MCPKEYS_KEKS"] = f"{new},{old}"
    assert shell.json("rewrap", "--add-kek", new, "--yes")["exit"] == 0
    with instance(shell.environ, "a") as a:
        assert shell.json("rewrap", "--remove-kek", old, "--yes", "--dry-run")["exit"] == 0
        a._refresher.loader.unwraps_by.clear()
        os.rename(tmp_path / "new.key", tmp_path / "away")
        refresh(a, canaries=True)
        os.rename(tmp_path / "away", tmp_path / "new.key")
        assert shell.json("rewrap", "--remove-kek", old, "--yes")["exit"] == 5


def test_a_restored_backup_is_not_rewrapped(shell, tmp_path):
    shell.init()
    backup = shell.keyset.read_bytes()
    new = kek(tmp_path, "new.key")
    shell.environ["MCPKEYS_KEKS"] += f",{new}"
    assert shell.json("rewrap", "--add-kek", new, "--yes")["exit"] == 0
    with instance(shell.environ):
        shell.keyset.write_bytes(backup)
        answer = shell.json("rewrap", "--add-kek", new, "--yes")
        assert (answer["exit"], answer["error"]["code"]) == (5, "gate-restored")


@pytest.mark.parametrize("options", [(), ("--output", "json")])
def test_a_person_and_a_program_are_told_what_comes_next(shell, tmp_path, options):
    shell.init()
    ran = shell.run("rewrap", "--add-kek", kek(tmp_path, "new.key"), "--yes", *options)
    assert ran.code == 0
    if options:
        assert json.loads(ran.out)["schema"] == "mcpkeys.rewrap/1"
    else:
        assert ran.out.rstrip().splitlines()[-1].startswith("next: ")


def test_no_prompt_where_stdin_is_no_terminal(shell, tmp_path):
    shell.init()
    before = shell.keyset.read_bytes()
    answer = shell.json("rewrap", "--add-kek", kek(tmp_path, "new.key"))
    assert (answer["exit"], answer["error"]["code"]) == (2, "confirmation-needed")
    assert "--yes" in answer["error"]["next"]
    assert shell.keyset.read_bytes() == before


def test_a_running_codec_goes_on_through_every_rewrap(shell, tmp_path):
    shell.init()
    with instance(shell.environ) as one, instance(shell.environ, "two") as two:
        uris = [kek(tmp_path, f"{n}.key") for n in range(3)]
        for uri in uris:
            answer = shell.json("rewrap", "--add-kek", uri, "--yes")
            assert answer["exit"] == 0, answer
            shell.environ["MCPKEYS_KEKS"] += f",{uri}"
            payload = os.urandom(100)
            assert two.unseal(one.seal(payload)) == payload
            refresh(one)
            assert two.unseal(one.seal(payload)) == payload
            refresh(two)
    assert isinstance(one, EnvelopeCodec)
    many = [kek(tmp_path, f"m{n}.key") for n in range(8)]
    assert (
        shell.json("rewrap", *[x for uri in many for x in ("--add-kek", uri)], "--yes")["error"]["code"] == "kek-many"
    )
