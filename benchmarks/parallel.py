"""Two threads, two processes, and an event loop beside a busy thread."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keysets
import rivals
from states import payloads
from timing import percentile

from mcpkeys import EnvelopeCodec


def throughput(folder: Path, *, seconds: float, size: int = 1024) -> dict[str, Any]:
    """Rounds (one seal, one unseal) per second by 1 thread, 2 threads and 2 processes."""
    opened = keysets.local(folder / "parallel")
    rows = []
    for name in ("mcpkeys", "SDK built-in"):
        seal, unseal, close = _codec(name, opened)
        one = sum(_threads(seal, unseal, 1, seconds, size))
        two = sum(_threads(seal, unseal, 2, seconds, size))
        close()
        rows.append(
            {"name": name, "thread": one, "threads_2": two, "processes_2": sum(_processes(name, opened, seconds, size))}
        )
    return {"rows": rows, "bytes": size}


def _codec(name: str, opened: dict[str, Any]) -> tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[], None]]:
    if name == "mcpkeys":
        codec = EnvelopeCodec.open(**opened)
        return codec.seal, codec.unseal, codec.close
    rival = rivals.sdk()
    return rival.seal, rival.unseal, lambda: None


def _rounds(seal: Callable[[Any], Any], unseal: Callable[[Any], Any], seconds: float, size: int) -> float:
    states = payloads(size, 64)
    done, started = 0, time.perf_counter()
    while (taken := time.perf_counter() - started) < seconds:
        for state in states:
            unseal(seal(state))
        done += len(states)
    return done / taken


def _threads(
    seal: Callable[[Any], Any], unseal: Callable[[Any], Any], count: int, seconds: float, size: int
) -> list[float]:
    rates: list[float] = []
    threads = [
        threading.Thread(target=lambda: rates.append(_rounds(seal, unseal, seconds, size))) for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return rates


def _processes(name: str, opened: dict[str, Any], seconds: float, size: int) -> list[float]:
    context = multiprocessing.get_context("spawn")
    barrier, rates = context.Barrier(2), context.SimpleQueue()
    children = [
        context.Process(target=_child, args=(name, opened, seconds, size, barrier, rates), daemon=True)
        for _ in range(2)
    ]
    for child in children:
        child.start()
    found = [rates.get() for _ in children]
    for child in children:
        child.join()
    return found


def _child(name: str, opened: dict[str, Any], seconds: float, size: int, barrier: Any, rates: Any) -> None:
    seal, unseal, close = _codec(name, opened)
    barrier.wait(60)
    rates.put(_rounds(seal, unseal, seconds, size))
    close()


def loop_stall(folder: Path, *, seconds: float, size: int = 4096) -> dict[str, Any]:
    """How long an event loop is held by one seal and one unseal while a thread runs Python without pause.

    Such a thread keeps the interpreter for its switch interval (5 ms) whenever a call lets go of it, and every codec
    does: the kernel's randomness and the cipher are called without the interpreter's lock. So the share of calls that
    waited that long is what differs, besides the time of a call itself.
    """
    opened = keysets.local(folder / "stall")
    rows = []
    for name in ("mcpkeys", "SDK built-in"):
        seal, unseal, close = _codec(name, opened)
        for busy in (False, True):
            held = asyncio.run(_held(seal, unseal, seconds, size, busy=busy))
            rows.append(
                {
                    "name": name,
                    "busy": busy,
                    "median_us": percentile(held, 0.5) * 1e6,
                    "p99_us": percentile(held, 0.99) * 1e6,
                    "max_us": max(held) * 1e6,
                    "calls": len(held),
                }
            )
        close()
    return {"rows": rows, "bytes": size}


async def _held(
    seal: Callable[[Any], Any], unseal: Callable[[Any], Any], seconds: float, size: int, *, busy: bool
) -> list[float]:
    stop, held, states = threading.Event(), [], payloads(size, 64)
    thread = threading.Thread(target=_spin, args=(stop,), daemon=True)
    if busy:
        thread.start()
    ends, i = time.perf_counter() + seconds, 0
    try:
        while time.perf_counter() < ends:
            state = states[i % len(states)]
            i += 1
            started = time.perf_counter()
            unseal(seal(state))
            held.append(time.perf_counter() - started)
            await asyncio.sleep(0)
    finally:
        stop.set()
        if busy:
            thread.join()
    return held


def _spin(stop: threading.Event) -> None:
    count = 0
    while not stop.is_set():
        count += 1
