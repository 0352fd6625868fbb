"""An explicit-state search over small fleets that drives the real `plan`.

A state is the keyset's essence, every instance, and the latest mint of every key; all times are relative to now, in
ticks, and clipped where no rule looks any further, so that the space is finite. Every serving instance mints at every
moment, as if clients never paused: the worst case for each rule, without a branch for each token.
docs/rotation-invariants.md lists the events, the invariants and the assumptions.
"""

from __future__ import annotations

import gc
from collections import deque
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from mcpkeys import preconditions, rotation, transitions
from mcpkeys.keyset import (
    HistoryEntry,
    Key,
    Keyset,
    ReportKey,
    Rotation,
    RotationStep,
    Signer,
    StepEvidence,
)
from mcpkeys.kms import Wrap
from mcpkeys.reports import ReceivedReport, Report
from mcpkeys.rotation import Step, complete

T = 1_000_000  # the tick that is "now" whenever a real document is built
GENERATION = 50
NEVER = 99
BEGIN, SECOND, RETIRE, BACK = Step(1), Step(2), Step(3), Step("rollback")
WRAPS = (Wrap("local:///k", "1", b"x"),)


class Violation(Exception):
    """A reachable state breaks an invariant. Carries the events that lead there."""


class K(NamedTuple):
    """The keyset's essence. Times relative to now."""

    phase: int | str  # 0: nothing runs
    minter: int
    since: int
    since_lag: int  # generations written since the minter began
    verifying: tuple[int, ...]
    pair: tuple[int, int] | None  # from, to
    entered: int


class Seen(NamedTuple):
    """A report. Times relative to now, `last` and `since` by the instance's clock."""

    state: str
    lag: int
    mints: int
    verifies: tuple[int, ...]
    since: int
    last: tuple[tuple[int, int], ...]
    at: int


class I(NamedTuple):  # noqa: E742
    """One instance. `ring` is (lag in generations, minter, verified kids)."""

    status: str  # off, joining, serving, dead, farewell
    off: int  # its clock against the store's
    lag: int = 0
    mints: int = -1
    verifies: tuple[int, ...] = ()
    since: int = 0
    last: tuple[tuple[int, int], ...] = ()
    refreshed: int = 0
    forked: int = NEVER
    report: Seen | tuple = ()
    snap: Seen | tuple = ()  # the report as an operator with a stale read saw it
    roster: bool = False
    word: int = NEVER  # when it was named as stopped


class S(NamedTuple):
    """A state."""

    k: K
    instances: tuple[I, ...]
    minted: tuple[tuple[int, int], ...]  # kid -> the latest expiry base of an honest token
    burnt: tuple[int, ...]
    fresh: tuple[tuple[int, int], ...]  # emergency keys: kid -> generations written since
    pending: int | None  # when the stale read was made


@dataclass
class Bounds:
    """How large a world is searched."""

    instances: int = 2
    spare: int = 1
    offsets: tuple[int, ...] = (0,)
    ttl: int = 2
    skew: int = 0
    refresh: int = 1
    max_stale: int | None = None
    emergencies: int = 0
    deaths: int = 1
    rotations: int = 1
    rollbacks: bool = True
    forks: bool = False
    stale_reads: bool = False
    lost_reports: bool = False
    load_first: bool = False  # a planted bug: read the keyset, then say that one joins
    tell_mints: bool = True
    max_states: int = 2_000_000


@dataclass
class Result:
    """What a search saw."""

    states: int = 0
    transitions: int = 0
    reached: set[tuple] = field(default_factory=set)
    exhausted: bool = True


def kid(n: int) -> str:
    return f"k{n:011d}"


def ident(n: int) -> str:
    return f"i{n:020d}A"


class Model:
    """The world: successors of a state, and the invariants."""

    def __init__(self, bounds: Bounds) -> None:
        self.b = bounds
        # Nothing compares two ages that are both beyond this.
        b = bounds
        widest = max(map(abs, b.offsets))
        waits = (4 * b.refresh, b.refresh + b.ttl + b.skew + (b.max_stale or 0) + 2 * widest)
        self.cap = max(waits) + int(b.stale_reads)
        self.plan = lru_cache(maxsize=None)(self._plan)
        self.keyset = lru_cache(maxsize=None)(self._keyset)
        self.report = lru_cache(maxsize=None)(self._report)
        # The same few instances come up in state after state, and half of all events lead to where another one led.
        self.settle = lru_cache(maxsize=100_000)(self.settle)
        self._says = lru_cache(maxsize=None)(self._says)
        self._refreshed = lru_cache(maxsize=None)(self._refreshed)
        self._aged_instance = lru_cache(maxsize=None)(self._aged_instance)
        self._plain = lru_cache(maxsize=None)(self._plain)

    # --- the real code ---------------------------------------------------------------------------------------

    def _plan(self, k: K, instances: tuple[tuple, ...], step: Step, now: int):
        """`plan` on real documents and reports; the new K, the rosters and the words, or None."""
        keyset = self.keyset(k, tuple((roster, word) for _, _, roster, word in instances))
        reports = [self.report(i, off, seen) for i, (seen, off, _, _) in enumerate(instances) if seen]
        answer = rotation.plan(keyset, reports, step, float(T + now))
        if answer.verdict != "do":
            return None
        new = max([k.minter, *k.verifying, *(k.pair or ())]) + 1000
        document = complete(
            answer.document,
            key=Key(kid(new), "minting", 0, 0, WRAPS),
            rotation_id="rrrrrrrrrrrr",
            report_key=ReportKey("pppppppppppp", WRAPS),
        )
        return self._essence(document, len(instances))

    def _keyset(self, k: K, marks: tuple[tuple[bool, int], ...]) -> Keyset:
        def ms(tick: int) -> int:
            return (T + tick) * 1000

        keys = [Key(kid(k.minter), "minting", 0, ms(k.since), WRAPS)]
        keys += [Key(kid(v), "verifying", 0, ms(-self.cap), WRAPS) for v in k.verifying]
        turn = None
        if k.pair is not None:
            phase = k.phase or 3
            words = [
                (w, RotationStep(phase, ms(w), StepEvidence("reports", missing=(ident(i),))))
                for i, (_, w) in enumerate(marks)
                if w != NEVER
            ]
            entry = RotationStep(phase, ms(k.entered), StepEvidence())
            before = [s for w, s in words if w < k.entered]
            after = [s for w, s in words if w >= k.entered]
            turn = Rotation(
                id="rrrrrrrrrrrr",
                phase=phase,
                ended=None if k.phase else "emergency",
                from_kid=kid(k.pair[0]),
                to_kid=kid(k.pair[1]),
                roster=tuple(ident(i) for i, (r, _) in enumerate(marks) if r),
                expect=None,
                steps=(entry,) if k.phase == 1 else (*before, entry, *after),
            )
        b = self.b
        return Keyset(
            name="m", audience="m", ttl_seconds=b.ttl, skew_seconds=b.skew, refresh_seconds=b.refresh,
            max_stale_seconds=b.max_stale, max_token_chars=1000, evidence="reports", generation=GENERATION,
            previous=None, keks=("local:///k",), sign_keks=("local:///k",), keys=tuple(keys),
            report_key=ReportKey("qqqqqqqqqqqq", WRAPS), rotation=turn, past_ttls=(),
            history=(HistoryEntry(ms(k.since), "", "", GENERATION - k.since_lag),),
            signer=Signer("ed25519:" + "s" * 43, "ssssssssssss", WRAPS),
        )  # fmt: skip

    def _report(self, i: int, off: int, seen: Seen) -> ReceivedReport:
        def ms(tick: int) -> int:
            return (T + tick) * 1000

        joining = seen.state == "joining"
        report = Report(
            keyset="m", instance=ident(i), label="", pid=1, state=seen.state, seq=1,
            generation=0 if joining else GENERATION - seen.lag, digest="",
            verifies=tuple(kid(v) for v in seen.verifies), mints=None if joining else kid(seen.mints),
            minting_since=None if joining else ms(seen.since),
            last_mint={kid(k): ms(at) for k, at in seen.last} if self.b.tell_mints else {},
            clock=ms(seen.at + off),
            max_stale=None if self.b.max_stale is None or joining else self.b.max_stale * 1000,
        )  # fmt: skip
        return ReceivedReport(report, float(T + seen.at))

    def _essence(self, keyset: Keyset, count: int):
        def tick(ms: int) -> int:
            return ms // 1000 - T

        live = {key.kid: key for key in keyset.live}
        minter = keyset.minting
        turn = keyset.rotation
        running = keyset.running
        entered = 0
        if turn is not None:
            entered = next(s.entered_at for s in turn.steps if s.phase == turn.phase)
        since_generation = next((e.generation for e in reversed(keyset.history) if e.at == minter.state_since), 0)
        number = {k: int(k[1:]) for k in live}
        pair = None
        leftover = any(key.state == "verifying" for key in live.values())
        if turn is not None and (running is not None or leftover):
            pair = (int(turn.from_kid[1:]), int(turn.to_kid[1:]))
        k = K(
            phase=running.phase if running is not None else 0,
            minter=number[minter.kid],
            since=tick(minter.state_since),
            since_lag=keyset.generation - since_generation,
            verifying=tuple(sorted(number[key.kid] for key in live.values() if key.state == "verifying")),
            pair=pair,
            entered=tick(entered) if running is not None else 0,
        )
        words: dict[str, int] = {}
        for step in turn.steps if turn is not None and pair is not None else ():
            for instance in step.evidence.missing:
                words[instance] = tick(step.entered_at)
        roster = set(turn.roster) if turn is not None and pair is not None else set()
        marks = tuple((ident(i) in roster, words.get(ident(i), NEVER)) for i in range(count))
        return k, marks

    # --- events ----------------------------------------------------------------------------------------------

    def first(self) -> S:
        b = self.b
        k = K(0, 0, -self.cap, 0, (), None, 0)
        instances = []
        for n in range(b.instances):
            off = b.offsets[n % len(b.offsets)]
            report = Seen("serving", 0, 0, (0,), -self.cap, ((0, off),), 0)
            instances.append(I("serving", off, 0, 0, (0,), -self.cap, ((0, off),), 0, NEVER, report))
        for n in range(b.spare):
            instances.append(I("off", b.offsets[(b.instances + n) % len(b.offsets)]))
        return self.settle(S(k, tuple(instances), (), (), (), None))

    def successors(self, s: S, budget: tuple[int, int, int]):
        """(what happened, next state, budget left) for each event; the budget is (deaths, emergencies, rotations)."""
        b, (deaths, emergencies, rotations) = self.b, budget
        yield from self._tick(s, budget)
        seen_kinds = set()
        for n, i in enumerate(s.instances):
            if i in seen_kinds:
                continue  # alike instances behave alike
            seen_kinds.add(i)
            if i.status == "serving":
                if not (i.lag == 0 and i.report == self._says(i) and i.forked == NEVER and (i.refreshed == 0)):
                    fresh = self._refreshed(s.k, i)
                    yield f"refresh {n}", self._with(s, n, fresh._replace(report=self._says(fresh))), budget
                    if b.lost_reports and i.lag != 0:
                        yield f"refresh {n}, report lost", self._with(s, n, fresh), budget
                if deaths:
                    left = (deaths - 1, emergencies, rotations)
                    yield f"kill {n}", self._with(s, n, self._stopped(i, "dead")), left
                    gone = self._stopped(i, "farewell")
                    gone = gone._replace(report=self._says(i)._replace(state="farewell"))
                    yield f"stop {n}", self._with(s, n, gone), left
                if b.forks and i.forked == NEVER and i.refreshed >= -b.refresh:
                    for m, spare in enumerate(s.instances):
                        if spare.status == "off":
                            child = i._replace(off=spare.off, last=(), since=spare.off, forked=0, report=(),
                                               snap=(), roster=False, word=NEVER)  # fmt: skip
                            yield f"fork {n} as {m}", self._with(s, m, child), budget
                            break
            elif i.status == "joining":
                fresh = self._refreshed(s.k, i)._replace(status="serving", since=i.off)
                if b.load_first:
                    fresh = i._replace(status="serving", since=i.off)
                    fresh = fresh._replace(report=self._says(fresh))
                yield f"load {n}", self._with(s, n, fresh), budget
                if deaths:
                    left = (deaths - 1, emergencies, rotations)
                    yield f"kill {n}", self._with(s, n, self._stopped(i, "dead")), left
            elif i.status == "off":
                report = Seen("joining", 0, -1, (), 0, (), 0)
                fresh = i._replace(status="joining", report=report)
                if b.load_first:
                    fresh = self._refreshed(s.k, i)._replace(status="joining")
                yield f"join {n}", self._with(s, n, fresh), budget
        yield from self._operators(s, budget)

    def _with(self, s: S, n: int, i: I) -> S:
        return s._replace(instances=(*s.instances[:n], i, *s.instances[n + 1 :]))

    def _refreshed(self, k: K, i: I) -> I:
        verifies = tuple(sorted((k.minter, *k.verifying)))
        last = dict(i.last)
        if i.status == "serving" and i.mints >= 0:
            last[i.mints] = i.off  # it minted until this moment
        since = i.since if i.mints == k.minter else i.off
        last = {kid: at for kid, at in last.items() if kid in verifies}
        return i._replace(lag=0, mints=k.minter, verifies=verifies, since=since, last=tuple(sorted(last.items())),
                          refreshed=0, forked=NEVER)  # fmt: skip

    def _says(self, i: I) -> Seen:
        last = dict(i.last)
        last[i.mints] = i.off
        return Seen("serving", i.lag, i.mints, i.verifies, i.since, tuple(sorted(last.items())), 0)

    def _stopped(self, i: I, status: str) -> I:
        return I(status, i.off, report=i.report, snap=i.snap, roster=i.roster, word=i.word)

    def _tick(self, s: S, budget):
        b = self.b
        if any(i.forked <= -b.refresh for i in s.instances if i.status == "serving"):
            return  # a forked child refreshes at once: within one interval
        if s.pending is not None and s.pending <= -1:
            s = s._replace(pending=None, instances=tuple(i._replace(snap=()) for i in s.instances))
        down = self._older
        k = s.k._replace(since=down(s.k.since), entered=down(s.k.entered))
        instances = tuple(map(self._aged_instance, s.instances))
        minted = tuple((kid, at - 1) for kid, at in s.minted)
        pending = None if s.pending is None else s.pending - 1
        yield "tick", S(k, instances, minted, s.burnt, s.fresh, pending), budget

    def _older(self, at: int) -> int:
        return max(at - 1, -self.cap)

    def _aged_instance(self, i: I) -> I:
        down = self._older
        return i._replace(
            since=down(i.since),
            last=tuple((kid, down(at)) for kid, at in i.last),
            refreshed=down(i.refreshed),
            forked=i.forked if i.forked == NEVER else i.forked - 1,
            report=self._aged(i.report),
            snap=self._aged(i.snap),
            word=i.word if i.word == NEVER else down(i.word),
        )

    def _aged(self, seen):
        if not seen:
            return seen
        down = self._older
        return seen._replace(since=down(seen.since), last=tuple((k, down(at)) for k, at in seen.last), at=down(seen.at))

    def _operators(self, s: S, budget):
        deaths, emergencies, rotations = budget
        if s.k.phase == 0 and not s.k.verifying:
            steps = (BEGIN,) if rotations else ()
        else:
            steps = {0: (RETIRE,), 1: (SECOND, BACK), 2: (RETIRE, BACK)}.get(s.k.phase, (BACK,))
            steps = steps if self.b.rollbacks else tuple(step for step in steps if step.to != "rollback")
        if emergencies:
            steps += tuple(Step("emergency", kid=kid(k), reason="r") for k in (s.k.minter, *s.k.verifying))
        dead = tuple(n for n, i in enumerate(s.instances) if i.status == "dead" and i.report and i.word == NEVER)
        views = [("", [(i.report, i.off, i.roster, i.word) for i in s.instances], 0)]
        if s.pending is not None:
            stale = [(i.snap, i.off, i.roster, i.word) for i in s.instances]
            views.append((" on a stale read", stale, 0))
            if s.pending != 0:
                views.append((" on a stale read and clock", stale, s.pending))
        for step in steps:
            for name, view, now in views:
                for missing in (False, True) if dead and step.to not in (1, "emergency") else (False,):
                    asked = step
                    if missing:
                        known = tuple(n for n in dead if view[n][0] or view[n][2])
                        asked = replace(step, allow_missing=tuple(ident(n) for n in known))
                    made = self.plan(s.k, tuple(view), asked, now)
                    if made is None:
                        continue
                    k, marks = made
                    yield (
                        f"{step.to}{'!' if missing else ''}{name}",
                        self._written(s, step, k, marks),
                        (
                            deaths,
                            emergencies - (step.to == "emergency"),
                            rotations - (step.to == 1),
                        ),
                    )
        if self.b.stale_reads and s.pending is None:
            yield (
                "gather",
                s._replace(pending=0, instances=tuple(i._replace(snap=i.report) for i in s.instances)),
                budget,
            )

    def _written(self, s: S, step: Step, k: K, marks) -> S:
        burnt, fresh, minted = set(s.burnt), dict(s.fresh), dict(s.minted)
        if step.to == "emergency":
            burnt.add(int(step.kid[1:]))
            minted.pop(int(step.kid[1:]), None)
            if k.minter != s.k.minter:
                fresh[k.minter] = -1
        deepest = 4

        def deeper(seen):
            return seen and seen._replace(lag=min(seen.lag + 1, deepest))

        instances = tuple(
            i._replace(
                lag=min(i.lag + 1, deepest), report=deeper(i.report), snap=deeper(i.snap), roster=mark[0], word=mark[1]
            )
            for i, mark in zip(s.instances, marks, strict=True)
        )
        fresh = {kid: min(lag + 1, deepest) for kid, lag in fresh.items()}
        k = k._replace(since_lag=min(k.since_lag, deepest))
        return S(k, instances, tuple(minted.items()), tuple(burnt), tuple(fresh.items()), s.pending)

    # --- what must hold --------------------------------------------------------------------------------------

    def _serves(self, i: I) -> bool:
        return i.status == "serving" and (self.b.max_stale is None or i.refreshed >= -self.b.max_stale)

    def settle(self, s: S) -> S:
        """Everyone mints; then the state in its canonical form."""
        minted = dict(s.minted)
        for i in s.instances:
            if self._serves(i) and i.mints not in s.burnt:
                minted[i.mints] = max(minted.get(i.mints, i.off), i.off)
        lowest = min(i.off for i in s.instances)
        minted = {kid: at for kid, at in minted.items() if at + self.b.ttl > lowest}
        s = s._replace(minted=tuple(minted.items()))
        self.check(s)
        return self.canonical(s)

    def check(self, s: S) -> None:
        live = {s.k.minter, *s.k.verifying}
        if s.k.minter in s.k.verifying or live & set(s.burnt):
            raise Violation(f"the keyset contradicts itself: {s.k}, burnt {s.burnt}")
        fresh = dict(s.fresh)
        for i in s.instances:
            if not self._serves(i):
                continue
            for kid_, base in s.minted:
                alive = base + self.b.ttl > i.off
                knows = kid_ not in fresh or i.lag <= fresh[kid_]
                if alive and knows and kid_ not in i.verifies:
                    raise Violation(f"a token of key {kid_} is alive and refused by {i}")
            if i.lag == 0 and not set(i.verifies) <= live:
                raise Violation(f"a retired key verifies: {i}")

    def canonical(self, s: S) -> S:
        """Equal states look equal: what no rule can tell apart is dropped, instances are sorted, kids renamed."""
        instances = [self._plain(i) for i in s.instances]
        instances.sort()
        k = s.k
        if k.phase == 0 and not k.verifying:
            k = k._replace(since=-self.cap, since_lag=4)
        order: dict[int, int] = {}
        for kid_ in (k.minter, *k.verifying, *(k.pair or ())):
            order.setdefault(kid_, len(order))
        for i in instances:
            for kid_ in i.verifies:
                order.setdefault(kid_, len(order))
            for seen in (i.report, i.snap):
                for kid_ in seen[3] if seen else ():
                    order.setdefault(kid_, len(order))
        for kid_, _ in s.minted:
            order.setdefault(kid_, len(order))
        minted = tuple(sorted((order[x], at) for x, at in s.minted))
        fresh = tuple(sorted((order[x], at) for x, at in s.fresh if x in order))
        burnt = tuple(sorted(order[x] for x in s.burnt if x in order))
        if any(x != n for x, n in order.items()):
            pair = None if k.pair is None else (order[k.pair[0]], order[k.pair[1]])
            k = k._replace(minter=order[k.minter], verifying=tuple(sorted(order[x] for x in k.verifying)), pair=pair)
            instances = [self._renamed(i, order) for i in instances]
            instances.sort()
        return S(k, tuple(instances), minted, burnt, fresh, s.pending)

    def _plain(self, i: I) -> I:
        b = self.b
        changes: dict = {}
        if i.refreshed and not b.forks and b.max_stale is None:
            changes["refreshed"] = 0
        if i.status in ("serving", "joining") and i.report and i.report.at and b.max_stale is None:
            # A living instance that reports in time is the more permissive case: silence only blocks.
            changes["report"] = i.report._replace(at=0)
        return i._replace(**changes) if changes else i

    def _renamed(self, i: I, order: dict[int, int]) -> I:
        def pairs(last):
            return tuple(sorted((order[x], at) for x, at in last if x in order))

        def seen_as(seen):
            if not seen:
                return seen
            mints = order[seen.mints] if seen.mints >= 0 else -1
            return seen._replace(
                mints=mints, verifies=tuple(sorted(order[x] for x in seen.verifies)), last=pairs(seen.last)
            )

        return i._replace(
            mints=order[i.mints] if i.mints >= 0 else -1,
            verifies=tuple(sorted(order[x] for x in i.verifies)),
            last=pairs(i.last),
            report=seen_as(i.report),
            snap=seen_as(i.snap),
        )


def search(bounds: Bounds) -> Result:
    """Visit every reachable state, breadth first. Raises `Violation` with the shortest way to a bad one."""
    model = Model(bounds)
    originals = preconditions.digest, transitions.digest
    collecting = gc.isenabled()
    gc.disable()  # no cycles here, and it would walk over all of the states again and again
    # Reports of the model carry no digest, so the documents' digests decide nothing.
    preconditions.digest = transitions.digest = lambda keyset: "sha256:0"
    try:
        return _search(model, bounds)
    finally:
        preconditions.digest, transitions.digest = originals
        if collecting:
            gc.enable()


def _search(model: Model, bounds: Bounds) -> Result:
    result = Result()
    start = (model.first(), (bounds.deaths, bounds.emergencies, bounds.rotations))
    came: dict = {start: None}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        result.states += 1
        result.reached.add((here[0].k.phase, len(here[0].k.verifying), here[1][1:]))
        if result.states >= bounds.max_states:
            result.exhausted = False
            break
        for what, after, budget in model.successors(*here):
            result.transitions += 1
            try:
                settled = model.settle(after)
            except Violation as exc:
                raise Violation(f"{exc}\n" + "\n".join([*_way(came, here), what])) from None
            there = (settled, budget)
            if there not in came:
                came[there] = (here, what)
                queue.append(there)
    return result


def _way(came: dict, here) -> list[str]:
    way = []
    while came[here] is not None:
        here, what = came[here]
        way.append(what)
    return way[::-1]
