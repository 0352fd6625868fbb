"""The keyset: the signed document that lists a service's data keys and their states. Pure, no I/O.

Follow a document from top to bottom: the model (`Keyset`), reading it (`read`: strict JSON, then the signature,
then the fields), writing it (`to_json`, `dumps`, `digest`), the rules it obeys by itself (`check`) and the rules
that bind it to what an instance has seen before (`check_succession`).

Times are integer milliseconds since the epoch in memory, RFC 3339 on disk. Nothing in it is secret.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from mcpkeys import strictjson
from mcpkeys.encoding import b64u, format_ms
from mcpkeys.errors import KeysetForged, KeysetMalformed, KeysetMismatch, KeysetRollback
from mcpkeys.kms import Wrap, identity
from mcpkeys.store import MAX_BODY_BYTES

SCHEMA = "mcpkeys.keyset/1"
SIGNATURE_LABEL = b"mcpkeys/keyset/1\x00"
MAX_LIVE_KEYS = 128
MAX_KEKS = 8
MAX_HISTORY = 100
MAX_ROSTER = 4096
DEFAULT_TTL_SECONDS = 600
DEFAULT_SKEW_SECONDS = 60
DEFAULT_REFRESH_SECONDS = 30
DEFAULT_MAX_TOKEN_CHARS = 1_048_576
RETIRED_WRAPS_KEPT_SECONDS = 30 * 86_400
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
KID = re.compile(r"[A-Za-z0-9_-]{12}")
PUBLIC = re.compile(r"ed25519:[A-Za-z0-9_-]{43}")

State = Literal["minting", "verifying", "retired"]
Phase = Literal[1, 2, 3, "rolling_back"]
Ended = Literal["done", "rolled_back", "emergency"]
Evidence = Literal["reports", "attest"]


@dataclass(frozen=True, slots=True)
class Key:
    """One data key of the keyset.

    Attributes:
        kid: 12 characters of base64url.
        state: `minting` seals and unseals, `verifying` only unseals, `retired` is loaded by no codec.
        created_at, state_since: milliseconds.
        wrapped: one entry per KEK; empty for a retired key whose wraps were dropped.
    """

    kid: str
    state: State
    created_at: int
    state_since: int
    wrapped: tuple[Wrap, ...]


@dataclass(frozen=True, slots=True)
class Signer:
    """The key that signs the keyset: `public` is `ed25519:` + 43 characters, the private half is wrapped."""

    public: str
    kid: str
    wrapped: tuple[Wrap, ...]


@dataclass(frozen=True, slots=True)
class ReportKey:
    """The key under which instances authenticate their reports, wrapped under purpose `report`."""

    kid: str
    wrapped: tuple[Wrap, ...]


@dataclass(frozen=True, slots=True)
class StepEvidence:
    """On whose word a phase was entered.

    Attributes:
        kind: `reports`, `attest`, or `none` for a step that waits for nobody.
        confirmed: the instances whose reports carried the step.
        missing: the instances named by `--allow-missing`.
        proven_gone: the instances that max_stale proves harmless.
        word: the operator's attestation, or empty.
    """

    kind: Literal["reports", "attest", "none"] = "none"
    confirmed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    proven_gone: tuple[str, ...] = ()
    word: str = ""


@dataclass(frozen=True, slots=True)
class RotationStep:
    """One phase of a rotation, when it was entered (milliseconds), and on what evidence."""

    phase: Phase
    entered_at: int
    evidence: StepEvidence


@dataclass(frozen=True, slots=True)
class Rotation:
    """The running or last rotation.

    Attributes:
        id: 12 characters of base64url, random.
        phase: the phase it is in, or ended in.
        ended: None while it runs.
        from_kid, to_kid: OLD and NEW.
        roster: the instance ids that were there when it began.
        expect: the operator's `--expect N`, or None.
        steps: every phase entered, oldest first.
    """

    id: str
    phase: Phase
    ended: Ended | None
    from_kid: str
    to_kid: str
    roster: tuple[str, ...]
    expect: int | None
    steps: tuple[RotationStep, ...]


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """Who did what, when (milliseconds), on which generation, and which rule was overridden for which reason."""

    at: int
    who: str
    what: str
    generation: int
    reason: str = ""
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PastTtl:
    """A ttl that the keyset had before: servers take a ttl at start, so an old one lives on until they restart."""

    ttl_seconds: int
    until: int


@dataclass(frozen=True, slots=True)
class Keyset:
    """One generation of a keyset. See docs/keyset.md for each field.

    Attributes:
        max_stale_seconds: None is off.
        previous: digest of the document that this one follows, None for the first.
        keks: the URIs by which every live key must be wrapped.
        sign_keks: the URIs any one of which unwraps the signer.
        signature: 86 characters of base64url; empty while unsigned.
    """

    name: str
    audience: str
    ttl_seconds: int
    skew_seconds: int
    refresh_seconds: int
    max_stale_seconds: int | None
    max_token_chars: int
    evidence: Evidence
    generation: int
    previous: str | None
    keks: tuple[str, ...]
    sign_keks: tuple[str, ...]
    keys: tuple[Key, ...]
    report_key: ReportKey
    rotation: Rotation | None
    past_ttls: tuple[PastTtl, ...]
    history: tuple[HistoryEntry, ...]
    signer: Signer
    signature: str = ""

    def key(self, kid: str) -> Key | None:
        """The key with this kid, or None."""
        return next((key for key in self.keys if key.kid == kid), None)

    @property
    def minting(self) -> Key:
        """The one key that seals."""
        return next(key for key in self.keys if key.state == "minting")

    @property
    def live(self) -> tuple[Key, ...]:
        """Minting and verifying keys, in the document's order."""
        return tuple(key for key in self.keys if key.state != "retired")

    @property
    def retired(self) -> frozenset[str]:
        """The kids that never return."""
        return frozenset(key.kid for key in self.keys if key.state == "retired")

    @property
    def running(self) -> Rotation | None:
        """The rotation that has not ended, or None."""
        return self.rotation if self.rotation is not None and self.rotation.ended is None else None


# --- writing -----------------------------------------------------------------------------------------------


def _wraps(wrapped: tuple[Wrap, ...]) -> list[dict[str, Any]]:
    return [{"kek": wrap.kek, "version": wrap.version, "blob": b64u(wrap.blob)} for wrap in wrapped]


def _evidence(evidence: StepEvidence) -> dict[str, Any]:
    return {
        "kind": evidence.kind,
        "confirmed": list(evidence.confirmed),
        "missing": list(evidence.missing),
        "proven_gone": list(evidence.proven_gone),
        "word": evidence.word,
    }


def _rotation(rotation: Rotation) -> dict[str, Any]:
    return {
        "id": rotation.id,
        "phase": rotation.phase,
        "ended": rotation.ended,
        "from": rotation.from_kid,
        "to": rotation.to_kid,
        "roster": list(rotation.roster),
        "expect": rotation.expect,
        "steps": [
            {"phase": step.phase, "entered_at": format_ms(step.entered_at), "evidence": _evidence(step.evidence)}
            for step in rotation.steps
        ],
    }


def to_json(keyset: Keyset) -> dict[str, Any]:
    """The document as JSON values, in the order a person reads it."""
    return {
        "schema": SCHEMA,
        "name": keyset.name,
        "audience": keyset.audience,
        "generation": keyset.generation,
        "previous": keyset.previous,
        "ttl_seconds": keyset.ttl_seconds,
        "skew_seconds": keyset.skew_seconds,
        "refresh_seconds": keyset.refresh_seconds,
        "max_stale_seconds": keyset.max_stale_seconds,
        "max_token_chars": keyset.max_token_chars,
        "evidence": keyset.evidence,
        "keks": list(keyset.keks),
        "sign_keks": list(keyset.sign_keks),
        "keys": [
            {
                "kid": key.kid,
                "state": key.state,
                "created_at": format_ms(key.created_at),
                "state_since": format_ms(key.state_since),
                "wrapped": _wraps(key.wrapped),
            }
            for key in keyset.keys
        ],
        "report_key": {"kid": keyset.report_key.kid, "wrapped": _wraps(keyset.report_key.wrapped)},
        "rotation": None if keyset.rotation is None else _rotation(keyset.rotation),
        "past_ttls": [{"ttl_seconds": past.ttl_seconds, "until": format_ms(past.until)} for past in keyset.past_ttls],
        "history": [
            {
                "at": format_ms(entry.at),
                "who": entry.who,
                "what": entry.what,
                "generation": entry.generation,
                "reason": entry.reason,
                "overrides": list(entry.overrides),
            }
            for entry in keyset.history
        ],
        "signer": {
            "public": keyset.signer.public,
            "kid": keyset.signer.kid,
            "wrapped": _wraps(keyset.signer.wrapped),
        },
        "signature": keyset.signature,
    }


def dumps(keyset: Keyset) -> bytes:
    """The document's bytes, readable by a person: two spaces, one field a line, a line feed at the end."""
    return json.dumps(to_json(keyset), indent=2, ensure_ascii=False).encode() + b"\n"


def digest(keyset: Keyset) -> str:
    """`sha256:` + 64 hex digits over the RFC 8785 form, signature included."""
    return "sha256:" + hashlib.sha256(strictjson.canonical(to_json(keyset))).hexdigest()


def signed_bytes(document: Mapping[str, Any]) -> bytes:
    """What the signature covers: the label and the RFC 8785 form without `signature`."""
    return SIGNATURE_LABEL + strictjson.canonical({k: v for k, v in document.items() if k != "signature"})


# --- the rules a document obeys by itself --------------------------------------------------------------------


def check(keyset: Keyset) -> None:
    """Refuse a document whose parts contradict each other. Raises `KeysetMalformed` naming the field.

    The caps, exactly one minting key, distinct kids, every live key wrapped, a rotation that names keys there are.
    """

    def require(condition: bool, field: str, why: str) -> None:
        if not condition:
            raise malformed(field, why)

    require(sum(key.state == "minting" for key in keyset.keys) == 1, "keys", "exactly one key must be minting")
    require(len(keyset.live) <= MAX_LIVE_KEYS, "keys", f"more than {MAX_LIVE_KEYS} live keys")
    kids = [key.kid for key in keyset.keys] + [keyset.signer.kid, keyset.report_key.kid]
    require(len(set(kids)) == len(kids), "keys", "a kid stands twice")
    require(1 <= len(keyset.keks) <= MAX_KEKS, "keks", f"1 to {MAX_KEKS} KEKs")
    require(1 <= len(keyset.sign_keks) <= MAX_KEKS, "sign_keks", f"1 to {MAX_KEKS} KEKs")
    for field, keks in (("keks", keyset.keks), ("sign_keks", keyset.sign_keks)):
        require(len({identity(kek) for kek in keks}) == len(keks), field, "a KEK stands twice")
    named = [(f"keys[{i}].wrapped", key.wrapped, key.state == "retired") for i, key in enumerate(keyset.keys)]
    named += [
        ("report_key.wrapped", keyset.report_key.wrapped, False),
        ("signer.wrapped", keyset.signer.wrapped, False),
    ]
    for field, wrapped, may_be_empty in named:
        require(bool(wrapped) or may_be_empty, field, "no wrapped form")
        require(len(wrapped) <= MAX_KEKS, field, f"more than {MAX_KEKS} wrapped forms")
        require(len({identity(wrap.kek) for wrap in wrapped}) == len(wrapped), field, "a KEK stands twice")
    require(len(keyset.history) <= MAX_HISTORY, "history", f"more than {MAX_HISTORY} entries")
    require(
        keyset.max_stale_seconds is None or keyset.max_stale_seconds > keyset.refresh_seconds,
        "max_stale_seconds",
        "must be longer than refresh_seconds",
    )
    rotation = keyset.rotation
    if rotation is not None:
        require(len(rotation.roster) <= MAX_ROSTER, "rotation.roster", f"more than {MAX_ROSTER} instances")
        require(bool(rotation.steps), "rotation.steps", "empty")
        if rotation.ended is None:
            old, new = keyset.key(rotation.from_kid), keyset.key(rotation.to_kid)
            require(old is not None and new is not None, "rotation", "names a key that is not in the keyset")
            assert old is not None
            assert new is not None
            want = ("minting", "verifying") if rotation.phase in (1, "rolling_back") else ("verifying", "minting")
            require((old.state, new.state) == want, "rotation.phase", "does not fit the states of its two keys")
            require(rotation.phase != 3, "rotation.phase", "a rotation in phase 3 has ended")


def malformed(field: str, why: str) -> KeysetMalformed:
    """The error for one field of a document."""
    return KeysetMalformed(
        f"the keyset's field {field} is wrong",
        why=why,
        next="restore the last good document: mcpkeys restore FILE, or your store's previous version",
    )


# --- the rules against what has been seen before ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """What an instance or operator remembers of the documents it accepted.

    Attributes:
        generation: the highest one; 0 for none.
        digest: that generation's digest; empty where only a number is pinned (`MCPKEYS_MIN_GENERATION`).
        retired: every kid that any accepted document called retired.
    """

    generation: int = 0
    digest: str = ""
    retired: frozenset[str] = frozenset()

    def after(self, keyset: Keyset) -> Seen:
        """What is remembered once `keyset` was accepted."""
        return Seen(keyset.generation, digest(keyset), self.retired | keyset.retired)


def check_succession(seen: Seen, keyset: Keyset) -> None:
    """Refuse the way back. Raises `KeysetRollback`.

    A lower generation than was seen, another document of the same generation, or a retired kid that is live again.
    """
    if keyset.generation < seen.generation:
        raise KeysetRollback(
            f"the stored keyset goes back to generation {keyset.generation} after {seen.generation} was seen",
            why="a backup was restored, or someone put back an old document",
            next="mcpkeys restore FILE signs it again above every generation seen",
        )
    if keyset.generation == seen.generation and seen.digest and digest(keyset) != seen.digest:
        raise KeysetRollback(
            f"another document of generation {keyset.generation} than the one already loaded",
            why="two histories of one keyset were signed",
            next="mcpkeys status shows who wrote last; mcpkeys restore FILE signs the right one above both",
        )
    returned = sorted(seen.retired & {key.kid for key in keyset.live})
    if returned:
        raise KeysetRollback(
            f"a retired key is live again: {', '.join(returned[:3])}",
            why="a retired kid never returns, it may have been burnt",
            next="mcpkeys restore FILE leaves retired keys retired",
        )


def check_name(keyset: Keyset, name: str | None) -> None:
    """Refuse an authentic document of another service. `name` None pins nothing. Raises `KeysetMismatch`."""
    if name is not None and keyset.name != name:
        raise KeysetMismatch(
            f"this keyset is named {keyset.name!r}, expected {name!r}",
            why="another service's keyset is stored at this URI, or MCPKEYS_NAME is wrong",
            next="correct MCPKEYS_NAME or MCPKEYS_KEYSET",
            code="keyset-name",
        )


def check_signer(public: str, signers: Collection[str]) -> None:
    """Refuse a signer that is not pinned. Empty `signers` pin nothing. Raises `KeysetMismatch`."""
    if signers and public not in signers:
        raise KeysetMismatch(
            f"this keyset is signed by {public}, which is not pinned",
            why=f"pinned: {', '.join(signers)}",
            next="if the signer was replaced on purpose, add it to MCPKEYS_SIGNERS; otherwise someone forged it",
            code="keyset-signer",
        )


def differing_fields(one: Mapping[str, Any], other: Mapping[str, Any], at: str = "") -> list[str]:
    """The dotted names of the fields in which two documents differ, signature aside."""
    found: list[str] = []
    for name in sorted(set(one) | set(other)):
        a, b, path = one.get(name), other.get(name), f"{at}{name}"
        if a == b or path == "signature":
            continue
        if isinstance(a, dict) and isinstance(b, dict):
            found += differing_fields(a, b, f"{path}.")
        elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            found += differing_fields(
                {f"[{i}]": x for i, x in enumerate(a)}, {f"[{i}]": x for i, x in enumerate(b)}, path
            )
        else:
            found.append(path)
    return found


def forged(why: str, next: str = "") -> KeysetForged:
    """The error for a signature that does not verify."""
    return KeysetForged(
        "the keyset's signature does not verify",
        why=why,
        next=next or "put the last good document back (mcpkeys history names it); never edit a keyset by hand",
    )


def with_history(keyset: Keyset, entry: HistoryEntry) -> Keyset:
    """`keyset` with one more entry; the oldest beyond 100 are dropped."""
    return replace(keyset, history=(*keyset.history, entry)[-MAX_HISTORY:])


__all__ = [
    "DEFAULT_MAX_TOKEN_CHARS",
    "DEFAULT_REFRESH_SECONDS",
    "DEFAULT_SKEW_SECONDS",
    "DEFAULT_TTL_SECONDS",
    "KID",
    "MAX_BODY_BYTES",
    "NAME",
    "PUBLIC",
    "SCHEMA",
    "HistoryEntry",
    "Key",
    "Keyset",
    "PastTtl",
    "ReportKey",
    "Rotation",
    "RotationStep",
    "Seen",
    "Signer",
    "StepEvidence",
    "check",
    "check_name",
    "check_signer",
    "check_succession",
    "differing_fields",
    "digest",
    "dumps",
    "signed_bytes",
    "to_json",
]
