"""`mcpkeys restore`: an old document, signed again above every generation that anybody has seen."""

from __future__ import annotations

import sys
from typing import Any

import click

from mcpkeys.authoring import whoami
from mcpkeys.keyset import MAX_BODY_BYTES
from mcpkeys.restorer import restore
from mcpkeys_cli.options import author_of, keyset_options, output_option
from mcpkeys_cli.output import Answer, escape
from mcpkeys_cli.revised import answer, asking
from mcpkeys_cli.sight import read_file

EPILOG = """Examples:

\b
  mcpkeys verify backup.json                                   is it whole, and which generation?
  mcpkeys restore backup.json --dry-run
  mcpkeys restore backup.json --reason "bucket was emptied"
"""


@click.command("restore", epilog=EPILOG)
@click.argument("file")
@click.option("--reason", metavar="R", default="", help="Why; recorded in the history.")
@click.option("--above", type=click.IntRange(0, 2**53 - 2), default=0, metavar="N", help="A generation that was seen.")
@click.option("--lose-kid", "lose", multiple=True, metavar="K", help="A key you know is lost; its rounds are refused.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@keyset_options
@output_option
def command(
    file: str,
    reason: str,
    above: int,
    lose: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    output: str,
    **given: Any,
) -> Answer:
    """Sign FILE (or - for stdin), an old keyset document, above every generation seen. No retired key returns."""
    body = sys.stdin.buffer.read(MAX_BODY_BYTES + 1) if file == "-" else read_file(file, MAX_BODY_BYTES)
    with author_of(given) as author:
        revised, told = restore(
            author,
            body,
            reason=reason,
            who=whoami(),
            above=above,
            lose=lose,
            agreed=asking(yes=yes),
            dry=dry_run,
        )
    keyset = revised.written or revised.observed.stored.keyset
    keys = [{"kid": key.kid, "state": key.state} for key in keyset.keys]
    return answer("restore", revised, dry=dry_run, more={"found": told, "keys": keys}, extra=f"found: {escape(told)}")
