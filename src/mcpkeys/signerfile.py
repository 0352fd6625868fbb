"""A signer that is prepared but does not sign yet, as a file: its public half, its wrapped private half.

`mcpkeys set --new-signer FILE` has two stages, because servers must pin both signers before the first document comes
that only the new one signed (docs/adr/0040-new-signer.md). Between the stages the new signer lives in this file. It
holds no secret: the private half is wrapped under purpose `sign`. It is signed by the signer that is to be replaced.
"""

from __future__ import annotations

import json
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from mcpkeys import strictjson
from mcpkeys.document import public_of
from mcpkeys.encoding import b64u, format_ms, unb64u
from mcpkeys.errors import SettingError
from mcpkeys.keyset import KID, MAX_KEKS, PUBLIC, Keyset, Signer
from mcpkeys.kms import Wrap

SCHEMA = "mcpkeys.signer/1"
LABEL = b"mcpkeys/signer/1\x00"
MAX_BYTES = 256 << 10


def dumps(keyset: Keyset, signer: Signer, by: Ed25519PrivateKey, *, at: int) -> bytes:
    """The file's bytes. `by` signs: the keyset's present signer. `at`: milliseconds."""
    value: dict[str, Any] = {
        "schema": SCHEMA,
        "keyset": keyset.name,
        "created_at": format_ms(at),
        "public": signer.public,
        "kid": signer.kid,
        "wrapped": [{"kek": wrap.kek, "version": wrap.version, "blob": b64u(wrap.blob)} for wrap in signer.wrapped],
        "by": public_of(by),
    }
    value["signature"] = b64u(by.sign(LABEL + strictjson.canonical(value)))
    return json.dumps(value, indent=2).encode() + b"\n"


def loads(body: bytes, keyset: Keyset) -> Signer:
    """The signer in a file that was prepared for this keyset and is signed by its present signer.

    Raises `SettingError`: not such a file, of another keyset, of another signer, or altered.
    """
    try:
        value = strictjson.loads(body, max_bytes=MAX_BYTES)
        signature = unb64u(str(value.pop("signature")))
        if value["schema"] != SCHEMA or PUBLIC.fullmatch(value["public"]) is None or not KID.fullmatch(value["kid"]):
            raise ValueError
        wrapped = tuple(Wrap(str(wrap["kek"]), str(wrap["version"]), unb64u(wrap["blob"])) for wrap in value["wrapped"])
        if not 1 <= len(wrapped) <= MAX_KEKS:
            raise ValueError
        name, by = value["keyset"], value["by"]
    except (strictjson.NotStrict, KeyError, TypeError, ValueError, AttributeError):
        raise _wrong("it is no file that mcpkeys set --new-signer made") from None
    if name != keyset.name:
        raise _wrong(f"it was made for the keyset {name!r:.80}")
    if by != keyset.signer.public:
        raise _wrong("it was prepared under another signer than the one that signs now")
    try:
        public = Ed25519PublicKey.from_public_bytes(unb64u(keyset.signer.public.removeprefix("ed25519:")))
        public.verify(signature, LABEL + strictjson.canonical(value))
    except (ValueError, InvalidSignature):
        raise _wrong("its signature does not verify: it was altered") from None
    return Signer(value["public"], value["kid"], wrapped)


def public_in(body: bytes) -> str:
    """The public half that a file claims, or empty: only to tell that this signer signs already."""
    try:
        return str(strictjson.loads(body, max_bytes=MAX_BYTES).get("public", ""))
    except strictjson.NotStrict:
        return ""


def _wrong(why: str) -> SettingError:
    return SettingError(
        "this file does not hold a prepared signer of this keyset",
        why=why,
        next="prepare one anew: mcpkeys set --new-signer ANOTHER-FILE",
        code="signer-file",
    )
