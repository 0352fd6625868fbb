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
