"""The five faults of a bad night, planted, and found by the runbook's own commands and words."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from docs.pages import DOCS
from servers.localkeyset import LocalKeyset, local_keyset

from mcpkeys import EnvelopeCodec
from mcpkeys.call import arguments_digest
from mcpkeys.clock import SystemClock
from mcpkeys_cli.main import main

RUNBOOK = (DOCS / "how-to/refused-rounds.md").read_text(encoding="utf-8")
Run = Callable[..., tuple[int, dict[str, Any]]]


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", RUNBOOK, re.M | re.S)
    assert found is not None, title
    return " ".join(found[1].split())


@pytest.fixture
def keyset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalKeyset:
    made = local_keyset(tmp_path)
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def answer(*words: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = main([*words, "--output", "json"])
        return code, json.loads(capsys.readouterr().out)

    return answer


@pytest.fixture
def codec(keyset: LocalKeyset) -> Iterator[EnvelopeCodec]:
    # Inline: it refreshes when it is called, so a test decides when.
    with EnvelopeCodec.open(instance="orders-1", refresh="inline") as opened:
        yield opened


def request(codec: EnvelopeCodec, folder: Path, name: str, arguments: dict[str, Any], minted: dict[str, Any]) -> str:
    """A captured retry with `arguments`, whose token was minted for a call with `minted`."""
    now = time.time()
    claims = {"v": 1, "iat": now, "exp": now + 600, "m": "tools/call", "t": "refund", "a": arguments_digest(minted)}
    token = codec.seal(json.dumps({**claims, "s": "a state", "aud": "acme-orders"}).encode())
    params = {"name": "refund", "arguments": arguments, "requestState": token}
    path = folder / name
    path.write_text(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}))
    return str(path)


def test_a_renamed_audience(codec: EnvelopeCodec, run: Run, tmp_path: Path) -> None:
    path = request(codec, tmp_path, "refused.json", {"amount": 7}, {"amount": 7})
    code, told = run("inspect", "--request", path, "--audience", "acme-orders-v2", "--anonymous")
    assert (code, told["reason"]) == (3, "audience")
    assert "minted for 'acme-orders', expected 'acme-orders-v2'" in told["explanation"]["summary"]
    assert "minted for 'A', expected 'B'" in section("A renamed audience")


def test_a_stale_instance(codec: EnvelopeCodec, keyset: LocalKeyset, run: Run) -> None:
    assert run("rotate", "--phase", "1", "--yes")[0] == 0
    long_ago = time.time() - 600
    os.utime(keyset.reports()[0], (long_ago, long_ago))
    code, told = run("status")
    assert code == 0
    [instance] = told["instances"]
    assert (instance["label"], instance["state"], instance["generation"]) == ("orders-1", "silent", 1)
    assert told["generation"] == 2
    assert "`silent`" in section("A stale instance")


def test_a_wrong_clock(keyset: LocalKeyset, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as wrong:
        wrong.setattr(SystemClock, "time", lambda self: time.time() + 300)
        codec = EnvelopeCodec.open(instance="orders-2", refresh="inline")
    try:
        assert run("rotate", "--phase", "1", "--yes")[0] == 0
        _, told = run("status")
        [instance] = told["instances"]
        assert instance["state"] == "clock"
        assert "ahead" in instance["why"]
        assert "`clock`" in section("A wrong clock")
    finally:
        codec.close()


def test_a_proxy_that_rewrites_arguments(codec: EnvelopeCodec, run: Run, tmp_path: Path) -> None:
    first = request(codec, tmp_path, "first-round.json", {"amount": 7, "note": "x"}, {"amount": 7, "note": "x"})
    path = request(codec, tmp_path, "refused.json", {"note": "x", "amount": "7"}, {"amount": 7, "note": "x"})
    code, told = run("inspect", "--request", path, "--audience", "acme-orders", "--anonymous", "--first", first)
    assert (code, told["reason"]) == (3, "request binding")
    assert any("arguments.amount" in cause for cause in told["explanation"]["causes"])
    assert not any("note" in cause for cause in told["explanation"]["causes"])
    assert "inspect names the fields that differ" in section("A proxy rewrites arguments")


def test_a_kek_that_servers_may_not_use(codec: EnvelopeCodec, keyset: LocalKeyset, run: Run) -> None:
    token = codec.seal(b"a state")
    Path(keyset.kek.removeprefix("local://")).chmod(0o644)
    code, told = run("doctor", "--as-server")
    assert code == 2
    [finding] = [finding for finding in told["findings"] if finding["level"] == "refused"]
    assert finding["subject"] == keyset.kek
    assert "0644" in finding["what"] + finding["why"]
    assert codec.unseal(token) == b"a state", "running instances serve on"
    assert "Running instances serve on" in section("KEK or store")
