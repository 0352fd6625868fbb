"""The way of a request in a drill: client -> edge (may rewrite) -> ingress (any instance; captures) -> instance."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REFUSED = b"Invalid or expired requestState"
Rewrite = Callable[[dict[str, Any]], dict[str, Any]]


def unchanged(request: dict[str, Any]) -> dict[str, Any]:
    return request


def fills_in_defaults(request: dict[str, Any]) -> dict[str, Any]:
    """A gateway that "validates" what has been answered: it fills in a default and makes text of numbers."""
    params = request.get("params") or {}
    if request.get("method") == "tools/call" and "requestState" in params:
        params["arguments"] = {**params["arguments"], "currency": "EUR", "order": params["arguments"]["order"].upper()}
    return request


class Gateway:
    """Forwards to any of `backends`, past those where nobody listens.

    `at_edge` and `at_ingress` are NDJSON, a line for each request that carries a body, as it came in at either place.
    `refused`: the lines of the ingress whose state an instance refused.
    """

    def __init__(self, at_edge: Path, at_ingress: Path, rewrite: Rewrite = unchanged) -> None:
        self.backends: dict[str, int] = {}
        self.refused: list[dict[str, Any]] = []
        self._files = at_edge, at_ingress
        self._rewrite = rewrite
        self._lock = threading.Lock()
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                status, headers, content = gateway.forward(self.command, self.path, body, dict(self.headers.items()))
                self.send_response(status)
                for name, value in headers:
                    if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                        self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = forward

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/mcp"

    def forward(
        self, command: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """One request and its answer."""
        if body:
            request = json.loads(body)
            self._record(0, {"request": request})
            body = json.dumps(self._rewrite(request)).encode()
        kept = {name: value for name, value in headers.items() if name.lower() not in ("host", "content-length")}
        # Not in turn: with as many requests a call as instances, each would always play the same part.
        for name in random.sample(list(self.backends), len(self.backends)):
            upstream = http.client.HTTPConnection("127.0.0.1", self.backends[name], timeout=30)
            try:
                upstream.request(command, path, body, {**kept, "host": f"127.0.0.1:{self.backends[name]}"})
                answer = upstream.getresponse()
                content = answer.read()
                if body:
                    line = self._record(1, {"upstream": name, "request": json.loads(body)})
                    if REFUSED in content:
                        self.refused.append(line)
                return answer.status, answer.getheaders(), content
            except ConnectionRefusedError:
                continue
            finally:
                upstream.close()
        return 503, [], b""

    def _record(self, place: int, what: dict[str, Any]) -> dict[str, Any]:
        line = {"time": datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds"), **what}
        with self._lock, self._files[place].open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        return line

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
