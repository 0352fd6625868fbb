"""Tokens: where they come from, renewed before they expire, re-obtained when gone.

A token is renewed on use once two thirds of its life are over. Where renewing does not give it at least half
of its first life again (a maximum is near), and a login method is configured, a new login replaces it. A
renewal that fails leaves the token in use as long as it lives.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpkeys_vault.consistency import Consistency
from mcpkeys_vault.reply import Reply
from mcpkeys_vault.settings import VaultSettings
from mcpkeys_vault.wire import Wire

log = logging.getLogger("mcpkeys.vault")
_NEVER = float("inf")
_RETRY_SECONDS = 5.0


@dataclass(slots=True)
class _Lease:
    token: str
    first_ttl: float
    expires: float
    renew_at: float
    renewable: bool

    def __repr__(self) -> str:
        return f"_Lease(expires={self.expires}, renewable={self.renewable})"


class Credentials:
    """The token of one identity at one Vault. Thread-safe; logs in once however many threads ask.

    Args:
        clock: seconds, monotonic; tests pass their own.
    """

    def __init__(
        self,
        settings: VaultSettings,
        wire: Wire,
        consistency: Consistency,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._wire = wire
        self._consistency = consistency
        self._clock = clock
        self._lock = threading.Lock()
        self._lease: _Lease | None = None
        _LIVE.add(self)

    def token(self, deadline: float) -> str | Reply:
        """A living token, or the reply that says why there is none."""
        lease = self._lease
        now = self._clock()
        if lease is not None and now < lease.renew_at:
            return lease.token
        alive = lease is not None and now < lease.expires
        # Whoever finds the token alive goes on with it while another renews; else all wait for the one login.
        if not self._lock.acquire(blocking=not alive, timeout=-1 if alive else max(0.0, deadline - time.monotonic())):
            return (
                lease.token if alive and lease is not None else Reply(failure="timeout", note="a login takes too long")
            )
        try:
            if self._lease is lease:
                failure = self._renew(lease, deadline) if alive and lease is not None else self._obtain(deadline)
                if failure is not None:
                    return failure
            return (
                self._lease.token if self._lease is not None else Reply(failure="credentials-missing", note="no token")
            )
        finally:
            self._lock.release()

    def renew_after_refusal(self, token: str, deadline: float) -> bool | Reply:
        """Vault refused `token` outright. True: there is another one now; False: it lives, so a policy refused."""
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return Reply(failure="timeout", note="a login takes too long")
        try:
            if self._lease is not None and self._lease.token != token:
                return True
            seen = self._call("GET", "auth/token/lookup-self", token, None, deadline)
            if seen.ok or seen.by_policy:
                return False
            if seen.status != 403:
                return seen
            if self._lease is not None:
                log.warning("vault token refused; obtaining another (%s)", self._settings.auth)
            self._lease = None
            failure = self._obtain(deadline)
            return True if failure is None else failure
        finally:
            self._lock.release()

    def _obtain(self, deadline: float) -> Reply | None:
        if self._settings.auth == "token":
            return self._adopt(deadline)
        payload = self._login_payload()
        if isinstance(payload, Reply):
            return payload
        reply = self._call("POST", f"auth/{self._settings.auth_mount}/login", "", payload, deadline)
        if not reply.ok:
            if reply.failure or reply.status >= 429:
                return reply
            said = _without(reply.errors, payload)
            return Reply(
                failure="login-refused",
                note=f"Vault refused the {self._settings.auth} login (HTTP {reply.status}): {said}",
            )
        return self._keep(reply, None)

    def _adopt(self, deadline: float) -> Reply | None:
        token = self._given_token()
        if not token:
            return Reply(failure="credentials-missing", note="there is no Vault token")
        seen = self._call("GET", "auth/token/lookup-self", token, None, deadline)
        if seen.failure or seen.status >= 429:
            return seen
        if seen.status == 403 and not seen.by_policy:
            return Reply(
                failure="credentials-expired", note="Vault does not accept the token: expired, revoked or unknown"
            )
        ttl, renewable = seen.data.get("ttl"), seen.data.get("renewable") is True
        # Without the right to look itself up the token's life is unknown: it is used until it is refused.
        self._set(token, float(ttl) if isinstance(ttl, int) and ttl > 0 else _NEVER, renewable, None)
        return None

    def _renew(self, lease: _Lease, deadline: float) -> Reply | None:
        """Best effort: a failure is no failure as long as the token lives."""
        if lease.renewable:
            reply = self._call("POST", "auth/token/renew-self", lease.token, {}, deadline)
            if reply.ok and self._keep(reply, lease) is None:
                renewed = self._lease
                if renewed is None or self._settings.auth == "token":
                    return None
                if renewed.expires - self._clock() >= lease.first_ttl / 2:
                    return None
        if self._settings.auth != "token":
            failure = self._obtain(deadline)
        else:
            given = self._given_token()
            failure = self._adopt(deadline) if given and given != lease.token else Reply(note="not renewable")
        if failure is not None and self._lease is not None:
            log.warning("vault token not renewed, %.0f s left", max(0.0, self._lease.expires - self._clock()))
            self._lease.renew_at = self._clock() + min(_RETRY_SECONDS, (self._lease.expires - self._clock()) / 4)
        return None

    def _keep(self, reply: Reply, before: _Lease | None) -> Reply | None:
        auth = reply.body.get("auth")
        token = auth.get("client_token") if isinstance(auth, dict) else None
        ttl = auth.get("lease_duration") if isinstance(auth, dict) else None
        if not isinstance(auth, dict) or not isinstance(token, str) or not token or not isinstance(ttl, int):
            return Reply(failure="garbage", note="the login's answer has no token")
        self._set(token, float(ttl) if ttl > 0 else _NEVER, auth.get("renewable") is True, before)
        return None

    def _set(self, token: str, ttl: float, renewable: bool, before: _Lease | None) -> None:
        now = self._clock()
        first = ttl if before is None else max(ttl, before.first_ttl)
        self._lease = _Lease(token, first, now + ttl, now + ttl * 2 / 3, renewable)

    def _login_payload(self) -> dict[str, str] | Reply:
        settings = self._settings
        if settings.auth == "approle":
            role_id = settings.role_id or _file(settings.role_id_file)
            secret_id = _file(settings.secret_id_file) if settings.secret_id_file else settings.secret_id
            if not role_id or not secret_id:
                return Reply(
                    failure="credentials-missing", note="the role id's or secret id's file is missing or empty"
                )
            return {"role_id": role_id, "secret_id": secret_id}
        jwt = _file(settings.jwt_file)
        if not jwt:
            return Reply(failure="credentials-missing", note=f"{settings.jwt_file} is missing or empty")
        return {"role": settings.role, "jwt": jwt}

    def _given_token(self) -> str:
        if self._settings.token_file:
            return _file(self._settings.token_file)
        return self._settings.token or _file("~/.vault-token")

    def _call(self, method: str, path: str, token: str, payload: dict[str, Any] | None, deadline: float) -> Reply:
        while True:
            reply = self._wire.send(
                method,
                path,
                token=token,
                namespace=self._settings.auth_namespace,
                payload=payload,
                headers=self._consistency.headers(fresh=True),  # a lagging node takes a new token for an unknown one
                deadline=deadline,
            )
            self._consistency.note(reply, wrote=method != "GET")
            if not self._consistency.refused(reply):
                return reply


_LIVE: weakref.WeakSet[Credentials] = weakref.WeakSet()


def _after_fork() -> None:
    # Another thread may have held the lock when this process was forked; the token itself is as good here as there.
    for credentials in list(_LIVE):
        credentials._lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _file(path: str) -> str:
    try:
        return Path(path).expanduser().read_text("utf-8").strip()
    except (OSError, ValueError, RuntimeError):
        return ""


def _without(text: str, secrets: dict[str, str]) -> str:
    for name, value in secrets.items():
        if name != "role":
            text = text.replace(value, "...")
    return text
