"""What each token is said to be before its claims are looked at, at every bound."""

from __future__ import annotations

import os

import pytest
from vectors import make

from mcpkeys import opening, token
from mcpkeys.encoding import b64u
from mcpkeys.opening import is_sdk_token, open_token
from mcpkeys.ring import Ring
from mcpkeys.sdktoken import SdkRing

SECRET = os.urandom(32)
SDK = SdkRing([SECRET])
LIVE = {kid: make.DATA_KEYS[kid] for kid in (make.kid("minting"), make.kid("verifying"))}


@pytest.fixture
def ring() -> Ring:
    return Ring.from_keyset(make.keyset(), LIVE)


def told(text: str, ring: Ring | SdkRing | None) -> list[tuple[str, str]]:
    return [(check.name, check.result) for check in open_token(text, ring).checks]


def first_fault(text: str, ring: Ring | SdkRing | None) -> str:
    return next(check.detail for check in open_token(text, ring).checks if check.result == "fail")


def test_the_shortest_and_the_longest_token_open(ring: Ring) -> None:
    for payload in (b"", os.urandom(token.max_payload(ring.max_token_chars))):
        found = open_token(make.sealed("minting", payload), ring)
        assert found.payload == payload
        assert [check.result for check in found.checks] == ["pass"] * 4
        assert found.key is not None
        assert (found.key.state, found.key.usable, found.key.generation) == ("minting", True, 7)
        assert found.key.prefix == b64u(make.fixed("prefix one", 12))
        assert found.key.state_since == ring.keys[found.key.kid].state_since
    over = make.sealed("minting", os.urandom(token.max_payload(ring.max_token_chars) + 1))
    assert "more than the limit of 600" in first_fault(over, ring)
    # Without a keyset the limit is the default one.
    assert "limit" not in str(open_token(over, None).checks)
    assert "more than the limit of 1,048,576" in first_fault("m" * 1_048_577, None)
    assert "does not begin with mk1." in first_fault("m" * 1_048_576, None)


def test_what_is_wrong_with_the_text_is_told(ring: Ring) -> None:
    good = make.sealed("minting", b"state")
    cases = {
        "": "an empty string",
        "x": "does not begin with mk1.",
        good[:69]: "69 characters, cut short: a token has at least 70",
        good[:8] + "." + good[9:]: "its header is not mk1. and 28 characters of base64url",
        good + "=": "the body is not the one canonical spelling of base64url",
        "v1." + "A" * 43: "a token of the SDK's own codec, whose keys this ring does not have",
        "v1." + "A" * 42: "does not begin with mk1.",
    }
    for text, word in cases.items():
        assert word in first_fault(text, ring)
        assert open_token(text, ring).payload is None
    assert told(good[:69], ring) == [
        ("format", "fail"),
        ("key", "not_checked"),
        ("encoding", "not_checked"),
        ("seal", "not_checked"),
    ]
    assert told(good[:-4] + "AAAA", ring)[-1] == ("seal", "fail")


def test_the_key_is_judged_before_the_body(ring: Ring) -> None:
    retired, strange = make.sealed("retired", b"x"), make.sealed("strange", b"x")
    for text, word in ((retired, "is retired"), (strange, "is not in generation 7")):
        assert word in first_fault(text, ring)
        assert told(text, ring)[1:] == [("key", "fail"), ("encoding", "pass"), ("seal", "not_checked")]
    good = make.sealed("minting", b"x")
    assert told(good, None) == [
        ("format", "pass"),
        ("key", "not_checked"),
        ("encoding", "pass"),
        ("seal", "not_checked"),
    ]
    found = open_token(good, None).key
    assert found is not None
    assert (found.kid, found.state, found.generation, found.usable) == (make.kid("minting"), "unknown", None, False)


def test_many_headers_are_remembered_within_a_bound(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_MAX_FRONTS", 4)
    fronts: opening.Fronts = {}
    for number in range(11):
        text = make.sealed("minting", b"x", prefix=f"{number}")
        assert open_token(text, ring, fronts).payload == b"x"
        assert text[:32] in fronts
        assert len(fronts) == number % 4 + 1


def test_a_header_that_is_known_already_excuses_no_length(ring: Ring) -> None:
    fronts: opening.Fronts = {}
    longest = token.max_payload(ring.max_token_chars)
    good = [make.sealed("minting", payload) for payload in (b"", b"x", bytes(longest))]
    over = make.sealed("minting", bytes(longest + 1))
    for _ in range(2):
        for text in good:
            assert open_token(text, ring, fronts) == open_token(text, ring)
            assert open_token(text, ring, fronts).payload is not None
        for text in (over, good[0][:69], good[0][:32]):
            assert open_token(text, ring, fronts) == open_token(text, ring)
            assert open_token(text, ring, fronts).checks[0].result == "fail"


def test_an_sdk_token_is_known_by_its_shape() -> None:
    for body, known in (("A" * 43, True), ("A" * 42, False), ("A" * 400, True), ("A" * 42 + "+", False), ("", False)):
        assert is_sdk_token("v1." + body) is known
    assert not is_sdk_token("v2." + "A" * 43)
    assert not is_sdk_token("v1." + "A" * 43 + "\n")


def test_sdk_tokens(ring: Ring) -> None:
    sealed = SDK.seal(b"state")
    assert open_token(sealed, SDK).payload == b"state"
    both = Ring.from_keyset(make.keyset(), LIVE, sdk=SDK)
    found = open_token(sealed, both)
    assert found.payload == b"state"
    assert found.key is not None
    assert (found.key.state, found.key.usable, found.key.kid) == ("sdk", True, SDK.kids[0])
    assert told(sealed, SDK) == [("format", "pass"), ("key", "pass"), ("seal", "pass")]
    other = open_token(sealed, SdkRing([os.urandom(32)]))
    assert [(c.name, c.result) for c in other.checks] == [("format", "pass"), ("key", "fail"), ("seal", "not_checked")]
    assert "is none of the SDK keys given" in other.checks[1].detail
    none = open_token(sealed, None)
    assert [(c.name, c.result) for c in none.checks] == [
        ("format", "pass"),
        ("key", "not_checked"),
        ("seal", "not_checked"),
    ]
    assert told(sealed[:-4] + "AAAA", SDK)[-1] == ("seal", "fail")
    assert "canonical" in first_fault(sealed + "=", SDK)
    assert "31 bytes, cut short" in first_fault("v1." + b64u(bytes(31)), SDK)
    assert "is none of the SDK keys given" in first_fault("v1." + b64u(bytes(32)), SDK)
    assert "more than the limit of 600" in first_fault("v1." + "A" * 598, both)
    assert "limit" not in first_fault("v1." + "A" * 597, both)
    assert "limit" not in first_fault("v1." + "A" * 5000, SDK)
    assert "an mk1 token, and this server has the SDK's own codec" in first_fault(make.sealed("minting", b""), SDK)
    assert "does not begin with v1." in first_fault("x", SDK)
    assert told("x", SDK) == [("format", "fail"), ("key", "not_checked"), ("seal", "not_checked")]
