"""The token format `mk1`: pure, no I/O. docs/token-format.md is its specification, tests/vectors its proof.

    mk1.  KID(12)  PREFIX(16)  b64u( NONCE(12 bytes) || AES-256-GCM ciphertext || TAG(16 bytes) )
    \\______ header: 32 characters ______/

The AEAD is XAES-256-GCM (C2SP, XAES-256-GCM.md): PREFIX is the first half of its 24-byte nonce and derives the
AES-256-GCM key, NONCE is the second half. The XAES key is HKDF-SHA256(data key, no salt,
info `mcpkeys/mk1` 0x00 keyset name, 32 bytes). Associated data is the header's 32 characters.
"""

from __future__ import annotations

import hmac
import re

from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pybase64 import b64decode, b64encode_as_string

from mcpkeys.encoding import b64u

VERSION = "mk1."
KID_CHARS = 12
PREFIX_CHARS = 16
PREFIX_BYTES = 12
HEADER_CHARS = len(VERSION) + KID_CHARS + PREFIX_CHARS
NONCE_BYTES = 12
TAG_BYTES = 16
MIN_TOKEN_CHARS = HEADER_CHARS + -(-(NONCE_BYTES + TAG_BYTES) * 4 // 3)
"""70: a header and the sealed empty payload."""

LONG = 8192
"""Bytes from which avoiding a copy is worth more than the steps it takes."""

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
URLSAFE = b"-_"
PADDING = ("", "===", "==", "=")
"""Indexed by length modulo 4: what the unpadded text lacks."""
LAST: tuple[frozenset[str], ...] = (
    frozenset(ALPHABET),
    frozenset(),
    frozenset("AQgw"),
    frozenset("AEIMQUYcgkosw048"),
)
"""Indexed likewise: the last characters that leave no bits over (RFC 4648, section 3.5); no text has length 1 mod 4."""

_HEADER = re.compile(r"mk1\.[A-Za-z0-9_-]{28}", re.ASCII)
has_header = _HEADER.match
"""Whether a text begins with `mk1.` and 28 characters of base64url: what a header is."""

_M1_XOR_M2 = 3 << 112
"""M1 begins with 0x0001 and M2 with 0x0002; nothing else differs."""


class XaesKey:
    """An XAES-256-GCM key: derives one AES-256-GCM key per 12-byte prefix.

    Holds key bytes: no `repr`, no pickle, no copy.
    """

    __slots__ = ("_k1", "_key", "_spare")

    def __init__(self, key: bytes) -> None:
        """`key` is 32 bytes. Raises ValueError for another length."""
        if len(key) != 32:
            raise ValueError("an XAES-256-GCM key is 32 bytes")
        self._key = key
        # C2SP: L = AES(0^128); K1 = L << 1, with the reduction polynomial where the top bit was set.
        encryptor = _block_cipher(key)
        left = int.from_bytes(encryptor.update(bytes(16)), "big")
        self._k1 = ((left << 1) & ((1 << 128) - 1)) ^ (0x87 * (left >> 127))
        # Making one costs ten times what using it costs, and whoever sends forged prefixes makes us use one each.
        self._spare = [encryptor]

    def derive(self, prefix: bytes) -> AESGCM:
        """The AES-256-GCM key for the first 12 bytes of a 24-byte nonce. Raises ValueError for another length."""
        if len(prefix) != PREFIX_BYTES:
            raise ValueError("an XAES-256-GCM prefix is 12 bytes")
        # C2SP: M1 = 0x0001 || "X" || 0x00 || prefix, M2 the same with 0x0002; key = AES(M1 ^ K1) || AES(M2 ^ K1).
        m1 = int.from_bytes(b"\x00\x01X\x00" + prefix, "big") ^ self._k1
        both = (m1 << 128 | m1 ^ _M1_XOR_M2).to_bytes(32, "big")
        # Taken out while it is used: each `pop` and `append` is one step, so no two threads hold the same one, and a
        # child forked meanwhile only lacks it.
        try:
            encryptor = self._spare.pop()
        except IndexError:
            encryptor = _block_cipher(self._key)
        derived = encryptor.update(both)
        self._spare.append(encryptor)
        return AESGCM(derived)

    def same(self, other: XaesKey) -> bool:
        """Whether both are one key, compared in constant time."""
        return hmac.compare_digest(self._key, other._key)

    def __repr__(self) -> str:
        return "XaesKey(...)"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("keys are never pickled or copied")


def _block_cipher(key: bytes) -> CipherContext:
    # ECB over whole blocks is the block cipher itself, as C2SP's construction asks; it carries nothing over.
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305


def xaes_key(data_key: bytes, keyset_name: str) -> XaesKey:
    """The keyset's XAES key for a data key (32 bytes). Raises ValueError for another length."""
    if len(data_key) != 32:
        raise ValueError("a data key is 32 bytes")
    info = b"mcpkeys/mk1\x00" + keyset_name.encode()
    return XaesKey(HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(data_key))


def header(kid: str, prefix: bytes) -> str:
    """The 32 characters before the body: also the associated data, as ASCII."""
    return VERSION + kid + b64u(prefix)


def is_header(text: str) -> bool:
    """Whether `text` is `mk1.` and 28 characters of base64url."""
    return _HEADER.fullmatch(text) is not None


def encode(header: str, sealed: bytes) -> str:
    """A token from its header and NONCE || ciphertext || TAG."""
    return header + b64encode_as_string(sealed, URLSAFE).rstrip("=")


def decode_body(token: str) -> bytes | None:
    """NONCE || ciphertext || TAG of a token, or None where its body is not the one canonical spelling.

    Strict without encoding again: pybase64 refuses every foreign character, but takes `+/` (warning about them, and
    an application may have made warnings errors), padding, and bits beyond the last byte; these are refused here.
    tests/core proves it against the comparison with the re-encoded bytes.
    """
    body = token[HEADER_CHARS:]
    surplus = len(body) & 3
    if body[-1:] not in LAST[surplus] or "+" in body or "/" in body:
        return None
    body += PADDING[surplus]
    try:
        return b64decode(body, URLSAFE, True)  # by position: a keyword costs a quarter of a short token's decoding
    except ValueError:
        return None


def max_payload(max_token_chars: int) -> int:
    """The longest payload in bytes whose token has at most `max_token_chars` characters."""
    return (max_token_chars - HEADER_CHARS) * 3 // 4 - NONCE_BYTES - TAG_BYTES
