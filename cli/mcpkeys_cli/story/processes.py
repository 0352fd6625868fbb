"""The story's processes: servers, the balancer, and the commands that an operator types. None of them outlives it.

Each child's stdin is a pipe that nobody writes: where this process ends without a word, even by SIGKILL, the
children read its end and stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcpkeys.errors import Unreachable

START_SECONDS = 60.0
STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that has ended.

    Attributes:
        shown: the line that a person would type.
        code: the exit code; negative where a signal ended it.
        answer: its JSON document; empty where it printed none.
        seconds: how long it took.
    """

    shown: str
    code: int
    answer: dict[str, Any]
    seconds: float


@dataclass(slots=True)
class Processes:
    """Starts, watches and ends.

    Attributes:
        folder: where the logs go, `<what>-<port>.log`.
        environ: what every child gets.
        servers: the running children by port.
    """

    folder: Path
    environ: Mapping[str, str]
    servers: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    _commands: set[asyncio.subprocess.Process] = field(default_factory=set)

    # --- servers -----------------------------------------------------------------------------------------------

    def start(self, what: str, port: int, *others: int) -> None:
        """Start `mcpkeys_cli.story.<what>` on a port."""
        with self._log(what, port).open("ab") as log:
            self.servers[port] = subprocess.Popen(
                [sys.executable, "-m", f"mcpkeys_cli.story.{what}", str(port), *map(str, others)],
                env={**self.environ, "MCPKEYS_INSTANCE": f"{what}-{port}"},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Ctrl-C is for the story alone, which then ends its children in order.
                process_group=0,
            )

    async def ready(self, *ports: int) -> None:
        """Wait until all of them listen. Raises Unreachable."""
        until = time.monotonic() + START_SECONDS
        for port in ports:
            while not await listens(port):
                self.check()
                if time.monotonic() > until:
                    raise Unreachable(
                        f"a process did not start in {START_SECONDS:.0f} s",
                        why=self.tail(port),
                        next="run it again on a quieter machine; if it happens again, please report it",
                    )
                await asyncio.sleep(0.05)

    def check(self) -> None:
        """Raises Unreachable where a child has ended that nobody ended."""
        for port, process in self.servers.items():
            code = process.poll()
            if code is not None:
                how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
                raise Unreachable(
                    f"the process on port {port} (pid {process.pid}) has ended by itself: {how}",
                    why=self.tail(port),
                    next="run it again; if it happens again, please report it",
                    code="process-ended",
                )

    async def stop(self, port: int) -> None:
        """End one by SIGTERM, as a deployment does, and wait for it."""
        process = self.servers.pop(port)
        process.terminate()
        await asyncio.to_thread(_reap, process)

    async def kill(self, port: int) -> None:
        """End one by SIGKILL, as the kernel does, and wait for it."""
        process = self.servers.pop(port)
        process.kill()
        await asyncio.to_thread(_reap, process)

    def tail(self, port: int, chars: int = 600) -> str:
        """The last that the processes of this port have said."""
        logs = sorted(self.folder.glob(f"*-{port}.log"))
        return logs[0].read_text(errors="replace").strip()[-chars:] if logs else ""

    def _log(self, what: str, port: int) -> Path:
        return self.folder / f"{what}-{port}.log"

    # --- commands ----------------------------------------------------------------------------------------------

    async def command(
        self, *arguments: str, said: Callable[[str], None] = lambda line: None, kill_after: float | None = None
    ) -> Ran:
        """Run `mcpkeys ARGUMENTS --output json` in a process of its own.

        Args:
            said: called with each line it says on stderr.
            kill_after: seconds after which it is killed -9, if it still runs.
        """
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mcpkeys_cli", *arguments, "--output", "json"),
            env=self.environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            process_group=0,
        )
        self._commands.add(process)
        killer = None
        if kill_after is not None:
            killer = asyncio.get_running_loop().call_later(kill_after, _kill, process)
        try:
            out, _ = await asyncio.gather(_read(process.stdout), _tell(process.stderr, said))
            code = await process.wait()
        finally:
            if killer is not None:
                killer.cancel()
            _kill(process)
            self._commands.discard(process)
        answer: dict[str, Any] = json.loads(out) if out else {}
        return Ran("mcpkeys " + shlex.join(arguments), code, answer, time.monotonic() - started)

    def end(self) -> None:
        """End everything that is still there; returns when it has ended."""
        for command in self._commands:
            _kill(command)
        for process in self.servers.values():
            process.terminate()
        for process in self.servers.values():
            _reap(process)
        self.servers.clear()


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        if process.returncode is None:
            process.kill()


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    assert stream is not None
    return await stream.read()


async def _tell(stream: asyncio.StreamReader | None, said: Callable[[str], None]) -> None:
    assert stream is not None
    async for line in stream:
        said(line.decode(errors="replace").rstrip())


async def listens(port: int) -> bool:
    """Whether somebody listens on this loopback port."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def free_ports(count: int) -> list[int]:
    """Loopback ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(opened.getsockname()[1]) for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()


def end_with_parent() -> None:
    """In a child: stop as by SIGTERM once the parent is gone, that is once stdin ends."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()
