"""The SDK's everything-server, taken from its sdist at run time, with another codec: what the scenarios talk to.

    python server.py FOLDER CODEC

FOLDER holds `mcp_everything_server`. CODEC is `mcpkeys`, or `none`: a codec that checks nothing, the control that
shows that the scenario for tampered state can fail. Listens on a free port of loopback and prints its URL.
"""

from __future__ import annotations

import importlib
import socket
import sys
from collections.abc import Sequence
from typing import Any

import mcp.server.mcpserver as server_package
import uvicorn
from mcp.server.request_state import RequestStateCodec, RequestStateSecurity

from mcpkeys.codec import EnvelopeCodec


class NoCodec:
    """Takes any token for the one it gave out last: what a codec without integrity comes to."""

    def __init__(self) -> None:
        self.last = b""

    def seal(self, payload: bytes) -> str:
        self.last = payload
        return payload.hex()

    def unseal(self, token: str) -> bytes:
        return self.last


def security_with(codec: str) -> Any:
    """What stands in for the SDK's `RequestStateSecurity` when the everything-server asks for it with `keys=`."""

    def security(*, keys: Sequence[bytes]) -> RequestStateSecurity:
        chosen: RequestStateCodec = EnvelopeCodec.from_secrets(keys) if codec == "mcpkeys" else NoCodec()
        return RequestStateSecurity(codec=chosen)

    return security


def main() -> None:
    folder, codec = sys.argv[1:]
    server_package.RequestStateSecurity = security_with(codec)  # type: ignore[misc]
    sys.path.insert(0, folder)
    everything = importlib.import_module("mcp_everything_server.server")
    app = everything.mcp.streamable_http_app(event_store=everything.event_store, retry_interval=100)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main()
