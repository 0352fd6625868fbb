"""The service of a drill: `python orders.py` listens on a free port of 127.0.0.1 and prints it as its first line."""

from __future__ import annotations

import socket

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from starlette.requests import Request
from starlette.responses import JSONResponse

from mcpkeys import request_state_security

SCHEMA = {"type": "object", "properties": {"approver": {"type": "string"}}, "required": ["approver"]}
ASK = ElicitRequest(params=ElicitRequestFormParams(message="Who approves?", requested_schema=SCHEMA))

security = request_state_security()
mcp = MCPServer("acme-orders", request_state_security=security)


@mcp.tool()
async def refund(order: str, amount: int, ctx: Context, currency: str = "") -> str | InputRequiredResult:
    """Refund an order, once somebody approves."""
    if ctx.request_state is None:
        return InputRequiredResult(input_requests={"approver": ASK}, request_state=f"{order} is to be approved")
    given = (ctx.input_responses or {}).get("approver")
    approver = given.content["approver"] if isinstance(given, ElicitResult) and given.content else "nobody"
    return f"refunded {amount} {currency} for {order}, approved by {approver}"


@mcp.custom_route("/ready", methods=["GET"])
async def ready(request: Request) -> JSONResponse:
    """The readiness endpoint."""
    is_ready = security.codec.ready()
    return JSONResponse({"ready": is_ready}, status_code=200 if is_ready else 503)


def main() -> None:
    """Serve until SIGTERM."""
    from mcpkeys_cli.story.processes import end_with_parent

    end_with_parent()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))

    class Announcing(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            print(listener.getsockname()[1], flush=True)

    app = mcp.streamable_http_app(stateless_http=True, json_response=True)
    Announcing(uvicorn.Config(app, log_level="warning", lifespan="on")).run(sockets=[listener])


if __name__ == "__main__":
    main()
