"""A finding: one thing that a check has to say, as data.

`audience`, `check`, `doctor` and `verify` all answer with findings, so that a person reads the same three
sentences everywhere (what, why, next) and a script compares the same stable codes.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Literal

Level = Literal["refused", "warned"]

# Letters (category Lo) and marks (Mn) that Unicode calls default-ignorable: they draw nothing.
_INVISIBLE_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_CONTROL_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_VARIATION_SELECTORS = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0), range(0x180B, 0x1810))


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        code: a stable word that scripts may compare.
        level: `refused` (must be mended; commands exit 2) or `warned` (a person should look).
        subject: what it is about: an audience name, a server, a setting. Already printable.
        what: what was found, one sentence without a full stop.
        why: why it matters.
        next: what to do about it.
    """

    code: str
    level: Level
    subject: str
    what: str
    why: str
    next: str

    def as_dict(self) -> dict[str, str]:
        """The shape of a finding in JSON output."""
        return asdict(self)

    def refused(self) -> Finding:
        """The same finding at level `refused`: what `--strict` makes of a warning."""
        return self if self.level == "refused" else replace(self, level="refused")


def any_refused(findings: Iterable[Finding]) -> bool:
    """Whether at least one finding is at level `refused`."""
    return any(finding.level == "refused" for finding in findings)


def is_invisible(char: str) -> bool:
    """Whether a character has no picture of its own or changes how its neighbours are shown.

    C0, C1 and DEL, bidirectional controls, zero-width characters, line and paragraph separators, surrogates,
    variation selectors, fillers and tag characters.
    """
    if char.isascii():
        return not " " <= char <= "~"
    if unicodedata.category(char) in _CONTROL_CATEGORIES or char in _INVISIBLE_LETTERS:
        return True
    return any(ord(char) in selectors for selectors in _VARIATION_SELECTORS)


def printable(text: str, limit: int = 120) -> str:
    """`text` as it may be shown: invisible characters as `\\x1b`, `\\u202e`; cut after `limit` characters.

    A backslash is doubled, so that what is shown can be told from what was escaped.
    """
    shown = text[:limit]
    parts = ["\\\\" if char == "\\" else _escaped(char) if is_invisible(char) else char for char in shown]
    return "".join(parts) + ("…" if len(text) > limit else "")


def _escaped(char: str) -> str:
    point = ord(char)
    if point <= 0xFF:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"
