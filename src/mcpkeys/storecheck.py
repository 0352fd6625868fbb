"""The store before `doctor`: the keyset is there and authentic, clocks agree, reports can be written or gathered."""

from __future__ import annotations

import os
import secrets
import time

from mcpkeys import document, listing, reports
from mcpkeys import keyset as keysets
from mcpkeys.diagnosis import CALL_SECONDS, Diagnosis, guarded, hook
from mcpkeys.encoding import b64u, to_ms
from mcpkeys.errors import Denied, McpkeysError
from mcpkeys.kekcheck import check_excess, soon
from mcpkeys.keyset import Keyset
from mcpkeys.loading import Pins
from mcpkeys.reports import Report
from mcpkeys.store import Found, Store


def read_keyset(seen: Diagnosis, store: Store, pins: Pins) -> Keyset | None:
    """The verified keyset; None where there is none to be had, which is a finding."""
    source = hook(store, "credentials")
    if source is not None:
        found_source = seen.attempt(store.uri, "credentials", lambda: str(source(deadline=soon())))
        if found_source is not None:
            seen.passed(store.uri, "credentials", found_source)

    def read() -> Found | None:
        return store.read(None, fresh=True, deadline=time.monotonic() + 2 * CALL_SECONDS)

    found = seen.attempt(store.uri, "read", read)
    if found is None:
        return None
    seen.passed(store.uri, "read", f"{len(found.body):,} bytes")

    def verify() -> Keyset:
        keyset = document.read(found.body, signers=pins.signers, name=pins.name)
        keysets.check_succession(keysets.Seen(pins.min_generation), keyset)
        return keyset

    keyset = seen.attempt(store.uri, "keyset", verify)
    if keyset is not None:
        seen.passed(store.uri, "keyset", f"generation {keyset.generation}, authentic")
    return keyset


def check_store(seen: Diagnosis, store: Store, keyset: Keyset | None, report_key: bytes | None) -> None:
    """Everything else about the store."""
    _clock(seen, store, keysets.DEFAULT_SKEW_SECONDS if keyset is None else keyset.skew_seconds)
    test = hook(store, "self_test")
    if test is not None and seen.role == "operator":
        # Called for its error alone.
        before = len(seen.findings)
        seen.attempt(store.uri, "compare-and-swap", lambda: test(soon()))
        if len(seen.findings) == before:
            seen.passed(store.uri, "compare-and-swap", "the server refuses what it must")
    if seen.role == "operator":
        _gather(seen, store)
    elif keyset is not None and keyset.evidence == "attest":
        seen.skipped(store.uri, "report", "this keyset's instances do not report (evidence: attest)")
    elif keyset is not None and report_key is not None:
        _report(seen, store, keyset, report_key)
    check_excess(seen, store.uri, store)


def _clock(seen: Diagnosis, store: Store, skew: int) -> None:
    started = time.time()
    answer = seen.attempt(store.uri, "clock", lambda: store.now(deadline=soon()))
    if answer is None:
        return
    if getattr(store, "own_clock", True) is False:
        # Compared with itself it is always right.
        seen.skipped(store.uri, "clock", "not checked: the store's clock is this machine's")
        return
    now, resolution = answer
    # The store's moment lies between the two readings of this clock.
    ended = time.time()
    off = max(started - now - resolution, 0.0) or min(ended - now, 0.0)
    limit = skew / 2 or 1.0
    if abs(off) > limit:
        way = "ahead of" if off > 0 else "behind"
        seen.found(
            store.uri, "clock", "refused", "clock-skew",
            f"this machine's clock is {abs(off):.0f} s {way} the store's", "more than half of skew_seconds: rotations "
            "stop, tokens look expired or not yet valid", "set the clock (NTP), then run this again",
        )  # fmt: skip
    else:
        seen.passed(store.uri, "clock", f"within {max(abs(off), 0.01):.2f} s")


def _gather(seen: Diagnosis, store: Store) -> None:
    try:
        deadline = time.monotonic() + 2 * CALL_SECONDS
        count = guarded(store.uri, lambda: sum(1 for _ in listing.listed(store, deadline=deadline)))
    except McpkeysError as exc:
        seen.failed(store.uri, "reports", exc)
    else:
        seen.passed(store.uri, "reports", f"{count} can be listed and read")


def _report(seen: Diagnosis, store: Store, keyset: Keyset, report_key: bytes) -> None:
    """Write and delete a report under a throwaway id. It is an authentic farewell, which no step waits for."""
    instance = b64u(secrets.token_bytes(16))
    at = to_ms(time.time())
    body = reports.encode(
        Report(
            keyset=keyset.name,
            instance=instance,
            label="mcpkeys doctor",
            pid=os.getpid(),
            state="farewell",
            seq=1,
            generation=0,
            digest="",
            clock=at,
            clock_started=at,
        ),
        report_key,
    )
    try:
        guarded(store.uri, lambda: store.put_report(instance, body, deadline=soon()))
    except McpkeysError as exc:
        seen.failed(store.uri, "report", exc)
        return
    try:
        guarded(store.uri, lambda: store.delete_report(instance, deadline=soon()))
    except Denied:
        seen.passed(store.uri, "report", f"written; this identity may not delete it ({instance}): mcpkeys purge does")
    except McpkeysError as exc:
        seen.failed(store.uri, "report", exc, level="warned")
    else:
        seen.passed(store.uri, "report", "written and deleted under a throwaway id")
