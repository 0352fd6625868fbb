"""Writes docs/reference/cli.md from the program's own `--help`. A test compares the two."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ.pop("COLUMNS", None)

import click

from mcpkeys_cli.main import COMMANDS, cli

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"
WIDTH = 100
HEAD = """\
# Command line

What each command says of itself. Written by `python scripts/cli_reference.py`; a test compares it with the program.
What all commands share: [exit codes](exit-codes.md), [JSON outputs](json.md), [settings](settings.md).

- The result goes to stdout, everything else to stderr; text ends with the next step, on success as on failure.
- `--output json` prints one document, on success and on failure.
- A command that changes something asks first; where stdin is no terminal it exits with 2 and names `--yes`.
- Secrets never stand on the command line. `NO_COLOR` is honoured.
"""


def help_of(command: click.Command, path: str) -> str:
    """The text of `PATH --help`, 100 columns wide, whatever the terminal."""
    with click.Context(command, info_name=path, terminal_width=WIDTH, max_content_width=WIDTH) as ctx:
        ctx.help_option_names = ["-h", "--help"]
        return command.get_help(ctx).rstrip()


def page() -> str:
    """The whole page."""
    parts = [HEAD, f"## mcpkeys\n\n```text\n{help_of(cli, 'mcpkeys')}\n```\n"]
    context = click.Context(cli, info_name="mcpkeys", help_option_names=["-h", "--help"])
    for word, (module, _) in COMMANDS.items():
        if find_spec(module) is None:
            continue
        command = cli.get_command(context, word)
        assert command is not None
        parts.append(f"## mcpkeys {word}\n\n```text\n{help_of(command, f'mcpkeys {word}')}\n```\n")
        for below in getattr(command, "commands", {}).values():
            path = f"mcpkeys {word} {below.name}"
            parts.append(f"### {path}\n\n```text\n{help_of(below, path)}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PAGE.read_text(encoding="utf-8") == text else "docs/reference/cli.md is stale: run this script")
    PAGE.write_text(text, encoding="utf-8")
