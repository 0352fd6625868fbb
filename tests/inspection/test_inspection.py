"""`inspect_token`: every check marked pass, fail or not checked; pure, and proof against what it is given."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inspection.scene import CALL, DROPPED, MINTING, NOW, RETIRED, VERIFYING, Scene, payload
from mcp.server import request_state
from mcp.server.auth.provider import AccessToken, principal_components

from mcpkeys import call as calls
from mcpkeys.inspection import NOT_GIVEN, CallContext, inspect_token
from mcpkeys.ring import Ring
from mcpkeys.sdktoken import SdkRing

SCENE = Scene()
RING = SCENE.ring((MINTING, VERIFYING, RETIRED))
WHOLE = CallContext(**CALL, audience="acme-orders", principal=None)


def results(found: Any) -> dict[str, str]:
    return {check.name: check.result for check in found.checks}


def test_a_sound_round_is_accepted_with_every_check_passed() -> None:
    found = inspect_token(SCENE.token(), RING, WHOLE, now=NOW)
    assert (found.verdict, found.reason) == ("accepted", None)
    assert set(results(found).values()) == {"pass"}
    assert found.key is not None
    assert (found.key.kid, found.key.state, found.key.generation) == (MINTING, "minting", 7)
    assert found.state == "step=2 colour=blue"
    assert "step=2 colour=blue" not in json.dumps(found.as_dict()) + repr(found)


def test_what_was_not_given_is_never_called_ok() -> None:
    found = inspect_token(SCENE.token(), RING, now=NOW)
    assert found.verdict == "accepted"
    assert [check.name for check in found.not_checked] == [
        "method",
        "target",
        "arguments",
        "audience",
        "principal binding",
        "principal presence",
        "principal",
    ]


@pytest.mark.parametrize(
    ("params", "left"),
    [
        ({"name": "deploy", "arguments": NOT_GIVEN}, {"arguments"}),
        ({"name": NOT_GIVEN, "arguments": {"env": "prod"}}, {"target"}),
    ],
)
def test_a_call_that_is_known_in_part_is_checked_in_part(params: Any, left: set[str]) -> None:
    call = CallContext(method="tools/call", params=params, audience="acme-orders", principal=None)
    found = inspect_token(SCENE.token(), RING, call, now=NOW)
    assert {check.name for check in found.not_checked} == left
    assert found.verdict == "accepted"


def test_params_without_their_method_are_read_as_the_token_says_and_the_method_stays_unchecked() -> None:
    found = inspect_token(SCENE.token(), RING, CallContext(params=CALL["params"]), now=NOW)
    assert results(found)["method"] == "not_checked"
    assert results(found)["target"] == results(found)["arguments"] == "pass"


def test_none_says_a_server_without_an_audience_and_a_call_without_a_principal() -> None:
    found = inspect_token(SCENE.token(aud=...), RING, CallContext(audience=None, principal=None), now=NOW)
    assert results(found)["audience"] == results(found)["principal"] == "pass"
    assert inspect_token(SCENE.token(), RING, CallContext(audience=None), now=NOW).reason == "audience"


def test_a_token_that_has_merely_expired_does_not_hide_the_other_failures() -> None:
    call = CallContext(
        method="prompts/get", params={"name": "other"}, audience="acme-order", principal=ValueError("down")
    )
    found = inspect_token(SCENE.token(exp=NOW - 1), RING, call, now=NOW)
    assert found.reason == "expired"
    assert [check.name for check in found.failed] == [
        "expiry",
        "method",
        "target",
        "arguments",
        "audience",
        "principal binding",
    ]


def test_a_retired_key_still_shows_its_claims_while_its_wraps_are_kept() -> None:
    found = inspect_token(SCENE.token(RETIRED, exp=NOW - 1), RING, WHOLE, now=NOW)
    assert found.reason == "retired key"
    assert found.claims is not None
    assert results(found)["expiry"] == "fail"
    dropped = inspect_token(SCENE.token(DROPPED), RING, WHOLE, now=NOW)
    assert (dropped.reason, dropped.claims) == ("retired key", None)
    assert results(dropped)["seal"] == "not_checked"


def test_without_keys_nothing_is_verified_but_the_key_is_named() -> None:
    bare = SCENE.ring(())
    for ring, state in ((None, "unknown"), (bare, "minting")):
        found = inspect_token(SCENE.token(), ring, WHOLE, now=NOW)
        assert (found.verdict, found.reason) == ("unverified", None)
        assert found.key is not None
        assert (found.key.kid, found.key.state) == (MINTING, state)
        assert results(found)["seal"] == "not_checked"
        assert "pass" not in {results(found)[name] for name in ("seal", "envelope", "expiry", "audience", "principal")}


def test_what_can_be_refused_without_keys_is_refused() -> None:
    bare = SCENE.ring(())
    assert inspect_token("mk1.short", None, now=NOW).reason == "malformed"
    assert inspect_token(SCENE.token("ZZZZunknown9"), bare, now=NOW).reason == "unknown key"
    assert inspect_token(SCENE.token(RETIRED), bare, now=NOW).reason == "retired key"


def test_where_the_boundary_looks_at_nothing_nothing_is_said() -> None:
    absent = inspect_token(None, RING, WHOLE, now=NOW)
    elsewhere = inspect_token("garbage", RING, CallContext(method="tools/list"), now=NOW)
    for found in (absent, elsewhere):
        assert (found.verdict, found.reason) == ("unverified", None)
        assert set(results(found).values()) == {"not_checked"}


def test_inspecting_leaves_no_trace_in_the_ring_of_a_live_codec() -> None:
    ring = SCENE.ring()
    for _ in range(3):
        inspect_token(SCENE.token(), ring, now=NOW)
        inspect_token(SCENE.token(RETIRED), ring, now=NOW)
    assert not ring.openers
    for key in ring.keys.values():
        assert (key.use.last_unseal, key.use.unseals) == (0.0, 0)


def test_the_sdks_own_tokens_are_read_with_its_keys_and_left_unverified_without() -> None:
    sdk = SdkRing(["s" * 40])
    text = sdk.seal(payload(SCENE.claims()))
    assert inspect_token(text, sdk, WHOLE, now=NOW).verdict == "accepted"
    assert inspect_token(text, SCENE.ring(sdk=sdk), WHOLE, now=NOW).verdict == "accepted"
    assert inspect_token(text, None, WHOLE, now=NOW).verdict == "unverified"
    assert inspect_token(text, RING, WHOLE, now=NOW).reason == "malformed"
    assert inspect_token(SCENE.token(), sdk, WHOLE, now=NOW).reason == "malformed"


HOSTILE = [
    b'{"v":1,"iat":1,"exp":9e99,"s":"' + b"x" * 100_000 + b'","t":' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"v":1,"iat":' + b"9" * 4000 + b',"exp":-1e999,"s":"","p":"' + b"A" * 100_000 + b'"}',
    b'{"v":1,"v":1,"iat":NaN,"exp":Infinity,"s":"\\ud800","m":"\\udfff","aud":{"a":[NaN]},"\\u001b[2J":1}',
    b'{"v":1,"iat":0,"exp":1e308,"s":"","' + b'x":0,"' * 50_000 + b'y":0}',
    b"[" * 100_000 + b"]" * 100_000,
]


@pytest.mark.parametrize("body", HOSTILE, ids=["deep", "huge", "strange", "wide", "abyss"])
def test_hostile_claims_are_shown_as_strict_json(body: bytes) -> None:
    found = inspect_token(SCENE.seal(body), RING, WHOLE, now=NOW)
    shown = json.dumps(found.as_dict(), allow_nan=False)
    assert len(shown) < 30_000
    assert found.verdict == "rejected"


@settings(max_examples=300, deadline=None)
@given(
    token=st.one_of(st.text(), st.text("mk1.v-_AZaz09=+/ ", max_size=120), st.integers(), st.none(), st.booleans()),
    now=st.floats(allow_nan=False, allow_infinity=False, min_value=0, max_value=1e11),
)
def test_whatever_the_token_inspection_answers(token: object, now: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = inspect_token(token, RING, WHOLE, now=now)
    assert found.verdict != "accepted"
    json.dumps(found.as_dict(), allow_nan=False)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(["v", "iat", "exp", "m", "t", "a", "s", "aud", "p", "x"]), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3),
    max_leaves=4)))  # fmt: skip
def test_whatever_the_claims_inspection_answers(claims: dict[str, Any]) -> None:
    found = inspect_token(SCENE.seal(payload(claims)), RING, WHOLE, now=NOW)
    assert found.verdict == "rejected"
    json.dumps(found.as_dict(), allow_nan=False)


@settings(max_examples=200, deadline=None)
@given(client=st.text(), issuer=st.none() | st.text(), subject=st.none() | st.text())
def test_the_principal_of_an_access_token_is_the_sdks(client: str, issuer: str | None, subject: str | None) -> None:
    access = AccessToken(token="t", client_id=client, scopes=[], subject=subject, claims={"iss": issuer})
    expected = request_state.compact_json(principal_components(access))
    assert calls.principal_of(client, issuer, subject) == expected
    assert calls.principal_matches(request_state._principal_claim(expected), expected)


@settings(max_examples=300, deadline=None)
@given(claim=st.text("AZaz09-_=+/é\n", max_size=40), principal=st.text())
def test_principal_claims_match_as_the_sdks_do(claim: str, principal: str) -> None:
    assert calls.principal_matches(claim, principal) == request_state._principal_matches(claim, principal)


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(
    method=st.sampled_from(sorted(calls.CARRIERS)),
    params=st.none() | st.dictionaries(st.sampled_from(["name", "uri", "arguments", "_meta"]), JSONS),
)
def test_what_a_token_is_bound_to_is_computed_as_the_sdk_does(method: str, params: dict[str, Any] | None) -> None:
    digest = calls.arguments_digest(calls.arguments(method, params))
    assert (calls.target(method, params), digest) == request_state._request_identity(method, params)


def check_of(name: str, claims: dict[str, Any], call: CallContext = WHOLE, *, now: float = NOW) -> tuple[str, str]:
    found = inspect_token(SCENE.seal(payload({**SCENE.claims(), **claims})), RING, call, now=now)
    return next((check.result, check.detail) for check in found.checks if check.name == name)


@pytest.mark.parametrize(
    ("name", "claims", "result", "detail"),
    [
        ("minted", {"iat": NOW}, "pass", "0.000 s ago"),
        ("minted", {"iat": NOW - 1.5}, "pass", "1.500 s ago"),
        ("minted", {"iat": NOW + 60}, "pass", "in 60.000 s"),
        ("minted", {"iat": NOW + 60.001}, "fail", "in 60.001 s"),
        ("minted", {"iat": True}, "pass", f"{NOW - 1:.3f} s ago"),
        ("minted", {"iat": "1"}, "fail", "'1' is no moment"),
        ("minted", {"iat": None}, "fail", "None is no moment"),
        ("expiry", {"exp": NOW}, "fail", "0.000 s ago"),
        ("expiry", {"exp": NOW + 0.001}, "pass", "in 0.001 s"),
        ("expiry", {"exp": "9"}, "fail", "'9' is no moment"),
        ("expiry", {"exp": 10**400}, "pass", "'an integer beyond 2^53' is no moment"),
    ],
)
def test_moments_at_their_bounds(name: str, claims: dict[str, Any], result: str, detail: str) -> None:
    assert check_of(name, claims) == (result, detail)


def test_times_that_are_missing_are_not_checked() -> None:
    for claim, name in (("iat", "minted"), ("exp", "expiry")):
        claims = {key: value for key, value in SCENE.claims().items() if key != claim}
        found = inspect_token(SCENE.seal(payload(claims)), RING, WHOLE, now=NOW)
        assert next(c.detail for c in found.checks if c.name == name) == "no such claim"
        assert (results(found)[name], found.reason) == ("not_checked", "malformed")


def test_what_a_binding_is_told_as() -> None:
    other = CallContext(method="prompts/get", params={"name": "x" * 201}, audience="other", principal="somebody")
    assert check_of("method", {}, other) == ("fail", "bound to 'tools/call', used with 'prompts/get'")
    assert check_of("method", {}, CallContext()) == ("not_checked", "bound to 'tools/call'; not given")
    assert check_of("method", {}) == ("pass", "tools/call")
    assert check_of("target", {"t": "x" * 201}, other) == ("pass", "x" * 200 + "…")
    fits = CallContext(method="prompts/get", params={"name": "x" * 200})
    assert check_of("target", {"t": "x" * 200}, fits) == ("pass", "x" * 200)
    assert check_of("target", {}, CallContext()) == ("not_checked", "not given")
    # Without a method the token's own says how to read the params, where it is one.
    unread = CallContext(params={"uri": "file:///a", "name": "b"})
    assert check_of("target", {"m": "resources/read", "t": "file:///a"}, unread) == ("pass", "file:///a")
    assert check_of("target", {"m": "prompts/get", "t": "b"}, unread) == ("pass", "b")
    for strange in (None, 7, ["resources/read"]):
        assert check_of("target", {"m": strange}, unread) == ("not_checked", "not given")
        assert check_of("arguments", {"m": strange}, unread) == ("not_checked", "not given")


def test_what_an_audience_is_told_as() -> None:
    for expected, told in ((None, "no audience"), ("other", "'other'")):
        detail = f"minted for 'acme-orders', used with {told}"
        assert check_of("audience", {}, CallContext(audience=expected)) == ("fail", detail)
    assert check_of("audience", {"aud": None}, CallContext(audience=None)) == ("pass", "no audience")
    assert check_of("audience", {"aud": None}, CallContext()) == ("not_checked", "minted for no audience; not given")
    assert check_of("audience", {"aud": "a"}, CallContext()) == ("not_checked", "minted for 'a'; not given")
    for claimed, audience in (("acme", "acme"), (7, None), (None, None)):
        assert inspect_token(SCENE.token(aud=claimed), RING, now=NOW).audience == audience
    assert inspect_token("garbage", RING, now=NOW).audience is None


def test_what_the_boundary_raises_on_is_told_first_and_logged_by_no_word() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    call = CallContext(method="tools/call", params={"name": 10**5000, "arguments": deep})
    found = inspect_token(SCENE.token(), RING, call, now=NOW)
    assert [(c.name, c.detail) for c in found.failed] == [
        ("target", "the boundary raises ValueError on it"),
        ("arguments", "the boundary raises RecursionError on them"),
    ]
    assert (found.verdict, found.reason) == ("rejected", None)
    while deep:  # freed a level at a time: all at once is as deep
        deep = deep[0]


@pytest.mark.parametrize(
    ("claim", "principal", "results_", "reason"),
    [
        (None, None, "ppp", None),
        (None, NOT_GIVEN, "nnn", None),
        (None, "alice", "pfn", "principal drift"),
        ("alice", "alice", "ppp", None),
        ("alice", "bob", "ppf", "principal"),
        ("alice", None, "pfn", "principal drift"),
        ("alice", NOT_GIVEN, "nnn", None),
        (7, "alice", "ppf", "principal"),
        ("alice", ValueError("down"), "fnn", "principal binding error"),
        ("alice", 7, "fnn", "bind_principal returned int, expected str or None"),
        (None, b"", "fnn", "bind_principal returned bytes, expected str or None"),
    ],
)
def test_a_principal_is_judged_in_three_steps(claim: Any, principal: object, results_: str, reason: str | None) -> None:
    claimed = request_state._principal_claim(claim) if isinstance(claim, str) else claim
    token = SCENE.seal(payload({**SCENE.claims(), **({} if claim is None else {"p": claimed})}))
    found = inspect_token(token, RING, CallContext(principal=principal), now=NOW)
    words = {"pass": "p", "fail": "f", "not_checked": "n"}
    assert "".join(words[c.result] for c in found.checks if c.name.startswith("principal")) == results_
    assert found.reason == reason
    details = [c.detail for c in found.checks if c.name.startswith("principal")]
    if principal is NOT_GIVEN:
        assert details[1] == f"bound to {'nobody' if claim is None else 'a principal'}; not given"
    if reason == "principal drift":
        assert ("minted for nobody in particular" in details[1]) is (claim is None)
        assert details[0] == ("no principal" if principal is None else "a principal")
    if isinstance(principal, ValueError):
        assert details[0] == "bind_principal raised"


def test_sizes_are_those_of_the_text_the_payload_and_the_state() -> None:
    body = payload({**SCENE.claims(), "s": "é" * 10})
    token = SCENE.seal(body)
    found = inspect_token(token, RING, WHOLE, now=NOW)
    assert found.sizes == {"token": len(token), "payload": len(body), "state": 10}
    assert (found.opened, found.state) == (True, "é" * 10)
    found = inspect_token(SCENE.seal(b"[]"), RING, WHOLE, now=NOW)
    assert found.sizes == {"token": len(SCENE.seal(b"[]")), "payload": 2}
    assert (found.opened, found.claims, found.state, found.reason) == (False, None, None, "malformed")
    found = inspect_token("mk1.x", RING, WHOLE, now=NOW)
    assert (found.sizes, found.opened, found.failed_names) == ({"token": 5}, False, ("format",))
    assert inspect_token(SCENE.seal(payload({**SCENE.claims(), "s": 7})), RING, now=NOW).state is None


def test_the_carriers_are_the_sdks() -> None:
    assert request_state.INPUT_REQUIRED_METHODS == calls.CARRIERS


def test_params_that_are_no_object_are_a_mistake_of_the_caller() -> None:
    for params in (["name"], "name", 7, False, ValueError("x")):
        with pytest.raises(TypeError, match=f"not {type(params).__name__}"):
            CallContext(params=params)  # type: ignore[arg-type]
    for given_ in ({}, MappingProxyType({"name": "deploy"}), None, NOT_GIVEN):
        assert CallContext(params=given_).params is given_


def test_a_call_without_params_is_for_nothing_in_particular() -> None:
    for method in sorted(calls.CARRIERS):
        for params in (None, {}):
            assert (calls.target(method, params), calls.arguments(method, params)) == ("", {})
    both = {"name": "deploy", "uri": "file:///a", "arguments": {"env": "prod"}}
    assert (calls.target("resources/read", both), calls.arguments("resources/read", both)) == ("file:///a", {})
    assert (calls.target("tools/call", both), calls.arguments("tools/call", both)) == ("deploy", {"env": "prod"})
    hidden = {"name": NOT_GIVEN, "arguments": NOT_GIVEN}
    assert calls.target("prompts/get", hidden) is calls.arguments("prompts/get", hidden) is NOT_GIVEN


def test_a_ring_without_a_keyset_can_be_inspected_with() -> None:
    ring = Ring.from_secrets(["x" * 32], now=NOW)
    found = inspect_token(SCENE.token(), ring, now=NOW)
    assert (found.verdict, found.reason) == ("rejected", "unknown key")


def test_inspection_imports_neither_the_sdk_nor_a_cloud_sdk() -> None:
    script = (
        "import sys, mcpkeys.inspection, mcpkeys.explanation, mcpkeys.capture, mcpkeys.triage, mcpkeys.bundle\n"
        "print([m for m in ('mcp', 'mcp_types', 'boto3', 'botocore', 'google', 'hvac', 'pydantic', 'socket', 'asyncio')"
        " if m in sys.modules])"
    )
    # -S: the packages of a site directory may import what they like at start-up.
    paths = [path for path in sys.path if path]
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {paths!r}\n{script}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"
