"""`EnvelopeCodec`: what a server hands to `RequestStateSecurity(codec=...)`.

`seal` and `unseal` work on the current ring and minter, plain attributes that the refresher swaps whole. No I/O, no
lock, no KMS on the caller's thread. Source of the contract: `mcp.server.request_state.RequestStateCodec`.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Mapping, Sequence
from time import time
from types import TracebackType
from typing import Any, Literal, Self

from mcp.server.request_state import InvalidRequestState
from pybase64 import b64encode_as_string

from mcpkeys import lifetime, metrics, registry, store
from mcpkeys.clock import Clock, SystemClock
from mcpkeys.errors import CannotSeal, SettingError
from mcpkeys.instance import Instance
from mcpkeys.keks import Keks
from mcpkeys.keyuse import read_count
from mcpkeys.loading import Loader, Pins
from mcpkeys.randomness import random_bytes
from mcpkeys.refresh import Refresher
from mcpkeys.ring import MALFORMED, UNKNOWN, Minter, Refusal, Ring
from mcpkeys.sdktoken import SdkRing
from mcpkeys.settings import load_settings
from mcpkeys.token import LONG, MIN_TOKEN_CHARS, URLSAFE, has_header, max_payload

SEALS_PER_PREFIX = 1 << 32
"""A process draws a new prefix after about this many seals: random 96-bit nonces stay far from their bound."""
TTL_SAMPLE = 64
_STALE: Refusal = ("stale ring", "none")
REASONS = ("malformed", "unknown key", "seal", "retired key", "stale ring")


class EnvelopeCodec:
    """Seals and unseals request state under the keyset's data keys.

    A context manager; thread-safe and fork-safe. Made by `open` (a keyset under KMS keys) or `from_secrets`.
    Never shows key bytes in `repr`, and is never pickled or copied.
    """

    # A slot is read by its place, a dictionary's entry is looked up: each token reads several, and a seal of 300 bytes
    # takes a tenth less for it.
    __slots__ = (
        "__weakref__",
        "_adopted_at",
        "_clock",
        "_closed",
        "_inline",
        "_instance",
        "_mint_sdk",
        "_minter",
        "_refresher",
        "_refusals",
        "_ring",
        "_sealed_under_prefix",
        "_swapping",
        "_threaded",
        "_unknown",
        "_watched",
    )

    _ring: Ring
    _minter: Minter | None

    def __init__(
        self, instance: Instance, *, inline: bool = False, mint_sdk: bool = False, clock: Clock | None = None
    ) -> None:
        """Not for callers: `open` and `from_secrets` are the constructors. Without a ring yet: it mints nothing."""
        self._clock = clock or SystemClock()
        self._instance = instance
        self._refresher: Refresher | None = None
        self._inline = inline
        self._mint_sdk = mint_sdk
        self._closed = False
        self._threaded = False
        self._sealed_under_prefix = 0
        self._swapping = threading.RLock()  # a signal handler may close the codec amid a swap
        self._unknown = itertools.count()
        self._refusals: dict[tuple[str, str], itertools.count[int]] = {UNKNOWN: self._unknown}
        self._use(Ring(name="", keys=()))

    # --- constructors ---------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        name: str | None = None,
        *,
        keyset: str | None = None,
        keks: Sequence[str] | None = None,
        signers: Sequence[str] | None = None,
        min_generation: int | None = None,
        instance: str | None = None,
        refresh: Literal["thread", "inline"] = "thread",
        sdk_keys: Sequence[bytes | bytearray | str] = (),
        mint: Literal["mk1", "sdk"] = "mk1",
        sessions: Mapping[str, Any] | None = None,
    ) -> Self:
        """Load the keyset, unwrap its live keys, join the fleet, and keep the ring current.

        Args:
            name: the keyset's name; None here and below: from `MCPKEYS_*` or the file of `MCPKEYS_CONFIG`.
            keyset: the keyset's URI.
            keks: the pinned KEKs' URIs, nearest first.
            signers: the pinned signers, `ed25519:` + 43 characters each.
            min_generation: no older document is accepted.
            instance: a label for people; the host's or pod's name by default.
            refresh: `thread`, or `inline` for functions that are frozen between calls: an overdue ring costs the
                next call one bounded refresh.
            sdk_keys: the SDK's raw `keys=[...]` to verify meanwhile (migration).
            mint: `sdk` mints the SDK's tokens under `sdk_keys[0]` (first phase of a migration).
            sessions: by scheme, for callers that bring their own credentials: `{"awskms": boto3.Session(), ...}`.

        Raises:
            SettingError, UriError, PluginError: the configuration is incomplete or wrong.
            KeysetError, NotFound: the document is missing or must not be used.
            KmsUnreachable, KmsDenied, KekUnusable, UnwrapRefused, KeysetLocked: a live key was not unwrapped within
                10 seconds (60 while the KMS throttles).
            StoreUnreachable, StoreDenied: the store cannot be read, or the report not written.
        """
        if refresh not in ("thread", "inline"):
            raise SettingError("refresh is 'thread' or 'inline'", why=f"got {refresh!r}")
        if mint not in ("mk1", "sdk") or (mint == "sdk" and not sdk_keys):
            raise SettingError("mint is 'mk1', or 'sdk' together with sdk_keys", why=f"got {mint!r}")
        settings = load_settings(
            name=name, keyset=keyset, keks=keks, signers=signers, min_generation=min_generation, instance=instance
        ).require()
        sessions = sessions or {}
        opened = registry.open_store(settings.keyset, session=sessions.get(store.scheme_of(settings.keyset)))
        loader = Loader(
            opened,
            Keks.open(settings.keks, sessions=sessions, measure=metrics.kms_call),
            Pins(settings.name, settings.signers, settings.min_generation),
            sdk=SdkRing(sdk_keys) if sdk_keys else None,
        )
        return cls._begin(
            loader,
            Instance(settings.instance or None),
            inline=refresh == "inline",
            thread=refresh == "thread",
            mint_sdk=mint == "sdk",
        )

    @classmethod
    def _begin(
        cls,
        loader: Loader,
        instance: Instance,
        *,
        inline: bool = False,
        thread: bool = False,
        mint_sdk: bool = False,
        clock: Clock | None = None,
        jitter: random.Random | None = None,
    ) -> Self:
        """With neither `inline` nor `thread` it refreshes when its refresher is told to, for tests and simulations."""
        codec = cls(instance, inline=inline, mint_sdk=mint_sdk, clock=clock)
        codec._threaded = thread
        refresher = codec._refresher = Refresher(loader, instance, codec._use, clock=clock, jitter=jitter)
        refresher.reported = codec._sample
        try:
            refresher.begin()
        except BaseException:
            loader.close()
            raise
        lifetime.keep(codec, {type(loader.store), *map(type, loader.keks)})
        metrics.watch(codec)
        if thread:
            refresher.start()
            lifetime.hold_sigterm()
        return codec

    @classmethod
    def from_secrets(cls, keys: Sequence[bytes | bytearray | str]) -> Self:
        """A codec over the SDK's raw `keys=[...]`: the first seals, all unseal. No keyset, no KMS, no refresh.

        Raises:
            TypeError: a key is neither bytes, bytearray nor str.
            ValueError: no key, one shorter than 32 bytes, or one twice.
        """
        codec = cls(Instance(""))
        codec._use(Ring.from_secrets(keys, now=time()))
        lifetime.know(codec)
        metrics.watch(codec)
        return codec

    def _use(self, ring: Ring | None) -> None:
        """Swap in this ring (None: the current one) under the current prefix."""
        with self._swapping:
            if self._closed:
                return
            ring = ring or self._ring
            # Prepared first, then swapped by one assignment each; verifying comes before minting, as in a rotation.
            minter = None if self._mint_sdk else ring.minter(self._instance.prefix)
            self._ring = ring
            self._minter = minter
            self._adopted_at = self._clock.time()
            self._watched = self._refresher is not None and (
                self._inline or (ring.keyset is not None and ring.keyset.max_stale_seconds is not None)
            )

    # --- the codec ------------------------------------------------------------------------------------------

    def seal(self, payload: bytes) -> str:
        """An opaque token of 32 + ceil((28 + len(payload)) * 4 / 3) characters.

        Raises:
            CannotSeal: the ring is stale, has no minting key, or the token would be longer than `unseal` accepts.
        """
        if self._watched:
            self._look(sealing=True)
        minter = self._minter
        if minter is None:
            return self._seal_otherwise(payload)
        size = len(payload)
        if size > minter.max_payload:
            raise _too_long(size, minter.max_payload)
        count = next(minter.seals)
        if count >= minter.due:
            self._bookkeeping(minter, count, payload)
        minter.use.last_mint = time()
        nonce = random_bytes(12)
        encrypted = minter.encrypt(nonce, payload, minter.aad)
        if size < LONG:
            return minter.header + b64encode_as_string(nonce + encrypted, URLSAFE).rstrip("=")
        # The same token with each long part copied once: a nonce is 16 whole characters, and what an f-string would
        # cut and then join is done in one step.
        head, body = b64encode_as_string(nonce, URLSAFE), b64encode_as_string(encrypted, URLSAFE)
        return "%s%s%.*s" % (minter.header, head, (len(encrypted) * 4 + 2) // 3, body)  # noqa: UP031

    def _seal_otherwise(self, payload: bytes) -> str:
        """Without a minter: the SDK's own token during a migration, or nothing."""
        ring = self._ring
        if not self._mint_sdk or ring.sdk is None or self._closed:
            raise _no_minter(self._closed)
        if len(payload) > max_payload(ring.max_token_chars):
            raise _too_long(len(payload), max_payload(ring.max_token_chars))
        self._instance.observe_ttl(payload)
        return ring.sdk.seal(payload)

    def unseal(self, token: str) -> bytes:
        """The payload of a token that some instance of this keyset sealed, unmodified.

        Raises:
            InvalidRequestState: `malformed`, `unknown key`, `seal`, `retired key` or `stale ring`; nothing else,
                for any string.
        """
        if self._watched:
            self._look(sealing=False)
        ring = self._ring
        opener = ring.openers.get(token[:32])
        found: bytes | Refusal
        if opener is not None:
            found = opener.attempt(token)
        # The same for every length, and the cheapest first: whoever sends garbage gets no work done.
        elif not MIN_TOKEN_CHARS <= len(token) <= ring.max_token_chars or has_header(token) is None:
            found = MALFORMED
        elif (key := ring.keys.get(token[4:16])) is not None:
            found = ring.attempt_first(token, key)
        elif self._closed:
            found = UNKNOWN
        else:
            # A path of its own: floods of these are what an attacker can have for nothing.
            refresher = self._refresher
            if refresher is not None and not refresher.early:
                refresher.poke()
            next(self._unknown)
            raise InvalidRequestState("unknown key")
        if found.__class__ is bytes:
            return found
        if ring.sdk is not None and token.startswith("v1.") and len(token) <= ring.max_token_chars:
            opened = ring.sdk.open(token)
            if isinstance(opened, bytes):
                return opened
            found = opened, "none"
        if self._closed:
            found = _STALE
        try:
            next(self._refusals[found])  # type: ignore[index]
        except KeyError:
            self._count(found)  # type: ignore[arg-type]
        raise InvalidRequestState(found[0])

    def _count(self, refusal: Refusal) -> None:
        # setdefault is one step: two threads that count the first refusal share one counter.
        next(self._refusals.setdefault(refusal, itertools.count()))

    def _look(self, *, sealing: bool) -> None:
        """What only some deployments need before each token: an inline refresh, the limit of staleness."""
        refresher = self._refresher
        assert refresher is not None
        if self._inline:
            refresher.inline()
        left = refresher.freshness.left(self._clock)
        if left is not None and left <= 0:
            if sealing:
                raise CannotSeal(
                    "the ring is stale",
                    why=f"the last good refresh began {refresher.freshness.age(self._clock):,.0f} s ago, "
                    f"max_stale is {refresher.freshness.max_stale:,.0f} s",
                    next="mcpkeys doctor --as-server, on this machine, names what keeps it from store or KEK",
                    code="stale-ring",
                )
            self._count(_STALE)
            raise InvalidRequestState("stale ring")

    def _sample(self) -> None:
        """A report was written: the next seal is looked at."""
        minter = self._minter
        if minter is not None:
            minter.due = 0

    def _bookkeeping(self, minter: Minter, count: int, payload: bytes) -> None:
        """Off the fast path: the observed ttl (first seal after each report, every 64th), a new prefix in time."""
        self._instance.observe_ttl(payload)
        minter.due = count + TTL_SAMPLE
        self._sealed_under_prefix += TTL_SAMPLE
        if self._sealed_under_prefix >= SEALS_PER_PREFIX:
            # Counted for the prefix, not for the ring: a new generation keeps the prefix, and often the key.
            self._sealed_under_prefix = 0
            self._instance.new_prefix()
            self._use(None)

    # --- state ------------------------------------------------------------------------------------------------

    @property
    def ring(self) -> Ring:
        """The current ring: an immutable snapshot, also what `inspect_token` takes."""
        return self._ring

    @property
    def mints_sdk(self) -> bool:
        """Whether it mints the SDK's tokens: the first phase of a migration."""
        return self._mint_sdk

    @property
    def seals(self) -> int:
        """Tokens minted so far by this process."""
        return sum(key.use.seals for key in self._ring.keys.values())

    @property
    def refusals(self) -> dict[str, int]:
        """Refused tokens by reason."""
        found = dict.fromkeys(REASONS, 0)
        for (reason, _), count in self.refusals_by_key_state.items():
            found[reason] += count
        return found

    @property
    def refusals_by_key_state(self) -> dict[tuple[str, str], int]:
        """Refused tokens by reason and the state of the key that they name (`none`: no key of this keyset)."""
        counts = {at: read_count(counter) for at, counter in list(self._refusals.items())}
        return {at: count for at, count in counts.items() if count}

    @property
    def refresher(self) -> Refresher | None:
        """What keeps the ring current; None for `from_secrets`."""
        return self._refresher

    @property
    def adopted_at(self) -> float:
        """When the current ring came into use: seconds since the epoch."""
        return self._adopted_at

    @property
    def refresh_age(self) -> float | None:
        """Seconds since the last successful refresh began, or None where nothing is refreshed."""
        return None if self._refresher is None else self._refresher.freshness.age(self._clock)

    @property
    def stale_left(self) -> float | None:
        """Seconds until the ring is stale, or None where it never is."""
        return None if self._refresher is None else self._refresher.freshness.left(self._clock)

    def ready(self) -> bool:
        """Whether this instance can mint and verify now. For a readiness endpoint: no I/O, never calls a KMS."""
        refresher = self._refresher
        if self._closed or (self._minter is None and not self._mint_sdk):
            return False
        left = None if refresher is None else refresher.freshness.left(self._clock)
        return left is None or left > 0

    def status(self) -> dict[str, Any]:
        """What this instance holds, as JSON values; no secrets. Times are seconds since the epoch, ages seconds."""
        ring, refresher, keyset = self._ring, self._refresher, self._ring.keyset
        error = None if refresher is None else refresher.last_error
        said = None if refresher is None else refresher.report_error
        return {
            "keyset": ring.name,
            "audience": None if keyset is None else keyset.audience,
            "ttl_seconds": None if keyset is None else keyset.ttl_seconds,
            "generation": ring.generation,
            "digest": ring.digest,
            "instance": {"id": self._instance.id, "label": self._instance.label, "pid": self._instance.pid},
            "ready": self.ready(),
            "mints": ring.minting,
            "migration": None if ring.sdk is None else {"sdk_kids": list(ring.sdk.kids), "mints_sdk": self._mint_sdk},
            "keys": [
                {
                    "kid": key.kid,
                    "state": key.state,
                    "unwrapped": key.unwrapped,
                    "last_mint": key.use.last_mint or None,
                    "last_unseal": key.use.last_unseal or None,
                    "seals": key.use.seals,
                    "unseals": key.use.unseals,
                }
                for key in ring.keys.values()
            ],
            "refusals": self.refusals,
            "refresh": None
            if refresher is None
            else {
                "mode": "inline" if self._inline else "thread",
                "successes": refresher.successes,
                "failures": refresher.failures,
                "error": None if error is None else {"code": error.code, "message": error.what},
                "age_seconds": refresher.freshness.age(self._clock),
                "stale_in_seconds": refresher.freshness.left(self._clock),
                "report_error": None if said is None else {"code": said.code, "message": said.what},
            },
            "security": {
                "signer_opened_by": []
                if refresher is None or keyset is None
                else list(refresher.loader.signer_openers(keyset)),
            },
        }

    # --- life and death -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Say farewell, stop refreshing, drop the keys. Idempotent; afterwards nothing is minted or verified."""
        with self._swapping:
            if self._closed:
                return
            # The keys first: what the farewell says of the last mint stays true.
            self._closed = True
            self._minter = None
            self._ring = Ring(name=self._ring.name, keys=(), max_token_chars=self._ring.max_token_chars)
        lifetime.forget(self)
        metrics.forget(self)
        if self._refresher is not None:
            self._refresher.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"EnvelopeCodec(keyset={self._ring.name!r}, generation={self._ring.generation})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a codec holds keys and is never pickled or copied")

    def after_fork(self) -> None:
        """For `lifetime`, in the child: its own id, prefix and thread."""
        refresher = self._refresher
        self._swapping = threading.RLock()
        self._sealed_under_prefix = 0
        if refresher is None:
            self._instance.redraw()
        else:
            refresher.after_fork()
        # The fork may have come between the refresher's swap and ours.
        ring = self._ring if refresher is None else refresher.ring or self._ring
        for key in ring.keys.values():
            key.use.reset()
        self._use(ring)
        if refresher is not None and self._threaded:
            refresher.start()


def _too_long(size: int, limit: int) -> CannotSeal:
    return CannotSeal(
        f"a state of {size:,} bytes does not fit into a token",
        why=f"the keyset's max_token_chars allows {limit:,}",
        next="keep large state on the server and put its id into requestState",
        code="payload-too-long",
    )


def _no_minter(closed: bool) -> CannotSeal:
    return CannotSeal(
        "this codec is closed" if closed else "this instance has no minting key",
        why="" if closed else "the keyset's minting key could not be unwrapped here",
        next="" if closed else "mcpkeys doctor --as-server tells why",
        code="closed" if closed else "no-minting-key",
    )
