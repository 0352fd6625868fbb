"""Tokens as they come in an incident: taken out exactly, or with what was around them said."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inspection.scene import CALL, NOW, Scene

from mcpkeys import capture
from mcpkeys.call import NOT_GIVEN
from mcpkeys.capture import Captured, parse_time
from mcpkeys.paste import tidy

SCENE = Scene()
TOKEN = SCENE.token()
REQUEST = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {**CALL["params"], "requestState": TOKEN}}
AT = "2026-11-29T22:51:00.500Z"
SECONDS = 1_795_992_660.5


def scan(text: str | bytes) -> list[Captured]:
    body = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return [*capture.scan(capture.read_lines(io.BytesIO(body)))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TOKEN, ()),
        (f" {TOKEN}\n\n", ("white space around it",)),
        (f'"{TOKEN}"', ("quotes around it",)),
        (f"\u201c{TOKEN}\u201d", ("quotes around it",)),
        (f'"{TOKEN}",', ("a comma after it", "quotes around it")),
        (f'"requestState": "{TOKEN}"', ("the name before it", "quotes around it")),
        (f"requestState={TOKEN}", ("the name before it",)),
        (TOKEN[:70] + "\n  " + TOKEN[70:], ("line breaks inside it",)),
        (TOKEN[:70] + "\\r\\n" + TOKEN[70:], ("line breaks inside it",)),
        (TOKEN.replace(".", "%2E"), ("URL-encoding",)),
        (f"the client sent {TOKEN} and then it failed", ("text around it",)),
        (f"\ufeff{TOKEN}", ("invisible characters around it",)),
    ],
)
def test_what_stands_around_a_pasted_token_is_taken_off_and_said(text: str, said: tuple[str, ...]) -> None:
    inner, trimmed = tidy(text)
    assert inner == TOKEN
    assert sorted(trimmed) == sorted(said)


def test_the_tokens_own_characters_are_never_mended() -> None:
    for spoiled in (TOKEN + "=", TOKEN[:-1], TOKEN.replace("-", "+"), TOKEN.swapcase()):
        assert tidy(spoiled)[0] == spoiled


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_tidy_takes_any_text_and_says_so_whenever_it_changed_something(text: str) -> None:
    inner, trimmed = tidy(text)
    assert (inner == text) == (not trimmed)


RESPONSE = {"jsonrpc": "2.0", "id": 3, "result": {"resultType": "input_required", "requestState": TOKEN}}
HAR = {
    "log": {
        "version": "1.2",
        "entries": [
            {
                "startedDateTime": AT,
                "request": {
                    "method": "POST",
                    "url": "http://x/mcp",
                    "headers": [{"name": "a", "value": "b"}],
                    "postData": {"mimeType": "application/json", "text": json.dumps(REQUEST)},
                },
                "response": {"content": {"text": "event: message\r\ndata: " + json.dumps(RESPONSE) + "\r\n\r\n"}},
            }
        ],
    }
}
WORD = "requestState rejected on tools/call: unknown key"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        (TOKEN, ["token"]),
        (f"{TOKEN}\n{TOKEN}\n", ["token", "token"]),
        (json.dumps(REQUEST), ["request"]),
        (json.dumps(REQUEST, indent=2), ["request"]),
        (json.dumps(REQUEST, indent=2) + "\n" + json.dumps(REQUEST, indent=4), ["request", "request"]),
        (json.dumps([REQUEST, RESPONSE]), ["request", "response"]),
        (json.dumps({"time": AT, "body": json.dumps(REQUEST)}), ["request"]),
        (json.dumps(HAR), ["request", "response"]),
        (json.dumps(HAR, indent=1), ["request", "response"]),
        (f"2026-11-29 22:51:00,500 DEBUG sent {json.dumps(REQUEST)} to web-1", ["request"]),
        (f"{AT} WARNING mcp.server: {WORD}", ["log"]),
        (json.dumps({"ts": SECONDS, "level": "warning", "message": WORD, "pod": "web-2"}), ["log"]),
        (f"GET /x?requestState={TOKEN} HTTP/1.1", ["token"]),
        ("nothing of interest\n{}\n[]\n\n", []),
        ('{"broken": \n' + TOKEN, ["token"]),
    ],
)
def test_every_form_is_read(text: str, kinds: list[str]) -> None:
    found = scan(text)
    assert [entry.kind for entry in found] == kinds
    for entry in found:
        if entry.kind in ("request", "token", "response"):
            assert entry.token == TOKEN
        if entry.kind == "request":
            assert (entry.method, entry.params) == ("tools/call", REQUEST["params"])


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"time": AT, "body": REQUEST}),
        json.dumps({"timestamp": SECONDS * 1000, "request": {"body": json.dumps(REQUEST)}}),
        json.dumps(HAR, indent=1),
        f"2026-11-29 22:51:00,500 {json.dumps(REQUEST)}",
        f"[2026-11-29T23:51:00.500+01:00] {WORD}",
    ],
)
def test_the_moment_of_the_capture_is_read(text: str) -> None:
    assert scan(text)[0].at == SECONDS


@pytest.mark.parametrize(
    "text",
    [
        f"web-2  | {AT} WARNING {WORD}",
        f"[pod/web-2/app] {AT} WARNING {WORD}",
        f"[pod/orders-7/app] | {WORD}".replace("pod/orders-7/app", "web-2"),
        json.dumps({"instance": "web-2", "message": WORD}),
        json.dumps({"kubernetes": {"pod": "web-2", "log": WORD}}),
    ],
)
def test_the_instance_that_logged_a_refusal_is_named(text: str) -> None:
    entry = scan(text)[0]
    assert (entry.instance, entry.logged, entry.method) == ("web-2", "unknown key", "tools/call")


def test_a_record_with_both_a_request_and_the_servers_word_is_one_capture() -> None:
    (entry,) = scan(json.dumps({"time": AT, "instance": "web-2", "message": WORD, "request": REQUEST}))
    assert (entry.kind, entry.logged, entry.instance, entry.at) == ("request", "unknown key", "web-2", SECONDS)


def test_a_record_with_the_request_as_text_is_one_capture_too() -> None:
    (entry,) = scan(json.dumps({"message": f"[web] {WORD}", "pod": "web-2", "body": json.dumps(REQUEST)}))
    assert (entry.kind, entry.logged, entry.instance, entry.token) == ("request", "unknown key", "web-2", TOKEN)


def test_a_null_state_and_a_first_round_are_no_tokens() -> None:
    first = {**REQUEST, "params": CALL["params"]}
    null = {**REQUEST, "params": {**CALL["params"], "requestState": None}}
    assert [entry.token for entry in scan(json.dumps(first) + "\n" + json.dumps(null))] == [NOT_GIVEN, None]


def test_a_line_without_end_is_told_and_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "MAX_LINE_BYTES", 1000)
    found = scan(b"x" * 5000 + TOKEN.encode() + b"\n" + TOKEN.encode() + b"\n")
    assert [(entry.kind, entry.line) for entry in found] == [("too_long", 1), ("token", 2)]


def test_a_har_that_is_too_long_to_be_read_whole_is_read_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "MAX_DOCUMENT_BYTES", 300)
    found = scan(json.dumps(HAR, indent=1))
    assert [(entry.kind, entry.at) for entry in found] == [("request", SECONDS), ("response", SECONDS)]


HOSTILE = [
    "[" * 200_000,
    '{"a":' * 50_000,
    json.dumps(REQUEST)[:-30],
    '{"method":"tools/call","params":["requestState"]}',
    '{"requestState":{"requestState":{"requestState":1}}}',
    '{"params":{"requestState":[]},"method":7}',
    "requestState rejected on : \n" * 10,
    json.dumps({"a": json.dumps({"b": json.dumps({"c": json.dumps({"d": json.dumps(REQUEST)})})})}),
    '{"time":1e400,"params":' + "9" * 5000 + "}",
    "mk1." + "A" * 1_000_000,
    '"text": "' + '\\"' * 100_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_input_neither_crashes_nor_hangs(text: str) -> None:
    scan(text)
    scan(f"2026-11-29 22:51:00 {text} requestState")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 2**32))
def test_any_bytes_are_read(noise: bytes, seed: int) -> None:
    scan(noise)
    body = bytearray(json.dumps(HAR, indent=1).encode())
    rng = random.Random(seed)
    for _ in range(5):
        body[rng.randrange(len(body))] = rng.randrange(256)
    scan(bytes(body))


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        (AT, SECONDS),
        ("2026-11-29 22:51:00,500", SECONDS),
        (SECONDS, SECONDS),
        (SECONDS * 1000, SECONDS),
        (7, None),
        (True, None),
        ("yesterday", None),
        ("2026-13-45T99:99:99Z", None),
        (None, None),
        ([AT], None),
    ],
)
def test_times_are_read_or_left_alone(value: Any, moment: float | None) -> None:
    assert parse_time(value) == moment


def test_now_of_the_scene_is_a_time_a_log_could_hold() -> None:
    assert parse_time(NOW) == NOW
