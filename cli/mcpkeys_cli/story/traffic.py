"""The demo's clients: the SDK's own `Client`, many calls at once, each of several rounds."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from typing import Any

from mcp import Client
from mcp.client import ClientRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitRequestParams, ElicitResult, InputRequiredResult

from mcpkeys_cli.story.tally import Tally

REFUSED = "Invalid or expired requestState"


@dataclass(slots=True)
class Traffic:
    """Calls that go on until `stop` is set; `tally` says what became of them."""

    url: str
    tally: Tally = field(default_factory=Tally)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    think: float = 0.05

    async def run(self, clients: int) -> None:
        """`clients` concurrent clients, until `stop` is set and the calls under way have ended."""
        await asyncio.gather(*(self._client(number) for number in range(clients)))

    async def _client(self, number: int) -> None:
        async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
            self.tally.rounds += 1
            # A person thinks for a moment: rounds are in flight while keys change.
            await asyncio.sleep(self.think)
            schema: dict[str, Any] = getattr(params, "requested_schema", {})
            return ElicitResult(action="accept", content={key: f"{key} {number}" for key in schema["properties"]})

        async with Client(self.url, elicitation_callback=answer) as client:
            for turn in itertools.count(number):
                if self.stop.is_set():
                    return
                try:
                    await self._call(client, turn)
                except MCPError as exc:
                    if exc.error.message == REFUSED:
                        self.tally.refused += 1
                        self.tally.refusals.append(time.time())
                    else:
                        self.tally.broken[exc.error.message] += 1
                else:
                    self.tally.calls += 1

    @staticmethod
    async def _call(client: Client, turn: int) -> None:
        if turn % 3 == 0:
            await client.call_tool("provision", {"name": f"db{turn}"})
        elif turn % 3 == 1:
            await client.get_prompt("briefing", {"topic": f"topic {turn}"})
        else:
            await client.read_resource(f"report://q{turn % 4 + 1}")


async def _never(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    """Declares that this client can be asked; the rounds driven by hand are never answered through it."""
    return ElicitResult(action="cancel")


async def begin_round(url: str, name: str) -> str:
    """The token of a round that has begun: `provision` asked its first question."""
    async with Client(url, elicitation_callback=_never) as client:
        result = await client.session.call_tool("provision", {"name": name}, allow_input_required=True)
        assert isinstance(result, InputRequiredResult)
        assert result.request_state is not None
        return result.request_state


async def send_round(url: str, name: str, token: str) -> dict[str, Any] | None:
    """Send a token back with `provision`'s arguments; the wire error, or None where it was accepted."""
    async with Client(url, elicitation_callback=_never) as client:
        try:
            await client.session.call_tool("provision", {"name": name}, request_state=token, allow_input_required=True)
        except MCPError as exc:
            return {"code": exc.error.code, "message": exc.error.message, "data": exc.error.data}
    return None
