"""Each instance before a gate, at the bound of each rule and one millisecond beyond."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rotation.fleets import REFRESH, SKEW, T0, TTL, Fleet, Instance, instance_id, kid, new_keyset

from mcpkeys.gates import assess, longest_ttl
from mcpkeys.keyset import PastTtl, Rotation, RotationStep, StepEvidence
from mcpkeys.reports import ReceivedReport, Report
from mcpkeys.rotation import gate_of
from mcpkeys.standing import NOBODY_RUNS, Gate, Standing, Words, clock_tolerance, held_max_stale, silent_after
from mcpkeys.steps import Blocking, Plan, Step, named, span

HALF = SKEW * 500
SILENT_MS = 3 * REFRESH * 1000
OLD, NEW = "OLDOLDOLDOLD", "NEWNEWNEWNEW"


def ms(seconds: float) -> int:
    return int(seconds * 1000)


class World:
    """One rotation in phase 1 or 2, one instance in its roster, and a gate; times in milliseconds from its entry."""

    def __init__(self, phase: int = 2, **fields) -> None:
        fleet = Fleet(1, **fields).to_phase(phase)
        self.keyset = fleet.keyset
        found = gate_of(self.keyset, phase + 1)
        assert found is not None
        self.gate = found
        (self.old,) = found.leaving or {self.keyset.running.from_kid}
        self.entered = found.entered
        self.instance = fleet.instances[0]
        self.pristine = self.instance.report
        self.id = self.instance.id
        self.others: list[ReceivedReport] = []

    def report(self, seen: int, **fields) -> None:
        """It refreshes at `seen`, with these fields of its report."""
        self.instance.report = self.pristine
        self.instance.load(self.keyset, T0)
        clock = self.entered + fields.pop("clock", seen)
        self.instance.report = replace(self.instance.report, **{"clock": clock, "minting_since": None, **fields})
        self.instance.modified_at = (self.entered + seen) / 1000

    def assess(self, now: int, **step):
        reports = [self.instance.received, *self.others]
        by_id = {entry.report.instance: entry for entry in reports}
        return assess(self.keyset, by_id, Step(3, **step), self.entered + now, self.gate)

    def stands(self, now: int, **step) -> Standing:
        return next(s for s in self.assess(now, **step).standings if s.instance == self.id)

    def state(self, now: int, **step) -> tuple[str, bool | None]:
        """Its state, and whether waiting does not help (None where nothing is in the way)."""
        found = self.stands(now, **step)
        return found.state, None if found.blocking is None else found.blocking.late

    def until(self, now: int, **step) -> int | None:
        found = self.stands(now, **step).mints_until
        return None if found is None else found - self.entered


# --- silence ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("resolution", "more"), [(0.0, 0), (1.0, 1000)])
def test_silence_begins_after_three_refreshes_and_the_clock_s_grain(resolution: float, more: int) -> None:
    world = World()
    world.report(1000)
    last = 1000 + SILENT_MS + more
    assert world.state(last, resolution=resolution) == ("confirmed", None)
    assert world.state(last + 1, resolution=resolution) == ("silent", True)
    assert silent_after(world.keyset) == SILENT_MS


def test_a_laggard_is_late_once_it_was_heard_three_refreshes_into_the_phase() -> None:
    for seen, late in ((SILENT_MS, False), (SILENT_MS + 1, True)):
        world = World()
        world.report(seen, mints=world.old)
        assert world.state(seen) == ("lagging", late)


def test_one_that_joins_is_late_once_it_is_silent() -> None:
    world = World()
    world.report(0, state="joining", verifies=(), mints=None)
    assert world.state(SILENT_MS) == ("joining", False)
    assert world.state(SILENT_MS + 1) == ("joining", True)
    assert "joining since 90 s" in world.stands(SILENT_MS).blocking.why


def test_who_said_farewell_is_not_asked_whatever_it_held() -> None:
    world = World()
    world.report(0, state="farewell", mints=world.old)
    assert world.state(10 * SILENT_MS) == ("farewell", None)
    assert world.assess(10 * SILENT_MS).roster == ()


# --- clocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("off", "expected"),
    [
        (HALF, None),
        (HALF + 1, True),
        (-HALF, None),
        (-HALF - 1, False),
        (-HALF - 2000, False),
        (-HALF - 2001, True),
    ],
)
def test_a_clock_may_be_off_by_half_of_skew(off: int, expected: bool | None) -> None:
    world = World()
    world.report(40_000, clock=40_000 + off)
    assert world.state(40_000) == ("confirmed" if expected is None else "clock", expected)


def test_a_store_s_grain_excuses_a_clock_ahead_and_none_behind() -> None:
    for off, state in ((HALF + 1000, "confirmed"), (HALF + 1001, "clock"), (-HALF - 1, "clock")):
        world = World()
        world.report(40_000, clock=40_000 + off)
        assert world.state(40_000, resolution=1.0)[0] == state


def test_a_keyset_without_skew_gets_a_second() -> None:
    assert clock_tolerance(new_keyset(skew_seconds=0)) == 1000
    assert clock_tolerance(new_keyset(skew_seconds=1)) == 500
    world = World(skew_seconds=0)
    for off, state in ((1000, "confirmed"), (1001, "clock"), (-1000, "confirmed"), (-1001, "clock")):
        world.report(40_000, clock=40_000 + off)
        assert world.state(40_000)[0] == state


@pytest.mark.parametrize(("resolution", "more"), [(0.0, 0), (1.0, 1000)])
def test_the_operator_s_clock_may_be_off_by_as_much(resolution: float, more: int) -> None:
    world = World()
    world.report(40_000)
    for off, way in ((HALF + more, ""), (HALF + more + 1, "ahead of"), (-HALF - more - 1, "behind")):
        clock = (world.entered + 40_000 + off) / 1000
        found = world.assess(40_000, operator_clock=clock, resolution=resolution).refusals
        words = [refusal.why for refusal in found if refusal.code == "gate-clock"]
        assert len(words) == bool(way)
        assert not way or f"30 s {way} the store's" in words[0] or f"31 s {way} the store's" in words[0]


# --- the last possible mint ------------------------------------------------------------------------------------------


def test_who_was_there_minted_old_until_it_changed_and_its_child_a_refresh_longer() -> None:
    world = World()
    world.report(50_000, minting_since=world.entered + 20_000)
    assert world.until(50_000) == 20_000 + REFRESH * 1000
    # Without a word since when, until it said that it mints the new one.
    world.report(50_000)
    assert world.until(50_000) == 50_000 + REFRESH * 1000
    # Its clock is behind: the same moment is later by the store's. One that is ahead wins nothing by it.
    world.report(50_000, clock=45_000, minting_since=world.entered + 20_000)
    assert world.until(50_000) == 25_000 + REFRESH * 1000
    assert world.until(50_000, resolution=1.0) == 26_000 + REFRESH * 1000
    world.report(50_000, clock=55_000, minting_since=world.entered + 20_000)
    assert world.until(50_000) == 20_000 + REFRESH * 1000


def test_its_own_word_on_old_mints_counts_where_it_is_later() -> None:
    world = World()
    world.report(50_000, minting_since=world.entered, last_mint={world.old: world.entered + 45_000, kid(): 2**50})
    assert world.until(50_000) == 45_000
    world.report(50_000, minting_since=world.entered, last_mint={world.old: world.entered + 10_000})
    assert world.until(50_000) == REFRESH * 1000
    world.report(50_000, clock=48_000, minting_since=world.entered, last_mint={world.old: world.entered + 45_000})
    assert world.until(50_000) == 47_000


def test_a_later_joiner_began_with_the_new_key() -> None:
    world = World()
    joiner = Instance("late")
    joiner.load(world.keyset, (world.entered + 50_000) / 1000)
    world.others = [joiner.received]
    world.report(50_000)
    found = {s.instance: s.mints_until for s in world.assess(50_000).standings}
    assert found[joiner.id] is None
    assert found[world.id] is not None


def test_a_farewell_that_held_old_may_have_minted_it_until_then() -> None:
    world = World()
    world.report(50_000, state="farewell", mints=world.old)
    assert world.until(60_000) == 50_000 + REFRESH * 1000
    assert world.until(60_000, resolution=1.0) == 51_000 + REFRESH * 1000
    world.report(50_000, state="farewell", minting_since=world.entered + 20_000)
    assert world.until(60_000) == 20_000 + REFRESH * 1000


def test_before_phase_2_nobody_has_minted_a_leaving_key() -> None:
    world = World(1)
    world.report(50_000)
    assert (world.state(50_000)[0], world.until(50_000)) == ("confirmed", None)


# --- named as stopped ------------------------------------------------------------------------------------------------


def named_at(world: World, moment: int) -> World:
    """The operator's word on it is on record since `moment`."""
    rotation = world.keyset.rotation
    step = RotationStep(2, world.entered + moment, StepEvidence("reports", missing=(world.id,)))
    world.keyset = replace(world.keyset, rotation=replace(rotation, steps=(*rotation.steps, step)))
    return world


def test_a_word_on_record_holds_until_a_later_report() -> None:
    world = named_at(World(), 50_000)
    world.report(50_000, mints=world.old)
    assert world.state(50_000) == ("named", None)
    assert world.until(50_000) == 50_000
    assert not world.stands(50_000).fresh
    world.report(50_001, mints=world.old)
    assert world.state(50_001) == ("lagging", False)


def test_one_without_any_report_is_named_from_the_word_on() -> None:
    world = World()
    gone, other = instance_id(), instance_id()
    rotation = world.keyset.rotation
    world.keyset = replace(world.keyset, rotation=replace(rotation, roster=(*rotation.roster, gone, other)))
    world.report(40_000)
    found = {s.instance: s for s in world.assess(50_000, allow_missing=(gone,)).standings}
    assert (found[gone].state, found[gone].mints_until, found[gone].fresh) == ("named", world.entered + 50_000, True)
    assert found[gone].blocking is None
    assert (found[other].state, found[other].blocking.code, found[other].blocking.late) == (
        "missing",
        "gate-report-missing",
        True,
    )
    assert world.assess(50_000, allow_missing=(gone,)).roster == (world.id,)


def test_a_new_word_counts_on_who_is_silent_and_is_recorded_where_it_minted_old() -> None:
    world = World()
    world.report(0, mints=world.old)
    assert world.state(SILENT_MS, allow_missing=(world.id,)) == ("contradicting", True)
    assert (
        "named as missing, but it reported 90 s ago" in world.stands(SILENT_MS, allow_missing=(world.id,)).blocking.why
    )
    found = world.stands(SILENT_MS + 1, allow_missing=(world.id,))
    assert (found.state, found.mints_until, found.fresh) == ("named", world.entered + SILENT_MS + 1, True)
    assert world.assess(SILENT_MS + 1, allow_missing=(world.id,)).to_record
    # One that confirmed before it fell silent: its own word on its last mint is enough.
    world.report(0, minting_since=world.entered)
    found = world.stands(SILENT_MS + 1, allow_missing=(world.id,))
    assert (found.state, found.mints_until, found.fresh) == ("named", world.entered + REFRESH * 1000, False)
    assert not world.assess(SILENT_MS + 1, allow_missing=(world.id,)).to_record
    # One that is there and confirms is simply there.
    world.report(0)
    assert world.state(1, allow_missing=(world.id,)) == ("confirmed", None)


def test_of_a_word_and_a_later_mint_the_later_counts() -> None:
    world = named_at(World(), 50_000)
    world.report(40_000, mints=world.old, last_mint={world.old: world.entered + 70_000})
    assert world.until(80_000) == 70_000
    world.report(40_000, mints=world.old, last_mint={world.old: world.entered + 20_000})
    assert world.until(80_000) == 50_000


def test_before_phase_2_a_word_is_not_recorded_first() -> None:
    world = World(1)
    world.report(-1, verifies=())
    found = world.assess(SILENT_MS, allow_missing=(world.id,))
    assert [s.state for s in found.standings] == ["named"]
    assert not found.to_record


def test_one_that_joins_cannot_be_named_away_and_is_called_joining() -> None:
    world = World()
    world.report(0, state="joining", verifies=(), mints=None, generation=0)
    found = world.stands(2000, allow_missing=(world.id,))
    assert (found.state, found.blocking.late) == ("contradicting", True)
    assert found.blocking.why == "named as missing, but it reported 2 s ago joining"


# --- max_stale -------------------------------------------------------------------------------------------------------


def test_max_stale_proves_it_stopped_after_skew_too() -> None:
    world = World(max_stale_seconds=300)
    world.report(0, mints=world.old)
    proven = 300_000 + SKEW * 1000
    assert world.state(proven - 1) == ("silent", False)
    assert "max_stale proves it stopped in 60 s" in world.stands(300_000).blocking.why
    assert world.state(proven) == ("gone", None)
    assert world.until(proven) == 300_000
    world.report(0, mints=world.old, last_mint={world.old: world.entered + 310_000})
    assert world.until(proven) == 310_000
    # One that changed before it fell silent.
    world.report(0, minting_since=world.entered)
    assert world.until(proven) == REFRESH * 1000


@pytest.mark.parametrize(
    ("own", "its", "other", "stops"),
    [
        (300, 300, 300, 300),
        (301, 300, 300, 301),
        (300, 301, 300, 301),
        (300, 300, 301, 301),
        (None, 300, 300, None),
        (300, None, 300, None),
        (300, 300, None, None),
    ],
)
def test_the_largest_max_stale_that_its_ring_may_obey_counts(
    own: int | None, its: int | None, other: int | None, stops: int | None
) -> None:
    world = World(max_stale_seconds=300)
    world.keyset = replace(world.keyset, max_stale_seconds=own)
    world.report(0, max_stale=None if its is None else its * 1000)
    second = Instance("other")
    second.load(world.keyset, (world.entered + 400_000) / 1000)
    second.report = replace(second.report, max_stale=None if other is None else other * 1000)
    world.others = [second.received]
    if stops is None:
        assert world.state(10_000_000) == ("silent", True)
        return
    assert world.state((stops + SKEW) * 1000 - 1)[0] == "silent"
    assert world.state((stops + SKEW) * 1000)[0] == "gone"


def test_one_that_still_joins_is_never_proven_to_have_stopped() -> None:
    world = World(max_stale_seconds=300)
    world.report(0, state="joining", mints=None, verifies=())
    assert world.state(10_000_000) == ("joining", True)


def received(generation: int, max_stale: int | None, state: str = "serving") -> ReceivedReport:
    report = Report("fleet", instance_id(), "", 1, state, 1, generation, "")
    return ReceivedReport(replace(report, max_stale=max_stale), T0)


def test_max_stale_by_generation_is_the_largest_of_that_and_every_later_one() -> None:
    assert held_max_stale([received(3, 10), received(1, 20), received(2, 30)]) == {3: 10, 2: 30, 1: 30}
    assert held_max_stale([received(3, 10), received(1, 5), received(2, None)]) == {3: 10, 2: None, 1: None}
    assert held_max_stale([received(3, 10), received(2, None, "joining"), received(2, 99, "farewell")]) == {
        3: 10,
        2: 10,
    }
    assert held_max_stale([received(2, 10), received(2, 30)]) == {2: 30}
    assert held_max_stale([]) == {}


# --- words -----------------------------------------------------------------------------------------------------------


def spoken(*steps: RotationStep, expect: int | None = None) -> Rotation:
    return Rotation(kid(), 2, None, OLD, NEW, (), expect, steps)


def test_words_in_the_document() -> None:
    none = StepEvidence()
    assert Words.of(new_keyset(), 0) == Words({}, None, None)
    keyset = new_keyset(
        rotation=spoken(
            RotationStep(1, 10, StepEvidence("attest", word="deploy 1")),
            RotationStep(1, 20, StepEvidence("reports", missing=("a", "b"), word=NOBODY_RUNS)),
            RotationStep(2, 30, StepEvidence("reports", missing=("b",), word=NOBODY_RUNS)),
            RotationStep(2, 40, none),
        )
    )
    # The last word on an instance, the first that nobody runs, an attestation only of this phase.
    assert Words.of(keyset, 9) == Words({"a": 20, "b": 30}, (10, "deploy 1"), 20)
    assert Words.of(keyset, 10) == Words({"a": 20, "b": 30}, None, 20)


def moment_of(keyset, now: int, *, asks: str = "mints", entered: int = 0, **step):
    gate = Gate(asks, NEW, frozenset({OLD}), entered)
    return assess(keyset, {}, Step(3, **step), now, gate)


def test_that_nobody_runs_counts_from_the_first_moment_it_was_said() -> None:
    first = RotationStep(1, 100_000, StepEvidence())
    later = RotationStep(2, 200_000, StepEvidence("reports", word=NOBODY_RUNS))
    for rotation, expect, moment, to_record in (
        (spoken(first, later), None, 200_000, False),
        (spoken(first, later, expect=0), None, 200_000, False),
        (spoken(first, later), 0, 200_000, False),
        (spoken(first, expect=0), None, 100_000, False),
        (spoken(first), 0, 500_000, True),
    ):
        found = moment_of(new_keyset(rotation=rotation), 500_000, expect=expect)
        assert (found.nobody, found.mints_until, found.to_record) == (True, moment, to_record)
        assert "gate-empty" not in [refusal.code for refusal in found.refusals]
        # Before phase 2 nothing has to be waited for.
        found = moment_of(new_keyset(rotation=rotation), 500_000, asks="verifies", expect=expect)
        assert (found.nobody, found.mints_until, found.to_record) == (True, REFRESH * 1000, False)
    for rotation in (None, spoken(first), spoken(first, expect=3)):
        found = moment_of(new_keyset(rotation=rotation), 500_000)
        assert not found.nobody
        assert "gate-empty" in [refusal.code for refusal in found.refusals]
        assert found.mints_until == REFRESH * 1000


def test_an_attestation_counts_from_when_it_was_recorded_and_another_one_from_now() -> None:
    steps = (RotationStep(2, 100_000, StepEvidence()), RotationStep(2, 200_000, StepEvidence("attest", word="d1")))
    keyset = new_keyset(rotation=spoken(*steps), evidence="attest")
    for given, entered, moment, word, to_record in (
        (None, 100_000, 200_000, "d1", False),
        ("d1", 100_000, 200_000, "d1", False),
        ("d2", 100_000, 500_000, "d2", True),
        ("d1", 200_000, 500_000, "d1", True),
        (None, 200_000, 200_000 + REFRESH * 1000, "", False),
    ):
        found = moment_of(keyset, 500_000, entered=entered, attest=given)
        assert (found.mints_until, found.attest, found.to_record) == (moment, word, to_record)
        assert ("gate-attest" in [refusal.code for refusal in found.refusals]) is not bool(word)
        found = moment_of(keyset, 500_000, asks="verifies", entered=entered, attest=given)
        assert (found.attest, found.to_record, found.nobody) == (word, False, False)


# --- the fleet as a whole --------------------------------------------------------------------------------------------


def refusals(found) -> dict[str, bool]:
    return {refusal.code: refusal.late for refusal in found.refusals}


def test_a_phase_and_a_token_s_life_are_waited_for_to_the_millisecond() -> None:
    world = World()
    world.report(0, minting_since=world.entered)
    ripe = (REFRESH + TTL + SKEW) * 1000
    assert world.assess(0).safe_at == world.entered + ripe
    assert refusals(world.assess(SILENT_MS - 1)) == {"gate-young": False, "gate-ttl": False}
    assert refusals(world.assess(SILENT_MS)) == {"gate-ttl": False}
    assert refusals(world.assess(ripe - 1)) == {"gate-ttl": False}
    assert refusals(world.assess(ripe)) == {}
    first = World(1)
    first.report(0)
    assert first.assess(0).safe_at == first.entered + SILENT_MS
    assert refusals(first.assess(SILENT_MS - 1)) == {"gate-young": False}
    assert refusals(first.assess(SILENT_MS)) == {}


def test_the_sentence_about_a_token_s_life() -> None:
    world = World()
    world.report(0, minting_since=world.entered)
    (why,) = [refusal.why for refusal in world.assess(130_000).refusals]
    assert why == (
        f"a token minted under {world.old} may live for another 9 min: last possible mint 100 s ago, longest ttl "
        f"10 min, skew {SKEW} s"
    )
    young = [refusal.why for refusal in world.assess(30_000).refusals if refusal.code == "gate-young"]
    assert young == ["a phase lasts at least 3 refresh intervals; this one began 30 s ago"]


def test_the_longest_life_is_the_keyset_s_a_past_or_an_observed_one() -> None:
    keyset = new_keyset(ttl_seconds=5, past_ttls=(PastTtl(7, 0), PastTtl(6, 0)))
    assert longest_ttl(keyset, {}) == 7000
    assert longest_ttl(replace(keyset, ttl_seconds=8), {}) == 8000
    assert longest_ttl(replace(keyset, past_ttls=()), {}) == 5000
    one = received(1, None)
    for observed, longest in ((None, 7000), (6999, 7000), (7001, 7001)):
        entry = ReceivedReport(replace(one.report, ttl_observed=observed), T0)
        assert longest_ttl(keyset, {"a": entry}) == longest


def test_how_many_are_expected() -> None:
    world = World()
    world.report(SILENT_MS)
    for expect, code in ((0, "gate-contradiction"), (1, ""), (2, "gate-shrunken")):
        found = refusals(world.assess(SILENT_MS, expect=expect))
        assert {code: True}.items() <= found.items() if code else "gate-ttl" in found
        assert len(found) == 1 + bool(code)
    began = World()
    began.report(0, mints=began.old)
    # Said when the rotation began: whoever was named or proven gone since counts, who has left does not.
    for expect, code in ((None, False), (0, False), (1, False), (2, True)):
        began.keyset = replace(began.keyset, rotation=replace(began.keyset.rotation, expect=expect))
        found = refusals(began.assess(SILENT_MS + 1, allow_missing=(began.id,)))
        assert ("gate-shrunken" in found) is code
    began.report(0, state="farewell")
    began.keyset = replace(began.keyset, rotation=replace(began.keyset.rotation, expect=1))
    assert "gate-shrunken" in refusals(began.assess(SILENT_MS))
    assert "gate-shrunken" not in refusals(replaced(began, evidence="attest").assess(SILENT_MS))


def replaced(world: World, **fields) -> World:
    world.keyset = replace(world.keyset, **fields)
    return world


def test_under_attestation_only_a_report_that_contradicts_is_in_the_way() -> None:
    world = replaced(World(), evidence="attest")
    world.report(0)
    assert world.state(10 * SILENT_MS) == ("confirmed", None)
    world.report(0, mints=world.old)
    for now in (1, 10 * SILENT_MS):
        assert world.state(now) == ("contradicting", True)
    # Nobody is missed: a roster says nothing where instances do not report.
    rotation = world.keyset.rotation
    replaced(world, rotation=replace(rotation, roster=(*rotation.roster, instance_id())))
    assert [s.instance for s in world.assess(1).standings] == [world.id]


def test_the_roster_is_not_missed_where_nobody_is_said_to_run() -> None:
    world = World()
    world.report(0, state="farewell")
    rotation = world.keyset.rotation
    lost = instance_id()
    replaced(world, rotation=replace(rotation, roster=(world.id, lost)))
    assert world.assess(1).ids("missing") == (lost,)
    assert world.assess(1, expect=0).ids("missing") == ()
    replaced(world, rotation=replace(world.keyset.rotation, expect=0))
    assert world.assess(1).ids("missing") == ()
    # But where one reports the word is void.
    world.report(0)
    assert world.assess(1).ids("missing") == (lost,)


def test_whom_waiting_does_not_help_come_first() -> None:
    world = World()
    world.report(0, mints=world.old)
    lost = instance_id()
    replaced(world, rotation=replace(world.keyset.rotation, roster=(world.id, lost)))
    assert [entry.late for entry in world.assess(1).blocking] == [True, False]


@pytest.mark.parametrize("asks", ["verifies", "mints"])
def test_what_an_instance_holds_is_told(asks: str) -> None:
    world = World(1 if asks == "verifies" else 2)
    held = world.keyset.generation - 1
    world.report(0, mints=None, verifies=(), generation=held)
    why = world.stands(0).blocking.why
    wanted = f"does not verify {world.gate.kid}" if asks == "verifies" else f"mints nothing, not {world.gate.kid}"
    assert why == f"holds generation {held} of {held + 1}, {wanted}"


def test_a_report_from_before_the_gate_s_generation_does_not_confirm() -> None:
    report = replace(received(5, None).report, verifies=(NEW,), mints=NEW)
    for generation, confirms in ((5, True), (6, False)):
        assert Gate("mints", NEW, frozenset(), 0, generation).confirmed_by(report) is confirms
        assert Gate("verifies", NEW, frozenset(), 0, generation).confirmed_by(report) is confirms
    assert not Gate("mints", OLD, frozenset(), 0).confirmed_by(report)
    assert not Gate("verifies", OLD, frozenset(), 0).confirmed_by(report)
    assert not Gate("verifies", NEW, frozenset(), 0).confirmed_by(replace(report, state="joining"))


# --- the words of a step ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s"),
        (0, "0 s"),
        (0.6, "1 s"),
        (119, "119 s"),
        (120, "2 min"),
        (179, "2 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (172_799, "47 h"),
        (172_800, "2 d"),
        (10 * 86_400, "10 d"),
    ],
)
def test_a_span_is_told_in_a_unit_of_which_there_are_two(seconds: float, text: str) -> None:
    assert span(seconds * 1000) == text


def test_a_long_list_of_names_is_cut_with_its_number() -> None:
    assert named([]) == ""
    assert named("abcde") == "a, b, c, d, e"
    assert named("abcdef") == "a, b, c, d, e and 1 more"
    assert named(iter("abc"), most=1) == "a and 2 more"


def test_a_plan_s_exit_code() -> None:
    for verdict, completes, code in (
        ("do", True, 0),
        ("done", True, 0),
        ("do", False, 6),
        ("unsafe", True, 5),
        ("not_yet", True, 6),
    ):
        assert Plan(verdict, "", (), None, "", None, completes=completes).exit_code == code


def test_a_plan_without_a_document_or_a_rotation_needs_nothing_drawn() -> None:
    for document in (None, new_keyset()):
        found = Plan("do", "", (), None, "", document)
        assert (found.needs_key, found.needs_report_key, found.needs_rotation_id) == (False, False, False)
    begun = Fleet().plan(1)
    assert (begun.needs_key, begun.needs_report_key, begun.needs_rotation_id) == (True, False, True)
    assert not Fleet().plan(1, rotation=kid()).needs_rotation_id


def test_the_first_blocking_ones_are_those_that_are_late() -> None:
    standings = [Standing(str(n), "", "lagging", None, Blocking(str(n), "", "", "", n % 2 == 0)) for n in range(6)]
    found = replace(moment_of(new_keyset(), 0), standings=tuple(standings))
    assert [entry.instance for entry in found.blocking] == list("024135")
