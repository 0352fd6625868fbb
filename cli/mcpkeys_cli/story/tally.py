"""What became of the clients' calls."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Counted while the traffic goes on.

    Attributes:
        calls: completed calls, each of at least two requests.
        rounds: answered questions: what a refused token would have lost.
        refused: rounds refused with the frozen error.
        broken: other failures, by their text.
        refusals: when each refusal came (seconds since the epoch).
    """

    calls: int = 0
    rounds: int = 0
    refused: int = 0
    broken: Counter[str] = field(default_factory=Counter)
    refusals: list[float] = field(default_factory=list)
