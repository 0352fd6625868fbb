"""What is known beside a token: the keyset, the fleet's reports, the call, the moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcpkeys.call import NO_CALL, CallContext
from mcpkeys.findings import printable
from mcpkeys.keyset import Keyset
from mcpkeys.reports import ReceivedReport, Report


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known beside the token.

    Attributes:
        keyset: the verified document, or None.
        reports: the authentic ones of its fleet.
        call: as it was given to the inspection.
        now: seconds since the epoch.
        now_is_capture: whether `now` is the moment of the call rather than this one.
        first: the params of the round that minted the token, or None.
        trimmed: what was taken off around the token before it was inspected, one phrase each.
    """

    keyset: Keyset | None = None
    reports: Sequence[ReceivedReport] = ()
    call: CallContext = NO_CALL
    now: float = 0.0
    now_is_capture: bool = False
    first: Mapping[str, Any] | None = None
    trimmed: Sequence[str] = ()


def who(report: Report) -> str:
    """An instance as an operator recognises it: label and the id's first characters."""
    return f"{printable(report.label, 60) or 'unlabelled'} ({report.instance[:8]})"


def span(seconds: float) -> str:
    """`0.2 s`, `95 s`, `12 min`, `3.5 h`, `4 d`."""
    seconds = abs(seconds)
    for limit, size, unit in ((120, 1.0, "s"), (7200, 60.0, "min"), (172_800, 3600.0, "h")):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86_400:,.0f} d"
