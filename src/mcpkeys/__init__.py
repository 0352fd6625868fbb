"""mcpkeys: request-state encryption and live key rotation for fleets of MCP servers.

The public names, loaded when first used: importing this package imports neither the SDK nor a cloud SDK.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcpkeys.codec import EnvelopeCodec as EnvelopeCodec
    from mcpkeys.security import request_state_boundary as request_state_boundary
    from mcpkeys.security import request_state_security as request_state_security

__version__ = "0.1.0"

_HOME = {
    "EnvelopeCodec": "mcpkeys.codec",
    "request_state_boundary": "mcpkeys.security",
    "request_state_security": "mcpkeys.security",
}

__all__ = ["EnvelopeCodec", "__version__", "request_state_boundary", "request_state_security"]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'mcpkeys' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
