"""What each step writes, says and records, in full; and which step is due."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rotation.fleets import REFRESH, SKEW, T0, TTL, Fleet, fresh_key, kid, new_keyset

from mcpkeys.keyset import HistoryEntry, PastTtl, RotationStep, StepEvidence, check
from mcpkeys.rotation import due, gate_of
from mcpkeys.standing import NOBODY_RUNS, Gate
from mcpkeys.steps import NEW_KID, ROTATION_ID

LONG = TTL + SKEW + 2 * REFRESH


def ms(seconds: float) -> int:
    return int(seconds * 1000)


def states(keyset) -> dict[str, str]:
    return {key.kid: key.state for key in keyset.keys}


def ready(phase: int, size: int = 2, **fields) -> Fleet:
    fleet = Fleet(size, **fields).to_phase(phase)
    fleet.wait(1)
    fleet.wait(3 * REFRESH if phase == 1 else LONG)
    return fleet


def ids_of(fleet: Fleet) -> tuple[str, ...]:
    return tuple(sorted(instance.id for instance in fleet.instances))


def old_and_new(fleet: Fleet) -> tuple[str, str]:
    return fleet.keyset.running.from_kid, fleet.keyset.running.to_kid


def last(answer) -> tuple:
    """(phase, evidence) of the newest step, and the newest entry of history."""
    step = answer.document.rotation.steps[-1]
    return step.phase, step.evidence, answer.document.history[-1]


def test_phase_1() -> None:
    fleet = Fleet(2)
    old = fleet.keyset.minting.kid
    fleet.wait(7)
    answer = fleet.plan(1, expect=2, who="ops", reason="monthly")
    ids = ids_of(fleet)
    assert (answer.verdict, answer.to, answer.next) == ("do", 1, "mcpkeys rotate --phase 2")
    assert answer.why == f"every instance learns to verify a new key; {old} goes on minting; 2 instances"
    assert (answer.completes, answer.earliest, answer.rotation) == (True, None, ROTATION_ID)
    assert states(answer.document) == {old: "minting", NEW_KID: "verifying"}
    rotation = answer.document.rotation
    assert (rotation.phase, rotation.ended, rotation.roster, rotation.expect) == (1, None, ids, 2)
    phase, evidence, entry = last(answer)
    assert (phase, evidence) == (1, StepEvidence("none"))
    assert entry == HistoryEntry(
        ms(fleet.now), "ops", f"phase 1 of rotation {ROTATION_ID}: {NEW_KID} is to follow {old}", 8, "monthly"
    )


@pytest.mark.parametrize(("size", "said"), [(0, True), (1, False)])
def test_that_nobody_runs_is_recorded_at_phase_1_unless_a_report_says_otherwise(size: int, said: bool) -> None:
    answer = Fleet(size).plan(1, expect=0)
    assert answer.document.history[-1].overrides == ((NOBODY_RUNS,) if said else ())
    assert answer.document.rotation.expect == (0 if said else None)
    assert ("--expect 0 is void, since a report is live" in answer.why) is not said
    assert "; 1 instance;" in answer.why if size else answer.why.endswith("; 0 instances")
    assert "void" not in Fleet(size).plan(1, expect=1).why


def test_a_word_that_still_holds_leaves_an_instance_out_of_the_next_rotation() -> None:
    fleet = Fleet(3)
    dead, back, _ = fleet.instances
    rotation = Fleet(0).plan(1).document.rotation
    for moment, stopped in ((ms(T0), {dead.id, back.id}), (ms(T0) - 1, set())):
        step = RotationStep(1, moment, StepEvidence("reports", missing=(dead.id, back.id, "long gone")))
        ended = replace(rotation, id=kid(), ended="rolled_back", steps=(step,))
        fleet.keyset = replace(fleet.keyset, rotation=ended)
        fleet.refresh()
        answer = fleet.plan(1)
        assert set(answer.document.rotation.roster) == {instance.id for instance in fleet.instances} - stopped
        assert answer.document.rotation.steps[0].evidence == StepEvidence("none", missing=tuple(sorted(stopped)))


def test_phase_2() -> None:
    fleet = ready(1)
    old, new = old_and_new(fleet)
    ids = ids_of(fleet)
    answer = fleet.plan(2)
    assert (answer.verdict, answer.to, answer.next) == ("do", 2, "mcpkeys rotate --phase 3")
    assert answer.why == f"{new} mints from now on, {old} keeps verifying; 2 instances confirmed"
    assert states(answer.document) == {old: "verifying", new: "minting"}
    assert answer.document.minting.state_since == ms(fleet.now)
    phase, evidence, entry = last(answer)
    assert (phase, evidence) == (2, StepEvidence("reports", ids))
    assert entry.what == f"phase 2 of rotation {answer.rotation}: {new} mints"
    assert (answer.document.rotation.ended, answer.document.rotation.roster) == (None, ids)
    assert fleet.keyset.rotation.steps == answer.document.rotation.steps[:-1]


def test_phase_3() -> None:
    fleet = ready(2)
    old, new = old_and_new(fleet)
    ids = ids_of(fleet)
    answer = fleet.plan(3)
    assert (answer.verdict, answer.to, answer.next) == ("do", 3, "mcpkeys status")
    assert answer.why == f"no token minted under {old} can be alive; 2 instances confirmed"
    assert states(answer.document) == {old: "retired", new: "minting"}
    phase, evidence, entry = last(answer)
    assert (phase, evidence) == (3, StepEvidence("reports", ids))
    assert entry.what == f"rotation {answer.rotation} is done: {old} retired"
    rotation = answer.document.rotation
    assert (rotation.phase, rotation.ended, rotation.roster) == (3, "done", ids)


def test_a_word_alone_is_recorded_and_leaves_everything_else() -> None:
    fleet = ready(2)
    before, dead = fleet.keyset, fleet.instances[0]
    dead.again(fleet.now - LONG, mints=before.running.from_kid)
    answer = fleet.plan(3, allow_missing=(dead.id,))
    assert (answer.verdict, answer.completes, answer.code, answer.to) == ("do", False, "gate-ttl", 3)
    assert answer.next == "mcpkeys rotate --phase 3"
    assert answer.earliest == fleet.now + TTL + SKEW
    assert answer.why.startswith("your word is recorded and the wait starts now")
    assert states(answer.document) == states(before)
    assert answer.document.minting.state_since == before.minting.state_since
    rotation = answer.document.rotation
    assert (rotation.phase, rotation.ended, rotation.roster) == (2, None, before.rotation.roster)
    phase, evidence, entry = last(answer)
    assert (phase, evidence.missing) == (2, (dead.id,))
    assert entry.what == f"the operator's word on rotation {rotation.id}; the wait starts here"
    assert entry.overrides == (f"--allow-missing {dead.id}",)
    # Not where something has to be done first.
    fleet.instances[1].again(fleet.now, mints=before.running.from_kid)
    assert fleet.plan(3, allow_missing=(dead.id,)).document is None


def test_rolling_back_from_phase_1() -> None:
    fleet = Fleet(2).to_phase(1)
    old, new = old_and_new(fleet)
    answer = fleet.plan("rollback")
    assert (answer.verdict, answer.to, answer.next) == ("do", "rollback", "mcpkeys status")
    assert answer.why == f"{new} is dropped, nobody minted it; {old} goes on as before"
    assert states(answer.document) == {old: "minting", new: "retired"}
    phase, evidence, entry = last(answer)
    assert (phase, evidence) == (1, StepEvidence("none"))
    assert entry.what == (
        f"rotation {answer.rotation} is rolled back from phase 1: {new}, which nobody minted, is retired"
    )
    rotation = answer.document.rotation
    assert (rotation.phase, rotation.ended, rotation.roster) == (1, "rolled_back", fleet.keyset.rotation.roster)


def test_rolling_back_from_phase_2_and_its_end() -> None:
    fleet = Fleet(2).to_phase(2)
    fleet.wait(5)
    old, new = old_and_new(fleet)
    fleet.keyset = replace(fleet.keyset, rotation=replace(fleet.keyset.rotation, roster=("gone",)))
    fleet.refresh()
    ids = tuple(sorted(["gone", *(instance.id for instance in fleet.instances)]))
    answer = fleet.plan("rollback")
    assert (answer.verdict, answer.to, answer.next) == ("do", "rollback", "mcpkeys rotate --rollback")
    assert answer.why.startswith(f"{old} mints again, which every instance verifies; {new} keeps verifying")
    assert states(answer.document) == {old: "minting", new: "verifying"}
    phase, evidence, entry = last(answer)
    assert (phase, evidence) == ("rolling_back", StepEvidence("none"))
    assert entry.what == f"rotation {answer.rotation} is being rolled back: {old} mints again"
    rotation = answer.document.rotation
    assert (rotation.phase, rotation.ended, rotation.roster) == ("rolling_back", None, ids)

    fleet = Fleet(2).to_phase(2)
    fleet.wait(5)
    fleet.take("rollback")
    fleet.wait(1)
    fleet.wait(LONG)
    new = fleet.keyset.running.to_kid
    answer = fleet.plan("rollback")
    assert (answer.verdict, answer.to, answer.next) == ("do", "rollback", "mcpkeys status")
    assert answer.document.key(new).state == "retired"
    assert last(answer)[2].what == f"rotation {answer.rotation} is rolled back: {new} retired"
    rotation = answer.document.rotation
    assert (rotation.phase, rotation.ended) == ("rolling_back", "rolled_back")


def survivor() -> Fleet:
    """A key that outlived an emergency, whose wait is over."""
    fleet = Fleet(2).to_phase(2)
    fleet.wait(5)
    fleet.take("emergency", kid=fleet.keyset.running.to_kid, reason="leaked")
    fleet.wait(1)
    fleet.wait(LONG)
    return fleet


def test_phase_3_after_an_emergency() -> None:
    fleet = survivor()
    left = fleet.keyset.rotation.from_kid
    answer = fleet.plan(3)
    assert (answer.verdict, answer.to, answer.next) == ("do", 3, "mcpkeys status")
    assert answer.document.key(left).state == "retired"
    phase, _, entry = last(answer)
    assert phase == 3
    assert entry.what == f"phase 3 after rotation {answer.rotation} ended early: {left} retired"
    rotation = answer.document.rotation
    assert (rotation.phase, rotation.ended) == (2, "emergency")


def test_which_step_is_due_and_what_its_gate_asks() -> None:
    assert due(Fleet().keyset) is None
    assert due(Fleet().to_phase(3).keyset) is None
    for phase, to, asks in ((1, 2, "verifies"), (2, 3, "mints")):
        keyset = Fleet().to_phase(phase).keyset
        running = keyset.running
        assert due(keyset) == to
        leaving = frozenset() if phase == 1 else frozenset({running.from_kid})
        assert gate_of(keyset, to) == Gate(asks, running.to_kid, leaving, running.steps[-1].entered_at)
        assert [gate_of(keyset, other) for other in (1, 5 - to, "rollback", "auto")] == [None] * 4
    fleet = Fleet().to_phase(2)
    fleet.wait(5)
    new = fleet.keyset.running.to_kid
    fleet.take("rollback")
    keyset = fleet.keyset
    assert due(keyset) == "rollback"
    gate = Gate("mints", keyset.minting.kid, frozenset({new}), keyset.minting.state_since, keyset.generation)
    assert gate_of(keyset, "rollback") == gate
    assert [gate_of(keyset, other) for other in (1, 2, 3)] == [None] * 3
    # The generation counts in which the key began to mint, also after later writes; the newest if that is forgotten.
    later = replace(keyset, generation=keyset.generation + 3)
    assert gate_of(later, "rollback").generation == keyset.generation
    assert gate_of(replace(later, history=()), "rollback").generation == later.generation
    left = survivor().keyset
    assert due(left) == 3
    assert gate_of(left, 3) == Gate(
        "mints", left.minting.kid, frozenset({left.rotation.from_kid}), left.minting.state_since
    )
    assert gate_of(left, 2) is gate_of(left, "rollback") is None


def test_a_step_s_waiting_counts_from_the_last_entry_into_the_first_phase() -> None:
    fleet = Fleet().to_phase(1)
    rotation = fleet.keyset.rotation
    again = RotationStep(1, rotation.steps[0].entered_at + 50, StepEvidence())
    keyset = replace(fleet.keyset, rotation=replace(rotation, steps=(*rotation.steps, again)))
    assert gate_of(keyset, 2).entered == again.entered_at


def test_auto_begins_at_the_age_that_is_given_and_not_a_millisecond_earlier() -> None:
    fleet = Fleet()
    born = fleet.keyset.minting.created_at
    fleet.now = born / 1000 + 1000
    fleet.refresh()
    assert fleet.plan("auto", max_age=1000).to == 1
    answer = fleet.plan("auto", max_age=1000.001)
    assert (answer.verdict, answer.to, answer.document) == ("done", "auto", None)
    assert answer.earliest == born / 1000 + 1000.001
    kid_ = fleet.keyset.minting.kid
    assert answer.why == f"nothing is due: {kid_} is 16 min old, the next rotation begins when it is 16 min old"
    answer = fleet.plan("auto")
    assert (answer.verdict, answer.earliest, answer.next) == ("done", None, "mcpkeys status")
    assert answer.why == f"nothing is due: {kid_} is 16 min old"


def test_what_is_done_already_and_what_is_out_of_order_is_told() -> None:
    fleet = Fleet(2)
    assert fleet.plan("rollback").code == fleet.plan(2).code == fleet.plan(3).code == "gate-order"
    assert fleet.plan(2).next == fleet.plan(3).next == "mcpkeys rotate --phase 1"
    assert fleet.plan("rollback").next == "mcpkeys status"
    name = kid()
    fleet.take(1, rotation=name)
    answer = fleet.plan(1)
    assert (answer.verdict, answer.next, answer.rotation) == ("done", "mcpkeys rotate --phase 2", name)
    assert answer.why.startswith(f"rotation {name} is in phase 1 already (someone at ")
    assert (fleet.plan(3).code, fleet.plan(3).next) == ("gate-order", "mcpkeys rotate --phase 2")
    fleet.wait(3 * REFRESH + 1)
    fleet.take(2)
    answer = fleet.plan(2)
    assert (answer.verdict, answer.next, answer.rotation) == ("done", "mcpkeys rotate --phase 3", name)
    assert answer.why.startswith(f"rotation {name} is in phase 2 already (someone at ")
    answer = fleet.plan(1)
    assert (answer.code, answer.next, answer.rotation) == ("gate-order", "mcpkeys rotate --phase 3", name)
    assert answer.why == f"rotation {name} is in phase 2; --phase 1 is not the step that follows"
    fleet.wait(1)
    fleet.wait(LONG)
    fleet.take(3)
    answer = fleet.plan(3)
    assert (answer.verdict, answer.next, answer.rotation) == ("done", "mcpkeys status", name)
    assert answer.why == f"rotation {name} is over and no key is left to retire"
    answer = fleet.plan(1, rotation=name)
    assert (answer.verdict, answer.why) == ("done", f"rotation {name} has been through phase 1 and has ended")
    assert fleet.plan("rollback").why == "no rotation is running; --rollback is not the step that follows"
    assert fleet.plan(2).code == "gate-order"


def test_a_rotation_that_was_rolled_back_has_no_third_phase() -> None:
    fleet = Fleet().to_phase(1)
    name = fleet.keyset.rotation.id
    fleet.take("rollback")
    answer = fleet.plan("rollback")
    assert (answer.verdict, answer.why, answer.rotation) == ("done", f"rotation {name} is rolled back", name)
    assert fleet.plan(3).code == "gate-order"


def test_an_emergency_without_any_rotation_leaves_none() -> None:
    fleet = Fleet()
    answer = fleet.plan("emergency", kid=fleet.keyset.minting.kid, reason="leaked")
    assert answer.document.rotation is None
    # A key that only verifies, with no rotation that tells of it, is retired by no step but waits for an emergency.
    extra = fresh_key(T0, "verifying")
    keyset = new_keyset(keys=(fresh_key(), extra), past_ttls=(PastTtl(5, 0),))
    check(keyset)
    assert due(keyset) == 3


def test_an_emergency_does_without_the_word_of_those_that_are_named() -> None:
    fleet = Fleet(2)
    liar = fleet.instances[0]
    liar.again(fleet.now, generation=99)
    burnt = fleet.keyset.minting.kid
    answer = fleet.plan("emergency", kid=burnt, reason="leaked")
    assert (answer.code, answer.verdict) == ("gate-restored", "unsafe")
    assert f"--allow-missing={liar.id}" in answer.next
    assert fleet.plan("emergency", kid=burnt, reason="leaked", allow_missing=(liar.id,)).verdict == "do"
    other = fleet.plan("emergency", kid=burnt, reason="leaked", allow_missing=(fleet.instances[1].id,))
    assert other.code == "gate-restored"
    # Any other step believes it.
    answer = fleet.plan(1, allow_missing=(liar.id,))
    assert (answer.code, answer.next) == ("gate-restored", "mcpkeys restore FILE")
