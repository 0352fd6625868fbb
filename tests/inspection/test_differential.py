"""`inspect_token` against the SDK's real `RequestStateBoundary`: the same verdict and the same word, on every case.

The boundary runs as it is, with its own codec for `v1` and with an `EnvelopeCodec` for `mk1`. A case is a sound
round with up to three faults; every pair of faults occurs. The random seed of a failing run is in its message.
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import types
from collections import Counter
from itertools import combinations
from typing import Any

import pytest
from core.judging import codec_of
from inspection.scene import DROPPED, MINTING, NOW, RETIRED, VERIFYING, Scene
from mcp.server import request_state
from mcp.server.context import ServerRequestContext
from mcp.server.request_state import (
    AESGCMRequestStateCodec,
    RequestStateBoundary,
    RequestStateSecurity,
)
from mcp.shared.exceptions import MCPError

from mcpkeys.inspection import REASONS, CallContext, inspect_token
from mcpkeys.sdktoken import SdkRing

CASES = 6_500  # four runs of it
SECRETS = [os.urandom(32), os.urandom(40)]
STRANGER = Scene()


DEEP: Any = []
for _ in range(100_000):
    DEEP = [DEEP]


class Case:
    """One round as it would be sound, to be spoiled by faults."""

    def __init__(self, rng: random.Random, world: World) -> None:
        self.rng = rng
        self.world = world
        self.kind = rng.choice(("mk1", "mk1", "v1", "both-mk1", "both-v1"))
        self.now = rng.choice((NOW, float(int(NOW)), NOW + rng.random() * 1e6))
        self.method = rng.choice(("tools/call", "prompts/get", "resources/read"))
        self.params: dict[str, Any] | None = random_params(rng, self.method)
        self.audience: str | None = rng.choice(("acme-orders", "acme-orders", None, "größe", ""))
        self.principal: Any = rng.choice((None, '["client","https://idp","alice"]', "bob", "\ud800x"))
        self.claims: dict[str, Any] = {
            "v": 1,
            "iat": self.now - rng.random() * 100,
            "exp": self.now + 1 + rng.random() * 600,
            "m": self.method,
            **dict(zip("ta", request_state._request_identity(self.method, self.params), strict=True)),
            "s": rng.choice(("", "state", "{}", "\ud83d", "x" * 300)),
        }
        if self.audience is not None:
            self.claims["aud"] = self.audience
        if self.principal is not None:
            self.claims["p"] = request_state._principal_claim(self.principal)
        self.payload: bytes | None = None
        self.kid = rng.choice((MINTING, VERIFYING))
        self.seal_with: str = "own"
        self.mangles: list[Any] = []
        self.value: Any = ...

    def token(self) -> Any:
        body = self.payload if self.payload is not None else request_state.compact_json(self.claims).encode()
        if self.kind.endswith("v1"):
            text = self.world.sdk_seal(self.rng, body, self.seal_with)
        else:
            scene = STRANGER if self.seal_with == "foreign" else self.world.scene
            text = scene.seal(body, self.kid)
        if self.value is not ...:
            return self.value
        for mangle in self.mangles:
            text = mangle(text)
        return text


class World:
    """The servers of one run."""

    def __init__(self) -> None:
        self.scene = Scene()
        self.sdk = SdkRing(SECRETS)
        self.builtin = AESGCMRequestStateCodec(SECRETS)
        self.sdk_foreign = AESGCMRequestStateCodec([os.urandom(32)])
        self.rings = {"mk1": self.scene.ring(), "both": self.scene.ring(sdk=self.sdk)}
        self.codecs = {name: codec_of(ring) for name, ring in self.rings.items()}
        self.looking = {
            "mk1": self.scene.ring((MINTING, VERIFYING, RETIRED)),
            "both": self.scene.ring((MINTING, VERIFYING, RETIRED), sdk=self.sdk),
        }

    def sdk_seal(self, rng: random.Random, body: bytes, with_: str) -> str:
        return (self.sdk_foreign if with_ == "foreign" else self.builtin).seal(body)

    def codec(self, kind: str) -> Any:
        return self.builtin if kind == "v1" else self.codecs[kind.partition("-")[0]]

    def ring(self, rng: random.Random, kind: str) -> Any:
        if kind == "v1":
            return self.sdk
        return rng.choice((self.rings, self.looking))[kind.partition("-")[0]]


def random_params(rng: random.Random, method: str) -> dict[str, Any]:
    params: dict[str, Any] = {"_meta": {"progressToken": rng.randrange(9)}} if rng.random() < 0.3 else {}
    if method == "resources/read":
        return {**params, "uri": rng.choice(("file:///a", "", "x://y?z=ü"))}
    params["name"] = rng.choice(("deploy", "deploy", "", "n\u202eame"))
    if rng.random() < 0.8:
        params["arguments"] = rng.choice(
            (
                {},
                {"env": "prod"},
                {"b": 1, "a": [1.5, None, True]},
                {"ä": "\ud800"},
                None,
                {"n": 10**30},
                {"x": math.nan},
            )
        )
    return params


# --- faults -----------------------------------------------------------------------------------------------------


def set_claim(name: str, *values: Any) -> Any:
    def fault(case: Case) -> None:
        case.claims[name] = case.rng.choice(values)

    return fault


def drop_claim(*names: str) -> Any:
    def fault(case: Case) -> None:
        case.claims.pop(case.rng.choice(names), None)

    return fault


def clock(name: str, offset: float) -> Any:
    """A claim at, and one step on either side of, the exact moment at which the boundary's answer turns."""

    def fault(case: Case) -> None:
        edge = case.now + offset
        case.claims[name] = case.rng.choice((edge, math.nextafter(edge, 0), math.nextafter(edge, 1e12), int(edge)))

    return fault


def raw_payload(case: Case) -> None:
    rng = case.rng
    text = request_state.compact_json(case.claims)
    case.payload = rng.choice(
        (
            b"",
            b"null",
            b"[]",
            b'"v iat exp s"',
            b"7",
            b"[1,2]",
            b"true",
            b"\xff\xfe",
            text.encode("utf-16"),
            text.encode("utf-32"),
            b"\xef\xbb\xbf" + text.encode(),
            text.encode()[:-1],
            text.encode() + b" ",
            text.encode() + b"x",
            (text[:-1] + ',"v":1}').encode(),
            (text[:-1] + ',"v":2}').encode(),
            (text[:-1] + ',"s":"twice"}').encode(),
            (text[:-1] + ',"x":' + "9" * 5000 + "}").encode(),
            (text[:-1] + ',"x":' + "9" * 4000 + "}").encode(),
            (text[:-1] + ',"x":' + "[" * 100_000 + "]" * 100_000 + "}").encode(),
            (text[:-1] + ',"x":' + "[" * 50 + "]" * 50 + "}").encode(),
            (text[:-1] + ',"x":"\\ud800","\\udfff":-1e999}').encode(),
            (text[:-1] + ',"iat":NaN,"exp":Infinity}').encode(),
            (text[:-1] + ',"iat":-Infinity,"exp":1e999}').encode(),
            (text[:-1] + ',"exp":' + "9" * 400 + "}").encode(),
            (text[:-1] + ',"iat":' + "9" * 400 + "}").encode(),
            b'{"v":1}',
            b"{}",
        )
    )


def mangle(case: Case) -> None:
    rng = case.rng

    def at(text: str) -> int:
        return rng.randrange(len(text)) if text else 0

    def flip(text: str) -> str:
        i = at(text)
        return text[:i] + rng.choice("Aa0-_Zz9") + text[i + 1 :]

    case.mangles.append(
        rng.choice(
            (
                flip,
                flip,
                flip,
                lambda t: t[: at(t)],
                lambda t: t[:-1],
                lambda t: t + rng.choice(("=", "==", "A", "\n", " ", "\x00", "é", "\ud800", ".")),
                lambda t: rng.choice((" ", '"', "\ufeff", "m")) + t,
                lambda t: t.replace("-", "+").replace("_", "/"),
                lambda t: t[:-1] + rng.choice("ABCDEFGHwxyz0189-_"),
                lambda t: t[: at(t)] + rng.choice(("\n", " ", "=", "é", "\udc00", "+")) + t[at(t) :],
                lambda t: t.swapcase(),
                lambda t: t[1:],
                lambda t: t[:4] + rng.choice((MINTING, VERIFYING, RETIRED, DROPPED, "ZZZZZZZZZZZZ")) + t[16:],
                lambda t: t.replace("mk1.", "mk2.").replace("v1.", "v2."),
                lambda t: t + "A" * 1_048_577,
                lambda t: "",
                lambda t: "v1." + t[4:],
                lambda t: "v1." + "A" * 60,
                lambda t: "mk1." + "A" * 66,
                lambda t: t + t,
            )
        )
    )


def not_a_string(case: Case) -> None:
    case.value = case.rng.choice((7, 0, False, True, 1.5, [], ["mk1."], {}, {"a": 1}))


def retired(case: Case) -> None:
    case.kid = case.rng.choice((RETIRED, DROPPED))


def unknown(case: Case) -> None:
    case.kid = "ZZZZunknown9"
    case.seal_with = case.rng.choice(("own", "foreign"))


def foreign(case: Case) -> None:
    case.seal_with = "foreign"


def other_method(case: Case) -> None:
    case.method = case.rng.choice(("tools/call", "prompts/get", "resources/read"))


def other_target(case: Case) -> None:
    case.params = {
        **(case.params or {}),
        case.rng.choice(("name", "uri")): case.rng.choice(
            ("other", None, 7, True, [1, "a"], {"x": None}, 1e30, "\ud800")
        ),
    }


def other_arguments(case: Case) -> None:
    value = case.rng.choice(({"env": "dev"}, [], [1], "", "text", 0, 7, False, True, None, {"a": {"b": [math.inf]}}))
    case.params = {**(case.params or {}), "arguments": value}


def no_params(case: Case) -> None:
    case.params = case.rng.choice((None, {}))


def raising_params(case: Case) -> None:
    name = case.rng.choice(("name", "uri", "arguments"))
    case.params = {**(case.params or {}), name: DEEP}


def other_audience(case: Case) -> None:
    case.audience = case.rng.choice((None, "acme-orders", "acme-order", "", "ACME-ORDERS"))


def other_principal(case: Case) -> None:
    case.principal = case.rng.choice((None, "mallory", "bob", "", "\udfff"))


def wrong_principal(case: Case) -> None:
    case.principal = case.rng.choice((7, b"bob", ["bob"], True, 0, {"sub": "bob"}, ("a", "b")))


def raising_principal(case: Case) -> None:
    case.principal = case.rng.choice((ValueError("no"), RuntimeError(), RecursionError()))


FAULTS: dict[str, Any] = {
    "mangle": mangle,
    "not a string": not_a_string,
    "retired": retired,
    "unknown": unknown,
    "foreign": foreign,
    "payload": raw_payload,
    "v": set_claim("v", 0, 2, "1", None, True, 1.0, [1], math.nan, 10**400),
    "s": set_claim("s", None, 7, ["x"], {"a": 1}, True),
    "missing": drop_claim("v", "iat", "exp", "s"),
    "missing binding": drop_claim("m", "t", "a", "aud", "p"),
    "iat": set_claim("iat", None, "now", [], {}, True, False, -1, 1e308, math.inf, -math.inf, math.nan, 10**300, 2**62),
    "exp": set_claim("exp", None, "now", [], {}, True, False, -1, 1e308, math.inf, -math.inf, math.nan, 10**300, 0),
    "iat edge": clock("iat", 60.0),
    "exp edge": clock("exp", 0.0),
    "iat later": clock("iat", 61.0),
    "exp past": clock("exp", -3000.0),
    "m": set_claim("m", None, "tools/list", 7, [], "tools/call"),
    "t": set_claim("t", None, "other", 7, [1], "", "None"),
    "a": set_claim("a", None, "x" * 22, 7, {}, ""),
    "aud": set_claim("aud", None, "acme-orders", "other", 7, [], "", True),
    "p": set_claim(
        "p", None, "", "AAAA", "!!", 7, [], {}, True, False, "é", "\ud800", "A" * 32, "A" * 33, "A" * 31 + "=", "B" * 64
    ),
    "method": other_method,
    "target": other_target,
    "arguments": other_arguments,
    "no params": no_params,
    "raising params": raising_params,
    "audience": other_audience,
    "principal": other_principal,
    "principal type": wrong_principal,
    "principal raises": raising_principal,
}


# --- the boundary, driven in process ------------------------------------------------------------------------------


class LogWord(logging.Handler):
    """Keeps the boundary's last word."""

    def __init__(self) -> None:
        super().__init__()
        self.word: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "requestState rejected on %s: %s":
            assert isinstance(record.args, tuple)
            self.word = str(record.args[1])


@pytest.fixture
def heard() -> Any:
    logger = request_state.logger
    handler, level, propagate = LogWord(), logger.level, logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    yield handler
    logger.removeHandler(handler)
    logger.propagate = propagate
    logger.setLevel(level)


def boundary_says(codec: Any, case: Case, token: Any, heard: LogWord) -> tuple[str, str | None, str | None]:
    """(verdict, log word, the state that the handler got)."""

    def bind(ctx: Any) -> Any:
        if isinstance(case.principal, Exception):
            raise case.principal
        return case.principal

    security = RequestStateSecurity(codec=codec, bind_principal=bind)
    boundary = RequestStateBoundary(security, default_audience=case.audience)
    params = None if case.params is None else {**case.params, "requestState": token}
    if params is None:
        params = {"requestState": token}
    ctx: Any = ServerRequestContext(
        session=None, lifespan_context={}, protocol_version="2026-07-28", method=case.method, params=params
    )
    reached: list[Any] = []

    async def call_next(ctx: Any) -> Any:
        reached.append(ctx.params["requestState"])
        return {"resultType": "complete"}

    heard.word = None
    try:
        boundary(ctx, call_next).send(None)
    except StopIteration:
        return "accepted", None, reached[0]
    except MCPError:
        return "rejected", heard.word, None
    except (RecursionError, ValueError):
        # What the boundary does not catch becomes an internal error: refused, with no word of its own.
        assert heard.word is None
        return "rejected", None, None
    raise AssertionError("the boundary waited for something")


def differences(seed: int, count: int, monkeypatch: pytest.MonkeyPatch, heard: LogWord) -> Counter[str | None]:
    rng = random.Random(seed)
    world = World()
    words: Counter[str | None] = Counter()
    pairs = [*combinations(FAULTS, 2)]
    clock = types.SimpleNamespace(time=None)
    monkeypatch.setattr(request_state, "time", clock)
    for number in range(count):
        case = Case(rng, world)
        if number < len(pairs) * 2:
            faults = list(pairs[number // 2])
            rng.shuffle(faults)
        else:
            faults = rng.sample([*FAULTS], rng.choice((0, 1, 1, 2, 2, 2, 3)))
        for name in faults:
            FAULTS[name](case)
        token = case.token()
        clock.time = lambda case=case: case.now
        expected = boundary_says(world.codec(case.kind), case, token, heard)
        call = CallContext(method=case.method, params=case.params, audience=case.audience, principal=case.principal)
        found = inspect_token(token, world.ring(rng, case.kind), call, now=case.now)
        state = found.state if found.verdict == "accepted" else None
        where = f"seed {seed}, case {number}, {case.kind}, faults {faults}"
        assert (found.verdict, found.reason, state) == expected, f"{where}\n{found}"
        assert json.loads(json.dumps(found.as_dict(), allow_nan=False)), where
        if found.verdict == "rejected":
            assert found.failed[0].reason == found.reason, where
        else:
            assert not found.failed, where
            assert not found.not_checked, where
        words[found.reason if found.verdict == "rejected" else "accepted"] += 1
    return words


@pytest.mark.parametrize("seed", [20260728, 20261129, "random-a", "random-b"])
def test_inspection_and_boundary_agree_on_verdict_and_word(
    seed: int | str, monkeypatch: pytest.MonkeyPatch, heard: LogWord
) -> None:
    seed = seed if isinstance(seed, int) else int.from_bytes(os.urandom(6), "big")
    print(f"seed {seed}")
    words = differences(seed, CASES, monkeypatch, heard)
    assert words["accepted"] > 300
    assert {str(word) for word in words} >= {*REASONS, "None"}
    assert any(str(word).startswith("bind_principal returned ") for word in words)
