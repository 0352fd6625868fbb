"""What Vault answered, as a value, and what that means.

Frames that hold tokens or keys never raise: they pass a `Reply` or an error on as a value, and the edge
(`kms.py`, `store.py`) raises it. So no traceback of this package captures a secret.

| answer | error | code |
|---|---|---|
| no connection, time-out, 5xx, an answer that is not Vault's | unreachable (4) | `kms-`, `store-unreachable` |
| TLS: the certificate is not trusted | unreachable (4) | `vault-tls` |
| 503 | unreachable (4) | `vault-sealed` |
| 307, 429 by health, 472, 473, "not active" | unreachable (4) | `vault-standby` |
| 429 | unreachable (4), `throttled` | `vault-throttled` |
| 412 after the retries | unreachable (4) | `vault-behind` |
| 403, the policy's own ("1 error occurred") | denied (7) | `permission` |
| 403, the token is expired, revoked or unknown | denied (7) | `credentials-expired` |
| no token at all, login refused | denied (7) | `credentials-missing`, `login-refused` |
| 404 naming a route or a namespace | configuration (2) | `mount-not-found`, `namespace-not-found` |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mcpkeys.errors import (
    ConfigurationError,
    KekUnusable,
    KmsDenied,
    KmsUnreachable,
    McpkeysError,
    StoreDenied,
    StoreUnreachable,
)

Failure = Literal[
    "", "timeout", "connect", "lost", "tls", "garbage", "credentials-missing", "credentials-expired", "login-refused"
]
_STANDBY = ("local node not active", "not the active node", "no active cluster node", "is in standby mode")


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP answer, or why there is none.

    Attributes:
        status: the HTTP status; 0 where there was no answer.
        body: the JSON object answered; empty for 204 and for failures. May hold secrets: never shown.
        failure: why there is no usable answer.
        note: one line about the failure, free of secrets.
        date: the answer's Date header, seconds since the epoch, or None.
        index: the answer's X-Vault-Index header, opaque.
    """

    status: int = 0
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    failure: Failure = ""
    note: str = ""
    date: float | None = None
    index: str = ""

    @property
    def ok(self) -> bool:
        return not self.failure and 200 <= self.status < 300

    @property
    def data(self) -> Mapping[str, Any]:
        """The `data` object; empty where there is none."""
        data = self.body.get("data")
        return data if isinstance(data, dict) else {}

    @property
    def errors(self) -> str:
        """Vault's own words on one line: printable, at most 300 characters."""
        errors = self.body.get("errors")
        text = "; ".join(str(item) for item in errors) if isinstance(errors, list) else ""
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:300]

    @property
    def missing(self) -> bool:
        """Vault's own 404 for what is not there. A 404 with words, or of no Vault at all, is another thing."""
        return self.status == 404 and not self.failure and self.body.get("errors") == []

    @property
    def by_policy(self) -> bool:
        """A 403 that the policies gave to a living token."""
        return self.status == 403 and self.errors.startswith("1 error occurred")

    @property
    def maybe_done(self) -> bool:
        """A write may have happened although nothing says so."""
        return self.failure in ("timeout", "lost", "garbage") or self.status >= 500


@dataclass(frozen=True, slots=True)
class Edge:
    """Which of our errors an edge raises."""

    unreachable: type[KmsUnreachable] | type[StoreUnreachable]
    denied: type[KmsDenied] | type[StoreDenied]
    unusable: type[ConfigurationError]

    def error(self, reply: Reply, *, what: str, right: str = "") -> McpkeysError:
        """The error that a reply which is not `ok` stands for, where the caller knows nothing more special.

        Args:
            what: what could not be done, one sentence without a full stop.
            right: the policy right that the call needs, such as `update on transit/decrypt/KEY`.
        """
        status, said = reply.status, reply.errors
        if reply.failure in ("credentials-missing", "credentials-expired", "login-refused"):
            return self.denied(what, why=reply.note, next=_CREDENTIALS_NEXT[reply.failure], code=reply.failure)
        if reply.failure == "tls":
            return self.unreachable(
                what, why=reply.note, next="name the CA's bundle in VAULT_CACERT (or BAO_CACERT)", code="vault-tls"
            )
        if reply.failure:
            return self.unreachable(what, why=reply.note, next="check VAULT_ADDR and the network; then try again")
        if status == 403:
            return self.denied(
                what,
                why=f"the policies of this token do not grant it: {said}" if said else "the policies do not grant it",
                next=f"grant {right}: see `mcpkeys policy vault`" if right else "see `mcpkeys policy vault`",
                code="permission",
            )
        if status == 503:
            return self.unreachable(
                what, why=said or "Vault is sealed", next="unseal Vault; running servers go on", code="vault-sealed"
            )
        if status == 429 and "quota" not in said and not said:
            return self._throttled(what, "too many requests")
        if status == 429:
            return self._throttled(what, said)
        if status in (301, 302, 307, 308, 472, 473) or any(word in said for word in _STANDBY):
            return self.unreachable(
                what,
                why=f"this node is a standby that forwards nothing (HTTP {status})",
                next="point VAULT_ADDR at the active node or at the load balancer; redirects are not followed",
                code="vault-standby",
            )
        if status == 412:
            return self.unreachable(
                what, why="this node lags behind the active one", next="try again", code="vault-behind"
            )
        if status == 404 and "namespace" in said:
            return self.unusable(
                what, why=said, next="correct namespace= in the URI, or VAULT_NAMESPACE", code="namespace-not-found"
            )
        if status == 404 and "no handler for route" in said:
            return self.unusable(
                what, why=said, next="correct the mount in the URI, or enable the engine there", code="mount-not-found"
            )
        if 400 <= status < 500 and status not in (404, 405):
            return self.unusable(what, why=f"Vault answered {status}: {said}", next="see Vault's audit log")
        return self.unreachable(what, why=f"HTTP {status} {said}".strip(), next="see Vault's log; then try again")

    def _throttled(self, what: str, why: str) -> McpkeysError:
        if issubclass(self.unreachable, KmsUnreachable):
            return KmsUnreachable(what, why=why, next=_SLOWER, code="vault-throttled", throttled=True)
        return StoreUnreachable(what, why=why, next=_SLOWER, code="vault-throttled")


_SLOWER = "try again later, or raise the rate-limit quota of this path"
_CREDENTIALS_NEXT: dict[str, str] = {
    "credentials-missing": "set VAULT_TOKEN or MCPKEYS_VAULT_TOKEN_FILE, or choose a login by MCPKEYS_VAULT_AUTH",
    "credentials-expired": "get a new token, or let mcpkeys log in by MCPKEYS_VAULT_AUTH (approle, kubernetes, jwt)",
    "login-refused": "check MCPKEYS_VAULT_AUTH, MCPKEYS_VAULT_AUTH_MOUNT, the role and what it is bound to",
}

KMS_EDGE = Edge(KmsUnreachable, KmsDenied, KekUnusable)
STORE_EDGE = Edge(StoreUnreachable, StoreDenied, ConfigurationError)
