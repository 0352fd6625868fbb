"""Starts and stops `sdkserver.py` processes, and plays rounds against them with the SDK's own client."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import (
    CreateMessageRequest,
    CreateMessageResult,
    ElicitRequest,
    ElicitResult,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    Root,
    TextContent,
)

SCRIPT = str(Path(__file__).with_name("sdkserver.py"))


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without MCPKEYS_*, and with `settings`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MCPKEYS_")}
    return kept | {"PYTHONUNBUFFERED": "1"} | dict(settings)


@dataclass
class Serving:
    """One uvicorn process."""

    process: subprocess.Popen[str]
    log: Path
    url: str = ""

    def wait(self) -> Serving:
        """Until it listens: its first line is its port."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.strip().isdigit():
            raise AssertionError(f"the server did not start:\n{self.log.read_text()[-3000:]}")
        self.url = f"http://127.0.0.1:{line.strip()}/mcp"
        return self

    def stop(self) -> None:
        """SIGTERM, as a deployment does it; SIGKILL after ten seconds."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def serving(folder: Path, *settings: Mapping[str, str]) -> Iterator[list[Serving]]:
    """One process for each of `settings`, started side by side, stopped at the end."""
    started: list[Serving] = []
    try:
        for number, given in enumerate(settings):
            log = folder / f"server-{number}.log"
            with log.open("w") as stderr:
                process = subprocess.Popen(
                    [sys.executable, SCRIPT, "http"],
                    env=environment(given),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                )
            started.append(Serving(process, log))
        for one in started:
            one.wait()
        yield started
    finally:
        for one in started:
            one.process.terminate()
        for one in started:
            one.stop()


@asynccontextmanager
async def clients(*servers: Any) -> AsyncIterator[list[Client]]:
    """A connected client for each URL or stdio server, which answers every kind of question."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                Client(
                    server,
                    elicitation_callback=_elicited,
                    sampling_callback=_sampled,
                    list_roots_callback=_rooted,
                )
            )
            for server in servers
        ]


def fulfil(request: Any) -> Any:
    """The answer to one input request; a form's field is answered by `<field>!`."""
    if isinstance(request, ElicitRequest):
        return _accept(request.params)
    if isinstance(request, CreateMessageRequest):
        return SLOGAN
    assert isinstance(request, ListRootsRequest)
    return ROOTS


SLOGAN = CreateMessageResult(role="assistant", content=TextContent(type="text", text="so bright"), model="none")
ROOTS = ListRootsResult(roots=[Root(uri="file:///srv/orders")])


def _accept(params: Any) -> ElicitResult:
    return ElicitResult(
        action="accept", content={field: f"{field}!" for field in params.requested_schema["properties"]}
    )


async def _elicited(context: Any, params: Any) -> ElicitResult:
    return _accept(params)


async def _sampled(context: Any, params: Any) -> CreateMessageResult:
    return SLOGAN


async def _rooted(context: Any) -> ListRootsResult:
    return ROOTS


async def step(client: Client, tool: str, arguments: dict[str, Any], before: InputRequiredResult | None = None) -> Any:
    """One leg: the first call, or the retry that answers everything that `before` asks."""
    if before is None:
        return await client.session.call_tool(tool, arguments, allow_input_required=True)
    return await client.session.call_tool(
        tool,
        arguments,
        input_responses={key: fulfil(request) for key, request in (before.input_requests or {}).items()},
        request_state=before.request_state,
        allow_input_required=True,
    )


def is_refusal(error: MCPError) -> bool:
    """Whether the boundary refused the state."""
    return error.error.message == "Invalid or expired requestState"
