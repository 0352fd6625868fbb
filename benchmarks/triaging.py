"""Tokens judged per second by `mcpkeys triage`, on one core."""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

import keysets
from states import payloads

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
        rates = []
        for _ in range(turns):
            started = time.process_time()
            found = triage.run(capture.scan(lines), triage.Fleet(ring, time.time(), ring.keyset))
            rates.append(tokens / (time.process_time() - started))
            assert found.counts["tokens"] == tokens, found.counts
            assert found.counts["rejected"] >= tokens // 10
        rows.append({"name": name, "tokens_per_second": statistics.median(rates)})
    return {"rows": rows, "tokens": tokens}


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
