"""What the plugin tutorial shows is what the example holds, and it names every hook."""

import inspect
import re
from pathlib import Path

import pytest

from mcpkeys.testing import KmsContract, StoreContract

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = (ROOT / "docs" / "how-to" / "write-a-plugin.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "mcpkeys-example-plugin"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TUTORIAL, re.DOTALL)


def test_the_shown_project_file_is_the_examples():
    (shown,) = blocks("toml")
    held = (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    assert [line for line in shown.splitlines() if line and line not in held] == []


def test_the_shown_code_is_the_examples():
    wrap, contract = blocks("python")
    assert wrap in (EXAMPLE / "src" / "mcpkeys_example" / "kms.py").read_text(encoding="utf-8")
    held = (EXAMPLE / "tests" / "test_kms.py").read_text(encoding="utf-8").splitlines()
    shown = [
        line for line in contract.splitlines() if line.lstrip().startswith(("class", "def", "return", "yield", "@"))
    ]
    assert [line for line in shown if line not in held] == []


@pytest.mark.parametrize("contract", [KmsContract, StoreContract])
def test_every_hook_is_named(contract):
    hooks = [
        name
        for name, member in vars(contract).items()
        if inspect.isfunction(member) and not name.startswith(("_", "test_")) and name not in ("soon",)
    ]
    assert len(hooks) > 10
    assert [name for name in hooks if f"`{name}`" not in TUTORIAL] == []
