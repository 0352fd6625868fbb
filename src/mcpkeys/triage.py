"""Many tokens at once: what was refused, by reason, key, minting instance, audience, method, minute. Constant memory.

Each captured token is inspected at the moment of its capture where one is known; the server's own log lines count by
the word they hold. What a `Triage` keeps does not grow with what it is fed: counters are capped, the rest of a
counter is told as `others`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mcpkeys.call import NOT_GIVEN, CallContext, NotGiven
from mcpkeys.capture import Captured
from mcpkeys.encoding import format_ms, to_ms
from mcpkeys.explanation import explain
from mcpkeys.findings import printable
from mcpkeys.inspection import Inspection, inspect_token
from mcpkeys.keyset import Keyset
from mcpkeys.opening import Fronts
from mcpkeys.reports import ReceivedReport
from mcpkeys.ring import Ring
from mcpkeys.sdktoken import SdkRing
from mcpkeys.situation import Situation, who

MAX_NAMES: Final = 200
"""Distinct values that a counter tells apart."""

MAX_BUCKETS: Final = 1440
"""Of the histogram: beyond, its minutes are merged two by two."""

OTHERS: Final = "others"


class Tally:
    """A counter that never grows beyond `MAX_NAMES` names."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, name: str) -> None:
        """Count one; under `others` where there is no room for another name."""
        counts = self.counts
        counts[name if name in counts or len(counts) < MAX_NAMES else OTHERS] += 1

    def top(self) -> dict[str, int]:
        """The counts, the largest first; names as they may be shown."""
        return {printable(name, 100): count for name, count in self.counts.most_common()}


class Histogram:
    """Counts by minute; when there are too many minutes, by two, four, eight ... of them."""

    __slots__ = ("counts", "minutes")

    def __init__(self) -> None:
        self.minutes = 1
        self.counts: Counter[int] = Counter()

    def add(self, at: float) -> None:
        """Count one moment, in seconds since the epoch."""
        self.counts[int(at // (60 * self.minutes))] += 1
        while len(self.counts) > MAX_BUCKETS:
            merged: Counter[int] = Counter()
            for bucket, count in self.counts.items():
                merged[bucket // 2] += count
            self.minutes *= 2
            self.counts = merged

    def buckets(self) -> list[tuple[int, int]]:
        """(start in milliseconds since the epoch, count) in order of time; empty minutes are left out."""
        return [(bucket * 60_000 * self.minutes, count) for bucket, count in sorted(self.counts.items())]


@dataclass(frozen=True, slots=True)
class Fleet:
    """What tokens are held against.

    Attributes:
        ring: as for `inspect_token`.
        keyset, reports: as in `Situation`.
        audience, principal: as in `CallContext`; the same for every call.
        now: for tokens whose capture tells no time.
    """

    ring: Ring | SdkRing | None
    now: float
    keyset: Keyset | None = None
    reports: Sequence[ReceivedReport] = ()
    audience: str | NotGiven | None = NOT_GIVEN
    principal: object = NOT_GIVEN


@dataclass(slots=True)
class Record:
    """One line of the stream, judged."""

    captured: Captured
    verdict: str
    reason: str | None
    kid: str | None = None
    state: str | None = None
    minted_by: str | None = None
    audience: str | None = None
    failed: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """A record of NDJSON output. No token, no arguments, no state."""
        captured = self.captured
        return {
            "line": captured.line,
            "kind": captured.kind,
            "verdict": self.verdict,
            "reason": self.reason,
            "kid": self.kid,
            "state": self.state,
            "minted_by": self.minted_by,
            "audience": self.audience,
            "method": None if isinstance(captured.method, NotGiven) else captured.method[:200],
            "at": None if captured.at is None else format_ms(to_ms(captured.at)),
            "logged": captured.logged,
            "instance": captured.instance,
            "failed": list(self.failed),
        }


@dataclass(slots=True)
class Summary:
    """What a stream came to.

    Attributes:
        counts: `tokens`, `accepted`, `rejected`, `unverified`, `log_lines`, `first_rounds`, `too_long`.
        by: dimension -> name -> count: `reason`, `key` (kid and state), `minted_by`, `audience`, `method`,
            `instance` (that logged, with its word).
        minutes: width of a bucket of `histogram`.
        histogram: (start, count), of refusals and log lines, in RFC 3339.
        likely: what most likely happened, one sentence each, the most frequent first.
        next: the next command.
        stale: instances that refuse, or would refuse, tokens that inspect as accepted.
        expired_since: tokens without a time of capture of which nothing but the expiry fails now.
    """

    counts: dict[str, int]
    by: dict[str, dict[str, int]]
    minutes: int
    histogram: list[tuple[str, int]]
    likely: list[str]
    next: str
    stale: list[str]
    expired_since: int


@dataclass(slots=True)
class _Sample:
    inspection: Inspection
    situation: Situation
    count: int = 0


@dataclass(slots=True)
class Triage:
    """Takes what was captured, one after the other; `summary()` at any time."""

    fleet: Fleet
    _fronts: Fronts = field(default_factory=dict, repr=False)
    _counts: Counter[str] = field(default_factory=Counter)
    _by: dict[str, Tally] = field(default_factory=dict)
    _histogram: Histogram = field(default_factory=Histogram)
    _samples: dict[str, _Sample] = field(default_factory=dict, repr=False)
    _stale: Tally = field(default_factory=Tally)
    _minters: dict[str, str] = field(default_factory=dict)
    _lacking: dict[str, list[str]] = field(default_factory=dict)
    _expired_since: int = 0

    def __post_init__(self) -> None:
        for name in ("reason", "key", "minted_by", "audience", "method", "instance"):
            self._by[name] = Tally()
        for entry in self.fleet.reports:
            for prefix in entry.report.prefixes:
                self._minters[prefix] = who(entry.report)
        ring = self.fleet.ring
        for key in ring.keys.values() if isinstance(ring, Ring) else ():
            live = [entry.report for entry in self.fleet.reports if entry.report.state != "farewell"]
            self._lacking[key.kid] = [
                f"{who(report)}, generation {report.generation}" for report in live if key.kid not in report.verifies
            ]

    def feed(self, captured: Captured) -> Record | None:
        """Judge one; None for what is no token and no refusal (a first round, a line too long to be read)."""
        counts = self._counts
        if captured.kind == "too_long":
            counts["too_long"] += 1
            return None
        if captured.kind == "log":
            counts["log_lines"] += 1
            return self._logged(captured)
        if captured.token is NOT_GIVEN or captured.token is None:
            counts["first_rounds"] += 1
            return None
        fleet = self.fleet
        now = fleet.now if captured.at is None else captured.at
        call = CallContext(
            method=captured.method, params=captured.params, audience=fleet.audience, principal=fleet.principal
        )
        found = inspect_token(captured.token, fleet.ring, call, now=now, fronts=self._fronts)
        counts["tokens"] += 1
        counts[found.verdict] += 1
        return self._judged(captured, found, call, now)

    def _logged(self, captured: Captured) -> Record:
        word = captured.logged or "unknown"
        self._by["reason"].add(word)
        self._count_call(captured, word)
        return Record(captured, "rejected", word)

    def _count_call(self, captured: Captured, word: str) -> None:
        if not isinstance(captured.method, NotGiven):
            self._by["method"].add(captured.method)
        if captured.instance is not None:
            self._by["instance"].add(f"{captured.instance}: {word}")
        if captured.at is not None and -6e10 < captured.at < 2e11:
            self._histogram.add(captured.at)

    def _judged(self, captured: Captured, found: Inspection, call: CallContext, now: float) -> Record:
        by, key = self._by, found.key
        record = Record(captured, found.verdict, found.reason)
        if found.verdict == "rejected":
            word = found.reason or "no word: the boundary raises"
            record.failed = tuple(check.name for check in found.checks if check.result == "fail")
            by["reason"].add(word)
            if record.failed == ("expiry",) and captured.at is None:
                self._expired_since += 1
        else:
            word = found.verdict
        if key is not None:
            record.kid, record.state = key.kid, key.state
            by["key"].add(f"{key.kid} {key.state}")
            if key.prefix is not None:
                record.minted_by = self._minters.get(key.prefix)
                by["minted_by"].add(record.minted_by or "unknown instance")
        if found.claims is not None:
            audience = found.claims.get("aud")
            record.audience = audience[:200] if isinstance(audience, str) else None
            by["audience"].add("(none)" if audience is None else str(audience))
        self._count_call(captured, captured.logged or word)
        if found.verdict == "accepted":
            self._accepted(captured, record)
        sample = self._samples.get(word)
        if sample is None and len(self._samples) < MAX_NAMES:
            situation = Situation(
                self.fleet.keyset, self.fleet.reports, call, now, now_is_capture=captured.at is not None
            )
            sample = self._samples[word] = _Sample(found, situation)
        if sample is not None:
            sample.count += 1
        return record

    def _accepted(self, captured: Captured, record: Record) -> None:
        if captured.logged is not None:
            self._stale.add(f"{captured.instance or 'an instance'} logged '{captured.logged}'")
        for name in self._lacking.get(record.kid or "", ()):
            self._stale.add(f"{name} does not hold {record.kid}")

    def summary(self) -> Summary:
        """What was fed so far."""
        counts = {
            name: self._counts[name]
            for name in ("tokens", "accepted", "rejected", "unverified", "log_lines", "first_rounds", "too_long")
        }
        likely, next_step = self._likely()
        return Summary(
            counts,
            {name: tally.top() for name, tally in self._by.items()},
            self._histogram.minutes,
            [(format_ms(start), count) for start, count in self._histogram.buckets()],
            likely,
            next_step,
            [f"{name} ({count:,} times)" for name, count in self._stale.top().items()],
            self._expired_since,
        )

    def _likely(self) -> tuple[list[str], str]:
        likely: list[str] = []
        next_step = ""
        if self._stale.counts:
            named = "; ".join([*self._stale.top()][:5])
            likely.append(f"tokens that inspect as accepted are refused by instances with an older ring: {named}")
            next_step = "mcpkeys status names what each instance holds; restart those that do not follow"
        for word, sample in sorted(self._samples.items(), key=lambda item: -item[1].count):
            if word == "accepted" or len(likely) >= 6:
                continue
            told = explain(sample.inspection, sample.situation)
            cause = f": {told.causes[0]}" if told.causes else ""
            likely.append(f"{word}, {sample.count:,} times; the first one: {told.summary}{cause}")
            next_step = next_step or told.next
        kids = sum(1 for name in self._by["key"].counts if name.endswith(" unknown"))
        if kids >= 3:
            likely.insert(
                0,
                f"{kids} different unknown keys: servers with keys of their own (another keyset, or secrets), "
                "another service's clients, or someone who probes",
            )
        if not likely and self._counts["log_lines"]:
            word, count = self._by["reason"].counts.most_common(1)[0]
            likely.append(
                f"the servers logged '{printable(word)}' most often ({count:,} times); the log holds no tokens"
            )
            next_step = "capture the requests too (a proxy's NDJSON, a HAR): the log alone names no key and no claims"
        if not likely:
            likely.append(
                "nothing was refused" if self._counts["tokens"] else "there was no token and no refusal in it"
            )
        return likely, next_step


def run(captured: Iterable[Captured], fleet: Fleet) -> Summary:
    """The summary of a whole stream."""
    triage = Triage(fleet)
    for entry in captured:
        triage.feed(entry)
    return triage.summary()
