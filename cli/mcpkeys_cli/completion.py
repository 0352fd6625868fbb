"""`mcpkeys completion`: the script that a shell sources. It is all of stdout, so its next step is a comment."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from mcpkeys_cli.output import Answer

VARIABLE = "_MCPKEYS_COMPLETE"
PLACES = {
    "bash": 'put this line into ~/.bashrc: eval "$(mcpkeys completion bash)"',
    "zsh": 'put this line into ~/.zshrc, after compinit: eval "$(mcpkeys completion zsh)"',
    "fish": "mcpkeys completion fish > ~/.config/fish/completions/mcpkeys.fish",
}


@click.command("completion", epilog='Example: eval "$(mcpkeys completion bash)"')
@click.argument("shell", type=click.Choice(list(PLACES)))
@click.option("--output", type=click.Choice(["text", "json"]), default="text", help="For a person or a program.")
def command(shell: str, output: str) -> Answer:
    """Print the completion script of SHELL."""
    from mcpkeys_cli.main import cli

    found = get_completion_class(shell)
    assert found is not None
    script = found(cli, {}, "mcpkeys", VARIABLE).source().strip("\n")
    text = f"{script}\n# next: {PLACES[shell]}"
    if output == "text":
        return Answer("completion", text=text)
    return Answer("completion", data={"shell": shell, "script": script}, next=PLACES[shell])
