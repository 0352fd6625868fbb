"""From a stored document to a ring: read, verify, compare with the pins and with what was seen, unwrap.

    store.read -> document.read (signature, pins) -> check_succession -> Keks.unwrap -> Ring

What replaces a good ring and what does not is decided here, in `Loader.load`, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mcpkeys import document
from mcpkeys.clock import Clock, SystemClock
from mcpkeys.errors import McpkeysError
from mcpkeys.keks import TOTAL_SECONDS, Job, Keks, Unwrapped
from mcpkeys.keyset import Keyset, Seen, check_succession, digest
from mcpkeys.keyuse import KeyUse
from mcpkeys.kms import Purpose, Wrap, WrapContext
from mcpkeys.ring import Ring
from mcpkeys.sdktoken import SdkRing
from mcpkeys.store import Store
from mcpkeys.token import XaesKey, xaes_key

READ_SECONDS = 5.0


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
        self.report_key: bytes | None = None
        self.unwraps_by: dict[str, None] = {}
        self._report_kid = ""
        self._held: dict[str, XaesKey] = {}
        self._sdk = sdk
        self._clock = clock or SystemClock()
        self._version: str | None = None

    def first(self) -> Ring:
        """The first ring: every live key and the report key unwrapped, in parallel.

        Raises whatever is wrong: there is no good ring to fall back to.
        """
        loaded = self.load(None, fresh=True)
        if loaded.error is not None:
            raise loaded.error
        return loaded.ring

    def load(self, current: Ring | None, *, fresh: bool = False, total: float = TOTAL_SECONDS) -> Loaded:
        """Read the store and decide which ring is to be used from now on.

        Args:
            current: the good ring, or None at start.
            fresh: read linearizably.
            total: seconds for all unwraps.

        Raises:
            McpkeysError: there was no good ring and the document gives none; with a good ring the only errors
                raised are those of reading (`NotFound`, `StoreUnreachable`, `StoreDenied`).
        """
        deadline = self._clock.monotonic() + READ_SECONDS
        found = self.store.read(self._version if current is not None else None, fresh=fresh, deadline=deadline)
        if found is None:
            assert current is not None
            return Loaded(current, changed=False, complete=True, error=None)
        try:
            keyset = document.read(found.body, signers=self.pins.signers, name=self.pins.name)
            check_succession(self.seen, keyset)
        except McpkeysError as exc:
            if current is None:
                raise
            return Loaded(current, changed=False, complete=False, error=exc)
        if current is not None and current.digest == digest(keyset) and self._complete(keyset):
            self._version = found.version
            return Loaded(current, changed=False, complete=True, error=None)
        return self._adopt(keyset, found.version, current, total)

    def _complete(self, keyset: Keyset) -> bool:
        return all(key.kid in self._held for key in keyset.live) and keyset.report_key.kid == self._report_kid

    def _adopt(self, keyset: Keyset, version: str, current: Ring | None, total: float) -> Loaded:
        missing = [key for key in keyset.live if key.kid not in self._held]
        jobs = [self._job("seal", keyset, key.kid, key.wrapped) for key in missing]
        if keyset.report_key.kid != self._report_kid:
            jobs.append(self._job("report", keyset, keyset.report_key.kid, keyset.report_key.wrapped))
        answers = self.keks.unwrap(jobs, total=total)
        error = first_error(answers.values())
        live = {key.kid for key in keyset.live}
        # Removals win: what was burnt is gone even where what came with it cannot be unwrapped.
        removes = current is not None and any(key.kid not in live for key in current.keys.values() if key.unwrapped)
        if error is not None and not removes:
            if current is None:
                raise error
            return Loaded(current, changed=False, complete=False, error=error)
        for key in missing:
            answer = answers[key.kid]
            if isinstance(answer, Unwrapped):
                self._held[key.kid] = xaes_key(answer.key, keyset.name)
                self.unwraps_by[answer.kek] = None
        report = answers.get(keyset.report_key.kid)
        if isinstance(report, Unwrapped):
            self.report_key, self._report_kid = report.key, keyset.report_key.kid
            self.unwraps_by[report.kek] = None
        self._held = {kid: key for kid, key in self._held.items() if kid in live}
        self.seen = self.seen.after(keyset)
        # An incomplete ring asks for the document again at the next refresh.
        self._version = version if error is None else None
        ring = Ring.from_keyset(keyset, self._held, uses=self.uses, sdk=self._sdk)
        return Loaded(ring, changed=True, complete=error is None, error=error)

    @staticmethod
    def _job(purpose: Purpose, keyset: Keyset, kid: str, wrapped: tuple[Wrap, ...]) -> Job:
        return Job(WrapContext(purpose, keyset.name, kid), wrapped)

    def prove(self, keyset: Keyset, uri: str) -> bool | None:
        """The canary: unwrap the minting key by this one KEK and compare. None: it wrapped nothing here.

        One KMS call. False where the KEK does not answer or answers another key.
        """
        kms = self.keks.get(uri)
        key = keyset.minting
        usable = [(k, wrap) for k, wrap in self.keks.usable(key.wrapped) if k is kms]
        held = self._held.get(key.kid)
        if not usable or held is None:
            return None
        only = Keks([usable[0][0]], clock=self._clock, parallel=False)
        answer = only.unwrap([self._job("seal", keyset, key.kid, (usable[0][1],))], total=0.0)[key.kid]
        ok = isinstance(answer, Unwrapped) and held.same(xaes_key(answer.key, keyset.name))
        if ok:
            self.unwraps_by[usable[0][0].uri] = None
        return ok

    def close(self) -> None:
        """Drop connections; also for the child after fork."""
        self.store.close()
        self.keks.close()


def first_error(answers: Iterable[Unwrapped | McpkeysError]) -> McpkeysError | None:
    """The first error among answers, or None."""
    return next((answer for answer in answers if isinstance(answer, McpkeysError)), None)
