"""`envkek:///NAME`: a KEK in an environment variable."""

from __future__ import annotations

import base64
import binascii
import os
import re
import time
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mcpkeys.errors import KekUnusable, KmsUnreachable, UnwrapRefused, UriError
from mcpkeys.kms import KekState, Wrap, WrapContext

_URI = re.compile(r"envkek:///([A-Z_][A-Z0-9_]{0,63})")
_NONCE = 12


class EnvKms:
    """A KEK in an environment variable, base64 of 32 bytes. A wrap is a random nonce and AES-256-GCM ciphertext.

    Permissions needed: none beyond those of the process.
    """

    def __init__(self, uri: str, *, session: Any = None) -> None:
        # Only the shape is checked here: an object that is made contacts nobody and reads nothing.
        match = _URI.fullmatch(uri)
        if match is None:
            raise UriError(
                "the URI names no environment variable",
                why="after envkek:/// stands a name of capital letters, digits and underscores, and nothing else",
                next="for example envkek:///ACME_KEK",
            )
        self.name = match[1]
        self.uri = uri  # there is one spelling, so what was given is canonical

    def __repr__(self) -> str:
        return f"EnvKms({self.uri!r})"

    def wrap(self, key: bytes, context: WrapContext, *, deadline: float) -> Wrap:
        try:
            _in_time(deadline)
            nonce = os.urandom(_NONCE)
            return Wrap(self.uri, "", nonce + self._aead().encrypt(nonce, key, context.aad()))
        finally:
            # If this raises, error reports may show the local variables of this frame.
            del key

    def unwrap(self, wrap: Wrap, context: WrapContext, *, deadline: float) -> bytes:
        if wrap.kek != self.uri:
            why = "the wrap names another KEK"
            raise UnwrapRefused(f"{self.uri} is not asked to unwrap", why=why, next="check MCPKEYS_KEKS")
        _in_time(deadline)
        aead = self._aead()
        try:
            return aead.decrypt(wrap.blob[:_NONCE], wrap.blob[_NONCE:], context.aad())
        except (InvalidTag, ValueError):
            # Vendor exceptions stop here; `from None` keeps what they hold out of the error report.
            raise UnwrapRefused(
                f"{self.uri} does not unwrap this key",
                why="it was altered, or belongs to another kid, keyset, purpose or KEK",
                next="verify the keyset: mcpkeys verify",
            ) from None

    def generate(self, context: WrapContext, *, deadline: float) -> Wrap | None:
        return None  # this process holds the KEK, so it cannot make a key that it does not see

    def rewrap(self, wrap: Wrap, context: WrapContext, *, deadline: float) -> Wrap | None:
        return None  # likewise: the caller unwraps and wraps

    def describe(self, *, deadline: float) -> KekState:
        _in_time(deadline)
        try:
            self._aead()
        except KekUnusable as error:
            return KekState(exists=self.name in os.environ, enabled=False, detail=error.what)
        return KekState(exists=True, enabled=True, detail=f"${self.name} holds 32 bytes")

    def close(self) -> None:
        pass  # nothing is held open, nothing to renew after fork

    def _aead(self) -> AESGCM:
        problem = ""
        try:
            kek = base64.b64decode(os.environ[self.name], validate=True)
            if len(kek) == 32:
                return AESGCM(kek)
            problem = "it does not hold 32 bytes"
            del kek
        except KeyError:
            problem = "it is not set"
        except (binascii.Error, ValueError):
            problem = "it is not base64"
        raise KekUnusable(
            f"the environment variable {self.name} holds no KEK",
            why=problem,  # a shape, never the value
            next="set it to the output of: openssl rand -base64 32",
        )


def _in_time(deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise KmsUnreachable("the KEK was not read", why="the deadline had passed before", next="try again")
