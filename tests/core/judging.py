"""What a codec says of a token by a ring: the payload, or why it is refused."""

from __future__ import annotations

from mcp.server.request_state import InvalidRequestState

from mcpkeys.codec import EnvelopeCodec
from mcpkeys.instance import Instance
from mcpkeys.ring import Refusal, Ring


def codec_of(ring: Ring) -> EnvelopeCodec:
    """A codec of this ring, which nothing refreshes."""
    codec = EnvelopeCodec(Instance(""))
    codec._use(ring)
    return codec


def attempt(ring: Ring, text: str) -> bytes | Refusal:
    """The payload, or the reason and the state of the key that the token names."""
    codec = codec_of(ring)
    try:
        return codec.unseal(text)
    except InvalidRequestState as exc:
        said = str(exc)
    (refusal,) = (one for one, count in codec.refusals_by_key_state.items() if count)
    assert refusal[0] == said
    return refusal


def opened(ring: Ring, text: str) -> bytes | str:
    """The payload, or the reason alone."""
    found = attempt(ring, text)
    return found if isinstance(found, bytes) else found[0]
