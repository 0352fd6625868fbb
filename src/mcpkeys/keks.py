"""The configured KEKs of an instance or command: unwrapping by any one of them, in time.

The configured order is "nearest first". A key is asked of the first KEK that wrapped it; the next one joins after
500 ms or at once where the first fails; the first good answer wins. Calls have 2 seconds each, all of them together
10 seconds with full jitter between tries; a KMS that answers "throttled" extends that to 60 seconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from mcpkeys import registry
from mcpkeys.clock import Clock, SystemClock
from mcpkeys.errors import KeysetLocked, KmsUnreachable, McpkeysError, PluginError
from mcpkeys.kms import Kms, Wrap, WrapContext, identity, scheme_of

CALL_SECONDS = 2.0
TOTAL_SECONDS = 10.0
THROTTLED_SECONDS = 60.0
HEDGE_SECONDS = 0.5
MAX_PARALLEL = 32


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

    def unwrap(self, jobs: Sequence[Job], *, total: float = TOTAL_SECONDS) -> dict[str, Unwrapped | McpkeysError]:
        """Unwrap every job, all in parallel; kid -> the key, or the one error that tells why not.

        Never raises for a key that cannot be unwrapped: what that means is the caller's decision.
        """
        started = self._clock.monotonic()
        if not self._parallel or not jobs:
            return {job.context.kid: self._attempt(job, started, total, None) for job in jobs}
        # Twice as many workers as jobs, so that a hedged call never waits for a worker.
        pool = ThreadPoolExecutor(min(MAX_PARALLEL, 1 + len(jobs) * (1 + len(self._kms))), "mcpkeys-unwrap")
        try:
            futures = {job.context.kid: pool.submit(self._attempt, job, started, total, pool) for job in jobs}
            return {kid: future.result() for kid, future in futures.items()}
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _attempt(
        self, job: Job, started: float, total: float, pool: ThreadPoolExecutor | None
    ) -> Unwrapped | McpkeysError:
        usable = self.usable(job.wrapped)
        if not usable:
            return KeysetLocked(
                f"no pinned KEK wrapped the key {job.context.kid}",
                why=f"it is wrapped by {', '.join(wrap.kek for wrap in job.wrapped) or 'nobody'}; "
                f"pinned: {', '.join(self.uris)}",
                next="correct MCPKEYS_KEKS, or add the KEK with mcpkeys rewrap --add-kek",
            )

        def exhausted(state: RetryCallState) -> bool:
            error = state.outcome.exception() if state.outcome is not None else None
            throttled = isinstance(error, KmsUnreachable) and error.throttled
            limit = max(total, THROTTLED_SECONDS) if throttled else total
            return self._clock.monotonic() - started >= limit

        retrying = Retrying(
            retry=retry_if_exception(lambda error: isinstance(error, KmsUnreachable)),
            wait=wait_random_exponential(multiplier=0.1, max=5.0),
            stop=exhausted,
            sleep=self._clock.sleep,
            reraise=True,
        )
        try:
            return retrying(self._once, job.context, usable, pool)
        except McpkeysError as exc:
            return exc

    def _once(self, context: WrapContext, usable: list[tuple[Kms, Wrap]], pool: ThreadPoolExecutor | None) -> Unwrapped:
        """One round over the KEKs that can unwrap this key."""
        errors: list[tuple[str, McpkeysError]] = []
        if pool is None or len(usable) == 1:
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
                running[pool.submit(self._call, kms, wrap, context)] = kms.uri
            done, _ = wait(running, timeout=HEDGE_SECONDS if waiting else None, return_when=FIRST_COMPLETED)
            for future in done:
                uri = running.pop(future)
                error = future.exception()
                if error is None:
                    return future.result()
                if not isinstance(error, McpkeysError):
                    raise error
                errors.append((uri, error))
        raise _all_failed(context, errors)

    def _call(self, kms: Kms, wrap: Wrap, context: WrapContext) -> Unwrapped:
        try:
            with self._measure("unwrap", scheme_of(kms.uri)):
                key = kms.unwrap(wrap, context, deadline=self._clock.monotonic() + CALL_SECONDS)
        except McpkeysError:
            raise
        except Exception as exc:
            # A third-party plugin's own mistake must not take the instance down, nor carry what it held.
            raise PluginError(
                f"the KMS plugin of {kms.uri} failed", why=f"{type(exc).__name__} in unwrap", code="plugin-broken"
            ) from None
        if len(key) != 32:
            raise KmsUnreachable(f"{kms.uri} answered a key of {len(key)} bytes", why="a data key has 32")
        return Unwrapped(key, kms.uri)

    def close(self) -> None:
        """Drop the backends' connections; also for the child after fork."""
        for kms in self._kms.values():
            kms.close()


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
    return KeysetLocked(
        f"no KEK unwrapped the {context.purpose} key {context.kid}",
        why=why,
        next="mcpkeys doctor --as-server tells each KEK apart",
    )
