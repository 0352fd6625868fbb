"""`mcpkeys audience`: findings in text and JSON, exit 2 where a name is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from servers.localkeyset import local_keyset

from mcpkeys_cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["audience", *arguments, "--output", "json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "mcpkeys.audience/1"
    assert (answer["exit"], answer["ok"]) == (code, code == 0)
    assert (answer["error"] is None) == (code == 0)
    return code, answer


def test_a_right_name_has_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run(capsys, "acme-orders")
    assert (code, answer["findings"], answer["names"]) == (0, [], ["acme-orders"])


def test_warnings_pass_unless_strict(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = run(capsys, "server", "acme-orders-0")
    assert (code, [f["level"] for f in answer["findings"]]) == (0, ["warned", "warned"])
    code, answer = run(capsys, "--strict", "server", "acme-orders-0")
    assert (code, [f["level"] for f in answer["findings"]]) == (2, ["refused", "refused"])
    assert answer["error"]["code"] == "audience-refused"
    assert set(answer["findings"][0]) == {"code", "level", "subject", "what", "why", "next"}


def test_names_are_compared_with_known_ones_and_with_the_keysets(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, answer = run(capsys, "--known", "acme-order", "acme-orders")
    assert [f["code"] for f in answer["findings"]] == ["audience-similar"]
    keyset = local_keyset(tmp_path, audience="acme-orders")
    pins = ["--keyset", str(keyset.path), "--signer", keyset.signer]
    assert run(capsys, *pins, "acme-orders")[1]["findings"] == []
    _, answer = run(capsys, *pins, "acme-order")
    assert {f["code"] for f in answer["findings"]} == {"audience-similar", "audience-differs"}
    assert run(capsys, *pins, "--strict", "acme-refunds")[0] == 2
    assert run(capsys, "--keyset", str(tmp_path / "absent"), "acme-refunds")[1]["error"]["code"] == "keyset-not-found"


def test_text_ends_with_the_next_step_and_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audience", "acme-orders"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("next: ")
    assert main(["audience", "a\x1b]0;x\x07\u202e\udc80"]) == 2
    out, err = capsys.readouterr()
    for text in (out, err):
        assert not any(char in text for char in "\x1b\x07\u202e\udc80")
    assert "next:" in err.splitlines()[-1]
