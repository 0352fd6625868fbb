"""`init --replace`: starts anew above whatever was there, also above what cannot be read any more."""

from __future__ import annotations

import json

from cli.conftest import Shell


def replaced(shell: Shell) -> dict[str, object]:
    answer = shell.json(
        "init",
        "fleet",
        "--keyset",
        str(shell.keyset),
        "--kek",
        f"local://{shell.kek}",
        "--replace",
        "--reason",
        "drill",
    )
    assert answer["ok"], answer
    shell.environ |= answer["settings"]
    assert shell.json("verify")["ok"]
    return answer


def test_it_comes_above_the_old_generation_and_retires_its_keys(shell: Shell) -> None:
    old = shell.init()
    assert shell.json("rotate", "--phase", "1", "--yes")["ok"]
    new = replaced(shell)
    assert new["generation"] == 3
    document = json.loads(shell.keyset.read_bytes())
    states = {key["kid"]: key["state"] for key in document["keys"]}
    assert states[old["kid"]] == "retired"
    assert states[str(new["kid"])] == "minting"
    assert document["history"][-1]["reason"] == "drill"


def test_a_damaged_document_can_be_replaced_above_what_it_claims(shell: Shell) -> None:
    shell.init()
    shell.json("rotate", "--phase", "1", "--yes")
    shell.keyset.write_bytes(shell.keyset.read_bytes().replace(b'"fleet"', b'"fleeT"', 1))
    assert replaced(shell)["generation"] == 3


def test_a_deleted_document_is_replaced_above_what_reports_hold(shell: Shell) -> None:
    shell.init()
    folder = shell.folder / "fleet.keyset.json.reports"
    folder.mkdir()
    (folder / ("A" * 22 + ".json")).write_text('{"generation": 41}')
    (folder / ("B" * 22 + ".json")).write_text('{"generation": 9007199254740991}')
    shell.keyset.unlink()
    assert replaced(shell)["generation"] == 42
