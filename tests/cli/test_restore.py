"""`mcpkeys restore`: an old document comes back above everything seen; no retired key returns, no round is lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from servers.operated import instance, refresh

from mcpkeys import document
from mcpkeys.keyset import Keyset


def stored(shell: Any) -> Keyset:
    return document.read(shell.keyset.read_bytes())


def backup(shell: Any, name: str = "backup.json") -> str:
    shutil.copy(shell.keyset, shell.folder / name)
    return name


def restore(shell: Any, file: str, *options: str) -> dict[str, Any]:
    return shell.json("restore", file, "--reason", "the bucket was emptied", "--yes", *options)


def test_a_backup_that_was_put_back_is_recognised_and_restored_above_every_generation_seen(shell):
    shell.init()
    old = backup(shell)
    for minutes in (11, 12, 13):
        shell.json("set", "--ttl", f"{minutes}m", "--yes")
    with instance(shell.environ) as one:
        token = one.seal(b"round")
        shell.keyset.write_bytes((shell.folder / old).read_bytes())
        refresh(one)
        assert one.ring.generation == 4, "an instance never goes back"
        refused = shell.json("rotate", "--phase", "1", "--yes")
        assert (refused["exit"], refused["code"]) == (5, "gate-restored")
        answer = restore(shell, old)
        assert (answer["exit"], answer["generation"]) == (0, 5)
        refresh(one)
        assert (one.ring.generation, one.unseal(token)) == (5, b"round")
        assert shell.json("rotate", "--phase", "1", "--yes")["exit"] == 0
    entry = stored(shell).history[1]
    assert (entry.generation, entry.reason) == (5, "the bucket was emptied")


def test_settings_come_back_but_no_key_is_lost_and_none_revived(shell):
    shell.init("--audience", "orders")
    old_kid = stored(shell).minting.kid
    old = backup(shell)
    shell.json("rotate", "--emergency", "--kid", old_kid, "--reason", "leaked", "--yes")
    shell.json("set", "--audience", "billing", "--yes")
    shell.json("rotate", "--phase", "1", "--yes")
    now = stored(shell)
    with instance(shell.environ) as one:
        token = one.seal(b"minted after the backup")
        answer = restore(shell, old)
        assert (answer["exit"], answer["generation"]) == (0, 5)
        after = stored(shell)
        assert after.audience == "orders"
        assert {key.kid: key.state for key in after.keys} == {key.kid: key.state for key in now.keys}
        assert after.key(old_kid).state == "retired"
        assert any(old_kid in effect for effect in answer["effects"])
        assert after.running == now.running, "the rotation goes on"
        refresh(one)
        assert one.unseal(token) == b"minted after the backup"


def test_a_key_burnt_in_a_document_that_is_lost_stays_burnt(shell):
    """The stored document is the old backup; only the instances know what was retired since."""
    shell.init()
    shell.json("rotate", "--phase", "1", "--yes")
    before = stored(shell)
    burnt, left = before.running.to_kid, before.running.from_kid
    old = backup(shell)
    shell.json("rotate", "--emergency", "--kid", burnt, "--reason", "leaked", "--yes")
    newer = stored(shell)
    with instance(shell.environ) as one:
        token = one.seal(b"round")
        shell.keyset.write_bytes((shell.folder / old).read_bytes())
        # The emergency renewed the report key: under the old one nothing can be believed.
        unread = restore(shell, old)
        assert (unread["exit"], unread["error"]["code"]) == (5, "restore-unread")
        assert f"--above {newer.generation}" in unread["next"]
        answer = restore(shell, old, "--above", str(newer.generation))
        assert answer["exit"] == 0
        refresh(one)
        assert (one.ring.generation, one.unseal(token)) == (newer.generation + 1, b"round")
    assert {key.kid: key.state for key in stored(shell).keys} == {left: "minting", burnt: "retired"}


def test_reports_of_a_lost_generation_keep_a_key_retired(shell):
    shell.init("--ttl", "1s", "--skew", "0s", "--refresh", "1s")
    with instance(shell.environ, "b") as one:
        shell.json("rotate", "--phase", "1", "--yes")
        refresh(one)
        old = backup(shell)
        new_kid = stored(shell).running.to_kid
        shell.json("rotate", "--rollback", "--yes")  # NEW is retired
        refresh(one)
        shell.keyset.write_bytes((shell.folder / old).read_bytes())
        answer = restore(shell, old)
        assert answer["exit"] == 0, answer
        assert stored(shell).key(new_kid).state == "retired"
        refresh(one)
        assert one.ring.generation == answer["generation"]
        assert shell.json("rotate", "--phase", "1", "--yes")["exit"] == 0


def test_a_key_that_no_document_wraps_any_more_is_named_before_it_is_lost(shell):
    shell.init()
    old = backup(shell)
    shell.json("rotate", "--phase", "1", "--yes")
    lost = stored(shell).running.to_kid
    with instance(shell.environ, "pod-1") as one:
        shell.keyset.write_bytes((shell.folder / old).read_bytes())
        before = shell.keyset.read_bytes()
        refused = restore(shell, old)
        assert (refused["exit"], refused["error"]["code"]) == (5, "restore-loses-keys")
        assert f"--lose-kid {lost}" in refused["next"]
        assert [entry["label"] for entry in refused["blocking"]] == ["pod-1"]
        assert shell.keyset.read_bytes() == before
        answer = restore(shell, old, "--lose-kid", lost)
        assert answer["exit"] == 0
        refresh(one)
        assert one.ring.generation == answer["generation"]
    assert stored(shell).history[-1].overrides == (f"--lose-kid {lost}",)


def test_the_newest_copy_brings_everything_back(shell):
    shell.init()
    first = backup(shell, "first.json")
    shell.json("rotate", "--phase", "1", "--yes")
    newest = backup(shell, "newest.json")
    rotation = stored(shell).running
    with instance(shell.environ) as one:
        refresh(one)
        shell.keyset.write_bytes((shell.folder / first).read_bytes())
        answer = restore(shell, newest)
        assert (answer["exit"], answer["generation"]) == (0, 3)
        assert stored(shell).running == rotation


@pytest.mark.parametrize("damage", ["gone", "empty", "forged", "garbage"])
def test_what_is_stored_may_be_anything(shell, damage):
    shell.init()
    old = backup(shell)
    if damage == "gone":
        shell.keyset.unlink()
    elif damage == "forged":
        shell.keyset.write_text(shell.keyset.read_text().replace('"fleet"', '"feelt"'))
    else:
        shell.keyset.write_bytes(b"" if damage == "empty" else b"\xff{")
    answer = restore(shell, old)
    assert (answer["exit"], answer["generation"]) == (0, 2)
    assert answer["found"]
    with instance(shell.environ):
        pass


def test_a_forged_or_foreign_file_is_not_restored(shell, tmp_path):
    shell.init()
    old = Path(shell.folder / backup(shell))
    before = shell.keyset.read_bytes()
    old.write_text(old.read_text().replace('"ttl_seconds": 600', '"ttl_seconds": 1'))
    assert restore(shell, str(old))["error"]["code"] == "keyset-forged"
    (tmp_path / "other").mkdir()
    other = type(shell)(tmp_path / "other")
    other.init()
    assert restore(shell, str(other.keyset))["error"]["code"] == "keyset-signer"
    assert restore(shell, "absent.json")["exit"] == 2
    assert shell.keyset.read_bytes() == before


def test_restoring_what_is_stored_is_nothing_to_do(shell):
    shell.init()
    answer = restore(shell, backup(shell))
    assert (answer["exit"], answer["verdict"], answer["written"], answer["generation"]) == (0, "done", False, 1)


def test_another_audience_under_a_live_fleet_needs_a_reason(shell):
    shell.init("--audience", "orders")
    old = backup(shell)
    shell.json("set", "--audience", "billing", "--yes")
    with instance(shell.environ):
        refused = shell.json("restore", old, "--yes")
        assert (refused["exit"], refused["error"]["code"]) == (5, "restore-audience")
        assert restore(shell, old)["exit"] == 0
        shell.json("set", "--ttl", "1m", "--yes")
        assert shell.json("restore", old, "--yes")["exit"] == 0, "nothing of the audience changes"


def test_a_dry_run_writes_nothing(shell):
    shell.init()
    old = backup(shell)
    shell.json("set", "--ttl", "1m", "--yes")
    before = shell.keyset.read_bytes()
    dry = restore(shell, old, "--dry-run")
    assert (dry["exit"], dry["written"]) == (0, False)
    assert shell.keyset.read_bytes() == before


def test_where_every_key_was_burnt_a_fresh_one_mints(shell):
    shell.init()
    old = backup(shell)
    kid = stored(shell).minting.kid
    shell.json("rotate", "--emergency", "--kid", kid, "--reason", "leaked", "--yes")
    burnt = stored(shell)
    with instance(shell.environ):
        # A second history: the old document back in place, with the report key of the newer one.
        reports = list(Path(f"{shell.keyset}.reports").glob("*.json"))
        assert json.loads(reports[0].read_text())["generation"] == 2
        answer = restore(shell, old, "--lose-kid", burnt.minting.kid)
        assert answer["exit"] == 0
    after = stored(shell)
    assert after.key(kid).state == "retired"
    assert after.minting.kid == burnt.minting.kid, "the stored document still wraps it: nothing was lost"
