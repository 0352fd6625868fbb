"""Looking for planted secrets in what a program shows: messages, tracebacks with locals, log records."""

from __future__ import annotations

import base64
import logging
import traceback
from collections.abc import Iterable
from types import TracebackType

WINDOW = 12
"""Bytes of a secret that count as a leak; random ones do not turn up by accident."""


def spellings(secret: bytes) -> set[str]:
    """How any `WINDOW` consecutive bytes of `secret` would look in text.

    Latin-1 text, a Python bytes literal, hexadecimal, a list of numbers, and base64 (both alphabets,
    at each of the three alignments). Secrets shorter than 4 bytes have none: they would match by accident.
    """
    if len(secret) < 4:
        return set()
    size = min(WINDOW, len(secret))
    found: set[str] = set()
    for start in range(len(secret) - size + 1):
        part = secret[start : start + size]
        found.add(part.decode("latin-1"))
        found.add(repr(part)[2:-1])
        found.add(part.hex())
        found.add(part.hex().upper())
        found.add(", ".join(map(str, part)))
        for encoded in (base64.b64encode(part), base64.urlsafe_b64encode(part)):
            # The last character depends on what follows, the padding is not there in the middle of a text.
            found.add(encoded.decode().rstrip("=")[: size * 8 // 6])
    return found


def leaked(text: str, secrets: Iterable[bytes]) -> bool:
    """Whether `text` shows any of `secrets`. Says only whether: a failing test must not print the secret again."""
    return any(spelling in text for secret in secrets for spelling in spellings(secret))


def shown(error: BaseException, *, skip: tuple[str, ...] = ()) -> str:
    """All that an error report would show of `error`: message, notes, causes, and each frame's local variables.

    Args:
        error: the error, as caught.
        skip: file names whose frames are left out (those of the test, which knows the secret).
    """
    report = traceback.TracebackException.from_exception(error, capture_locals=True)
    seen: traceback.TracebackException | None = report
    while seen is not None:
        for index in range(len(seen.stack) - 1, -1, -1):
            if seen.stack[index].filename in skip:
                del seen.stack[index]
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return "".join(report.format()) + repr(error) + repr(error.args) + repr(getattr(error, "__dict__", {}))


class Listener(logging.Handler):
    """Everything logged while it is entered, the root logger at DEBUG, every argument spelled out.

    Attributes:
        text: what was logged so far.
    """

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.text = ""
        self._level = logging.WARNING

    def emit(self, record: logging.LogRecord) -> None:
        self.text += f"{record.name} {record.getMessage()} {record.args!r} {record.__dict__!r}\n"
        if record.exc_info and record.exc_info[1] is not None:
            self.text += shown(record.exc_info[1])

    def __enter__(self) -> Listener:
        root = logging.getLogger()
        self._level = root.level
        root.setLevel(logging.DEBUG)
        root.addHandler(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        root = logging.getLogger()
        root.removeHandler(self)
        root.setLevel(self._level)
