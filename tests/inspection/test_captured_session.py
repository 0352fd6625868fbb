"""A captured session: real servers, the SDK's real client, a proxy that records requests.

Each of the boundary's ten causes of refusal is produced for real. The wire says one sentence for all of them; the
server's log line and `mcpkeys inspect --request` over the recorded request say the same word.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitResult
from servers.localkeyset import LocalKeyset, local_keyset

from mcpkeys_cli.main import main

SCRIPT = str(Path(__file__).with_name("session_server.py"))
AHEAD = 700
WORD = re.compile(r"requestState rejected on (\S+): (.+)")


class Host:
    """One server process and its log."""

    def __init__(self, folder: Path, name: str, specs: list[str], ahead: float = 0.0) -> None:
        self.log = folder / f"{name}.log"
        environ = {key: value for key, value in os.environ.items() if not key.startswith("MCPKEYS_")}
        with self.log.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, SCRIPT, *specs],
                env={**environ, "CLOCK_AHEAD": str(ahead), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self.port = 0

    def wait(self) -> Host:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line.isdigit(), self.log.read_text()[-3000:]
        self.port = int(line)
        return self

    def words(self) -> list[str]:
        return [match[2] for match in WORD.finditer(self.log.read_text())]

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def proxy(records: list[dict[str, Any]]) -> Iterator[int]:
    """A reverse proxy, /PORT/path -> 127.0.0.1:PORT/path, that records the body of every request it forwards."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            _, port, path = self.path.split("/", 2)
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if body:
                records.append({"time": time.time(), "path": f"/{path}", "body": body.decode()})
            upstream = http.client.HTTPConnection("127.0.0.1", int(port), timeout=30)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            upstream.request(self.command, f"/{path}", body, {**headers, "host": f"127.0.0.1:{port}"})
            answer = upstream.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            upstream.close()

        do_GET = do_POST = do_DELETE = forward

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Session:
    """A client that plays rounds through the proxy, and what the wire and the logs said."""

    def __init__(self, port: int, records: list[dict[str, Any]]) -> None:
        self.port = port
        self.records = records
        self.wire: set[tuple[int, str]] = set()

    @asynccontextmanager
    async def client(self, host: Host, path: str, user: str | None) -> Any:
        url = f"http://127.0.0.1:{self.port}/{host.port}/{path}"
        headers = {} if user is None else {"x-user": user}
        async with (
            httpx2.AsyncClient(headers=headers) as http_client,
            Client(streamable_http_client(url, http_client=http_client)) as client,
        ):
            yield client

    async def first(self, host: Host, path: str = "orders", user: str | None = None) -> str:
        async with self.client(host, path, user) as client:
            asked = await client.session.call_tool("deploy", {"env": "prod"}, allow_input_required=True)
            return str(asked.request_state)

    async def retry(
        self, host: Host, state: str, path: str = "orders", user: str | None = None, env: str = "prod"
    ) -> dict[str, Any] | None:
        """The recorded request of a refused retry; None where it was accepted."""
        answers = {"sure": ElicitResult(action="accept", content={"ok": "yes"})}
        async with self.client(host, path, user) as client:
            try:
                await client.session.call_tool(
                    "deploy", {"env": env}, input_responses=answers, request_state=state, allow_input_required=True
                )
            except MCPError as exc:
                self.wire.add((exc.error.code, exc.error.message))
                return next(record for record in reversed(self.records) if '"requestState"' in record["body"])
            return None


def pins(folder: Path, keyset: LocalKeyset) -> str:
    path = folder / f"{keyset.path.stem}.pins"
    path.write_text(json.dumps(keyset.pins))
    return str(path)


def inspected(
    folder: Path, keyset: LocalKeyset, record: dict[str, Any], capsys: pytest.CaptureFixture[str], *options: str
) -> dict[str, Any]:
    """What `mcpkeys inspect` says of a recorded request."""
    path = folder / "captured.json"
    path.write_text(json.dumps(record))
    where = ["--keyset", str(keyset.path), "--kek", keyset.kek, "--signer", keyset.signer]
    capsys.readouterr()
    code = main(["inspect", "--request", str(path), *where, *options, "--output", "json"])
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == 3
    return value


@pytest.mark.timeout(180)
def test_inspect_says_the_word_that_the_server_logged_for_each_of_the_ten_causes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The emergency at the end waits three refresh intervals for the server whose clock is off: short ones.
    keyset = local_keyset(tmp_path, refresh_seconds=1)
    (tmp_path / "other").mkdir()
    stranger = local_keyset(tmp_path / "other", "other")
    mine, theirs = pins(tmp_path, keyset), pins(tmp_path, stranger)
    hosts = [
        Host(
            tmp_path,
            "web",
            [f"orders=acme-orders={mine}", f"billing=acme-billing={mine}", f"stranger=acme-orders={theirs}"],
        ),
        Host(tmp_path, "late", [f"orders=acme-orders={mine}"], AHEAD),
    ]
    records: list[dict[str, Any]] = []
    seen: dict[str, dict[str, Any]] = {}
    try:
        web, late = (host.wait() for host in hosts)
        with proxy(records) as port:
            session = Session(port, records)

            async def play() -> list[tuple[str, Host, dict[str, Any] | None, list[str]]]:
                state = await session.first(web)
                assert await session.retry(web, state) is None, "the sound round must pass"
                alices = await session.first(web, user="alice")
                flipped = state[:-6] + ("A" if state[-6] != "A" else "B") + state[-5:]
                return [
                    ("malformed", web, await session.retry(web, state[:-1] + "="), ["--anonymous"]),
                    (
                        "unknown key",
                        web,
                        await session.retry(web, await session.first(web, "stranger")),
                        ["--anonymous"],
                    ),
                    ("seal", web, await session.retry(web, flipped), ["--anonymous"]),
                    (
                        "minted in the future",
                        web,
                        await session.retry(web, await session.first(late)),
                        ["--anonymous"],
                    ),
                    ("expired", late, await session.retry(late, state), ["--anonymous"]),
                    ("request binding", web, await session.retry(web, state, env="dev"), ["--anonymous"]),
                    ("audience", web, await session.retry(web, state, "billing"), ["--anonymous"]),
                    ("principal drift", web, await session.retry(web, alices), ["--anonymous"]),
                    ("principal", web, await session.retry(web, alices, user="bob"), ["--principal", "bob"]),
                ]

            played = asyncio.run(play())
            for cause, host, record, options in played:
                assert record is not None, cause
                audience = "acme-billing" if cause == "audience" else "acme-orders"
                # The refusing host's own clock is the one that counts.
                now = record["time"] + (AHEAD if host is late else 0)
                options = [*options, "--audience", audience, "--now", str(now)]
                seen[cause] = inspected(tmp_path, keyset, record, capsys, *options)
            state = asyncio.run(session.first(web))
            where = ["--name", "fleet", "--keyset", str(keyset.path), "--kek", keyset.kek, "--signer", keyset.signer]
            kid = keyset.document.minting.kid
            burn = ["rotate", "--emergency", "--kid", kid, "--reason", "leaked", "--yes"]
            assert main([*burn, *where]) == 0, capsys.readouterr()
            hosts.append(Host(tmp_path, "after", [f"orders=acme-orders={mine}"]))
            after = hosts[-1].wait()
            record = asyncio.run(session.retry(after, state))
            assert record is not None
            seen["retired key"] = inspected(
                tmp_path, keyset, record, capsys, "--audience", "acme-orders", "--anonymous"
            )
            logged = [*zip([cause for cause, host, *_ in played if host is web], web.words(), strict=True)]
            logged += [("expired", word) for word in late.words()] + [("retired key", word) for word in after.words()]
    finally:
        for host in hosts:
            host.stop()
    assert len(seen) == len(logged) == 10
    for cause, word in logged:
        assert word == cause
        assert seen[cause]["reason"] == word, seen[cause]
    assert session.wire == {(-32602, "Invalid or expired requestState")}
    assert seen["retired key"]["claims"]["t"] == "deploy"
    assert "burnt in an emergency: leaked" in seen["retired key"]["explanation"]["causes"][0]
    assert seen["expired"]["explanation"]["minted_by"].startswith("acme-orders (")
