"""One KEK before `doctor`: reachable, known, its wraps open here, the wrong context is refused, nothing in excess."""

from __future__ import annotations

import hmac
import secrets
import time

from mcpkeys.authoring import new_kid
from mcpkeys.diagnosis import CALL_SECONDS, Diagnosis, guarded, hook, listed
from mcpkeys.errors import Denied, McpkeysError, Unreachable, UnwrapRefused
from mcpkeys.keyset import Keyset
from mcpkeys.kms import DATA_KEY_BYTES, KekState, Kms, Wrap, WrapContext, identity


def soon() -> float:
    """A deadline for one call."""
    return time.monotonic() + CALL_SECONDS


def check_kek(seen: Diagnosis, kms: Kms, keyset: Keyset | None, name: str) -> None:
    """Everything about one KEK. `keyset` None: it could not be read; `name`: as configured."""
    uri = kms.uri
    if getattr(kms, "unresolved", False):
        seen.found(
            uri, "pinned", "refused", "kek-not-pinned", f"{uri} is an alias",
            "whoever may update it can repoint it, so servers refuse it",
            "configure the key's ARN: mcpkeys init and rewrap print it",
        )  # fmt: skip
        return
    _credentials(seen, kms)
    state = _state(seen, kms)
    if state is False:
        return
    opened = _stored(seen, kms, keyset, state if isinstance(state, KekState) else None)
    if seen.role == "operator":
        _round_trip(seen, kms, name)
    elif not uri.startswith("local:") and (opened or isinstance(state, KekState)):
        _may_wrap(seen, kms, name)
    check_excess(seen, kms.uri, kms)


def _credentials(seen: Diagnosis, kms: Kms) -> None:
    source = hook(kms, "credentials")
    if source is None:
        return
    found = seen.attempt(kms.uri, "credentials", lambda: str(source(deadline=soon())))
    if found is not None:
        seen.passed(kms.uri, "credentials", found)


def _state(seen: Diagnosis, kms: Kms) -> KekState | bool | None:
    """Its state; None where this identity may not see it; False where going on is of no use."""
    try:
        state = guarded(kms.uri, lambda: kms.describe(deadline=soon()))
    except Denied as exc:
        if seen.role == "server":
            seen.skipped(kms.uri, "state", "this identity may not see it, and need not")
        else:
            seen.failed(kms.uri, "state", exc, level="warned")
        return None
    except McpkeysError as exc:
        seen.failed(kms.uri, "state", exc)
        return False
    if not (state.exists and state.enabled):
        what = "is disabled or cannot be used" if state.exists else "does not exist"
        seen.found(
            kms.uri, "state", "refused", "kek-unusable", f"{kms.uri} {what}", state.detail or "its KMS says so",
            "mend it in its KMS, or move to another one: mcpkeys rewrap --add-kek URI",
        )  # fmt: skip
        return False
    detail = "" if state.newest is None else f"newest version {state.newest}"
    seen.passed(kms.uri, "state", ", ".join(part for part in (state.detail, detail) if part))
    return state


def _round_trip(seen: Diagnosis, kms: Kms, name: str) -> None:
    """Wrap and unwrap a random key, and try every wrong context. Under purpose `report`, which each role may open."""
    context = WrapContext("report", name, new_kid())
    key = secrets.token_bytes(DATA_KEY_BYTES)
    wrap = seen.attempt(kms.uri, "wrap", lambda: kms.wrap(key, context, deadline=soon()))
    if wrap is None:
        return
    seen.passed(kms.uri, "wrap")
    opened = seen.attempt(kms.uri, "unwrap", lambda: kms.unwrap(wrap, context, deadline=soon()))
    if opened is None:
        return
    if not hmac.compare_digest(opened, key):
        seen.found(
            kms.uri, "unwrap", "refused", "unwrap-differs", f"{kms.uri} does not give back what it wrapped",
            "the test unwrap answered another key", "use another KEK, and report this to its KMS",
        )  # fmt: skip
        return
    seen.passed(kms.uri, "unwrap")
    wrong_contexts(seen, kms, wrap, context)


def wrong_contexts(seen: Diagnosis, kms: Kms, wrap: Wrap, context: WrapContext) -> None:
    """Whether the wrap opens under another kid, keyset or purpose: it must not."""
    purpose = "seal" if context.purpose != "seal" else "report"
    others = {
        "kid": WrapContext(context.purpose, context.keyset, new_kid()),
        "keyset": WrapContext(context.purpose, f"{context.keyset[:60]}-x", context.kid),
        "purpose": WrapContext(purpose, context.keyset, context.kid),  # type: ignore[arg-type]
    }
    loose = []
    for part, other in others.items():
        try:
            guarded(kms.uri, lambda other=other: kms.unwrap(wrap, other, deadline=soon()))  # type: ignore[misc]
        except (UnwrapRefused, Denied):
            continue
        except McpkeysError as exc:
            seen.failed(kms.uri, "context", exc)
            return
        loose.append(part)
    if loose:
        seen.found(
            kms.uri, "context", "refused", "context-not-bound", f"{kms.uri} ignores the {', '.join(loose)}",
            "a wrapped key that is moved to another kid, keyset or purpose would open",
            "use another key: for Transit one of type aes256-gcm96 on a server that knows associated_data",
        )  # fmt: skip
    else:
        seen.passed(kms.uri, "context", "another kid, keyset or purpose is refused")


def _stored(seen: Diagnosis, kms: Kms, keyset: Keyset | None, state: KekState | None) -> bool:
    """The keyset's own wraps by this KEK: there, not too old, and open here. Whether one opened."""
    if keyset is None:
        return False
    wraps = {
        "report": (keyset.report_key.kid, _by(kms, keyset.report_key.wrapped)),
        "seal": (keyset.minting.kid, _by(kms, keyset.minting.wrapped)),
    }
    if all(wrap is None for _, wrap in wraps.values()):
        seen.found(
            kms.uri, "wraps", "warned", "kek-unused", f"{kms.uri} is pinned and wraps nothing of this keyset",
            "it helps nobody to start", f"mcpkeys rewrap --add-kek {kms.uri}, or take it out of MCPKEYS_KEKS",
        )  # fmt: skip
        return False
    opened = False
    for purpose, (kid, wrap) in wraps.items():
        if wrap is None:
            continue
        context = WrapContext(purpose, keyset.name, kid)  # type: ignore[arg-type]
        check = f"open the {purpose} key"
        try:
            guarded(kms.uri, lambda wrap=wrap, context=context: kms.unwrap(wrap, context, deadline=soon()))  # type: ignore[misc]
        except Denied as exc:
            if purpose == "seal" and seen.role == "operator":
                seen.skipped(kms.uri, check, "an operator need not see data keys")
                continue
            seen.failed(kms.uri, check, exc)
            continue
        except McpkeysError as exc:
            seen.failed(kms.uri, check, exc)
            if isinstance(exc, Unreachable):
                break
            continue
        opened = True
        seen.passed(kms.uri, check)
        if seen.role == "server" and purpose == "seal":
            wrong_contexts(seen, kms, wrap, context)
    _versions(seen, kms, keyset, state)
    return opened


def _by(kms: Kms, wrapped: tuple[Wrap, ...]) -> Wrap | None:
    return next((wrap for wrap in wrapped if identity(wrap.kek) == identity(kms.uri)), None)


def _versions(seen: Diagnosis, kms: Kms, keyset: Keyset, state: KekState | None) -> None:
    if state is None or state.newest is None:
        return
    wrapped = [*(key.wrapped for key in keyset.live), keyset.report_key.wrapped, keyset.signer.wrapped]
    wraps = [wrap for wrap in (_by(kms, one) for one in wrapped) if wrap is not None]
    old = sorted({wrap.version for wrap in wraps if wrap.version != state.newest})
    if old:
        seen.found(
            kms.uri, "versions", "warned", "rewrap-due",
            f"keys are wrapped by version {listed(old)} of {kms.uri}, the newest is {state.newest}",
            "once the old version is disabled or destroyed, no server can start", "mcpkeys rewrap",
        )  # fmt: skip
    else:
        seen.passed(kms.uri, "versions", f"everything is wrapped by version {state.newest}")


def _may_wrap(seen: Diagnosis, kms: Kms, name: str) -> None:
    """A server that can wrap could plant a key of its own choosing."""
    context = WrapContext("seal", name, new_kid())
    try:
        guarded(kms.uri, lambda: kms.wrap(secrets.token_bytes(DATA_KEY_BYTES), context, deadline=soon()))
    except Denied:
        seen.passed(kms.uri, "wraps nothing", "as a server should")
    except McpkeysError as exc:
        seen.skipped(kms.uri, "wraps nothing", exc.what)
    else:
        seen.found(
            kms.uri, "wraps nothing", "warned", "server-may-wrap", f"this identity may wrap by {kms.uri}",
            "a server needs to decrypt only; one that can encrypt can plant a key",
            "give it the policy of mcpkeys policy aws|gcp|vault --role server",
        )  # fmt: skip


def check_excess(seen: Diagnosis, subject: str, plugin: object) -> None:
    """Rights beyond the role, and what others may do, where the plugin can tell."""
    look = hook(plugin, "hazards")
    if look is not None:
        for hazard in seen.attempt(subject, "hazards", lambda: list(look(deadline=soon()))) or ():
            seen.found(
                subject, "hazards", "warned", "hazard", str(hazard), "whoever can replace it can stop the service",
                "take that right away: chmod o-w",
            )  # fmt: skip
    ask = hook(plugin, "excess_rights")
    if ask is None:
        return
    try:
        rights = [str(right) for right in guarded(subject, lambda: ask(seen.role, deadline=soon()))]
    except McpkeysError as exc:
        seen.skipped(subject, "rights", exc.what)
        return
    if rights:
        seen.found(
            subject, "rights", "warned", "rights-unneeded", f"this identity may do more than a {seen.role} needs",
            listed(rights), f"mcpkeys policy vault --role {seen.role} prints what it needs",
        )  # fmt: skip
    else:
        seen.passed(subject, "rights", f"no more than a {seen.role} needs")
