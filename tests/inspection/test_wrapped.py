"""Refusals in logs as `MCPServer` writes them where rich is installed: broken at 80 columns, or wider."""

from __future__ import annotations

import io
import logging
import time

import pytest
from rich.console import Console
from rich.logging import RichHandler

from mcpkeys import capture, wrapped
from mcpkeys.causes import _TELLERS

WORDS = [*_TELLERS, "stale ring", "codec error"]


def logged(words: list[str], width: int) -> list[str]:
    """Lines as the SDK's default handler writes them."""
    out = io.StringIO()
    handler = RichHandler(console=Console(file=out, width=width), rich_tracebacks=True)
    for word in words:
        record = logging.LogRecord(
            "mcp.server.request_state", logging.WARNING, "/x/request_state.py", 263,
            f"requestState rejected on tools/call: {word}", (), None,
        )  # fmt: skip
        handler.emit(record)
    return out.getvalue().splitlines()


def found(lines: list[str]) -> list[tuple[str | None, str | None, str | None, int]]:
    return [
        (one.method, one.logged, one.instance, one.line)
        for one in capture.scan((line + "\n").encode() for line in lines)
    ]


@pytest.mark.parametrize("width", [80, 92, 100, 120, 200])
def test_every_word_is_read_out_of_broken_lines(width: int) -> None:
    lines = logged(WORDS, width)
    assert len(lines) > len(WORDS) or width > 100, "nothing was broken: the test tests nothing"
    assert [(method, word) for method, word, *_ in found(lines)] == [("tools/call", word) for word in WORDS]


@pytest.mark.parametrize("stamp", ["", "2026-11-30T00:44:31.123456789Z "])
def test_lines_of_two_pods_that_were_mixed(stamp: str) -> None:
    one = [f"[pod/orders-1/orders] {stamp}{line}" for line in logged(["audience", "minted in the future"], 80)]
    two = [f"[pod/orders-2/orders] {stamp}{line}" for line in logged(["unknown key"] * len(one), 80)][: len(one)]
    mixed = [line for pair in zip(one, two, strict=True) for line in pair]
    words = sorted((instance or "", word or "") for _, word, instance, _ in found(mixed))
    assert words[:2] == [("orders-1", "audience"), ("orders-1", "minted in the future")]
    assert set(words[2:]) == {("orders-2", "unknown key")}


def test_other_lines_are_left_alone_and_keep_their_numbers() -> None:
    lines = ["nothing", "    indented", *logged(["audience"], 80), " " * 30 + "other", "end"]
    assert found(["first", *lines]) == [("tools/call", "audience", None, 4)]
    plain = "2026-11-30T00:30:00Z WARNING mcp.server.request_state: requestState rejected on tools/call: seal"
    assert found([plain, " " * 30 + "seal"]) == [("tools/call", "seal", None, 1)]


@pytest.mark.parametrize("spaces", [900, 1 << 20])
def test_spaces_without_end_cost_no_time(spaces: int) -> None:
    line = b"requestState rejected on " + b"a" * 99 + b": " + b" " * spaces + b"\n"
    lines = [line] * max(1, (4 << 20) // len(line))
    began = time.process_time()
    assert [found for _, found in wrapped.joined(lines)] == lines
    assert time.process_time() - began < 1.5
