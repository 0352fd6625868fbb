"""What the hot path notes of a key: plain attributes, read later by reports, status and metrics."""

from __future__ import annotations

import itertools

from mcpkeys.keyset import State


def read_count(counter: itertools.count[int]) -> int:
    """How often `next` was called on a counter that began at 0, without calling it."""
    return int(repr(counter)[len("count(") : -1])


class Counts:
    """Two counters that are exact under threads: `next` on an `itertools.count` is one step."""

    __slots__ = ("seals", "unseals")

    def __init__(self) -> None:
        self.seals = itertools.count()
        self.unseals = itertools.count()


class KeyUse:
    """The use of one key by one instance; outlives rings.

    Attributes:
        last_mint, last_unseal: seconds since the epoch, 0.0 for never.
        by_state: what was counted while the key was in that state, so that no count ever goes back.
    """

    __slots__ = ("by_state", "last_mint", "last_unseal")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Nothing noted yet; also in the child after fork, which has done nothing itself."""
        self.last_mint = 0.0
        self.last_unseal = 0.0
        self.by_state: dict[State, Counts] = {}

    def counts(self, state: State) -> Counts:
        """The counters of one state."""
        return self.by_state.setdefault(state, Counts())

    @property
    def seals(self) -> int:
        """Tokens minted under the key."""
        return sum(read_count(counts.seals) for counts in list(self.by_state.values()))

    @property
    def unseals(self) -> int:
        """Tokens of the key opened."""
        return sum(read_count(counts.unseals) for counts in list(self.by_state.values()))
