"""The command as a program calls it: a process, JSON on stdout, an exit code."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcpkeys_cli.main import main


@dataclass
class Ran:
    """What one command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        document = json.loads(self.out)
        assert document["exit"] == self.code
        assert document["ok"] == (self.code == 0)
        assert (document["error"] is None) == (self.code == 0)
        return document


class Shell:
    """Runs `mcpkeys` with the settings of one keyset, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("MCPKEYS_")}
        self.keyset = folder / "fleet.keyset.json"
        self.kek = folder / "kek.key"

    def run(self, *arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Ran:
        """In this process: the same `main` as the console script, without the second that a process costs."""
        out, err, given = io.StringIO(), io.StringIO(), io.TextIOWrapper(io.BytesIO(stdin))
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.chdir(self.folder)
            patch.setattr("sys.stdin", given)
            for name in [name for name in os.environ if name.startswith("MCPKEYS_")]:
                patch.delenv(name)
            for name, value in {**self.environ, **(env or {})}.items():
                patch.setenv(name, value)
            code = main(arguments)
        return Ran(code, out.getvalue(), err.getvalue())

    def process(self, *arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Ran:
        """As a person or a script calls it."""
        done = subprocess.run(
            [sys.executable, "-m", "mcpkeys_cli", *arguments],
            input=stdin,
            capture_output=True,
            env={**self.environ, **(env or {})},
            cwd=self.folder,
            timeout=60,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    def json(self, *arguments: str, **more: Any) -> dict[str, Any]:
        return self.run(*arguments, "--output", "json", **more).json

    def init(self, *options: str) -> dict[str, Any]:
        answer = self.json("init", "fleet", "--keyset", str(self.keyset), "--kek", f"local://{self.kek}", *options)
        assert answer["ok"], answer
        self.environ |= answer["settings"]
        return answer


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)
