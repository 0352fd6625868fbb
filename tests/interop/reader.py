"""An independent reader of mk1, written from docs/token-format.md and docs/keyset.md.

It shares no code with the package: AES, AES-GCM, Ed25519 and scrypt come from `cryptography`, HKDF and HMAC from the
standard library's `hmac`, base64 from `base64`. What it reads in tests/vectors another language could read likewise.
"""

import base64
import hmac
import json
import re

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt


def b64u(text):
    """Canonical unpadded base64url, or ValueError."""
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if base64.urlsafe_b64encode(data).decode().rstrip("=") != text:
        raise ValueError("not canonical")
    return data


def hkdf(secret, info, count):
    """RFC 5869, no salt, at most 32 bytes."""
    return hmac.digest(hmac.digest(bytes(32), secret, "sha256"), info + b"\x01", "sha256")[:count]


def xaes_key(data_key, keyset):
    return hkdf(data_key, b"mcpkeys/mk1\x00" + keyset.encode(), 32)


def derived(key, prefix):
    """The AES-256-GCM key of XAES-256-GCM (C2SP) for the first half of its nonce."""
    encrypt = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update  # noqa: S305
    first = int.from_bytes(encrypt(bytes(16)), "big") << 1
    k1 = first ^ ((1 << 128) + 0x87 if first >> 128 else 0)
    blocks = [int.from_bytes(b"\x00%cX\x00" % i + prefix, "big") ^ k1 for i in (1, 2)]
    return AESGCM(b"".join(encrypt(block.to_bytes(16, "big")) for block in blocks))


def open_token(text, *, keyset, keys, limit):
    """The payload, or the reason for which it is refused. `keys`: kid -> (state, data key or None)."""
    if not 70 <= len(text) <= limit or not re.match(r"mk1\.[A-Za-z0-9_-]{28}", text):
        return "malformed"
    state, data_key = keys.get(text[4:16], (None, None))
    if state == "retired":
        return "retired key"
    if data_key is None:
        return "unknown key"
    try:
        sealed = b64u(text[32:])
    except ValueError:
        return "malformed"
    try:
        aead = derived(xaes_key(data_key, keyset), b64u(text[16:32]))
        return aead.decrypt(sealed[:12], sealed[12:], text[:32].encode())
    except InvalidTag:
        return "seal"


def canonical(value):
    """RFC 8785 for documents without floats whose names are ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def signed_bytes(document):
    return b"mcpkeys/keyset/1\x00" + canonical({k: v for k, v in document.items() if k != "signature"})


def verify_keyset(text, signer):
    """Whether the pinned signer signed this document."""
    document = json.loads(text)
    try:
        public = Ed25519PublicKey.from_public_bytes(b64u(signer.removeprefix("ed25519:")))
        public.verify(b64u(document["signature"]), signed_bytes(document))
    except (InvalidSignature, ValueError):
        return False
    return document["signer"]["public"] == signer


def report_mac(text, key):
    """(the mac that it carries or None, the mac that it should carry)."""
    value = json.loads(text)
    carried = value.pop("mac", None)
    mac = hmac.digest(key, b"mcpkeys/report/1\x00" + canonical(value), "sha256")
    return carried, base64.urlsafe_b64encode(mac).decode().rstrip("=")


def open_bundle(text, passphrase):
    """What the bundle holds. Raises InvalidTag."""
    head = json.loads(text)
    sealed, kdf = b64u(head.pop("sealed")), head["scrypt"]
    key = Scrypt(salt=b64u(kdf["salt"]), length=32, n=kdf["n"], r=kdf["r"], p=kdf["p"]).derive(passphrase.encode())
    return json.loads(AESGCM(key).decrypt(b64u(head["nonce"]), sealed, b"mcpkeys/bundle/1\x00" + canonical(head)))


def context_bytes(purpose, keyset, kid):
    name = keyset + ":"
    return f"mcpkeys1:{purpose:6}{name:{-(-len(name) // 3) * 3}}{kid}".encode()
