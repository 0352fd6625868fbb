"""The configuration file: TOML with the names of the settings, and nobody else's to write."""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mcpkeys.errors import SettingError
from mcpkeys.findings import printable
from mcpkeys.settings_values import PARSERS, PLUGIN_PREFIXES, PREFIX, variable

MAX_CONFIG_BYTES: Final = 65_536


def read_config(path: Path) -> dict[str, Any]:
    """The settings that a TOML file gives, by field, unchecked.

    Raises `SettingError` where the file is missing, is no regular file, can be written by group or others, is longer
    than 64 KiB, is not TOML, or has a name that is no setting.
    """
    shown = printable(str(path))
    try:
        # Not blocking: a pipe in the file's place would otherwise hold up the start for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            status = os.fstat(file.fileno())
            body = file.read(MAX_CONFIG_BYTES + 1) if stat.S_ISREG(status.st_mode) else b""
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else "no such path"
        raise _config_error(
            f"the configuration file {shown} cannot be read", reason, "correct MCPKEYS_CONFIG"
        ) from None
    if not stat.S_ISREG(status.st_mode):
        raise _config_error(f"{shown} is not a regular file", "", "name a TOML file")
    if os.name == "posix" and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _config_error(
            f"the configuration file {shown} can be written by others",
            "it holds the pins, so who can write it decides which keyset is trusted",
            f"chmod go-w {shown}",
        )
    if len(body) > MAX_CONFIG_BYTES:
        raise _config_error(f"the configuration file {shown} is longer than 64 KiB", "", "name the right file")
    try:
        document = tomllib.loads(body.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise _config_error(f"the configuration file {shown} is not UTF-8", "", "save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as exc:
        # Only the position: tomllib's own words can quote the line, and with it a value.
        place = re.search(r"\(at line \d+, column \d+\)|\(at end of document\)", str(exc))
        raise _config_error(
            f"the configuration file {shown} is not TOML", place[0].strip("()") if place else "", 'write name = "value"'
        ) from None
    return _fields(document, shown)


def _fields(document: Mapping[str, Any], shown: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in document.items():
        field = key.removeprefix(PREFIX).lower() if key.startswith(PREFIX) and key.isupper() else key
        if field not in PARSERS:
            raise _unknown(key, shown)
        if field in fields:
            raise _config_error(f"{shown} gives {field} twice, as {field} and as {variable(field)}", "", "keep one")
        fields[field] = value
    return fields


def _unknown(key: str, shown: str) -> SettingError:
    if key.startswith(PLUGIN_PREFIXES):
        return _config_error(
            f"{shown} sets {printable(key)}, which is read from the environment only",
            "addresses and credentials belong to the process, not to the file with the pins",
            f"set the variable {printable(key)}",
        )
    names = [*PARSERS, *map(variable, PARSERS)]
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.6) or difflib.get_close_matches(key.lower(), names, n=1)
    known = f"the names are {', '.join(PARSERS)}"
    return _config_error(
        f"{shown} has an unknown name: {printable(key, 60)}", known, f"did you mean {near[0]}?" if near else "remove it"
    )


def _config_error(what: str, why: str, next: str) -> SettingError:
    return SettingError(what, why=why, next=next, code="config-invalid")
