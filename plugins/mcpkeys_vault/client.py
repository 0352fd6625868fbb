"""One Vault as its two users, Transit and KV, see it: calls with a living token, retried where that is safe."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from mcpkeys.errors import PluginError
from mcpkeys_vault.auth import Credentials
from mcpkeys_vault.consistency import Consistency
from mcpkeys_vault.reply import Reply
from mcpkeys_vault.settings import VaultSettings
from mcpkeys_vault.wire import Wire

_BEHIND_TRIES = 6


class VaultClient:
    """Calls to one Vault under one identity. Thread-safe and fork-safe; contacts nobody before the first call."""

    def __init__(self, settings: VaultSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self._wire = Wire(settings)
        self._consistency = Consistency()
        self._credentials = Credentials(settings, self._wire, self._consistency, clock=clock)

    def call(
        self,
        method: str,
        path: str,
        payload: Mapping[str, Any] | None = None,
        *,
        namespace: str,
        fresh: bool = False,
        deadline: float,
        repeatable: bool = True,
    ) -> Reply:
        """One call with this identity's token; never raises, never returns after `deadline`.

        A token that is gone is replaced once, a node that lags behind (412) is asked again, and a connection that
        broke is tried once more unless `repeatable` is false (a compare-and-swap write is resolved by reading).

        Args:
            path: without `/v1/`, already quoted.
            namespace: the URI's; empty: VAULT_NAMESPACE, else the root.
            fresh: the active node has to answer, so that every earlier write is seen.
        """
        logins, breaks, behind, learns = 1, 1 if repeatable else 0, 0, 2
        while True:
            token = self._credentials.token(deadline)
            if isinstance(token, Reply):
                return token
            reply = self._wire.send(
                method,
                path,
                token=token,
                namespace=namespace or self.settings.namespace,
                payload=payload,
                headers=self._consistency.headers(fresh=fresh),
                deadline=deadline,
            )
            if self._consistency.note(reply, wrote=method != "GET") and fresh and learns:
                learns -= 1
                continue
            if reply.status == 403 and not reply.by_policy and logins:
                logins -= 1
                renewed = self._credentials.renew_after_refusal(token, deadline)
                if isinstance(renewed, Reply):
                    return renewed
                if renewed or not fresh:
                    # The token lives and yet it was not the policies that refused: this node may not know it yet.
                    fresh = fresh or not renewed
                    continue
            elif reply.failure == "lost" and breaks:
                breaks -= 1
                continue
            elif self._consistency.refused(reply):
                continue
            elif reply.status == 412 and behind < _BEHIND_TRIES:
                pause = 0.05 * 2**behind
                behind += 1
                if time.monotonic() + pause < deadline:
                    time.sleep(pause)
                    continue
            return reply

    def anonymous(self, method: str, path: str, *, deadline: float) -> Reply:
        """One call without a token, in the root namespace (`sys/health`, `sys/leader`)."""
        return self._wire.send(method, path, token="", namespace="", deadline=deadline)

    def whoami(self, *, deadline: float) -> Reply:
        """What this identity's token is: `auth/token/lookup-self`. Never raises."""
        return self.call("GET", "auth/token/lookup-self", namespace=self.settings.auth_namespace, deadline=deadline)

    def describe_identity(self, reply: Reply) -> str:
        """A line for a person: how it logs in, its policies, how long it lives. No token."""
        policies = reply.data.get("policies")
        names = ", ".join(map(str, policies)) if isinstance(policies, list) else "unknown"
        ttl = reply.data.get("ttl")
        lives = f"expires in {ttl} s" if isinstance(ttl, int) and ttl else "does not expire"
        return f"{self.settings.auth} at {self.settings.address}, policies {names}, {lives}"

    def close(self) -> None:
        """Drop connections; the token is kept, and the object works again."""
        self._wire.close()


_SHARED: weakref.WeakValueDictionary[VaultSettings, VaultClient] = weakref.WeakValueDictionary()
_SHARED_LOCK = threading.Lock()


def _after_fork() -> None:
    global _SHARED_LOCK
    _SHARED_LOCK = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def open_client(session: Any = None) -> VaultClient:
    """The client for this environment, or for a caller's own `hvac.Client`. Contacts nobody.

    Equal settings share one client, so that several KEKs and the store log in once. Raises `PluginError` where
    hvac is not installed, `SettingError` for the environment.
    """
    if find_spec("hvac") is None:
        raise PluginError(
            "hashivault:// and vaultkv:// need the extra 'vault'",
            why="the module hvac is not installed",
            next='pip install "mcpkeys[vault]"',
            code="extra-missing",
        )
    settings = VaultSettings.from_environment() if session is None else VaultSettings.from_client(session)
    with _SHARED_LOCK:
        client = _SHARED.get(settings)
        if client is None:
            client = _SHARED[settings] = VaultClient(settings)
        return client
