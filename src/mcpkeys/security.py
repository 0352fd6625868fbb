"""The one-line set-up: a codec, and a policy whose ttl and audience are the keyset's, so that they cannot disagree."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from mcp.server.context import ServerRequestContext
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity, authenticated_principal

from mcpkeys.audience import require_audience
from mcpkeys.codec import EnvelopeCodec

logger = logging.getLogger(__name__)

BindPrincipal = Callable[[ServerRequestContext[Any, Any]], str | None]


class KeysetSecurity(RequestStateSecurity):
    """The SDK's policy over an `EnvelopeCodec`; `ttl` and `audience` are the keyset's as they were when it was opened.

    Attributes:
        codec: the open codec. Close it in the server's lifespan; ask `codec.ready()` in a readiness route.
    """

    codec: EnvelopeCodec

    def __init__(self, codec: EnvelopeCodec, *, bind_principal: BindPrincipal | None = authenticated_principal) -> None:
        """Raises `ConfigurationError` where the keyset's audience is one that would separate nothing.

        ValueError for a codec without a keyset (`from_secrets`).
        """
        keyset = codec.ring.keyset
        if keyset is None:
            raise ValueError("this codec has no keyset: give RequestStateSecurity ttl= and audience= yourself")
        for finding in require_audience(keyset.audience):
            logger.warning("%s: %s (%s)", finding.what, finding.why, finding.next)
        super().__init__(
            codec=codec, ttl=float(keyset.ttl_seconds), bind_principal=bind_principal, audience=keyset.audience
        )


class KeysetBoundary(RequestStateBoundary):
    """The SDK's boundary for a low-level `Server`: append it to `server.middleware`.

    Attributes:
        security: its policy; `security.codec` is the open codec.
    """

    def __init__(self, security: KeysetSecurity) -> None:
        super().__init__(security, default_audience=security.audience)
        self.security = security


def request_state_security(
    name: str | None = None,
    *,
    keyset: str | None = None,
    keks: Sequence[str] | None = None,
    signers: Sequence[str] | None = None,
    min_generation: int | None = None,
    instance: str | None = None,
    refresh: Literal["thread", "inline"] = "thread",
    sdk_keys: Sequence[bytes | bytearray | str] = (),
    mint: Literal["mk1", "sdk"] = "mk1",
    sessions: Mapping[str, Any] | None = None,
    bind_principal: BindPrincipal | None = authenticated_principal,
) -> KeysetSecurity:
    """What `MCPServer(..., request_state_security=...)` takes.

    Arguments as for `EnvelopeCodec.open` (None: from MCPKEYS_* variables or the file of MCPKEYS_CONFIG), and
    `bind_principal` as for the SDK's `RequestStateSecurity`. Another ttl or audience of the keyset takes effect when
    the server restarts.

    Raises as `EnvelopeCodec.open`, and `ConfigurationError` where the keyset's audience is refused.
    """
    codec = EnvelopeCodec.open(
        name,
        keyset=keyset,
        keks=keks,
        signers=signers,
        min_generation=min_generation,
        instance=instance,
        refresh=refresh,
        sdk_keys=sdk_keys,
        mint=mint,
        sessions=sessions,
    )
    try:
        return KeysetSecurity(codec, bind_principal=bind_principal)
    except BaseException:
        codec.close()
        raise


def request_state_boundary(
    name: str | None = None,
    *,
    keyset: str | None = None,
    keks: Sequence[str] | None = None,
    signers: Sequence[str] | None = None,
    min_generation: int | None = None,
    instance: str | None = None,
    refresh: Literal["thread", "inline"] = "thread",
    sdk_keys: Sequence[bytes | bytearray | str] = (),
    mint: Literal["mk1", "sdk"] = "mk1",
    sessions: Mapping[str, Any] | None = None,
    bind_principal: BindPrincipal | None = authenticated_principal,
) -> KeysetBoundary:
    """What a low-level `Server` needs: `server.middleware.append(request_state_boundary(...))`.

    Without a boundary, `requestState` of a low-level server travels as the handler wrote it, and whatever comes back
    is believed. Arguments and errors as for `request_state_security`.
    """
    return KeysetBoundary(
        request_state_security(
            name,
            keyset=keyset,
            keks=keks,
            signers=signers,
            min_generation=min_generation,
            instance=instance,
            refresh=refresh,
            sdk_keys=sdk_keys,
            mint=mint,
            sessions=sessions,
            bind_principal=bind_principal,
        )
    )
