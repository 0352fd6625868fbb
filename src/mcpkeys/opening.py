"""Opening a token to look at it: as the codec does, step by step, and without leaving a trace in the ring.

`Ring.open` answers with one word, counts uses and remembers derived keys; an inspection wants every step, must count
nothing, and may look into tokens of retired keys, which the codec refuses. A test holds the two against each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mcpkeys import sdktoken, token
from mcpkeys.encoding import unb64u
from mcpkeys.keyset import DEFAULT_MAX_TOKEN_CHARS
from mcpkeys.ring import Ring
from mcpkeys.sdktoken import SdkRing

Result = Literal["pass", "fail", "not_checked"]
KeyState = Literal["minting", "verifying", "retired", "unknown", "sdk"]

_SDK_FRONT = re.compile(r"v1\.[A-Za-z0-9_-]+", re.ASCII)
_SDK_MIN_CHARS = len(sdktoken.VERSION) + 43
_MAX_FRONTS = 4096


class Check(NamedTuple):
    """One check of the boundary.

    Attributes:
        name: which one, see docs/adr/0060-what-inspect-says-and-does-not.md.
        result: `pass`, `fail`, or `not_checked` where something was not given or an earlier step left nothing to check.
        detail: one line for a person; never the state, never key bytes. May hold text from the token.
        reason: the word that the boundary logs where this check fails; None where it raises instead.
    """

    name: str
    result: Result
    detail: str
    reason: str | None


class TokenKey(NamedTuple):
    """The key that a token names.

    Attributes:
        kid: 12 characters for `mk1`; 8 hex digits for the SDK's own tokens.
        state: what the ring says of it; `unknown` where it has no such key or there is no ring; `sdk`.
        generation: of the ring that says so; None without one.
        prefix: 16 characters, drawn by the process that minted; None for the SDK's tokens.
        state_since: milliseconds since the epoch, or None.
        usable: whether this ring can open with it.
    """

    kid: str
    state: KeyState
    generation: int | None
    prefix: str | None
    state_since: int | None
    usable: bool


class Opened(NamedTuple):
    """What came of a token. `payload` is None where it could not be opened."""

    checks: list[Check]
    key: TokenKey | None
    payload: bytes | None


# Made once: they say the same of every sound token.
_FORMAT = Check("format", "pass", "mk1", "malformed")
_ENCODING = Check("encoding", "pass", "canonical base64url", "malformed")
_SEAL = Check("seal", "pass", "the tag verifies", "seal")
_FORGED = Check("seal", "fail", "the tag does not verify: changed, cut, or another service's", "seal")
_UNREACHED = {
    name: Check(name, "not_checked", "not reached", reason)
    for name, reason in (("key", "unknown key"), ("encoding", "malformed"), ("seal", "seal"))
}


class Front(NamedTuple):
    """What a header tells: the key it names, the check of it, the derived key where there is one."""

    key: TokenKey
    check: Check
    aead: AESGCM | None
    aad: bytes

    def __repr__(self) -> str:
        return f"Front({self.key!r})"


Fronts = dict[str, Front]
"""By header, for callers that open many tokens of one ring. Holds derived keys; goes with the caller."""


def is_sdk_token(text: str) -> bool:
    """Whether the SDK's built-in codec may have minted this: `v1.` and base64url of at least 32 bytes."""
    return len(text) >= _SDK_MIN_CHARS and _SDK_FRONT.fullmatch(text) is not None


def open_token(text: str, ring: Ring | SdkRing | None, fronts: Fronts | None = None) -> Opened:
    """Open `text` by the ring's keys. Never raises, whatever the text.

    Args:
        ring: a codec's ring; an `SdkRing` for a server with the SDK's own codec; None without any keys.
    """
    sdk = ring if isinstance(ring, SdkRing) else None if ring is None else ring.sdk
    if text.startswith(sdktoken.VERSION) and (sdk is not None or ring is None):
        limit = ring.max_token_chars if isinstance(ring, Ring) else None
        return _open_sdk(text, sdk, limit)
    if isinstance(ring, SdkRing):
        detail = "an mk1 token, and this server has the SDK's own codec" if text.startswith(token.VERSION) else ""
        return Opened(
            [_malformed("format", detail or "does not begin with v1."), *_unopened("key", "seal")], None, None
        )
    return _open_mk1(text, ring, {} if fronts is None else fronts)


def _open_mk1(text: str, ring: Ring | None, fronts: Fronts) -> Opened:
    limit = DEFAULT_MAX_TOKEN_CHARS if ring is None else ring.max_token_chars
    head = text[: token.HEADER_CHARS]
    front = fronts.get(head)
    if front is None or not token.MIN_TOKEN_CHARS <= len(text) <= limit:
        fault = _format_fault(text, limit)
        if fault is not None:
            return Opened([_malformed("format", fault), *_unopened("key", "encoding", "seal")], None, None)
    if front is None:
        front = _front(head, ring)
        if len(fronts) >= _MAX_FRONTS:
            fronts.clear()
        fronts[head] = front
    key, key_check, aead, aad = front
    sealed = token.decode_body(text)
    if sealed is None or len(sealed) < token.NONCE_BYTES + token.TAG_BYTES:
        fault = "the body is not the one canonical spelling of base64url: damaged or cut"
        return Opened([_FORMAT, key_check, _malformed("encoding", fault), *_unopened("seal")], key, None)
    if aead is None:
        why = "no keys were given" if ring is None else "no key to open it with"
        return Opened([_FORMAT, key_check, _ENCODING, Check("seal", "not_checked", why, "seal")], key, None)
    try:
        payload = aead.decrypt(sealed[: token.NONCE_BYTES], sealed[token.NONCE_BYTES :], aad)
    except InvalidTag:
        return Opened([_FORMAT, key_check, _ENCODING, _FORGED], key, None)
    return Opened([_FORMAT, key_check, _ENCODING, _SEAL], key, payload)


def _front(head: str, ring: Ring | None) -> Front:
    """What the header alone tells."""
    key = _key(head, ring)
    aead = ring.keys[key.kid].derive(unb64u(head[16:])) if ring is not None and key.usable else None
    return Front(key, _key_check(key, ring), aead, head.encode())


def _format_fault(text: str, limit: int) -> str | None:
    size = len(text)
    if size > limit:
        return f"{size:,} characters, more than the limit of {limit:,}"
    if not text:
        return "an empty string"
    if not text.startswith(token.VERSION):
        if is_sdk_token(text):
            return "a token of the SDK's own codec, whose keys this ring does not have"
        return "does not begin with mk1."
    if size < token.MIN_TOKEN_CHARS:
        return f"{size} characters, cut short: a token has at least {token.MIN_TOKEN_CHARS}"
    if not token.is_header(text[: token.HEADER_CHARS]):
        return "its header is not mk1. and 28 characters of base64url"
    return None


def _key(head: str, ring: Ring | None) -> TokenKey:
    kid, prefix = head[4:16], head[16:]
    if ring is None:
        return TokenKey(kid, "unknown", None, prefix, None, False)
    found = ring.keys.get(kid)
    if found is None:
        return TokenKey(kid, "unknown", ring.generation, prefix, None, False)
    return TokenKey(kid, found.state, ring.generation, prefix, found.state_since, found.unwrapped)


def _key_check(key: TokenKey, ring: Ring | None) -> Check:
    if ring is None:
        return Check("key", "not_checked", f"{key.kid}; no keyset was given", "unknown key")
    if key.state == "unknown":
        return Check("key", "fail", f"{key.kid} is not in generation {ring.generation}", "unknown key")
    if key.state == "retired":
        return Check("key", "fail", f"{key.kid} is retired", "retired key")
    return Check("key", "pass", f"{key.kid} is {key.state} in generation {ring.generation}", "unknown key")


def _open_sdk(text: str, ring: SdkRing | None, limit: int | None) -> Opened:
    if limit is not None and len(text) > limit:
        fault = f"{len(text):,} characters, more than the limit of {limit:,}"
        return Opened([_malformed("format", fault), *_unopened("key", "seal")], None, None)
    try:
        raw = unb64u(text[len(sdktoken.VERSION) :])
    except ValueError:
        fault = "the body is not the one canonical spelling of base64url: damaged or cut"
        return Opened([_malformed("format", fault), *_unopened("key", "seal")], None, None)
    if len(raw) < 32:
        return Opened([_malformed("format", f"{len(raw)} bytes, cut short"), *_unopened("key", "seal")], None, None)
    kid = raw[:4].hex()
    known = ring is not None and kid in ring.kids
    key = TokenKey(kid, "sdk" if known else "unknown", None, None, None, known)
    checks = [Check("format", "pass", "v1, the SDK's own codec", "malformed")]
    if ring is None:
        checks.append(Check("key", "not_checked", f"{kid}; the SDK's keys were not given", "unknown key"))
        return Opened([*checks, Check("seal", "not_checked", "no keys were given", "seal")], key, None)
    if not known:
        checks.append(Check("key", "fail", f"{kid} is none of the SDK keys given", "unknown key"))
        return Opened([*checks, Check("seal", "not_checked", "no key to open it with", "seal")], key, None)
    checks.append(Check("key", "pass", f"{kid} is one of the SDK keys given", "unknown key"))
    payload = ring.open(text)
    if isinstance(payload, str):
        checks.append(_FORGED)
        return Opened(checks, key, None)
    checks.append(_SEAL)
    return Opened(checks, key, payload)


def _malformed(name: str, detail: str) -> Check:
    return Check(name, "fail", detail, "malformed")


def _unopened(*names: str) -> Iterator[Check]:
    return (_UNREACHED[name] for name in names)
