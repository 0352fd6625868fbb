"""The canary: whether a KEK would still open the keyset, although nobody unwraps after start.

A KEK version can be trimmed, destroyed or disabled under a quiet fleet, and a KEK that `rewrap` added has opened
nothing yet. So an instance unwraps the minting key by its nearest KEK about once a day, by every KEK that has opened
nothing yet as soon as it appears, and by all of them once after a rewrap. Its reports tell.
"""

from __future__ import annotations

import logging
import random

from mcpkeys.clock import Clock
from mcpkeys.encoding import to_ms
from mcpkeys.instance import Instance
from mcpkeys.keyset import Keyset
from mcpkeys.loading import Loader
from mcpkeys.reports import Canary

logger = logging.getLogger("mcpkeys")

DAY_SECONDS = 86_400.0
PROOF_REFRESHES = 10


class Canaries:
    """Which canary unwraps one instance owes, and when."""

    def __init__(self, loader: Loader, instance: Instance, clock: Clock, jitter: random.Random) -> None:
        self._loader = loader
        self._instance = instance
        self._clock = clock
        self._jitter = jitter
        self._owed: set[str] = set()
        self._owed_at = self._next = 0.0

    def begin(self, interval: float) -> None:
        """At start, and in the child after fork. A fleet that starts together spreads.

        The first daily one comes at any time of the day; the other KEKs, which opened nothing at this start, within
        ten refresh intervals: `rewrap --remove-kek` waits for the proof that every instance can do without one.
        """
        now = self._clock.monotonic()
        self._next = now + self._jitter.uniform(0.0, DAY_SECONDS)
        self._owed = self._unproven()
        self._owed_at = now + self._jitter.uniform(0.0, PROOF_REFRESHES * interval)

    def _unproven(self) -> set[str]:
        return {uri for uri in self._loader.keks.uris if uri not in self._loader.unwraps_by}

    def follow(self, before: Keyset, after: Keyset) -> None:
        """A new document is in use: note what it leaves unproven."""
        self._owed |= self._unproven()
        self._owed_at = self._clock.monotonic()
        wrapped = {key.kid: key.wrapped for key in before.live}
        if any(wrapped.get(key.kid, key.wrapped) != key.wrapped for key in after.live):
            self._owed |= set(self._loader.keks.uris)

    def run(self, keyset: Keyset) -> None:
        """Make the unwraps that are due, one KMS call each. A KEK that does not answer is asked again next time."""
        daily = self._clock.monotonic() >= self._next
        owed = self._owed if self._clock.monotonic() >= self._owed_at else set()
        nearest = self._nearest(keyset) if daily else set()
        for uri in [uri for uri in self._loader.keks.uris if uri in owed | nearest]:
            unanswered = self._prove(keyset, uri)
            if not unanswered:
                self._owed.discard(uri)
                nearest.discard(uri)
        if daily and not nearest:
            self._next = self._clock.monotonic() + DAY_SECONDS * self._jitter.uniform(0.75, 1.25)

    def _nearest(self, keyset: Keyset) -> set[str]:
        return {kms.uri for kms, _ in self._loader.keks.usable(keyset.minting.wrapped)[:1]}

    def _prove(self, keyset: Keyset, uri: str) -> bool:
        """Whether no answer came."""
        ok = self._loader.prove(keyset, uri)
        if ok is None:
            return self._loader.wraps(keyset.minting, uri)
        before = self._instance.canary.get(uri)
        self._instance.canary[uri] = Canary(to_ms(self._clock.time()), ok)
        if not ok and (before is None or before.ok):
            logger.warning(
                "the KEK %s no longer opens the minting key; running servers go on, new ones may not start",
                uri, extra={"event": "canary.failed"},
            )  # fmt: skip
        elif ok and before is not None and not before.ok:
            logger.warning("the KEK %s opens the minting key again", uri, extra={"event": "canary.recovered"})
        return False
