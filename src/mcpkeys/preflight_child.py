"""Imports a server as uvicorn would and tells what it is: `python -m mcpkeys.preflight_child REQUEST RESULT`.

Runs in a process of its own, which its parent ends after a time limit: an application's module may do anything when
it is imported. REQUEST and RESULT are paths of JSON files; the application's own output goes to stderr.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mcp.server import MCPServer, Server
from mcp.server.request_state import AESGCMRequestStateCodec, RequestStateBoundary, RequestStateSecurity

from mcpkeys.codec import EnvelopeCodec
from mcpkeys.errors import McpkeysError
from mcpkeys.preflight import CodecKind, ServerFacts

DEFAULT_NAMES = ("mcp", "server", "app")
_CARRIERS = ("tools/call", "prompts/get", "resources/read")


class Started(BaseException):
    """The module began to serve while it was imported. A BaseException, so that no `except Exception` swallows it."""

    def __init__(self, transport: str) -> None:
        super().__init__(transport)
        self.transport = transport


class Problem(Exception):
    """Why no server could be looked at: a stable code, what, why, next, exit code."""

    def __init__(self, code: str, what: str, why: str = "", next: str = "", exit: int = 2) -> None:
        super().__init__(what)
        self.told = {"code": code, "what": what, "why": why, "next": next, "exit": exit}


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
        def ephemeral(cls: type[RequestStateSecurity], **kwargs: Any) -> RequestStateSecurity:
            security: RequestStateSecurity = original.__func__(cls, **kwargs)
            self.ephemeral.add(id(security.codec))
            return security

        return classmethod(ephemeral)

    def _codec_opened(self, original: Any) -> Any:
        def _begin(cls: type[EnvelopeCodec], *args: Any, **kwargs: Any) -> EnvelopeCodec:
            codec: EnvelopeCodec = original.__func__(cls, *args, **kwargs)
            self.opened.append(codec)
            return codec

        return classmethod(_begin)

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


# --- finding the server --------------------------------------------------------------------------------------


def find(target: str, watch: Watch) -> tuple[list[Server[Any]], bool]:
    """The servers that `MODULE:ATTRIBUTE` names or serves, and whether they were built anew for each request."""
    module_name, _, path = target.partition(":")
    if not module_name or module_name.startswith(".") or module_name.endswith(".py"):
        raise Problem(
            "target-invalid",
            f"{target!r} is not MODULE:SERVER",
            "a module is named with dots, as in an import, and without .py",
            "for example: mcpkeys check acme.orders:mcp",
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (module_name == exc.name or module_name.startswith(exc.name + ".")):
            raise Problem(
                "module-not-found",
                f"there is no module {module_name}",
                f"it was looked for in {sys.path[0]} and in what is installed",
                "start the command in the folder that uvicorn is started in, or give --app-dir",
            ) from None
        raise
    if path:
        found = _attribute(module, module_name, path)
    else:
        found = next((getattr(module, name) for name in DEFAULT_NAMES if hasattr(module, name)), None)
        if found is None:
            raise Problem(
                "attribute-not-found",
                f"{module_name} has none of {', '.join(DEFAULT_NAMES)}",
                "no object was named",
                f"name it: mcpkeys check {module_name}:SERVER",
            )
    return _servers(found, target, watch)


def _attribute(module: Any, module_name: str, path: str) -> Any:
    found = module
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            servers = [name for name, value in vars(module).items() if isinstance(value, MCPServer | Server)]
            raise Problem(
                "attribute-not-found",
                f"{module_name} has no {path}",
                f"it has {', '.join(servers)}" if servers else "it has no server at all",
                f"mcpkeys check {module_name}:{servers[0] if servers else 'SERVER'}",
            ) from None
    return found


def _servers(found: Any, target: str, watch: Watch) -> tuple[list[Server[Any]], bool]:
    for _ in range(3):
        if isinstance(found, MCPServer):
            return [low_level(found)], False
        if isinstance(found, Server):
            return [found], False
        if inspect.isawaitable(found):
            found = asyncio.run(_wait(found))
        elif callable(found) and _needs_nothing(found):
            found = found()
        else:
            break
    if isinstance(found, MCPServer | Server):
        return _servers(found, target, watch)
    if not callable(found):
        raise Problem(
            "no-server",
            f"{target} is a {type(found).__name__}",
            "neither an MCPServer, a low-level Server, an ASGI application, nor a factory of one",
            "name the server object or the application that uvicorn is given",
        )
    served = [server for server in watch.servers if id(server) in watch.apps]
    if served:
        return served, False
    before = len(watch.servers)
    with contextlib.suppress(Exception):
        asyncio.run(_two_requests(found))
    built = watch.servers[before:]
    if built:
        return built[:1], len(built) > 1
    if watch.servers:
        return watch.servers, False
    raise Problem(
        "no-server",
        f"{target} is an application in which no MCP server was found",
        "none was built at import, in the factory, or on a request",
        "name the server object itself: MODULE:SERVER",
    )


async def _wait(awaitable: Any) -> Any:
    return await awaitable


def _needs_nothing(factory: Any) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return False
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


async def _two_requests(app: Any) -> None:
    """Two harmless requests to an ASGI application, to see what it builds for each."""
    for _ in range(2):
        sent = asyncio.Event()

        async def receive(sent: asyncio.Event = sent) -> dict[str, Any]:
            if not sent.is_set():
                sent.set()
                return {"type": "http.request", "body": b"{}", "more_body": False}
            await asyncio.sleep(0.5)
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            """The answer is of no interest."""

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/mcp",
            "raw_path": b"/mcp",
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        with contextlib.suppress(Exception):
            await asyncio.wait_for(app(scope, receive, send), 5)


# --- the facts -------------------------------------------------------------------------------------------------


def facts_of(server: Server[Any], watch: Watch, *, per_request: bool = False) -> ServerFacts:
    """What there is to say of one server. Seals and unseals one payload with its codec; calls no handler."""
    owner = watch.owners.get(id(server))
    boundaries = [item for item in server.middleware if isinstance(item, RequestStateBoundary)]
    facts = ServerFacts(
        kind="Server" if owner is None else "MCPServer",
        name=server.name,
        named=owner is None or id(owner) not in watch.unnamed,
        boundaries=len(boundaries),
        carries=any(server.get_request_handler(method) is not None for method in _CARRIERS),
        auth=id(server) in watch.auth or (owner is not None and owner.settings.auth is not None),
        http=id(server) in watch.apps,
        stdio=id(server) in watch.stdio,
        workers=watch.workers,
        per_request=per_request,
    )
    if not boundaries:
        return facts
    # The SDK keeps both to itself; a version that renames them is told as unreadable rather than passed.
    security = getattr(boundaries[0], "_security", None)
    if not isinstance(security, RequestStateSecurity) or not hasattr(boundaries[0], "_audience"):
        return replace(facts, codec="unreadable", audience=server.name)
    codec = security.codec
    before = len(watch.opened)
    failed = _round_trip(codec)
    facts = replace(
        facts,
        audience=boundaries[0]._audience,
        ttl=security.ttl,
        codec=_kind(codec, watch),
        codec_class=f"{type(codec).__module__}.{type(codec).__qualname__}",
        binds_principal=security.bind_principal is not None,
        round_trip=failed,
        opened=len(watch.opened) - before,
    )
    if not isinstance(codec, EnvelopeCodec) or codec.ring.keyset is None:
        return facts
    keyset = codec.ring.keyset
    return replace(
        facts,
        keyset=keyset.name,
        keyset_audience=keyset.audience,
        keyset_ttl=keyset.ttl_seconds,
        ready=codec.ready(),
        mints="sdk" if codec.mints_sdk else "mk1",
        sdk_keys=codec.ring.sdk is not None,
    )


def _kind(codec: object, watch: Watch) -> CodecKind:
    if isinstance(codec, EnvelopeCodec):
        return "secrets" if codec.ring.keyset is None else "mcpkeys"
    if id(codec) in watch.ephemeral:
        return "ephemeral"
    return "keys" if isinstance(codec, AESGCMRequestStateCodec) else "foreign"


def _round_trip(codec: Any) -> str:
    """Why a payload did not come back, or empty. The payload is noise: a real token is never made."""
    payload = secrets.token_bytes(200)
    try:
        return "" if codec.unseal(codec.seal(payload)) == payload else "another payload came back"
    except Exception as exc:
        detail = f": {exc.what}" if isinstance(exc, McpkeysError) else ""
        return f"{type(exc).__name__}{detail}"


# --- the process -----------------------------------------------------------------------------------------------


def examine(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request `{target, app_dir, workers, transport}`: `servers` (facts), and `problem` or None."""
    watch = Watch()
    watch.workers = int(request["workers"])
    problem: dict[str, Any] | None = None
    servers: list[Server[Any]] = []
    per_request = False
    with watch.watching():
        try:
            servers, per_request = find(request["target"], watch)
        except Started as started:
            problem = _started(started, request["target"])
            servers = watch.servers
        except Problem as exc:
            problem = exc.told
        except (Exception, SystemExit) as exc:
            problem = _failed(exc, request["target"])
        facts = [facts_of(server, watch, per_request=per_request) for server in servers]
    if transport := request["transport"]:
        facts = [replace(fact, http=transport != "stdio", stdio=transport == "stdio") for fact in facts]
    return {"servers": [asdict(fact) for fact in facts], "problem": problem}


def _started(started: Started, target: str) -> dict[str, Any]:
    return Problem(
        "runs-on-import",
        f"{target.partition(':')[0]} starts to serve ({started.transport}) when it is imported",
        "uvicorn, workers and tests import the module, and each import would start another server; it was stopped here",
        'put the start under `if __name__ == "__main__":`',
    ).told


def _failed(exc: BaseException, target: str) -> dict[str, Any]:
    module = target.partition(":")[0]
    if isinstance(exc, McpkeysError):
        return Problem(exc.code, exc.what, exc.why, exc.next, exc.exit_code).told
    if isinstance(exc, SystemExit):
        return Problem(
            "import-exits", f"{module} ends the process when it is imported", f"exit code {exc.code!r}", "do not exit at import"
        ).told
    if isinstance(exc, ValueError) and "request_state_security is configured but this server has no name" in str(exc):
        return Problem(
            "server-unnamed",
            "the server has no name",
            "the SDK refuses a policy with shared keys then: every unnamed server would have the same audience",
            "name it, MCPServer('acme-orders', ...), or use request_state_security(), which brings the keyset's audience",
        ).told
    place = _place(exc)
    return Problem(
        "import-failed",
        f"{module} cannot be imported: {type(exc).__name__}",
        f"{str(exc)[:300]}{place}",
        "uvicorn would fail in the same way; mend the module first",
    ).told


def _place(exc: BaseException) -> str:
    frames = [frame for frame in inspect.getinnerframes(exc.__traceback__) if frame.filename != __file__] if exc.__traceback__ else []
    return f" (line {frames[-1].lineno} of {os.path.basename(frames[-1].filename)})" if frames else ""


def main(request: str, result: str) -> None:
    """Answer REQUEST into RESULT. Codecs that the application opened say farewell at exit."""
    asked = json.loads(Path(request).read_text())
    sys.path.insert(0, asked["app_dir"])
    sys.stdout = sys.stderr
    answer = examine(asked)
    Path(result).write_text(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:3])
