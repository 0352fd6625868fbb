"""The three ways in: a command that reads, a server that starts, a command that creates. Each must tell the same."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import pytest
from cli.conftest import Shell

from mcpkeys import EnvelopeCodec
from mcpkeys.errors import McpkeysError


@dataclass
class Told:
    """What one door said: exit code, stable word, and the three sentences."""

    exit: int
    code: str
    what: str
    why: str
    next: str
    raised: BaseException | None = field(default=None, repr=False)

    @property
    def text(self) -> str:
        return f"{self.what}\n{self.why}\n{self.next}"


def command(shell: Shell, *arguments: str) -> Told:
    answer: dict[str, Any] = shell.json(*arguments)
    error = answer["error"]
    assert error is not None, answer
    return Told(answer["exit"], error["code"], error["message"], error["why"], error["next"])


def server(shell: Shell) -> Told:
    """A server that starts with the shell's settings."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in shell.environ.items():
            patch.setenv(name, value)
        try:
            EnvelopeCodec.open().close()
        except McpkeysError as exc:
            return Told(exc.exit_code, exc.code, exc.what, exc.why, exc.next, exc)
    raise AssertionError("the server started")


def creation(shell: Shell, kek: str) -> Told:
    """`mcpkeys init`, which must write nothing."""
    place = shell.folder / "created.json"
    told = command(shell, "init", "created", "--keyset", str(place), "--kek", kek)
    assert not os.path.lexists(place)
    return told


def every(shell: Shell, kek: str) -> list[Told]:
    return [command(shell, "status"), server(shell), creation(shell, kek)]


def check(told: Told, exit: int, code: str | None, *words: str, kek: str = "") -> None:
    """A clear error: its exit code, its word, all three sentences, the KEK by name, no stray control characters."""
    assert told.exit == exit, told
    if code is not None:
        assert told.code == code, told
    assert told.what, told
    assert told.why, told
    assert told.next, told
    assert told.text.replace("\n", "").isprintable(), told
    assert kek.split("://", 1)[-1].lstrip("/") in told.text, told
    for word in words:
        assert word in told.text, told
