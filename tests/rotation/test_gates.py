"""One test per sentence of the rules: who may be refused, by which word, and with which exit code."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rotation.fleets import REFRESH, SKEW, T0, TTL, Fleet, Instance, instance_id, kid, new_keyset, write

from mcpkeys.errors import ConfigurationError
from mcpkeys.keyset import HistoryEntry, PastTtl, check
from mcpkeys.rotation import Step, plan

SILENT = 3 * REFRESH + 1


def refuses(answer, code: str, exit_code: int, *who: Instance) -> None:
    assert (answer.code, answer.exit_code) == (code, exit_code), answer
    assert answer.document is None
    assert answer.next
    for instance in who:
        assert instance.id in [entry.instance for entry in answer.blocking]


def fleet_in(phase: int, **fields) -> Fleet:
    """A fleet that has confirmed `phase`, whose minimum time is over."""
    fleet = Fleet(**fields).to_phase(phase)
    fleet.wait(1)
    fleet.wait(3 * REFRESH)
    return fleet


def ripe(fleet: Fleet) -> Fleet:
    """Wait until phase 3 (or the end of a rollback) is only a matter of who confirms."""
    fleet.wait(TTL + SKEW + 2 * REFRESH)
    return fleet


# --- the phases ----------------------------------------------------------------------------------------------


def test_three_phases_then_a_second_rotation_begins_anew():
    fleet = Fleet()
    first = fleet.keyset.minting.kid
    for _ in range(2):
        old = fleet.keyset.minting.kid
        fleet.to_phase(1)
        new = fleet.keyset.running.to_kid
        assert fleet.keyset.minting.kid == old
        assert fleet.keyset.key(new).state == "verifying"
        fleet.wait(SILENT)
        fleet.take(2)
        assert (fleet.keyset.minting.kid, fleet.keyset.key(old).state) == (new, "verifying")
        fleet.wait(1)
        ripe(fleet)
        fleet.take(3)
        assert (fleet.keyset.minting.kid, fleet.keyset.key(old).state) == (new, "retired")
        assert fleet.keyset.rotation.ended == "done"
    assert fleet.keyset.key(first).state == "retired"
    assert [entry.generation for entry in fleet.keyset.history] == list(range(8, 14))


def test_0_to_1_is_never_refused_for_the_fleets_sake():
    for fleet in (Fleet(0), Fleet(3)):
        fleet.wait(100 * REFRESH, refresh=False)
        assert fleet.plan(1, expect=9, operator_clock=fleet.now + 3600).verdict == "do"


def test_a_repeated_step_is_a_no_op_that_says_so():
    fleet = Fleet().to_phase(1)
    assert (fleet.plan(1).verdict, fleet.plan(1).exit_code) == ("done", 0)
    fleet.wait(SILENT)
    fleet.take(2)
    assert fleet.plan(2).verdict == "done"
    fleet.wait(1)
    ripe(fleet)
    fleet.take(3)
    assert fleet.plan(3).verdict == "done"
    assert fleet.plan(3).document is None


@pytest.mark.parametrize(("phase", "to"), [(0, 2), (0, 3), (0, "rollback"), (1, 3), (2, 1), (3, 2), (3, "rollback")])
def test_a_step_skipped_or_backwards_is_refused(phase, to):
    fleet = Fleet() if phase == 0 else fleet_in(phase)
    answer = fleet.plan(to)
    refuses(answer, "gate-order", 5)


def test_a_step_names_its_rotation_and_another_operators_is_in_the_way():
    fleet = fleet_in(1)
    assert fleet.plan(2, rotation=fleet.keyset.rotation.id).verdict == "do"
    refuses(fleet.plan(2, rotation=kid()), "gate-other-rotation", 5)
    refuses(fleet.plan(1, rotation=kid()), "gate-other-rotation", 5)
    assert fleet.keyset.rotation.id in fleet.plan(2, rotation=kid()).why


def test_a_step_that_is_retried_with_its_rotation_id_is_done_even_after_that_rotation_ended():
    fleet = Fleet()
    name = kid()
    fleet.take(1, rotation=name)
    assert fleet.keyset.rotation.id == name
    fleet.take("rollback")
    assert fleet.plan(1, rotation=name).verdict == "done"
    assert fleet.plan(1).verdict == "do"


def test_each_phase_lasts_three_refresh_intervals_whoever_has_confirmed():
    fleet = Fleet().to_phase(1)
    fleet.wait(3 * REFRESH - 1)
    answer = fleet.plan(2)
    refuses(answer, "gate-young", 6)
    assert fleet.now < answer.earliest <= fleet.now + 2
    fleet.now = answer.earliest
    assert fleet.plan(2).verdict == "do"


# --- who must confirm ----------------------------------------------------------------------------------------


def test_1_to_2_only_when_every_one_verifies_new():
    fleet = fleet_in(1)
    laggard = fleet.instances[1]
    holds = laggard.report.verifies[:1]
    laggard.again(fleet.now, verifies=holds, generation=7, digest="")
    answer = fleet.plan(2)
    refuses(answer, "gate-lagging", 5, laggard)
    assert "generation 7 of 8" in answer.why
    assert fleet.keyset.running.to_kid in answer.why


def test_lagging_for_less_than_three_refreshes_only_needs_time():
    fleet = Fleet().to_phase(1)
    fleet.now += REFRESH
    fleet.refresh(*fleet.instances[1:])
    answer = fleet.plan(2)
    refuses(answer, "gate-lagging", 6, fleet.instances[0])
    assert not answer.blocking[0].late


def test_a_silent_instance_is_unsafe_and_named_with_its_age():
    fleet = fleet_in(1)
    fleet.now += SILENT
    fleet.refresh(*fleet.instances[1:])
    answer = fleet.plan(2)
    refuses(answer, "gate-silent", 5, fleet.instances[0])
    assert f"--allow-missing={fleet.instances[0].id}" in answer.next
    assert "silent for 91 s" in answer.why


def test_a_deleted_report_of_a_roster_member_is_missing_never_gone():
    fleet = fleet_in(1)
    lost = fleet.instances.pop()
    refuses(fleet.plan(2), "gate-report-missing", 5, lost)
    fleet.instances.append(lost)
    fleet.take(2)
    joiner = Instance("late")
    fleet.instances.append(joiner)
    fleet.wait(1)
    ripe(fleet)
    fleet.instances.remove(lost)
    refuses(fleet.plan(3), "gate-report-missing", 5, lost)


def test_a_later_joiner_that_was_there_at_phase_2_is_in_the_roster():
    fleet = fleet_in(1)
    joiner = Instance("late")
    fleet.instances.append(joiner)
    fleet.refresh()
    fleet.take(2)
    fleet.wait(1)
    ripe(fleet)
    fleet.instances.remove(joiner)
    refuses(fleet.plan(3), "gate-report-missing", 5, joiner)


def test_an_empty_fleet_is_unsafe_never_all_of_zero():
    fleet = Fleet(0).to_phase(1)
    fleet.wait(SILENT)
    answer = fleet.plan(2)
    refuses(answer, "gate-empty", 5)
    assert answer.next == "mcpkeys rotate --phase 2 --expect 0"


def test_a_fleet_that_said_farewell_is_empty_too():
    fleet = fleet_in(1)
    for instance in fleet.instances:
        instance.again(fleet.now, state="farewell")
    refuses(fleet.plan(2), "gate-empty", 5)


def test_a_shrunken_fleet_is_unsafe():
    fleet = fleet_in(1)
    refuses(fleet.plan(2, expect=4), "gate-shrunken", 5)
    assert fleet.plan(2, expect=3).verdict == "do"


def test_the_count_given_at_the_beginning_is_checked_later():
    fleet = Fleet(3)
    fleet.take(1, expect=4)
    fleet.wait(SILENT)
    refuses(fleet.plan(2), "gate-shrunken", 5)
    assert fleet.plan(2, expect=3).verdict == "do"


def test_expect_0_is_a_recorded_word_that_no_server_runs():
    fleet = Fleet(0).to_phase(1)
    fleet.wait(SILENT)
    fleet.take(2, expect=0)
    assert fleet.keyset.rotation.steps[-1].evidence.word == "no server runs (--expect 0)"
    assert fleet.keyset.history[-1].overrides
    fleet.wait(1)
    ripe(fleet)
    assert fleet.plan(3).verdict == "do"


def test_expect_0_is_void_where_a_report_is_live():
    fleet = fleet_in(1)
    refuses(fleet.plan(2, expect=0), "gate-contradiction", 5)
    fleet = Fleet(1)
    assert "void" in fleet.take(1, expect=0).why
    fleet.instances[0].again(fleet.now, state="farewell")
    fleet.now += SILENT
    refuses(fleet.plan(2), "gate-empty", 5)
    fleet = Fleet(0)
    fleet.take(1, expect=0)
    late = Instance("late")
    fleet.instances.append(late)
    fleet.wait(SILENT)
    assert fleet.plan(2).verdict == "do"  # by its own confirmation
    fleet.take(2)
    assert fleet.keyset.rotation.steps[-1].evidence.confirmed == (late.id,)


def test_a_joining_instance_blocks():
    fleet = fleet_in(1)
    joiner = Instance("late")
    joiner.modified_at = fleet.now
    joiner.again(fleet.now)
    fleet.instances.append(joiner)
    refuses(fleet.plan(2), "gate-joining", 6, joiner)
    fleet.now += SILENT
    fleet.refresh(*fleet.instances[:3])
    answer = fleet.plan(2)
    refuses(answer, "gate-joining", 5, joiner)
    assert joiner.id in answer.next


def test_an_unbelievable_report_blocks_and_can_be_named():
    fleet = fleet_in(1)
    forged = instance_id()
    answer = fleet.plan(2, rejected=((forged, "not authentic"),))
    refuses(answer, "gate-report-rejected", 5)
    assert answer.blocking[0].instance == forged
    assert fleet.plan(2, rejected=((forged, "not authentic"),), allow_missing=(forged,)).verdict == "do"


def test_a_forged_report_in_place_of_a_members_does_not_withdraw_it():
    fleet = fleet_in(1)
    victim = fleet.instances.pop()
    refuses(fleet.plan(2, rejected=((victim.id, "not authentic"),)), "gate-report-rejected", 5, victim)


def test_a_farewell_withdraws_an_instance():
    fleet = fleet_in(1)
    fleet.instances[0].again(fleet.now, state="farewell")
    fleet.now += SILENT
    fleet.refresh(*fleet.instances[1:])
    assert fleet.plan(2).verdict == "do"


# --- the operator's word ---------------------------------------------------------------------------------------


def test_a_dead_instance_must_be_named_and_is_recorded():
    fleet = fleet_in(1)
    dead = fleet.instances[0]
    fleet.now += SILENT
    fleet.refresh(*fleet.instances[1:])
    fleet.take(2, allow_missing=(dead.id,))
    assert fleet.keyset.rotation.steps[-1].evidence.missing == (dead.id,)
    assert f"--allow-missing {dead.id}" in fleet.keyset.history[-1].overrides
    fleet.now += 1
    fleet.refresh(*fleet.instances[1:])
    fleet.now += TTL + SKEW + 2 * REFRESH
    fleet.refresh(*fleet.instances[1:])
    assert fleet.plan(3).verdict == "do"  # the word is on record


def test_a_named_instance_counts_as_minting_old_until_that_moment():
    fleet = fleet_in(1)
    fleet.take(2)
    dead = fleet.instances[0]  # holds phase 1
    fleet.now += 1
    fleet.refresh(*fleet.instances[1:])
    fleet.now += 10 * TTL
    fleet.refresh(*fleet.instances[1:])
    refuses(fleet.plan(3), "gate-silent", 5, dead)
    answer = fleet.plan(3, allow_missing=(dead.id,))
    assert (answer.verdict, answer.completes, answer.exit_code) == ("do", False, 6)
    assert answer.earliest == pytest.approx(fleet.now + TTL + SKEW)
    named_at = fleet.now
    fleet.keyset = write(answer)
    assert fleet.keyset.running.phase == 2
    fleet.now += 1
    fleet.refresh(*fleet.instances[1:])
    refuses(fleet.plan(3), "gate-ttl", 6)
    assert fleet.plan(3, allow_missing=(dead.id,)).document is None  # repeated: no second word
    fleet.now = named_at + TTL + SKEW - 1
    fleet.refresh(*fleet.instances[1:])
    refuses(fleet.plan(3), "gate-ttl", 6)
    fleet.now = named_at + TTL + SKEW + 1
    fleet.refresh(*fleet.instances[1:])
    assert fleet.plan(3).verdict == "do"


def test_a_dead_instance_whose_report_proves_that_it_changed_costs_no_second_wait():
    fleet = fleet_in(2)
    fleet.now += TTL + SKEW + 2 * REFRESH
    fleet.refresh(*fleet.instances[1:])
    dead = fleet.instances[0]
    refuses(fleet.plan(3), "gate-silent", 5, dead)
    answer = fleet.plan(3, allow_missing=(dead.id,))
    assert (answer.verdict, answer.completes) == ("do", True)


def test_a_live_contradicting_report_cannot_be_named_away():
    fleet = fleet_in(1)
    live = fleet.instances[0]
    live.again(fleet.now, verifies=live.report.verifies[:1], generation=7, digest="")
    refuses(fleet.plan(2, allow_missing=(live.id,)), "gate-contradiction", 5, live)


def test_a_named_instance_that_reports_again_counts_again():
    fleet = fleet_in(1)
    back = fleet.instances[0]
    fleet.now += SILENT
    fleet.refresh(*fleet.instances[1:])
    fleet.take(2, allow_missing=(back.id,))
    fleet.wait(1)
    fleet.now += TTL + SKEW + 2 * REFRESH
    fleet.refresh()
    back.again(fleet.now, mints=fleet.keyset.rotation.from_kid, generation=8, digest="")
    refuses(fleet.plan(3), "gate-lagging", 5, back)


def test_a_word_holds_in_the_next_rotation_until_the_instance_reports_again():
    fleet = fleet_in(1)
    dead, *alive = fleet.instances
    fleet.now += SILENT
    fleet.refresh(*alive)
    fleet.take(2, allow_missing=(dead.id,))
    for seconds in (1, TTL + SKEW + 2 * REFRESH):
        fleet.now += seconds
        fleet.refresh(*alive)
    fleet.take(3)
    fleet.refresh(*alive)
    fleet.now += 1
    fleet.take(1)
    assert dead.id not in fleet.keyset.rotation.roster
    fleet.now += SILENT
    fleet.refresh(*alive)
    assert fleet.plan(2).verdict == "do"
    dead.again(fleet.now)
    refuses(fleet.plan(2), "gate-lagging", 5, dead)


def test_naming_an_instance_nobody_knows_is_a_mistake():
    fleet = fleet_in(1)
    with pytest.raises(ConfigurationError, match="no instance is called"):
        fleet.plan(2, allow_missing=("nobody",))


def test_a_hundred_dead_ones_are_released_by_one_command_that_names_exactly_them():
    fleet = Fleet(104).to_phase(1)
    fleet.now += SILENT + 1
    fleet.refresh(*fleet.instances[:4])
    answer = fleet.plan(2)
    ids = {word.removeprefix("--allow-missing=") for word in answer.next.split() if word.startswith("--allow")}
    assert ids == {instance.id for instance in fleet.instances[4:]}
    assert fleet.plan(2, allow_missing=tuple(ids)).verdict == "do"


# --- max_stale -------------------------------------------------------------------------------------------------


def dead_one_with(max_stale: int | None) -> Fleet:
    fleet = Fleet(max_stale_seconds=max_stale)
    fleet.wait(1)
    fleet.take(1)
    fleet.now += 1
    fleet.refresh(*fleet.instances[1:])
    fleet.now += SILENT + 1
    fleet.refresh(*fleet.instances[1:])
    return fleet


def test_max_stale_proves_a_dead_instance_harmless_in_time():
    fleet = dead_one_with(300)
    committed = fleet.keyset.rotation.steps[0].entered_at / 1000
    refuses(fleet.plan(2), "gate-silent", 6, fleet.instances[0])
    fleet.now = committed + 300 + SKEW - 1
    fleet.refresh(*fleet.instances[1:])
    refuses(fleet.plan(2), "gate-silent", 6, fleet.instances[0])
    fleet.now = committed + 300 + SKEW
    fleet.refresh(*fleet.instances[1:])
    fleet.take(2)
    assert fleet.keyset.rotation.steps[-1].evidence.proven_gone == (fleet.instances[0].id,)


def test_max_stale_off_counts_as_for_ever_also_where_only_the_dead_ones_ring_had_it_off():
    fleet = dead_one_with(300)
    dead = fleet.instances[0]
    dead.report = replace(dead.report, max_stale=None)
    fleet.now += 10_000
    fleet.refresh(*fleet.instances[1:])
    refuses(fleet.plan(2), "gate-silent", 5, dead)


def test_the_largest_max_stale_that_its_ring_may_hold_counts():
    fleet = dead_one_with(300)
    dead = fleet.instances[0]
    dead.report = replace(dead.report, max_stale=5_000_000)
    fleet.now += 3_000
    fleet.refresh(*fleet.instances[1:])
    refuses(fleet.plan(2), "gate-silent", 6, dead)
    fleet.now += 3_000
    fleet.refresh(*fleet.instances[1:])
    assert fleet.plan(2).verdict == "do"


def test_silence_alone_proves_nothing_without_max_stale():
    fleet = dead_one_with(None)
    fleet.now += 1_000_000
    fleet.refresh(*fleet.instances[1:])
    refuses(fleet.plan(2), "gate-silent", 5, fleet.instances[0])


def test_in_phase_2_a_proven_one_counts_as_minting_old_until_max_stale_stopped_it():
    fleet = fleet_in(1, max_stale_seconds=300)
    fleet.take(2)
    committed = fleet.keyset.minting.state_since / 1000
    for moment in (1, 300 + SKEW, 300 + TTL + SKEW - 1):
        fleet.now = committed + moment
        fleet.refresh(*fleet.instances[1:])
    refuses(fleet.plan(3), "gate-ttl", 6)
    fleet.now = committed + 300 + TTL + SKEW + 1
    fleet.refresh(*fleet.instances[1:])
    assert fleet.plan(3).verdict == "do"


# --- 2 -> 3: time ------------------------------------------------------------------------------------------------


def test_2_to_3_only_when_every_one_mints_new():
    fleet = fleet_in(1)
    fleet.take(2)
    fleet.now += 1
    fleet.refresh(*fleet.instances[1:])
    laggard = fleet.instances[0]
    fleet.now += TTL + SKEW + 2 * REFRESH
    fleet.refresh(*fleet.instances[1:])
    laggard.again(fleet.now)
    refuses(fleet.plan(3), "gate-lagging", 5, laggard)


def test_the_wait_begins_with_the_last_possible_old_mint_not_with_the_step():
    fleet = fleet_in(1)
    fleet.take(2)
    began = fleet.now
    fleet.now += 1
    fleet.refresh(*fleet.instances[1:])
    fleet.now = began + TTL - 1  # the last one changes late
    fleet.refresh()
    switched = fleet.now
    fleet.wait(SKEW + REFRESH + 2)
    answer = fleet.plan(3)
    refuses(answer, "gate-ttl", 6)
    # one refresh interval for a child that was forked just before
    assert answer.earliest == pytest.approx(switched + REFRESH + TTL + SKEW)
    fleet.now = answer.earliest
    fleet.refresh()
    assert fleet.plan(3).verdict == "do"


def test_a_later_mint_of_old_counts():
    fleet = fleet_in(2)
    late = fleet.now + 100
    fleet.instances[0].again(fleet.now, last_mint={fleet.keyset.rotation.from_kid: int(late * 1000)})
    fleet.now += 1
    assert fleet.plan(3).earliest == pytest.approx(late + TTL + SKEW)


def test_a_farewell_that_still_minted_old_counts():
    fleet = fleet_in(1)
    fleet.take(2)
    began = fleet.now
    fleet.now += 1
    fleet.refresh(*fleet.instances[1:])
    fleet.now = began + 400
    fleet.instances[0].again(fleet.now, state="farewell")
    fleet.now = began + 401
    fleet.refresh(*fleet.instances[1:])
    assert fleet.plan(3).earliest == pytest.approx(began + 400 + REFRESH + TTL + SKEW)


def test_late_joiners_do_not_prolong_the_wait():
    fleet = fleet_in(2)
    earliest = fleet.plan(3).earliest
    joiner = Instance("late")
    fleet.instances.append(joiner)
    fleet.wait(100)
    assert fleet.plan(3).earliest == earliest


@pytest.mark.parametrize("source", ["keyset", "past", "observed"])
def test_the_longest_ttl_counts_keysets_past_and_observed(source):
    fleet = fleet_in(1)
    longest = TTL if source == "keyset" else 3600
    if source == "past":
        fleet.keyset = replace(fleet.keyset, past_ttls=(PastTtl(longest, int((T0 + 9e6) * 1000)),))
        fleet.refresh()
    fleet.take(2)
    began = fleet.now
    fleet.wait(1)
    if source == "observed":
        fleet.instances[0].again(fleet.now, ttl_observed=longest * 1000)
    assert fleet.plan(3).earliest == pytest.approx(began + 1 + REFRESH + longest + SKEW)


def test_a_dead_ones_longer_ttl_counts_too():
    fleet = fleet_in(2)
    fleet.instances[0].again(fleet.now, ttl_observed=7200_000, state="farewell")
    refuses(ripe(fleet_with_refresh(fleet)).plan(3), "gate-ttl", 6)


def fleet_with_refresh(fleet: Fleet) -> Fleet:
    gone = fleet.instances[0]
    fleet.refresh = lambda *some: [i.load(fleet.keyset, fleet.now) for i in (some or fleet.instances) if i is not gone]
    return fleet


def test_skew_and_ttl_are_both_waited_for():
    fleet = fleet_in(1)
    fleet.take(2)
    fleet.wait(1)
    fleet.wait(TTL + SKEW + REFRESH - 1)
    refuses(fleet.plan(3), "gate-ttl", 6)
    fleet.wait(1)
    assert fleet.plan(3).verdict == "do"


# --- clocks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [1, 2])
@pytest.mark.parametrize("off", [SKEW / 2 + 1, -(SKEW / 2 + 3)])
def test_a_clock_off_by_more_than_half_of_skew_blocks_and_is_named(phase, off):
    fleet = ripe(fleet_in(phase))
    skewed = fleet.instances[1]
    skewed.load(fleet.keyset, fleet.now, clock_off=off)
    answer = fleet.plan(phase + 1)
    refuses(answer, "gate-clock", 5, skewed)
    assert "pod-1" in answer.why


def test_a_clock_within_half_of_skew_is_fine():
    fleet = fleet_in(1)
    for instance, off in zip(fleet.instances, (SKEW / 2, -SKEW / 2, 0), strict=True):
        instance.load(fleet.keyset, fleet.now, clock_off=off)
    assert fleet.plan(2).verdict == "do"


def test_a_report_that_travelled_long_only_needs_the_next_one():
    fleet = fleet_in(1)
    fleet.instances[0].load(fleet.keyset, fleet.now, clock_off=-(SKEW / 2 + 1))
    refuses(fleet.plan(2), "gate-clock", 6, fleet.instances[0])


def test_the_operators_own_clock_blocks_too():
    fleet = fleet_in(1)
    answer = fleet.plan(2, operator_clock=fleet.now + SKEW / 2 + 1)
    refuses(answer, "gate-clock", 5)
    assert "this machine's clock" in answer.why
    assert fleet.plan(2, operator_clock=fleet.now - SKEW / 2).verdict == "do"


def test_a_store_that_tells_whole_seconds_does_not_accuse_a_good_clock():
    fleet = fleet_in(1)
    fleet.instances[0].load(fleet.keyset, fleet.now, clock_off=SKEW / 2 + 0.9)
    assert fleet.plan(2, resolution=1.0).verdict == "do"


def test_a_store_that_tells_whole_seconds_does_not_make_an_instance_silent():
    fleet = fleet_in(1)
    fleet.now += 3 * REFRESH + 0.5
    assert fleet.plan(2, resolution=1.0).verdict == "do"
    refuses(fleet.plan(2), "gate-silent", 5)


def test_a_clock_that_is_behind_makes_the_wait_longer():
    fleet = fleet_in(1)
    fleet.take(2)
    began = fleet.now
    fleet.now += 10
    for instance in fleet.instances:
        instance.load(fleet.keyset, fleet.now, clock_off=-20)
    assert fleet.plan(3).earliest == pytest.approx(began + 10 + REFRESH + TTL + SKEW)


# --- attestation ---------------------------------------------------------------------------------------------------


def attested(fleet: Fleet) -> Fleet:
    fleet.take(1)
    fleet.now += SILENT
    return fleet


def test_attest_needs_the_operators_word_for_phases_2_and_3():
    fleet = attested(Fleet(0, evidence="attest"))
    refuses(fleet.plan(2), "gate-attest", 5)
    fleet.take(2, attest="deploy 4711 finished")
    assert fleet.keyset.rotation.steps[-1].evidence.word == "deploy 4711 finished"
    fleet.now += 1000
    refuses(fleet.plan(3), "gate-attest", 5)


def test_the_wait_starts_with_the_word_and_exit_6_until_it_is_over():
    fleet = attested(Fleet(0, evidence="attest"))
    fleet.take(2, attest="deploy 4711 finished")
    fleet.now += 100_000
    answer = fleet.plan(3, attest="deploy 4712 finished")
    assert (answer.verdict, answer.completes, answer.exit_code) == ("do", False, 6)
    fleet.keyset = write(answer)
    assert any("4712" in word for word in fleet.keyset.history[-1].overrides)
    said = fleet.now
    fleet.now += 1
    refuses(fleet.plan(3, attest="deploy 4712 finished"), "gate-ttl", 6)
    refuses(fleet.plan(3), "gate-ttl", 6)
    fleet.now = said + TTL + SKEW + 1
    assert fleet.plan(3).verdict == "do"
    again = fleet.plan(3, attest="deploy 4713 finished")  # another word: the wait begins anew
    assert (again.verdict, again.completes) == ("do", False)


def test_attest_never_over_a_contradicting_report():
    fleet = attested(Fleet(1, evidence="attest"))
    refuses(fleet.plan(2, attest="deploy 4711 finished"), "gate-contradiction", 5, fleet.instances[0])
    fleet.refresh()
    assert fleet.plan(2, attest="deploy 4711 finished").verdict == "do"


def test_attest_says_nothing_to_a_keyset_that_goes_by_reports():
    with pytest.raises(ConfigurationError, match="--attest"):
        fleet_in(1).plan(2, attest="trust me")


# --- restored backups -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", [1, 2, 3, "rollback", "auto", "emergency"])
def test_a_document_older_than_any_report_is_refused_until_restore(to):
    fleet = fleet_in(1)
    backup = fleet.keyset
    fleet.take(2)
    fleet.wait(1)
    fleet.keyset = backup
    answer = fleet.plan(to, kid=backup.minting.kid, reason="r")
    refuses(answer, "gate-restored", 5)
    assert answer.next.startswith("mcpkeys restore FILE")


def test_another_document_of_the_same_generation_is_a_restored_backup_too():
    fleet = fleet_in(1)
    fleet.keyset = replace(fleet.keyset, audience="other")
    refuses(fleet.plan(2), "gate-restored", 5)


def test_a_farewell_tells_of_a_newer_generation_as_well():
    fleet = fleet_in(1)
    fleet.instances[0].again(fleet.now, state="farewell", generation=99)
    refuses(fleet.plan(2), "gate-restored", 5)


# --- rollback ---------------------------------------------------------------------------------------------------------


def test_rollback_from_1_drops_new_at_once():
    fleet = Fleet().to_phase(1)
    old, new = fleet.keyset.running.from_kid, fleet.keyset.running.to_kid
    fleet.take("rollback")
    assert (fleet.keyset.minting.kid, fleet.keyset.key(new).state) == (old, "retired")
    assert fleet.keyset.rotation.ended == "rolled_back"
    assert fleet.plan("rollback").verdict == "done"


def test_rollback_from_2_lets_old_mint_and_a_second_one_retires_new():
    fleet = Fleet().to_phase(2)
    old, new = fleet.keyset.running.from_kid, fleet.keyset.running.to_kid
    fleet.wait(5)
    fleet.take("rollback")
    assert (fleet.keyset.minting.kid, fleet.keyset.key(new).state) == (old, "verifying")
    assert fleet.keyset.running.phase == "rolling_back"
    for to in (1, 2, 3):
        refuses(fleet.plan(to), "gate-order", 5)
    fleet.wait(1)
    fleet.wait(3 * REFRESH)
    refuses(fleet.plan("rollback"), "gate-ttl", 6)
    ripe(fleet)
    fleet.take("rollback")
    assert fleet.keyset.key(new).state == "retired"
    assert fleet.keyset.rotation.ended == "rolled_back"
    assert fleet.plan(1).verdict == "do"


def test_an_instance_that_never_saw_phase_2_has_not_confirmed_the_rollback():
    fleet = fleet_in(1)
    fleet.take(2)
    fleet.now += 1
    fleet.refresh(*fleet.instances[1:])
    fleet.take("rollback")
    fleet.now += 1
    fleet.refresh(*fleet.instances[1:])
    fleet.now += TTL + SKEW + 2 * REFRESH
    fleet.refresh(*fleet.instances[1:])
    fleet.instances[0].again(fleet.now)  # mints OLD, but as phase 1 told it
    refuses(fleet.plan("rollback"), "gate-lagging", 5, fleet.instances[0])


# --- emergency ---


def burn(fleet: Fleet, key: str, **fields):
    answer = fleet.plan("emergency", kid=key, reason="leaked", **fields)
    before = fleet.keyset
    fleet.keyset = write(answer)
    check(fleet.keyset)
    assert fleet.keyset.key(key).state == "retired"
    assert fleet.keyset.report_key != before.report_key
    assert fleet.keyset.history[-1].reason == "leaked"
    assert fleet.keyset.running is None
    return answer


def states(fleet: Fleet) -> list[str]:
    return sorted(key.state for key in fleet.keyset.live)


def test_burning_the_minter_in_the_steady_state_makes_a_fresh_key_mint():
    fleet = Fleet()
    burnt = fleet.keyset.minting.kid
    answer = burn(fleet, burnt)
    assert states(fleet) == ["minting"]
    assert "may be refused" in answer.why
    assert set(answer.still_accepting) == {instance.id for instance in fleet.instances}


def test_burning_new_in_phase_1_leaves_the_minter():
    fleet = Fleet().to_phase(1)
    old, new = fleet.keyset.running.from_kid, fleet.keyset.running.to_kid
    burn(fleet, new)
    assert (fleet.keyset.minting.kid, states(fleet)) == (old, ["minting"])
    assert fleet.keyset.rotation.ended == "emergency"


def test_burning_old_in_phase_1_makes_a_fresh_key_mint_and_drops_new_which_nobody_minted():
    fleet = Fleet().to_phase(1)
    old, new = fleet.keyset.running.from_kid, fleet.keyset.running.to_kid
    burn(fleet, old)
    assert fleet.keyset.minting.kid not in (old, new)
    assert states(fleet) == ["minting"]


def test_burning_old_in_phase_2_leaves_the_minter():
    fleet = Fleet().to_phase(2)
    old, new = fleet.keyset.running.from_kid, fleet.keyset.running.to_kid
    burn(fleet, old)
    assert (fleet.keyset.minting.kid, states(fleet)) == (new, ["minting"])
    assert fleet.plan(3).verdict == "done"


def test_burning_new_in_phase_2_lets_old_survive_until_phase_3():
    fleet = Fleet().to_phase(2)
    fleet.wait(5)
    old, new = fleet.keyset.running.from_kid, fleet.keyset.running.to_kid
    burn(fleet, new)
    assert fleet.keyset.key(old).state == "verifying"
    refuses(fleet.plan(3), "gate-lagging", 6)
    assert fleet.plan("auto").to == 3
    fleet.wait(1)
    fleet.wait(3 * REFRESH)
    refuses(fleet.plan(3), "gate-ttl", 6)
    ripe(fleet)
    fleet.take(3)
    assert fleet.keyset.key(old).state == "retired"
    assert fleet.keyset.rotation.ended == "emergency"
    assert fleet.plan(3).verdict == "done"


@pytest.mark.parametrize("which", ["old", "new"])
def test_burning_while_a_rollback_runs(which):
    fleet = Fleet().to_phase(2)
    fleet.wait(5)
    old, new = fleet.keyset.running.from_kid, fleet.keyset.running.to_kid
    fleet.take("rollback")
    burn(fleet, old if which == "old" else new)
    assert states(fleet) == (["minting", "verifying"] if which == "old" else ["minting"])


def test_a_survivor_does_not_stop_the_next_rotation_which_retires_it():
    fleet = Fleet().to_phase(2)
    fleet.wait(5)
    old = fleet.keyset.running.from_kid
    burn(fleet, fleet.keyset.running.to_kid)
    fleet.wait(5)
    fleet.to_phase(3)
    assert fleet.keyset.key(old).state == "retired"
    assert states(fleet) == ["minting"]


def test_burning_twice_is_done_and_unknown_kids_and_missing_reasons_are_mistakes():
    fleet = Fleet()
    burnt = fleet.keyset.minting.kid
    burn(fleet, burnt)
    assert fleet.plan("emergency", kid=burnt, reason="leaked").verdict == "done"
    for fields in ({"kid": kid(), "reason": "r"}, {"reason": "r"}, {"kid": fleet.keyset.minting.kid}):
        with pytest.raises(ConfigurationError):
            fleet.plan("emergency", **fields)


def test_an_instance_that_cannot_unwrap_the_fresh_key_is_named_until_it_can():
    fleet = Fleet().to_phase(2)
    fleet.wait(5)
    burn(fleet, fleet.keyset.running.to_kid)
    fleet.wait(1)
    ripe(fleet)
    broken = fleet.instances[0]
    broken.again(fleet.now, mints=None, verifies=(fleet.keyset.rotation.from_kid,))
    refuses(fleet.plan(3), "gate-lagging", 5, broken)


# --- auto ---


def test_auto_does_the_one_step_that_is_due_or_says_that_nothing_is():
    fleet = Fleet()
    age = fleet.now - fleet.keyset.minting.created_at / 1000
    nothing = fleet.plan("auto", max_age=age + 1000)
    assert (nothing.verdict, nothing.exit_code) == ("done", 0)
    assert nothing.earliest == pytest.approx(fleet.now + 1000)
    assert "nothing is due" in nothing.why
    assert fleet.plan("auto").verdict == "done"
    fleet.wait(1)
    assert fleet.take("auto", max_age=age).to == 1
    fleet.wait(1)
    refuses(fleet.plan("auto", max_age=age), "gate-young", 6)
    fleet.wait(3 * REFRESH)
    assert fleet.take("auto", max_age=age).to == 2
    fleet.wait(1)
    ripe(fleet)
    assert fleet.take("auto", max_age=age).to == 3
    assert fleet.keyset.rotation.ended == "done"


def test_auto_finishes_a_rollback_and_never_begins_one():
    fleet = Fleet().to_phase(2)
    fleet.wait(5)
    fleet.take("rollback")
    fleet.wait(1)
    ripe(fleet)
    assert fleet.take("auto").to == "rollback"
    assert fleet.keyset.rotation.ended == "rolled_back"


# --- the document ---


def test_wraps_of_retired_keys_are_dropped_after_30_days():
    fleet = Fleet().to_phase(3)
    old = fleet.keyset.rotation.from_kid
    assert fleet.keyset.key(old).wrapped
    fleet.wait(31 * 86_400)
    fleet.take(1)
    assert fleet.keyset.key(old).wrapped == ()


def test_history_tells_who_when_what_and_why():
    fleet = Fleet()
    fleet.take(1, who="ops@example", reason="monthly")
    entry = fleet.keyset.history[-1]
    assert (entry.who, entry.reason, entry.at) == ("ops@example", "monthly", int(fleet.now * 1000))
    assert fleet.keyset.rotation.id in entry.what
    assert fleet.keyset.rotation.to_kid in entry.what


def test_history_is_bounded():
    entries = tuple(HistoryEntry(int(T0 * 1000) - n, "ops", f"entry {n}", 7) for n in range(100))
    fleet = Fleet(1, history=entries)
    fleet.take(1)
    assert len(fleet.keyset.history) == 100
    assert fleet.keyset.history[0].what == "entry 1"


def test_a_store_whose_clock_was_set_back_shortens_no_wait():
    fleet = Fleet().to_phase(1)
    entered = fleet.keyset.rotation.steps[-1].entered_at
    fleet.now -= 5000
    answer = plan(fleet.keyset, fleet.reports, Step("rollback"), fleet.now)
    assert answer.document.rotation.steps[-1].entered_at > entered
    refuses(fleet.plan(2), "gate-lagging", 6)


def test_the_longest_roster_fits():
    keyset = new_keyset()
    one = Instance()
    one.load(keyset, T0)
    received = [replace(one.received, report=replace(one.report, instance=instance_id())) for _ in range(5000)]
    document = write(plan(keyset, received, Step(1), T0))
    assert len(document.rotation.roster) == 4096
