"""`mcpkeys demo`: a fleet of real servers shares sealed state, rotates its keys under traffic, explains refusals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from mcpkeys import registry
from mcpkeys.authoring import Author, whoami
from mcpkeys.encoding import format_ms, to_ms
from mcpkeys.errors import Unreachable, Unsafe
from mcpkeys.inspection import CallContext, inspect_token
from mcpkeys.keks import Keks
from mcpkeys.keyset import Keyset
from mcpkeys.loading import Loader, Pins
from mcpkeys.ring import Ring
from mcpkeys.settings import Settings
from mcpkeys.stepping import observe, take
from mcpkeys.steps import Step
from mcpkeys_cli.options import output_option
from mcpkeys_cli.output import Answer, note, paint, table

SERVERS = 3
CLIENTS = 8
LEAST_CALLS = 320
TTL, SKEW, REFRESH = 8, 2, 1
_METHOD = "tools/call"


@click.command("demo", epilog="Example: mcpkeys demo --output json")
@click.option("--keyset", metavar="URI", help="Where the keyset lives; default: a file in a temporary folder.")
@click.option("--kek", metavar="URI", help="The KEK; default: a local file in a temporary folder.")
@click.option("--sign-kek", metavar="URI", help="The signer's KEK; default: the KEK.")
@click.option("--servers", type=click.IntRange(3, 16), default=SERVERS, show_default=True)
@output_option
def command(keyset: str | None, kek: str | None, sign_kek: str | None, servers: int, output: str) -> Answer:
    """The whole story on this machine: real servers, a real client, a rotation under traffic. Under a minute."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mcpkeys-demo-") as folder:
        story = Story(Path(folder), keyset, kek, sign_kek, servers)
        try:
            asyncio.run(story.tell())
        finally:
            story.end()
    return _answer(story, time.monotonic() - started)


@dataclass(slots=True)
class Refusal:
    """One refused token: what was done to it, what the wire said, what inspection says."""

    kind: str
    wire: dict[str, Any] | None
    reason: str | None
    detail: str


@dataclass(slots=True)
class Story:
    """The demo from the first file to the last process."""

    folder: Path
    keyset_uri: str | None
    kek_uri: str | None
    sign_kek: str | None
    servers: int
    phases: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    calls: int = 0
    rounds: int = 0
    refused: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    ports: list[int] = field(default_factory=list)
    _running: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    _environ: dict[str, str] = field(default_factory=dict)
    _settings: Settings = field(default_factory=Settings)

    async def tell(self) -> None:
        """Everything, in order. Raises where something is not as promised."""
        # Imported here: the SDK costs half a second, which `--help` need not pay.
        from mcpkeys_cli.story.traffic import Traffic, begin_round

        with self._author() as author:
            self._create(author)
        *backends, front = self.ports = _free_ports(self.servers + 1)
        for port in backends:
            self._start("server", port)
        self._start("balancer", front, *backends)
        url = f"http://127.0.0.1:{front}/mcp"
        await self._ready([*backends, front])
        _say(f"{self.servers} servers behind a round-robin on {url}; {CLIENTS} clients call")
        traffic = Traffic(url)
        running = asyncio.create_task(traffic.run(CLIENTS))
        try:
            await self._until(lambda: traffic.calls >= 20, running)
            _say("one server restarts while rounds are in flight")
            await self._restart(backends[0])
            for phase in (1, 2, 3):
                await self._phase(phase, running, lambda: traffic.calls)
                if phase == 2:
                    # Begun under NEW; expired by the time OLD is retired.
                    expired = await begin_round(url, "orders")
            await self._until(lambda: traffic.calls >= LEAST_CALLS, running)
        finally:
            traffic.stop.set()
            await running
        self.calls, self.rounds, self.refused = traffic.calls, traffic.rounds, traffic.refused
        self.broken = dict(traffic.broken)
        _say(f"{self.calls} calls, {self.rounds} rounds, {self.refused} refused")
        await self._refuse(url, expired)

    # --- the keyset -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _author(self) -> Iterator[Author]:
        settings = self._settings
        store = registry.open_store(settings.keyset or self._keyset())
        keks = Keks.open(settings.keks or (self._kek(),))
        author = Author(store, keks, Pins(settings.name or None, settings.signers))
        try:
            yield author
        finally:
            author.close()

    def _keyset(self) -> str:
        return self.keyset_uri or (self.folder / "fleet.keyset.json").as_uri()

    def _kek(self) -> str:
        if self.kek_uri is not None:
            return self.kek_uri
        path = self.folder / "kek.key"
        if not path.exists():
            from mcpkeys_local.kekfile import create_kek

            create_kek(str(path))
        return f"local://{path}"

    def _create(self, author: Author) -> None:
        made, _ = author.create(
            "fleet",
            audience="fleet",
            sign_keks=(self.sign_kek,) if self.sign_kek else author.keks.uris,
            now_ms=to_ms(time.time()),
            ttl_seconds=TTL,
            skew_seconds=SKEW,
            refresh_seconds=REFRESH,
        )
        self._settings = Settings(
            name="fleet", keyset=author.store.uri, keks=author.keks.uris, signers=(made.signer.public,)
        )
        self._environ = {**os.environ, **self._settings.environ()}
        _say(f"keyset fleet: key {made.minting.kid} mints; ttl {TTL} s, skew {SKEW} s, refresh {REFRESH} s")

    def _ring(self) -> Ring:
        settings = self._settings
        loader = Loader(
            registry.open_store(settings.keyset), Keks.open(settings.keks), Pins(settings.name, settings.signers)
        )
        try:
            return loader.first()
        finally:
            loader.close()

    # --- processes --------------------------------------------------------------------------------------------

    def _start(self, what: str, port: int, *others: int) -> None:
        log = (self.folder / f"{what}-{port}.log").open("ab")
        # Our own module with our own interpreter; nothing of it comes from outside.
        self._running[port] = subprocess.Popen(
            [sys.executable, "-m", f"mcpkeys_cli.story.{what}", str(port), *map(str, others)],
            env={**self._environ, "MCPKEYS_INSTANCE": f"{what}-{port}"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        log.close()

    async def _ready(self, ports: list[int]) -> None:
        until = time.monotonic() + 30
        for port in ports:
            while not await _listens(port):
                process = self._running[port]
                if process.poll() is not None or time.monotonic() > until:
                    raise Unreachable(
                        "a process of the demo did not start", why=self._tail(port), next="run mcpkeys demo again"
                    )
                await asyncio.sleep(0.05)

    def _tail(self, port: int) -> str:
        logs = sorted(self.folder.glob(f"*-{port}.log"))
        return logs[0].read_text(errors="replace")[-600:] if logs else ""

    async def _restart(self, port: int) -> None:
        """As a deployment does it: drain, stop, start, take in again."""
        *backends, _ = self.ports
        await self._balance([other for other in backends if other != port])
        await asyncio.sleep(0.5)
        process = self._running[port]
        process.terminate()
        await asyncio.to_thread(process.wait, 20)
        self._start("server", port)
        await self._ready([port])
        await self._balance(backends)
        self.restarts += 1

    async def _balance(self, backends: list[int]) -> None:
        import httpx2

        async with httpx2.AsyncClient() as client:
            await client.put(f"http://127.0.0.1:{self.ports[-1]}/-/backends/{'/'.join(map(str, backends))}")

    def end(self) -> None:
        """End every process that this demo started."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # --- the rotation -------------------------------------------------------------------------------------------

    async def _phase(self, phase: int, traffic: asyncio.Task[None], calls: Any) -> None:
        started, before = time.time(), calls()
        step = Step(to=phase, who=whoami())  # type: ignore[arg-type]
        said = ""
        with self._author() as author:
            while True:
                taken = await asyncio.to_thread(take, author, step)
                if taken.written is not None:
                    break
                if taken.plan.verdict not in ("not_yet", "do"):
                    raise Unsafe(f"phase {phase} was refused", why=taken.plan.why, next="please report it")
                if taken.plan.code != said:
                    said = taken.plan.code
                    _say(f"phase {phase} waits: {taken.plan.why}")
                _check(traffic)
                await asyncio.sleep(0.25)
            await self._rolled_out(author, taken.written, traffic)
        finished = time.time()
        self.phases.append(
            {
                "phase": phase,
                "started_at": format_ms(to_ms(started)),
                "finished_at": format_ms(to_ms(finished)),
                "seconds": round(finished - started, 1),
                "calls": calls() - before,
            }
        )
        _say(f"phase {phase} is out: {taken.plan.why}")

    async def _rolled_out(self, author: Author, written: Keyset, traffic: asyncio.Task[None]) -> None:
        until = time.monotonic() + 20
        while True:
            seen = await asyncio.to_thread(observe, author)
            here = [entry.report for entry in seen.gathered.received if entry.report.state == "serving"]
            if len(here) >= self.servers and all(report.generation >= written.generation for report in here):
                return
            _check(traffic)
            if time.monotonic() > until:
                raise Unreachable(f"generation {written.generation} did not reach every server in 20 s")
            await asyncio.sleep(0.2)

    async def _until(self, reached: Any, traffic: asyncio.Task[None]) -> None:
        until = time.monotonic() + 60
        while not reached():
            _check(traffic)
            if time.monotonic() > until:
                raise Unreachable("the clients did not get far enough in a minute", next="run it on a quieter machine")
            await asyncio.sleep(0.05)

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

    @property
    def kept(self) -> str:
        """What is not as promised, or empty."""
        if self.refused:
            return f"{self.refused} rounds were refused"
        if self.broken:
            return "calls failed: " + "; ".join(f"{count} x {text}" for text, count in self.broken.items())
        wanted = ["seal", "expired", "request binding", "unknown key"]
        got = [refusal.reason for refusal in self.refusals]
        if got != wanted:
            return f"the refusals are {got}, expected {wanted}"
        frozen = {"code": -32602, "message": "Invalid or expired requestState"}
        for refusal in self.refusals:
            if refusal.wire is None or {k: refusal.wire[k] for k in frozen} != frozen:
                return f"the {refusal.kind} token was not answered with the frozen error"
        return ""


def _seal(minter: Any) -> str:
    """A token of somebody else's key."""
    from mcpkeys import token

    nonce = secrets.token_bytes(12)
    return token.encode(minter.header, nonce + minter.encrypt(nonce, b'{"v":1}', minter.aad))


def _check(traffic: asyncio.Task[None]) -> None:
    if traffic.done() and traffic.exception() is not None:
        raise Unreachable("the clients stopped", why=f"{type(traffic.exception()).__name__}", next="run it again")


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(opened.getsockname()[1]) for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()


_BEGAN = time.monotonic()


def _say(text: str) -> None:
    note(f"{paint(f'[{time.monotonic() - _BEGAN:5.1f} s]', 'dim')} {text}")


def _answer(story: Story, seconds: float) -> Answer:
    wrong = story.kept
    data = {
        "calls_completed": story.calls,
        "rounds_completed": story.rounds,
        "rounds_refused": story.refused,
        "calls_failed": story.broken,
        "processes": story.servers,
        "restarts": story.restarts,
        "phases": story.phases,
        "refusals": [{"kind": r.kind, "wire": r.wire, "reason": r.reason, "detail": r.detail} for r in story.refusals],
        "seconds": round(seconds, 1),
    }
    return Answer(
        "demo",
        data=data,
        text=lambda: _text(story, seconds),
        next="README.md: the one-line change for your own server; mcpkeys init --help",
        exit=1 if wrong else 0,
        code="demo-broken" if wrong else "",
        message=f"the demo did not go as promised: {wrong}" if wrong else "",
    )


def _text(story: Story, seconds: float) -> str:
    phases = [(str(p["phase"]), str(p["started_at"]), f"{p['seconds']} s", str(p["calls"])) for p in story.phases]
    refusals = [
        (r.kind, "accepted" if r.wire is None else f"{r.wire['code']} {r.wire['message']}", r.reason or "-")
        for r in story.refusals
    ]
    return "\n".join(
        [
            f"{story.calls} calls of several rounds over {story.servers} servers in {seconds:.0f} s: "
            f"{story.rounds} rounds completed, {story.refused} refused",
            "",
            table(("PHASE", "STARTED", "TOOK", "CALLS MEANWHILE"), phases),
            "",
            table(("TOKEN", "ON THE WIRE", "INSPECT SAYS"), refusals),
        ]
    )
