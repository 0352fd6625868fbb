"""The reference pages name what the code has, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from mcpkeys import audience, errors, preflight, preflight_child, preflight_process, preflight_target
from mcpkeys.settings_values import PARSERS, variable

PAGES = Path(__file__).parents[2] / "docs/reference"
MODULES = (audience, preflight, preflight_child, preflight_process, preflight_target)
CODE = re.compile(r"(?<=[\"`])[a-z]+(?:-[a-z]+)+(?=[\"`])")
NOT_CODES = {"mcp-server", "streamable-http", "content-type", "mcpkeys-check"}


def test_every_finding_is_on_the_page_and_no_other() -> None:
    sources = "".join(Path(module.__file__).read_text() for module in MODULES)
    written = {code for code in CODE.findall(sources) if f'"{code}"' in sources} - NOT_CODES
    page = (PAGES / "findings.md").read_text()
    listed = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", page)) - NOT_CODES - {"my-mcp-app"}
    of_errors = {value.code for value in vars(errors).values() if isinstance(value, type) and hasattr(value, "code")}
    assert written <= listed
    assert listed - written - of_errors == set()
    assert len(written) > 30


def test_every_setting_is_on_the_page() -> None:
    page = (PAGES / "settings.md").read_text()
    for field in (*PARSERS, "config"):
        assert f"`{variable(field)}`" in page
