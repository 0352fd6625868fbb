"""A demo that did not go as promised says what, why, and a next step that fits; never how to go on with a success."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from mcpkeys_cli import demo
from mcpkeys_cli.story.story import Story
from mcpkeys_cli.story.tally import Tally
from mcpkeys_cli.story.verdict import Refusal, wrong

FROZEN = {"code": -32602, "message": "Invalid or expired requestState", "data": None}
REASONS = ["seal", "expired", "request binding", "unknown key"]


def refusals(**changes: object) -> list[Refusal]:
    made = [Refusal(reason, FROZEN, reason, "") for reason in REASONS]
    for name, value in changes.items():
        setattr(made[2], name, value)
    return made


@pytest.mark.parametrize(
    ("traffic", "refused", "what", "why"),
    [
        (
            Tally(refused=2, refusals=[5.0, 3.0]),
            refusals(),
            "2 rounds were refused, the first at 1970-01-01T00:00:03",
            "",
        ),
        (Tally(broken=Counter({"Connection closed": 3})), refusals(), "calls failed", "3 x Connection closed"),
        (Tally(), refusals(reason="seal"), "other reasons", "expected"),
        (Tally(), refusals(wire=None), "not answered with the frozen error", "it was accepted"),
        (Tally(), refusals(wire={**FROZEN, "code": -32600}), "not answered with the frozen error", "-32600"),
    ],
)
def test_each_broken_promise(tmp_path: Path, traffic: Tally, refused: list[Refusal], what: str, why: str) -> None:
    story = Story(tmp_path, None, None, None, 3, traffic=traffic, refusals=refused)
    answer = demo._answer(story, 1.0)
    assert (answer.exit, answer.code) == (1, "demo-broken")
    assert what in answer.message
    assert why in answer.why
    assert answer.why
    assert "report" in answer.next
    assert "README" not in answer.next


def test_a_kept_promise_points_to_ones_own_server(tmp_path: Path) -> None:
    assert wrong(Tally(), refusals()) is None
    answer = demo._answer(Story(tmp_path, None, None, None, 3, refusals=refusals()), 1.0)
    assert (answer.exit, answer.code, answer.message, answer.why) == (0, "", "", "")
    assert "README" in answer.next
