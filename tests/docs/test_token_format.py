"""docs/token-format.md is enough: a second implementation, written from the page alone, agrees with ours."""

from __future__ import annotations

import base64
import hmac
import json
import secrets

from core.judging import opened
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from docs.pages import DOCS, blocks

from mcpkeys.codec import EnvelopeCodec
from mcpkeys.encoding import b64u

EXAMPLE = json.loads(next(blocks(DOCS / "token-format.md", "json")).text)


def hkdf(ikm: bytes, info: bytes) -> bytes:
    """RFC 5869 for 32 bytes: extract with 32 zero bytes, one block of expand."""
    extracted = hmac.digest(bytes(32), ikm, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def aes(key: bytes, block: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block)  # noqa: S305  (one block)


def xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def derive(xaes_key: bytes, prefix: bytes) -> bytes:
    left = aes(xaes_key, bytes(16))
    k1 = bytearray(((int.from_bytes(left, "big") << 1) & (2**128 - 1)).to_bytes(16, "big"))
    if left[0] & 0x80:
        k1[15] ^= 0x87
    halves = [xor(bytes([0, number, 0x58, 0]) + prefix, bytes(k1)) for number in (1, 2)]
    return aes(xaes_key, halves[0]) + aes(xaes_key, halves[1])


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def xaes_key_of(data_key: bytes, keyset: str) -> bytes:
    return hkdf(data_key, b"mcpkeys/mk1\x00" + keyset.encode())


def example() -> dict[str, str]:
    """The page's example, computed from its inputs."""
    key = xaes_key_of(bytes.fromhex(EXAMPLE["data_key"]), EXAMPLE["keyset"])
    prefix, nonce = bytes.fromhex(EXAMPLE["prefix"]), bytes.fromhex(EXAMPLE["nonce"])
    header = "mk1." + EXAMPLE["kid"] + encode(prefix)
    derived = derive(key, prefix)
    sealed = AESGCM(derived).encrypt(nonce, EXAMPLE["payload"].encode(), header.encode())
    return {**EXAMPLE, "xaes_key": key.hex(), "derived_key": derived.hex(), "token": header + encode(nonce + sealed)}


def test_the_example_of_the_page_is_true() -> None:
    assert example() == EXAMPLE


def test_our_implementation_opens_the_example() -> None:
    from mcpkeys.ring import KeyUse, Ring, RingKey
    from mcpkeys.token import xaes_key

    key = xaes_key(bytes.fromhex(EXAMPLE["data_key"]), EXAMPLE["keyset"])
    ring = Ring(name=EXAMPLE["keyset"], keys=[RingKey(EXAMPLE["kid"], "verifying", 0, 0, key, KeyUse())])
    assert opened(ring, EXAMPLE["token"]) == EXAMPLE["payload"].encode()


def test_a_reader_of_the_page_opens_our_tokens() -> None:
    secret = secrets.token_bytes(48)
    payload = secrets.token_bytes(333)
    token = EnvelopeCodec.from_secrets([secret]).seal(payload)
    key = xaes_key_of(hkdf(secret, b"mcpkeys/secret/key"), "")
    header, sealed = token[:32], decode(token[32:])
    derived = derive(key, decode(header[16:]))
    assert header[4:16] == b64u(_kid(secret))
    assert AESGCM(derived).decrypt(sealed[:12], sealed[12:], header.encode()) == payload
    assert len(token) == 32 - (-(28 + len(payload)) * 4 // 3)


def _kid(secret: bytes) -> bytes:
    return hkdf(secret, b"mcpkeys/secret/kid")[:9]
