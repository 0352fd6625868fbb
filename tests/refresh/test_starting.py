"""Start-up: join before loading, one call per live key and one, within its time, and nothing left behind on failure."""

from __future__ import annotations

import logging

import pytest
from servers.fakefleet import Fleet, refresh

from mcpkeys.errors import McpkeysError, StoreDenied
from mcpkeys.keyset import digest
from mcpkeys.testing import FakeClock, FakeKek
from mcpkeys.testing.fakestore import FakeStore


def watched(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a start does to the store, in order."""
    done: list[str] = []
    read, put = FakeStore.read, FakeStore.put_report

    def reading(self, known, *, fresh, deadline):
        done.append("read fresh" if fresh else "read")
        return read(self, known, fresh=fresh, deadline=deadline)

    def putting(self, instance, body, *, deadline):
        put(self, instance, body, deadline=deadline)
        done.append(fleet.gathered().received[-1].report.state)

    monkeypatch.setattr(FakeStore, "read", reading)
    monkeypatch.setattr(FakeStore, "put_report", putting)
    return done


def test_it_joins_before_it_reads_the_ring_it_serves(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    done = watched(fleet, monkeypatch)
    fleet.open()
    assert done == ["read fresh", "joining", "read fresh", "serving"]


def test_what_changed_while_it_joined_is_served(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    put = FakeStore.put_report

    def overtaken(self, instance, body, *, deadline):
        put(self, instance, body, deadline=deadline)
        monkeypatch.setattr(FakeStore, "put_report", put)
        fleet.learn()

    monkeypatch.setattr(FakeStore, "put_report", overtaken)
    codec = fleet.open()
    assert codec.ring.generation == 2
    report = fleet.report(codec)
    assert (report.state, report.generation, report.digest) == ("serving", 2, digest(fleet.keyset))
    assert set(report.verifies) == {key.kid for key in fleet.keyset.live}


def test_a_start_costs_one_unwrap_per_live_key_and_one(fleet: Fleet) -> None:
    fleet.learn()
    fleet.learn()
    fleet.turn()
    fleet.open()
    assert fleet.unwraps == 3 + 1


def test_a_key_burnt_while_it_joined_is_not_served(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    put = FakeStore.put_report
    burnt = fleet.keyset.minting.kid

    def overtaken(self, instance, body, *, deadline):
        put(self, instance, body, deadline=deadline)
        monkeypatch.setattr(FakeStore, "put_report", put)
        fleet.keks[0].faults.fail_next = 1
        fleet.burn(burnt)

    monkeypatch.setattr(FakeStore, "put_report", overtaken)
    codec = fleet.open()
    assert codec.ring.generation == 2
    assert not codec.ring.keys[burnt].unwrapped
    assert codec.ready()


def test_an_instance_that_cannot_report_does_not_start(fleet: Fleet) -> None:
    fleet.place.faults.read_only = True
    with pytest.raises(StoreDenied) as raised:
        fleet.open()
    assert raised.value.code == "report-denied"
    assert "attest" in raised.value.next
    assert not fleet.place.stored_reports


def test_with_attestation_nothing_is_ever_written(fleet: Fleet) -> None:
    fleet.next(evidence="attest")
    fleet.place.faults.read_only = True
    with fleet.open() as codec:
        for _ in range(3):
            refresh(codec)
        assert codec.ready()
        assert codec.refresher.report_error is None
    assert fleet.place.gate.calls["put_report"] == 0


def test_a_start_that_fails_after_joining_withdraws_itself(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or every rotation would wait for an instance that never was."""
    put = FakeStore.put_report

    def overtaken(self, instance, body, *, deadline):
        put(self, instance, body, deadline=deadline)
        if fleet.keyset.generation == 1:
            fleet.learn(keks=[FakeKek("fake:///foreign", clock=fleet.clock)])

    monkeypatch.setattr(FakeStore, "put_report", overtaken)
    with pytest.raises(McpkeysError) as raised:
        fleet.open()
    assert raised.value.code == "keyset-locked"
    (entry,) = fleet.gathered().received
    assert entry.report.state == "farewell"


def test_a_report_that_fails_later_hurts_no_one(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    codec = fleet.open()
    fleet.place.faults.read_only = True
    with caplog.at_level(logging.INFO, "mcpkeys"):
        for _ in range(5):
            refresh(codec)
    assert codec.ready()
    assert codec.unseal(codec.seal(b"x")) == b"x"
    assert codec.status()["refresh"]["error"] is None
    assert codec.status()["refresh"]["report_error"]["code"] == "report-denied"
    assert [record.event for record in caplog.records] == ["report.failed"]
    fleet.place.faults.clear()
    with caplog.at_level(logging.INFO, "mcpkeys"):
        refresh(codec)
    assert [record.event for record in caplog.records] == ["report.failed", "report.recovered"]


def test_the_farewell_is_the_last_word(fleet: Fleet) -> None:
    """A refresh that was under way when the codec closed must not raise the dead."""
    codec = fleet.open()
    refresher = codec.refresher
    read = refresher.loader.store.read

    def closes_meanwhile(*args, **kwargs):
        codec.close()
        return read(*args, **kwargs)

    refresher.loader.store.read = closes_meanwhile
    refresh(codec)
    (entry,) = fleet.gathered().received
    assert entry.report.state == "farewell"


def test_a_farewell_that_cannot_be_written_does_not_keep_a_process_alive(fleet: Fleet) -> None:
    codec = fleet.open()
    fleet.place.faults.latency = 100.0
    before = fleet.clock.monotonic()
    codec.close()
    assert fleet.clock.monotonic() - before <= 2.5


# --- time ---------------------------------------------------------------------------------------------------------


def test_a_dead_kms_at_start_is_given_up_within_ten_seconds_naming_every_kek(fleet: Fleet) -> None:
    fleet.keks = [FakeKek(f"fake:///kek-{n}", clock=fleet.clock) for n in (1, 2)]
    fleet.create()
    for kek in fleet.keks:
        kek.faults.outage = True
    before = fleet.clock.monotonic()
    with pytest.raises(McpkeysError) as raised:
        fleet.open()
    assert raised.value.code == "kms-unreachable"
    assert raised.value.exit_code == 4
    assert all(kek.uri in str(raised.value) for kek in fleet.keks)
    assert fleet.clock.monotonic() - before <= 10.0
    assert fleet.keks[0].gate.calls["unwrap"] > 3


def test_a_silent_kms_has_two_seconds_a_call_and_ten_in_all(fleet: Fleet) -> None:
    fleet.keks[0].faults.latency = 1000.0
    before = fleet.clock.monotonic()
    with pytest.raises(McpkeysError):
        fleet.open()
    # One key after the other here; in parallel in a server.
    assert fleet.clock.monotonic() - before <= 10.0 + 2.0
    assert 2 <= fleet.unwraps <= 7


@pytest.mark.parametrize("seconds", [4, 45])
def test_a_throttling_kms_extends_the_start_to_a_minute(fleet: Fleet, seconds: int) -> None:
    fleet.keks[0].faults.per_second = 0
    began, sleep = fleet.clock.monotonic(), fleet.clock.sleep

    def until(duration: float) -> None:
        sleep(duration)
        if fleet.clock.monotonic() - began >= seconds:
            fleet.keks[0].faults.per_second = None

    fleet.clock.sleep = until
    codec = fleet.open()
    assert codec.ready()
    assert seconds <= fleet.clock.monotonic() - began <= seconds + 10


def test_a_kms_that_throttles_for_ever_is_given_up_after_a_minute(fleet: Fleet) -> None:
    fleet.keks[0].faults.per_second = 0
    began = fleet.clock.monotonic()
    with pytest.raises(McpkeysError) as raised:
        fleet.open()
    assert raised.value.throttled
    assert 45 <= fleet.clock.monotonic() - began <= 60


def test_a_denial_is_not_tried_again(fleet: Fleet) -> None:
    fleet.keks[0].faults.denied = True
    with pytest.raises(McpkeysError) as raised:
        fleet.open()
    assert raised.value.exit_code == 7
    assert fleet.unwraps == 2


def test_a_store_that_stumbles_at_start_is_asked_again(fleet: Fleet) -> None:
    fleet.place.faults.fail_next = 3
    assert fleet.open().ready()


def test_a_dead_store_at_start_is_given_up_within_ten_seconds(fleet: Fleet) -> None:
    fleet.place.faults.outage = True
    began = fleet.clock.monotonic()
    with pytest.raises(McpkeysError) as raised:
        fleet.open()
    assert raised.value.code == "store-unreachable"
    assert fleet.clock.monotonic() - began <= 10


# --- who could open the signer ------------------------------------------------------------------------------------


def test_a_server_says_that_it_could_open_the_signer(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    uris = "local:///etc/mcpkeys/kek.key", "hashivault://fleet"
    fleet = Fleet(clock=clock, keks=[FakeKek(uri, clock=clock) for uri in uris])
    fleet.create()
    with caplog.at_level(logging.WARNING, "mcpkeys"), fleet.open() as codec:
        assert codec.status()["security"]["signer_opened_by"] == ["local:///etc/mcpkeys/kek.key"]
    (said,) = [record for record in caplog.records if record.event == "signer.exposed"]
    assert "--sign-kek" in said.getMessage()


def test_it_does_not_where_the_signer_has_a_kek_of_its_own_or_the_kms_restricts_by_context(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    signers = FakeKek("local:///operators/sign.key", clock=fleet.clock)
    with_own = Fleet(keks=[FakeKek("local:///etc/mcpkeys/kek.key", clock=fleet.clock)], clock=fleet.clock)
    signer = with_own.create().signer
    with_own.next(
        signer=type(signer)(
            signer.public,
            signer.kid,
            with_own.wrapped("sign", signer.kid, with_own.private.private_bytes_raw(), [signers]),
        )
    )
    vault = Fleet(keks=[FakeKek("hashivault://fleet", clock=fleet.clock)], clock=fleet.clock)
    vault.create()
    with caplog.at_level(logging.WARNING, "mcpkeys"):
        for made in (with_own, vault):
            with made.open() as codec:
                assert codec.status()["security"]["signer_opened_by"] == []
    assert not caplog.records
