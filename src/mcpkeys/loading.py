"""From a stored document to a ring: read, verify, compare with the pins and with what was seen, unwrap.

    store.read -> document.read (signature, pins) -> check_succession -> Keks.unwrap -> Ring

What replaces a good ring and what does not is decided here, in `Loader.load`, and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mcpkeys import document, strictjson
from mcpkeys.clock import Clock, SystemClock
from mcpkeys.errors import KeysetForged, KmsUnreachable, McpkeysError
from mcpkeys.keks import Job, Keks, Unwrapped
from mcpkeys.keyset import MAX_BODY_BYTES, Key, Keyset, Seen, check_succession, differing_fields, digest, to_json
from mcpkeys.keyuse import KeyUse
from mcpkeys.kms import Purpose, Wrap, WrapContext, identity, scheme_of
from mcpkeys.patience import Patience
from mcpkeys.ring import Ring
from mcpkeys.sdktoken import SdkRing
from mcpkeys.store import Store
from mcpkeys.token import XaesKey, xaes_key

READ_SECONDS = 5.0
FIELD = re.compile(r"[a-z0-9_.\[\]]{1,60}")
UNRESTRICTED_SCHEMES = frozenset({"gcpkms", "local"})
"""KEKs whose right to unwrap cannot be kept to one purpose: who opens data keys with one opens the signer too."""


@dataclass(frozen=True, slots=True)
class Pins:
    """What the server's configuration says and the document may not change.

    Attributes:
        name: the keyset's name, or None where it is not pinned (commands only).
        signers: public halves, `ed25519:` + 43 characters each.
        min_generation: nothing below is accepted.
    """

    name: str | None
    signers: tuple[str, ...]
    min_generation: int = 0


@dataclass(frozen=True, slots=True)
class Loaded:
    """What one load found.

    Attributes:
        ring: the ring to use now: a new one, or the one that was good before.
        changed: whether `ring` is new.
        complete: whether every live key of the stored document is unwrapped in `ring`.
        error: why the stored document was not adopted, or not wholly; None where it was.
    """

    ring: Ring
    changed: bool
    complete: bool
    error: McpkeysError | None


class Loader:
    """Loads one keyset for one instance and remembers what it has seen. Not thread-safe: one load at a time."""

    def __init__(
        self,
        store: Store,
        keks: Keks,
        pins: Pins,
        *,
        sdk: SdkRing | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.store = store
        self.keks = keks
        self.pins = pins
        self.seen = Seen(generation=pins.min_generation)
        self.uses: dict[str, KeyUse] = {}
        self.unwraps_by: dict[str, None] = {}
        self._report: tuple[str, bytes] | None = None
        self._held: dict[str, XaesKey] = {}
        self._sdk = sdk
        self._clock = clock or SystemClock()
        self._version: str | None = None

    @property
    def report_key(self) -> bytes | None:
        """The key that authenticates reports, or None before the first load."""
        return None if self._report is None else self._report[1]

    def first(self, *, patience: Patience | None = None) -> Ring:
        """The first ring: every live key and the report key unwrapped, in parallel.

        Raises whatever is wrong: there is no good ring to fall back to.
        """
        loaded = self.load(None, fresh=True, patience=patience)
        if loaded.error is not None:
            raise loaded.error
        return loaded.ring

    def load(
        self,
        current: Ring | None,
        *,
        fresh: bool = False,
        patience: Patience | None = None,
        seconds: float = READ_SECONDS,
    ) -> Loaded:
        """Read the store and decide which ring is to be used from now on.

        A ring that is `changed` and not `complete` has lost a key that the document removes and misses one that it
        brings: use it at once, and load again.

        Args:
            current: the good ring, or None at start.
            fresh: read linearizably.
            patience: for the unwraps; None for a new one.
            seconds: for the read.

        Raises:
            McpkeysError: there was no good ring and the document gives none; with a good ring the only errors
                raised are those of reading (`NotFound`, `StoreUnreachable`, `StoreDenied`).
        """
        # "Unchanged" says something only of the ring that this version became: a fork, or an error halfway, can leave
        # an older one in use.
        known = self._version if current is not None and current.digest == self.seen.digest else None
        found = self.store.read(known, fresh=fresh, deadline=self._clock.monotonic() + seconds)
        if found is None:
            assert current is not None
            return Loaded(current, changed=False, complete=True, error=None)
        try:
            keyset = document.read(found.body, signers=self.pins.signers, name=self.pins.name)
            check_succession(self.seen, keyset)
        except McpkeysError as exc:
            if current is None:
                raise
            if isinstance(exc, KeysetForged) and current.keyset is not None:
                exc.why += (
                    f" (differs from generation {current.generation} in {_differences(found.body, current.keyset)})"
                )
            return Loaded(current, changed=False, complete=False, error=exc)
        if current is not None and current.digest == digest(keyset) and self._complete(keyset):
            self._version = found.version
            return Loaded(current, changed=False, complete=True, error=None)
        return self._adopt(keyset, found.version, current, patience)

    def _complete(self, keyset: Keyset) -> bool:
        return all(key.kid in self._held for key in keyset.live) and self._reports_under(keyset)

    def _reports_under(self, keyset: Keyset) -> bool:
        return self._report is not None and self._report[0] == keyset.report_key.kid

    def _adopt(self, keyset: Keyset, version: str, current: Ring | None, patience: Patience | None) -> Loaded:
        missing = [key for key in keyset.live if key.kid not in self._held]
        jobs = [self._job("seal", keyset, key.kid, key.wrapped) for key in missing]
        if not self._reports_under(keyset):
            jobs.append(self._job("report", keyset, keyset.report_key.kid, keyset.report_key.wrapped))
        live = {key.kid for key in keyset.live}
        # Removals win: what was burnt is gone even where what came with it cannot be unwrapped, and waits for nothing.
        removes = current is not None and any(key.kid not in live for key in current.keys.values() if key.unwrapped)
        answers = self.keks.unwrap(jobs, patience=self.keks.impatient() if removes else patience)
        error = first_error(answers.values())
        if error is not None and not removes:
            if current is None:
                raise error
            return Loaded(current, changed=False, complete=False, error=error)
        opened = {kid: answer for kid, answer in answers.items() if isinstance(answer, Unwrapped)}
        report = opened.pop(keyset.report_key.kid, None)
        held = {kid: key for kid, key in self._held.items() if kid in live}
        held.update({kid: xaes_key(answer.key, keyset.name) for kid, answer in opened.items()})
        ring = Ring.from_keyset(keyset, held, uses=self.uses, sdk=self._sdk)
        # From here on nothing fails: what is remembered and the ring belong together.
        self._held = held
        if report is not None:
            self._report = keyset.report_key.kid, report.key
        self.unwraps_by.update(
            dict.fromkeys(answer.kek for answer in (*opened.values(), *([report] if report else [])))
        )
        self.uses = {kid: use for kid, use in self.uses.items() if kid in ring.keys}
        self.seen = self.seen.after(keyset)
        # An incomplete ring asks for the document again at the next refresh.
        self._version = version if error is None else None
        return Loaded(ring, changed=True, complete=error is None, error=error)

    @staticmethod
    def _job(purpose: Purpose, keyset: Keyset, kid: str, wrapped: tuple[Wrap, ...]) -> Job:
        return Job(WrapContext(purpose, keyset.name, kid), wrapped)

    def prove(self, keyset: Keyset, uri: str) -> bool | None:
        """The canary: unwrap the minting key by this one KEK and compare. One KMS call.

        False where the KEK refuses, is gone or answers another key; None where it wrapped nothing here, or gave no
        answer, which an outage explains as well as a key that is gone.
        """
        kms = self.keks.get(uri)
        key = keyset.minting
        usable = [(k, wrap) for k, wrap in self.keks.usable(key.wrapped) if k is kms]
        held = self._held.get(key.kid)
        if not usable or held is None:
            return None
        only = self.keks.only(usable[0][0])
        answer = only.unwrap([self._job("seal", keyset, key.kid, (usable[0][1],))], patience=only.impatient())[key.kid]
        if isinstance(answer, KmsUnreachable):
            return None
        ok = isinstance(answer, Unwrapped) and held.same(xaes_key(answer.key, keyset.name))
        if ok:
            self.unwraps_by[usable[0][0].uri] = None
        return ok

    def wraps(self, key: Key, uri: str) -> bool:
        """Whether this pinned KEK wrapped this key, and it is held to compare with."""
        return key.kid in self._held and any(kms.uri == uri for kms, _ in self.keks.usable(key.wrapped))

    def signer_openers(self, keyset: Keyset) -> tuple[str, ...]:
        """Pinned KEKs by which this server could open the signer, decided without a call.

        A policy keeps servers from purpose `sign` where a KMS restricts by context (AWS, Vault); these cannot.
        """
        pinned = {identity(uri) for uri in self.keks.uris}
        return tuple(
            wrap.kek
            for wrap in keyset.signer.wrapped
            if identity(wrap.kek) in pinned and scheme_of(wrap.kek) in UNRESTRICTED_SCHEMES
        )

    def forget(self) -> None:
        """Drop the keys: what was loaded is used no more."""
        self._held = {}
        self._report = None
        self._version = None

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("what holds keys is never pickled or copied")

    def close(self) -> None:
        """Drop connections; also for the child after fork."""
        self.store.close()
        self.keks.close()


def first_error(answers: Iterable[Unwrapped | McpkeysError]) -> McpkeysError | None:
    """The first error among answers, or None."""
    return next((answer for answer in answers if isinstance(answer, McpkeysError)), None)


def _differences(body: bytes, keyset: Keyset) -> str:
    """Where a document that is not authentic departs from the last good one: whoever edited it finds it by that."""
    fields = differing_fields(to_json(keyset), strictjson.loads(body, max_bytes=MAX_BODY_BYTES))
    # Names out of an unverified document end in a log.
    told = [field for field in fields if FIELD.fullmatch(field)]
    return ", ".join(told[:5] or ["fields that no keyset has"]) + (" ..." if len(told) > 5 else "")
