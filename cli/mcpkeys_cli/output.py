"""How the command talks. The rules, for every command:

- The result goes to stdout, everything else (progress, warnings, errors of text mode) to stderr.
- `--output json`: exactly one document, on success and on failure:
  {"schema": "mcpkeys.<command>/1", "ok", "exit", "next", "error": {"code", "message", "why", "next"} | null, ...}.
  Streams (`status --watch`, `triage --output ndjson`) print one document a line.
- Text ends with the next step, on success as on failure: `next: ...`; an error is `error:`, `why:`, `next:`.
- Times are RFC 3339 UTC; in text the relative time stands beside them.
- Characters from outside that could steer a terminal (C0, C1, bidi) or begin a line of their own are escaped.
- Colour only where a person looks: a terminal, and no NO_COLOR.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mcpkeys.encoding import format_ms
from mcpkeys.errors import McpkeysError

# C0 but tab, DEL and C1, line and paragraph separators, bidi marks, embeddings and isolates, BOM.
_STEERING = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


Form = Literal["text", "json", "line"]
"""How an answer is printed; `line` is JSON on one line, for commands that print several documents."""


@dataclass(slots=True)
class Answer:
    """What a command has to say.

    Attributes:
        command: the word after `mcpkeys`, for the schema.
        data: the fields of the JSON document, beside the common ones.
        text: what a person reads; without the next step.
        next: the next step, or empty where there is none.
        exit: the exit code; 0 is `ok`.
        code, message, why: of the error, where `exit` is not 0.
    """

    command: str
    data: Mapping[str, Any] = field(default_factory=dict)
    text: str | Callable[[], str] = ""
    next: str = ""
    exit: int = 0
    code: str = ""
    message: str = ""
    why: str = ""


def escape(text: str) -> str:
    """One line: every character that could steer a terminal or begin another line is spelled as an escape."""
    return _STEERING.sub(lambda match: "\\n" if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


def document(answer: Answer) -> dict[str, Any]:
    """The JSON document of an answer."""
    error = None
    if answer.exit:
        error = {"code": answer.code, "message": answer.message, "why": answer.why, "next": answer.next}
    return {
        "schema": f"mcpkeys.{answer.command}/1",
        "ok": answer.exit == 0,
        "exit": answer.exit,
        "next": answer.next,
        "error": error,
        **answer.data,
    }


def of_error(command: str, error: McpkeysError, data: Mapping[str, Any] | None = None) -> Answer:
    """The answer that an error makes."""
    return Answer(
        command,
        data=data or {},
        next=error.next or _fallback(command, error.exit_code),
        exit=error.exit_code,
        code=error.code,
        message=error.what,
        why=error.why,
    )


def _fallback(command: str, code: int) -> str:
    """What helps where an error (a plugin's, say) names no next step."""
    if code in (4, 7):
        return "mcpkeys doctor"
    return "mcpkeys --help" if command == "mcpkeys" else f"mcpkeys {command} --help"


def emit(answer: Answer, *, form: Form) -> int:
    """Print an answer; its exit code."""
    if form != "text":
        # ASCII: no terminal and no log can misread it, and lone surrogates survive.
        print(json.dumps(document(answer), indent=2 if form == "json" else None))
        return answer.exit
    text = answer.text() if callable(answer.text) else answer.text
    if text:
        print(_printable(text))
    if answer.exit and answer.message:
        note(f"{paint('error:', 'red')} {escape(answer.message)}")
        if answer.why:
            note(f"  why: {escape(answer.why)}")
        if answer.next:
            note(f"  next: {escape(answer.next)}")
    elif answer.next:
        print(f"next: {_printable(escape(answer.next))}")
    return answer.exit


def _printable(text: str) -> str:
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def note(text: str) -> None:
    """One line on stderr: progress, a warning, an error."""
    encoding = sys.stderr.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr, flush=True)


def colour(stream: Any = None) -> bool:
    """Whether a person looks: a terminal, and NO_COLOR is not set."""
    stream = sys.stderr if stream is None else stream
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


_CODES = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "dim": "2", "bold": "1"}


def paint(text: str, name: str, stream: Any = None) -> str:
    """`text` in a colour, where a person looks."""
    return f"\x1b[{_CODES[name]}m{text}\x1b[0m" if colour(stream) else text


def duration(seconds: float) -> str:
    """`95.2` -> `1 min 35 s`; the two largest units."""
    whole = round(abs(seconds))
    if whole < 60:
        return f"{abs(seconds):.1f} s" if abs(seconds) < 10 and abs(seconds) % 1 else f"{whole} s"
    units = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    parts: list[str] = []
    for size, name in units:
        if whole >= size or (parts and name != "d"):
            parts.append(f"{whole // size} {name}")
            whole %= size
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0 ")) or "0 s"


def relative(ms: int, now: float) -> str:
    """`3 min 20 s ago` or `in 3 min 20 s`."""
    delta = ms / 1000 - now
    return f"in {duration(delta)}" if delta > 0 else f"{duration(delta)} ago"


def moment(ms: int, now: float) -> str:
    """`2026-11-29T22:51:00.123Z (3 min 20 s ago)`."""
    return f"{format_ms(ms)} ({relative(ms, now)})"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned by spaces, escaped; no borders, so that it can be cut and grepped."""
    cells: list[Sequence[str]] = [heads, *[tuple(escape(cell) for cell in row) for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )
