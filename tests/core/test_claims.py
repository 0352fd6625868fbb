"""What a token's claims are told as, at their bounds."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpkeys.claims import MAX_OTHERS, MAX_SHOWN_CHARS, NAMES, BadEnvelope, fault, kind, parse, scalar, seconds, shown

CLAIMS = {"v": 1, "iat": 1.5, "exp": 2.5, "s": "state"}


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_a_payload_is_read_as_json_loads_reads_it(value: object) -> None:
    for payload in (json.dumps(value).encode(), json.dumps(value, separators=(",", ":")).encode()):
        if isinstance(value, dict):
            assert parse(payload) == json.loads(payload)
        else:
            with pytest.raises(BadEnvelope, match="not an object"):
                parse(payload)


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b'{"', b'{"a', b'{"a":1} x', b'{"a":1}{}', b"\xff", b'{"\xff":1}', b"\xef\xbb\xbf{}x", b'{"a":1,}'],
)
def test_what_is_no_json_is_told(payload: bytes) -> None:
    with pytest.raises(ValueError):
        json.loads(payload)
    with pytest.raises(BadEnvelope, match="not JSON") as caught:
        parse(payload)
    assert caught.value.raises is False


def test_what_makes_the_boundary_raise_is_told() -> None:
    with pytest.raises(BadEnvelope, match="nested too deeply") as caught:
        parse(b'{"a":' + b"[" * 200_000)
    assert caught.value.raises is True


@pytest.mark.parametrize("name", CLAIMS)
def test_a_missing_claim_is_named(name: str) -> None:
    assert fault(CLAIMS) is None
    assert fault({n: v for n, v in CLAIMS.items() if n != name}) == f"the claim {name!r} is missing"


def test_another_version_or_a_state_that_is_no_text() -> None:
    for version in (0, 2, "1", None):
        assert "'v' is not 1" in str(fault({**CLAIMS, "v": version}))
    assert fault({**CLAIMS, "v": 1.0}) is None
    for state in (None, 1, [], {}):
        assert fault({**CLAIMS, "s": state}) == f"the claim 's' is {kind(state)}, not a string"


def test_what_a_value_is() -> None:
    values = [None, True, 1, 1.5, "", [], {}, b""]
    words = ["null", "a boolean", "a number", "a number", "a string", "an array", "an object", "a bytes"]
    assert [kind(value) for value in values] == words


def test_a_time_is_a_finite_number() -> None:
    assert [seconds(value) for value in (1, 1.5, -2, True)] == [1.0, 1.5, -2.0, 1.0]
    for value in (None, "1", [], math.nan, math.inf, -math.inf, 10**400):
        assert seconds(value) is None


def test_a_claim_is_shown_as_strict_json_can_carry_it() -> None:
    kept = [None, True, False, 0, (1 << 53) - 1, -(1 << 53) + 1, 1.5, "", "x" * MAX_SHOWN_CHARS]
    for value in kept:
        assert scalar(value) is value
    assert scalar(1 << 53) == scalar(-(1 << 53)) == "an integer beyond 2^53"
    assert scalar("x" * (MAX_SHOWN_CHARS + 1)) == "x" * MAX_SHOWN_CHARS + "…"
    assert (scalar(math.nan), scalar(math.inf)) == ("nan", "inf")
    assert (scalar([1]), scalar({"a": 1})) == ("an array", "an object")


def test_the_state_is_never_shown_and_strange_names_are() -> None:
    known = dict.fromkeys(NAMES, "x")
    assert shown({**known, "s": "secret"}) == known
    assert shown(known) == known
    assert shown({"s": "secret"}) == shown({}) == {}
    assert shown({**known, "s": "secret", "zz": 1}) == {**known, "others": ["zz"]}
    # One that is missing does not hide one that is strange, with a state or without.
    fewer = {name: value for name, value in known.items() if name != NAMES[0]}
    assert shown({**fewer, "zz": 1, "s": "secret"}) == {**fewer, "others": ["zz"]}
    assert shown({**fewer, "zz": 1}) == {**fewer, "others": ["zz"]}
    many = {f"n{i}": 1 for i in range(MAX_OTHERS + 5)}
    assert len(shown({"s": "", **many})["others"]) == MAX_OTHERS
    long = "x" * (MAX_SHOWN_CHARS + 1)
    assert shown({"aud": long})["aud"] == long[:-1] + "…"
    assert shown({"aud": long[:-1]})["aud"] == long[:-1]
    assert shown({"s": "", long: 1})["others"] == [long[:-1] + "…"]
