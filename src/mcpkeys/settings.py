"""Settings: which keyset, and the pins that a document cannot change by itself.

Explicit arguments beat MCPKEYS_* variables, and those beat the TOML file that MCPKEYS_CONFIG names. An empty
variable counts as not set. The file is never looked for: a file found in a working directory could bring its own
pins. It says either `keyset = "..."` or `MCPKEYS_KEYSET = "..."`, at the top level.

A wrong value raises `SettingError` that names the variable, where it came from, its shape and a right example; the
value itself is never shown, since what was pasted there by mistake may be a secret.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from mcpkeys.audience import one_edit
from mcpkeys.errors import SettingError
from mcpkeys.findings import is_invisible, printable
from mcpkeys.settings_file import read_config
from mcpkeys.settings_values import EXAMPLES, PARSERS, PLUGIN_PREFIXES, PREFIX, variable

_MEANING: Final[Mapping[str, str]] = MappingProxyType(
    {
        "name": "the keyset's name",
        "keyset": "where the keyset is stored",
        "keks": "the key-encryption keys that may unwrap",
        "signers": "the public keys that may sign the keyset",
    }
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Checked settings. A setting that was given nowhere is empty (or 0).

    Attributes:
        name: the keyset's name, `[a-z0-9][a-z0-9._-]{0,62}`.
        keyset: the keyset's URI or path.
        keks: pinned KEK URIs, at most 8, in the order given.
        signers: pinned public keys, `ed25519:` and 43 characters of base64url each, at most 8.
        min_generation: the lowest generation that is accepted.
        instance: a readable label for this instance, at most 100 characters.
        config: the file that was read, or None.
    """

    name: str = ""
    keyset: str = ""
    keks: tuple[str, ...] = ()
    signers: tuple[str, ...] = ()
    min_generation: int = 0
    instance: str = ""
    config: Path | None = None

    def require(self, *fields: str) -> Settings:
        """`self`, if each of `fields` was given (default: name, keyset, keks, signers); `SettingError` otherwise."""
        missing = [field for field in fields or tuple(_MEANING) if not getattr(self, field)]
        if not missing:
            return self
        variables = [variable(field) for field in missing]
        raise SettingError(
            f"{' and '.join(variables)} {'is' if len(missing) == 1 else 'are'} not set",
            why="; ".join(f"{variable(field)}: {_MEANING.get(field, field)}" for field in missing),
            next=f"set {', '.join(f'{variable(field)}={EXAMPLES[field]}' for field in missing)}, pass "
            f"{', '.join(f'{field}=' for field in missing)}, or name a file in MCPKEYS_CONFIG; "
            "`mcpkeys init` prints all of them",
            code="setting-missing",
        )

    def environ(self) -> dict[str, str]:
        """These settings as MCPKEYS_* variables; what is empty is left out, and so is MCPKEYS_CONFIG."""
        values = {
            "name": self.name,
            "keyset": self.keyset,
            "keks": ",".join(self.keks),
            "signers": ",".join(self.signers),
            "min_generation": str(self.min_generation or ""),
            "instance": self.instance,
        }
        return {variable(field): value for field, value in values.items() if value}


def load_settings(
    environ: Mapping[str, str] | None = None,
    *,
    name: str | None = None,
    keyset: str | os.PathLike[str] | None = None,
    keks: Iterable[str] | str | None = None,
    signers: Iterable[str] | str | None = None,
    min_generation: int | None = None,
    instance: str | None = None,
    config: str | os.PathLike[str] | None = None,
) -> Settings:
    """Settings from arguments, then `environ` (None: the process's), then the configuration file.

    Reads at most one file and contacts nobody. Raises `SettingError`; what is not set at all is left empty
    (see `Settings.require`).
    """
    environ = os.environ if environ is None else environ
    _refuse_near_misses(environ)
    path = _config_path(environ, config)
    given: dict[str, Any] = {
        "name": name,
        "keyset": None if keyset is None else os.fspath(keyset),
        "keks": keks if keks is None or isinstance(keks, str) else list(keks),
        "signers": signers if signers is None or isinstance(signers, str) else list(signers),
        "min_generation": min_generation,
        "instance": instance,
    }
    arguments = {field: value for field, value in given.items() if value is not None}
    if path is None:
        values, wrong = _without_file(arguments, environ)
    else:
        # Four fifths of a command's start-up where it is imported (ADR 0005): only where there is a file to layer.
        from mcpkeys.settings_sources import layered

        values, wrong = layered(PARSERS, arguments, environ, read_config(path))
    for field, reason in wrong.items():
        origin = "the argument" if field in arguments else "the environment"
        if field not in arguments and not environ.get(variable(field)):
            origin = printable(str(path))
        raise _wrong(field, f"{reason} (from {origin})")
    return Settings(**values, config=path)


def _without_file(arguments: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """What `settings_sources.layered` gives where no file is stored; a test holds the two together."""
    values: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for field, parse in PARSERS.items():
        value = arguments.get(field, environ.get(variable(field)) or None)
        if value is None:
            continue
        try:
            values[field] = parse(value)
        except ValueError as exc:
            wrong[field] = str(exc)
    return ({}, wrong) if wrong else (values, {})


def _config_path(environ: Mapping[str, str], config: str | os.PathLike[str] | None) -> Path | None:
    if config is not None:
        return Path(config).absolute()
    named = environ.get("MCPKEYS_CONFIG", "")
    if not named:
        return None
    if any(map(is_invisible, named)) or not Path(named).is_absolute():
        raise _wrong("config", "it is not an absolute path; a relative one depends on the working directory")
    return Path(named)


def _refuse_near_misses(environ: Mapping[str, str]) -> None:
    """A pin with a typing error in its name would silently not hold."""
    known = [variable(field) for field in (*PARSERS, "config")]
    for name in environ:
        if name in known or name.startswith(PLUGIN_PREFIXES) or not name.upper().startswith(PREFIX[:-2]):
            continue
        for right in known:
            if name.upper() == right or one_edit(name, right):
                raise SettingError(
                    f"{printable(name)} is set, which is no setting",
                    why=f"it differs from {right} only by {'case' if name.upper() == right else 'one edit'}, "
                    "and a pin that is not read does not hold",
                    next=f"rename it to {right}, or unset it",
                    code="setting-unknown",
                )


def _wrong(field: str, reason: str) -> SettingError:
    return SettingError(
        f"{variable(field)} is not usable", why=reason, next=f"for example {variable(field)}={EXAMPLES[field]}"
    )
