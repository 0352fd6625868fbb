"""A server with every form of a multi-round-trip request, as a process: `python sdkserver.py http|stdio`.

Set up by the environment:
    SERVER   `mcpserver` (default), `lowlevel`, or `both` (http: the low-level one at /low)
    POLICY   `mk1`: request_state_security() from MCPKEYS_*;  `mk1+sdk` and `sdk`: the same, migrating from SECRET;
             `keys`: the SDK's own keys=[SECRET];  `default`: the SDK's process-local key
    SECRET   for the three above;  NAME  the server's name

`http` listens on a free port of 127.0.0.1 and prints it as its first line.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from mcp.server import MCPServer, Server
from mcp.server.mcpserver import Context, Elicit, ListRoots, Resolve, Sample
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ListRootsResult,
    ListToolsResult,
    SamplingMessage,
    TextContent,
    Tool,
)
from pydantic import BaseModel
from starlette.applications import Starlette

import mcpkeys

NAME = os.environ.get("NAME", "acme-orders")


def policy() -> RequestStateSecurity | None:
    """The policy that POLICY names."""
    kind, secret = os.environ.get("POLICY", "mk1"), os.environ.get("SECRET", "")
    if kind == "keys":
        return RequestStateSecurity(keys=[secret])
    if kind == "mk1":
        return mcpkeys.request_state_security()
    if kind == "mk1+sdk":
        return mcpkeys.request_state_security(sdk_keys=[secret])
    if kind == "sdk":
        return mcpkeys.request_state_security(sdk_keys=[secret], mint="sdk")
    return None


def ask(message: str, field: str) -> ElicitRequest:
    """A form with one text field."""
    schema = {"type": "object", "properties": {field: {"type": "string"}}, "required": [field]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def answer(responses: Any, key: str, field: str) -> str | None:
    """The accepted answer to `ask`, or None."""
    given = (responses or {}).get(key)
    if isinstance(given, ElicitResult) and given.action == "accept" and given.content is not None:
        return str(given.content[field])
    return None


class Colour(BaseModel):
    colour: str


def choose_colour(item: str) -> Colour | Elicit[Colour]:
    return Colour(colour="white") if item == "milk" else Elicit(f"Which colour of {item}?", Colour)


def invent_slogan(item: str, colour: Annotated[Colour, Resolve(choose_colour)]) -> Sample:
    text = f"A slogan for a {colour.colour} {item}"
    return Sample([SamplingMessage(role="user", content=TextContent(type="text", text=text))], max_tokens=20)


def list_roots() -> ListRoots:
    return ListRoots()


def mcp_server(security: RequestStateSecurity | None) -> MCPServer:
    """The high-level server."""
    mcp = MCPServer(NAME, request_state_security=security)

    @mcp.tool()
    async def order(
        item: str,
        colour: Annotated[Colour, Resolve(choose_colour)],
        slogan: Annotated[CreateMessageResult, Resolve(invent_slogan)],
        roots: Annotated[ListRootsResult, Resolve(list_roots)],
    ) -> str:
        """Needs an answer of the user, of the client's model, and the client's roots."""
        said = slogan.content.text if isinstance(slogan.content, TextContent) else "?"
        return f"{colour.colour} {item} [{said}] for {len(roots.roots)} root(s)"

    @mcp.tool()
    async def refund(amount: int, reason: str, ctx: Context) -> str | InputRequiredResult:
        """Two rounds by hand; what was learnt in the first travels in the state."""
        state = ctx.request_state
        if state is None:
            return InputRequiredResult(input_requests={"who": ask("Who approves?", "who")}, request_state="asked")
        if state == "asked":
            who = answer(ctx.input_responses, "who", "who")
            return InputRequiredResult(input_requests={"sure": ask("Sure?", "sure")}, request_state=f"approved:{who}")
        return f"refunded {amount} for {reason}, {state}, {answer(ctx.input_responses, 'sure', 'sure')}"

    @mcp.prompt()
    async def letter(ctx: Context) -> list[UserMessage] | InputRequiredResult:
        to = answer(ctx.input_responses, "to", "to")
        if to is None:
            return InputRequiredResult(input_requests={"to": ask("To whom?", "to")}, request_state="letter")
        return [UserMessage(f"Write to {to} ({ctx.request_state}).")]

    @mcp.resource("report://{year}")
    async def report(year: str, ctx: Context) -> str | InputRequiredResult:
        unit = answer(ctx.input_responses, "unit", "unit")
        if unit is None:
            return InputRequiredResult(input_requests={"unit": ask("Unit?", "unit")}, request_state=f"report-{year}")
        return f"{year} in {unit} ({ctx.request_state})"

    return mcp


def low_level_server(security: RequestStateSecurity | None) -> Server[Any]:
    """The low-level server, with the boundary appended by hand."""

    async def list_tools(ctx: Any, params: Any) -> ListToolsResult:
        schema = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
        return ListToolsResult(tools=[Tool(name="refund", input_schema=schema)])

    async def call_tool(ctx: Any, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        who = answer(params.input_responses, "who", "who")
        if who is None:
            return InputRequiredResult(input_requests={"who": ask("Who approves?", "who")}, request_state="asked")
        amount = (params.arguments or {})["amount"]
        return CallToolResult(
            content=[TextContent(type="text", text=f"refunded {amount}, {params.request_state}, {who}")]
        )

    server: Server[Any] = Server(NAME, on_list_tools=list_tools, on_call_tool=call_tool)
    if os.environ.get("POLICY", "mk1") == "mk1":
        server.middleware.append(mcpkeys.request_state_boundary())
    elif security is not None:
        server.middleware.append(RequestStateBoundary(security, default_audience=NAME))
    return server


def built(kind: str) -> MCPServer | Server[Any]:
    """The server that SERVER names."""
    low = kind == "lowlevel"
    security = None if low and os.environ.get("POLICY", "mk1") == "mk1" else policy()
    return low_level_server(security) if low else mcp_server(security)


def application(kind: str) -> Starlette:
    """What uvicorn serves: at /mcp, and of `both` the low-level one at /low."""
    if kind != "both":
        return built(kind).streamable_http_app(stateless_http=True)
    high = built("mcpserver").streamable_http_app(stateless_http=True)
    low = built("lowlevel").streamable_http_app(stateless_http=True, streamable_http_path="/low")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with high.router.lifespan_context(high), low.router.lifespan_context(low):
            yield

    return Starlette(routes=[*high.routes, *low.routes], lifespan=lifespan)


def serve_http(app: Starlette) -> None:
    """On a free port, which is printed once it is listened on."""
    import uvicorn

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            print(listener.getsockname()[1], flush=True)

    Announcing(uvicorn.Config(app, log_level="warning", lifespan="on")).run(sockets=[listener])


def serve_stdio(server: MCPServer | Server[Any]) -> None:
    """Until stdin ends."""
    import anyio
    from mcp.server.stdio import stdio_server

    async def serve() -> None:
        if isinstance(server, MCPServer):
            await server.run_stdio_async()
            return
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(serve)


if __name__ == "__main__":
    named = os.environ.get("SERVER", "mcpserver")
    serve_http(application(named)) if sys.argv[1] == "http" else serve_stdio(built(named))
