"""What scripts read: fields of a dry run, stable words, one document whatever happens, a next step in every answer."""

from __future__ import annotations

import json

import pytest
from cli.conftest import Shell

from mcpkeys.errors import ConfigurationError, StoreUnreachable
from mcpkeys_cli.output import Answer, emit, of_error


def test_a_dry_run_names_the_rotation_that_would_begin(shell: Shell) -> None:
    kid = shell.init()["kid"]
    dry = shell.json("rotate", "--phase", "1", "--dry-run")
    # The ids of rotation and new key are drawn with the write, so they are null, never a placeholder.
    assert (dry["rotation"], dry["from"], dry["to"], dry["written"]) == (None, kid, None, False)
    done = shell.json("rotate", "--phase", "1", "--yes")
    back = shell.json("rotate", "--rollback", "--dry-run")
    assert (back["rotation"], back["from"], back["to"]) == (done["rotation"], kid, done["to"])


def test_a_dry_run_of_an_emergency_says_what_it_would_leave_to_do(shell: Shell) -> None:
    kid = shell.init()["kid"]
    dry = shell.json("rotate", "--emergency", "--kid", kid, "--reason", "leaked", "--dry-run")
    assert dry["min_generation"] == dry["generation"] + 1
    assert len(dry["revoke"]) == 1
    assert kid in dry["revoke"][0]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--kid", "AAAAAAAAAAAA", "--reason", "x"), "kid-unknown"),
        (("--reason", "x"), "kid-missing"),
        ((), "kid-missing"),
    ],
)
def test_an_emergency_that_cannot_be_has_a_word_of_its_own(shell: Shell, arguments: tuple[str, ...], word: str) -> None:
    kid = shell.init()["kid"]
    answer = shell.json("rotate", "--emergency", *arguments, "--yes")
    assert (answer["exit"], answer["error"]["code"]) == (2, word)
    answer = shell.json("rotate", "--emergency", "--kid", kid, "--yes")
    assert (answer["exit"], answer["error"]["code"]) == (2, "reason-missing")


@pytest.mark.parametrize("topic", ["exit-codes", "uris", "rotation", "environment"])
def test_a_topic_ends_with_a_next_step(shell: Shell, topic: str) -> None:
    following = shell.json("help", topic)["next"]
    assert following
    assert shell.run("help", topic).out.splitlines()[-1] == f"next: {following}"


@pytest.mark.parametrize("arguments", [("triage", "--output", "ndjson"), ("triage", "--output=ndjson", "--nope", "f")])
def test_a_wrong_command_line_is_a_line_of_json_where_lines_were_asked_for(
    shell: Shell, arguments: tuple[str, ...]
) -> None:
    ran = shell.run(*arguments)
    assert ran.out.count("\n") == 1
    answer = json.loads(ran.out)
    assert (ran.code, answer["schema"], answer["error"]["code"]) == (2, "mcpkeys.triage/1", "usage")


def test_a_watch_prints_a_document_a_line_and_so_does_its_end(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.init()
    looks = iter([None])

    def sleep(seconds: float) -> None:
        if next(looks, "end") == "end":
            raise KeyboardInterrupt

    monkeypatch.setattr("mcpkeys_cli.status.time.sleep", sleep)
    ran = shell.run("status", "--watch", "--output", "json")
    documents = [json.loads(line) for line in ran.out.splitlines()]
    assert [document["exit"] for document in documents] == [0, 0, 130]
    assert {document["schema"] for document in documents} == {"mcpkeys.status/1"}


def test_a_triage_of_nothing_says_what_it_reads(shell: Shell) -> None:
    shell.init()
    (shell.folder / "empty").touch()
    assert "mcpkeys triage --help" in shell.json("triage", str(shell.folder / "empty"))["next"]
    assert "\nnext: " in shell.run("triage", str(shell.folder / "empty")).out


def test_an_error_without_a_next_step_gets_one() -> None:
    # A plugin's errors are not ours to word.
    assert of_error("status", StoreUnreachable("no answer")).next == "mcpkeys doctor"
    assert of_error("status", ConfigurationError("wrong")).next == "mcpkeys status --help"
    assert of_error("mcpkeys", ConfigurationError("wrong")).next == "mcpkeys --help"


def test_a_next_step_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    emit(Answer("status", next="mcpkeys status --name \x1b[31m\u202e"), form="text")
    out = capsys.readouterr().out
    assert out.isascii()
    assert "\x1b" not in out


def test_what_waits_for_time_alone_is_asked_for_again_with_the_same_words(shell: Shell) -> None:
    shell.init("--evidence", "attest")
    shell.json("rotate", "--phase", "1", "--yes")
    answer = shell.json("rotate", "--phase", "2", "--attest", "deploy 4711 is out", "--yes")
    assert (answer["exit"], answer["next"]) == (6, "mcpkeys rotate --phase 2 --attest 'deploy 4711 is out'")


def test_that_no_server_runs_is_said_again(shell: Shell) -> None:
    shell.init()
    shell.json("rotate", "--phase", "1", "--yes")
    answer = shell.json("rotate", "--phase", "2", "--expect", "0", "--yes")
    assert (answer["exit"], answer["next"]) == (6, "mcpkeys rotate --phase 2 --expect 0")
