"""What the README tells a new user to type, word for word: on a terminal, in an empty folder, with a real server."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import shlex
import socket
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
# Ten minutes of ttl are too long for a test: the one departure from the README's words.
QUICK = " --ttl 6s --skew 2s --refresh 1s"
SERVER = """
import sys
import uvicorn
from mcp.server.mcpserver import Context
from mcp.types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult


@mcp.tool()
async def refund(amount: int, ctx: Context) -> str | InputRequiredResult:
    form = {"type": "object", "properties": {"sure": {"type": "string"}}, "required": ["sure"]}
    ask = ElicitRequest(params=ElicitRequestFormParams(message="Sure?", requested_schema=form))
    return InputRequiredResult(input_requests={"sure": ask}, request_state=f"refund:{amount}")


uvicorn.run(mcp.streamable_http_app(stateless_http=True), port=int(sys.argv[1]), log_level="warning")
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def commands() -> list[str]:
    """Each line of a console block, without its comment."""
    lines = [line for block in blocks("console") for line in block.splitlines()]
    return [stripped for line in lines if (stripped := re.sub(r"\s+#.*", "", line).strip())]


def mentioned() -> list[str]:
    """Commands in the middle of a sentence."""
    prose = re.sub(r"```.*?```", "", README, flags=re.S)
    return re.findall(r"`(mcpkeys [^`]*)`", prose)


def test_every_make_target_and_extra_of_the_readme_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    others = [line for line in commands() if not line.startswith("mcpkeys ")]
    assert others, "the README begins with make"
    for line in others:
        words = shlex.split(line)
        if words[0] == "make":
            assert words[1] in targets, line
        else:
            assert words[:2] == ["pip", "install"], f"the README grew a command that nobody runs: {line}"
            extra = re.fullmatch(r"mcpkeys(?:\[(\w+)\])?", words[2])
            assert extra is not None, line
            assert extra[1] in (None, *extras), line
    for extra in re.findall(r"or (\w+, \w+, \w+)", README)[0].split(", "):
        assert extra in extras


class Terminal:
    """Runs one line after the other in bash, as on a terminal where `y` is typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shim = folder / "bin" / "mcpkeys"
        shim.parent.mkdir()
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mcpkeys_cli "$@"\n')
        shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("MCPKEYS_")}
        self.environ |= {"PATH": f"{shim.parent}:{os.environ['PATH']}", "NO_COLOR": "1", "PWD": str(folder)}

    def type(self, line: str) -> tuple[int, str]:
        """The exit code and what it printed on stdout."""
        keyboard, terminal = pty.openpty()
        try:
            os.write(keyboard, b"y\n")
            done = subprocess.run(
                ["bash", "-c", line],
                cwd=self.folder,
                env=self.environ,
                stdin=terminal,
                capture_output=True,
                text=True,
                timeout=90,
            )
        finally:
            os.close(keyboard)
            os.close(terminal)
        print(f"$ {line}\n{done.stdout}{done.stderr}  exit {done.returncode}")
        return done.returncode, done.stdout

    def set(self, exports: str) -> None:
        """What `init` printed, as a shell reads it."""
        for name, value in re.findall(r"^export (\w+)=(.*)$", exports, re.M):
            (self.environ[name],) = shlex.split(value)


@contextmanager
def serving(terminal: Terminal) -> Iterator[str]:
    """The README's server, with a tool; its URL."""
    (source,) = blocks("python")
    (terminal.folder / "server.py").write_text(source + SERVER)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "server.py", str(port)],
        cwd=terminal.folder,
        env=terminal.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=(terminal.folder / "server.log").open("w"),
    )
    try:
        until = time.monotonic() + 60
        while True:
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, (terminal.folder / "server.log").read_text()
            assert time.monotonic() < until
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(20)


async def refused_token(url: str) -> str:
    """A token that a client changed, refused by the server (whose log says so)."""
    from mcp import Client
    from mcp.client import ClientRequestContext
    from mcp.shared.exceptions import MCPError
    from mcp.types import ElicitRequestParams, ElicitResult

    async def never(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action="cancel")

    async with Client(url, elicitation_callback=never) as client:
        asked = await client.session.call_tool("refund", {"amount": 7}, allow_input_required=True)
        token = asked.request_state
        assert token is not None
        changed = token[:-9] + ("A" if token[-9] != "A" else "B") + token[-8:]
        with pytest.raises(MCPError) as refused:
            await client.session.call_tool("refund", {"amount": 7}, request_state=changed, allow_input_required=True)
        assert refused.value.error.message in README, "the README names the error that a client gets"
    return changed


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_command_of_the_readme_does_what_it_says(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    lines = [line for line in commands() if line.startswith("mcpkeys ")]
    assert lines[0].startswith("mcpkeys init "), "first things first"
    code, printed = terminal.type(lines.pop(0) + QUICK)
    assert code == 0
    assert printed.count("export MCPKEYS_") == 4, "as the README says"
    terminal.set(printed)
    with serving(terminal) as url:
        for line in lines:
            wanted = 0
            if "token.txt" in line:
                (tmp_path / "token.txt").write_text(asyncio.run(refused_token(url)) + "\n")
                wanted = 3
            code, printed = terminal.type(line)
            assert code == wanted, line
            if "status" in line:
                assert "serving" in printed
                assert "next: mcpkeys rotate --phase 1" in printed
            if wanted == 3:
                assert "seal" in printed, "the server's own word"
        code, printed = terminal.type("mcpkeys status")
        assert "rotated" in printed, "the three commands were a rotation"
        for line in mentioned():
            if line in ("mcpkeys rotate", "mcpkeys rotate --phase 2"):
                continue  # the command as such, told about, not to be typed
            code, _ = terminal.type(line)
            assert code == 0, line
