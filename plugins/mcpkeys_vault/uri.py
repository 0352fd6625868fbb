"""How a Transit key and a KV v2 keyset are named.

    hashivault://KEY?mount=transit&namespace=N      mount defaults to transit, namespace to VAULT_NAMESPACE
    vaultkv://MOUNT/PATH?namespace=N                MOUNT may have several segments: the server tells where it ends

Neither names an address or a credential: those come from the environment (`mcpkeys_vault.settings`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mcpkeys.errors import UriError
from mcpkeys.glimpse import glimpse, glimpse_of_uri
from mcpkeys.kms import MAX_URI_CHARS

_SEGMENT = r"[A-Za-z0-9_](?:[A-Za-z0-9_.@+=,-]*[A-Za-z0-9_=-])?"
_PATH = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_KEY = re.compile(r"\w(?:[\w.-]*\w)?", re.ASCII)
DEFAULT_MOUNT = "transit"


@dataclass(frozen=True, slots=True)
class TransitKey:
    """A Transit key: its name, its mount and its namespace (empty: VAULT_NAMESPACE or the root)."""

    name: str
    mount: str = DEFAULT_MOUNT
    namespace: str = ""

    @property
    def uri(self) -> str:
        """The canonical form: defaults dropped, query sorted."""
        query = [
            *([f"mount={self.mount}"] if self.mount != DEFAULT_MOUNT else []),
            *([f"namespace={self.namespace}"] if self.namespace else []),
        ]
        return f"hashivault://{self.name}" + (f"?{'&'.join(query)}" if query else "")


@dataclass(frozen=True, slots=True)
class KvPath:
    """A KV v2 secret: the whole path, mount included, and its namespace."""

    path: str
    namespace: str = ""

    @property
    def uri(self) -> str:
        """The canonical form."""
        return f"vaultkv://{self.path}" + (f"?namespace={self.namespace}" if self.namespace else "")


def parse_kek(uri: str) -> TransitKey:
    """Read `hashivault://KEY[?mount=M][&namespace=N]`. Raises `UriError`; never guesses."""
    name, query = _split(uri, "hashivault", {"mount", "namespace"}, "hashivault://fleet-kek?mount=transit")
    if _KEY.fullmatch(name) is None:
        raise _bad(uri, "the key name is letters, digits, `_`, `-` and `.`", "hashivault://fleet-kek?mount=transit")
    return TransitKey(name, query.get("mount", DEFAULT_MOUNT), query.get("namespace", ""))


def parse_keyset(uri: str) -> KvPath:
    """Read `vaultkv://MOUNT/PATH[?namespace=N]`. Raises `UriError`."""
    path, query = _split(uri, "vaultkv", {"namespace"}, "vaultkv://secret/mcpkeys/fleet")
    if _PATH.fullmatch(path) is None or "/" not in path:
        raise _bad(uri, "it needs a mount and a path below it", "vaultkv://secret/mcpkeys/fleet")
    return KvPath(path, query.get("namespace", ""))


def _split(uri: str, scheme: str, known: set[str], example: str) -> tuple[str, dict[str, str]]:
    if len(uri) > MAX_URI_CHARS or not uri.isascii() or not uri.isprintable() or not uri.startswith(f"{scheme}://"):
        raise _bad(uri, f"it is not {scheme}:// in printable ASCII", example)
    rest = uri[len(scheme) + 3 :]
    if "#" in rest or "%" in rest:
        raise _bad(uri, "fragments and percent-escapes are not read", example)
    front, mark, tail = rest.partition("?")
    query: dict[str, str] = {}
    for item in tail.split("&") if mark else []:
        key, equals, value = item.partition("=")
        value = value.strip("/")
        if key not in known or not equals:
            raise _bad(uri, f"{glimpse(key)} is none of {', '.join(sorted(known))}", example)
        if key in query:
            raise _bad(uri, f"{key} is given twice", example)
        if _PATH.fullmatch(value) is None:
            raise _bad(uri, f"the value of {key} is not a path", example)
        query[key] = value
    return front, query


def _bad(uri: str, why: str, example: str) -> UriError:
    return UriError(f"{glimpse_of_uri(uri)} cannot be read", why=why, next=f"for example {example}")
