"""An HTTP proxy in front of a test server that misbehaves on demand: late, broken, garbled or stale answers."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_HOP = ("content-length", "connection", "transfer-encoding")
Answer = tuple[int, dict[str, str], bytes]
Request = tuple[str, str, dict[str, str], bytes]


class FaultProxy:
    """Forwards to `target` (host:port). `fault(request, forward)` may answer instead; None as answer breaks the line.

    `seen` lists method and path of every request, in order.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.fault: Callable[[Request, Callable[[], Answer]], Answer | None] | None = None
        self.seen: list[tuple[str, str]] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                request: Request = (self.command, self.path, dict(self.headers), body)
                proxy.seen.append((self.command, self.path))

                def forward() -> Answer:
                    return proxy.forward(request)

                answer = forward() if proxy.fault is None else proxy.fault(request, forward)
                if answer is None:
                    self.close_connection = True
                    return
                status, headers, text = answer
                with contextlib.suppress(OSError):
                    self.send_response_only(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)
                    self.wfile.flush()

            do_GET = do_POST = do_PUT = do_DELETE = do_LIST = do_HEAD = _serve

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 64

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that went away is what these tests are about

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def forward(self, request: Request) -> Answer:
        method, path, headers, body = request
        connection = http.client.HTTPConnection(self.target, timeout=20)
        try:
            passed = {k: v for k, v in headers.items() if k.lower() not in ("host", "connection", "accept-encoding")}
            connection.request(method, path, body or None, passed)
            reply = connection.getresponse()
            text = reply.read()
            keep = {k: v for k, v in reply.getheaders() if k.lower() not in _HOP}
            return reply.status, keep, text
        finally:
            connection.close()

    @contextlib.contextmanager
    def faulty(self, fault: Callable[[Request, Callable[[], Answer]], Answer | None]) -> Iterator[None]:
        self.fault = fault
        try:
            yield
        finally:
            self.fault = None

    def answering(self, status: int, body: bytes, *, under: str = "") -> contextlib.AbstractContextManager[None]:
        """Answer so for every path that contains `under`."""

        def fault(request: Request, forward: Callable[[], Answer]) -> Answer:
            if under not in request[1]:
                return forward()
            return status, {"Content-Type": "application/json"}, body

        return self.faulty(fault)

    def late(self, seconds: float) -> contextlib.AbstractContextManager[None]:
        def fault(request: Request, forward: Callable[[], Answer]) -> Answer:
            time.sleep(seconds)
            return forward()

        return self.faulty(fault)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
