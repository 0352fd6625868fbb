"""How findings are shown: the refused ones first, each with its reason and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from mcpkeys.findings import Finding
from mcpkeys_cli.output import escape, paint

_COLOURS = {"refused": "red", "warned": "yellow"}


def shown(findings: Sequence[Finding]) -> str:
    """One block of three lines for each finding."""
    blocks = [
        f"{paint(finding.level, _COLOURS[finding.level])} {escape(finding.subject)} [{finding.code}]: "
        f"{escape(finding.what)}\n  why: {escape(finding.why)}\n  next: {escape(finding.next)}"
        for finding in sorted(findings, key=lambda finding: finding.level != "refused")
    ]
    return "\n".join(blocks)


def counted(findings: Sequence[Finding]) -> str:
    """`2 refused, 1 warned`, or `no findings`."""
    counts = [
        f"{count} {level}" for level in _COLOURS if (count := sum(finding.level == level for finding in findings))
    ]
    return ", ".join(counts) or "no findings"
