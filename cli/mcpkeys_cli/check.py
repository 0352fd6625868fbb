"""`mcpkeys check`: preflight of a server object, before a second instance makes its mistakes visible."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import click

from mcpkeys.preflight import ServerFacts
from mcpkeys.preflight_process import Checked, check_server
from mcpkeys_cli.findings import counted, shown
from mcpkeys_cli.options import DURATION, output_option
from mcpkeys_cli.output import Answer, escape


@click.command("check", epilog="Example: mcpkeys check acme.orders:mcp --workers 4 --transport streamable-http")
@click.argument("target", metavar="MODULE:SERVER")
@click.option("--app-dir", default=".", show_default=True, metavar="DIR", help="Where modules are imported from.")
@click.option(
    "--workers", type=click.IntRange(1, 10_000), help="Processes that will serve it; default: as WEB_CONCURRENCY says."
)
@click.option(
    "--transport", type=click.Choice(["stdio", "streamable-http", "sse"]), help="How it will be served, if not seen."
)
@click.option("--known", multiple=True, metavar="NAME", help="Another service's audience, to tell apart; repeatable.")
@click.option("--strict", is_flag=True, help="Refuse what is otherwise only warned of.")
@click.option("--timeout", type=DURATION, default=90.0, metavar="DURATION", help="End the application after; 90s.")
@click.option(
    "--config", type=click.Path(dir_okay=False), metavar="FILE", help="TOML file of settings; default MCPKEYS_CONFIG."
)
@output_option
def command(
    target: str,
    app_dir: str,
    workers: int | None,
    transport: str | None,
    known: tuple[str, ...],
    strict: bool,
    timeout: float,
    config: str | None,
    output: str,
) -> Answer:
    """Import the server as uvicorn would (object, application, or factory, async too) and check the real object.

    The application is imported in a process of its own, with this environment. Its handlers are not called, and it
    does not join the fleet. Exit 0 where nothing is refused, 2 where something is, 4 where its keyset or KMS is out
    of reach, 7 where denied.
    """
    environ = dict(os.environ)
    if config is not None:
        environ["MCPKEYS_CONFIG"] = str(Path(config).absolute())
    checked = check_server(
        target,
        app_dir=app_dir,
        workers=workers,
        transport=transport or "",
        known=known,
        seconds=timeout,
        environ=environ,
    )
    return _answer(target, checked, strict=strict)


def _answer(target: str, checked: Checked, *, strict: bool) -> Answer:
    findings = [finding.refused() if strict else finding for finding in checked.findings]
    exit_code = checked.exit_code or 2 * any(finding.level == "refused" for finding in findings)
    data = {
        "target": target,
        "servers": [asdict(server) for server in checked.servers],
        "findings": [finding.as_dict() for finding in findings],
    }
    lines = [_line(server) for server in checked.servers]
    if findings:
        lines.append(shown(findings))
    if not exit_code:
        lines.append(f"checked: {counted(findings)}")
        what_next = findings[0].next if findings else "mcpkeys doctor --as-server, on the machine that will serve it"
        return Answer("check", data=data, text="\n".join(lines), next=what_next)
    return Answer(
        "check",
        data=data,
        text="\n".join(lines),
        exit=exit_code,
        code="check-refused",
        message=f"{target}: {counted(findings)}",
        next=findings[0].next,
    )


def _line(server: ServerFacts) -> str:
    codec = f"keyset {server.keyset}" if server.keyset else {"none": "no codec"}.get(server.codec, server.codec_class)
    audience = "no audience" if server.audience is None else f"audience '{server.audience}'"
    ttl = "" if server.ttl is None else f", ttl {server.ttl:g} s"
    return escape(f"{server.kind} '{server.name}': {audience}{ttl}, {codec}")
