"""The 3 a.m. runbook leads from what is seen to its section: for each reason that can be logged, and on real output."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from docs.pages import DOCS
from servers.localkeyset import local_keyset

from mcpkeys.causes import _TELLERS

RUNBOOK = (DOCS / "how-to/refused-rounds.md").read_text(encoding="utf-8")
STEP_2 = RUNBOOK.partition("## 2.")[2].partition("## 3.")[0]


@pytest.mark.parametrize("reason", [*sorted(_TELLERS), "stale ring", "codec error"])
def test_every_reason_has_a_row(reason: str) -> None:
    assert re.search(rf"^\|[^|]*`{re.escape(reason)}`[^|]*\|.*\|$", STEP_2, re.M), reason


@pytest.mark.parametrize(
    "fault", ["renamed audience", "stale instance", "wrong clock", "proxy rewrites arguments", "KEK"]
)
def test_every_fault_of_a_bad_night_has_a_section_that_says_what_to_do(fault: str) -> None:
    found = re.search(rf"^## [^\n]*{re.escape(fault)}[^\n]*\n(.*?)(?=^## |\Z)", RUNBOOK, re.M | re.S)
    assert found is not None
    for part in ("**You see:**", "**It is:**", "**Do:**"):
        assert part in found[1], part


def test_step_2_on_a_log_as_kubectl_prints_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mcpkeys_cli.main import main

    for name, value in local_keyset(tmp_path).environ.items():
        monkeypatch.setenv(name, value)
    word = "requestState rejected on tools/call"
    log = tmp_path / "refused.log"
    log.write_text(
        f"[pod/orders-1/orders] 2026-11-30T00:30:00Z WARNING mcp.server.request_state: {word}: audience\n"
        f"[pod/orders-2/orders] 2026-11-30T00:30:01Z WARNING mcp.server.request_state: {word}: unknown key\n"
        f"[pod/orders-2/orders] 2026-11-30T00:30:02Z WARNING mcp.server.request_state: {word}: unknown key\n"
    )
    assert main(["triage", str(log), "--output", "json"]) == 0
    by = json.loads(capsys.readouterr().out)["summary"]["by"]
    assert by["reason"] == {"unknown key": 2, "audience": 1}
    assert sum(count for name, count in by["instance"].items() if "orders-2" in name) == 2
