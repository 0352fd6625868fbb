"""The configured KEKs of an instance or command: unwrapping by any one of them, in time.

The configured order is "nearest first". A key is asked of the first KEK that wrapped it; the next one joins after
500 ms or at once where the first fails; the first good answer wins. Calls have 2 seconds each; `Patience` says how
often they are tried again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from mcpkeys import registry
from mcpkeys.clock import Clock, SystemClock
from mcpkeys.errors import KeysetLocked, KmsDenied, KmsUnreachable, McpkeysError, PluginError
from mcpkeys.kms import DATA_KEY_BYTES, Kms, Wrap, WrapContext, identity, scheme_of
from mcpkeys.patience import CALL_SECONDS, Patience

HEDGE_SECONDS = 0.5
GRACE_SECONDS = 0.5
MAX_PARALLEL = 16

Pools = Mapping[str, ThreadPoolExecutor]
"""URI of a KEK -> the workers that call it."""
Measure = Callable[[str, str], AbstractContextManager[None]]


def _unmeasured(operation: str, scheme: str) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """A key and the KEK (canonical URI as configured) that opened it. Holds a key: its `repr` shows none."""

    key: bytes
    kek: str

    def __repr__(self) -> str:
        return f"Unwrapped(kek={self.kek!r})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("keys are never pickled or copied")


@dataclass(frozen=True, slots=True)
class Job:
    """One key to unwrap: its context and its wrapped forms."""

    context: WrapContext
    wrapped: tuple[Wrap, ...]


class Keks:
    """The pinned KEKs, nearest first."""

    def __init__(
        self,
        kms: Sequence[Kms],
        *,
        clock: Clock | None = None,
        jitter: random.Random | None = None,
        parallel: bool = True,
        measure: Measure = _unmeasured,
    ) -> None:
        """`parallel=False` asks one after the other on the caller's thread, for simulations in virtual time.

        `measure(operation, scheme)` surrounds every call to a KMS: a server's metrics.
        """
        self._kms = {identity(entry.uri): entry for entry in kms}
        self._clock = clock or SystemClock()
        self._jitter = jitter or random.SystemRandom()
        self._parallel = parallel
        self._measure = measure

    @classmethod
    def open(
        cls,
        uris: Sequence[str],
        *,
        sessions: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        measure: Measure = _unmeasured,
    ) -> Keks:
        """Open the backends of these URIs. Contacts nobody. Raises `UriError`, `PluginError`, `ConfigurationError`."""
        sessions = sessions or {}
        backends = [registry.open_kms(uri, session=sessions.get(scheme_of(uri))) for uri in uris]
        return cls(backends, clock=clock, measure=measure)

    @property
    def uris(self) -> tuple[str, ...]:
        """Canonical URIs in the configured order."""
        return tuple(kms.uri for kms in self._kms.values())

    def __iter__(self) -> Iterator[Kms]:
        return iter(self._kms.values())

    def get(self, uri: str) -> Kms | None:
        """The configured KEK that is the one this URI names (replicas folded), or None."""
        return self._kms.get(identity(uri))

    def usable(self, wrapped: Sequence[Wrap]) -> list[tuple[Kms, Wrap]]:
        """The wrapped forms that a pinned KEK made, in the configured order. The others are ignored."""
        by_kek = {identity(wrap.kek): wrap for wrap in wrapped}
        return [(kms, by_kek[key]) for key, kms in self._kms.items() if key in by_kek]

    def only(self, kms: Kms) -> Keks:
        """One of them, as if no other were configured."""
        return Keks([kms], clock=self._clock, jitter=self._jitter, parallel=False, measure=self._measure)

    def impatient(self) -> Patience:
        """One try, and no other."""
        return Patience(self._clock, self._jitter, total=0.0, throttled=0.0)

    def unwrap(self, jobs: Sequence[Job], *, patience: Patience | None = None) -> dict[str, Unwrapped | McpkeysError]:
        """Unwrap every job, all in parallel; kid -> the key, or the one error that tells why not.

        `patience` is one that began earlier, or None for a new one. Once it is over and a key was given up for want of
        an answer, keys that were not asked for yet are given up too. Never raises for a key that cannot be unwrapped:
        what that means is the caller's decision.
        """
        patience = patience or Patience(self._clock, self._jitter)
        given_up: list[KmsUnreachable] = []
        if not self._parallel or not jobs:
            return {job.context.kid: self._attempt(job, patience, None, given_up) for job in jobs}
        # Pools apart: attempts wait for calls, and a KEK that hangs must never occupy the workers that another needs.
        calls = {uri: ThreadPoolExecutor(MAX_PARALLEL, "mcpkeys-kms") for uri in self.uris}
        attempts = ThreadPoolExecutor(min(MAX_PARALLEL, len(jobs)), "mcpkeys-unwrap")
        try:
            futures = {job.context.kid: attempts.submit(self._attempt, job, patience, calls, given_up) for job in jobs}
            return {kid: future.result() for kid, future in futures.items()}
        finally:
            for pool in (attempts, *calls.values()):
                pool.shutdown(wait=False, cancel_futures=True)

    def _attempt(
        self, job: Job, patience: Patience, calls: Pools | None, given_up: list[KmsUnreachable]
    ) -> Unwrapped | McpkeysError:
        usable = self.usable(job.wrapped)
        if not usable:
            return KeysetLocked(
                f"no pinned KEK wrapped the key {job.context.kid}",
                why=f"it is wrapped by {', '.join(wrap.kek for wrap in job.wrapped) or 'nobody'}; "
                f"pinned: {', '.join(self.uris)}",
                next="correct MCPKEYS_KEKS, or add the KEK with mcpkeys rewrap --add-kek",
            )
        if given_up and patience.over:
            return _not_asked(job.context, given_up[0])
        try:
            return patience.call(lambda: self._once(job.context, usable, calls), on=KmsUnreachable)
        except KmsUnreachable as exc:
            given_up.append(exc)
            return exc
        except McpkeysError as exc:
            return exc

    def _once(self, context: WrapContext, usable: list[tuple[Kms, Wrap]], calls: Pools | None) -> Unwrapped:
        """One round over the KEKs that can unwrap this key."""
        errors: list[tuple[str, McpkeysError]] = []
        if calls is None:
            for kms, wrap in usable:
                try:
                    return self._call(kms, wrap, context)
                except McpkeysError as exc:
                    errors.append((kms.uri, exc))
            raise _all_failed(context, errors)
        waiting = list(usable)
        running: dict[Future[Unwrapped], str] = {}
        while waiting or running:
            if waiting:
                kms, wrap = waiting.pop(0)
                running[calls[kms.uri].submit(self._call, kms, wrap, context)] = kms.uri
            patience = HEDGE_SECONDS if waiting else CALL_SECONDS + GRACE_SECONDS
            done, _ = wait(running, timeout=patience, return_when=FIRST_COMPLETED)
            if not done and not waiting:
                # A plugin that does not keep its deadline must not keep a server from saying so.
                errors += [(uri, _overdue(uri)) for uri in running.values()]
                for late in running:
                    late.cancel()
                break
            for future in done:
                uri = running.pop(future)
                error = future.exception()
                if error is None:
                    for late in running:
                        late.cancel()  # one that has not begun need not
                    return future.result()
                if not isinstance(error, McpkeysError):
                    raise error
                errors.append((uri, error))
        raise _all_failed(context, errors)

    def _call(self, kms: Kms, wrap: Wrap, context: WrapContext) -> Unwrapped:
        key = b""
        try:
            with self._measure("unwrap", scheme_of(kms.uri)):
                key = kms.unwrap(wrap, context, deadline=self._clock.monotonic() + CALL_SECONDS)
            size = len(key)
        except McpkeysError:
            raise
        except Exception as exc:
            # A third-party plugin's own mistake must not take the instance down, nor carry what it held.
            raise PluginError(
                f"the KMS plugin of {kms.uri} failed", why=f"{type(exc).__name__} in unwrap", code="plugin-broken"
            ) from None
        if size != DATA_KEY_BYTES:
            del key  # tracebacks show the locals of every frame that an error crosses
            raise KmsUnreachable(f"{kms.uri} answered a key of {size} bytes", why=f"a key has {DATA_KEY_BYTES}")
        return Unwrapped(key, kms.uri)

    def close(self) -> None:
        """Drop the backends' connections; also for the child after fork."""
        for kms in self._kms.values():
            kms.close()


def _overdue(uri: str) -> KmsUnreachable:
    return KmsUnreachable(
        f"{uri} did not answer in time",
        why=f"its plugin did not return within the {CALL_SECONDS:g} seconds that it was given",
        next="check the network path to that KMS; a plugin must keep its deadline",
    )


def _not_asked(context: WrapContext, first: KmsUnreachable) -> KmsUnreachable:
    return KmsUnreachable(
        f"the {context.purpose} key {context.kid} was not asked for",
        why=f"the time for all keys together was over before; {first.what}",
        next=first.next,
        throttled=first.throttled,
    )


def _all_failed(context: WrapContext, errors: list[tuple[str, McpkeysError]]) -> McpkeysError:
    """One error for a key that no KEK opened, naming every KEK tried and its cause."""
    if len(errors) == 1:
        return errors[0][1]
    why = "; ".join(f"{uri}: {error.what}" + (f" ({error.why})" if error.why else "") for uri, error in errors)
    # The mildest cause decides: while one KEK may still answer, trying again can help.
    unreachable = [error for _, error in errors if isinstance(error, KmsUnreachable)]
    if unreachable:
        return KmsUnreachable(
            f"no KEK unwrapped the {context.purpose} key {context.kid}",
            why=why,
            next="mcpkeys doctor --as-server tells each KEK apart",
            throttled=any(error.throttled for error in unreachable),
        )
    # Where every KEK denies, rights are missing and nothing else is known to be wrong.
    final = KmsDenied if all(isinstance(error, KmsDenied) for _, error in errors) else KeysetLocked
    return final(
        f"no KEK unwrapped the {context.purpose} key {context.kid}",
        why=why,
        next="mcpkeys doctor --as-server tells each KEK apart",
    )
