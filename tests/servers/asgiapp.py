"""The smallest ASGI application with a codec, opened at import: `uvicorn servers.asgiapp:app`.

`/` answers a fresh token and who minted it; `/?TOKEN` the payload of a token.
"""

from __future__ import annotations

import json
from typing import Any

from mcpkeys import EnvelopeCodec

codec = EnvelopeCodec.open()


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    token = scope["query_string"].decode()
    told = {"payload": codec.unseal(token).decode()} if token else {"token": codec.seal(b"a round")}
    body = json.dumps({**told, **codec.status()["instance"]}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    await send({"type": "http.response.body", "body": body})


def wsgi(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """The same for a pre-forking WSGI server."""
    token = environ["QUERY_STRING"]
    told = {"payload": codec.unseal(token).decode()} if token else {"token": codec.seal(b"a round")}
    start_response("200 OK", [("Connection", "close")])
    return [json.dumps({**told, **codec.status()["instance"]}).encode()]
