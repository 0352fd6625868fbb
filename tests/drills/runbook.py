"""The runbook as someone follows it who knows nothing else: its tables, its sections, the commands they contain."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs/how-to/refused-rounds.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    """A section's text, without its heading."""
    found = re.search(rf"^## (?:\d\. )?{re.escape(heading)}\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
    assert found is not None, f"the runbook has no section {heading!r}"
    return found[1]


def sent_to(step: str, seen: str) -> list[str]:
    """The headings that the rows of a step's table send to, for something that was seen (a word in backticks)."""
    rows = re.findall(r"^\|([^|]*)\|.*$", section(step), re.M)
    whole = re.findall(r"^\|.*$", section(step), re.M)
    lines = [line for first, line in zip(rows, whole, strict=True) if f"`{seen}`" in first]
    assert lines, f"no row of {step!r} is about {seen!r}"
    anchors = re.findall(r"\]\(#([a-z-]+)\)", " ".join(lines))
    return [heading for heading in re.findall(r"^## (.*)$", TEXT, re.M) if _anchor(heading) in anchors]


def commands(heading: str) -> list[str]:
    """The commands of a section, those in its text and those in its blocks, as they stand there."""
    text = section(heading)
    return [*re.findall(r"^\$ (.*)$", text, re.M), *re.findall(r"`(mcpkeys [^`]+)`", text)]


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
