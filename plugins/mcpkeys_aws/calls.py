"""Calls to one AWS service that return by their deadline, whatever botocore does meanwhile.

botocore's timeouts bound one socket operation each; name resolution, a server that trickles, and credential
providers (STS, SSO, container, metadata) have clocks of their own. So each call runs in a short-lived daemon thread and
the caller waits until its deadline. A call that is late is abandoned: its thread ends when botocore's own timeouts
do, and its answer is dropped unseen.
"""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any, Generic, Protocol, TypeVar

from mcpkeys.errors import McpkeysError
from mcpkeys_aws import quiet

T = TypeVar("T")
CONNECT_SECONDS = 2.0
READ_SECONDS = 5.0
_POOL = 32


class DeadlinePassed(Exception):
    """No answer before the deadline."""


class Explain(Protocol):
    """Turns what botocore raised in the named action into one of our errors."""

    def __call__(self, exc: BaseException, action: str) -> McpkeysError: ...


class Pending(Generic[T]):
    """One call under way.

    Holds neither request nor response in its repr, and raises its error from the waiting thread without context: a
    traceback with captured locals shows no key.
    """

    __slots__ = ("_action", "_deadline", "_done", "_explain", "_failure", "_value")

    def __init__(self, action: str, deadline: float, explain: Explain) -> None:
        self._action = action
        self._deadline = deadline
        self._explain = explain
        self._done = threading.Event()
        self._value: list[T] = []
        self._failure: McpkeysError | None = None

    def run(self, client: Callable[[], Any], work: Callable[[Any], T]) -> None:
        """Make the call in this thread and keep what comes of it. Raises nothing."""
        try:
            with quiet.quiet():
                self._value.append(work(client()))
        except McpkeysError as exc:
            exc.__context__ = exc.__cause__ = None
            self._failure = exc.with_traceback(None)
        except BaseException as exc:
            self._failure = self._explain(exc, self._action)
        finally:
            self._done.set()

    def result(self) -> T:
        """The call's value. Raises its error, or that no answer came before the deadline."""
        if not self._done.wait(max(0.0, self._deadline - time.monotonic())):
            raise self._explain(DeadlinePassed(), self._action) from None
        if self._failure is not None:
            raise self._failure from None
        return self._value.pop()


class AwsCalls:
    """One service in one region, as one set of credentials sees it. Thread-safe; usable in a forked child.

    Args:
        service: `kms` or `s3`.
        region: the region to call; None leaves it to the caller's AWS configuration.
        session: a `boto3.Session` that the caller brings, or None for boto3's default chain: environment, shared
            files and profiles (assumed roles, SSO), web identity, container, instance metadata.
        explain: turns botocore's exceptions into ours.

    Raises:
        ModuleNotFoundError: boto3 is not installed.
    """

    def __init__(self, service: str, region: str | None, session: Any, explain: Explain) -> None:
        if session is None:
            import importlib.util

            if importlib.util.find_spec("boto3") is None:
                raise ModuleNotFoundError("No module named 'boto3'", name="boto3")
        self._service = service
        self._region = region
        self._session = session
        self._explain = explain
        self._built: tuple[int, Any] | None = None
        self._locks: dict[int, threading.Lock] = {}

    def start(self, action: str, work: Callable[[Any], T], deadline: float) -> Pending[T]:
        """Begin `work(client)` in a thread of its own; `action` names it in errors. Raises nothing."""
        pending: Pending[T] = Pending(action, deadline, self._explain)
        if time.monotonic() >= deadline:
            return pending
        run = contextvars.copy_context().run
        thread = threading.Thread(
            target=run, args=(pending.run, self._client, work), name=f"mcpkeys-{self._service}", daemon=True
        )
        try:
            thread.start()
        except (
            RuntimeError
        ):  # no thread can start: the interpreter is shutting down, and a farewell still has to go out
            pending.run(self._client, work)
        return pending

    def call(self, action: str, work: Callable[[Any], T], deadline: float) -> T:
        """`start` and wait."""
        return self.start(action, work, deadline).result()

    def credentials(self, deadline: float) -> str:
        """Where the credentials were found, in botocore's words (`env`, `assume-role`, `iam-role` ...), and the region.

        For `mcpkeys doctor`. Raises what `explain` makes of having found none.
        """
        return self.call("finding credentials", lambda client: self._source(client.meta.region_name), deadline)

    def _source(self, region: str) -> str:
        from botocore.exceptions import NoCredentialsError

        found = (_own_session() if self._session is None else self._session).get_credentials()
        if found is None:
            raise NoCredentialsError
        return f"found by {found.method}, region {region}"

    def close(self) -> None:
        """Drop the client and its connections; the next call builds another."""
        built, self._built = self._built, None
        if built is not None and built[0] == os.getpid():
            built[1].close()

    def _client(self) -> Any:
        pid = os.getpid()
        # One lock a process: a lock that another thread held at the moment of a fork stays locked in the child.
        with self._locks.setdefault(pid, threading.Lock()):
            if self._built is None or self._built[0] != pid:
                self._built = (pid, self._build())
            return self._built[1]

    def _build(self) -> Any:
        from botocore.config import Config

        quiet.install()
        options: dict[str, Any] = {
            "connect_timeout": CONNECT_SECONDS,
            "read_timeout": READ_SECONDS,
            "retries": {"total_max_attempts": 1, "mode": "standard"},  # the caller retries, within its deadline
            "tcp_keepalive": True,
            "max_pool_connections": _POOL,
            "user_agent_extra": "mcpkeys",
        }
        if self._service == "s3" and "request_checksum_calculation" in Config.OPTION_DEFAULTS:
            # Several S3 clones refuse the checksum trailers that newer versions of boto3 send unasked.
            options["request_checksum_calculation"] = options["response_checksum_validation"] = "when_required"
        create = _own_session().create_client if self._session is None else self._session.client
        return create(self._service, region_name=self._region, config=Config(**options))


def _own_session() -> Any:
    """A botocore session: boto3's default chain, without what boto3 adds for its resources."""
    import botocore.session

    session = botocore.session.Session()
    session.register_component("data_loader", _descriptions(session.get_config_variable("data_path")))
    return session


@cache
def _descriptions(path: str | None) -> Any:
    """botocore's service descriptions, parsed once a process: most of what a client costs (100 ms for KMS)."""
    import botocore.loaders

    return botocore.loaders.create_loader(path)
