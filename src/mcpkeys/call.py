"""The call in which a token was used: what the boundary compares a token's claims with.

Written out after the SDK (`mcp/server/request_state.py`: `_request_identity`, `_principal_claim`,
`_principal_matches`; `mcp/server/auth/provider.py`: `principal_components`), because inspection imports no SDK.
A test holds each of them against the SDK's own.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mcpkeys.encoding import b64u, unb64u

CARRIERS: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
"""The methods on which the boundary acts (SDK: `INPUT_REQUIRED_METHODS`). On others it looks at nothing."""

_PRINCIPAL_LABEL = b"mcp/request-state/principal:"


# json.dumps makes such an encoder for every call.
_compact = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class NotGiven(enum.Enum):
    """The type of `NOT_GIVEN`."""

    NOT_GIVEN = "not given"

    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN: Final = NotGiven.NOT_GIVEN
"""Not known, therefore not checked. `None` says something else: a server without, a call without."""


class NoIdentity(Exception):
    """The request's target or arguments cannot be computed: the boundary itself would raise on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """The call as far as it is known. A part that is not given is not checked.

    Attributes:
        method: the JSON-RPC method.
        params: its params as parsed from JSON; None for a call without. A value in it may be `NOT_GIVEN`: known to
            have a name but not which arguments.
        audience: what the server expects; None for a server without an audience.
        principal: what `bind_principal` returned: a string, or None for an unauthenticated call. An exception says
            that it raised; anything else, that it returned a value of a wrong type.

    Raises:
        TypeError: `params` is no mapping.
    """

    method: str | NotGiven = NOT_GIVEN
    params: Mapping[str, Any] | NotGiven | None = NOT_GIVEN
    audience: str | NotGiven | None = NOT_GIVEN
    principal: object = NOT_GIVEN

    def __post_init__(self) -> None:
        params = self.params
        if not (isinstance(params, dict) or params is None or params is NOT_GIVEN or isinstance(params, Mapping)):
            raise TypeError(f"params is an object or None, not {type(self.params).__name__}")


NO_CALL: Final = CallContext()


def target(method: str, params: Mapping[str, Any] | None) -> str | NotGiven:
    """What the request is for: a resource's URI, a tool's or prompt's name; text of whatever stands there.

    Raises:
        NoIdentity: the boundary's `str()` of it would raise (nested too deeply, a number of too many digits).
    """
    value = (params or {}).get("uri" if method == "resources/read" else "name", "")
    if isinstance(value, str) or value is NOT_GIVEN:
        return value
    try:
        return str(value)
    except (RecursionError, ValueError) as exc:
        raise NoIdentity(type(exc).__name__) from None


def arguments(method: str, params: Mapping[str, Any] | None) -> Any:
    """What the digest covers: the arguments; `{}` for a resource, and for whatever counts as false."""
    if method == "resources/read":
        return {}
    return (params or {}).get("arguments") or {}


def arguments_digest(value: Any) -> str:
    """The `a` claim: base64url of the first 16 bytes of SHA-256 over compact, sorted JSON; 22 characters.

    Raises:
        NoIdentity: the boundary's `json.dumps` of it would raise.
    """
    try:
        text = _compact(value)
    except (RecursionError, ValueError, TypeError) as exc:
        raise NoIdentity(type(exc).__name__) from None
    return b64u(hashlib.sha256(text.encode()).digest()[:16])


def principal_of(client_id: str, issuer: str | None = None, subject: str | None = None) -> str:
    """The principal that the SDK's `authenticated_principal` binds for an access token."""
    return json.dumps((client_id, issuer, subject), separators=(",", ":"))


def principal_matches(claim: str, principal: str) -> bool:
    """Whether a `p` claim (base64url of an 8-byte salt and a 16-byte tag) is of this principal. Constant-time."""
    try:
        raw = unb64u(claim)
    except ValueError:
        return False
    label = _PRINCIPAL_LABEL + raw[:8] + principal.encode("utf-8", "surrogatepass")
    return hmac.compare_digest(raw[8:], hashlib.sha256(label).digest()[:16])
