"""Explanations: the causes fit this keyset's situation, and a next step is always there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inspection.scene import CALL, DROPPED, MINTING, NOW, RETIRED, VERIFYING, Scene

from mcpkeys.call import CallContext
from mcpkeys.difference import differences
from mcpkeys.explanation import Explanation, Situation, explain
from mcpkeys.inspection import inspect_token
from mcpkeys.keyset import HistoryEntry

SCENE = Scene()
RING = SCENE.ring((MINTING, VERIFYING, RETIRED))
WHOLE = CallContext(**CALL, audience="acme-orders", principal=None)


def told(token: object, call: CallContext = WHOLE, *, now: float = NOW, ring: Any = RING, **more: Any) -> Explanation:
    situation = Situation(**{"keyset": SCENE.keyset, "call": call, "now": now, **more})
    made = explain(inspect_token(token, ring, call, now=now), situation)
    assert made.summary
    assert made.next
    return made


def test_an_unknown_key_that_an_instance_has_is_newer_than_what_is_held_here() -> None:
    ahead = SCENE.report("web-4", verifies=(MINTING, "ZZZZunknown9"), generation=9)
    made = told(SCENE.token("ZZZZunknown9"), reports=[ahead])
    assert "newer than generation 7" in made.summary
    assert made.causes[0].startswith("web-4 ")
    assert made.still_verify[0].startswith("web-4 ")


def test_an_unknown_key_that_the_history_names_has_left() -> None:
    entry = HistoryEntry(int(NOW * 1000) - 60_000, "ops", "purge ZZZZunknown9", 7)
    keyset = replace(SCENE.keyset, history=(entry,))
    assert "left the keyset: purge" in told(SCENE.token("ZZZZunknown9"), keyset=keyset).summary


def test_an_unknown_key_that_nobody_knows_was_never_in_this_keyset() -> None:
    assert "never in this keyset up to generation 7" in told(SCENE.token("ZZZZunknown9")).summary


def test_a_retired_key_tells_when_and_whether_it_was_burnt() -> None:
    since = next(key.state_since for key in SCENE.keyset.keys if key.kid == RETIRED)
    burnt = replace(SCENE.keyset, history=(HistoryEntry(since, "ops", "rotate --emergency", 6, "leaked"),))
    token = SCENE.token(RETIRED, iat=since / 1000 - 60, exp=since / 1000 + 540)
    assert told(token, keyset=burnt).causes[0] == (
        "it was burnt in an emergency: leaked; rounds in flight are refused knowingly"
    )
    assert "22 h ago" in told(token).summary
    later = told(token, now=since / 1000 + 60)
    assert any("still valid when its key was retired" in cause for cause in later.causes)
    assert any("no longer kept" in cause for cause in told(SCENE.token(DROPPED)).causes)


def test_expiry_tells_by_how_much_and_what_the_ttl_was() -> None:
    made = told(SCENE.token(iat=NOW - 330, exp=NOW - 30))
    assert made.summary == "expired 30 s ago; its ttl was 5 min"
    assert any("within the keyset's skew of 60 s" in cause for cause in made.causes)
    assert any("is not the keyset's 600 s" in cause for cause in made.causes)
    assert "merely" not in made.summary
    assert any("no other check fails" in cause for cause in made.causes)


def test_a_clock_that_reports_say_is_wrong_is_named() -> None:
    ahead = SCENE.report("web-4")
    ahead = replace(ahead, report=replace(ahead.report, clock=int(NOW * 1000) + 120_000))
    made = told(SCENE.token(iat=NOW + 119), reports=[ahead])
    assert any(cause.startswith("web-4 ") and "ahead of the store's" in cause for cause in made.causes)


@pytest.mark.parametrize(
    ("minted", "expected", "says"),
    [
        ("acme-orders", "acme-order", "only by one edit"),
        ("acme-orders", "Acme-Orders", "only by case"),
        ("acme-orders", "acme-billing", "another"),
        ("acme-orders", None, "a server that has none"),
        (..., "acme-orders", "without an audience"),
    ],
)
def test_an_audience_is_told_from_the_expected_one(minted: Any, expected: str | None, says: str) -> None:
    made = told(SCENE.token(aud=minted), replace(WHOLE, audience=expected))
    assert says in made.causes[0]
    assert any("keyset's audience" in cause for cause in made.causes)


def test_what_would_fail_next_is_told_too() -> None:
    made = told(SCENE.token(exp=NOW - 1), replace(WHOLE, audience="other"))
    assert any(cause.startswith("and once that is mended: audience") for cause in made.causes)


def test_another_audience_than_the_keysets_is_told_even_where_none_was_given() -> None:
    made = told(SCENE.token(aud="acme-order"), CallContext())
    assert "the keyset's audience is 'acme-orders'" in made.causes[0]


def test_instances_that_lag_are_named_and_farewells_are_not() -> None:
    reports = [
        SCENE.report("web-1"),
        SCENE.report("web-2", verifies=(VERIFYING,), generation=6),
        SCENE.report("web-3", verifies=(), state="farewell"),
        SCENE.report("web-4", verifies=(), state="joining", generation=0),
    ]
    made = told(SCENE.token(), reports=reports)
    assert [name.split()[0] for name in made.cannot_verify] == ["web-2", "web-4"]
    assert "has not loaded a ring yet" in made.cannot_verify[1]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
        ({"a": 1}, {"a": 1.0}, [(".a", "an integer, then a number with a fraction or exponent")]),
        ({"a": 1}, {"a": "1"}, [(".a", "an integer, then a string")]),
        ({"a": [1, 2]}, {"a": [1, 3]}, [(".a[1]", "another value")]),
        ({"a": [1]}, {"a": [1, 2]}, [(".a", "1 items, then 2")]),
        ({"a": 1}, {}, [(".a", "missing in the retry")]),
        ({}, {"\x1b[2J": 1}, [(".\\x1b[2J", "new in the retry")]),
        ({"a": True}, {"a": 1}, [(".a", "a boolean, then an integer")]),
        (
            {"a": None, "b": 1, "c": 2},
            {"b": 1, "c": 3, "d": 4},
            [
                (".a", "missing in the retry"),
                (".c", "another value"),
                (".d", "new in the retry"),
            ],
        ),
        (
            {"a": [{"b": [0, {"c": 1}]}]},
            {"a": [{"b": [0, {"c": {}}]}]},
            [(".a[0].b[1].c", "an integer, then an object")],
        ),
        ([], {}, [("", "an array, then an object")]),
        (
            {},
            {"n" * 60: 1, "m" * 61: 1},
            [
                ("." + "n" * 60, "new in the retry"),
                ("." + "m" * 60 + "…", "new in the retry"),
            ],
        ),
        (float("nan"), float("nan"), []),
    ],
)
def test_differences_are_those_that_the_digest_sees(before: Any, after: Any, found: list[Any]) -> None:
    assert differences(before, after) == found


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(before=VALUES, after=VALUES)
def test_there_is_a_difference_exactly_where_the_digests_differ(before: Any, after: Any) -> None:
    from mcpkeys.call import arguments_digest

    assert bool(differences(before, after)) == (arguments_digest(before) != arguments_digest(after))
    assert differences(before, before) == []


def test_a_deep_difference_is_no_hang() -> None:
    deep: Any = 0
    for _ in range(900):
        deep = [deep]
    assert differences(deep, deep) == [("[0]" * 40, "nested too deeply to compare")]


def test_a_thousand_differences_are_told_and_no_more_however_they_nest() -> None:
    for width in (1, 10, 1001):
        for count, told_of in ((999, 999), (1000, 1000), (1001, 1000), (5000, 1000)):
            rows = range(0, count, width)
            nested = [dict.fromkeys(map(str, range(min(width, count - row))), 1) for row in rows]
            other = [dict.fromkeys(row, 2) for row in nested]
            assert len(differences(nested, other)) == told_of


def test_the_wrong_first_round_is_called_that() -> None:
    retry = replace(WHOLE, params={"name": "deploy", "arguments": {"env": "dev"}})
    other = told(SCENE.token(), retry, first={"name": "deploy", "arguments": {"x": 1}})
    assert any("not the one that minted this token" in cause for cause in other.causes)
    right = told(SCENE.token(), retry, first=CALL["params"])
    assert "arguments.env: another value" in right.causes


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.sampled_from(["v", "iat", "exp", "m", "t", "a", "aud", "p"]), VALUES),
    st.sampled_from([MINTING, RETIRED]),
)
def test_whatever_the_claims_there_is_an_explanation(changes: dict[str, Any], kid: str) -> None:
    told(SCENE.token(kid, **changes), first=CALL["params"])
