"""`diagnose`: the whole preflight of a configuration, under this identity, as an operator or as a server."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mcpkeys import listing, registry, reports, wraphealth
from mcpkeys.authoring import Author
from mcpkeys.diagnosis import CALL_SECONDS, Diagnosis, Role
from mcpkeys.errors import McpkeysError, SettingError
from mcpkeys.glimpse import glimpse_of_uri
from mcpkeys.kekcheck import check_kek, soon
from mcpkeys.keks import Job, Keks, Unwrapped
from mcpkeys.keyset import Keyset
from mcpkeys.kms import Kms, Wrap, WrapContext, identity
from mcpkeys.loading import Pins
from mcpkeys.settings import Settings
from mcpkeys.store import Store
from mcpkeys.storecheck import check_store, read_keyset


def diagnose(settings: Settings, *, role: Role) -> Diagnosis:
    """Ask every KEK and the store. Raises nothing for what is wrong with them: that is what it finds."""
    seen = Diagnosis(role)
    try:
        settings.require()
    except SettingError as exc:
        seen.failed("settings", "settings", exc)
    backends: list[Kms] = []
    for uri in settings.keks:
        opened = seen.attempt(glimpse_of_uri(uri), "uri", partial(registry.open_kms, uri))
        backends += [] if opened is None else [opened]
    store = (
        seen.attempt(glimpse_of_uri(settings.keyset), "uri", lambda: registry.open_store(settings.keyset))
        if settings.keyset
        else None
    )
    try:
        pins = Pins(settings.name or None, settings.signers, settings.min_generation)
        keyset = None if store is None else read_keyset(seen, store, pins)
        name = settings.name or (keyset.name if keyset is not None else "doctor")
        for kms in backends:
            check_kek(seen, kms, keyset, name)
        keks = Keks([kms for kms in backends if not getattr(kms, "unresolved", False)])
        if keyset is not None:
            _pinned(seen, keyset, keks)
            _signer(seen, keyset, keks, pins, store)
        report_key = None if keyset is None else _report_key(keyset, keks)
        if store is not None:
            check_store(seen, store, keyset, report_key)
            if keyset is not None and role == "operator":
                _health(seen, store, keyset, report_key)
    finally:
        for backend in backends:
            backend.close()
        if store is not None:
            store.close()
    return seen


def _pinned(seen: Diagnosis, keyset: Keyset, keks: Keks) -> None:
    missing = [uri for uri in keyset.keks if keks.get(uri) is None]
    for uri in missing:
        seen.found(
            uri, "pinned", "warned", "kek-unpinned", f"the keyset is wrapped by {uri}, which is not pinned here",
            "a wrap by a KEK that is not pinned is ignored", "add it to MCPKEYS_KEKS, or mcpkeys rewrap --remove-kek",
        )  # fmt: skip


def _signer(seen: Diagnosis, keyset: Keyset, keks: Keks, pins: Pins, store: Store | None) -> None:
    """An operator must open the signer; a server must not."""
    subject = keyset.signer.public
    if seen.role == "operator":
        if store is None or 4 in seen.codes:
            seen.skipped(subject, "sign", "somebody does not answer")
            return
        author = Author(store, keks, pins)
        if seen.attempt(subject, "sign", lambda: author.signer(keyset)) is not None:
            seen.passed(subject, "sign", "this identity can sign the keyset")
        return
    opened = [wrap.kek for wrap in keyset.signer.wrapped if _opens(keyset, wrap, keks)]
    if not opened:
        seen.passed(subject, "signer is out of reach", "this identity cannot sign a keyset")
        return
    only_local = all(uri.startswith("local:") for uri in (*keyset.keks, *opened))
    seen.found(
        subject, "signer is out of reach", "warned" if only_local else "refused", "signer-open",
        f"a server under this identity can open the signer, by {', '.join(opened)}",
        "who takes over one server could forge keysets for all",
        "give the signer a KEK that servers may not use: mcpkeys rewrap --add-sign-kek URI --remove-sign-kek "
        f"{opened[0]}" + ("" if only_local else "; or keep servers to their purposes: mcpkeys policy --role server"),
    )  # fmt: skip


def _opens(keyset: Keyset, wrap: Wrap, keks: Keks) -> bool:
    own: Kms | None = None
    try:
        kms = keks.get(wrap.kek)
        if kms is None:
            kms = own = registry.open_kms(wrap.kek)
        kms.unwrap(wrap, WrapContext("sign", keyset.name, keyset.signer.kid), deadline=soon())
    except Exception:
        # Whatever it is: this identity did not open it.
        return False
    finally:
        if own is not None:
            own.close()
    return True


def _report_key(keyset: Keyset, keks: Keks) -> bytes | None:
    if not keks.uris:
        return None
    job = Job(WrapContext("report", keyset.name, keyset.report_key.kid), keyset.report_key.wrapped)
    answer = keks.unwrap([job], patience=keks.impatient())[keyset.report_key.kid]
    return answer.key if isinstance(answer, Unwrapped) else None


def _health(seen: Diagnosis, store: Store, keyset: Keyset, report_key: bytes | None) -> None:
    """What the fleet says of its KEKs: canaries, missing wraps."""
    if report_key is None:
        return
    try:
        found = list(listing.listed(store, deadline=soon() + CALL_SECONDS))
    except McpkeysError:
        return  # told already
    try:
        gathered = reports.gather(listing.in_time(found), [report_key], keyset=keyset.name)
    except McpkeysError as exc:
        seen.failed(store.uri, "reports", exc)
        return
    warnings = wraphealth.warnings(keyset, [entry.report for entry in gathered.received])
    for warning in warnings:
        what, _, then = warning.partition(": ")
        seen.found(
            keyset.name, "wraps", "warned", "wrap-health", what, "running servers go on, new ones may not start",
            then or "mcpkeys rewrap",
        )  # fmt: skip
    _unproven(seen, keyset, [entry.report for entry in gathered.received if entry.report.state == "serving"])


def _unproven(seen: Diagnosis, keyset: Keyset, live: Sequence[reports.Report]) -> None:
    for uri in keyset.keks:
        without = [r.label or r.instance for r in live if identity(uri) not in {identity(k) for k in r.unwraps_by}]
        if live and len(without) == len(live):
            seen.found(
                uri, "proven", "warned", "kek-unproven", f"no running instance has unwrapped by {uri} yet",
                "whether servers could start by it alone is not proven",
                "pin it at every server (MCPKEYS_KEKS) and restart them, or wait for their canaries",
            )  # fmt: skip
