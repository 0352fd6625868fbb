"""Least-privilege policies for Vault and OpenBao.

What a role may unwrap is held to one keyset and to the purposes it needs by a glob on the parameter that binds a
wrapped key (`associated_data`, or `context` for a derived Transit key): `WrapContext.aad_front()` is the same for
all keys of one purpose of one keyset, and its base64 form is a fixed prefix. Parameters that are not listed, such as
`batch_input`, are refused, so none of them leads around it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Literal

from mcpkeys.errors import UriError
from mcpkeys.kms import PURPOSES, Purpose, WrapContext
from mcpkeys_vault.uri import TransitKey, parse_kek, parse_keyset

Role = Literal["server", "operator", "inspector"]

_PURPOSES: dict[Role, tuple[Purpose, ...]] = {
    "server": ("seal", "report"),  # never sign: a server that opens the signer could forge keysets
    "inspector": ("seal", "report"),
    "operator": PURPOSES,
}
_SAYS: dict[Role, str] = {
    "server": "unwraps data keys and the report key, reads the keyset, writes reports",
    "inspector": "unwraps data keys and the report key, reads the keyset and the reports; writes nothing",
    "operator": "wraps and unwraps, reads and writes the keyset, reads and deletes reports; creates no Transit key",
}


def vault_policy(role: Role, keyset_name: str, keks: Sequence[str], keyset_uri: str, *, namespace: str = "") -> str:
    """The HCL policy of one role for one keyset.

    Args:
        role: `server`, `operator` or `inspector`.
        keyset_name: the keyset's name.
        keks: KEK URIs; those of other clouds are left out.
        keyset_uri: the keyset's URI; where it is not `vaultkv://` only the Transit part is printed. The first segment
            is taken for the KV mount.
        namespace: where the policy will be written; paths of namespaces below it are printed relative to it.

    Raises `UriError` where a URI cannot be read, or lies in a namespace that a policy of `namespace` cannot reach.
    """
    parts = [f"# mcpkeys: role {role} of the keyset {keyset_name!r}: {_SAYS[role]}.\n"]
    keys = [parse_kek(uri) for uri in keks if uri.startswith("hashivault://")]
    for key in dict.fromkeys(keys):
        parts += _transit(role, keyset_name, key, namespace)
    if keyset_uri.startswith("vaultkv://"):
        parts += _kv(role, keyset_uri, namespace)
    parts.append("# Its own token: how long it lives, more of that, and what it may do (for `mcpkeys doctor`).\n")
    parts.append(_rule("auth/token/lookup-self", ["read"]))
    parts.append(_rule("auth/token/renew-self", ["update"]))
    parts.append(_rule("sys/capabilities-self", ["update"]))
    return "\n".join(parts)


def _transit(role: Role, keyset: str, key: TransitKey, namespace: str) -> Iterable[str]:
    base = _below(key.namespace, namespace, key.uri) + key.mount
    bound = [_glob(purpose, keyset) for purpose in _PURPOSES[role]]
    binding = {"associated_data": bound, "context": bound}
    yield f"# {key.uri}: {', '.join(_PURPOSES[role])}.\n"
    yield _rule(f"{base}/decrypt/{key.name}", ["update"], {"ciphertext": [], **binding})
    if role == "operator":
        yield _rule(f"{base}/keys/{key.name}", ["read"])
        yield "# Without `create`, encrypt makes no key of a mistyped name.\n"
        yield _rule(f"{base}/encrypt/{key.name}", ["update"], {"plaintext": [], **binding})
        yield _rule(f"{base}/datakey/wrapped/{key.name}", ["update"], {"bits": [], "context": bound})
        yield _rule(f"{base}/rewrap/{key.name}", ["update"], {"ciphertext": [], "context": bound})


def _kv(role: Role, uri: str, namespace: str) -> Iterable[str]:
    where = parse_keyset(uri)
    mount, _, path = where.path.partition("/")
    base = _below(where.namespace, namespace, uri) + mount
    yield f"# The keyset at {where.uri} and its reports.\n"
    yield _rule(f"{base}/data/{path}", ["create", "update", "read"] if role == "operator" else ["read"])
    reports, about = f"{base}/data/{path}.reports/*", f"{base}/metadata/{path}.reports/*"
    if role == "server":
        yield _rule(reports, ["create", "update"])
        yield _rule(about, ["create", "update"], {"max_versions": []})
    else:
        yield _rule(reports, ["read"])
        yield _rule(about, ["list", "delete"] if role == "operator" else ["list"])


def _glob(purpose: Purpose, keyset: str) -> str:
    return base64.b64encode(WrapContext(purpose, keyset, "").aad_front()).decode() + "*"


def _below(namespace: str, home: str, uri: str) -> str:
    home = home.strip("/")
    if not home or not namespace:
        # A URI without a namespace means the one the processes run in: the one the policy is written to.
        return f"{namespace}/" if namespace else ""
    if namespace == home:
        return ""
    if not namespace.startswith(f"{home}/"):
        raise UriError(
            f"{uri} lies in the namespace {namespace}",
            why=f"a policy of {home} reaches only what is below it",
            next="write the policy to the root namespace, or to that one",
        )
    return namespace[len(home) + 1 :] + "/"


def _rule(path: str, capabilities: Sequence[str], parameters: dict[str, list[str]] | None = None) -> str:
    lines = [f'path "{path}" {{', f"  capabilities = [{_list(capabilities)}]"]
    if parameters is not None:
        lines.append("  allowed_parameters = {")
        lines += [f'    "{name}" = [{_list(values)}]' for name, values in parameters.items()]
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def _list(values: Sequence[str]) -> str:
    return ", ".join(f'"{value}"' for value in values)
