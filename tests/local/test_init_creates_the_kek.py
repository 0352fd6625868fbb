"""`mcpkeys init` creates a missing local KEK, at the path that its URI names, and nothing on a refusal."""

import json
import os
import subprocess
import sys

import pytest


def init(folder, kek, *more):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MCPKEYS_")}
    command = [sys.executable, "-m", "mcpkeys_cli", "init", "fleet", "--keyset", str(folder / "k.json"), "--kek", kek]
    done = subprocess.run(
        [*command, "--output", "json", *more], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    return done.returncode, json.loads(done.stdout)


def test_a_missing_kek_is_created_where_its_uri_says(tmp_path):
    code, answer = init(tmp_path, f"local://{tmp_path}/my%20kek.key")
    assert (code, answer["ok"]) == (0, True)
    assert sorted(os.listdir(tmp_path)) == ["k.json", "k.json.lock", "my kek.key"]
    assert (tmp_path / "my kek.key").stat().st_mode & 0o777 == 0o600


def test_a_kek_that_is_there_is_used_and_not_touched(tmp_path):
    kek = tmp_path / "kek.key"
    kek.write_bytes(content := os.urandom(32))
    kek.chmod(0o600)
    code, _ = init(tmp_path, f"local://{kek}")
    assert code == 0
    assert kek.read_bytes() == content


@pytest.mark.parametrize("wrong", ["short", "exposed", "no folder", "dangling link"])
def test_a_kek_that_cannot_be_used_is_refused_and_nothing_is_created(tmp_path, wrong):
    kek = tmp_path / "kek.key"
    if wrong == "no folder":
        kek = tmp_path / "no" / "kek.key"
    elif wrong == "dangling link":
        kek.symlink_to(tmp_path / "nowhere")
    else:
        kek.write_bytes(os.urandom(31 if wrong == "short" else 32))
        kek.chmod(0o600 if wrong == "short" else 0o644)
    before = sorted(os.listdir(tmp_path))
    code, answer = init(tmp_path, f"local://{kek}")
    assert (code, answer["ok"]) == (2, False)
    assert answer["error"]["why"]
    assert answer["error"]["next"]
    assert sorted(os.listdir(tmp_path)) == before
