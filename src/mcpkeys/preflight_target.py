"""Finds the server that `MODULE:ATTRIBUTE` names, as uvicorn would: an object, an application, or a factory of one."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import sys
from typing import Any

from mcp.server import MCPServer, Server

from mcpkeys.glimpse import glimpse
from mcpkeys.preflight_watch import Watch, low_level

DEFAULT_NAMES = ("mcp", "server", "app")


class Problem(Exception):
    """Why no server could be looked at: a stable code, what, why, next, exit code."""

    def __init__(self, code: str, what: str, why: str = "", next: str = "", exit: int = 2) -> None:
        super().__init__(what)
        self.told = {"code": code, "what": what, "why": why, "next": next, "exit": exit}


def find(target: str, watch: Watch) -> tuple[list[Server[Any]], bool]:
    """The servers that `MODULE:ATTRIBUTE` names or serves, and whether they were built anew for each request."""
    module_name, _, path = target.partition(":")
    if not module_name or module_name.startswith(".") or module_name.endswith(".py"):
        raise Problem(
            "target-invalid",
            f"{glimpse(target)} is not MODULE:SERVER",
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
