"""The pages and documents of `mcpkeys inspect`, one per reason, as files that a person would want to read.

They are written anew by MCPKEYS_UPDATE_GOLDEN=1; then read them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from inspection.scene import CALL, MINTING, NOW, RETIRED, VERIFYING, Scene

from mcpkeys.call import CallContext, principal_of
from mcpkeys.encoding import b64u
from mcpkeys.explanation import explain
from mcpkeys.inspection import REASONS, inspect_token
from mcpkeys.paste import tidy
from mcpkeys.situation import Situation
from mcpkeys_cli import inspect
from mcpkeys_cli.output import emit
from mcpkeys_cli.sight import Sight

GOLDEN = Path(__file__).with_name("golden")
ALICE = principal_of("web-app", "https://idp.acme.example", "alice")
# A claim of alice's with a salt that is the same in every run.
P_CLAIM = "AQIDBAUGBwjsVor5F6l7NPfYRBnLXJob"


def call(**changes: Any) -> CallContext:
    return CallContext(**{**CALL, "audience": "acme-orders", "principal": None, **changes})


def scene() -> Scene:
    return Scene(seed=6)


CASES: dict[str, Callable[[Scene], tuple[Any, CallContext]]] = {
    "accepted": lambda s: (s.token(), call()),
    "accepted as far as checked": lambda s: (s.token(p=P_CLAIM), CallContext()),
    "unverified": lambda s: (s.token(), call()),
    "trimmed": lambda s: (f'"{s.token()}",', call()),
    "non-string requestState": lambda s: (7, call()),
    "malformed": lambda s: (s.token() + "=", call()),
    "unknown key": lambda s: (s.token("ZZZZunknown9"), call()),
    "retired key": lambda s: (s.token(RETIRED), call()),
    "seal": lambda s: (s.token(MINTING)[:-4] + "AAAA", call()),
    "minted in the future": lambda s: (s.token(iat=NOW + 90, exp=NOW + 690), call()),
    "expired": lambda s: (s.token(VERIFYING, iat=NOW - 900, exp=NOW - 300), call()),
    "request binding": lambda s: (
        s.token(),
        call(params={"name": "deploy\u202e", "arguments": {"env": "dev", "force": True}}, audience="acme-ordres"),
    ),
    "audience": lambda s: (s.token(), call(audience="acme-order")),
    "principal binding error": lambda s: (s.token(), call(principal=ConnectionError("the session store is down"))),
    "bind_principal returned int, expected str or None": lambda s: (s.token(), call(principal=7)),
    "principal drift": lambda s: (s.token(p=P_CLAIM), call()),
    "principal": lambda s: (s.token(p=P_CLAIM), call(principal=principal_of("web-app", "https://idp.acme.example"))),
    "no word": lambda s: (s.seal(b"[" * 100_000), call()),
}


def reports(s: Scene) -> list[Any]:
    return [
        s.report("web-1", prefixes=(b64u(s.prefix),)),
        s.report("web-2", verifies=(VERIFYING, RETIRED), generation=6),
        s.report("web-3", state="farewell", verifies=()),
    ]


def answer(name: str) -> Any:
    s = scene()
    given, context = CASES[name](s)
    inner, trimmed = tidy(given) if name == "trimmed" else (given, ())
    held = () if name == "unverified" else (MINTING, VERIFYING, RETIRED)
    sight = Sight(s.ring(held), s.keyset, reports(s), "s3://acme-keys/fleet.keyset.json")
    first = {"name": "deploy", "arguments": {"env": "prod"}} if name == "request binding" else None
    situation = Situation(s.keyset, sight.reports, context, NOW, now_is_capture=True, first=first, trimmed=trimmed)
    found = inspect_token(inner, sight.ring, context, now=NOW)
    exact = inspect_token(given, sight.ring, context, now=NOW)
    subject = inspect._Subject(given, inner, trimmed, context, NOW, None)
    told = explain(found, situation)
    return inspect._answer(exact, found, told, subject, sight, situation, show_state=name == "accepted")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["text", "json"])
def test_the_page_and_the_document_are_those_that_were_read(
    name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = emit(answer(name), form="json" if kind == "json" else "text")
    out, err = capsys.readouterr()
    shown = out if kind == "json" else f"exit {code}\n--- stdout\n{out}--- stderr\n{err}"
    path = GOLDEN / f"{name.replace(' ', '-').replace(',', '')}.{'json' if kind == 'json' else 'txt'}"
    if os.environ.get("MCPKEYS_UPDATE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(shown)
    assert shown == path.read_text()
    if kind == "json":
        value = json.loads(shown)
        assert value["schema"] == "mcpkeys.inspect/1"
        assert value["exit"] == code
        assert code == {"accepted": 0, "rejected": 3, "unverified": 2}[value["verdict"]]
        if name in REASONS or name.startswith("bind_principal"):
            assert value["reason"] == name


def test_every_reason_has_its_page() -> None:
    assert set(REASONS) <= set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_no_page_steers_a_terminal_or_shows_the_state_unasked(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    emit(answer(name), form="text")
    out, err = capsys.readouterr()
    assert not [char for char in out + err if char != "\n" and (ord(char) < 32 or 127 <= ord(char) < 160)]
    assert "\u202e" not in out + err
    assert ("step=2 colour=blue" in out) == (name == "accepted")
