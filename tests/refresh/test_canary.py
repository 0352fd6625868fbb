"""A KEK version can vanish under a quiet fleet: each instance looks once a day, and after every rewrap."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from servers.fakefleet import Fleet, pass_time, refresh

from mcpkeys.testing import FakeClock, FakeKek

DAY = 86_400.0


@pytest.fixture
def fleet():
    clock = FakeClock()
    made = Fleet(clock=clock, keks=[FakeKek(f"fake:///kek-{n}", clock=clock) for n in (1, 2)])
    made.create()
    yield made
    made.close()


def asked(fleet: Fleet) -> list[int]:
    return [kek.gate.calls["unwrap"] for kek in fleet.keks]


def test_the_nearest_kek_is_asked_about_once_a_day(fleet: Fleet) -> None:
    codec = fleet.open()
    pass_time(codec, DAY, tick=120)
    before = asked(fleet)
    pass_time(codec, 10 * DAY, tick=1800)
    near, far = (after - now for after, now in zip(asked(fleet), before, strict=True))
    assert 8 <= near <= 13
    assert far == 0
    canary = fleet.report(codec).canary[fleet.keks[0].uri]
    assert canary.ok
    assert fleet.now_ms - canary.at < 1.3 * DAY * 1000


def test_a_kek_that_opened_nothing_yet_is_proven_soon_after_the_start(fleet: Fleet) -> None:
    codec = fleet.open()
    assert fleet.report(codec).unwraps_by == (fleet.keks[0].uri,)
    pass_time(codec, 11 * 30)
    assert set(fleet.report(codec).unwraps_by) == {kek.uri for kek in fleet.keks}
    assert asked(fleet)[1] == 1


def test_a_kek_that_rewrap_added_is_proven_at_the_next_refresh(fleet: Fleet) -> None:
    codec = fleet.open()
    pass_time(codec, 11 * 30)
    third = FakeKek("fake:///kek-3", clock=fleet.clock)
    codec.refresher.loader.keks._kms[third.uri] = third.open()
    keys = [
        replace(key, wrapped=fleet.wrapped("seal", key.kid, fleet.keys[key.kid], [*fleet.keks, third]))
        for key in fleet.keyset.keys
    ]
    fleet.next(keys=tuple(keys), keks=(*fleet.keyset.keks, third.uri))
    refresh(codec)
    assert third.uri in fleet.report(codec).unwraps_by
    assert fleet.report(codec).canary[third.uri].ok


def test_a_rewrap_under_newer_versions_is_proven_once_by_every_kek(fleet: Fleet) -> None:
    codec = fleet.open()
    pass_time(codec, 11 * 30)
    before = asked(fleet)
    for kek in fleet.keks:
        kek.rotate()
    keys = [replace(key, wrapped=fleet.wrapped("seal", key.kid, fleet.keys[key.kid])) for key in fleet.keyset.keys]
    fleet.next(keys=tuple(keys))
    pass_time(codec, 300)
    assert [after - now for after, now in zip(asked(fleet), before, strict=True)] == [1, 1]


@pytest.mark.parametrize("loss", ["trimmed", "disabled", "denied"])
def test_a_vanished_version_is_told_once_and_reported(
    fleet: Fleet, caplog: pytest.LogCaptureFixture, loss: str
) -> None:
    codec = fleet.open()
    near = fleet.keks[0]
    if loss == "trimmed":
        near.rotate()
        near.trim()
    near.enabled = loss != "disabled"
    near.faults.denied = loss == "denied"
    with caplog.at_level(logging.INFO, "mcpkeys"):
        pass_time(codec, 4 * DAY, tick=300)
    assert [record.event for record in caplog.records] == ["canary.failed"]
    assert fleet.report(codec).canary[near.uri].ok is False
    assert codec.ready()


def test_an_outage_is_no_vanished_version_and_is_asked_again(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    codec = fleet.open()
    fleet.keks[0].faults.outage = True
    with caplog.at_level(logging.INFO, "mcpkeys"):
        pass_time(codec, 2 * DAY, tick=300)
        fleet.keks[0].faults.clear()
        pass_time(codec, 600, tick=30)
    assert not caplog.records
    assert fleet.report(codec).canary[fleet.keks[0].uri].ok


def test_a_second_kek_that_never_answers_does_not_silence_the_nearest(fleet: Fleet) -> None:
    fleet.keks[1].faults.outage = True
    codec = fleet.open()
    pass_time(codec, 2 * DAY, tick=300)
    assert fleet.report(codec).canary[fleet.keks[0].uri].ok


def test_another_key_in_the_wrap_is_no_success(fleet: Fleet) -> None:
    codec = fleet.open()
    key = fleet.keyset.minting
    other = fleet.wrapped("seal", key.kid, bytes(range(32)), [fleet.keks[1]])
    fleet.next(keys=(replace(key, wrapped=(key.wrapped[0], *other)),))
    refresh(codec)
    assert fleet.report(codec).canary[fleet.keks[1].uri].ok is False
    assert fleet.keks[1].uri not in fleet.report(codec).unwraps_by
