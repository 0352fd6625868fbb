"""The pages a reader sees, and the blocks in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("examples/*/*.md")])
_FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=indent)(?P=fence) *$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    title: str
    text: str

    @property
    def place(self) -> str:
        return f"{name(self.page)}:{self.line}"


def name(page: Path) -> str:
    """The page's path as a reader knows it."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    """The fenced blocks of a page, those of the given languages or all."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        words = match["info"].split()
        language = words[0] if words else ""
        if not languages or language in languages:
            title = re.search(r'title="([^"]+)"', match["info"])
            body = re.sub(rf"^{match['indent']}", "", match["body"], flags=re.M)
            line = text.count("\n", 0, match.start()) + 1
            yield Block(page, line, language, title[1] if title else "", body)


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))
