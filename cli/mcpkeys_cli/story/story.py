"""The demo's story, from the first file to the last process; the rotation is taken by the commands themselves."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mcpkeys import registry
from mcpkeys.encoding import format_ms, to_ms
from mcpkeys.errors import McpkeysError, Unreachable, Unsafe
from mcpkeys.inspection import CallContext, inspect_token
from mcpkeys.keks import Keks
from mcpkeys.loading import Loader, Pins
from mcpkeys.ring import Ring
from mcpkeys.settings import Settings, load_settings
from mcpkeys_cli.story.processes import Processes, Ran, free_ports
from mcpkeys_cli.story.screen import Screen
from mcpkeys_cli.story.tally import Tally
from mcpkeys_cli.story.verdict import AGAIN, Refusal

if TYPE_CHECKING:
    from mcpkeys_cli.story.traffic import Traffic

SERVERS = 3
CLIENTS = 8
LEAST_CALLS = 320
TTL, SKEW, REFRESH = 8, 2, 1
PATIENCE = "2m"
_METHOD = "tools/call"
T = TypeVar("T")


@dataclass(slots=True)
class Story:
    """The demo. `tell` it, then `end` it in any case.

    Attributes:
        keyset_uri, kek_uri, sign_kek: None for files in `folder`.
        traffic: what became of the clients' calls.
        ran: the commands, in order.
        phases: one a step of the rotation: phase, times, calls that were completed meanwhile.
    """

    folder: Path
    keyset_uri: str | None
    kek_uri: str | None
    sign_kek: str | None
    servers: int
    traffic: Tally = field(default_factory=Tally)
    ran: list[Ran] = field(default_factory=list)
    phases: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    restarts: int = 0
    processes: Processes = field(init=False)
    _screen: Screen = field(init=False)
    _now: str = ""
    _clients: asyncio.Task[None] | None = None
    _settings: Settings = field(default_factory=Settings)

    def __post_init__(self) -> None:
        # What this shell is set up for is another fleet's.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("MCPKEYS_")}
        environ |= {name: value for name, value in os.environ.items() if name.startswith(("MCPKEYS_GCP_", "MCPKEYS_V"))}
        self.processes = Processes(self.folder, environ)
        self._screen = Screen(self._living)

    async def tell(self) -> None:
        """Everything, in order. Raises where something is not as promised."""
        with self._screen:
            await self._init()
            # Imported here: the SDK costs half a second, which `--help` need not pay.
            from mcpkeys_cli.story.traffic import Traffic, begin_round

            *backends, front = free_ports(self.servers + 1)
            for port in backends:
                self.processes.start("server", port)
            self.processes.start("balancer", front, *backends)
            url = f"http://127.0.0.1:{front}/mcp"
            self._now = "servers start"
            await self.processes.ready(*backends, front)
            self._say(f"{self.servers} servers behind a round-robin on {url}; {CLIENTS} clients call")
            traffic = Traffic(url, self.traffic)
            self._clients = asyncio.create_task(traffic.run(CLIENTS))
            try:
                expired = await self._rotate(traffic, backends, lambda: begin_round(url, "orders"))
            finally:
                traffic.stop.set()
                await asyncio.wait({self._clients}, timeout=30)
            self._check()
            calls, rounds, refused = self.traffic.calls, self.traffic.rounds, self.traffic.refused
            self._say(f"{calls} calls, {rounds} rounds, {refused} refused")
            self._now = "four bad tokens"
            await self._refuse(url, expired)

    def end(self) -> None:
        """End every process that this demo started."""
        self.processes.end()

    # --- the keyset -----------------------------------------------------------------------------------------

    async def _init(self) -> None:
        keyset = self.keyset_uri or (self.folder / "fleet.keyset.json").as_uri()
        kek = self.kek_uri or f"local://{self.folder / 'kek.key'}"
        times = ("--ttl", f"{TTL}s", "--skew", f"{SKEW}s", "--refresh", f"{REFRESH}s")
        sign = ("--sign-kek", self.sign_kek) if self.sign_kek else ()
        ran = await self._run("init", "fleet", "--keyset", keyset, "--kek", kek, *sign, *times)
        self._settings = load_settings(ran.answer["settings"])
        self.processes.environ = {**self.processes.environ, **ran.answer["settings"]}
        self._say(f"key {ran.answer['kid']} mints; ttl {TTL} s, skew {SKEW} s, refresh {REFRESH} s")

    def _ring(self) -> Ring:
        settings = self._settings
        loader = Loader(
            registry.open_store(settings.keyset), Keks.open(settings.keks), Pins(settings.name, settings.signers)
        )
        try:
            return loader.first()
        finally:
            loader.close()

    # --- the rotation -------------------------------------------------------------------------------------------

    async def _rotate(self, traffic: Traffic, backends: list[int], begin: Callable[[], Awaitable[str]]) -> str:
        """A restart and three phases under traffic; a token begun under NEW, expired by the time OLD is retired."""
        await self._until(lambda: self.traffic.calls >= 20)
        self._say("one server restarts while rounds are in flight")
        restarted = backends[0]
        await self._guarded(_balance(traffic.url, [port for port in backends if port != restarted]))
        await self.processes.stop(restarted)
        self.processes.start("server", restarted)
        await self._guarded(self.processes.ready(restarted))
        await self._guarded(_balance(traffic.url, backends))
        self.restarts += 1
        begun = ""
        for phase in (1, 2, 3):
            started, before = time.time(), self.traffic.calls
            ran = await self._run("rotate", "--phase", str(phase), "--wait", PATIENCE, "--yes")
            finished = time.time()
            self.phases.append(
                {
                    "phase": phase,
                    "started_at": format_ms(to_ms(started)),
                    "finished_at": format_ms(to_ms(finished)),
                    "seconds": round(finished - started, 1),
                    "calls": self.traffic.calls - before,
                }
            )
            self._say(f"phase {phase} is out: {ran.answer['why']}")
            if phase == 2:
                begun = await self._guarded(begin())
        await self._until(lambda: self.traffic.calls >= LEAST_CALLS)
        return begun

    async def _run(self, *arguments: str) -> Ran:
        self._now = "mcpkeys " + " ".join(arguments[:3])
        self._say("$ mcpkeys " + " ".join(arguments))
        # To be read, each question answered by a person; the demo answers all of them.
        ran = await self._guarded(self.processes.command(*arguments, said=lambda line: self._say(f"  {line}")))
        self.ran.append(ran)
        if ran.code != 0:
            error = ran.answer.get("error") or {}
            failure = Unreachable if ran.code == 4 else Unsafe if ran.code in (5, 6) else McpkeysError
            raise failure(
                f"{ran.shown} ended with exit code {ran.code}: {error.get('message', 'it said nothing')}",
                why=error.get("why", ""),
                # What names the demo's own keyset names files that are gone by then.
                next=AGAIN if self.keyset_uri is None and self.kek_uri is None else error.get("next", "") or AGAIN,
                code=error.get("code"),
            )
        return ran

    # --- waiting ----------------------------------------------------------------------------------------------

    async def _guarded(self, work: Awaitable[T]) -> T:
        """`work`, broken off where the clients or a process of the story end before it."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=0.25)
                self._check()
        except BaseException:
            task.cancel()
            await asyncio.wait({task}, timeout=5)
            raise
        return task.result()

    async def _until(self, reached: Callable[[], bool]) -> None:
        until = time.monotonic() + 60
        while not reached():
            self._check()
            if time.monotonic() > until:
                raise Unreachable("the clients did not get far enough in a minute", next="run it on a quieter machine")
            await asyncio.sleep(0.05)

    def _check(self) -> None:
        self.processes.check()
        clients = self._clients
        if clients is not None and clients.done() and not clients.cancelled() and clients.exception() is not None:
            why = type(clients.exception()).__name__
            raise Unreachable("the clients stopped", why=why, next="run it again", code="clients-stopped")

    def _living(self) -> str:
        here = self.traffic
        done = "".join("#" if len(self.phases) >= phase else "." for phase in (1, 2, 3))
        return f"[{done}] {here.calls} calls, {here.rounds} rounds, {here.refused} refused   {self._now}"

    def _say(self, text: str) -> None:
        self._screen.say(text)

    # --- the refusals -------------------------------------------------------------------------------------------

    async def _refuse(self, url: str, expired: str) -> None:
        from mcpkeys_cli.story.traffic import begin_round, send_round

        good = await begin_round(url, "orders")
        middle = len(good) // 2
        tampered = good[:middle] + ("A" if good[middle] != "A" else "B") + good[middle + 1 :]
        foreign = Ring.from_secrets([secrets.token_bytes(32)], now=time.time()).minter(secrets.token_bytes(12))
        assert foreign is not None
        cases = [
            ("tampered", tampered, "orders"),
            ("expired", expired, "orders"),
            ("replayed for other arguments", good, "payroll"),
            ("foreign", _seal(foreign), "orders"),
        ]
        ring = await asyncio.to_thread(self._ring)
        for kind, token, name in cases:
            now = time.time()
            wire = await send_round(url, name, token)
            call = CallContext(
                method=_METHOD,
                params={"name": "provision", "arguments": {"name": name}},
                audience="fleet",
                principal=None,
            )
            inspection = inspect_token(token, ring, call, now=now)
            detail = next((check.detail for check in inspection.checks if check.result == "fail"), "")
            self.refusals.append(Refusal(kind, wire, inspection.reason, detail))
        accepted = await send_round(url, "orders", good)
        if accepted is not None:
            raise Unsafe("the untouched token was refused too", next="please report it")


async def _balance(url: str, backends: list[int]) -> None:
    """Send new requests to these only; returns once the others have none left: as a deployment drains."""
    import httpx2

    async with httpx2.AsyncClient(timeout=60) as client:
        base = url.removesuffix("/mcp")
        (await client.put(f"{base}/-/backends/{'/'.join(map(str, backends))}")).raise_for_status()


def _seal(minter: Any) -> str:
    """A token of somebody else's key."""
    from mcpkeys import token

    nonce = secrets.token_bytes(12)
    return token.encode(minter.header, nonce + minter.encrypt(nonce, b'{"v":1}', minter.aad))
