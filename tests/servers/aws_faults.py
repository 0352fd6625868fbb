"""A loopback proxy in front of a test server of AWS: records what passes, and answers in its place where told to."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Exchange:
    """One request, as it came, and the answer that went out."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    answer: bytes = b""

    @property
    def action(self) -> str:
        """`kms:Decrypt`; `s3:PUT`."""
        target = self.headers.get("X-Amz-Target", "")
        return f"kms:{target.rsplit('.', 1)[-1]}" if target else f"s3:{self.method}"


@dataclass(frozen=True)
class Reply:
    """An answer in the server's place. `status` 0: the connection is closed without one."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


Fault = Callable[[Exchange, Callable[[], Reply]], Reply]
"""Given the request and a function that forwards it, what to answer."""


class FaultyProxy:
    """Forwards to 127.0.0.1:`port`; `fault` decides otherwise while one is set; `seen` is what passed;
    `rewrite` changes the path that is forwarded."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.fault: Fault | None = None
        self.rewrite: Callable[[str], str] = lambda path: path
        self.seen: list[Exchange] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                if self.headers.get("Expect", "").lower() == "100-continue":
                    pass  # http.server has answered 100 Continue already
                exchange = Exchange(self.command, self.path, dict(self.headers), self.rfile.read(length))
                proxy.seen.append(exchange)
                reply = proxy.answer(exchange)
                exchange.status, exchange.answer = reply.status, reply.body
                if reply.status == 0:
                    self.close_connection = True
                    return
                self.send_response_only(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                if not any(name.lower() == "content-length" for name in reply.headers):
                    self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(reply.body)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, *args: Any) -> None:
                pass  # a client that gave up waiting is what these tests are about

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, exchange: Exchange) -> Reply:
        fault = self.fault
        return self._forward(exchange) if fault is None else fault(exchange, lambda: self._forward(exchange))

    @contextmanager
    def failing(self, fault: Fault) -> Iterator[None]:
        self.fault = fault
        try:
            yield
        finally:
            self.fault = None

    def _forward(self, exchange: Exchange) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(exchange.method, self.rewrite(exchange.path), exchange.body, exchange.headers)
            response = connection.getresponse()
            skip = {"connection", "transfer-encoding", "server"}
            headers = {name: value for name, value in response.getheaders() if name.lower() not in skip}
            return Reply(response.status, response.read(), headers)
        finally:
            connection.close()


# Faults, in AWS's error shapes: AWS KMS API Reference, Common Errors (JSON); Amazon S3 API Reference, Error
# Responses (XML).


def kms_error(code: str, message: str = "", status: int = 400, only: str = "") -> Fault:
    """Every call, or those whose action contains `only`, answers with this KMS error."""
    body = json.dumps({"__type": code, "message": message}).encode()
    return _answering(Reply(status, body, {"Content-Type": "application/x-amz-json-1.1"}), only)


def s3_error(code: str, message: str = "", status: int = 403, only: str = "") -> Fault:
    """Every call, or those whose action contains `only`, answers with this S3 error."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    return _answering(Reply(status, body, {"Content-Type": "application/xml", "Date": _now()}), only)


def answering(status: int, body: bytes, only: str = "") -> Fault:
    return _answering(Reply(status, body, {"Content-Type": "application/x-amz-json-1.1", "Date": _now()}), only)


def slow(seconds: float) -> Fault:
    """Answers late, and rightly."""

    def fault(exchange: Exchange, forward: Callable[[], Reply]) -> Reply:
        time.sleep(seconds)
        return forward()

    return fault


def reply_lost(then: Callable[[], None] = lambda: None, only: str = "PUT", times: int = 1) -> Fault:
    """The request is carried out, then `then`, and the connection closes without an answer; `times` times."""
    left = [times]

    def fault(exchange: Exchange, forward: Callable[[], Reply]) -> Reply:
        reply = forward()
        if only in exchange.action and ".selftest" not in exchange.path and left[0]:
            left[0] -= 1
            then()
            return Reply(0)
        return reply

    return fault


def _answering(reply: Reply, only: str) -> Fault:
    return lambda exchange, forward: reply if only in exchange.action else forward()


def _now() -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
