"""Reading a keyset document: strict JSON, then the signature, then the fields. Signing one.

Nothing of a document is used before its signature is verified: the fields are read from the very values that
were verified. `read` returns a `Keyset` that obeys `keyset.check`; pins and succession are the caller's next step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from mcpkeys import strictjson
from mcpkeys.encoding import b64u, parse_ms, unb64u
from mcpkeys.errors import KeysetMalformed
from mcpkeys.keyset import (
    KID,
    NAME,
    PUBLIC,
    SCHEMA,
    HistoryEntry,
    Key,
    Keyset,
    PastTtl,
    ReportKey,
    Rotation,
    RotationStep,
    Signer,
    StepEvidence,
    check,
    check_name,
    check_signer,
    forged,
    malformed,
    signed_bytes,
    to_json,
)
from mcpkeys.kms import MAX_URI_CHARS, Wrap
from mcpkeys.store import MAX_BODY_BYTES

T = TypeVar("T")
MAX_BLOB_BYTES = 8192
MAX_TEXT_CHARS = 1000
_YEAR_SECONDS = 366 * 86_400


def read(body: bytes, *, signers: Collection[str] = (), name: str | None = None) -> Keyset:
    """The keyset that these bytes hold.

    Args:
        body: at most 1 MiB of UTF-8.
        signers: the pinned public halves. Empty: the document is only checked against the signer it names
            itself, which proves that it is whole, not whose it is.
        name: the pinned keyset name, or None.

    Raises:
        KeysetMalformed: not a keyset document; the message names the field.
        KeysetMismatch: an authentic document under another name, or of a signer that is not pinned.
        KeysetForged: the signature does not verify.
    """
    try:
        document = strictjson.loads(body, max_bytes=MAX_BODY_BYTES)
    except strictjson.NotStrict as exc:
        raise KeysetMalformed(
            "this is not a keyset document",
            why=str(exc),
            next="put the last good document back; mcpkeys init makes a new keyset where there was none",
        ) from None
    if document.get("schema") != SCHEMA:
        raise malformed("schema", f"expected {SCHEMA!r}: another kind of file, or written by a newer mcpkeys")
    check_signer(verify_signature(document), signers)
    keyset = _Fields(document, "").keyset()
    check(keyset)
    check_name(keyset, name)
    return keyset


def verify_signature(document: Mapping[str, Any]) -> str:
    """Check the Ed25519 signature (RFC 8032) of a parsed document by the signer that it names.

    Returns that signer's public half, which proves nothing until it is compared with the pinned ones.
    Raises `KeysetForged` or `KeysetMalformed`.
    """
    signer = document.get("signer")
    claimed = signer.get("public") if isinstance(signer, dict) else None
    signature = document.get("signature")
    if not isinstance(claimed, str) or PUBLIC.fullmatch(claimed) is None:
        raise malformed("signer.public", "expected ed25519: and 43 characters of base64url")
    if not isinstance(signature, str):
        raise malformed("signature", "expected 86 characters of base64url")
    try:
        public = Ed25519PublicKey.from_public_bytes(unb64u(claimed.removeprefix("ed25519:")))
        public.verify(unb64u(signature), signed_bytes(document))
    except (ValueError, InvalidSignature):
        raise forged("the document was edited, damaged, cut short or signed by someone else") from None
    return claimed


def sign(keyset: Keyset, private: Ed25519PrivateKey) -> Keyset:
    """`keyset` with its signature. Raises ValueError where `private` is not the signer it names."""
    if public_of(private) != keyset.signer.public:
        raise ValueError("this private key is not the keyset's signer")
    check(keyset)
    return replace(keyset, signature=b64u(private.sign(signed_bytes(to_json(keyset)))))


def public_of(private: Ed25519PrivateKey) -> str:
    """`ed25519:` + 43 characters: what servers pin."""
    return "ed25519:" + b64u(private.public_key().public_bytes_raw())


class _Fields:
    """One JSON object being read: every field is taken once, and none may be left over."""

    def __init__(self, value: object, at: str) -> None:
        if not isinstance(value, dict):
            raise malformed(at or "(document)", "expected an object")
        self._left: dict[str, Any] = dict(value)
        self._at = at

    def _path(self, name: str) -> str:
        return f"{self._at}.{name}" if self._at else name

    def take(self, name: str) -> Any:
        if name not in self._left:
            raise malformed(self._path(name), "missing")
        return self._left.pop(name)

    def done(self) -> None:
        if self._left:
            raise malformed(self._path(sorted(self._left)[0][:40]), "unknown field")

    def text(self, name: str, pattern: Any = None, *, max_chars: int = MAX_TEXT_CHARS) -> str:
        value = self.take(name)
        if not isinstance(value, str) or len(value) > max_chars:
            raise malformed(self._path(name), f"expected a string of at most {max_chars} characters")
        if pattern is not None and pattern.fullmatch(value) is None:
            raise malformed(self._path(name), "not of the expected shape")
        return value

    def integer(self, name: str, low: int, high: int) -> int:
        value = self.take(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise malformed(self._path(name), f"expected an integer from {low} to {high:,}")
        return value

    def optional_integer(self, name: str, low: int, high: int) -> int | None:
        return self.integer(name, low, high) if self._left.get(name, 0) is not None else self.take(name)

    def time(self, name: str) -> int:
        try:
            return parse_ms(self.text(name))
        except ValueError:
            raise malformed(self._path(name), "expected a time such as 2026-11-29T22:51:00.123Z") from None

    def choice(self, name: str, allowed: Collection[Any]) -> Any:
        value = self.take(name)
        # Types too: True == 1 in Python, not in JSON.
        if not any(value == choice and type(value) is type(choice) for choice in allowed):
            raise malformed(self._path(name), f"expected one of {', '.join(map(repr, allowed))}")
        return value

    def array(self, name: str, item: Callable[[object, str], T], *, max_items: int) -> tuple[T, ...]:
        value = self.take(name)
        if not isinstance(value, list) or len(value) > max_items:
            raise malformed(self._path(name), f"expected an array of at most {max_items:,} items")
        return tuple(item(entry, f"{self._path(name)}[{i}]") for i, entry in enumerate(value))

    def keyset(self) -> Keyset:
        self.take("schema")
        keyset = Keyset(
            name=self.text("name", NAME),
            audience=self.text("audience", max_chars=255),
            ttl_seconds=self.integer("ttl_seconds", 1, 10 * _YEAR_SECONDS),
            skew_seconds=self.integer("skew_seconds", 0, 86_400),
            refresh_seconds=self.integer("refresh_seconds", 1, 86_400),
            max_stale_seconds=self.optional_integer("max_stale_seconds", 1, _YEAR_SECONDS),
            max_token_chars=self.integer("max_token_chars", 256, 4 * 1024 * 1024),
            evidence=self.choice("evidence", ("reports", "attest")),
            generation=self.integer("generation", 1, strictjson.MAX_INTEGER),
            previous=self._optional_text("previous"),
            keks=self.array("keks", _uri, max_items=8),
            sign_keks=self.array("sign_keks", _uri, max_items=8),
            keys=self.array("keys", _key, max_items=8192),
            report_key=_report_key(self.take("report_key"), self._path("report_key")),
            rotation=self._rotation(),
            past_ttls=self.array("past_ttls", _past_ttl, max_items=16),
            history=self.array("history", _history, max_items=100),
            signer=_signer(self.take("signer"), self._path("signer")),
            signature=self.text("signature", max_chars=86),
        )
        self.done()
        return keyset

    def _optional_text(self, name: str) -> str | None:
        return self.text(name, max_chars=71) if self._left.get(name, "") is not None else self.take(name)

    def _rotation(self) -> Rotation | None:
        value = self.take("rotation")
        return None if value is None else _rotation(value, self._path("rotation"))


def _text_item(value: object, at: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT_CHARS:
        raise malformed(at, f"expected a string of at most {MAX_TEXT_CHARS} characters")
    return value


def _uri(value: object, at: str) -> str:
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= MAX_URI_CHARS
        or not value.isascii()
        or not value.isprintable()
    ):
        raise malformed(at, "expected a KEK URI")
    return value


def _wrap(value: object, at: str) -> Wrap:
    fields = _Fields(value, at)
    kek = _uri(fields.take("kek"), f"{at}.kek")
    version = fields.text("version", max_chars=255)
    text = fields.text("blob", max_chars=2 * MAX_BLOB_BYTES)
    fields.done()
    try:
        blob = unb64u(text)
    except ValueError:
        raise malformed(f"{at}.blob", "expected base64url without padding") from None
    if not 1 <= len(blob) <= MAX_BLOB_BYTES:
        raise malformed(f"{at}.blob", f"expected 1 to {MAX_BLOB_BYTES} bytes")
    return Wrap(kek, version, blob)


def _key(value: object, at: str) -> Key:
    fields = _Fields(value, at)
    key = Key(
        kid=fields.text("kid", KID),
        state=fields.choice("state", ("minting", "verifying", "retired")),
        created_at=fields.time("created_at"),
        state_since=fields.time("state_since"),
        wrapped=fields.array("wrapped", _wrap, max_items=8),
    )
    fields.done()
    return key


def _report_key(value: object, at: str) -> ReportKey:
    fields = _Fields(value, at)
    key = ReportKey(fields.text("kid", KID), fields.array("wrapped", _wrap, max_items=8))
    fields.done()
    return key


def _signer(value: object, at: str) -> Signer:
    fields = _Fields(value, at)
    signer = Signer(fields.text("public", PUBLIC), fields.text("kid", KID), fields.array("wrapped", _wrap, max_items=8))
    fields.done()
    return signer


def _past_ttl(value: object, at: str) -> PastTtl:
    fields = _Fields(value, at)
    past = PastTtl(fields.integer("ttl_seconds", 1, 10 * _YEAR_SECONDS), fields.time("until"))
    fields.done()
    return past


def _history(value: object, at: str) -> HistoryEntry:
    fields = _Fields(value, at)
    entry = HistoryEntry(
        at=fields.time("at"),
        who=fields.text("who"),
        what=fields.text("what"),
        generation=fields.integer("generation", 1, strictjson.MAX_INTEGER),
        reason=fields.text("reason"),
        overrides=fields.array("overrides", _text_item, max_items=4096),
    )
    fields.done()
    return entry


def _step(value: object, at: str) -> RotationStep:
    fields = _Fields(value, at)
    phase = fields.choice("phase", (1, 2, 3, "rolling_back"))
    entered_at = fields.time("entered_at")
    inner = _Fields(fields.take("evidence"), f"{at}.evidence")
    evidence = StepEvidence(
        kind=inner.choice("kind", ("reports", "attest", "none")),
        confirmed=inner.array("confirmed", _text_item, max_items=4096),
        missing=inner.array("missing", _text_item, max_items=4096),
        proven_gone=inner.array("proven_gone", _text_item, max_items=4096),
        word=inner.text("word"),
    )
    inner.done()
    fields.done()
    return RotationStep(phase, entered_at, evidence)


def _rotation(value: object, at: str) -> Rotation:
    fields = _Fields(value, at)
    rotation = Rotation(
        id=fields.text("id", KID),
        phase=fields.choice("phase", (1, 2, 3, "rolling_back")),
        ended=fields.choice("ended", (None, "done", "rolled_back", "emergency")),
        from_kid=fields.text("from", KID),
        to_kid=fields.text("to", KID),
        roster=fields.array("roster", _text_item, max_items=4096),
        expect=fields.optional_integer("expect", 0, 1_000_000),
        steps=fields.array("steps", _step, max_items=64),
    )
    fields.done()
    return rotation
