"""HTTP to one Vault: hvac's adapter, with deadlines that hold and no redirects.

Differs from hvac's defaults where those would hurt a fleet: no 30 s time-out, no redirect that would carry a
token to another host, no `.netrc`, every answer comes back as a `Reply` (hvac folds 412, 472 and 473 into one
exception), and connections are not carried into a forked child.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from mcpkeys_vault.reply import Reply
from mcpkeys_vault.settings import VaultSettings

MAX_ANSWER_BYTES = 8 << 20
_POOL = 16


class Wire:
    """Connections to one Vault. Thread-safe; opens none before the first call; works again after `close`."""

    def __init__(self, settings: VaultSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._adapter: Any = None
        _LIVE.add(self)

    def send(
        self,
        method: str,
        path: str,
        *,
        token: str,
        namespace: str,
        payload: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        deadline: float,
    ) -> Reply:
        """One request, one answer; never raises and never returns after `deadline` (`time.monotonic()`)."""
        sent = {**(headers or {})}
        if token:
            sent["X-Vault-Token"] = token
        if namespace:
            sent["X-Vault-Namespace"] = namespace
        return _within(deadline, lambda: self._exchange(method, path, sent, payload, deadline))

    def close(self) -> None:
        """Drop idle connections."""
        with self._lock:
            adapter, self._adapter = self._adapter, None
        if adapter is not None:
            adapter.close()

    def _exchange(
        self, method: str, path: str, headers: dict[str, str], payload: Mapping[str, Any] | None, deadline: float
    ) -> Reply:
        from requests import exceptions
        from urllib3.exceptions import HTTPError, NewConnectionError

        left = deadline - time.monotonic()
        if left <= 0:
            return Reply(failure="timeout", note="the deadline is over")
        kwargs: dict[str, Any] = {"timeout": left, "stream": True}
        if payload is not None:
            kwargs["json"] = payload
        try:
            response = self._open().request(method, f"/v1/{path}", headers=headers, **kwargs)
            with response:
                return _read(response, deadline)
        except exceptions.SSLError:
            return Reply(failure="tls", note="the server's certificate is not trusted, or it speaks no TLS")
        except exceptions.ConnectTimeout:
            return Reply(failure="connect", note="no connection in time")
        except exceptions.Timeout:
            return Reply(failure="timeout", note="no answer in time")
        except exceptions.ConnectionError as exc:
            reason = getattr(exc.args[0] if exc.args else None, "reason", None)
            if isinstance(reason, NewConnectionError):
                return Reply(failure="connect", note="nobody listens there, or the name does not resolve")
            return Reply(failure="lost", note="the connection broke")
        except (exceptions.RequestException, HTTPError, OSError) as exc:
            return Reply(failure="lost", note=f"the connection failed ({type(exc).__name__})")

    def _open(self) -> Any:
        with self._lock:
            if self._adapter is None:
                self._adapter = _adapter(self._settings)
            return self._adapter

    def _forked(self) -> None:
        # The parent's sockets must not be used here, nor closed with a TLS goodbye that the parent's peer would see.
        self._lock = threading.Lock()
        self._adapter = None


_LIVE: weakref.WeakSet[Wire] = weakref.WeakSet()


def _after_fork() -> None:
    for wire in list(_LIVE):
        wire._forked()


os.register_at_fork(after_in_child=_after_fork)


def _adapter(settings: VaultSettings) -> Any:
    import requests
    from hvac.adapters import RawAdapter
    from requests.adapters import HTTPAdapter

    session = requests.Session()
    session.trust_env = False  # else .netrc would add credentials and REQUESTS_CA_BUNDLE would win over VAULT_CACERT
    session.verify = settings.verify
    session.cert = settings.client_cert
    if settings.proxy:
        session.proxies = {"http": settings.proxy, "https": settings.proxy}
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_connections=2, pool_maxsize=_POOL, max_retries=0))
    return RawAdapter(
        base_uri=settings.address, token="", session=session, allow_redirects=False, ignore_exceptions=True
    )


def _read(response: Any, deadline: float) -> Reply:
    taken: list[bytes] = []
    size = 0
    for piece in response.iter_content(1 << 16):
        taken.append(piece)
        size += len(piece)
        if size > MAX_ANSWER_BYTES:
            return Reply(failure="garbage", note="the answer is larger than 8 MiB")
        if time.monotonic() > deadline:
            return Reply(failure="timeout", note="the answer came too slowly")
    status = int(response.status_code)
    body: Any = {}
    if size:
        try:
            body = json.loads(b"".join(taken))
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            if status < 300:
                return Reply(failure="garbage", note=f"HTTP {status}, but the answer is not Vault's JSON")
            body = {}
    return Reply(status, body, date=_date(response.headers), index=str(response.headers.get("X-Vault-Index", ""))[:256])


def _date(headers: Mapping[str, str]) -> float | None:
    try:
        return parsedate_to_datetime(headers["Date"]).timestamp()
    except (KeyError, ValueError, TypeError):
        return None


def _within(deadline: float, work: Callable[[], Reply]) -> Reply:
    """Run `work` in a thread of its own, so that neither name resolution nor a dripping server outlives the deadline.

    A socket's time-out bounds each read, not their sum, and does not bound name resolution at all.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        return Reply(failure="timeout", note="the deadline is over")
    answers: queue.SimpleQueue[Reply] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(work())
        except BaseException as exc:
            answers.put(Reply(failure="lost", note=f"the request failed ({type(exc).__name__})"))

    try:
        threading.Thread(target=run, name="mcpkeys-vault", daemon=True).start()
    except RuntimeError:  # no new threads at interpreter shutdown, where a farewell is still to be written
        return work()
    try:
        return answers.get(timeout=left)
    except queue.Empty:
        return Reply(failure="timeout", note="no answer in time")
