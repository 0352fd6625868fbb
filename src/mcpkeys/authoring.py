"""Writing keysets: the operator's side. New keys, the signer, the report key, and the one write.

A key made here exists in this process only where no KMS can make it unseen (several KEKs, Google Cloud, a local
file); every such wrap is unwrapped once before it is written. The signer's private half and the report key are the
operator's own and always pass through here.
"""

from __future__ import annotations

import getpass
import hmac
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mcpkeys import document, listing, registry, reports, strictjson
from mcpkeys import keyset as keysets
from mcpkeys.clock import Clock, SystemClock
from mcpkeys.encoding import b64u
from mcpkeys.errors import (
    ConfigurationError,
    KeysetError,
    KeysetExists,
    KeysetLocked,
    KeysetMismatch,
    McpkeysError,
    NotFound,
    UnwrapRefused,
)
from mcpkeys.keks import Job, Keks, Unwrapped
from mcpkeys.keyset import HistoryEntry, Key, Keyset, ReportKey, Signer
from mcpkeys.kms import DATA_KEY_BYTES, Kms, Purpose, Wrap, WrapContext, identity
from mcpkeys.loading import Pins
from mcpkeys.patience import CALL_SECONDS
from mcpkeys.reports import Gathered
from mcpkeys.store import Found, Store

READ_SECONDS = 10.0
MAX_TAKEN_KEYS = 1024
MAX_TAKEN_BYTES = 256 << 10
"""Of a document that is replaced: so many keys are kept as retired, and their wraps where it is no longer than that."""
Urandom = Callable[[int], bytes]


def new_kid(urandom: Urandom = secrets.token_bytes) -> str:
    """A fresh public id: 9 random bytes, base64url, 12 characters."""
    return b64u(urandom(9))


def whoami() -> str:
    """Who writes, for the history: user@host, as far as this process knows."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"[:200]


@dataclass(frozen=True, slots=True)
class Stored:
    """A keyset as it is stored now: what the next write must follow."""

    keyset: Keyset
    version: str
    modified_at: float


@dataclass(frozen=True, slots=True)
class Predecessor:
    """What `init --replace` starts anew above.

    Attributes:
        version: the stored version, for the compare-and-swap; None where nothing is stored.
        generation: the new keyset's is one more.
        previous: digest of the document that is replaced, None where it cannot be read.
        retired: its keys, all retired.
        why: why the stored document could not be read, or empty.
    """

    version: str | None
    generation: int
    previous: str | None = None
    retired: tuple[Key, ...] = ()
    why: str = ""


class Author:
    """Reads, extends, signs and writes one keyset on behalf of an operator."""

    def __init__(
        self,
        store: Store,
        keks: Keks,
        pins: Pins,
        *,
        sessions: Mapping[str, Any] | None = None,
        skip: Iterable[str] = (),
        clock: Clock | None = None,
        urandom: Urandom = secrets.token_bytes,
    ) -> None:
        """`skip` names KEKs (`--skip-kek`) that an emergency does without; status then asks for `rewrap`."""
        self.store = store
        self.keks = keks
        self.pins = pins
        self._sessions = sessions or {}
        self._skip = {identity(uri) for uri in skip}
        self._clock = clock or SystemClock()
        self._urandom = urandom

    def deadline(self, seconds: float = READ_SECONDS) -> float:
        """A deadline that many seconds from now."""
        return self._clock.monotonic() + seconds

    # --- reading ------------------------------------------------------------------------------------------

    def read(self) -> Stored:
        """The stored keyset, linearizably, verified against the pins. Raises as `document.read` and the store."""
        found = self.store.read(None, fresh=True, deadline=self.deadline())
        assert found is not None
        keyset = document.read(found.body, signers=self.pins.signers, name=self.pins.name)
        keysets.check_succession(keysets.Seen(self.pins.min_generation), keyset)
        return Stored(keyset, found.version, found.modified_at)

    def report_key(self, keyset: Keyset) -> bytes:
        """The unwrapped report key (32 bytes). Raises what its KEKs answer."""
        return self._open("report", keyset.name, keyset.report_key.kid, keyset.report_key.wrapped, self.keks)

    def gather(self, keyset: Keyset) -> Gathered:
        """Every report there is, authenticated. Raises what the store or the report key's KEKs answer.

        `StoreUnreachable` also where they are more than can be looked at.
        """
        found = self.listed()
        return reports.gather(self.in_time(found), [self.report_key(keyset)], keyset=keyset.name)

    def listed(self) -> list[Found]:
        """Every report there is, unauthenticated. Raises as `listing.listed`."""
        return list(listing.listed(self.store, deadline=self.deadline()))

    def in_time(self, found: Sequence[Found]) -> Iterator[Found]:
        """Those, to who looks at each. Raises as `listing.in_time`."""
        return listing.in_time(found, clock=self._clock)

    def now(self) -> tuple[float, float]:
        """The store's clock and its resolution, in seconds."""
        return self.store.now(deadline=self.deadline())

    def predecessor(self, now_ms: int) -> Predecessor | None:
        """What a keyset that starts anew must come above; None where nothing is stored and nobody reports.

        Also a damaged document has one: the generation that it and the reports claim. A claim can only raise the
        new generation, and an absurd one (over 2^52) is not believed. No signer is pinned here, so of a document that
        is whole nobody knows whose it is: what is taken over from it is bounded. Raises what the store answers, and as
        `gather` where the reports are more than can be looked at.
        """
        try:
            found = self.store.read(None, fresh=True, deadline=self.deadline())
        except NotFound:
            found = None
        claims = [_claimed_generation(entry.body) for entry in self.in_time(self.listed())]
        if found is not None:
            claims.append(_claimed_generation(found.body))
        generation = max(claims, default=0)
        if found is None:
            return Predecessor(None, generation) if generation else None
        try:
            keyset = document.read(found.body, name=self.pins.name)
        except KeysetError as exc:
            return Predecessor(found.version, generation, why=str(exc))
        retired = tuple(_retire(key, now_ms) for key in keyset.keys[:MAX_TAKEN_KEYS])
        if len(found.body) > MAX_TAKEN_BYTES:
            retired = tuple(replace(key, wrapped=()) for key in retired)
        return Predecessor(found.version, generation, keysets.digest(keyset), retired)

    # --- keys ---------------------------------------------------------------------------------------------

    def data_key(self, keyset_name: str, keks: Sequence[str], *, now_ms: int, kid: str | None = None) -> Key:
        """A new data key, wrapped by every KEK of the keyset, in state `verifying`.

        With one KEK whose KMS can do it the key is made there and never seen here.
        Raises what a KEK answers; nothing is half done, since nothing is written.
        """
        context = WrapContext("seal", keyset_name, new_kid(self._urandom) if kid is None else kid)
        targets = self._targets(keks)
        wraps: tuple[Wrap, ...] | None = None
        if len(targets) == 1 and len(keks) == 1:
            wrap = targets[0].generate(context, deadline=self.deadline(CALL_SECONDS * 2))
            wraps = None if wrap is None else (wrap,)
        if wraps is None:
            wraps = self.wrap(self._urandom(DATA_KEY_BYTES), context, targets)
        return Key(context.kid, "verifying", now_ms, now_ms, wraps)

    def new_report_key(self, keyset_name: str, keks: Sequence[str]) -> ReportKey:
        """A new report key, wrapped by every KEK of the keyset."""
        context = WrapContext("report", keyset_name, new_kid(self._urandom))
        return ReportKey(context.kid, self.wrap(self._urandom(DATA_KEY_BYTES), context, self._targets(keks)))

    def new_signer(self, keyset_name: str, sign_keks: Sequence[str]) -> tuple[Signer, Ed25519PrivateKey]:
        """A new signer; its private half (32 bytes) wrapped by every one of `sign_keks`, any one of which opens it."""
        context = WrapContext("sign", keyset_name, new_kid(self._urandom))
        # No local holds the seed itself: tracebacks show the locals of every frame that an error crosses.
        private = Ed25519PrivateKey.from_private_bytes(self._urandom(DATA_KEY_BYTES))
        wraps = self.wrap(private.private_bytes_raw(), context, self._opened(sign_keks))
        return Signer(document.public_of(private), context.kid, wraps), private

    def wrap(self, key: bytes, context: WrapContext, targets: Sequence[Kms]) -> tuple[Wrap, ...]:
        """`key` wrapped by every target, each wrap unwrapped once and compared. All of them, or an error."""
        wraps: list[Wrap] = []
        opened = b""
        try:
            for kms in targets:
                wrap = kms.wrap(key, context, deadline=self.deadline(CALL_SECONDS * 2))
                opened = kms.unwrap(wrap, context, deadline=self.deadline(CALL_SECONDS * 2))
                if not hmac.compare_digest(opened, key):
                    raise UnwrapRefused(
                        f"{kms.uri} does not give back what it wrapped",
                        why="the test unwrap answered another key",
                        next="check that key's configuration; nothing was written",
                    )
                wraps.append(wrap)
        finally:
            del key, opened  # tracebacks show the locals of every frame that an error crosses
        return tuple(wraps)

    def _targets(self, keks: Sequence[str]) -> list[Kms]:
        """The pinned backends of the keyset's KEKs; one that is not pinned here is refused before any call."""
        targets: list[Kms] = []
        for uri in keks:
            kms = self.keks.get(uri)
            if kms is None:
                raise KeysetMismatch(
                    f"the keyset is wrapped by {uri}, which is not pinned here",
                    why=f"pinned: {', '.join(self.keks.uris) or 'none'}",
                    next="add it to MCPKEYS_KEKS, or take it out of the keyset: mcpkeys rewrap --remove-kek URI",
                    code="kek-unpinned",
                )
            if identity(uri) not in self._skip:
                targets.append(kms)
        if not targets:
            raise ConfigurationError("every KEK of the keyset is skipped", next="leave one of them in")
        return targets

    def _opened(self, uris: Sequence[str]) -> list[Kms]:
        """Backends for the sign KEKs: pinned ones where they are the same, others opened for this command only."""
        return [self.backend(uri) for uri in uris]

    def backend(self, uri: str) -> Kms:
        """The pinned backend of this KEK, or another one opened for this command. Contacts nobody."""
        pinned = self.keks.get(uri)
        return pinned or registry.open_kms(uri, session=self._sessions.get(uri.split(":", 1)[0]))

    def _open(self, purpose: Purpose, name: str, kid: str, wrapped: tuple[Wrap, ...], keks: Keks) -> bytes:
        answer = keks.unwrap([Job(WrapContext(purpose, name, kid), wrapped)])[kid]
        if isinstance(answer, Unwrapped):
            return answer.key
        raise answer

    # --- signing and writing ------------------------------------------------------------------------------------

    def signer(self, keyset: Keyset) -> Ed25519PrivateKey:
        """The private half of the keyset's signer, by any one of its sign KEKs.

        Raises `KeysetLocked` where none opens it, and for one that is not the public half the document names.
        """
        keks = Keks(self._opened(keyset.sign_keks), clock=self._clock)
        try:
            private = Ed25519PrivateKey.from_private_bytes(
                self._open("sign", keyset.name, keyset.signer.kid, keyset.signer.wrapped, keks)
            )
        except McpkeysError as exc:
            if not exc.next:
                exc.next = "run this where the signer's KEK (sign_keks) may be used: mcpkeys doctor"
            raise
        if document.public_of(private) != keyset.signer.public:
            raise KeysetLocked(
                "the signer that was unwrapped is not the one the keyset names",
                why="its wrapped form was exchanged",
                next="mcpkeys set --new-signer",
            )
        return private

    def write(self, keyset: Keyset, expected: str | None, private: Ed25519PrivateKey) -> tuple[Keyset, str]:
        """Sign and store by compare-and-swap; the signed keyset and its version. Raises `Conflict` and the store's."""
        signed = document.sign(keyset, private)
        body = keysets.dumps(signed)
        # What is about to be written must be readable by those who wait for it.
        document.read(body, signers=(signed.signer.public,), name=signed.name)
        return signed, self.store.replace(body, expected, deadline=self.deadline())

    def create(
        self,
        name: str,
        *,
        audience: str,
        sign_keks: Sequence[str],
        now_ms: int,
        ttl_seconds: int = keysets.DEFAULT_TTL_SECONDS,
        skew_seconds: int = keysets.DEFAULT_SKEW_SECONDS,
        refresh_seconds: int = keysets.DEFAULT_REFRESH_SECONDS,
        max_stale_seconds: int | None = None,
        evidence: keysets.Evidence = "reports",
        above: Predecessor | None = None,
        reason: str = "",
        who: str | None = None,
    ) -> tuple[Keyset, str]:
        """A new keyset with its signer and first key, written where nothing is stored (or over `above`).

        Raises `KeysetExists`, and what the KEKs and the store answer; a failed write leaves nothing behind.
        """
        keks = self.keks.uris
        signer, private = self.new_signer(name, sign_keks)
        first = replace(self.data_key(name, keks, now_ms=now_ms), state="minting")
        generation = 1 if above is None else above.generation + 1
        what = "init" if above is None else "init --replace"
        keyset = Keyset(
            name=name,
            audience=audience,
            ttl_seconds=ttl_seconds,
            skew_seconds=skew_seconds,
            refresh_seconds=refresh_seconds,
            max_stale_seconds=max_stale_seconds,
            max_token_chars=keysets.DEFAULT_MAX_TOKEN_CHARS,
            evidence=evidence,
            generation=generation,
            previous=None if above is None else above.previous,
            keks=keks,
            sign_keks=tuple(sign_keks),
            keys=(first, *(() if above is None else above.retired)),
            report_key=self.new_report_key(name, keks),
            rotation=None,
            past_ttls=(),
            history=(HistoryEntry(now_ms, whoami() if who is None else who, what, generation, reason),),
            signer=signer,
        )
        try:
            return self.write(keyset, None if above is None else above.version, private)
        except McpkeysError as exc:
            if above is None and exc.code == "conflict":
                raise exists(self.store.uri) from None
            raise

    def close(self) -> None:
        """Drop connections."""
        self.store.close()
        self.keks.close()


def exists(uri: str) -> KeysetExists:
    """The error for `init` over a stored keyset."""
    return KeysetExists(
        f"a keyset is stored at {uri} already",
        why="init never overwrites",
        next="mcpkeys status shows it; mcpkeys init --replace --reason R starts anew above its generation",
    )


def _claimed_generation(body: bytes) -> int:
    """The generation that an unauthenticated document or report claims; 0 for none or one beyond belief."""
    try:
        claimed = strictjson.loads(body, max_bytes=keysets.MAX_BODY_BYTES).get("generation")
    except strictjson.NotStrict:
        return 0
    return claimed if type(claimed) is int and 0 < claimed < 1 << 52 else 0


def _retire(key: Key, now_ms: int) -> Key:
    return key if key.state == "retired" else replace(key, state="retired", state_since=now_ms)
