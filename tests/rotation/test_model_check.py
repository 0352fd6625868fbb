"""Every interleaving of operator steps and fleet events in small worlds: nothing alive is refused, nothing retired
verifies. And a rule taken out is found out, or the search would prove nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rotation.model import Bounds, Violation, search

from mcpkeys import gates, rotation

QUICK = {
    "two instances, two rotations": Bounds(instances=2, spare=0, deaths=0, rotations=2),
    "a late joiner": Bounds(instances=1, spare=1, deaths=0),
    "a death, named afterwards": Bounds(instances=2, spare=0, deaths=1, rollbacks=False),
    "two operators, one of them slow": Bounds(instances=2, spare=0, deaths=0, ttl=1, rollbacks=False, stale_reads=True),
    "an emergency in any phase, for any key": Bounds(
        instances=2, spare=0, deaths=0, ttl=1, emergencies=1, rollbacks=False
    ),
    "a forked child": Bounds(instances=1, spare=1, deaths=0, ttl=1, rollbacks=False, forks=True),
    "max_stale": Bounds(instances=2, spare=0, deaths=0, max_stale=2, rollbacks=False),
}
SLOW = {
    "a restart": Bounds(instances=1, spare=1, deaths=1),
    "clocks at both ends of skew": Bounds(instances=2, spare=0, deaths=0, offsets=(1, -1), skew=2),
    "two instances, a joiner, a death": Bounds(instances=2, spare=1, deaths=1),
    "two instances, a slow operator": Bounds(instances=2, spare=0, deaths=0, stale_reads=True),
    "a joiner, a slow operator": Bounds(instances=1, spare=1, deaths=0, stale_reads=True),
    "forks and deaths": Bounds(instances=1, spare=1, deaths=1, forks=True),
    "max_stale instead of names": Bounds(instances=2, spare=0, deaths=1, max_stale=2),
    "two emergencies": Bounds(instances=2, spare=0, deaths=0, emergencies=2),
    "reports that do not arrive": Bounds(instances=2, spare=0, deaths=0, lost_reports=True, emergencies=1),
    "reports that do not tell their mints": Bounds(instances=2, spare=0, deaths=1, tell_mints=False),
}


def explore(name: str, bounds: Bounds, record_property) -> None:
    result = search(bounds)
    whole = "all" if result.exhausted else "the first"
    # Printed by the summary in tests/conftest.py.
    record_property(
        "summary", f"model check, {name}: {whole} {result.states:,} states, {result.transitions:,} transitions"
    )
    phases = {phase for phase, *_ in result.reached}
    assert phases == {0, 1, 2} | ({"rolling_back"} if bounds.rollbacks else set()), "the search did not get anywhere"
    assert any(phase == 0 and rotations < bounds.rotations for phase, _, (_, rotations) in result.reached)


@pytest.mark.parametrize("name", QUICK)
def test_no_interleaving_refuses_a_live_token_or_accepts_a_retired_key(name, record_property):
    explore(name, QUICK[name], record_property)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SLOW)
def test_larger_worlds_too(name, record_property):
    explore(name, replace(SLOW[name], max_states=200_000), record_property)


# --- planted bugs ------------------------------------------------------------------------------------------------


def test_it_finds_mint_first(monkeypatch):
    """NEW mints from phase 1 on, before every instance verifies it."""
    honest = rotation.succeed

    def mint_first(keyset, step, at, what, **fields):
        if fields.get("fresh") == "verifying":
            old = keyset.minting.kid
            fields |= {"fresh": "minting", "states": {old: "verifying"}}
            fields["rotation"] = replace(fields["rotation"], phase=2, steps=(
                replace(fields["rotation"].steps[0], phase=2),
            ))  # fmt: skip
        return honest(keyset, step, at, what, **fields)

    monkeypatch.setattr(rotation, "succeed", mint_first)
    with pytest.raises(Violation, match="alive and refused"):
        search(Bounds(instances=2, spare=0, deaths=0))


def without(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take one refusal out of every assessment."""
    honest = gates.assess

    def lenient(*args):
        found = honest(*args)
        standings = tuple(
            replace(s, blocking=None) if s.blocking is not None and s.blocking.code == code else s
            for s in found.standings
        )
        return replace(found, standings=standings, refusals=tuple(r for r in found.refusals if r.code != code))

    monkeypatch.setattr(rotation, "assess", lenient)


@pytest.mark.parametrize("code", ["gate-lagging", "gate-ttl", "gate-silent", "gate-joining"])
def test_it_finds_a_gate_that_is_left_out(code, monkeypatch):
    without(code, monkeypatch)
    bounds = {
        "gate-silent": Bounds(instances=2, spare=0, deaths=0, max_stale=9),
        "gate-joining": Bounds(instances=1, spare=1, deaths=0),
    }.get(code, Bounds(instances=2, spare=0, deaths=0))
    with pytest.raises(Violation, match="alive and refused"):
        search(bounds)


def test_it_finds_retiring_by_the_step_instead_of_the_last_mint(monkeypatch):
    """The wait counted from when phase 2 was written, by the operator's clock."""
    honest = gates.Judge._minted
    monkeypatch.setattr(gates.Judge, "_minted", lambda self, received: None)
    with pytest.raises(Violation, match="alive and refused"):
        search(Bounds(instances=2, spare=0, deaths=0))
    monkeypatch.setattr(gates.Judge, "_minted", honest)


def test_it_finds_a_named_instance_that_is_not_waited_for(monkeypatch):
    """`--allow-missing` taken as if the instance had never minted."""
    honest = gates.Judge.standing

    def forgetful(self, instance, rejected):
        return replace(honest(self, instance, rejected), mints_until=None, fresh=False)

    monkeypatch.setattr(gates.Judge, "standing", forgetful)
    with pytest.raises(Violation, match="alive and refused"):
        search(Bounds(instances=2, spare=0, deaths=1, rollbacks=False))


def test_it_finds_a_rollback_that_retires_new_at_once(monkeypatch):
    honest = gates.assess

    def hasty(keyset, reports, step, now, gate):
        found = honest(keyset, reports, step, now, gate)
        if step.to == "rollback":
            found = replace(found, refusals=tuple(r for r in found.refusals if r.code != "gate-ttl"))
        return found

    monkeypatch.setattr(rotation, "assess", hasty)
    with pytest.raises(Violation, match="rollback"):
        search(Bounds(instances=1, spare=0, deaths=0, ttl=3))


def test_it_finds_the_missing_skew(monkeypatch):
    """Clocks differ by up to skew; waiting one ttl only is too short."""
    honest = gates.assess

    def hasty(keyset, *rest):
        return honest(replace(keyset, skew_seconds=0), *rest)

    monkeypatch.setattr(rotation, "assess", hasty)
    monkeypatch.setattr(gates, "clock_tolerance", lambda keyset: 10_000)
    monkeypatch.setattr("mcpkeys.standing.clock_tolerance", lambda keyset: 10_000)
    with pytest.raises(Violation, match="alive and refused"):
        search(Bounds(instances=2, spare=0, deaths=0, offsets=(2, -2), skew=4, ttl=1, rollbacks=False))


def test_it_finds_joining_in_the_wrong_order():
    with pytest.raises(Violation, match="join"):
        search(Bounds(instances=1, spare=1, deaths=0, load_first=True, rollbacks=False))


def test_it_finds_a_forked_child_that_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(gates, "PHASE_REFRESHES", 0)
    monkeypatch.setattr(gates.Judge, "_minted", lambda self, received: None)
    with pytest.raises(Violation, match="alive and refused"):
        search(Bounds(instances=1, spare=1, deaths=0, forks=True))
