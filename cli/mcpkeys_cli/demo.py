"""`mcpkeys demo`: a fleet of real servers shares sealed state, rotates its keys under traffic, explains refusals."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from mcpkeys_cli.options import output_option
from mcpkeys_cli.output import Answer, table
from mcpkeys_cli.story.story import SERVERS, Story
from mcpkeys_cli.story.verdict import wrong


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
        with _stopped_by_sigterm():
            try:
                asyncio.run(story.tell())
            finally:
                story.end()
    return _answer(story, time.monotonic() - started)


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM as Ctrl-C: the processes of the story end first."""

    def interrupt(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _answer(story: Story, seconds: float) -> Answer:
    broken = wrong(story.traffic, story.refusals)
    data = {
        "calls_completed": story.traffic.calls,
        "rounds_completed": story.traffic.rounds,
        "rounds_refused": story.traffic.refused,
        "calls_failed": dict(story.traffic.broken),
        "processes": story.servers,
        "restarts": story.restarts,
        "commands": [{"command": ran.shown, "exit": ran.code, "seconds": round(ran.seconds, 1)} for ran in story.ran],
        "phases": story.phases,
        "refusals": [{"kind": r.kind, "wire": r.wire, "reason": r.reason, "detail": r.detail} for r in story.refusals],
        "seconds": round(seconds, 1),
    }
    return Answer(
        "demo",
        data=data,
        text=lambda: _text(story, seconds),
        next="README.md: the one-line change for your own server; mcpkeys init --help"
        if broken is None
        else broken.next,
        exit=0 if broken is None else 1,
        code="" if broken is None else "demo-broken",
        message="" if broken is None else f"the demo did not go as promised: {broken.what}",
        why="" if broken is None else broken.why,
    )


def _text(story: Story, seconds: float) -> str:
    phases = [(str(p["phase"]), str(p["started_at"]), f"{p['seconds']} s", str(p["calls"])) for p in story.phases]
    refusals = [
        (r.kind, "accepted" if r.wire is None else f"{r.wire['code']} {r.wire['message']}", r.reason or "-")
        for r in story.refusals
    ]
    return "\n".join(
        [
            f"{story.traffic.calls} calls of several rounds over {story.servers} servers in {seconds:.0f} s: "
            f"{story.traffic.rounds} rounds completed, {story.traffic.refused} refused",
            "",
            table(("PHASE", "STARTED", "TOOK", "CALLS MEANWHILE"), phases),
            "",
            table(("TOKEN", "ON THE WIRE", "INSPECT SAYS"), refusals),
            "",
        ]
    )
