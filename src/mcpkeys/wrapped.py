"""Log lines that were broken to fit a terminal: `MCPServer` logs through rich where rich is installed.

Without a terminal rich assumes 80 columns, puts the source's place at the right and goes on below:

    [11/30/26 00:44:31] WARNING  requestState rejected on       request_state.py:263
                                 tools/call: audience
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

MAX_PARTS: Final = 4
"""A refusal's line is at most this many broken lines long (80 columns: three)."""
MAX_OPEN: Final = 4096
"""Instances whose lines may be mixed; beyond, the oldest one's refusal counts as it stands."""
# The message ends in what is no space, so that a long run of spaces is walked once, not from each of its places.
_OPENS = re.compile(rb"^(.{0,300}?)(requestState rejected on\b(?:.{0,199}?\S)??)\s+\w{1,100}\.py:\d{1,6}\s*$")
_FRONT = re.compile(
    rb"((?:\[pod/[^\]\s]{1,300}\] |[^\s|]{1,100}\s{1,40}\| )?)(?:\d{4}-\d\d-\d\dT[\d:.,+Z-]{8,30} )?( *)", re.ASCII
)
_NEXT_RECORD = re.compile(rb"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s")


def joined(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Each line and its number, from 1; a refusal that was broken is one line, at the number where it began.

    Prefixes of kubectl and docker compose are looked past; lines of several instances may be mixed.
    """
    began: dict[bytes, _Broken] = {}
    for number, line in enumerate(lines, 1):
        if began and (front := _FRONT.match(line)) is not None and (broken := began.get(front[1])) is not None:
            more = line[front.end() :].rstrip()
            goes_on = len(front[2]) == broken.column and more and not _NEXT_RECORD.match(more)
            if goes_on and len(broken.parts) < MAX_PARTS:
                broken.parts.append(more)
                continue
            yield began.pop(front[1]).whole()
        if b"requestState rejected on" in line and (opening := _OPENS.match(line)) is not None:
            front = _FRONT.match(line)
            assert front is not None
            before = len(opening[1]) - front.start(2)
            if len(began) >= MAX_OPEN:
                yield began.pop(next(iter(began))).whole()
            began[front[1]] = _Broken(number, before, [opening[1] + opening[2]])
            continue
        yield number, line
    for broken in began.values():
        yield broken.whole()


class _Broken(NamedTuple):
    """A refusal whose end has not been seen; `column`: where its message stands, the instance's prefix aside."""

    line: int
    column: int
    parts: list[bytes]

    def whole(self) -> tuple[int, bytes]:
        return self.line, b" ".join(self.parts) + b"\n"
