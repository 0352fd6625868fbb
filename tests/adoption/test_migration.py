"""From `keys=[K]` to mcpkeys and back, under traffic, with real processes: no round is refused.

    keys=[K]  ->  mint SDK, verify both  ->  mint mk1, verify both  ->  (ttl + skew)  ->  mcpkeys alone

and the same steps backwards. While one step rolls out, the instances before and after it serve side by side, and
each leg of each round lands on any of them.
"""

from __future__ import annotations

import random
import secrets
import time
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import InputRequiredResult
from servers.localkeyset import local_keyset
from servers.sdkfleet import clients, is_refusal, serving, step

STEPS = ("keys", "sdk", "mk1+sdk", "mk1")
ARGUMENTS = {"amount": 7, "reason": "broken"}
SKEW = 1


class Traffic:
    """Rounds of two retries each, every leg on an instance chosen anew from `active`."""

    def __init__(self, by_policy: dict[str, list[Client]], *, think: float) -> None:
        self.by_policy = by_policy
        self.active: list[Client] = []
        self.think = think
        self.counts: Counter[str] = Counter()
        self.prefixes: Counter[str] = Counter()
        self.stopping = False
        self.chance = random.Random(7)

    def serve(self, *policies: str) -> None:
        self.active = [client for policy in policies for client in self.by_policy[policy]]

    async def player(self) -> None:
        while not self.stopping:
            await self.round()

    async def round(self) -> None:
        try:
            result: Any = await step(self.chance.choice(self.active), "refund", ARGUMENTS)
            while isinstance(result, InputRequiredResult):
                assert result.request_state is not None
                self.prefixes[result.request_state.partition(".")[0]] += 1
                # A person takes a while; some rounds are in flight across every change.
                await anyio.sleep(self.chance.random() * self.think)
                result = await step(self.chance.choice(self.active), "refund", ARGUMENTS, result)
        except MCPError as error:
            if not is_refusal(error):
                raise
            self.counts["refused"] += 1
        else:
            assert result.content[0].text == "refunded 7 for broken, approved:who!, sure!"
            self.counts["completed"] += 1


def migrate(tmp_path: Path, *, instances: int, seconds: float, ttl: int, players: int) -> None:
    keyset = local_keyset(tmp_path, ttl_seconds=ttl, skew_seconds=SKEW)
    secret = secrets.token_hex(32)
    policies = [policy for policy in STEPS for _ in range(instances)]
    environments = [keyset.environ | {"POLICY": policy, "SECRET": secret} for policy in policies]
    with serving(tmp_path, *environments) as started:

        async def main() -> None:
            async with clients(*(one.url for one in started)) as connected:
                by_policy: dict[str, list[Client]] = {}
                for policy, client in zip(policies, connected, strict=True):
                    by_policy.setdefault(policy, []).append(client)
                await _forth_and_back(Traffic(by_policy, think=min(0.5, seconds)), seconds, ttl, players)
                await _one_step_left_out(Traffic(by_policy, think=0.0))

        anyio.run(main)


async def _forth_and_back(traffic: Traffic, seconds: float, ttl: int, players: int) -> None:
    traffic.serve("keys")
    with anyio.fail_after(20 * (seconds + ttl + SKEW) + 60):
        async with anyio.create_task_group() as group:
            for _ in range(players):
                group.start_soon(traffic.player)
            await anyio.sleep(seconds)
            # Forth: each step rolls out beside the one before it, then alone.
            await _roll_out(traffic, "keys", "sdk", seconds)
            await _roll_out(traffic, "sdk", "mk1+sdk", seconds)
            await anyio.sleep(ttl + SKEW)
            await _roll_out(traffic, "mk1+sdk", "mk1", seconds)
            assert traffic.counts["refused"] == 0
            there = traffic.counts["completed"]
            # Back.
            await _roll_out(traffic, "mk1", "mk1+sdk", seconds)
            await _roll_out(traffic, "mk1+sdk", "sdk", seconds)
            await anyio.sleep(ttl + SKEW)
            await _roll_out(traffic, "sdk", "keys", seconds)
            traffic.stopping = True
    assert traffic.counts["refused"] == 0
    assert there > 10
    assert traffic.counts["completed"] - there > 10
    assert set(traffic.prefixes) == {"v1", "mk1"}, "both formats were in flight"
    print(f"{dict(traffic.counts)}, {dict(traffic.prefixes)}")


async def _roll_out(traffic: Traffic, before: str, after: str, seconds: float) -> None:
    traffic.serve(before, after)
    await anyio.sleep(seconds)
    traffic.serve(after)
    await anyio.sleep(seconds)


async def _one_step_left_out(traffic: Traffic) -> None:
    """The control: without the middle step, the instances of the first refuse what those of the last mint."""
    traffic.serve("keys", "mk1+sdk")
    with anyio.move_on_after(20):
        while not traffic.counts["refused"]:
            await traffic.round()
    assert traffic.counts["refused"] > 0


@pytest.mark.timeout(180)
def test_forth_and_back_without_a_refused_round(tmp_path: Path) -> None:
    began = time.monotonic()
    migrate(tmp_path, instances=1, seconds=0.2, ttl=3, players=4)
    print(f"{time.monotonic() - began:.1f} s")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_fleet_forth_and_back_under_more_traffic(tmp_path: Path) -> None:
    migrate(tmp_path, instances=3, seconds=1.5, ttl=4, players=16)
