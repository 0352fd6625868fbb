"""A fleet of real processes under traffic: servers behind a balancer, clients, and the operator's commands.

Tokens are followed by hand too: `begin` and `send` go to one server, past the balancer.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcpkeys_cli.story.processes import Processes, Ran, free_ports
from mcpkeys_cli.story.tally import Tally
from mcpkeys_cli.story.traffic import Traffic, begin_round, send_round

TTL, SKEW, REFRESH = 8, 2, 1
CLIENTS = 6
NOWHERE = {"AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true", "GCE_METADATA_HOST": "127.0.0.1:1"}


class Rig:
    """`ports` are the servers' places; the balancer knows all of them, and passes over those where nobody listens."""

    def __init__(self, folder: Path, ports: int, environ: dict[str, str] | None = None) -> None:
        self.folder = folder
        own = {name: value for name, value in os.environ.items() if not name.startswith("MCPKEYS_")}
        self.processes = Processes(folder, {**own, **NOWHERE, **(environ or {})})
        *self.ports, self.front = free_ports(ports + 1)
        self.tally = Tally()
        self.traffic = Traffic(f"http://127.0.0.1:{self.front}/mcp", self.tally, think=0.1)
        self.running: list[int] = []
        self.killed: set[int] = set()
        self.kills = 0
        self._clients: asyncio.Task[None] | None = None

    # --- the fleet ---------------------------------------------------------------------------------------------

    async def start(self, *ports: int) -> None:
        """Start servers and wait until they serve."""
        for port in ports:
            self.processes.start("server", port)
        await self.processes.ready(*ports)
        self.running += ports

    async def kill(self, port: int) -> None:
        """-9, in the middle of whatever it does."""
        self.running.remove(port)
        await self.processes.kill(port)
        self.killed.add(port)
        self.kills += 1

    async def replace(self, port: int) -> None:
        """Kill -9, and start another in its place."""
        await self.kill(port)
        await self.start(port)

    def free(self) -> int:
        """A place where nobody runs."""
        return next(port for port in self.ports if port not in self.running)

    def begin_traffic(self) -> None:
        self._clients = asyncio.create_task(self.traffic.run(CLIENTS))

    async def calls(self, more: int) -> None:
        """Wait until this many more calls have ended well."""
        until, wanted = time.monotonic() + 60, self.tally.calls + more
        while self.tally.calls < wanted:
            self.check()
            assert time.monotonic() < until, "the traffic stands still"
            await asyncio.sleep(0.05)

    def check(self) -> None:
        self.processes.check()
        assert self._clients is None or not self._clients.done(), "the clients stopped"

    async def end_traffic(self) -> None:
        if self._clients is not None:
            self.traffic.stop.set()
            await asyncio.wait_for(self._clients, 60)

    # --- the operator ------------------------------------------------------------------------------------------

    async def mcpkeys(self, *arguments: str, kill_after: float | None = None) -> Ran:
        lines: list[str] = []
        ran = await self.processes.command(*arguments, said=lines.append, kill_after=kill_after)
        print(f"$ {ran.shown}\n  exit {ran.code} after {ran.seconds:.1f} s; {ran.answer.get('why') or ''}")
        if ran.answer.get("error"):
            print(f"  {ran.answer['error']}")
        for line in lines:
            print(f"  | {line}")
        return ran

    async def rotate(self, *arguments: str, wait: str = "60s") -> Ran:
        """`mcpkeys rotate` as a careful operator: where the answer names the dead, they are named, word for word."""
        ran = await self.mcpkeys("rotate", *arguments, "--wait", wait, "--yes")
        for _ in range(2):  # one that was dead before, one that died during the wait
            following = ran.answer["next"]
            if ran.code == 5 and "--allow-missing" in following:
                ran = await self.mcpkeys(*shlex.split(following)[1:], "--wait", wait, "--yes")
        return ran

    async def status(self) -> dict[str, Any]:
        ran = await self.processes.command("status")
        assert ran.code == 0, ran.answer
        return ran.answer

    async def until(self, reached: Any, what: str, seconds: float = 40) -> dict[str, Any]:
        """Ask `mcpkeys status` until `reached(status)`."""
        end = time.monotonic() + seconds
        while True:
            status = await self.status()
            if reached(status):
                return status
            assert time.monotonic() < end, f"{what}: {status}"
            await asyncio.sleep(0.2)

    # --- tokens ------------------------------------------------------------------------------------------------

    async def begin(self, port: int, name: str = "orders") -> str:
        """A token that this server mints now."""
        return await begin_round(f"http://127.0.0.1:{port}/mcp", name)

    async def refused(self, port: int, token: str, name: str = "orders") -> bool:
        """Whether this server refuses the token."""
        wire = await send_round(f"http://127.0.0.1:{port}/mcp", name, token)
        assert wire is None or wire["message"] == "Invalid or expired requestState", wire
        return wire is not None

    # --- the verdict -------------------------------------------------------------------------------------------

    def assert_nothing_refused(self) -> None:
        """0 rounds refused; a call is only lost where a kill -9 took the one process that held its answer."""
        assert self.tally.refused == 0, [self.processes.tail(port) for port in self.ports]
        lost = self.lost
        assert sum(self.tally.broken.values()) == sum(lost.values()), (self.tally.broken, lost)
        assert set(lost) <= self.killed, (lost, self.killed)
        assert all(count <= CLIENTS for count in lost.values()), lost
        print(f"{self.tally.calls} calls, {self.tally.rounds} rounds, 0 refused; lost with a killed process: {lost}")

    @property
    def lost(self) -> Counter[int]:
        """Answers whose only holder was killed, by the server's place: the balancer logs each (and answers 502)."""
        log = self.processes.tail(self.front, chars=1_000_000)
        return Counter(int(line.split()[1]) for line in log.splitlines() if line.startswith("502 "))


@asynccontextmanager
async def fleet(
    folder: Path,
    *,
    servers: int = 4,
    places: int = 6,
    keyset: str | None = None,
    kek: str | None = None,
    environ: dict[str, str] | None = None,
    traffic: bool = True,
    ttl: int = TTL,
    options: tuple[str, ...] = (),
) -> AsyncIterator[Rig]:
    """A keyset, its servers, a balancer, traffic; everything has ended afterwards."""
    rig = Rig(folder, places, environ)
    (folder / "store").mkdir()
    try:
        ran = await rig.mcpkeys(
            *("init", "fleet", "--keyset", keyset or str(folder / "store" / "fleet.keyset.json")),
            *("--kek", kek or f"local://{folder / 'kek.key'}"),
            *("--ttl", f"{ttl}s", "--skew", f"{SKEW}s", "--refresh", f"{REFRESH}s"),
            *options,
        )
        assert ran.code == 0, ran.answer
        rig.processes.environ = {**rig.processes.environ, **ran.answer["settings"]}
        rig.processes.start("balancer", rig.front, *rig.ports)
        await rig.start(*rig.ports[:servers])
        await rig.processes.ready(rig.front)
        if traffic:
            rig.begin_traffic()
            await rig.calls(5)
        yield rig
        await rig.end_traffic()
    finally:
        rig.processes.end()
