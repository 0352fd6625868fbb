"""The demo's load balancer: strict round-robin over HTTP, so that rounds begin here and end there.

`python -m mcpkeys_cli.story.balancer PORT BACKEND_PORT...`. A backend that refuses the connection is passed over: the
request never reached it. One that breaks off in the middle is answered 502 and never repeated, as a real balancer
must, since the request may have been carried out; so a backend is drained before it is restarted, as everywhere:
`PUT /-/backends/PORT/PORT...` names those that get new requests, and answers once nothing is under way at the others.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mcpkeys_cli.story.processes import end_with_parent

_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "content-encoding"}


def app(backends: list[int]) -> Starlette:
    """The balancer as an ASGI application."""
    turn = itertools.count()
    taking = list(backends)
    under_way: Counter[int] = Counter()

    async def choose(request: Request) -> Response:
        taking[:] = [int(port) for port in request.path_params["ports"].split("/")]
        while any(count and port not in taking for port, count in under_way.items()):
            await asyncio.sleep(0.01)
        return Response("ok")

    # No kept connections: one that a restarting backend closes in this moment would look like a lost round.
    client = httpx2.AsyncClient(timeout=30, limits=httpx2.Limits(max_keepalive_connections=0))

    async def forward(request: Request) -> Response:
        body = await request.body()
        headers = {name: value for name, value in request.headers.items() if name not in _HOP}
        for _ in range(2 * len(taking)):
            port = taking[next(turn) % len(taking)]
            under_way[port] += 1
            try:
                answer = await client.request(
                    request.method, f"http://127.0.0.1:{port}{request.url.path}", content=body, headers=headers
                )
            except httpx2.ConnectError:
                continue
            except httpx2.HTTPError:
                # In the log, so that a lost answer can be told from a refused round.
                print(f"502 {port}", file=sys.stderr, flush=True)
                return Response("the backend broke off", status_code=502)
            finally:
                under_way[port] -= 1
            kept = {name: value for name, value in answer.headers.items() if name not in _HOP}
            return Response(answer.content, answer.status_code, {**kept, "x-backend": str(port)})
        return Response("no backend", status_code=503)

    return Starlette(
        routes=[
            Route("/-/backends/{ports:path}", choose, methods=["PUT"]),
            Route("/{path:path}", forward, methods=["GET", "POST", "DELETE"]),
        ]
    )


if __name__ == "__main__":
    end_with_parent()
    uvicorn.run(
        app([int(port) for port in sys.argv[2:]]),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="warning",
        access_log=False,
    )
