"""Many tokens at once: what was refused, by reason, key, minting instance, audience, method, minute. Constant memory.

Each captured token is inspected at the moment of its capture where one is known; the server's own log lines count by
the word they hold. What a `Triage` keeps does not grow with what it is fed: counters are capped, the rest of a
counter is told as `others`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from mcpkeys.call import NOT_GIVEN, CallContext, NotGiven
from mcpkeys.capture import Captured
from mcpkeys.encoding import format_ms, to_ms
from mcpkeys.explanation import explain
from mcpkeys.findings import printable
from mcpkeys.inspection import Inspection, inspect_token
from mcpkeys.keyset import Keyset
from mcpkeys.opening import Fronts, TokenKey
from mcpkeys.reports import ReceivedReport
from mcpkeys.ring import Ring
from mcpkeys.sdktoken import SdkRing
from mcpkeys.situation import Situation, who

MAX_NAMES: Final = 200
"""Distinct values that a counter tells apart."""

MAX_BUCKETS: Final = 1440
"""Of the histogram: beyond, its minutes are merged two by two."""

MAX_COMBINATIONS: Final = 4096
"""Counted before they are told apart; their number bounds the memory, not the outcome."""

_CAPTURE: Final = "capture the requests too (a proxy's NDJSON, a HAR): the log alone names no key and no claims"
_NOTHING: Final = "give it the servers' logs, captured requests or bare tokens: mcpkeys triage --help"
_NEXT_OF_A_LOG: Final = {
    "stale ring": "mcpkeys doctor --as-server, on the instance that logs it: it names the store or the KEK",
    "audience": "mcpkeys check MODULE:SERVER, on an instance of each release: one has another audience",
    "unknown key": "mcpkeys status: which instance holds an older generation, is silent, or was given up",
    "retired key": "mcpkeys status: which instance holds an older generation, is silent, or was given up",
    "minted in the future": "mcpkeys status: which instance's clock is off",
}
"""What a word is worth without its token: where to look at once."""

OTHERS: Final = "others"


class Tally:
    """A counter that never grows beyond `MAX_NAMES` names."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, name: str, times: int = 1) -> None:
        """Count; under `others` where there is no room for another name."""
        counts = self.counts
        counts[name if name in counts or len(counts) < MAX_NAMES else OTHERS] += times

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


class Record(NamedTuple):
    """One line of the stream, judged. `inspection` is None for a log line."""

    captured: Captured
    inspection: Inspection | None
    minted_by: str | None

    def as_dict(self) -> dict[str, Any]:
        """A record of NDJSON output. No token, no arguments, no state."""
        captured, found = self.captured, self.inspection
        key = None if found is None else found.key
        audience = None if found is None else found.audience
        return {
            "line": captured.line,
            "kind": captured.kind,
            "verdict": "rejected" if found is None else found.verdict,
            "reason": captured.logged if found is None else found.reason,
            "kid": None if key is None else key.kid,
            "state": None if key is None else key.state,
            "minted_by": self.minted_by,
            "audience": None if audience is None else audience[:200],
            "method": None if isinstance(captured.method, NotGiven) else captured.method[:200],
            "at": None if captured.at is None else format_ms(to_ms(captured.at)),
            "logged": captured.logged,
            "instance": captured.instance,
            "failed": [] if found is None else list(found.failed_names),
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
    minters: Tally = field(default_factory=Tally)

    def whose(self) -> str:
        """Who minted all of them, where it was one: the odd instance is often not the one that refuses."""
        (minter, count), *others = self.minters.counts.most_common(2) or [("", 0)]
        return f", all minted by {minter}" if not others and count == self.count > 1 else ""


COUNTED = ("tokens", "accepted", "rejected", "unverified", "log_lines", "first_rounds", "too_long")
# reason or verdict, key and state, prefix, audience, method, what was logged where: counted together, told apart later.
_Combination = tuple[str, tuple[str, str] | None, str | None, str | None, str | None, str | None]


class Triage:
    """Takes what was captured, one after the other; `summary()` at any time."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._fronts: Fronts = {}
        self._counts = dict.fromkeys(COUNTED, 0)
        self._combined: dict[_Combination, int] = {}
        self._by = {name: Tally() for name in ("reason", "key", "minted_by", "audience", "method", "instance")}
        self._histogram = Histogram()
        self._samples: dict[str, _Sample] = {}
        self._stale = Tally()
        self._expired_since = 0
        self._minters = {prefix: who(entry.report) for entry in fleet.reports for prefix in entry.report.prefixes}
        live = [entry.report for entry in fleet.reports if entry.report.state != "farewell"]
        kids = fleet.ring.keys if isinstance(fleet.ring, Ring) else ()
        self._lacking = {
            kid: [f"{who(report)}, generation {report.generation}" for report in live if kid not in report.verifies]
            for kid in kids
        }

    def feed(self, captured: Captured) -> Record | None:
        """Judge one; None for what is no token and no refusal (a first round, a line too long to be read)."""
        counts = self._counts
        if captured.kind == "too_long":
            counts["too_long"] += 1
            return None
        if captured.kind == "log":
            counts["log_lines"] += 1
            self._count(captured, captured.logged or "unknown", None, None)
            return Record(captured, None, None)
        token = captured.token
        if token is NOT_GIVEN or token is None:
            counts["first_rounds"] += 1
            return None
        fleet, at = self.fleet, captured.at
        now = fleet.now if at is None else at
        call = CallContext(
            method=captured.method, params=captured.params, audience=fleet.audience, principal=fleet.principal
        )
        found = inspect_token(token, fleet.ring, call, now=now, fronts=self._fronts)
        counts["tokens"] += 1
        counts[found.verdict] += 1
        word: str = found.verdict
        if word == "rejected":
            word = found.reason or "no word: the boundary raises"
            if word == "expired" and at is None and found.failed_names == ("expiry",):
                self._expired_since += 1
        sample = self._samples.get(word)
        if sample is None and len(self._samples) < MAX_NAMES:
            situation = Situation(fleet.keyset, fleet.reports, call, now, now_is_capture=at is not None)
            sample = self._samples[word] = _Sample(found, situation)
        key = found.key
        minted_by = None if key is None or key.prefix is None else self._minters.get(key.prefix)
        if sample is not None:
            sample.count += 1
            if minted_by is not None and word != "accepted":
                sample.minters.add(minted_by, 1)
        self._count(captured, word, key, found)
        if word == "accepted":
            self._accepted(captured, None if key is None else key.kid)
        return Record(captured, found, minted_by)

    def _count(self, captured: Captured, word: str, key: TokenKey | None, found: Inspection | None) -> None:
        at, method, instance = captured.at, captured.method, captured.instance
        audience = None
        if found is not None and found.opened:
            audience = found.audience or "(none)"
        combination = (
            word,
            None if key is None else (key.kid, key.state),
            None if key is None else key.prefix,
            audience,
            None if method is NOT_GIVEN else method,
            None if instance is None else f"{instance}: {captured.logged or word}",
        )
        combined = self._combined
        combined[combination] = combined.get(combination, 0) + 1
        if len(combined) > MAX_COMBINATIONS:
            self._tell_apart()
        if at is not None and -6e10 < at < 2e11:
            self._histogram.add(at)

    def _tell_apart(self) -> None:
        by = self._by
        for (word, key, prefix, audience, method, instance), count in self._combined.items():
            if word not in ("accepted", "unverified"):
                by["reason"].add(word, count)
            if key is not None:
                by["key"].add(" ".join(key), count)
            if prefix is not None:
                by["minted_by"].add(self._minters.get(prefix, "unknown instance"), count)
            for name, value in (("audience", audience), ("method", method), ("instance", instance)):
                if value is not None:
                    by[name].add(value, count)
        self._combined.clear()

    def _accepted(self, captured: Captured, kid: str | None) -> None:
        if captured.logged is not None:
            self._stale.add(f"{captured.instance or 'an instance'} logged '{captured.logged}'")
        for name in self._lacking.get(kid or "", ()):
            self._stale.add(f"{name} does not hold {kid}")

    def summary(self) -> Summary:
        """What was fed so far."""
        self._tell_apart()
        likely, next_step = self._likely()
        return Summary(
            self._counts.copy(),
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
            likely.append(
                f"tokens that inspect as accepted are refused where the ring, audience or clock is another: {named}"
            )
            next_step = "mcpkeys status: what does not follow reads an old copy of the keyset, or has another clock"
        for word, sample in sorted(self._samples.items(), key=lambda item: -item[1].count):
            if word == "accepted" or len(likely) >= 6:
                continue
            told = explain(sample.inspection, sample.situation)
            cause = f": {told.causes[0]}" if told.causes else ""
            likely.append(f"{word}, {sample.count:,} times{sample.whose()}; the first one: {told.summary}{cause}")
            next_step = next_step or told.next
        kids = sum(1 for name in self._by["key"].counts if name.endswith(" unknown"))
        if kids >= 3:
            likely.insert(
                0,
                f"{kids} different unknown keys: servers with keys of their own (another keyset, or secrets), "
                "another service's clients, or someone who probes",
            )
        logged = [(word, count) for word, count in self._by["reason"].counts.most_common() if word not in self._samples]
        for word, count in logged[:3]:
            shown = "no token here is refused for it" if self._counts["tokens"] else "the log holds no tokens"
            likely.append(f"the servers logged '{printable(word)}' {count:,} times; {shown}")
            next_step = next_step or _NEXT_OF_A_LOG.get(word, _CAPTURE)
        if not likely:
            next_step = next_step or ("mcpkeys status" if self._counts["tokens"] else _NOTHING)
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
