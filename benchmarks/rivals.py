"""What mcpkeys is compared with. Each is used as its documentation says, with a key already in memory.

A contestant that gives bytes is given the fastest base64 on top (the standard alphabet, by SIMD), since a token
has to be text.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pybase64 import b64decode, b64encode


@dataclass(frozen=True)
class Rival:
    """One contestant: a name for tables, how it seals and how it opens."""

    name: str
    seal: Callable[[Any], Any]
    unseal: Callable[[Any], Any]


def sdk() -> Rival:
    """The SDK's built-in codec: AES-256-GCM, standard base64."""
    from mcp.server.request_state import AESGCMRequestStateCodec

    codec = AESGCMRequestStateCodec([os.urandom(32)])
    return Rival("SDK built-in", codec.seal, codec.unseal)


def documented_envelope() -> Rival:
    """A codec such as the SDK's documentation shows for a KMS: AES-256-GCM, hexadecimal, canonical or refused."""
    aead, front = AESGCM(os.urandom(32)), "kms1."
    bound = front.encode()

    def seal(payload: bytes) -> str:
        nonce = os.urandom(12)
        return front + (nonce + aead.encrypt(nonce, payload, bound)).hex()

    def unseal(token: str) -> bytes:
        if not token.startswith(front):
            raise ValueError("unknown format")
        body = token[len(front) :]
        raw = bytes.fromhex(body)
        if raw.hex() != body:
            raise ValueError("not canonical")
        return aead.decrypt(raw[:12], raw[12:], bound)

    return Rival("SDK docs' envelope (hex)", seal, unseal)


def fernet() -> Rival:
    """Fernet: AES-128-CBC and HMAC-SHA256."""
    from cryptography.fernet import Fernet

    box = Fernet(Fernet.generate_key())
    return Rival("Fernet", box.encrypt, box.decrypt)


def joserfc() -> Rival:
    """A JWE, `dir` with A256GCM."""
    from joserfc import jwe
    from joserfc.jwk import OctKey

    key, head = OctKey.generate_key(256), {"alg": "dir", "enc": "A256GCM"}
    return Rival(
        "joserfc (JWE dir A256GCM)",
        lambda payload: jwe.encrypt_compact(head, payload, key),
        lambda token: jwe.decrypt_compact(token, key).plaintext,
    )


def tink() -> Rival:
    """Tink's AEAD, AES256-GCM."""
    import tink as library
    from tink import aead

    aead.register()
    primitive = library.new_keyset_handle(aead.aead_key_templates.AES256_GCM).primitive(aead.Aead)
    return Rival(
        "Tink (AES256-GCM)",
        lambda payload: b64encode(primitive.encrypt(payload, b"bound")),
        lambda token: primitive.decrypt(b64decode(token, validate=True), b"bound"),
    )


def aws_encryption_sdk() -> Rival:
    """The AWS Encryption SDK with a caching CMM over a raw key: no KMS call either, no signature."""
    import aws_encryption_sdk as library
    from aws_encryption_sdk.identifiers import AlgorithmSuite, EncryptionKeyType, WrappingAlgorithm
    from aws_encryption_sdk.internal.crypto.wrapping_keys import WrappingKey
    from aws_encryption_sdk.key_providers.raw import RawMasterKeyProvider

    secret = os.urandom(32)

    class Raw(RawMasterKeyProvider):  # type: ignore[misc]
        provider_id = "benchmark"

        def _get_raw_key(self, key_id: object) -> object:
            return WrappingKey(
                wrapping_algorithm=WrappingAlgorithm.AES_256_GCM_IV12_TAG16_NO_PADDING,
                wrapping_key=secret,
                wrapping_key_type=EncryptionKeyType.SYMMETRIC,
            )

    provider = Raw()
    provider.add_master_key("key")
    materials = library.CachingCryptoMaterialsManager(
        master_key_provider=provider,
        cache=library.LocalCryptoMaterialsCache(1000),
        max_age=3600.0,
        max_messages_encrypted=1 << 31,
    )
    client = library.EncryptionSDKClient()
    suite = AlgorithmSuite.AES_256_GCM_HKDF_SHA512_COMMIT_KEY
    return Rival(
        "AWS Encryption SDK (cached)",
        lambda payload: b64encode(client.encrypt(source=payload, materials_manager=materials, algorithm=suite)[0]),
        lambda token: client.decrypt(source=b64decode(token, validate=True), materials_manager=materials)[0],
    )


def limit() -> Rival:
    """What no codec of this kind can undercut in Python: urandom, AES-256-GCM, base64 by SIMD, and nothing else."""
    aead, urandom = AESGCM(os.urandom(32)), os.urandom

    def seal(payload: bytes) -> bytes:
        nonce = urandom(12)
        return b64encode(nonce + aead.encrypt(nonce, payload, None))

    def unseal(token: bytes) -> bytes:
        raw = b64decode(token, validate=True)
        return aead.decrypt(raw[:12], raw[12:], None)

    return Rival("limit (AES-GCM + urandom + base64)", seal, unseal)


OPTIONAL: dict[str, Callable[[], Rival]] = {
    "joserfc": joserfc,
    "tink": tink,
    "aws_encryption_sdk": aws_encryption_sdk,
}


def all_rivals() -> tuple[list[Rival], list[str]]:
    """Every contestant that is installed, and the packages of those that are not."""
    found, missing = [sdk(), documented_envelope(), fernet()], []
    for package, make in OPTIONAL.items():
        try:
            importlib.import_module(package)
        except ImportError:
            missing.append(package.replace("_", "-"))
        else:
            found.append(make())
    return [*found, limit()], missing
