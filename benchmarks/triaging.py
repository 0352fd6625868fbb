"""Tokens judged per second by `mcpkeys triage`, on one core."""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keysets
from states import payloads
from timing import aside, counting, yardstick

from mcpkeys import EnvelopeCodec, capture, triage


def rate(folder: Path, *, tokens: int, turns: int = 3) -> dict[str, Any]:
    """Tokens per second of processor time, by kind of line: bare tokens, and whole JSON-RPC requests.

    Nine of ten are authentic, one is of an unknown key; no two are alike. The keys are at hand.
    """
    with EnvelopeCodec.open(**keysets.local(folder / "triage", keys=3)) as codec:
        sealed = [codec.seal(state) for state in payloads(300, tokens)]
        for i in range(0, tokens, 10):
            sealed[i] = "mk1." + os.urandom(9).hex()[:12] + sealed[i][16:]
        ring = codec.ring
    rows = []
    for name, lines in (("bare tokens", _bare(sealed)), ("JSON-RPC requests", _requests(sealed))):
        pace = Pace()
        for _ in range(turns):
            with pace:
                found = triage.run(capture.scan(pace.over(lines)), triage.Fleet(ring, time.time(), ring.keyset))
            assert found.counts["tokens"] == tokens, found.counts
            assert found.counts["rejected"] >= tokens // 10
        rows.append({"name": name, "tokens_per_second": 1 / pace.seconds_per_line(), "aside": pace.aside()})
    return {"rows": rows, "tokens": tokens, "aside": max(row["aside"] for row in rows)}


class Pace:
    """Times what consumes lines, a hundred at a time, with a yardstick between: see `timing`.

    The mean, not the median: what a run does now and then, as collecting garbage, is a part of its pace.
    """

    STEP = 100

    def __init__(self) -> None:
        self._steps: list[tuple[float, float]] = []
        self._rest = 0.0
        self._lines = 0

    def __enter__(self) -> None:
        self._before = yardstick()
        self._since = time.process_time()

    def over(self, lines: Sequence[bytes]) -> Iterator[bytes]:
        """The lines, timed while the consumer has them."""
        for start in range(0, len(lines), self.STEP):
            yield from lines[start : start + self.STEP]
            taken, after = time.process_time() - self._since, yardstick()
            self._steps.append((taken, max(self._before, after)))
            self._before, self._since = after, time.process_time()
        self._lines += len(lines)

    def __exit__(self, *_: object) -> None:
        """What the consumer did after the last line counts too."""
        self._rest += time.process_time() - self._since

    def seconds_per_line(self) -> float:
        """Of processor time, over the steps at the better speed."""
        counted = counting(self._steps) or [seconds for seconds, _ in self._steps]
        return statistics.fmean(counted) / self.STEP + self._rest / self._lines

    def aside(self) -> float:
        """The share of steps, 0 to 1, that do not count."""
        return aside(self._steps)


def _bare(sealed: list[str]) -> list[bytes]:
    return [token.encode() + b"\n" for token in sealed]


def _requests(sealed: list[str]) -> list[bytes]:
    return [
        json.dumps(
            {
                "jsonrpc": "2.0",
                "id": i,
                "method": "tools/call",
                "params": {
                    "name": "deploy",
                    "arguments": {"env": random.choice(["prod", "stage"])},
                    "requestState": token,
                },
            }
        ).encode()
        + b"\n"
        for i, token in enumerate(sealed)
    ]
