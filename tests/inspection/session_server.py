"""Real MCP servers of one process for the captured session: `python session_server.py PATH=AUDIENCE=KEYSET ...`.

Each path serves one server with its own codec, principal bound to the header `x-user`. CLOCK_AHEAD is how many seconds
this host's clock is wrong. The first line on stdout is the port; the log is on stderr, one line a record.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.request_state import RequestStateSecurity
from mcp.types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from starlette.applications import Starlette

from mcpkeys import EnvelopeCodec

SCHEMA = {"type": "object", "properties": {"ok": {"type": "string"}}, "required": ["ok"]}
ASK = ElicitRequest(params=ElicitRequestFormParams(message="Sure?", requested_schema=SCHEMA))


def by_header(ctx: Any) -> str | None:
    """The principal: who the gateway in front says it is."""
    user: str | None = ctx.request.headers.get("x-user")
    return user


def server(audience: str, pins: dict[str, Any]) -> MCPServer:
    """A tool, nothing more: it asks once."""
    codec = EnvelopeCodec.open(**pins, instance=audience)
    security = RequestStateSecurity(codec=codec, audience=audience, bind_principal=by_header)
    mcp = MCPServer(audience, request_state_security=security)

    @mcp.tool()
    async def deploy(env: str, ctx: Context) -> str | InputRequiredResult:
        if ctx.request_state is None:
            return InputRequiredResult(input_requests={"sure": ASK}, request_state=f"asked for {env}")
        return f"deployed: {ctx.request_state}"

    return mcp


def main() -> None:
    """Serve until terminated."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    ahead = float(os.environ.get("CLOCK_AHEAD", "0"))
    if ahead:
        real = time.time
        time.time = lambda: real() + ahead
    apps = []
    for spec in sys.argv[1:]:
        path, audience, pins = spec.split("=", 2)
        with open(pins) as stream:
            made = server(audience, json.load(stream))
        apps.append(made.streamable_http_app(stateless_http=True, streamable_http_path=f"/{path}"))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for one in apps:
                await stack.enter_async_context(one.router.lifespan_context(one))
            yield

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            print(listener.getsockname()[1], flush=True)

    routes = [route for one in apps for route in one.routes]
    config = uvicorn.Config(Starlette(routes=routes, lifespan=lifespan), log_level="warning", lifespan="on")
    Announcing(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
