"""Where Vault is and who we are there: everything comes from the environment, nothing from a keyset.

| variable | meaning |
|---|---|
| VAULT_ADDR, BAO_ADDR | the address; http only on loopback, unless MCPKEYS_VAULT_ALLOW_HTTP=1 |
| VAULT_NAMESPACE, BAO_NAMESPACE | where a URI names no namespace |
| VAULT_CACERT, VAULT_CAPATH (BAO_...) | the CA bundle; else REQUESTS_CA_BUNDLE, SSL_CERT_FILE, else certifi's |
| VAULT_CLIENT_CERT, VAULT_CLIENT_KEY (BAO_...) | a client certificate |
| VAULT_PROXY_ADDR (BAO_...) | a proxy; else HTTPS_PROXY and NO_PROXY; none for loopback |
| VAULT_SKIP_VERIFY (BAO_...) | refused: data keys and tokens cross this connection |
| MCPKEYS_VAULT_AUTH | `token` (default), `approle`, `kubernetes` or `jwt` |
| MCPKEYS_VAULT_TOKEN_FILE | token: a file (an agent's sink), read anew when its token is refused |
| VAULT_TOKEN, BAO_TOKEN, ~/.vault-token | token: in this order, where there is no MCPKEYS_VAULT_TOKEN_FILE |
| MCPKEYS_VAULT_AUTH_MOUNT | where the login method is mounted; default: its name |
| MCPKEYS_VAULT_AUTH_NAMESPACE | the namespace of logins and tokens; default VAULT_NAMESPACE; `root` is the root |
| MCPKEYS_VAULT_ROLE | kubernetes, jwt: the role |
| MCPKEYS_VAULT_ROLE_ID, MCPKEYS_VAULT_ROLE_ID_FILE | approle: the role id |
| MCPKEYS_VAULT_SECRET_ID_FILE, MCPKEYS_VAULT_SECRET_ID | approle: the secret id; prefer the file |
| MCPKEYS_VAULT_JWT_FILE | jwt, kubernetes: the token's file; kubernetes defaults to the pod's service account |

A VAULT_ and a BAO_ variable that contradict each other are refused: a process has one Vault.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from mcpkeys.errors import SettingError
from mcpkeys.glimpse import glimpse

AuthMethod = Literal["token", "approle", "kubernetes", "jwt"]
POD_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105  (a path)
_OFF = {"", "0", "false", "f", "no"}


@dataclass(frozen=True, slots=True)
class VaultSettings:
    """One Vault and one identity. Hashable: connections with equal settings are shared. Shows no secret in `repr`."""

    address: str
    namespace: str = ""
    verify: bool | str = True
    client_cert: tuple[str, str] | None = None
    proxy: str = ""
    auth: AuthMethod = "token"
    auth_mount: str = "token"
    auth_namespace: str = ""
    role: str = ""
    role_id: str = field(default="", repr=False)
    role_id_file: str = ""
    secret_id: str = field(default="", repr=False)
    secret_id_file: str = ""
    jwt_file: str = ""
    token: str = field(default="", repr=False)
    token_file: str = ""

    @classmethod
    def from_environment(cls, env: Mapping[str, str] | None = None) -> VaultSettings:
        """Read the variables above. Raises `SettingError` naming the variable; reads no file but checks the CA's."""
        env = os.environ if env is None else env
        address = _address(_either(env, "ADDR"), allow_http=env.get("MCPKEYS_VAULT_ALLOW_HTTP", "") not in _OFF)
        if _either(env, "SKIP_VERIFY").lower() not in _OFF:
            raise SettingError(
                "VAULT_SKIP_VERIFY is refused",
                why="tokens and data keys cross this connection",
                next="name the CA's file in VAULT_CACERT",
                code="tls-unverified",
            )
        namespace = _either(env, "NAMESPACE").strip("/")
        auth_namespace = env.get("MCPKEYS_VAULT_AUTH_NAMESPACE", namespace).strip("/")
        cert, key = _either(env, "CLIENT_CERT"), _either(env, "CLIENT_KEY")
        method = _method(env.get("MCPKEYS_VAULT_AUTH", "token") or "token")
        settings = cls(
            address=address,
            namespace="" if namespace == "root" else namespace,
            verify=_bundle(env),
            client_cert=(cert, key) if cert and key else None,
            proxy=_either(env, "PROXY_ADDR") or _proxy(address),
            auth=method,
            auth_mount=env.get("MCPKEYS_VAULT_AUTH_MOUNT", "").strip("/") or method,
            auth_namespace="" if auth_namespace == "root" else auth_namespace,
            role=env.get("MCPKEYS_VAULT_ROLE", ""),
            role_id=env.get("MCPKEYS_VAULT_ROLE_ID", ""),
            role_id_file=env.get("MCPKEYS_VAULT_ROLE_ID_FILE", ""),
            secret_id=env.get("MCPKEYS_VAULT_SECRET_ID", ""),
            secret_id_file=env.get("MCPKEYS_VAULT_SECRET_ID_FILE", ""),
            jwt_file=env.get("MCPKEYS_VAULT_JWT_FILE", "") or (POD_TOKEN if method == "kubernetes" else ""),
            token=_either(env, "TOKEN") if method == "token" else "",
            token_file=env.get("MCPKEYS_VAULT_TOKEN_FILE", ""),
        )
        settings._check_login()
        return settings

    @classmethod
    def from_client(cls, client: Any) -> VaultSettings:
        """Address, identity and trust of a caller's own `hvac.Client`."""
        verify = client.session.verify if client.session.verify else client.adapter._kwargs.get("verify", True)
        if verify is False:
            raise SettingError(
                "the hvac client given verifies no certificate", next="hvac.Client(verify='/path/ca.pem')"
            )
        cert = client.session.cert or client.adapter._kwargs.get("cert")
        namespace = (client.adapter.namespace or "").strip("/")
        return cls(
            address=_address(client.url or "", allow_http=True),
            namespace=namespace,
            auth_namespace=namespace,
            verify=verify,
            client_cert=tuple(cert) if isinstance(cert, tuple | list) and len(cert) == 2 else None,
            token=client.token or "",
        )

    def _check_login(self) -> None:
        missing = {
            "token": "",
            "approle": ""
            if (self.role_id or self.role_id_file) and (self.secret_id or self.secret_id_file)
            else "MCPKEYS_VAULT_ROLE_ID (or _ROLE_ID_FILE) and MCPKEYS_VAULT_SECRET_ID_FILE",
            "kubernetes": "" if self.role else "MCPKEYS_VAULT_ROLE",
            "jwt": "" if self.role and self.jwt_file else "MCPKEYS_VAULT_ROLE and MCPKEYS_VAULT_JWT_FILE",
        }[self.auth]
        if missing:
            raise SettingError(f"MCPKEYS_VAULT_AUTH={self.auth} needs {missing}", next=f"set {missing}")


def _either(env: Mapping[str, str], name: str) -> str:
    vault, bao = env.get(f"VAULT_{name}", ""), env.get(f"BAO_{name}", "")
    if vault and bao and vault != bao:
        raise SettingError(
            f"VAULT_{name} and BAO_{name} contradict each other",
            why="a process has one Vault",
            next="unset one of them",
            code="vault-ambiguous",
        )
    return vault or bao


def _address(address: str, *, allow_http: bool) -> str:
    example = "for example VAULT_ADDR=https://vault.example.org:8200"
    if not address:
        raise SettingError("VAULT_ADDR is not set", why="nor BAO_ADDR", next=example, code="vault-address-missing")
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
        raise SettingError("VAULT_ADDR is not an http(s) address", why="no user, query or fragment", next=example)
    if parts.scheme == "http" and not allow_http and not is_loopback(host):
        raise SettingError(
            "VAULT_ADDR is plain http to another machine",
            why="tokens and data keys would cross the network in the clear",
            next="use https; or MCPKEYS_VAULT_ALLOW_HTTP=1 where a mesh encrypts this hop",
            code="tls-missing",
        )
    return address.rstrip("/")


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _method(name: str) -> AuthMethod:
    for method in get_args(AuthMethod):
        if name == method:
            return method  # type: ignore[no-any-return]
    raise SettingError(
        f"MCPKEYS_VAULT_AUTH={glimpse(name)} is no login method", next="token, approle, kubernetes or jwt"
    )


def _bundle(env: Mapping[str, str]) -> bool | str:
    names = ("VAULT_CACERT", "BAO_CACERT", "VAULT_CAPATH", "BAO_CAPATH", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
    _either(env, "CACERT"), _either(env, "CAPATH")
    for name in names:
        value = env.get(name, "")
        if value:
            if not Path(value).exists():
                raise SettingError(f"{name} names a file that does not exist", why=value, next="a PEM bundle of CAs")
            return value
    return True


def _proxy(address: str) -> str:
    parts = urlsplit(address)
    if is_loopback(parts.hostname or ""):
        return ""
    from urllib.request import getproxies, proxy_bypass

    return "" if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme, "")
