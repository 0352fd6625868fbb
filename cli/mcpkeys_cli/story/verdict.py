"""What of the demo was not as promised, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mcpkeys.encoding import format_ms, to_ms
from mcpkeys_cli.story.tally import Tally

AGAIN = "run it again on a quieter machine; if it happens again, please report what --output json answers"
_OTHER_SDK = "another version of the SDK may answer differently; please report it with what `pip show mcp` says"
_REASONS = ["seal", "expired", "request binding", "unknown key"]
_FROZEN = {"code": -32602, "message": "Invalid or expired requestState"}


@dataclass(slots=True)
class Refusal:
    """One refused token: what was done to it, what the wire said, what inspection says."""

    kind: str
    wire: dict[str, Any] | None
    reason: str | None
    detail: str


@dataclass(frozen=True, slots=True)
class Wrong:
    """A promise that was not kept: what, why it is one, what to do next."""

    what: str
    why: str
    next: str


def wrong(traffic: Tally, refusals: Sequence[Refusal]) -> Wrong | None:
    """The first promise that was not kept, or None."""
    if traffic.refused:
        when = f", the first at {format_ms(to_ms(min(traffic.refusals)))}" if traffic.refusals else ""
        return Wrong(f"{traffic.refused} rounds were refused{when}", "a rotation promises that none is", AGAIN)
    if traffic.broken:
        calls = "; ".join(f"{n} x {text}" for text, n in traffic.broken.items())
        return Wrong("calls failed, none of them for its sealed state", calls, AGAIN)
    got = [refusal.reason for refusal in refusals]
    if got != _REASONS:
        return Wrong("inspect gives other reasons than it should", f"{got}, expected {_REASONS}", _OTHER_SDK)
    for refusal in refusals:
        if refusal.wire is None or {name: refusal.wire[name] for name in _FROZEN} != _FROZEN:
            answer = "was accepted" if refusal.wire is None else f"got {refusal.wire['code']} {refusal.wire['message']}"
            return Wrong(f"the {refusal.kind} token was not answered with the frozen error", f"it {answer}", _OTHER_SDK)
    return None
