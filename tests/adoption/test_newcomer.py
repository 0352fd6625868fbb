"""A new user's way, word for word: a real OpenBao, `init`, one line in the server, two uvicorn processes, one round."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.types import InputRequiredResult
from servers.openbao import Bao, dev_server
from servers.sdkfleet import clients, environment, step

README = (Path(__file__).parents[2] / "README.md").read_text()
TOOL = """
from mcp.server.mcpserver import Context
from mcp.types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

FORM = {"type": "object", "properties": {"sure": {"type": "string"}}, "required": ["sure"]}


@mcp.tool()
async def refund(amount: int, ctx: Context) -> str | InputRequiredResult:
    if ctx.input_responses is None:
        ask = ElicitRequest(params=ElicitRequestFormParams(message="Sure?", requested_schema=FORM))
        return InputRequiredResult(input_requests={"sure": ask}, request_state=f"refund:{amount}")
    return f"{ctx.request_state} {ctx.input_responses['sure'].content['sure']}"


app = mcp.streamable_http_app()
"""


@pytest.fixture
def bao() -> Iterator[Bao]:
    with dev_server() as server:
        yield server


def mcpkeys(environ: dict[str, str], folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "mcpkeys_cli", *arguments, "--output", "json"],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_from_the_readme_to_two_instances_under_openbao(bao: Bao, tmp_path: Path) -> None:
    bao.transit_key("fleet-kek")
    environ = environment(bao.environment())
    _, made = mcpkeys(
        environ, tmp_path, "init", "fleet", "--kek", "hashivault://fleet-kek", "--keyset", "vaultkv://secret/fleet"
    )
    assert made["ok"], made
    environ |= made["settings"]

    # The server's line stands in the README as it is run here.
    lines = README.partition("from mcp.server.mcpserver import MCPServer\n")[2].partition("```")[0]
    (tmp_path / "orders.py").write_text("from mcp.server.mcpserver import MCPServer\n" + lines + TOOL)
    code, checked = mcpkeys(environ, tmp_path, "check", "orders:app", "--workers", "2")
    assert (code, checked["findings"]) == (0, [])
    assert checked["servers"][0]["keyset"] == "fleet"

    ports = [_free_port(), _free_port()]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "orders:app", "--port", str(port), "--log-level", "warning"],
            cwd=tmp_path,
            env=environ,
        )
        for port in ports
    ]
    try:
        for port in ports:
            _wait_for(port)
        anyio.run(_round, *(f"http://127.0.0.1:{port}/mcp" for port in ports))
        _, status = mcpkeys(environ, tmp_path, "status")
        assert sorted(one["state"] for one in status["instances"]) == ["serving", "serving"], "the check is no instance"
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(20)
    _, status = mcpkeys(environ, tmp_path, "status")
    assert {one["state"] for one in status["instances"]} == {"farewell"}


async def _round(one: str, other: str) -> None:
    with anyio.fail_after(60):
        async with clients(one, other) as (first, second):
            asked = await step(first, "refund", {"amount": 7})
            assert isinstance(asked, InputRequiredResult)
            done = await step(second, "refund", {"amount": 7}, asked)
    assert done.content[0].text == "refund:7 sure!"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int) -> None:
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("uvicorn does not listen")
