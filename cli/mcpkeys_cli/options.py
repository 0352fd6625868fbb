"""Options that several commands share, and what they open: settings, pins, an author."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mcpkeys.errors import SettingError
from mcpkeys.glimpse import glimpse

if TYPE_CHECKING:
    from mcpkeys.authoring import Author
    from mcpkeys.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])
_DURATION = re.compile(r"(\d{1,9})(ms|s|m|min|h|d)?")
# One whole command of those that take these options; anything else is a sentence.
_COMMAND = re.compile(
    r"mcpkeys (?:rotate|status|rewrap|doctor|history)(?: (?:-[^\s,;]+|[\w.:/-]+|'[^']*'|\"[^\"]*\"))*"
)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


class Duration(click.ParamType[float]):
    """`90`, `90s`, `15m`, `24h`, `30d`: float seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        match = _DURATION.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{glimpse(str(value))} is not a duration; for example 90s, 15m, 24h or 30d", param, ctx)
        return int(match[1]) * _SECONDS[match[2] or "s"]


DURATION = Duration()


def output_option(command: F) -> F:
    """`--output text|json`."""
    return click.option(
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="For a person or a program.",
    )(command)


def keyset_options(command: F, *, name_option: str = "--name") -> F:
    """`--config --name --keyset --kek --signer`: where the keyset is and what is pinned.

    `name_option` is another word for the keyset's name, where `--name` belongs to something else.
    """
    for option in (
        click.option(
            "--signer", "signers", multiple=True, metavar="ed25519:...", help="Pinned signer; default MCPKEYS_SIGNERS."
        ),
        click.option(
            "--kek", "keks", multiple=True, metavar="URI", help="Pinned KEK, nearest first; default MCPKEYS_KEKS."
        ),
        click.option("--keyset", metavar="URI", help="The keyset's place; default MCPKEYS_KEYSET."),
        click.option(name_option, metavar="NAME", help="The keyset's name; default MCPKEYS_NAME."),
        click.option(
            "--config",
            type=click.Path(dir_okay=False),
            metavar="FILE",
            help="TOML file of settings; default MCPKEYS_CONFIG.",
        ),
    ):
        command = option(command)
    return command


def settings_of(given: dict[str, Any], *required: str) -> Settings:
    """The settings that options, environment and file make; the fields named must be there. Raises `SettingError`."""
    from mcpkeys.settings import load_settings

    settings = load_settings(
        name=given.get("name"),
        keyset=given.get("keyset"),
        keks=given.get("keks") or None,
        signers=given.get("signers") or None,
        config=given.get("config"),
    )
    return settings.require(*required) if required else settings


def carried(following: str, given: dict[str, Any]) -> str:
    """A next command with the settings that this one was given as options; a sentence stays as it is."""
    if not _COMMAND.fullmatch(following):
        return following
    words: list[str] = []
    for option, field in (("--config", "config"), ("--name", "name"), ("--keyset", "keyset")):
        if given.get(field):
            words += [option, str(given[field])]
    for option, field in (("--kek", "keks"), ("--signer", "signers")):
        for value in given.get(field) or ():
            words += [option, value]
    return f"{following} {shlex.join(words)}" if words else following


@contextmanager
def author_of(given: dict[str, Any], *, skip: tuple[str, ...] = (), adding: tuple[str, ...] = ()) -> Iterator[Author]:
    """An author under the same pins as a server has. Everything must be pinned: name, keyset, keks, signers.

    `adding`: KEKs that this command is about to add, canonical URIs; they count as pinned.
    """
    from mcpkeys import registry
    from mcpkeys.authoring import Author
    from mcpkeys.keks import Keks
    from mcpkeys.loading import Pins

    settings = settings_of(given).require()
    author = Author(
        registry.open_store(settings.keyset),
        Keks.open((*settings.keks, *adding)),
        Pins(settings.name, settings.signers, settings.min_generation),
        skip=tuple(registry.open_kms(uri).uri for uri in skip),  # canonical, as the keyset names it
    )
    try:
        yield author
    finally:
        author.close()


def confirm(question: str, *, yes: bool) -> None:
    """Ask before a change, on stderr; no prompt where stdin is no terminal. Raises `SettingError`, `click.Abort`."""
    import sys

    if yes:
        return
    if not sys.stdin.isatty():
        raise SettingError(
            "this asks before it changes anything, and stdin is no terminal",
            next="add --yes once the plan (--dry-run) is what you want",
            code="confirmation-needed",
        )
    if not click.confirm(question, default=False, err=True):
        raise click.Abort
