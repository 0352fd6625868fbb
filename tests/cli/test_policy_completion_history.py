"""The commands that only tell: policies, shell completion, history."""

from __future__ import annotations

import json
import subprocess

import pytest

KEY = "awskms:///arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
SIGN = "awskms:///arn:aws:kms:eu-central-1:111122223333:key/9234abcd-12ab-34cd-56ef-1234567890ab"
GCP = "gcpkms://projects/p/locations/global/keyRings/r/cryptoKeys/k"


def policy(shell, cloud, role, *options, kek=KEY, keyset="s3://acme/fleet.json"):
    where = ("--name", "fleet", "--keyset", keyset, "--kek", kek)
    return shell.run("policy", cloud, "--role", role, *where, *options)


def test_a_policy_can_be_piped_and_its_next_step_is_on_stderr(shell):
    ran = policy(shell, "aws", "server")
    statements = json.loads(ran.out)["Statement"]
    assert all("sign" not in json.dumps(s.get("Condition", {})) for s in statements)
    assert ran.err.startswith("next: aws iam")
    assert "doctor --as-server" in ran.err


def test_only_an_operator_gets_near_the_signers_own_kek(shell):
    for cloud, kek, sign, keyset in (
        ("aws", KEY, SIGN, "s3://acme/fleet.json"),
        ("gcp", GCP, GCP + "-sign", "gs://acme/fleet.json"),
        ("vault", "hashivault://data", "hashivault://signing", "vaultkv://secret/fleet"),
    ):
        name = sign.rpartition("/")[2]
        for role in ("server", "inspector", "operator"):
            ran = policy(shell, cloud, role, "--sign-kek", sign, kek=kek, keyset=keyset)
            assert ran.code == 0, ran.err
            assert (name in ran.out) == (role == "operator"), (cloud, role)


@pytest.mark.parametrize("cloud", ["aws", "gcp", "vault"])
def test_json_holds_the_policy_as_data_and_as_text(shell, cloud):
    kek, keyset = {
        "aws": (KEY, "s3://acme/f.json"),
        "gcp": (GCP, "gs://acme/f.json"),
        "vault": ("hashivault://k", "vaultkv://secret/f"),
    }[cloud]
    answer = policy(shell, cloud, "inspector", "--output", "json", kek=kek, keyset=keyset).json
    assert answer["schema"] == "mcpkeys.policy/1"
    assert answer["policy"]
    assert answer["text"]
    assert answer["next"]


def test_a_policy_of_a_cloud_where_nothing_is_says_where_it_is(shell):
    ran = policy(shell, "gcp", "server", "--output", "json")
    assert (ran.code, ran.json["error"]["code"]) == (2, "policy-elsewhere")
    assert "mcpkeys policy aws" in ran.json["next"]


def test_a_policy_needs_the_keysets_name(shell):
    ran = shell.run("policy", "aws", "--role", "server", "--keyset", "s3://a/b", "--kek", KEY, "--output", "json")
    assert ran.code == 2
    assert "MCPKEYS_NAME" in ran.json["error"]["message"]


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_completion_script_is_all_of_stdout(shell, name):
    ran = shell.run("completion", name)
    assert ran.code == 0
    assert "_MCPKEYS_COMPLETE" in ran.out
    assert ran.out.rstrip().splitlines()[-1].startswith("# next: ")
    if name == "bash":
        assert subprocess.run(["bash", "-n"], input=ran.out.encode(), timeout=20).returncode == 0


def test_completion_answers_with_the_commands(shell):
    ran = shell.process(env={"_MCPKEYS_COMPLETE": "bash_complete", "COMP_WORDS": "mcpkeys ro", "COMP_CWORD": "1"})
    assert ran.out.split() == ["plain,rotate"]


def test_history_tells_who_what_and_why_and_needs_no_kms(shell, tmp_path):
    shell.init()
    kid = shell.json("rotate", "--phase", "1", "--yes")["from"]
    shell.json("rotate", "--emergency", "--kid", kid, "--reason", "leaked \x1b[31min a dump", "--yes")
    (tmp_path / "kek.key").unlink()
    answer = shell.json("history")
    assert [entry["generation"] for entry in answer["entries"]] == [1, 2, 3]
    assert answer["complete"]
    assert answer["entries"][2]["reason"].startswith("leaked")
    assert "@" in answer["entries"][0]["who"]
    last = shell.json("history", "--limit", "1")
    assert ([entry["generation"] for entry in last["entries"]], last["earlier"]) == ([3], 2)
    text = shell.run("history").out
    assert "\x1b" not in text
    assert text.rstrip().splitlines()[-1] == "next: mcpkeys status"


def test_history_of_a_forged_document_is_not_told(shell):
    shell.init()
    shell.keyset.write_text(shell.keyset.read_text().replace('"init"', '"nothing happened"'))
    assert shell.json("history")["error"]["code"] == "keyset-forged"


def test_no_arguments_at_all_show_the_help(shell):
    ran = shell.run()
    assert ran.code == 2
    assert "init" in ran.err
    assert "Traceback" not in ran.err
