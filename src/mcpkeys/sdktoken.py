"""The SDK's own `v1.` tokens, read and minted under its `keys=[...]`: for migration and for inspection.

Source: `mcp/server/request_state.py` of the SDK 2.x (`AESGCMRequestStateCodec`): `v1.` + base64url of
kid(4) || nonce(12) || AES-256-GCM ciphertext and tag, associated data `v1.` + kid. A test holds it against the
SDK's own class; it is written out here so that inspection needs no SDK.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from mcpkeys.encoding import b64u, unb64u
from mcpkeys.randomness import random_bytes

VERSION = "v1."
_KID_BYTES = 4
_NONCE_BYTES = 12


def secret_bytes(keys: Sequence[bytes | bytearray | str]) -> list[bytes]:
    """The SDK's raw secrets as bytes, checked as the SDK checks them.

    Raises:
        TypeError: a key is neither bytes, bytearray nor str.
        ValueError: no key, or one shorter than 32 bytes. The message holds positions and lengths only.
    """
    if isinstance(keys, bytes | bytearray | str):
        raise TypeError("keys is a sequence of secrets, not one secret")
    material: list[bytes] = []
    for i, key in enumerate(keys):
        if not isinstance(key, bytes | bytearray | str):
            raise TypeError(f"keys must be bytes, bytearray or str; keys[{i}] is {type(key).__name__}")
        secret = key.encode() if isinstance(key, str) else bytes(key)
        if len(secret) < 32:
            raise ValueError(f"keys must hold at least 32 bytes of secret randomness; keys[{i}] is {len(secret)} bytes")
        material.append(secret)
    if not material:
        raise ValueError("at least one key is needed")
    if len(set(material)) != len(material):
        raise ValueError("a key stands twice")
    return material


class SdkRing:
    """The SDK's ring: the first key seals, all unseal. Holds keys: no `repr`, no pickle, no copy."""

    __slots__ = ("_aeads", "_mint")

    def __init__(self, keys: Sequence[bytes | bytearray | str]) -> None:
        """Raises as `secret_bytes`."""
        self._aeads: dict[bytes, AESGCM] = {}
        for secret in secret_bytes(keys):
            key = HKDF(SHA256(), 32, salt=None, info=b"mcp/request-state/v1/aes-256-gcm").derive(secret)
            kid = hashlib.sha256(b"mcp/request-state/v1/kid:" + key).digest()[:_KID_BYTES]
            self._aeads[kid] = AESGCM(key)
        self._mint = next(iter(self._aeads))

    @property
    def kids(self) -> tuple[str, ...]:
        """The keys' fingerprints, 8 hex digits each; the first one mints."""
        return tuple(kid.hex() for kid in self._aeads)

    def seal(self, payload: bytes, urandom: Callable[[int], bytes] = random_bytes) -> str:
        """A token that every SDK server with the same keys accepts."""
        nonce = urandom(_NONCE_BYTES)
        sealed = self._aeads[self._mint].encrypt(nonce, payload, VERSION.encode() + self._mint)
        return VERSION + b64u(self._mint + nonce + sealed)

    def open(self, token: str) -> bytes | str:
        """The payload, or the reason for which the SDK refuses: `malformed`, `unknown key` or `seal`."""
        if not token.startswith(VERSION):
            return "malformed"
        try:
            raw = unb64u(token[len(VERSION) :])
        except ValueError:
            return "malformed"
        if len(raw) < _KID_BYTES + _NONCE_BYTES + 16:
            return "malformed"
        kid, nonce, sealed = raw[:4], raw[4:16], raw[16:]
        aead = self._aeads.get(kid)
        if aead is None:
            return "unknown key"
        try:
            return aead.decrypt(nonce, sealed, VERSION.encode() + kid)
        except InvalidTag:
            return "seal"

    def __repr__(self) -> str:
        return f"SdkRing(kids={self.kids})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("keys are never pickled or copied")
