"""What status shows: each instance's state, what the next step waits for, and the exact next command."""

from __future__ import annotations

import pytest
from rotation.fleets import REFRESH, SKEW, TTL, Fleet, Instance, instance_id, write

from mcpkeys.fleet import FleetView, describe


def view(fleet: Fleet, **fields) -> FleetView:
    return describe(fleet.keyset, fleet.reports, fleet.now, **fields)


def shown(fleet: Fleet, instance: Instance, **fields):
    return next(entry for entry in view(fleet, **fields).instances if entry.id == instance.id)


def test_a_steady_fleet():
    fleet = Fleet()
    seen = view(fleet)
    assert (seen.phase, seen.ended, seen.rotation, seen.waiting_for) == (0, None, None, ())
    assert [entry.state for entry in seen.instances] == ["serving"] * 3
    assert seen.next == "mcpkeys rotate --phase 1"
    assert seen.behind == ()


def test_each_phase_names_its_next_command():
    fleet = Fleet().to_phase(1)
    assert (view(fleet).phase, len(view(fleet).behind)) == (1, 3)
    fleet.wait(3 * REFRESH + 1)
    assert view(fleet).next == "mcpkeys rotate --phase 2"
    assert view(fleet).behind == ()
    fleet.take(2)
    fleet.wait(1)
    seen = view(fleet)
    assert (seen.phase, seen.next) == (2, "mcpkeys rotate --phase 3")
    assert seen.earliest == pytest.approx(fleet.now + REFRESH + TTL + SKEW)
    fleet.take("rollback")
    fleet.wait(1)
    seen = view(fleet)
    assert (seen.phase, seen.next) == ("rolling_back", "mcpkeys rotate --rollback")


def test_after_a_rollback_it_is_rolled_back_not_done():
    fleet = Fleet().to_phase(1)
    fleet.take("rollback")
    assert (view(fleet).phase, view(fleet).ended) == (0, "rolled_back")


def test_states_of_instances():
    fleet = Fleet(7).to_phase(1)
    silent, lagging, gone, clock, joining, fine, lost = fleet.instances
    fleet.now += 3 * REFRESH + 1
    fleet.refresh(fine, clock)
    clock.load(fleet.keyset, fleet.now, clock_off=SKEW)
    lagging.again(fleet.now)
    gone.again(fleet.now, state="farewell")
    joining.again(fleet.now, state="joining", generation=0, digest="", verifies=(), mints=None)
    fleet.instances.remove(lost)
    forged = instance_id()
    seen = view(fleet, rejected=((forged, "not authentic"),))
    states = {entry.id: entry.state for entry in seen.instances}
    assert states == {
        silent.id: "silent",
        lagging.id: "lagging",
        gone.id: "farewell",
        clock.id: "clock",
        joining.id: "joining",
        fine.id: "serving",
        lost.id: "missing",
        forged: "unreadable",
    }
    assert {entry.instance for entry in seen.waiting_for} == set(states) - {gone.id, fine.id}
    assert shown(fleet, lagging).lag == 1
    assert shown(fleet, fine).confirms


def test_named_and_proven_ones_are_shown_as_such():
    fleet = Fleet(3, max_stale_seconds=300).to_phase(1)
    dead = fleet.instances[0]
    fleet.now += 3 * REFRESH + 1
    fleet.refresh(*fleet.instances[1:])
    fleet.keyset = write(fleet.plan(2, allow_missing=(dead.id,)))
    assert shown(fleet, dead).state == "named"
    assert not shown(fleet, dead).counts
    fleet = Fleet(3, max_stale_seconds=300).to_phase(1)
    fleet.now += 300 + SKEW
    fleet.refresh(*fleet.instances[1:])
    assert shown(fleet, fleet.instances[0]).state == "gone"


def test_after_an_emergency_it_shows_who_still_accepts_the_burnt_key():
    fleet = Fleet()
    burnt = fleet.keyset.minting.kid
    fleet.take("emergency", kid=burnt, reason="leaked")
    fleet.now += 1
    fleet.refresh(*fleet.instances[1:])
    seen = view(fleet)
    assert [entry.id for entry in seen.instances if burnt in entry.accepts_retired] == [fleet.instances[0].id]
    assert [entry.id for entry in seen.behind] == [fleet.instances[0].id]


def test_how_many_still_ride_on_old():
    fleet = Fleet().to_phase(2)
    fleet.wait(5)
    old = fleet.keyset.rotation.from_kid
    at = int(fleet.now * 1000)
    fleet.instances[0].again(fleet.now, last_mint={old: at - 9000}, last_unseal={old: at - 1000})
    fleet.instances[1].again(fleet.now, last_unseal={old: at - 10 * TTL * 1000})
    ride = next(entry for entry in view(fleet).keys if entry.kid == old)
    assert (ride.last_mint, ride.last_unseal, ride.unsealing) == (at - 9000, at - 1000, 1)
    assert ride.alive_until == at - 9000 + (TTL + SKEW) * 1000


def test_a_restored_backup_is_shown_with_its_way_out():
    fleet = Fleet().to_phase(1)
    backup = fleet.keyset
    fleet.wait(3 * REFRESH + 1)
    fleet.take(2)
    fleet.wait(1)
    fleet.keyset = backup
    assert (view(fleet).due.code, view(fleet).next) == ("gate-restored", "mcpkeys restore FILE")


def test_an_instance_is_shown_as_it_said_and_one_without_a_report_as_nothing():
    fleet = Fleet(2).to_phase(1)
    one, lost = fleet.instances
    old, new = fleet.keyset.running.from_kid, fleet.keyset.running.to_kid
    fleet.now += 1.5
    one.load(fleet.keyset, fleet.now, clock_off=0.25)
    fleet.instances.remove(lost)
    entry = shown(fleet, one)
    assert (entry.label, entry.state, entry.why) == ("pod-0", "serving", "")
    assert (entry.generation, entry.lag, entry.mints) == (fleet.keyset.generation, 0, old)
    assert set(entry.verifies) == {old, new}
    assert (entry.last_seen, entry.clock_off) == (fleet.now, 0.25)
    assert (entry.confirms, entry.accepts_retired, entry.counts) == (True, (), True)
    entry = shown(fleet, lost)
    assert (entry.label, entry.state, entry.generation, entry.lag, entry.verifies, entry.mints) == (
        *("", "missing", None, None, ()),
        None,
    )
    assert (entry.last_seen, entry.clock_off, entry.confirms, entry.accepts_retired) == (None, None, False, ())
    assert entry.why == "in the roster, but its report is gone without a farewell"


def test_behind_is_who_counts_and_does_not_serve_the_newest_document():
    fleet = Fleet(5)
    behind, joining, left, newer, fine = fleet.instances
    fleet.to_phase(1)
    fleet.refresh(joining, newer, fine)
    joining.again(fleet.now, state="joining")
    left.again(fleet.now, state="farewell")
    assert [entry.id for entry in view(fleet).behind] == sorted([behind.id, joining.id])


@pytest.mark.parametrize("phase", [0, 1, 2, 3])
def test_since_when_a_phase_lasts(phase):
    fleet = Fleet()
    if phase:
        fleet.to_phase(phase)
    seen = view(fleet)
    rotation = fleet.keyset.rotation
    since = fleet.keyset.minting.state_since if rotation is None else rotation.steps[-1].entered_at
    assert seen.phase_since == since / 1000
    assert seen.generation == fleet.keyset.generation
    assert seen.ended == (None if phase < 3 else "done")
    ids = (None, None, None) if rotation is None else (rotation.id, rotation.from_kid, rotation.to_kid)
    assert (seen.rotation, seen.from_kid, seen.to_kid) == ids
    assert seen.due.document is None


def test_a_word_recorded_within_a_phase_does_not_begin_it_anew():
    fleet = Fleet().to_phase(2)
    began = fleet.now
    dead = fleet.instances[0]
    fleet.now += 1
    fleet.refresh(*fleet.instances[1:])
    fleet.now += 10 * TTL
    fleet.refresh(*fleet.instances[1:])
    answer = fleet.take(3, allow_missing=(dead.id,))
    assert not answer.completes
    assert (view(fleet).phase, view(fleet).phase_since) == (2, began)


def test_what_is_due_of_a_steady_fleet_depends_on_the_age_that_is_allowed():
    fleet = Fleet()
    for fields in ({}, {"max_age": 0.0}):
        seen = view(fleet, **fields)
        assert (seen.due.verdict, seen.due.why, seen.next) == ("done", "steady", "mcpkeys rotate --phase 1")
        assert seen.earliest is None
    born = fleet.keyset.minting.created_at / 1000
    later = view(fleet, max_age=10 * 86_400)
    assert (later.due.verdict, later.next, later.earliest) == ("done", "mcpkeys status", born + 10 * 86_400)
    assert view(fleet, max_age=None).next == "mcpkeys status"
    # A key that has just begun to mint may be replaced at once.
    fleet.now = born
    assert view(fleet).due.why == "steady"


def test_a_step_that_may_be_taken_is_told_as_a_command_and_not_as_a_document():
    fleet = Fleet().to_phase(2)
    fleet.take("rollback")
    fleet.wait(1)
    fleet.wait(TTL + SKEW + REFRESH)
    seen = view(fleet)
    assert (seen.due.verdict, seen.next, seen.due.document) == ("do", "mcpkeys rotate --rollback", None)
    fleet = Fleet().to_phase(1)
    fleet.wait(3 * REFRESH)
    assert (view(fleet).due.verdict, view(fleet).next) == ("do", "mcpkeys rotate --phase 2")


def test_a_steady_fleet_in_trouble_is_sent_to_the_doctor_and_not_to_a_rotation():
    fleet = Fleet(3)
    fleet.now += 3 * REFRESH + 1
    fine, joining, left = fleet.instances
    fleet.refresh(fine)
    joining.again(fleet.now, state="joining")
    left.again(fleet.now, state="farewell")
    assert view(fleet).next == "mcpkeys rotate --phase 1"
    fine.load(fleet.keyset, fleet.now, clock_off=SKEW)
    assert view(fleet).next.startswith("mcpkeys doctor --as-server, on pod-0: its clock is 60 s ahead")
    fine.again(fleet.now, label="", clock=int((fleet.now + SKEW) * 1000))
    assert f"on {fine.id}: its clock" in view(fleet).next
    # The store's grain excuses a clock, and the operator's own one is nobody's trouble.
    fine.load(fleet.keyset, fleet.now, clock_off=SKEW / 2 + 1)
    assert "doctor" in view(fleet).next
    assert view(fleet, resolution=1.0).next == "mcpkeys rotate --phase 1"
    fine.load(fleet.keyset, fleet.now)
    assert view(fleet, operator_clock=fleet.now + SKEW).next == "mcpkeys rotate --phase 1"
    # Once a rotation runs, what is due tells of the trouble itself.
    fleet.to_phase(1)
    fine.load(fleet.keyset, fleet.now, clock_off=SKEW)
    assert "doctor --as-server" not in view(fleet).next


def test_an_operator_s_clock_that_is_off_is_told_while_a_step_is_due():
    fleet = Fleet().to_phase(1)
    fleet.wait(3 * REFRESH)
    assert view(fleet, operator_clock=fleet.now).due.verdict == "do"
    assert view(fleet, operator_clock=fleet.now + SKEW).due.code == "gate-clock"


def test_after_a_rotation_nobody_of_its_roster_is_missed():
    fleet = Fleet(2)
    lost = fleet.instances[0]
    fleet.take(1, expect=2)
    fleet.take("rollback")
    fleet.refresh()
    fleet.instances.remove(lost)
    assert [entry.state for entry in view(fleet).instances] == ["serving"]
    assert view(fleet).waiting_for == ()
    assert view(fleet).next == "mcpkeys rotate --phase 1"


def test_how_a_key_is_used_is_told_to_the_millisecond():
    fleet = Fleet(3).to_phase(2)
    old, new = fleet.keyset.running.from_kid, fleet.keyset.running.to_kid
    at = int(fleet.now * 1000)
    one, two, three = fleet.instances
    one.again(fleet.now, last_mint={old: 5}, last_unseal={old: at - TTL * 1000})
    two.again(fleet.now, last_mint={old: 7}, last_unseal={old: at - TTL * 1000 + 1})
    three.again(fleet.now, last_mint={new: 9})
    keys = {entry.kid: entry for entry in view(fleet).keys}
    seen = keys[old]
    assert (seen.last_mint, seen.alive_until) == (7, 7 + (TTL + SKEW) * 1000)
    assert (seen.last_unseal, seen.unsealing) == (at - TTL * 1000 + 1, 1)
    assert (keys[new].last_mint, keys[new].last_unseal, keys[new].unsealing) == (9, None, 0)
    key = fleet.keyset.key(old)
    assert (seen.state, seen.created_at, seen.state_since) == (key.state, key.created_at, key.state_since)
    assert [entry.alive_until for entry in view(Fleet()).keys] == [None]
