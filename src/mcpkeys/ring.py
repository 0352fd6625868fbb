"""The ring: what an instance holds in memory, an immutable snapshot of one verified generation.

A ring is built from a keyset and its unwrapped data keys, used by the codec, and swapped whole for the next one.
The derived keys it has opened tokens with live in it and go with it, or a burnt key would live on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import time

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from mcpkeys import sdktoken, token
from mcpkeys.encoding import b64u, unb64u
from mcpkeys.keyset import DEFAULT_MAX_TOKEN_CHARS, Keyset, State, digest
from mcpkeys.keyuse import KeyUse
from mcpkeys.sdktoken import SdkRing
from mcpkeys.token import LONG, decode_body

Refusal = tuple[str, str]
"""Why a token is refused, and the state of the key that it names; `none` where it names no key of the keyset, or
where that was not even looked at."""

MALFORMED: Refusal = ("malformed", "none")
UNKNOWN: Refusal = ("unknown key", "none")

MAX_OPENERS = 4096
"""Derived keys a ring remembers: one per key and per process that minted. The oldest goes first."""


class RingKey:
    """One key of a ring: its public facts, and the key itself where it was unwrapped. No `repr` of it, no pickle."""

    __slots__ = ("_xaes", "created_at", "kid", "state", "state_since", "use")

    def __init__(
        self,
        kid: str,
        state: State,
        created_at: int,
        state_since: int,
        xaes: token.XaesKey | None,
        use: KeyUse,
    ) -> None:
        self.kid = kid
        self.state = state
        self.created_at = created_at
        self.state_since = state_since
        self.use = use
        self._xaes = xaes

    @property
    def unwrapped(self) -> bool:
        """Whether this ring can use the key."""
        return self._xaes is not None

    def derive(self, prefix: bytes) -> AESGCM:
        """The AES-256-GCM key for a 12-byte prefix. Raises ValueError where the key is not unwrapped."""
        if self._xaes is None:
            raise ValueError("this key is not unwrapped here")
        return self._xaes.derive(prefix)

    def __repr__(self) -> str:
        return f"RingKey(kid={self.kid!r}, state={self.state!r}, unwrapped={self.unwrapped})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("keys are never pickled or copied")


class Opener:
    """A derived key by which a tag verified already: what a token's header is looked up to."""

    __slots__ = ("_aad", "_decrypt", "_max_chars", "_state", "_unseals", "_use")

    def __init__(self, header: str, aead: AESGCM, key: RingKey, max_chars: int) -> None:
        self._aad = header.encode()
        self._decrypt = aead.decrypt
        self._max_chars = max_chars
        self._use = key.use
        self._state = key.state
        self._unseals = key.use.counts(key.state).unseals

    def attempt(self, text: str) -> bytes | Refusal:
        """The payload of a token that begins with the header, or why it is refused: `malformed` or `seal`."""
        if len(text) > self._max_chars:
            return MALFORMED
        sealed = decode_body(text)
        if sealed is None or len(sealed) < 28:
            return "malformed", self._state
        try:
            # A view where a copy costs more than making one.
            rest = sealed[12:] if len(sealed) < LONG else memoryview(sealed)[12:]
            payload = self._decrypt(sealed[:12], rest, self._aad)
        except InvalidTag:
            return "seal", self._state
        self._use.last_unseal = time()
        next(self._unseals)
        return payload

    def note(self) -> None:
        """A token was opened, before there was this."""
        self._use.last_unseal = time()
        next(self._unseals)

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("keys are never pickled or copied")


class Minter:
    """What sealing needs, prepared: header, derived key, limit. One per ring and prefix.

    Attributes:
        due: the count of the key's seals at which the codec does its slower bookkeeping again.
    """

    __slots__ = ("aad", "due", "encrypt", "header", "kid", "max_payload", "seals", "use")

    def __init__(self, header: str, key: RingKey, aead: AESGCM, max_payload: int) -> None:
        self.due = 0
        self.header = header
        self.aad = header.encode()
        self.kid = key.kid
        self.encrypt = aead.encrypt
        self.use = key.use
        self.seals = key.use.counts(key.state).seals
        self.max_payload = max_payload

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("keys are never pickled or copied")


class Ring:
    """One generation in memory.

    Attributes:
        name: the keyset's name; empty for `EnvelopeCodec.from_secrets`.
        keyset: the verified document; None for `from_secrets`.
        generation, digest: of that document; 0 and "".
        keys: kid -> key, retired ones included; only `unwrapped` ones can be used.
        minting: the kid that seals, or None where its key could not be unwrapped.
        sdk: the SDK's own keys, for migration; or None.
        max_token_chars: longer tokens are refused before any work.
        openers: header -> what opened a token under it.
    """

    __slots__ = ("digest", "generation", "keys", "keyset", "max_token_chars", "minting", "name", "openers", "sdk")

    def __init__(
        self,
        *,
        name: str,
        keys: Sequence[RingKey],
        keyset: Keyset | None = None,
        max_token_chars: int = DEFAULT_MAX_TOKEN_CHARS,
        sdk: SdkRing | None = None,
    ) -> None:
        self.name = name
        self.keyset = keyset
        self.generation = 0 if keyset is None else keyset.generation
        self.digest = "" if keyset is None else digest(keyset)
        self.keys: Mapping[str, RingKey] = {key.kid: key for key in keys}
        self.minting = next((key.kid for key in keys if key.state == "minting" and key.unwrapped), None)
        self.max_token_chars = max_token_chars
        self.sdk = sdk
        self.openers: dict[str, Opener] = {}

    @classmethod
    def from_keyset(
        cls,
        keyset: Keyset,
        data_keys: Mapping[str, bytes | token.XaesKey],
        *,
        uses: dict[str, KeyUse] | None = None,
        sdk: SdkRing | None = None,
    ) -> Ring:
        """The ring of a verified keyset and those of its data keys that were unwrapped.

        `data_keys` holds 32 bytes by kid, or what `token.xaes_key` made of them already.
        `uses` carries what was noted of each key over to the new ring, and gains the new keys.
        Raises ValueError for a data key of another length.
        """
        uses = {} if uses is None else uses
        keys = [
            RingKey(
                key.kid,
                key.state,
                key.created_at,
                key.state_since,
                _xaes(data_keys.get(key.kid), keyset.name),
                uses.setdefault(key.kid, KeyUse()),
            )
            for key in keyset.keys
        ]
        return cls(name=keyset.name, keys=keys, keyset=keyset, max_token_chars=keyset.max_token_chars, sdk=sdk)

    @classmethod
    def from_secrets(cls, keys: Sequence[bytes | bytearray | str], *, now: float) -> Ring:
        """The ring of the SDK's raw `keys=[...]`: the first seals, all unseal.

        data key = HKDF-SHA256(secret, info `mcpkeys/secret/key`, 32 bytes), kid = base64url of
        HKDF-SHA256(secret, info `mcpkeys/secret/kid`, 9 bytes), keyset name empty. Raises as `sdktoken.secret_bytes`.
        """
        made: list[RingKey] = []
        for i, secret in enumerate(sdktoken.secret_bytes(keys)):
            data_key = HKDF(SHA256(), 32, salt=None, info=b"mcpkeys/secret/key").derive(secret)
            kid = b64u(HKDF(SHA256(), 9, salt=None, info=b"mcpkeys/secret/kid").derive(secret))
            state: State = "verifying" if i else "minting"
            xaes = token.xaes_key(data_key, "")
            made.append(RingKey(kid, state, int(now * 1000), int(now * 1000), xaes, KeyUse()))
        return cls(name="", keys=made)

    def minter(self, prefix: bytes) -> Minter | None:
        """What sealing under a process's 12-byte prefix needs; None where this ring cannot mint."""
        if self.minting is None:
            return None
        key = self.keys[self.minting]
        limit = token.max_payload(self.max_token_chars)
        return Minter(token.header(key.kid, prefix), key, key.derive(prefix), limit)

    def attempt_first(self, text: str, key: RingKey) -> bytes | Refusal:
        """The payload of a token whose header names this key and opened nothing yet, or why it is refused.

        `text` has a header and a length within the bounds. Only the tag makes its header known: those are what
        `openers` holds. Never raises.
        """
        if key.state == "retired":
            return "retired key", "retired"
        if not key.unwrapped:
            return "unknown key", key.state
        sealed = decode_body(text)
        if sealed is None or len(sealed) < 28:
            return "malformed", key.state
        header = text[:32]
        aead = key.derive(unb64u(header[16:]))
        try:
            payload = aead.decrypt(sealed[:12], memoryview(sealed)[12:], header.encode())
        except InvalidTag:
            return "seal", key.state
        opener = Opener(header, aead, key, self.max_token_chars)
        self._remember(header, opener)
        opener.note()
        return payload

    def _remember(self, header: str, opener: Opener) -> None:
        openers = self.openers
        if len(openers) >= MAX_OPENERS:
            # pop with a default: another thread may have been faster.
            oldest = next(iter(list(openers)[:1]), header)
            openers.pop(oldest, None)
        openers[header] = opener

    def __repr__(self) -> str:
        return f"Ring(name={self.name!r}, generation={self.generation}, keys={list(self.keys.values())})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("keys are never pickled or copied")


def _xaes(key: bytes | token.XaesKey | None, name: str) -> token.XaesKey | None:
    return token.xaes_key(key, name) if isinstance(key, bytes) else key
