"""Every form of the SDK's multi-round-trip and dependencies pages, with this codec, over real HTTP and stdio.

Two HTTP instances share one keyset; every leg of a round goes to the other one.
"""

from __future__ import annotations

import json
import operator
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError
from mcp.types import InputRequiredResult
from servers.localkeyset import LocalKeyset, local_keyset
from servers.sdkfleet import SCRIPT, Serving, clients, environment, fulfil, is_refusal, serving, step

CLIENT = str(Path(__file__).with_name("resuming_client.py"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> LocalKeyset:
    return local_keyset(tmp_path_factory.mktemp("keyset"))


@pytest.fixture(scope="module")
def fleet(shared: LocalKeyset, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Serving]]:
    both = shared.environ | {"SERVER": "both"}
    # Two services by name, which share state on purpose: what counts is the keyset's audience.
    with serving(tmp_path_factory.mktemp("logs"), both, both | {"NAME": "acme-refunds"}) as started:
        yield started


def run(check: Any, *servers: Any) -> None:
    async def main() -> None:
        with anyio.fail_after(30):
            async with clients(*servers) as connected:
                await check(*connected)

    anyio.run(main)


def text(result: Any) -> str:
    assert not result.is_error, result
    return str(result.content[0].text)


ORDER = "colour! lamp [so bright] for 1 root(s)"


def low(server: Serving) -> str:
    return server.url.removesuffix("/mcp") + "/low"


REFUND = "refunded 7 for broken, approved:who!, sure!"


async def every_form(client: Client) -> None:
    assert text(await client.call_tool("order", {"item": "lamp"})) == ORDER
    assert text(await client.call_tool("order", {"item": "milk"})) == "white milk [so bright] for 1 root(s)"
    assert text(await client.call_tool("refund", {"amount": 7, "reason": "broken"})) == REFUND
    prompt = await client.get_prompt("letter", {})
    assert prompt.messages[0].content.text == "Write to to! (letter)."  # type: ignore[union-attr]
    resource = await client.read_resource("report://2026")
    assert resource.contents[0].text == "2026 in unit! (report-2026)"  # type: ignore[union-attr]


def test_every_form_over_http(fleet: list[Serving]) -> None:
    run(every_form, fleet[0].url)


def test_every_form_over_stdio(shared: LocalKeyset) -> None:
    parameters = StdioServerParameters(command=sys.executable, args=[SCRIPT, "stdio"], env=environment(shared.environ))
    run(every_form, stdio_client(parameters))


def test_a_low_level_server_over_http(fleet: list[Serving]) -> None:
    async def check(client: Client) -> None:
        assert text(await client.call_tool("refund", {"amount": 7})) == "refunded 7, asked, who!"

    run(check, low(fleet[0]))


@pytest.mark.parametrize(
    ("tool", "arguments", "expected", "address"),
    [
        ("order", {"item": "lamp"}, ORDER, operator.attrgetter("url")),
        ("refund", {"amount": 7, "reason": "broken"}, REFUND, operator.attrgetter("url")),
        ("refund", {"amount": 7}, "refunded 7, asked, who!", low),
    ],
    ids=["resolvers", "by-hand", "low-level"],
)
def test_each_leg_by_hand_lands_on_the_other_instance(
    fleet: list[Serving], tool: str, arguments: dict[str, Any], expected: str, address: Any
) -> None:
    async def check(*connected: Client) -> None:
        legs, result = 0, await step(connected[0], tool, arguments)
        while isinstance(result, InputRequiredResult):
            assert result.request_state is not None
            assert result.request_state.startswith("mk1.")
            legs += 1
            result = await step(connected[legs % 2], tool, arguments, result)
        assert legs >= 1
        assert text(result) == expected

    run(check, address(fleet[0]), address(fleet[1]))


def test_prompts_and_resources_by_hand_land_on_the_other_instance(fleet: list[Serving]) -> None:
    async def check(one: Client, other: Client) -> None:
        asked: Any = await one.session.get_prompt("letter", {}, allow_input_required=True)
        answers = {key: fulfil(request) for key, request in asked.input_requests.items()}
        done: Any = await other.session.get_prompt(
            "letter", {}, input_responses=answers, request_state=asked.request_state, allow_input_required=True
        )
        assert done.messages[0].content.text == "Write to to! (letter)."
        asked = await other.session.read_resource("report://2026", allow_input_required=True)
        answers = {key: fulfil(request) for key, request in asked.input_requests.items()}
        done = await one.session.read_resource(
            "report://2026", input_responses=answers, request_state=asked.request_state, allow_input_required=True
        )
        assert done.contents[0].text == "2026 in unit! (report-2026)"

    run(check, fleet[0].url, fleet[1].url)


def test_a_state_for_other_arguments_or_changed_is_refused(fleet: list[Serving]) -> None:
    async def check(one: Client, other: Client) -> None:
        arguments = {"amount": 7, "reason": "broken"}
        asked = await step(one, "refund", arguments)
        with pytest.raises(MCPError) as caught:
            await step(other, "refund", arguments | {"amount": 7000}, asked)
        assert is_refusal(caught.value)
        # Not the last character: its spare bits would make it malformed before the seal is looked at.
        state = asked.request_state
        asked.request_state = state[:-9] + ("A" if state[-9] != "A" else "B") + state[-8:]
        with pytest.raises(MCPError) as caught:
            await step(other, "refund", arguments, asked)
        assert is_refusal(caught.value)

    run(check, fleet[0].url, fleet[1].url)
    # The SDK's log handler breaks lines, between words.
    logged = " ".join(fleet[1].log.read_text().replace("request_state.py:", "").split())
    assert re.search(r"requestState rejected on (\d+ )?tools/call: request binding", logged)
    assert re.search(r"requestState rejected on (\d+ )?tools/call: seal", logged)


def test_a_client_stores_the_round_and_another_process_resumes_it(fleet: list[Serving], tmp_path: Path) -> None:
    stored = tmp_path / "round.json"
    outputs = []
    for turn in range(2):
        done = subprocess.run(
            [sys.executable, CLIENT, fleet[turn % 2].url, str(stored)],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment({"PYTHONPATH": str(Path(SCRIPT).parent.parent)}),
        )
        assert done.returncode == 0, done.stderr[-2000:]
        outputs.append(json.loads(done.stdout))
    assert [output["done"] for output in outputs] == [False, True]
    assert outputs[-1]["text"] == REFUND
    assert len({output["pid"] for output in outputs}) == 2
