"""OpenTelemetry: what a fleet's dashboards and alerts read. docs/reference/observability.md lists the names.

Counters and gauges are observed: the hot path only touches plain attributes, which the callbacks here read when a
reader asks. Without an SDK the API does nothing. Never a token, a principal or a state: kids are public.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Observation

from mcpkeys.errors import McpkeysError

if TYPE_CHECKING:
    from mcpkeys.codec import EnvelopeCodec

SCOPE = "mcpkeys"
_codecs: weakref.WeakSet[EnvelopeCodec] = weakref.WeakSet()
_lock = threading.Lock()
_made: list[object] = []

tracer = trace.get_tracer(SCOPE)
_kms_duration = metrics.get_meter(SCOPE).create_histogram(
    "mcpkeys.kms.duration", unit="s", description="Calls to a KMS, by operation, scheme and outcome."
)
Observe = Callable[["EnvelopeCodec"], Iterator[Observation]]


def watch(codec: EnvelopeCodec) -> None:
    """Let this open codec be observed until it is closed or collected."""
    with _lock:
        _codecs.add(codec)
        if not _made:
            _made.extend(_instruments())


def forget(codec: EnvelopeCodec) -> None:
    """A closed codec is observed no more."""
    with _lock:
        _codecs.discard(codec)


@contextmanager
def kms_call(operation: str, scheme: str) -> Iterator[None]:
    """Measure one call to a KMS, as a span and in the histogram."""
    started = time.perf_counter()
    outcome = "ok"
    with tracer.start_as_current_span(
        f"mcpkeys.kms.{operation}", attributes={"mcpkeys.kms.scheme": scheme}, record_exception=False
    ):
        try:
            yield
        except McpkeysError as exc:
            outcome = exc.code
            raise
        except Exception:
            outcome = "plugin-broken"
            raise
        finally:
            attributes = {"mcpkeys.kms.operation": operation, "mcpkeys.kms.scheme": scheme, "mcpkeys.outcome": outcome}
            _kms_duration.record(time.perf_counter() - started, attributes)


def _instruments() -> Iterable[object]:
    meter = metrics.get_meter(SCOPE)

    def observed(observe: Observe) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def callback(options: CallbackOptions) -> Iterable[Observation]:
            with _lock:
                codecs = list(_codecs)
            for codec in codecs:
                yield from observe(codec)

        return callback

    # A unit in braces is an annotation: "1" would make exporters append "_ratio".
    counters: tuple[tuple[str, str, str, Observe], ...] = (
        ("mcpkeys.seals", "{token}", "Tokens minted, by kid and its state then.", _seals),
        ("mcpkeys.unseals", "{token}", "Tokens opened, by kid and its state then.", _unseals),
        ("mcpkeys.refusals", "{token}", "Tokens refused, by reason and the state of the key named.", _refusals),
        ("mcpkeys.refreshes", "{refresh}", "Refreshes, by result.", _refreshes),
    )
    gauges: tuple[tuple[str, str, str, Observe], ...] = (
        ("mcpkeys.keyset.generation", "{generation}", "The generation in use.", _generation),
        ("mcpkeys.keyset.age", "s", "Since the generation in use was adopted.", _adopted),
        ("mcpkeys.minting_key.age", "s", "Since the minting key was created.", _minting_age),
        ("mcpkeys.refresh.age", "s", "Since the last successful refresh began.", _refresh_age),
        ("mcpkeys.stale.left", "s", "Until the ring is stale; absent where max_stale is off.", _stale_left),
        ("mcpkeys.ready", "{instance}", "1 where this instance can mint and verify.", _ready),
    )
    for name, unit, text, observe in counters:
        yield meter.create_observable_counter(name, [observed(observe)], unit=unit, description=text)
    for name, unit, text, observe in gauges:
        yield meter.create_observable_gauge(name, [observed(observe)], unit=unit, description=text)


def _about(codec: EnvelopeCodec) -> dict[str, str]:
    return {"mcpkeys.keyset": codec.ring.name}


def _by_key(codec: EnvelopeCodec, which: str) -> Iterator[Observation]:
    from mcpkeys.keyuse import read_count

    for key in codec.ring.keys.values():
        for state, counts in list(key.use.by_state.items()):
            attributes = {**_about(codec), "mcpkeys.kid": key.kid, "mcpkeys.key.state": state}
            yield Observation(read_count(getattr(counts, which)), attributes)


def _seals(codec: EnvelopeCodec) -> Iterator[Observation]:
    return _by_key(codec, "seals")


def _unseals(codec: EnvelopeCodec) -> Iterator[Observation]:
    return _by_key(codec, "unseals")


def _refusals(codec: EnvelopeCodec) -> Iterator[Observation]:
    for (reason, state), count in codec.refusals_by_key_state.items():
        yield Observation(count, {**_about(codec), "mcpkeys.reason": reason, "mcpkeys.key.state": state})


def _refreshes(codec: EnvelopeCodec) -> Iterator[Observation]:
    refresher = codec.refresher
    if refresher is not None:
        yield Observation(refresher.successes, {**_about(codec), "mcpkeys.outcome": "ok"})
        yield Observation(refresher.failures, {**_about(codec), "mcpkeys.outcome": "failed"})


def _generation(codec: EnvelopeCodec) -> Iterator[Observation]:
    yield Observation(codec.ring.generation, _about(codec))


def _adopted(codec: EnvelopeCodec) -> Iterator[Observation]:
    yield Observation(max(0.0, time.time() - codec.adopted_at), _about(codec))


def _minting_age(codec: EnvelopeCodec) -> Iterator[Observation]:
    ring = codec.ring
    if ring.minting is not None:
        yield Observation(max(0.0, time.time() - ring.keys[ring.minting].created_at / 1000), _about(codec))


def _refresh_age(codec: EnvelopeCodec) -> Iterator[Observation]:
    age = codec.refresh_age
    if age is not None:
        yield Observation(age, _about(codec))


def _stale_left(codec: EnvelopeCodec) -> Iterator[Observation]:
    left = codec.stale_left
    if left is not None:
        yield Observation(left, _about(codec))


def _ready(codec: EnvelopeCodec) -> Iterator[Observation]:
    yield Observation(int(codec.ready()), _about(codec))
