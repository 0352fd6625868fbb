"""A store's reports, as many of them as can be looked at.

Whoever may write a report may write many, and an operator must neither wait for hours nor run out of memory. So
whatever reads reports does it through here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mcpkeys.clock import Clock, SystemClock
from mcpkeys.errors import StoreUnreachable
from mcpkeys.store import Found, Store

MAX_BYTES = 256 << 20
"""4,096 reports of 64 KiB; honest ones have one or two."""
LOOK_SECONDS = 60.0


def listed(store: Store, *, deadline: float) -> Iterator[Found]:
    """Every report of the store, unauthenticated: complete, or an error.

    Raises:
        StoreUnreachable: they are over `MAX_BYTES` together (code `reports-flooded`), or what the store answers.
    """
    size = 0
    for entry in store.reports(deadline=deadline):
        size += len(entry.body)
        if size > MAX_BYTES:
            raise _flooded(f"over {MAX_BYTES >> 20} MiB of reports")
        yield entry


def in_time(found: Sequence[Found], *, seconds: float | None = None, clock: Clock | None = None) -> Iterator[Found]:
    """`found`, one by one, to who parses or authenticates them, for at most so many seconds (`LOOK_SECONDS`).

    Raises:
        StoreUnreachable: the time is over before the last (code `reports-flooded`).
    """
    clock, seconds = clock or SystemClock(), LOOK_SECONDS if seconds is None else seconds
    end = clock.monotonic() + seconds
    for number, entry in enumerate(found):
        if clock.monotonic() > end:
            raise _flooded(f"{number:,} of {len(found):,} reports were looked at in {seconds:g} s")
        yield entry


def _flooded(why: str) -> StoreUnreachable:
    return StoreUnreachable(
        "there are more reports than can be looked at",
        why=why,
        next="delete those that no server of yours wrote, and take the right to write there from who wrote them; "
        "mcpkeys rotate --emergency does without reports",
        code="reports-flooded",
    )
