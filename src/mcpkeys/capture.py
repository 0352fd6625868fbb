"""Tokens as they come in an incident: bare, quoted, in a request, a HAR, a stream of JSON lines, a server's log.

`scan` walks through any number of lines in constant memory, capped in bytes and depth, and raises on nothing it reads.
A single pasted token is `mcpkeys.paste`'s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final, Literal, NamedTuple

from mcpkeys.call import CARRIERS, NOT_GIVEN, NotGiven
from mcpkeys.wrapped import joined

MAX_LINE_BYTES: Final = 8 << 20
"""Twice the SDK's limit for a body: a longer line is counted and skipped."""

MAX_DOCUMENT_BYTES: Final = 16 << 20
"""Up to here a JSON document of many lines (HAR) is read whole; beyond, line by line."""

_MAX_DEPTH = 16
_MAX_NESTED_TEXT = 3
# Possessive: what is followed by padding or another alphabet is not a shorter token, and finding that out stays cheap.
TOKEN = re.compile(r"(?<![A-Za-z0-9_.-])(?:mk1\.[A-Za-z0-9_-]{66,}+|v1\.[A-Za-z0-9_-]{43,}+)(?![=+/])", re.ASCII)
_LOG = re.compile(r"requestState rejected on (\S{1,100}): ([^\n\"\\]{1,200})")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?", re.ASCII)
_HAR_TEXT = re.compile(r'"text":\s*("(?:[^"\\]|\\.)*")')
# `web-1  | ` of docker compose, `[pod/web-1/container] ` of kubectl logs --prefix.
_LABEL = re.compile(
    r"^\s*(?:\[?([A-Za-z0-9][A-Za-z0-9._/-]{0,100})\]?\s+\| |\[pod/([a-z0-9][a-z0-9.-]{0,100})/[^\]\s]{0,100}\] )",
    re.ASCII,
)
_TIMES = frozenset(("time", "timestamp", "ts", "@timestamp", "startedDateTime", "asctime", "date"))
_INSTANCES = frozenset(("instance", "pod", "pod_name", "host", "hostname", "server"))

Kind = Literal["request", "response", "token", "log", "too_long"]


@dataclass(slots=True)
class Captured:
    """One token or log line that was found.

    Attributes:
        kind: `request` and `response` of JSON-RPC, a bare `token`, the server's `log` line, or a line `too_long` to
            be read.
        line: the line it stands on, from 1; where it begins, for a document of many lines.
        token: the value of requestState; NOT_GIVEN for a log line that holds none.
        method, params: of the request, as far as they were captured.
        at: seconds since the epoch; None where nothing tells. A time without a zone counts as UTC.
        logged: the word that the server logged.
        instance: the instance that logged it, as the log names it.
    """

    kind: Kind
    line: int
    token: object = NOT_GIVEN
    method: str | NotGiven = NOT_GIVEN
    params: Mapping[str, Any] | NotGiven | None = NOT_GIVEN
    at: float | None = None
    logged: str | None = None
    instance: str | None = None


def parse_time(value: object) -> float | None:
    """A log's or capture's time as seconds since the epoch: ISO 8601, seconds or milliseconds. None for others."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        if 1e8 < value < 1e11:
            return float(value)
        return value / 1000 if 1e11 < value < 1e14 else None
    if not isinstance(value, str):
        return None
    match = _TIME.search(value[:200])
    if match is None:
        return None
    try:
        moment = datetime.fromisoformat(match[0].replace(",", "."))
    except ValueError:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def scan(lines: Iterable[bytes]) -> Iterator[Captured]:
    """What the lines hold, in their order.

    Args:
        lines: as a binary file yields them, each at most `MAX_LINE_BYTES` long; a longer one is told, not read.
            A first line that opens a JSON document without closing it makes everything up to `MAX_DOCUMENT_BYTES`
            one document.
    """
    waiting: list[bytes] | None = None
    size = 0
    at: float | None = None
    for number, line in joined(lines):
        if len(line) > MAX_LINE_BYTES:
            yield Captured("too_long", number)
            continue
        if number == 1 and _opens(line):
            waiting = [line]
            size = len(line)
            continue
        if waiting is not None:
            waiting.append(line)
            size += len(line)
            if size > MAX_DOCUMENT_BYTES:
                for i, held in enumerate(waiting, 1):
                    at = _started(held, at)
                    yield from _line(held, i, at)
                waiting = None
            continue
        if at is not None or b"startedDateTime" in line:
            at = _started(line, at)
        yield from _line(line, number, at)
    if waiting is not None:
        values = _documents(b"".join(waiting).decode("utf-8", "surrogateescape"))
        if values is None:
            for i, held in enumerate(waiting, 1):
                yield from _line(held, i, None)
        else:
            for value in values:
                yield from _walk(value, _Around(1), _MAX_DEPTH)


def requests(text: str) -> list[Captured]:
    """Everything in a short text, as `scan`; requests of the first round, without a state, included."""
    found = [*scan([line + b"\n" for line in text.encode("utf-8", "surrogateescape").split(b"\n")])]
    if any(entry.kind in ("request", "response") for entry in found):
        return [entry for entry in found if entry.kind in ("request", "response")]
    return found


def read_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The stream's lines; of a line longer than `MAX_LINE_BYTES` only its first bytes, one more than the limit."""
    while line := stream.readline(MAX_LINE_BYTES + 1):
        yield line
        while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = stream.readline(MAX_LINE_BYTES + 1)


class _Around(NamedTuple):
    """What the surroundings of a value tell of it."""

    line: int
    at: float | None = None
    instance: str | None = None
    logged: tuple[str, str] | None = None


def _opens(line: bytes) -> bool:
    """Whether a first line begins a JSON document of many lines."""
    if line.lstrip()[:1] not in (b"{", b"[") or b"requestState" in line:
        return False
    return _loads(line.decode("utf-8", "surrogateescape")) is None


def _started(line: bytes, at: float | None) -> float | None:
    """In a HAR that is too long to be read whole: the time of the entry that a line belongs to."""
    if b'"startedDateTime"' in line and len(line) < 300:
        return parse_time(line.decode("utf-8", "replace"))
    return at


def _line(raw: bytes, number: int, at: float | None) -> Iterable[Captured]:
    # Most lines of a log are about something else.
    if b"requestState" not in raw and b"mk1." not in raw and b"v1." not in raw and b'"params"' not in raw:
        return ()
    line = raw.decode("utf-8", "surrogateescape").strip()
    start = 0 if line.startswith("[{") else line.find("{")
    if start != 0:
        # Not what is inside the braces: a log line's own time and label stand before them.
        front = line[:200] if start < 0 else line[: min(start, 200)]
        label = _LABEL.match(front)
        moment = parse_time(front)
        instance = None if label is None else label[1] or label[2]
        around = _Around(number, at if moment is None else moment, instance, _logged(line))
    else:
        around = _Around(number, at)
    value = _loads(line[start:]) if start >= 0 else None
    found: Sequence[Captured] = ()
    if value.__class__ is dict:
        # What most lines of a capture are: looked into at once, without the steps of a walk.
        inside = _object(value, around, _MAX_DEPTH, _MAX_NESTED_TEXT)
        found = inside if isinstance(inside, tuple) else [*inside]
    elif value.__class__ is list:
        found = [*_walk(value, around, _MAX_DEPTH)]
    return found or _text_line(line, around)


def _text_line(line: str, around: _Around) -> Iterator[Captured]:
    """What a line holds that is no JSON, or whose JSON held nothing."""
    if around.logged is not None:
        yield _log(around)
        return
    inner = _HAR_TEXT.search(line)
    if inner is not None:
        text = _loads(inner[1])
        found = [*_text(text, around, _MAX_DEPTH, _MAX_NESTED_TEXT)] if isinstance(text, str) else []
        if found:
            yield from found
            return
    if line.startswith(("mk1.", "v1.")) and len(line.split(None, 1)) == 1:
        yield Captured("token", around.line, token=line, at=around.at)
        return
    for match in TOKEN.finditer(line):
        yield Captured("token", around.line, token=match[0], at=around.at, instance=around.instance)


def _loads(text: str) -> Any:
    """A JSON value, or the first one of a text that goes on after it; None where there is none."""
    try:
        return _raw_decode(text)[0] if text[:1] in ("{", "[") else json.loads(text)
    except (ValueError, RecursionError):
        return None


def _documents(text: str) -> list[Any] | None:
    """The JSON values of a text that is nothing else, or None."""
    values: list[Any] = []
    at = 0
    while (match := _NOT_SPACE.search(text, at)) is not None:
        try:
            value, at = _raw_decode(text, match.start())
        except (ValueError, RecursionError):
            return None
        values.append(value)
    return values


_BEGINNINGS = frozenset("{[edmv \t\r\n")
_HOLDING = frozenset((dict, list, str))
_raw_decode = json.JSONDecoder().raw_decode
_NOT_SPACE = re.compile(r"\S")


def _logged(text: str) -> tuple[str, str] | None:
    """(method, word) of the server's log line."""
    match = _LOG.search(text)
    return None if match is None else (match[1], match[2].strip())


def _log(around: _Around) -> Captured:
    assert around.logged is not None
    method, word = around.logged
    return Captured("log", around.line, method=method, at=around.at, logged=word, instance=around.instance)


def _walk(value: Any, around: _Around, depth: int, texts: int = _MAX_NESTED_TEXT) -> Iterator[Captured]:
    """Every JSON-RPC message, log line and token in a parsed value; strings that hold JSON are opened."""
    if depth == 0:
        return
    kind = value.__class__
    if kind is list:
        for item in value:
            yield from _walk(item, around, depth - 1, texts)
    elif kind is str:
        # Nothing that `_text` finds is short or begins otherwise.
        if texts and len(value) > 20 and value[0] in _BEGINNINGS:
            yield from _text(value, around, depth, texts)
    elif kind is dict:
        yield from _object(value, around, depth, texts)


def _object(value: dict[str, Any], around: _Around, depth: int, texts: int) -> Iterable[Captured]:
    """The JSON-RPC message or the holder of a state that an object is; of another object, what is inside it."""
    method, params, result = value.get("method"), value.get("params"), value.get("result")
    if isinstance(method, str) and (isinstance(params, dict) or "jsonrpc" in value):
        if method in CARRIERS or (isinstance(params, dict) and "requestState" in params):
            params = params if isinstance(params, dict) else None
            around, _ = _beside(value, around)
            return (_captured("request", around, {} if params is None else params, method, params),)
        return ()
    if isinstance(result, dict) and "requestState" in result:
        return (_captured("response", _beside(value, around)[0], result),)
    if "requestState" in value:
        around, _ = _beside(value, around)
        return (_captured("token", around, value, method if isinstance(method, str) else NOT_GIVEN),)
    return _inside(value, around, depth, texts)


def _inside(value: dict[str, Any], around: _Around, depth: int, texts: int) -> Iterator[Captured]:
    """A record around something: what it holds, or the log line that it is."""
    around, logs = _beside(value, around)
    found = False
    for inner in value.values():
        if inner.__class__ in _HOLDING:
            for entry in _walk(inner, around, depth - 1, texts):
                found = True
                yield entry
    if logs and not found:
        yield _log(around)


def _captured(
    kind: Kind,
    around: _Around,
    holder: Mapping[str, Any],
    method: str | NotGiven = NOT_GIVEN,
    params: Mapping[str, Any] | NotGiven | None = NOT_GIVEN,
) -> Captured:
    token = holder.get("requestState", NOT_GIVEN)
    word = None if around.logged is None else around.logged[1]
    return Captured(kind, around.line, token, method, params, around.at, word, around.instance)


def _text(value: str, around: _Around, depth: int, texts: int) -> Iterator[Captured]:
    stripped = value.strip()
    if stripped[:1] in ("{", "["):
        nested = _loads(stripped)
        if isinstance(nested, dict | list):
            yield from _walk(nested, around, depth - 1, texts - 1)
    elif stripped.startswith(("event:", "data:")):
        # Server-sent events: what a streamed answer looks like in a HAR.
        for line in stripped.splitlines():
            if line.startswith("data:"):
                yield from _text(line[5:], around, depth - 1, texts - 1) if texts else ()
    elif TOKEN.fullmatch(value) is not None:
        yield Captured("token", around.line, value, at=around.at, instance=around.instance)


def _beside(value: Mapping[str, Any], around: _Around) -> tuple[_Around, bool]:
    """What an object's own fields tell of all that is inside it; and whether one of them is the server's log line."""
    line, at, instance, logged = around
    logs = told = False
    for name, inner in value.items():
        if name in _TIMES:
            moment = parse_time(inner)
            at, told = at if moment is None else moment, True
        elif inner.__class__ is str:
            if name in _INSTANCES:
                instance, told = inner[:100], True
            elif "requestState rejected" in inner and (word := _logged(inner)) is not None:
                logged, logs = word, True
    return _Around(line, at, instance, logged) if told or logs else around, logs
