"""What the present token may do beyond what its role needs: for `mcpkeys doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcpkeys_vault.client import VaultClient, open_client
from mcpkeys_vault.policy import Role
from mcpkeys_vault.reply import KMS_EDGE
from mcpkeys_vault.uri import KvPath, TransitKey, parse_kek, parse_keyset

_PROBE = "mcpkeys-no-such-key"


def excess_rights(
    role: Role,
    keks: Sequence[str],
    keyset_uri: str,
    *,
    deadline: float,
    session: Any = None,
    client: VaultClient | None = None,
) -> list[str]:
    """Rights that this token has and `role` does not need, such as `update on transit/encrypt/KEY`. Changes nothing.

    Asks `sys/capabilities-self`, which knows paths but not parameters: that a server's `decrypt` is held to its
    purposes shows only in a try (`doctor` tries to open the signer). URIs of other backends are left out.
    Raises `KmsDenied` where the token may not ask, `KmsUnreachable` where nobody answers.
    """
    client = client or open_client(session)
    found: list[str] = []
    wanted: list[tuple[str, dict[str, set[str]]]] = []
    for uri in keks:
        if uri.startswith("hashivault://"):
            key = parse_kek(uri)
            wanted.append((key.namespace, _transit(role, key)))
    if keyset_uri.startswith("vaultkv://"):
        where = parse_keyset(keyset_uri)
        wanted.append((where.namespace, _kv(role, where)))
    for namespace, needs in wanted:
        reply = client.call(
            "POST", "sys/capabilities-self", {"paths": list(needs)}, namespace=namespace, deadline=deadline
        )
        if not reply.ok:
            raise KMS_EDGE.error(
                reply, what="this token's rights cannot be listed", right="update on sys/capabilities-self"
            )
        for path, needed in needs.items():
            has = reply.data.get(path)
            if isinstance(has, list):
                found += [f"{right} on {path}" for right in sorted(map(str, has)) if right not in needed | {"deny"}]
    return found


def _transit(role: Role, key: TransitKey) -> dict[str, set[str]]:
    operator = role == "operator"
    update: set[str] = {"update"} if operator else set()
    return {
        f"{key.mount}/decrypt/{key.name}": {"update"},
        f"{key.mount}/encrypt/{key.name}": update,
        f"{key.mount}/encrypt/{_PROBE}": set(),
        f"{key.mount}/datakey/plaintext/{key.name}": set(),
        f"{key.mount}/datakey/wrapped/{key.name}": update,
        f"{key.mount}/rewrap/{key.name}": update,
        f"{key.mount}/keys/{key.name}": {"read"},
        f"{key.mount}/keys/{key.name}/config": set(),
        f"{key.mount}/keys/{key.name}/rotate": set(),
        f"{key.mount}/export/encryption-key/{key.name}": set(),
        f"{key.mount}/backup/{key.name}": set(),
    }


def _kv(role: Role, where: KvPath) -> dict[str, set[str]]:
    mount, _, path = where.path.partition("/")
    report = f"{path}.reports/{_PROBE}"
    return {
        f"{mount}/data/{path}": {"create", "update", "read"} if role == "operator" else {"read"},
        f"{mount}/metadata/{path}": {"read"},
        f"{mount}/destroy/{path}": set(),
        f"{mount}/delete/{path}": set(),
        f"{mount}/data/{report}": {"create", "update"} if role == "server" else {"read"},
        f"{mount}/metadata/{report}": {
            "server": {"create", "update"},
            "operator": {"list", "delete", "read"},
            "inspector": {"list", "read"},
        }[role],
    }
