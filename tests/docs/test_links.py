"""No dead relative link, no link to a heading that is not there, and nothing loaded from elsewhere."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import pytest
from docs.pages import DOCS, PAGES, ROOT, name, prose

TELEMETRY = set(re.findall(r'"(mcpkeys[a-z_.]+)"', (ROOT / "src/mcpkeys/metrics.py").read_text(encoding="utf-8")))
# Written by benchmarks/ and scripts/mutation.py; the builder leaves out what is not there yet.
AWAITED = {"performance.md", "mutation.md"}
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
CODE = re.compile(r"`[^`\n]*`")


def anchors(page: Path) -> set[str]:
    """The ids that headings get."""
    found: set[str] = set()
    for title in re.findall(r"^#{1,6} +(.+?) *$", prose(page), flags=re.M):
        given = re.search(r"\{ *#([\w-]+) *\}$", title)
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"[`*]", "", title))
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
        number = 0
        unique = given[1] if given else slug
        while unique in found:
            number += 1
            unique = f"{slug}_{number}"
        found.add(unique)
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_dead_link(page: Path) -> None:
    for target in LINK.findall(CODE.sub("", prose(page))):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            assert target.startswith(("https://", "mailto:")), f"{name(page)}: {target}"
            continue
        path, _, anchor = unquote(target).partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{name(page)}: {target}"
        assert found.is_relative_to(ROOT), f"{name(page)}: {target}"
        if page.is_relative_to(DOCS):
            assert found.is_relative_to(DOCS), f"{name(page)}: {target} is not in the built pages"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{name(page)}: {target}: headings are {sorted(anchors(found))}"


def test_every_page_can_be_reached() -> None:
    """From the overview or the navigation; decisions from their index."""
    navigation = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    index = (DOCS / "adr/README.md").read_text(encoding="utf-8")
    for page in DOCS.rglob("*.md"):
        path = page.relative_to(DOCS).as_posix()
        assert f'"{path}"' in navigation or f"({page.name})" in index, f"{path} is in no menu"
    for path in re.findall(r'= "([\w/.-]+\.md)"', navigation):
        assert (DOCS / path).exists() or path in AWAITED, path


def test_the_pages_load_nothing_from_elsewhere() -> None:
    settings = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    assert "font = false" in settings
    assert "://" not in settings
    for page in DOCS.rglob("*"):
        if page.suffix in (".md", ".css", ".svg"):
            text = page.read_text(encoding="utf-8")
            assert not re.search(r"(?:src|href)=[\"']https?:|url\((?!#)|@import|<script", text), page


def test_pages_that_the_source_names_exist() -> None:
    for folder in ("src", "plugins", "cli", "scripts", "monitoring", "tests", "examples"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".yaml", ".json", ".md", ".toml"):
                for named in re.findall(r"(?<![\w/.-])docs/[\w/-]+\.md\b", path.read_text(encoding="utf-8")):
                    known = (ROOT / named).exists() or named.removeprefix("docs/") in AWAITED
                    assert known, f"{path.relative_to(ROOT)}: {named}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_modules_and_names_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for module in (
        {*re.findall(r"`(mcpkeys(?:_\w+)?(?:\.[a-z_]+)*)`", text)} - TELEMETRY - {"mcpkeys_keyset", "mcpkeys.stores"}
    ):
        try:
            found = find_spec(module)
        except ModuleNotFoundError:
            found = None
        last = module.rpartition(".")
        assert found is not None or hasattr(import_module(last[0]), last[2]), f"{name(page)}: {module}"
    for module, names in re.findall(r"^from (mcpkeys[\w.]*) import ([\w, ]+)$", text, re.M):
        for imported in names.split(","):
            assert hasattr(import_module(module), imported.strip()), f"{name(page)}: {imported} of {module}"
