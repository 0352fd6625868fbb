"""The command `mcpkeys`: finds the command module that a word names, runs it, prints its answer.

Command modules are imported when they are called, or `--help` would cost what the slowest of them costs. Each
returns an `Answer`; errors of the package become answers here, and nowhere else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from mcpkeys.errors import McpkeysError
from mcpkeys.glimpse import without_long_words
from mcpkeys_cli.output import Answer, Form, emit, note, of_error

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# word -> (module, one line for --help, in the order in which a keyset lives)
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("mcpkeys_cli.init", "Create a keyset with its signer and first key."),
    "status": ("mcpkeys_cli.status", "The ring, the phase, every instance, and what the next step waits for."),
    "rotate": ("mcpkeys_cli.rotate", "Take one step of a rotation, or say why not."),
    "verify": ("mcpkeys_cli.verify", "Check a keyset document without a KMS."),
    "inspect": ("mcpkeys_cli.inspect", "Why would a server refuse this token? Offline."),
    "triage": ("mcpkeys_cli.triage", "Many refused tokens: logs or captures, by reason, key, instance and time."),
    "bundle": ("mcpkeys_cli.bundle", "Keys for inspection on a machine without a network."),
    "audience": ("mcpkeys_cli.audience", "Validate audience names."),
    "check": ("mcpkeys_cli.check", "Preflight of a server object: MODULE:SERVER."),
    "doctor": ("mcpkeys_cli.doctor", "Preflight of KEK, store, clock and permissions."),
    "rewrap": ("mcpkeys_cli.rewrap", "Wrap the same keys under newer KEK versions or other KEKs."),
    "set": ("mcpkeys_cli.settings", "Change a setting of the keyset."),
    "restore": ("mcpkeys_cli.restore", "Sign an old document again, above every generation seen."),
    "history": ("mcpkeys_cli.history", "Who did what, when and why."),
    "purge": ("mcpkeys_cli.purge", "Bound the past: retired keys, history, reports of the dead."),
    "policy": ("mcpkeys_cli.policy", "Least-privilege policies for servers, operators and inspectors."),
    "completion": ("mcpkeys_cli.completion", "Shell completion for bash, zsh and fish."),
    "help": ("mcpkeys_cli.help", "Topics: exit-codes, uris, rotation, environment."),
    "demo": ("mcpkeys_cli.demo", "The whole story on this machine, no cloud."),
}


class Lazy(click.Group):
    """A group that imports a command's module when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = COMMANDS.get(cmd_name)
        if found is None:
            return None
        command: click.Command = import_module(found[0]).command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Words without importing what they name: a person waits for the TAB key."""
        from click.shell_completion import CompletionItem

        words = [CompletionItem(word, help=line) for word, (_, line) in COMMANDS.items() if word.startswith(incomplete)]
        return [*words, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(word, line) for word, (_, line) in COMMANDS.items()])


@click.group(
    cls=Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="First time here? mcpkeys demo shows the whole story in a minute. mcpkeys help TOPIC explains.",
)
@click.version_option(None, "--version", package_name="mcpkeys", message="mcpkeys %(version)s")
def cli() -> None:
    """Envelope-encrypted request state for fleets of MCP servers: keysets, rotation, inspection."""


def _wanted(arguments: Sequence[str]) -> Form:
    """What `--output` asks for, also where the arguments do not parse; documents of a stream are lines."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=False)  # none at all is a command line too
    found = {other if one == "--output" else one.removeprefix("--output=") for one, other in pairs if "--output" in one}
    if "ndjson" in found or ("json" in found and "--watch" in arguments):
        return "line"
    return "json" if "json" in found else "text"


def _word(arguments: Sequence[str]) -> str:
    return next((word for word in arguments if word in COMMANDS), "mcpkeys")


def main(arguments: Sequence[str]) -> int:
    """Run one command line; its exit code. Never raises but `SystemExit` of click's own exits."""
    form, word = _wanted(arguments), _word(arguments)
    try:
        answer: Any = cli.main(list(arguments), prog_name="mcpkeys", standalone_mode=False)
        # Here, since the text is made only now: what fails in it is told like every other failure.
        return emit(answer, form=form) if isinstance(answer, Answer) else int(answer or 0)
    except McpkeysError as exc:
        return emit(of_error(word, exc, getattr(exc, "data", None)), form=form)
    except click.exceptions.NoArgsIsHelpError as exc:
        note(exc.format_message())
        return 2
    except click.UsageError as exc:
        shown = f"{exc.ctx.command_path} --help" if exc.ctx is not None else "mcpkeys --help"
        return emit(Answer(word, exit=2, code="usage", message=_one_line(exc), next=shown), form=form)
    except click.ClickException as exc:
        return emit(Answer(word, exit=2, code="usage", message=_one_line(exc), next="mcpkeys --help"), form=form)
    except (click.Abort, KeyboardInterrupt):
        return emit(
            Answer(word, exit=130, code="interrupted", message="interrupted", next="the same command resumes"),
            form=form,
        )
    except BrokenPipeError:
        raise
    except Exception as exc:
        # Neither message nor traceback: both may hold what a frame held.
        return emit(
            Answer(
                word,
                exit=1,
                code="unexpected",
                message=f"unexpected {type(exc).__name__} in {_place(exc)}",
                why="this is a defect of mcpkeys",
                next="please report it with this line and the command",
            ),
            form=form,
        )


def _one_line(exc: click.ClickException) -> str:
    return without_long_words(" ".join(exc.format_message().split()))


def _place(exc: BaseException) -> str:
    """module:line where it was raised."""
    traceback = exc.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return "unknown"
    return f"{traceback.tb_frame.f_globals.get('__name__', '?')}:{traceback.tb_lineno}"


def run() -> None:
    """The console script."""
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # Who reads has gone (`| head`): nobody is left to tell, and the interpreter must not try at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


if __name__ == "__main__":
    run()
