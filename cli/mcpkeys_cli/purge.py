"""`mcpkeys purge`: bound the past."""

from __future__ import annotations

from typing import Any

import click

from mcpkeys.authoring import whoami
from mcpkeys.keyset import MAX_HISTORY
from mcpkeys.purger import purge
from mcpkeys.purging import Request
from mcpkeys_cli.options import DURATION, author_of, keyset_options, output_option
from mcpkeys_cli.output import Answer, duration
from mcpkeys_cli.revised import answer, asking

EPILOG = """Examples:

\b
  mcpkeys purge --dry-run
  mcpkeys purge --silent-for 7d --yes          your word: what has been silent for a week is stopped
  mcpkeys purge --past-ttls                    your word: every server was restarted since the ttl was changed
"""


@click.command("purge", epilog=EPILOG)
@click.option(
    "--older-than", type=DURATION, default="30d", show_default=True, help="Wraps of keys retired before that."
)
@click.option("--keep-history", type=click.IntRange(0, MAX_HISTORY), metavar="N", help="Keep the newest N entries.")
@click.option(
    "--silent-for", type=DURATION, metavar="DURATION", help="Your word: what is silent for longer is stopped."
)
@click.option(
    "--past-ttls", is_flag=True, help="Your word: every server was restarted since the last change of the ttl."
)
@click.option("--reason", metavar="R", default="", help="Why; recorded in the history.")
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@keyset_options
@output_option
def command(
    older_than: float,
    keep_history: int | None,
    silent_for: float | None,
    past_ttls: bool,
    reason: str,
    dry_run: bool,
    yes: bool,
    output: str,
    **given: Any,
) -> Answer:
    """Drop old wraps of retired keys, old history, and reports of instances that are gone. Kids stay for ever."""
    request = Request(older_than, keep_history, silent_for, past_ttls, reason, whoami())
    with author_of(given) as author:
        revised, plan, deleted = purge(author, request, agreed=asking(yes=yes), dry=dry_run)
    more = {
        "wraps": list(plan.wraps),
        "history": plan.history,
        "reports": list(plan.reports),
        "silent": [{"instance": instance, "seconds": round(age)} for instance, age in plan.silent],
        "reports_deleted": deleted,
    }
    lines = [f"{deleted} reports deleted"] if deleted else []
    lines += [f"silent for {duration(age)}: {instance}" for instance, age in plan.silent[:20]]
    return answer("purge", revised, dry=dry_run, more=more, extra="\n".join(lines))
