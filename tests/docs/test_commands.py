"""Every command that a page shows is one that its program takes.

`mcpkeys` commands are parsed by the program itself (the tutorials are run as well: test_tutorial.py), `make` targets
are looked up in the Makefile. Commands of other programs are listed here by name, so that a typing error in ours cannot
pass as a program of somebody else.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
import tomllib
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
import yaml
from docs.pages import PAGES, ROOT, Block, blocks, name
from docs.shell import commands

from mcpkeys_cli.main import COMMANDS, cli

OTHERS = {
    "aws", "bao", "cat", "cd", "chmod", "cp", "curl", "diff", "export", "gcloud", "git", "grep", "gsutil", "head",
    "jq", "kill", "kubectl", "ls", "mkdir", "pip", "pipx", "printf", "python", "scp", "set", "source", "tail", "tee",
    "uv", "uvicorn", "vault", "wait", "watch", "unset", "echo", ".", "sleep", "eval", "env", "sudo", "pytest", "npx",
    ".ci/run", "openssl", "pbpaste", "uname", "date", "ntpq", "chronyc", "timedatectl", "mv", "jobs", "docker", "sh",
}  # fmt: skip
CONSOLE = [block for page in PAGES for block in blocks(page, "console", "bash", "sh", "shell")]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def ids(block: Block) -> str:
    return block.place


def parse(words: list[str]) -> None:
    """Let the program parse `mcpkeys ...` without running it. Raises click's UsageError."""
    context = click.Context(cli, info_name="mcpkeys", help_option_names=["-h", "--help"])
    if not words or words[0].startswith("-"):
        cli.make_context("mcpkeys", list(words), resilient_parsing=True)
        assert not words or words[0] in ("--help", "-h", "--version")
        return
    assert words[0] in COMMANDS, f"no command {words[0]}"
    if find_spec(COMMANDS[words[0]][0]) is None:
        pytest.skip(f"mcpkeys {words[0]} is not written yet")
    command = cli.get_command(context, words[0])
    assert command is not None
    if words[1:] in (["--help"], ["-h"]):
        return
    made = command.make_context(words[0], list(words[1:]), parent=context)
    if isinstance(command, click.Group):
        below = [*made.protected_args, *made.args] if hasattr(made, "protected_args") else made.args
        _, sub, rest = command.resolve_command(made, list(below))
        assert sub is not None
        sub.make_context(below[0], list(rest), parent=made)


@pytest.mark.parametrize("block", CONSOLE, ids=ids)
def test_every_command_of_the_pages_exists_and_parses(block: Block) -> None:
    found = commands(block.text)
    assert found, f"{block.place}: no command"
    for words in found:
        program = Path(words[0]).name if words[0].startswith("/") else words[0]
        if program == "mcpkeys":
            try:
                parse(words[1:])
            except click.UsageError as exc:
                pytest.fail(f"{block.place}: {' '.join(words)}: {exc.format_message()}")
        elif program == "make":
            for target in words[1:]:
                if "=" not in target and not target.startswith("-"):
                    assert re.search(rf"^{re.escape(target)}:|^\.PHONY:.*\b{re.escape(target)}\b", MAKEFILE, re.M), (
                        target
                    )
        else:
            assert program in OTHERS, f"{block.place}: what is {program}?"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_in_running_text_exist_and_parse(page: Path) -> None:
    """`mcpkeys word --option` in back quotes: the word is a command, and each option is one of its options."""
    text = re.sub(r"^(`{3,}).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    context = click.Context(cli, info_name="mcpkeys", help_option_names=["-h", "--help"])
    for quoted in re.findall(r"`mcpkeys ([a-z][^`]*)`", text):
        words = quoted.replace("\n", " ").split()
        assert words[0] in COMMANDS, f"{name(page)}: mcpkeys {quoted}"
        if find_spec(COMMANDS[words[0]][0]) is None:
            continue
        command = cli.get_command(context, words[0])
        assert command is not None
        options = {spelled for found in _parameters(command) for spelled in (*found.opts, *found.secondary_opts)}
        for word in words[1:]:
            option = re.match(r"-{1,2}[a-z][a-z-]*", word)
            if option is not None:
                assert option[0] in options | {"--help"}, f"{name(page)}: mcpkeys {quoted}: no {option[0]}"


def _parameters(command: click.Command) -> list[click.Parameter]:
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return [*command.params, *(parameter for sub in below for parameter in sub.params)]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_other_block_is_what_it_says(page: Path) -> None:
    for block in blocks(page, "python", "toml", "json", "yaml"):
        try:
            if block.language == "python":
                ast.parse(textwrap.dedent(block.text))
            elif block.language == "toml":
                tomllib.loads(block.text)
            elif block.language == "json":
                json.loads(block.text)
            else:
                list(yaml.safe_load_all(block.text))
        except (SyntaxError, ValueError, yaml.YAMLError) as exc:
            pytest.fail(f"{block.place}: {exc}")


def test_a_wrong_command_is_found() -> None:
    for wrong in (["rotate", "--fase", "1"], ["rotate", "--phase", "4"], ["init"], ["verify", "a", "b"]):
        with pytest.raises(click.UsageError):
            parse(wrong)
    with pytest.raises(AssertionError):
        parse(["rotat"])
    assert commands("$ A=1 x 'b c' | y < z && w  # v") == [["x", "b c"], ["y"], ["w"]]


def test_the_command_line_reference_is_the_programs_own() -> None:
    import runpy

    script = runpy.run_path(str(ROOT / "scripts" / "cli_reference.py"), run_name="cli_reference")
    assert script["PAGE"].read_text(encoding="utf-8") == script["page"](), "run: python scripts/cli_reference.py"


def examples(command: click.Command) -> list[str]:
    """The command lines of a help text's examples, without the words that explain them."""
    found = []
    for line in (command.epilog or "").splitlines():
        for part in re.split(r" {3,}|Examples?: ", line.strip()):
            if re.match(r"(?:[a-z]+ .*\| *)?mcpkeys |eval ", part):
                found.append(part)
    return found


@pytest.mark.parametrize("word", [word for word, (module, _) in COMMANDS.items() if find_spec(module) is not None])
def test_every_help_text_has_examples_that_parse(word: str) -> None:
    command = cli.get_command(click.Context(cli, info_name="mcpkeys"), word)
    assert command is not None
    own = [example for example in examples(command) if f"mcpkeys {word}" in example]
    assert own, f"mcpkeys {word} --help has no example"
    for example in own:
        for words in commands(example):
            if words[0] == "mcpkeys":
                try:
                    parse(words[1:])
                except click.UsageError as exc:
                    pytest.fail(f"{example}: {exc.format_message()}")
