"""Triage: many tokens, one summary, in constant memory; stale instances by name."""

from __future__ import annotations

import io
import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inspection.scene import CALL, MINTING, NOW, RETIRED, VERIFYING, Scene

from mcpkeys import capture
from mcpkeys.call import arguments_digest
from mcpkeys.encoding import b64u
from mcpkeys.triage import MAX_BUCKETS, MAX_NAMES, OTHERS, Fleet, Histogram, Tally, Triage, run

SCENE = Scene()
RING = SCENE.ring((MINTING, VERIFYING, RETIRED))


def line(token: str, at: float = NOW, **around: Any) -> bytes:
    params = {**CALL["params"], "requestState": token}
    request = {"jsonrpc": "2.0", "id": 1, "method": CALL["method"], "params": params}
    return json.dumps({"time": at, "request": request, **around}).encode() + b"\n"


def triaged(*lines: bytes, **fleet: Any) -> Any:
    given = {"ring": RING, "now": NOW, "keyset": SCENE.keyset, "audience": "acme-orders"} | fleet
    return run(capture.scan(lines), Fleet(**given))


def test_a_summary_counts_by_reason_key_minter_audience_method_and_minute() -> None:
    summary = triaged(
        line(SCENE.token()),
        line(SCENE.token(VERIFYING, exp=NOW - 5, iat=NOW - 605), at=NOW + 60),
        line(SCENE.token(RETIRED)),
        line(SCENE.token("ZZZZunknown9")),
        line(SCENE.token(aud="acme-billing")),
        line("mk1.cut"),
        b"2026-11-29 22:51:00,500 WARNING requestState rejected on prompts/get: principal drift\n",
        reports=[SCENE.report("web-1", prefixes=(b64u(SCENE.prefix),))],
    )
    assert summary.counts["tokens"] == 6
    assert (summary.counts["accepted"], summary.counts["rejected"], summary.counts["log_lines"]) == (1, 5, 1)
    assert set(summary.by["reason"]) == {
        "expired",
        "retired key",
        "unknown key",
        "audience",
        "malformed",
        "principal drift",
    }
    assert summary.by["key"][f"{MINTING} minting"] == 2
    assert summary.by["minted_by"] == {"web-1 (d2ViLTEu)": 5}
    assert summary.by["audience"] == {"acme-orders": 3, "acme-billing": 1}
    assert summary.by["method"] == {"tools/call": 6, "prompts/get": 1}
    assert sum(count for _, count in summary.histogram) == 7
    assert summary.next


def test_a_token_that_inspects_as_accepted_while_one_stale_instance_refuses_it_is_said_so_by_name() -> None:
    stale = SCENE.report("web-2", verifies=(VERIFYING,), generation=6)
    summary = triaged(
        line(SCENE.token(), instance="web-2", message="requestState rejected on tools/call: unknown key"),
        reports=[SCENE.report("web-1"), stale],
    )
    assert summary.counts["accepted"] == 1
    assert any("web-2" in name and MINTING in name for name in summary.stale)
    assert any("web-2 logged 'unknown key'" in name for name in summary.stale)
    assert "web-2" in summary.likely[0]
    assert "mcpkeys status" in summary.next
    assert not any("web-1" in name for name in summary.stale)


def test_a_token_is_judged_at_the_moment_of_its_capture() -> None:
    token = SCENE.token(exp=NOW + 10)
    assert triaged(line(token), now=NOW + 9e5).counts["accepted"] == 1
    bare = triaged(token.encode() + b"\n", now=NOW + 9e5)
    assert (bare.by["reason"], bare.expired_since) == ({"expired": 1}, 1)


def test_many_unknown_keys_are_called_what_they_are() -> None:
    lines = [line(SCENE.token(f"ZZZZunknown{i}")) for i in range(5)]
    assert triaged(*lines).likely[0].startswith("5 different unknown keys")


def test_records_name_no_token_no_arguments_and_no_state() -> None:
    triage = Triage(Fleet(RING, NOW, SCENE.keyset))
    token = SCENE.token()
    (captured,) = capture.scan([line(token)])
    record = triage.feed(captured)
    assert record is not None
    shown = json.dumps(record.as_dict())
    assert token not in shown
    assert "prod" not in shown
    assert "colour=blue" not in shown
    assert (record.as_dict()["verdict"], record.as_dict()["kid"]) == ("accepted", MINTING)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=30), max_size=600))
def test_a_tally_never_grows_beyond_its_cap_and_loses_nothing(names: list[str]) -> None:
    tally = Tally()
    for name in names:
        tally.add(name)
    assert len(tally.counts) <= MAX_NAMES + 1
    assert sum(tally.counts.values()) == len(names)
    assert len(set(names)) <= MAX_NAMES or OTHERS in tally.counts


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0, 1e10), max_size=3000))
def test_a_histogram_never_grows_beyond_its_cap_and_loses_nothing(moments: list[float]) -> None:
    histogram = Histogram()
    for at in moments:
        histogram.add(at)
    assert len(histogram.counts) <= MAX_BUCKETS
    assert sum(count for _, count in histogram.buckets()) == len(moments)
    assert [start for start, _ in histogram.buckets()] == sorted(start for start, _ in histogram.buckets())


def recorded(path: Path, count: int) -> None:
    """What a proxy records: `count` requests of eight instances over two hours, a fifth of them sound."""
    rng = random.Random(6)
    prefixes = [os.urandom(12) for _ in range(8)]
    with path.open("wb") as stream:
        for i in range(count):
            SCENE.prefix = rng.choice(prefixes)
            arguments = {"env": "prod", "n": i}
            at = NOW + i * 0.07
            iat = at - rng.random() * 900
            digest = arguments_digest(arguments)
            claims = SCENE.claims(iat=iat, exp=iat + 600, a=digest, s="x" * 200)
            token = SCENE.seal(json.dumps(claims).encode(), rng.choice([MINTING, VERIFYING, RETIRED, "ZZZZunknown9"]))
            params = {"name": "deploy", "arguments": arguments, "requestState": token}
            stream.write(json.dumps({"time": at, "body": {"method": "tools/call", "params": params}}).encode() + b"\n")


def test_memory_does_not_grow_with_the_stream(tmp_path: Path) -> None:
    path = tmp_path / "recorded.ndjson"
    recorded(path, 1000)
    once = path.read_bytes()

    def peak(times: int) -> int:
        script = (
            "import sys, io, resource\n"
            "from mcpkeys import capture\n"
            "from mcpkeys.triage import Fleet, run\n"
            "lines = open(sys.argv[1], 'rb').readlines()\n"
            "def many():\n"
            "    for _ in range(int(sys.argv[2])):\n"
            "        yield from lines\n"
            "summary = run(capture.scan(many()), Fleet(None, 0.0))\n"
            "assert summary.counts['tokens'] == 1000 * int(sys.argv[2])\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(path), str(times)],
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        return int(done.stdout)

    assert len(once) > 100_000
    assert peak(12) < peak(1) + 4_000  # KiB


@pytest.mark.slow
def test_a_hundred_thousand_recorded_tokens_take_five_seconds_of_one_core_and_less_than_100_mb(tmp_path: Path) -> None:
    path = tmp_path / "recorded.ndjson"
    recorded(path, 100_000)
    with path.open("rb") as stream:
        started = time.process_time()
        summary = run(capture.scan(capture.read_lines(stream)), Fleet(RING, NOW, SCENE.keyset, (), "acme-orders"))
        took = time.process_time() - started
    print(f"{100_000 / took:,.0f} tokens/s, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    assert summary.counts["tokens"] == 100_000
    # The number to reach is 20,000 a second on a quiet core (benchmarks/); here only what no noise explains.
    assert took < 20


def test_a_stream_may_be_anything() -> None:
    noise = random.Random(7).randbytes(20_000)
    assert triaged(*io.BytesIO(noise)).counts["tokens"] == 0


@pytest.mark.parametrize(
    ("word", "following"),
    [
        ("stale ring", "mcpkeys doctor --as-server"),
        ("audience", "mcpkeys check MODULE:SERVER"),
        ("unknown key", "mcpkeys status"),
        ("minted in the future", "mcpkeys status"),
        ("request binding", "capture the requests too"),
    ],
)
def test_a_log_without_tokens_leads_to_where_the_word_is_explained(word: str, following: str) -> None:
    summary = triaged(*[f"WARNING requestState rejected on tools/call: {word}\n".encode()] * 2)
    assert summary.likely == [f"the servers logged '{word}' 2 times; the log holds no tokens"]
    assert summary.next.startswith(following)


def test_the_one_instance_that_minted_what_is_refused_is_named_among_all_that_mint() -> None:
    reports = [SCENE.report("web-1", prefixes=(b64u(SCENE.prefix),))]
    sound, odd = line(SCENE.token()), line(SCENE.token(iat=NOW + 300, exp=NOW + 900))
    (likely,) = triaged(sound, odd, odd, reports=reports).likely
    assert likely.startswith("minted in the future, 2 times, all minted by web-1 (")
    (likely,) = triaged(sound, odd, odd).likely
    assert "minted by" not in likely, "without reports nobody knows"
