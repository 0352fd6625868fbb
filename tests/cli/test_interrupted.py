"""Ctrl-C at any moment: exit code 130, and no traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

INTERRUPTED_AT = """
import os, signal, sys
from importlib import import_module

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == {at!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupter())
sys.argv = ["mcpkeys", "verify", "./none.json"]
import_module({module!r}).run()
"""
MODULES = [
    "mcpkeys_cli.main",
    "click",
    "mcpkeys.errors",
    "mcpkeys_cli.output",
    "mcpkeys_cli.verify",
    "mcpkeys.document",
]


@pytest.mark.parametrize("at", MODULES)
def test_while_it_imports(at: str) -> None:
    program = INTERRUPTED_AT.format(at=at, module="mcpkeys_cli.start")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == 130, done
    assert b"Traceback" not in done.stderr
    assert done.stdout == b""


def test_the_console_script_and_the_module_start_there(pytestconfig: pytest.Config) -> None:
    declared = (pytestconfig.rootpath / "pyproject.toml").read_text()
    assert 'mcpkeys = "mcpkeys_cli.start:run"' in declared
    program = INTERRUPTED_AT.format(at="click", module="mcpkeys_cli.start").replace(
        "import_module('mcpkeys_cli.start').run()", "import runpy; runpy.run_module('mcpkeys_cli', run_name='__main__')"
    )
    assert "runpy" in program
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, b"")


def test_the_first_module_imports_nothing_that_takes_time() -> None:
    program = "import sys; before = set(sys.modules); import mcpkeys_cli.start; print(set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=True)
    assert set(eval(done.stdout)) == {"mcpkeys_cli", "mcpkeys_cli.start"}  # noqa: S307
