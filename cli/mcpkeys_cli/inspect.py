"""`mcpkeys inspect`: one token's verdict, why, and the next command. Contacts no MCP server, ever."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import click

from mcpkeys import capture
from mcpkeys.call import NO_CALL, NOT_GIVEN, CallContext
from mcpkeys.capture import Captured
from mcpkeys.errors import SettingError
from mcpkeys.explanation import Explanation, explain
from mcpkeys.inspection import Inspection, inspect_token
from mcpkeys.opening import is_sdk_token
from mcpkeys.paste import tidy
from mcpkeys.situation import Situation
from mcpkeys_cli.callopts import now_of, overridden, who_options
from mcpkeys_cli.output import Answer
from mcpkeys_cli.sight import Sight, read_file, sight_of, sight_options

_STDIN = "-"
MAX_INPUT = 2 * capture.MAX_LINE_BYTES
EPILOG = """A token given as an argument stays in the shell's history and shows in process lists;
- and --file are the quiet ways. Nothing is sent to any MCP server.

\b
  mcpkeys inspect --file token.txt
  mcpkeys inspect --request request.json --audience acme-orders --anonymous
  pbpaste | mcpkeys inspect - --method tools/call --name deploy --arguments '{"env": "prod"}'
"""


@dataclass(slots=True)
class _Subject:
    """What is to be inspected: the value as it was given, what is inside it, and the call it came in."""

    exact: object
    inner: object
    trimmed: tuple[str, ...] = ()
    call: CallContext = NO_CALL
    at: float | None = None
    logged: str | None = None


@click.command("inspect", epilog=EPILOG)
@click.argument("token", required=False)
@click.option("--file", "file", type=click.Path(dir_okay=False), metavar="FILE", help="The token is in this file.")
@click.option(
    "--request",
    "request",
    metavar="FILE",
    help="A captured JSON-RPC request, log line or HAR with one (- for stdin): token, call and moment.",
)
@click.option("--first", metavar="FILE", help="The request of the first round: tells which arguments differ.")
@click.option("--method", metavar="METHOD", help="tools/call, prompts/get or resources/read.")
@click.option("--name", metavar="NAME", help="The tool or prompt that was called.")
@click.option("--uri", metavar="URI", help="The resource that was read.")
@click.option("--arguments", metavar="JSON", help="Its arguments, or @FILE.")
@who_options
@click.option("--show-state", is_flag=True, help="Show the state's text, which may be the user's data.")
@sight_options
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(
    token: str | None,
    file: str | None,
    request: str | None,
    first: str | None,
    show_state: bool,
    output: str,
    **given: Any,
) -> Answer:
    """Would the server accept this token, and if not, why? TOKEN, - for stdin, --file or --request."""
    subject = _subject(token, file, request)
    call = overridden(subject.call, given)
    moment = now_of(given)
    replayed = moment is not None or subject.at is not None
    now = moment if moment is not None else subject.at if subject.at is not None else time.time()
    sight = sight_of(given, kid=_kid(subject.inner))
    situation = Situation(
        sight.keyset, sight.reports, call, now, replayed, None if first is None else _first(first), subject.trimmed
    )
    ring = sight.ring
    if isinstance(subject.inner, str) and is_sdk_token(subject.inner) and given["sdk_key_file"] is None:
        # The servers' codec may hold SDK keys that nobody gave here: nothing is said of a token it would read.
        ring = None
    found = inspect_token(subject.inner, ring, call, now=now)
    told = explain(found, situation)
    exact = found if not subject.trimmed else inspect_token(subject.exact, ring, call, now=now)
    return _answer(exact, found, told, subject, sight, situation, show_state=show_state)


# --- what was given -----------------------------------------------------------------------------------------------


def _subject(token: str | None, file: str | None, request: str | None) -> _Subject:
    named = [name for name, value in (("TOKEN", token), ("--file", file), ("--request", request)) if value is not None]
    if len(named) != 1:
        raise SettingError(
            "which token?" if not named else f"{named[0]} and {named[1]} exclude each other",
            why="exactly one of TOKEN, -, --file and --request",
            next="mcpkeys inspect --file FILE, or mcpkeys inspect - and paste it",
            code="usage",
        )
    if request is not None:
        return _of_request(_text(request), request)
    if token not in (None, _STDIN):
        text = str(token)
    else:
        # A file ends with a line feed, and so does what echo prints: that one is not the token's.
        text = _text(_STDIN if file is None else file)
        text = text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")
    if text.lstrip()[:1] == "{" and "requestState" in text:
        return _of_request(text, "the input")
    inner, trimmed = tidy(text)
    return _Subject(text, inner, trimmed)


def _text(path: str) -> str:
    body = sys.stdin.buffer.read(MAX_INPUT + 1) if path == _STDIN else read_file(path, MAX_INPUT)
    if len(body) > MAX_INPUT:
        raise SettingError(
            f"{'the input' if path == '-' else path} is longer than {MAX_INPUT:,} bytes",
            why="one token or one request is expected",
            next="mcpkeys triage FILE reads streams of any length",
            code="input-too-long",
        )
    return body.decode("utf-8", "surrogateescape")


def _of_request(text: str, source: str) -> _Subject:
    found = [entry for entry in capture.requests(text) if entry.token not in (NOT_GIVEN, None)]
    if len(found) != 1:
        words = [entry.logged for entry in capture.requests(text) if entry.kind == "log" and entry.logged]
        why = f"the server's log says {words[0]!r} and holds no token" if words else f"it holds {len(found)} of them"
        raise SettingError(
            f"{source} does not hold one request with a requestState",
            why=why,
            next="mcpkeys triage FILE reads many; --request wants the one request that was refused",
            code="no-request" if not found else "many-requests",
        )
    entry: Captured = found[0]
    call = CallContext(method=entry.method, params=entry.params)
    return _Subject(entry.token, entry.token, (), call, entry.at, entry.logged)


def _first(path: str) -> dict[str, Any]:
    found = [entry for entry in capture.requests(_text(path)) if entry.kind == "request"]
    if len(found) != 1 or not isinstance(found[0].params, dict):
        raise SettingError(
            f"{path} does not hold one request",
            why="--first is the call that was answered by input_required, whose arguments the token is bound to",
            next="--first FILE with its JSON-RPC request",
            code="no-request",
        )
    return found[0].params


def _kid(token: object) -> str | None:
    """The one key that is needed; an id that no key has where none is."""
    return token[4:16] if isinstance(token, str) and token.startswith("mk1.") else ""


# --- what is said -------------------------------------------------------------------------------------------------


def _answer(
    exact: Inspection,
    found: Inspection,
    told: Explanation,
    subject: _Subject,
    sight: Sight,
    situation: Situation,
    *,
    show_state: bool,
) -> Answer:
    from mcpkeys_cli.inspected import document, text

    data = document(exact, found, told, subject.trimmed, sight, situation, show_state=show_state)
    answer = Answer(
        "inspect",
        data=data,
        text=lambda: text(exact, found, told, subject.trimmed, subject.logged, sight, situation, show_state=show_state),
        next=told.next,
    )
    if exact.verdict == "rejected":
        answer.exit, answer.code = 3, "token-rejected"
        answer.message = f"the server refuses this token: {exact.reason or 'no word of its own'}"
        answer.why = told.summary
        if subject.trimmed:
            answer.why = f"as given, with {', '.join(subject.trimmed)}; what is inside is told above"
    elif exact.verdict == "unverified":
        error = sight.error
        answer.exit = 2 if error is None else error.exit_code
        answer.code = "unverified" if error is None else error.code
        answer.message = "not verified"
        answer.why = told.summary if error is None else f"{error.what}: {error.why}" if error.why else error.what
        if error is not None and error.next:
            answer.next = error.next
    return answer
