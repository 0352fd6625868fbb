"""The demo's server: an ordinary `MCPServer` with one line of mcpkeys. `python -m mcpkeys_cli.story.server PORT`.

Configured by MCPKEYS_* alone, as a real one would be. Three ways to need more than one round: a resolver that
asks, a hand-built state in a prompt, and a resource template.
"""

from __future__ import annotations

import sys
from typing import Annotated

import uvicorn
from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequest, InputRequiredResult
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse

from mcpkeys import request_state_security
from mcpkeys_cli.story.processes import end_with_parent

security = request_state_security()
mcp = MCPServer("fleet", request_state_security=security)


class Region(BaseModel):
    """The first answer."""

    region: str


class Size(BaseModel):
    """The second answer."""

    size: str


async def ask_region(name: str) -> Elicit[Region]:
    """The first round."""
    return Elicit(f"Which region should {name!r} live in?", Region)


async def ask_size(name: str, region: Annotated[Region, Resolve(ask_region)]) -> Elicit[Size]:
    """The second round."""
    return Elicit(f"How large should {name!r} in {region.region} be?", Size)


@mcp.tool()
async def provision(
    name: str,
    region: Annotated[Region, Resolve(ask_region)],
    size: Annotated[Size, Resolve(ask_size)],
) -> str:
    """Provision a database; asks for a region, then for a size."""
    return f"{name}: {size.size} in {region.region}"


def _ask(key: str, message: str) -> dict[str, InputRequest]:
    schema = {"type": "object", "properties": {key: {"type": "string"}}, "required": [key]}
    return {key: ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))}


def _answer(ctx: Context, key: str) -> str | None:
    given = (ctx.input_responses or {}).get(key)
    return str(given.content[key]) if isinstance(given, ElicitResult) and given.content else None


@mcp.prompt()
async def briefing(ctx: Context, topic: str) -> list[UserMessage] | InputRequiredResult:
    """Draft a briefing; the state is built by hand and carries the first answer into the third round."""
    state = ctx.request_state or ""
    if not state:
        return InputRequiredResult(input_requests=_ask("reader", f"Who reads about {topic}?"), request_state="asked:")
    if state == "asked:":
        reader = _answer(ctx, "reader") or "nobody"
        return InputRequiredResult(input_requests=_ask("tone", "In which tone?"), request_state=f"reader:{reader}")
    return [UserMessage(f"Brief {state.removeprefix('reader:')} on {topic}, {_answer(ctx, 'tone')}.")]


@mcp.resource("report://{quarter}")
async def report(quarter: str, ctx: Context) -> str | InputRequiredResult:
    """A report; asks for the currency first."""
    currency = _answer(ctx, "currency")
    if currency is None:
        return InputRequiredResult(input_requests=_ask("currency", "In which currency?"), request_state=quarter)
    return f"{ctx.request_state}: 42 {currency}"


async def ready(request: Request) -> JSONResponse:
    """The readiness endpoint: `codec.ready()` does no I/O."""
    is_ready = security.codec.ready()
    return JSONResponse({"ready": is_ready}, status_code=200 if is_ready else 503)


def main(port: int) -> None:
    """Serve until SIGTERM; the codec says farewell by itself."""
    mcp.custom_route("/ready", methods=["GET"])(ready)
    app = mcp.streamable_http_app(stateless_http=True, json_response=True)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    end_with_parent()
    main(int(sys.argv[1]))
