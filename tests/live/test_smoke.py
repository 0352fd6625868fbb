"""The smallest live rotation: real servers, real clients, phases 1 and 2, and back."""

from __future__ import annotations

import asyncio
from pathlib import Path

from live.rig import fleet


def test_two_phases_and_back_under_traffic_refuse_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with fleet(tmp_path, servers=2, places=2) as rig:
            first = (await rig.status())["keys"][0]["kid"]
            for arguments in (("--phase", "1"), ("--phase", "2"), ("--rollback",)):
                ran = await rig.rotate(*arguments)
                assert ran.code == 0, ran.answer
                await rig.calls(5)
            status = await rig.status()
            assert [key["state"] for key in status["keys"]] == ["minting", "verifying"]
            assert status["keys"][0]["kid"] == first, "OLD mints again"
            assert {entry["mints"] for entry in status["instances"]} == {first}
        rig.assert_nothing_refused()

    asyncio.run(story())
