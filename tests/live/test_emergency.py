"""Burning a key of a live fleet, in each phase and each key: refused everywhere within a refresh, NEW never."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from live.rig import REFRESH, Rig, fleet
from mcp.shared.exceptions import MCPError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
# Sending a token to be refused takes a moment on a busy machine; the rule is one refresh interval.
SLACK = 3.0


def kid_of(token: str) -> str:
    return token.split(".")[1][:12]


async def watch(rig: Rig, port: int, token: str, refreshed: list[int]) -> float:
    """When this server first refused the burnt token; from then on it takes every token of a refreshed server."""
    while not await rig.refused(port, token):
        await asyncio.sleep(0.1)
    at = time.time()
    refreshed.append(port)
    fresh = await rig.begin(port)
    assert kid_of(fresh) != kid_of(token)
    for other in list(refreshed):
        assert not await rig.refused(other, fresh), f"{port} minted it, {other} had refreshed and refused it"
    return at


async def burn(rig: Rig, kid: str, token: str | None) -> None:
    """Burn `kid`, of which `token` is one that every server has unsealed before (None where nobody minted it)."""
    refreshed: list[int] = []
    watching = []
    if token is not None:
        assert kid_of(token) == kid
        for port in rig.running:
            assert not await rig.refused(port, token), "good before; its derived key is in every cache now"
        watching = [asyncio.create_task(watch(rig, port, token, refreshed)) for port in rig.running]
    ran = await rig.mcpkeys("rotate", "--emergency", "--kid", kid, "--reason", "a drill", "--yes", "--wait", "30s")
    assert ran.code == 0, ran.answer
    assert (ran.answer["rolled_out"], ran.answer["still_accepting"]) == (True, [])
    status = await rig.status()
    burnt = next(key for key in status["keys"] if key["kid"] == kid)
    assert burnt["state"] == "retired"
    assert all(kid not in entry["verifies"] for entry in status["instances"])
    assert status["generation"] == ran.answer["min_generation"]
    for at in await asyncio.wait_for(asyncio.gather(*watching), 20):
        late = at - _seconds(burnt["state_since"])
        assert late <= REFRESH + SLACK, f"refused {late:.1f} s after the write"


def _seconds(stamp: str) -> float:
    import datetime

    return datetime.datetime.fromisoformat(stamp).timestamp()


async def minting(rig: Rig) -> str:
    return next(key["kid"] for key in (await rig.status())["keys"] if key["state"] == "minting")


async def verifying(rig: Rig) -> str:
    return next(key["kid"] for key in (await rig.status())["keys"] if key["state"] == "verifying")


async def rotated(rig: Rig, *phases: str) -> None:
    for phase in phases:
        ran = await rig.rotate("--phase", phase)
        assert ran.code == 0, ran.answer


def test_each_key_in_each_phase(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path, servers=4, places=4, traffic=False, ttl=60) as rig:
            any_port = rig.running[0]
            # Phase 0: the only key there is.
            await burn(rig, await minting(rig), await rig.begin(any_port))
            # Phase 1: NEW, which nobody minted; then, in another, OLD.
            await rotated(rig, "1")
            await burn(rig, await verifying(rig), None)
            await rotated(rig, "1")
            await burn(rig, await minting(rig), await rig.begin(any_port))
            assert len([k for k in (await rig.status())["keys"] if k["state"] != "retired"]) == 1, "NEW was dropped"
            # Phase 2: OLD, by a token from before; then, in another, NEW.
            before = await rig.begin(any_port)
            await rotated(rig, "1", "2")
            await burn(rig, await verifying(rig), before)
            before = await rig.begin(any_port)
            await rotated(rig, "1", "2")
            await burn(rig, await minting(rig), await rig.begin(any_port))
            assert not await rig.refused(any_port, before), "OLD goes on verifying until phase 3"
            status = await rig.status()
            assert status["rotation"]["ended"] == "emergency"
            assert status["earliest"] is not None, "phase 3 retires OLD in its time"

    asyncio.run(story())


def test_an_instance_that_is_cut_off_is_named_and_burns_the_key_even_where_it_cannot_open_the_new_one(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with fleet(tmp_path, servers=3, places=3, traffic=False, ttl=60) as rig:
            hung = rig.running[0]
            token = await rig.begin(rig.running[1])
            assert not await rig.refused(hung, token)
            name = next(e["id"] for e in (await rig.status())["instances"] if e["label"] == f"server-{hung}")
            process = rig.processes.servers[hung]
            os.kill(process.pid, signal.SIGSTOP)
            command = ("rotate", "--emergency", "--kid", kid_of(token), "--reason", "a drill", "--yes")
            try:
                ran = await rig.mcpkeys(*command)
                assert ran.code == 6, ran.answer
                assert ran.answer["still_accepting"] == [name]
                assert f"--allow-missing={name}" in ran.answer["next"]
                status = await rig.status()
                assert [entry["instance"] for entry in status["behind"]] == [name]
                # It comes back to a KEK that opens nothing for it: the new key cannot be unwrapped.
                (tmp_path / "kek.key").rename(tmp_path / "kek.away")
            finally:
                os.kill(process.pid, signal.SIGCONT)
            until = time.monotonic() + 20
            while not await rig.refused(hung, token):
                assert time.monotonic() < until, "it goes on accepting the burnt key"
                await asyncio.sleep(0.1)
            with pytest.raises((MCPError, ExceptionGroup)):
                await rig.begin(hung)
            (tmp_path / "kek.away").rename(tmp_path / "kek.key")
            ran = await rig.mcpkeys(*command, "--wait", "30s")
            assert (ran.code, ran.answer["still_accepting"]) == (0, []), ran.answer
            assert not await rig.refused(rig.running[1], await rig.begin(hung))

    asyncio.run(story())
