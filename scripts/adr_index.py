"""Renews the list in docs/adr/README.md from the pages' titles."""

from __future__ import annotations

import re
from pathlib import Path

ADRS = Path(__file__).resolve().parents[1] / "docs" / "adr"


def index(folder: Path) -> str:
    """The list, one line for each page, in the order of their numbers."""
    lines = []
    for page in sorted(folder.glob("[0-9]*.md")):
        title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}]({page.name})\n")
    return "".join(lines)


def renewed(readme: str, folder: Path) -> str:
    """The README with its list replaced."""
    return re.sub(r"(^- \[.*\n)+\Z", "", readme, flags=re.M) + index(folder)


if __name__ == "__main__":
    readme = ADRS / "README.md"
    readme.write_text(renewed(readme.read_text(encoding="utf-8"), ADRS), encoding="utf-8")
