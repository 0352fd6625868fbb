"""The values of settings: the shape of each, and an example.

A parser raises ValueError whose text gives the shape of what was given, never the value: what was pasted there by
mistake may be a secret.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from mcpkeys import kms, store
from mcpkeys.errors import UriError
from mcpkeys.findings import is_invisible

PREFIX: Final = "MCPKEYS_"
PLUGIN_PREFIXES: Final = ("MCPKEYS_VAULT_", "MCPKEYS_GCP_", "MCPKEYS_AWS_")
"""Read by the plugins themselves, from the environment only."""
MAX_LIST_ITEMS: Final = 8
MAX_LABEL_CHARS: Final = 100

EXAMPLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "name": "fleet",
        "keyset": "s3://acme-keys/fleet.keyset.json",
        "keks": "awskms:///arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab",
        "signers": "ed25519:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
        "min_generation": "7",
        "instance": "orders-eu-1",
        "config": "/etc/mcpkeys/fleet.toml",
    }
)
"""A right value for each setting, as a variable would hold it."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_SIGNER = re.compile(r"ed25519:([A-Za-z0-9_-]{43})")


def variable(field: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + field.upper()


def _text(value: object, limit: int) -> str:
    if not isinstance(value, str):
        raise ValueError(f"it is {_kind(value)}, not a text")
    if any(map(is_invisible, value)):
        raise ValueError(f"it has {len(value)} characters, among them some that cannot be seen, such as control ones")
    if not value or len(value) > limit:
        raise ValueError(f"it has {len(value)} characters; 1 to {limit} are right")
    return value


def _kind(value: object) -> str:
    kinds = {bool: "a truth value", int: "a number", float: "a number", list: "a list", dict: "a table"}
    return kinds.get(type(value), f"of type {type(value).__name__}")


def _keyset_name(value: object) -> str:
    text = _text(value, 63)
    if _NAME.fullmatch(text) is None:
        raise ValueError(
            f"it has {len(text)} characters, but not only a-z, 0-9, '.', '_' and '-' after a letter or digit"
        )
    return text


def _keyset_uri(value: object) -> str:
    text = _text(value, kms.MAX_URI_CHARS)
    try:
        store.scheme_of(text)
    except UriError as exc:
        raise ValueError(exc.what) from None
    return text


def _kek_uri(value: object) -> str:
    text = _text(value, kms.MAX_URI_CHARS)
    try:
        kms.scheme_of(text)
    except UriError:
        raise ValueError("it is no URI of a KEK: scheme://..., printable ASCII without spaces") from None
    if text.startswith("awskms:///alias/"):
        raise ValueError("it is an alias, which can be pointed at another key; a pin names the key's ARN")
    return text


def _signer(value: object) -> str:
    text = _text(value, 200)
    match = _SIGNER.fullmatch(text)
    if match is None:
        had = "with" if text.startswith("ed25519:") else "without"
        raise ValueError(f"it has {len(text)} characters, {had} ed25519: in front; 43 of base64url after it are right")
    # 43 characters carry 258 bits: the last two must be zero, or several texts would name one key.
    if base64.urlsafe_b64encode(base64.urlsafe_b64decode(match[1] + "=")) != (match[1] + "=").encode():
        raise ValueError("its last character is not one that 32 bytes end with")
    return text


def _list_of(parse: Callable[[object], str]) -> Callable[[object], tuple[str, ...]]:
    def parse_list(value: object) -> tuple[str, ...]:
        items: object = value
        if isinstance(value, str):
            if value.lstrip().startswith("["):
                try:
                    items = json.loads(value)
                except (ValueError, RecursionError):
                    raise ValueError("it begins with [ and is not a JSON array") from None
            else:
                items = [item.strip() for item in value.split(",") if item.strip()]
        if not isinstance(items, list):
            raise ValueError(f"it is {_kind(items)}, not a list of texts")
        if not 1 <= len(items) <= MAX_LIST_ITEMS:
            raise ValueError(f"it has {len(items)} items; 1 to {MAX_LIST_ITEMS} are right")
        parsed: list[str] = []
        for number, item in enumerate(items, 1):
            try:
                parsed.append(parse(item))
            except ValueError as exc:
                raise ValueError(f"item {number}: {exc}") from None
        return tuple(dict.fromkeys(parsed))

    return parse_list


def _generation(value: object) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 16:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(
            f"it is {_kind(value)}, not a whole number" if not isinstance(value, str) else "it is no number"
        )
    if not 0 <= value < 2**53:
        raise ValueError("it is not between 0 and 2^53 - 1")
    return value


PARSERS: Final[Mapping[str, Callable[[object], Any]]] = MappingProxyType(
    {
        "name": _keyset_name,
        "keyset": _keyset_uri,
        "keks": _list_of(_kek_uri),
        "signers": _list_of(_signer),
        "min_generation": _generation,
        "instance": lambda value: _text(value, MAX_LABEL_CHARS),
    }
)
"""What turns a given value into a setting; each raises ValueError whose text gives the shape, never the value."""
