"""Watches what an application builds while it is imported, and keeps it from serving.

The observations are made on the SDK's own constructors, so that an application needs no word of ours in it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from mcp.server import MCPServer, Server
from mcp.server.request_state import RequestStateSecurity

from mcpkeys import registry
from mcpkeys.codec import EnvelopeCodec
from mcpkeys.store import Store


class Started(BaseException):
    """The module began to serve while it was imported. A BaseException, so that no `except Exception` swallows it."""

    def __init__(self, transport: str) -> None:
        super().__init__(transport)
        self.transport = transport


class Unreported:
    """A store that takes no reports: a check is no instance, and no rotation may wait for it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put_report(self, instance: str, body: bytes, *, deadline: float) -> None:
        """Nothing is written."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Watch:
    """What is built while the application is imported, and how it is served.

    Attributes:
        servers: low-level servers, in the order in which they were built; `owners`: the MCPServer of each, if any.
        unnamed: MCPServers that were built without a name.
        ephemeral: codecs under a key that this process drew.
        opened: codecs opened so far.
        apps: low-level servers for which an HTTP application was built, by id; `auth`: with authentication.
        workers: the largest number of workers that was asked for.
    """

    def __init__(self) -> None:
        self.servers: list[Server[Any]] = []
        self.owners: dict[int, MCPServer[Any]] = {}
        self.unnamed: set[int] = set()
        self.ephemeral: set[int] = set()
        self.opened: list[EnvelopeCodec] = []
        self.apps: set[int] = set()
        self.auth: set[int] = set()
        self.stdio: set[int] = set()
        self.workers = 1

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Observe constructors, and refuse to serve."""
        with contextlib.ExitStack() as undo:

            def around(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
                original = inspect.getattr_static(owner, name)
                setattr(owner, name, make(original))
                undo.callback(setattr, owner, name, original)

            around(Server, "__init__", self._server_made)
            around(MCPServer, "__init__", self._owner_made)
            around(RequestStateSecurity, "ephemeral", self._ephemeral_made)
            around(EnvelopeCodec, "_begin", self._codec_opened)
            around(registry, "open_store", self._store_opened)
            around(Server, "streamable_http_app", self._app_made)
            around(MCPServer, "sse_app", self._sse_made)
            around(MCPServer, "run", self._run)
            for name, transport in (
                ("run_stdio_async", "stdio"),
                ("run_sse_async", "sse"),
                ("run_streamable_http_async", "streamable-http"),
            ):
                around(MCPServer, name, self._refusing(transport))
            around(Server, "run", self._refusing("a transport of its own"))
            with contextlib.suppress(ImportError):
                import uvicorn

                around(uvicorn, "run", self._uvicorn_run)
                around(uvicorn.Server, "run", self._refusing("uvicorn"))
                around(uvicorn.Server, "serve", self._refusing("uvicorn"))
            yield

    def _server_made(self, original: Any) -> Any:
        def __init__(server: Server[Any], *args: Any, **kwargs: Any) -> None:
            original(server, *args, **kwargs)
            self.servers.append(server)

        return __init__

    def _owner_made(self, original: Any) -> Any:
        def __init__(owner: MCPServer[Any], *args: Any, **kwargs: Any) -> None:
            original(owner, *args, **kwargs)
            self.owners[id(low_level(owner))] = owner
            if not (args[0] if args else kwargs.get("name")):
                self.unnamed.add(id(owner))

        return __init__

    def _ephemeral_made(self, original: Any) -> Any:
        def ephemeral(cls: type[RequestStateSecurity], /, **kwargs: Any) -> RequestStateSecurity:
            security: RequestStateSecurity = original.__func__(cls, **kwargs)
            self.ephemeral.add(id(security.codec))
            return security

        return classmethod(ephemeral)

    def _codec_opened(self, original: Any) -> Any:
        def _begin(cls: type[EnvelopeCodec], /, *args: Any, **kwargs: Any) -> EnvelopeCodec:
            codec: EnvelopeCodec = original.__func__(cls, *args, **kwargs)
            self.opened.append(codec)
            return codec

        return classmethod(_begin)

    def _store_opened(self, original: Any) -> Any:
        def open_store(uri: str, **kwargs: Any) -> Any:
            return Unreported(original(uri, **kwargs))

        return open_store

    def _app_made(self, original: Any) -> Any:
        def streamable_http_app(server: Server[Any], **kwargs: Any) -> Any:
            self.apps.add(id(server))
            if kwargs.get("auth") is not None:
                self.auth.add(id(server))
            return original(server, **kwargs)

        return streamable_http_app

    def _sse_made(self, original: Any) -> Any:
        def sse_app(owner: MCPServer[Any], **kwargs: Any) -> Any:
            self.apps.add(id(low_level(owner)))
            return original(owner, **kwargs)

        return sse_app

    def _run(self, original: Any) -> Any:
        def run(owner: MCPServer[Any], transport: str = "stdio", **kwargs: Any) -> None:
            (self.stdio if transport == "stdio" else self.apps).add(id(low_level(owner)))
            raise Started(transport)

        return run

    def _uvicorn_run(self, original: Any) -> Any:
        def run(app: Any, **kwargs: Any) -> None:
            self.workers = max(self.workers, int(kwargs.get("workers") or 1))
            raise Started("uvicorn")

        return run

    def _refusing(self, transport: str) -> Callable[[Any], Any]:
        def refuse(*args: Any, **kwargs: Any) -> None:
            raise Started(transport)

        return lambda original: refuse


def low_level(owner: MCPServer[Any]) -> Server[Any]:
    """The low-level server of an MCPServer, which the SDK keeps to itself."""
    return owner._lowlevel_server
