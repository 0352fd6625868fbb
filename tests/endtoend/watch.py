"""Everything that a run of commands and codecs shows anywhere: output, logs at DEBUG, error reports with locals."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cli.conftest import Ran, Shell
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from mcpkeys import EnvelopeCodec, authoring, document, registry
from mcpkeys.errors import McpkeysError
from mcpkeys.keks import Job, Keks, Unwrapped
from mcpkeys.kms import WrapContext
from mcpkeys.testing.leaks import Listener, shown
from mcpkeys_cli import main as cli


class Watch:
    """Runs commands and servers and keeps all that they show.

    Attributes:
        secrets: what must not be shown; drawn ones come by themselves, others by `hide` and `learn`.
        errors: how many errors were reported.
    """

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.shown: list[str] = []
        self.secrets: set[bytes] = set()
        self.errors = 0

    @property
    def text(self) -> str:
        return "\n".join(self.shown)

    def hide(self, *secrets: str | bytes) -> None:
        self.secrets.update(secret.encode() if isinstance(secret, str) else secret for secret in secrets)

    def draw(self, size: int) -> bytes:
        """The author's randomness: keys are 32 bytes, public ids less."""
        drawn = _token_bytes(size)
        if size == 32:
            self.secrets.add(drawn)
        return drawn

    def report(self, error: BaseException) -> None:
        self.errors += 1
        self.shown.append(shown(error, skip=(__file__,)))

    def run(self, *arguments: str, **more: Any) -> Ran:
        """A command, for a person and for a program where it changes nothing."""
        ran = self.shell.run(*arguments, **more)
        self.shown += [ran.out, ran.err]
        return ran

    def open(self, **changes: Any) -> EnvelopeCodec | None:
        """A server with the shell's settings; None where it does not start."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.shell.environ.items():
                patch.setenv(name, value)
            try:
                codec = EnvelopeCodec.open(**changes)
            except McpkeysError as exc:
                self.report(exc)
                self.shown += [str(exc), repr(exc)]
                return None
        self.shown += [repr(codec), repr(codec.ring), repr(codec.status()), repr(codec.refresher)]
        return codec

    def learn(self) -> None:
        """Unwrap every key of the stored keyset: they are the secrets, also those that no one drew here."""
        keyset = document.read(self.stored())
        jobs = [Job(WrapContext("seal", keyset.name, key.kid), key.wrapped) for key in keyset.keys if key.wrapped]
        jobs.append(Job(WrapContext("report", keyset.name, keyset.report_key.kid), keyset.report_key.wrapped))
        jobs.append(Job(WrapContext("sign", keyset.name, keyset.signer.kid), keyset.signer.wrapped))
        keks = Keks.open(dict.fromkeys((*keyset.keks, *keyset.sign_keks)))
        try:
            for answer in keks.unwrap(jobs).values():
                assert isinstance(answer, Unwrapped)
                self.secrets |= {answer.key, self.derived(answer.key, keyset.name)}
        finally:
            keks.close()

    def stored(self) -> bytes:
        store = registry.open_store(self.shell.environ["MCPKEYS_KEYSET"])
        try:
            found = store.read(None, fresh=True, deadline=threading.TIMEOUT_MAX)
            assert found is not None
            return found.body
        finally:
            store.close()

    @staticmethod
    def derived(key: bytes, name: str) -> bytes:
        """The XAES key: docs/token-format.md."""
        return HKDF(SHA256(), 32, salt=None, info=b"mcpkeys/mk1\x00" + name.encode()).derive(key)


_token_bytes = authoring.secrets.token_bytes


@contextmanager
def watching(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Watch until left; the root logger is at DEBUG meanwhile."""
    watch = Watch(shell)
    of_error = cli.of_error

    def reported(command: str, error: McpkeysError, data: Any = None) -> Any:
        watch.report(error)
        return of_error(command, error, data)

    def unexpected(error: BaseException) -> str:
        watch.report(error)
        return "unexpected"

    monkeypatch.setattr(cli, "of_error", reported)
    monkeypatch.setattr(cli, "_place", unexpected)
    monkeypatch.setattr(threading, "excepthook", lambda args: watch.report(args.exc_value))
    monkeypatch.setattr(sys, "unraisablehook", lambda args: watch.report(args.exc_value))
    monkeypatch.setitem(authoring.Author.__init__.__kwdefaults__, "urandom", watch.draw)
    with Listener() as listener, attentive(listener):
        yield watch
    watch.shown.append(listener.text)


@contextmanager
def attentive(listener: logging.Handler) -> Iterator[None]:
    """Also what does not reach the root by itself: Google's clients keep theirs to the logger `google`."""
    loggers = [logging.getLogger(name) for name in ("google", "grpc", "botocore", "boto3", "hvac", "urllib3")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    loggers[0].addHandler(listener)
    try:
        yield
    finally:
        loggers[0].removeHandler(listener)
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
