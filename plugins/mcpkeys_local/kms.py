"""`local:///path/to/kek.key`: a KEK in a file, for one machine, for development, for machines without a KMS."""

from __future__ import annotations

import os
import time
from typing import Any, NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mcpkeys.errors import KekUnusable, KmsUnreachable, UnwrapRefused
from mcpkeys.kms import KekState, Wrap, WrapContext, identity, scheme_of
from mcpkeys_local.kekfile import read_kek
from mcpkeys_local.path import hazards_of, path_of, uri_of

_FORMAT = b"\x01"
_NONCE_BYTES = 12
_TAG_BYTES = 16
_OVERHEAD = len(_FORMAT) + _NONCE_BYTES + _TAG_BYTES
_MAX_KEY_BYTES = 64
_EXAMPLE = "local:///etc/mcpkeys/kek.key"


class LocalKms:
    """A KEK in a file of exactly 32 raw bytes, mode 0600.

    A wrap is 0x01, 12 random bytes, and the AES-256-GCM ciphertext and tag of the key, with `WrapContext.aad()`
    as associated data: 29 bytes longer than the key. Random nonces are safe for 2^32 wraps by one KEK; a keyset
    makes a few a month.

    The file is read for each call and never kept: what this object shows can then hold no key, a file that was
    withdrawn stops working at once, and there is nothing to renew after fork. The deadline is checked before
    the file is opened; a filesystem that hangs, hangs the call.

    Permissions needed: to read the file. It cannot restrict by purpose: whoever reads it can open the signer, so
    use `--sign-kek` with a file that servers do not have.
    """

    def __init__(self, uri: str, *, session: Any = None) -> None:
        """Raises `UriError`. Opens nothing. `session` means nothing here and is ignored."""
        if scheme_of(uri) != "local":
            raise ValueError("LocalKms serves local:// only")
        self.path = path_of(uri, "local", _EXAMPLE)
        self.uri = uri_of(self.path, "local")

    def __repr__(self) -> str:
        return f"LocalKms({self.uri!r})"

    def wrap(self, key: bytes, context: WrapContext, *, deadline: float) -> Wrap:
        """`key` is 1 to 64 bytes; ValueError otherwise. Raises `KekUnusable`, `KmsDenied`, `KmsUnreachable`."""
        try:
            if not 1 <= len(key) <= _MAX_KEY_BYTES:
                raise ValueError("a key to wrap has 1 to 64 bytes")
            _in_time(deadline)
            kek = read_kek(self.path)
            nonce = os.urandom(_NONCE_BYTES)
            blob = _FORMAT + nonce + AESGCM(kek.key).encrypt(nonce, key, context.aad())
        finally:
            del key  # on the way out with an error too: tracebacks show the locals of every frame they cross
        return Wrap(self.uri, kek.version, blob)

    def unwrap(self, wrap: Wrap, context: WrapContext, *, deadline: float) -> bytes:
        """Raises `UnwrapRefused`, `KekUnusable`, `KmsDenied`, `KmsUnreachable`."""
        if identity(wrap.kek) != identity(self.uri):
            raise UnwrapRefused(
                f"this key is wrapped by another KEK than {self.uri}",
                why="the wrap names a different one",
                next="check MCPKEYS_KEKS against the keyset: mcpkeys status",
            )
        _in_time(deadline)
        kek = read_kek(self.path)
        version = kek.version
        try:
            if not _OVERHEAD < len(wrap.blob) <= _OVERHEAD + _MAX_KEY_BYTES or wrap.blob[:1] != _FORMAT:
                raise InvalidTag
            nonce, sealed = wrap.blob[1 : 1 + _NONCE_BYTES], wrap.blob[1 + _NONCE_BYTES :]
            return AESGCM(kek.key).decrypt(nonce, sealed, context.aad())
        except InvalidTag:
            del kek
            _refuse(self.path, wrap.version, version)

    def generate(self, context: WrapContext, *, deadline: float) -> Wrap | None:
        """None: this process holds the KEK itself, so no key it makes could be hidden from it."""
        return None

    def rewrap(self, wrap: Wrap, context: WrapContext, *, deadline: float) -> Wrap | None:
        """None: a file holds one version of its KEK, and this process would see the key anyway."""
        return None

    def describe(self, *, deadline: float) -> KekState:
        """Raises `KmsDenied` (it may be there, this user cannot tell) and `KmsUnreachable`."""
        _in_time(deadline)
        try:
            kek = read_kek(self.path)
        except KekUnusable as error:
            return KekState(os.path.lexists(self.path), False, detail=f"{error.what}: {error.why}".rstrip(": "))
        return KekState(True, True, kek.version, kek.version, kek.detail)

    def hazards(self, *, deadline: float) -> list[str]:
        """What lets other users replace the file: for `mcpkeys doctor`."""
        return hazards_of(self.path)

    def close(self) -> None:
        """Nothing is held open."""


def _in_time(deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise KmsUnreachable(
            "the local KEK was not read", why="the deadline had passed before", next="try again; is the machine busy?"
        )


def _refuse(path: str, wrapped_by: str, held: str) -> NoReturn:
    if wrapped_by and wrapped_by != held:
        raise UnwrapRefused(
            f"the KEK file {path} does not unwrap this key",
            why=f"the key was wrapped by version {wrapped_by} and the file holds version {held}: it was replaced",
            next="restore the file that `init` created, or rewrap where another KEK still opens the keyset",
        )
    raise UnwrapRefused(
        f"the KEK file {path} does not unwrap this key",
        why="the wrapped key was altered, or belongs to another kid, keyset or purpose",
        next="verify the keyset: mcpkeys verify",
    )
