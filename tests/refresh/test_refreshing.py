"""A ring stays current: when it is read, what a read changes, and what it never disturbs."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest
from mcp.server.request_state import InvalidRequestState
from servers.fakefleet import Fleet, pass_time, refresh

from mcpkeys.errors import CannotSeal, McpkeysError
from mcpkeys.keyset import dumps
from mcpkeys.refresh import POKE_SECONDS
from mcpkeys.testing import FakeKek
from mcpkeys.testing.child import in_child


def refused(codec, token: str) -> str:
    with pytest.raises(InvalidRequestState) as raised:
        codec.unseal(token)
    return str(raised.value)


def unknown_kid(number: int) -> str:
    return f"mk1.{number:012d}" + "A" * 16 + "B" * 60


# --- reading ------------------------------------------------------------------------------------------------------


def test_a_new_generation_is_in_use_within_one_interval(fleet: Fleet) -> None:
    codec = fleet.open()
    token = codec.seal(b"before")
    fleet.learn()
    fleet.turn()
    pass_time(codec, 30)
    assert codec.ring.generation == 3
    assert codec.ring.minting == fleet.keyset.minting.kid
    assert codec.unseal(token) == b"before"
    assert codec.seal(b"after")[4:16] == fleet.keyset.minting.kid


def test_an_unchanged_document_is_neither_transferred_nor_unwrapped_again(fleet: Fleet) -> None:
    codec = fleet.open()
    ring, calls = codec.ring, fleet.unwraps
    given = []
    store = codec.refresher.loader.store
    read = store.read
    store.read = lambda known, **kw: given.append((known, read(known, **kw))) or given[-1][1]
    for _ in range(5):
        refresh(codec)
    assert [answer for _, answer in given] == [None] * 5
    assert all(known == fleet.place.document.version for known, _ in given)
    assert codec.ring is ring
    assert fleet.unwraps == calls


def test_the_same_document_written_again_costs_no_kms_call(fleet: Fleet) -> None:
    codec = fleet.open()
    calls, ring = fleet.unwraps, codec.ring
    fleet.place.put(dumps(fleet.keyset))
    refresh(codec)
    assert (fleet.unwraps, codec.ring) == (calls, ring)


def test_only_what_is_new_is_unwrapped(fleet: Fleet) -> None:
    codec = fleet.open()
    calls = fleet.unwraps
    fleet.learn()
    refresh(codec)
    assert fleet.unwraps == calls + 1


def test_refreshes_are_spread_over_the_last_quarter_of_an_interval(fleet: Fleet) -> None:
    codec, clock = fleet.open(), fleet.clock
    waits = []
    for _ in range(300):
        refresh(codec)
        waits.append(codec.refresher.due - clock.boottime())
    assert 22.5 <= min(waits) < 23.5
    assert 29 < max(waits) <= 30


def test_two_refreshes_at_once_are_one(fleet: Fleet) -> None:
    codec = fleet.open()
    entered, leave = threading.Event(), threading.Event()
    store = codec.refresher.loader.store
    read, reads = store.read, []

    def slow(*args, **kwargs):
        reads.append(1)
        entered.set()
        leave.wait(10)
        return read(*args, **kwargs)

    store.read = slow
    other = threading.Thread(target=refresh, args=(codec,))
    other.start()
    entered.wait(10)
    refresh(codec)
    assert codec.unseal(codec.seal(b"meanwhile")) == b"meanwhile"
    leave.set()
    other.join(10)
    assert len(reads) == 1


def test_the_thread_outlives_a_broken_plugin(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    codec = fleet.open()
    store = codec.refresher.loader.store
    read, put = store.read, store.put_report

    def broken(*args, **kwargs):
        raise ZeroDivisionError("a plugin's own mistake")

    store.read = store.put_report = broken
    with caplog.at_level(logging.INFO, "mcpkeys"):
        for _ in range(4):
            refresh(codec)
    assert [record.getMessage() for record in caplog.records if "ZeroDivisionError" in record.getMessage()]
    assert len(caplog.records) == 1
    assert codec.ready()
    store.read, store.put_report = read, put
    fleet.learn()
    refresh(codec)
    assert codec.ring.generation == 2


def test_an_error_halfway_leaves_no_old_ring_that_counts_as_current(fleet: Fleet) -> None:
    codec = fleet.open()
    refresher = codec.refresher
    swap, refresher._swap = refresher._swap, lambda ring: 1 / 0
    fleet.learn()
    refresh(codec)
    refresher._swap = swap
    refresher.ring = codec.ring
    refresh(codec)
    assert codec.ring.generation == 2


# --- asking early -------------------------------------------------------------------------------------------------


def test_an_unknown_kid_refreshes_early(fleet: Fleet) -> None:
    old, new = fleet.open(), fleet.open()
    fleet.burn(fleet.keyset.minting.kid)
    refresh(new)
    token = new.seal(b"under the fresh key")
    assert refused(old, token) == "unknown key"
    pass_time(old, 1)
    assert old.unseal(token) == b"under the fresh key"


def test_a_flood_of_unknown_kids_is_no_flood_of_refreshes(fleet: Fleet) -> None:
    codec = fleet.open()
    reads = fleet.place.gate.calls["read"]
    number = iter(range(1_000_000))

    def flood() -> None:
        for _ in range(50):
            refused(codec, unknown_kid(next(number)))

    pass_time(codec, 60, each=flood)
    assert fleet.place.gate.calls["read"] - reads <= 60 / POKE_SECONDS + 2
    assert fleet.unwraps == 2


def test_malformed_tokens_ask_for_nothing(fleet: Fleet) -> None:
    codec = fleet.open()
    due = codec.refresher.due
    for token in ("", "mk1.", "mk1.short", unknown_kid(1)[:40], "v1." + "A" * 80, "\udcff" * 90):
        refused(codec, token)
    assert codec.refresher.due == due


def test_an_unknown_kid_seen_during_a_refresh_is_looked_for_after_it(fleet: Fleet) -> None:
    codec = fleet.open()
    store = codec.refresher.loader.store
    read = store.read

    def read_then_see(*args, **kwargs):
        found = read(*args, **kwargs)
        fleet.learn()
        refused(codec, unknown_kid(7))
        store.read = read
        return found

    store.read = read_then_see
    refresh(codec)
    assert codec.ring.generation == 1
    assert codec.refresher.due <= fleet.clock.boottime()


# --- inline -------------------------------------------------------------------------------------------------------


def test_inline_an_overdue_ring_costs_the_next_call_one_refresh(fleet: Fleet) -> None:
    codec = fleet.open(inline=True)
    fleet.learn()
    codec.seal(b"not due yet")
    assert codec.ring.generation == 1
    fleet.clock.suspend(3600)  # frozen between calls: the monotonic clock stood still
    codec.seal(b"due")
    assert codec.ring.generation == 2
    reads = fleet.place.gate.calls["read"]
    for _ in range(20):
        codec.unseal(codec.seal(b"x"))
    assert fleet.place.gate.calls["read"] == reads


def test_inline_a_call_waits_a_few_seconds_for_a_dead_store_and_kms_and_the_next_ones_not_at_all(fleet: Fleet) -> None:
    codec = fleet.open(inline=True)
    fleet.learn()
    for latency in (fleet.place.faults, fleet.keks[0].faults):
        latency.latency = 100.0
    fleet.clock.advance(31)
    before = fleet.clock.monotonic()
    assert codec.unseal(codec.seal(b"x")) == b"x"
    assert fleet.clock.monotonic() - before <= 6.5
    before = fleet.clock.monotonic()
    codec.seal(b"x")
    assert fleet.clock.monotonic() == before


def test_nothing_waits_on_the_caller_s_thread_otherwise(fleet: Fleet) -> None:
    codec = fleet.open()
    fleet.place.faults.latency = fleet.keks[0].faults.latency = 100.0
    fleet.clock.advance(3600)
    calls, before = fleet.place.gate.calls.total(), fleet.clock.monotonic()
    for number in range(100):
        codec.unseal(codec.seal(b"x"))
        refused(codec, unknown_kid(number))
    assert fleet.clock.monotonic() == before
    assert fleet.place.gate.calls.total() == calls


# --- removals win -------------------------------------------------------------------------------------------------


def test_a_burnt_key_is_gone_even_where_the_new_one_cannot_be_unwrapped(fleet: Fleet) -> None:
    codec = fleet.open()
    token = codec.seal(b"under the burnt key")
    assert codec.unseal(token) == b"under the burnt key"  # its derived key is remembered now
    fleet.burn(fleet.keyset.minting.kid)
    fleet.keks[0].faults.outage = True
    before = fleet.clock.monotonic()
    refresh(codec)
    assert refused(codec, token) == "retired key"
    with pytest.raises(CannotSeal) as raised:
        codec.seal(b"x")
    assert raised.value.code == "no-minting-key"
    assert not codec.ready()
    assert codec.refresher.last_error.code == "kms-unreachable"
    assert fleet.clock.monotonic() - before < 15

    fleet.keks[0].faults.clear()
    pass_time(codec, 30)
    assert codec.ready()
    assert codec.unseal(codec.seal(b"again")) == b"again"
    assert refused(codec, token) == "retired key"
    report = fleet.report(codec)
    assert report.mints == fleet.keyset.minting.kid
    assert report.verifies == (fleet.keyset.minting.kid,)


def test_a_removal_waits_for_no_retry(fleet: Fleet) -> None:
    codec = fleet.open()
    token, seen = codec.seal(b"x"), []
    fleet.burn(fleet.keyset.minting.kid)
    fleet.keks[0].faults.per_second = 0
    began, sleep = fleet.clock.monotonic(), fleet.clock.sleep

    def look(seconds: float) -> None:
        seen.append((fleet.clock.monotonic() - began, refused(codec, token)))
        sleep(seconds)

    fleet.clock.sleep = look
    refresh(codec)
    assert seen
    assert all(reason == "retired key" for _, reason in seen)


def test_an_incomplete_ring_reports_what_it_has(fleet: Fleet) -> None:
    fleet.learn()
    codec = fleet.open()
    burnt = fleet.keyset.minting.kid
    kept = fleet.keyset.keys[1].kid
    report_key = fleet.keyset.report_key
    fleet.keks[0].faults.outage = True
    fleet.burn(burnt, report_key=report_key)
    refresh(codec)
    report = fleet.report(codec)
    assert (report.generation, report.mints, report.verifies) == (3, None, (kept,))


def test_a_document_that_removes_nothing_and_cannot_be_unwrapped_changes_nothing(fleet: Fleet) -> None:
    codec = fleet.open()
    ring = codec.ring
    fleet.learn(keks=[FakeKek("fake:///foreign", clock=fleet.clock)])
    refresh(codec)
    assert codec.ring is ring
    assert codec.refresher.last_error.code == "keyset-locked"
    assert fleet.report(codec).generation == 1


def test_the_new_report_key_of_an_emergency_is_fetched(fleet: Fleet) -> None:
    codec = fleet.open()
    former = fleet.keys[fleet.keyset.report_key.kid]
    fleet.burn(fleet.keyset.minting.kid)
    assert [why for _, why in fleet.gathered().rejected] == ["not authentic under this keyset's report key"]
    refresh(codec)
    assert fleet.report(codec).generation == 2
    assert codec.refresher.loader.report_key not in (None, former)


# --- max_stale ----------------------------------------------------------------------------------------------------


@pytest.fixture
def stale(fleet: Fleet) -> Fleet:
    fleet.next(max_stale_seconds=120)
    return fleet


def test_a_stale_ring_neither_mints_nor_verifies_and_recovers(stale: Fleet) -> None:
    codec = stale.open()
    token = codec.seal(b"x")
    stale.place.faults.outage = True
    pass_time(codec, 115)
    assert codec.unseal(token) == b"x"
    pass_time(codec, 10)
    assert refused(codec, token) == "stale ring"
    with pytest.raises(CannotSeal) as raised:
        codec.seal(b"x")
    assert raised.value.code == "stale-ring"
    assert not codec.ready()
    stale.place.faults.clear()
    pass_time(codec, 30)
    assert codec.unseal(token) == b"x"
    assert codec.ready()


@pytest.mark.parametrize("way", ["suspend", "step"])
def test_neither_a_sleeping_machine_nor_a_stepped_clock_hides_staleness(stale: Fleet, way: str) -> None:
    codec = stale.open()
    token = codec.seal(b"x")
    getattr(stale.clock, way)(121)
    assert refused(codec, token) == "stale ring"


def test_a_wall_clock_set_back_does_not_make_a_ring_younger(stale: Fleet) -> None:
    codec = stale.open()
    token = codec.seal(b"x")
    stale.clock.step(-100_000)
    stale.clock.advance(121)
    assert refused(codec, token) == "stale ring"


def test_staleness_counts_from_when_the_refresh_began(stale: Fleet) -> None:
    codec = stale.open()
    stale.place.faults.latency = 4.0
    refresh(codec)
    assert codec.stale_left == pytest.approx(120 - 8.0)


def test_a_new_document_counts_only_if_every_live_key_of_it_was_unwrapped(stale: Fleet) -> None:
    codec = stale.open()
    stale.learn(keks=[FakeKek("fake:///foreign", clock=stale.clock)])
    pass_time(codec, 125)
    assert not codec.ready()


def test_a_removal_that_came_with_a_key_out_of_reach_does_not_count_either(stale: Fleet) -> None:
    codec = stale.open()
    stale.clock.advance(60)
    stale.keks[0].faults.outage = True
    stale.burn(stale.keyset.minting.kid)
    refresh(codec)
    assert codec.ring.generation == 3
    assert codec.stale_left < 61


def test_a_refused_document_does_not_count(stale: Fleet) -> None:
    codec = stale.open()
    stale.place.document = dumps(replace(stale.keyset, ttl_seconds=1))
    pass_time(codec, 125)
    assert not codec.ready()


def test_max_stale_is_adopted_and_dropped_with_the_document(fleet: Fleet) -> None:
    codec = fleet.open()
    assert codec.stale_left is None
    fleet.next(max_stale_seconds=60)
    refresh(codec)
    assert codec.stale_left == 60
    fleet.clock.advance(61)
    assert not codec.ready()
    fleet.next(max_stale_seconds=None)
    refresh(codec)
    assert codec.ready()


# --- outages ------------------------------------------------------------------------------------------------------


def test_ten_minutes_without_store_and_kms_cost_two_log_lines_and_no_round(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    codecs = [fleet.open(), fleet.open()]
    rounds = 0

    def traffic() -> None:
        nonlocal rounds
        for codec in codecs:
            for other in codecs:
                assert other.unseal(codec.seal(b"state")) == b"state"
                rounds += 1

    def run(seconds: float) -> None:
        end = fleet.clock.monotonic() + seconds
        while fleet.clock.monotonic() < end:
            fleet.clock.advance(1)
            for codec in codecs:
                if fleet.clock.boottime() >= codec.refresher.due:
                    refresh(codec)
            traffic()

    with caplog.at_level(logging.INFO, "mcpkeys"):
        fleet.place.faults.outage = fleet.keks[0].faults.outage = True
        run(600)
        fleet.place.faults.clear()
        fleet.keks[0].faults.clear()
        fleet.learn()
        run(60)
    assert rounds > 2000
    assert [codec.ring.generation for codec in codecs] == [2, 2]
    events = [record.event for record in caplog.records]
    # The third is no change of health but of the keyset.
    assert sorted(set(events)) == ["keyset.adopted", "refresh.failed", "refresh.recovered"]
    assert len(events) == 3 * len(codecs)
    assert all(codec.ready() for codec in codecs)
    assert all(fleet.report(codec).generation == 2 for codec in codecs)


def test_an_outage_between_a_read_and_its_report_is_one_event(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    codec = fleet.open()
    store = codec.refresher.loader.store
    read = store.read

    def last_read(*args, **kwargs):
        found = read(*args, **kwargs)
        fleet.place.faults.outage = True
        return found

    store.read = last_read
    with caplog.at_level(logging.INFO, "mcpkeys"):
        refresh(codec)
        store.read = read
        refresh(codec)
        fleet.place.faults.clear()
        refresh(codec)
    assert [record.event for record in caplog.records] == ["refresh.failed", "refresh.recovered"]


def test_status_tells_what_is_wrong_and_since_when(fleet: Fleet) -> None:
    codec = fleet.open()
    fleet.place.faults.outage = True
    pass_time(codec, 90)
    told = codec.status()["refresh"]
    assert told["error"]["code"] == "store-unreachable"
    assert told["report_error"]["code"] == "store-unreachable"
    assert told["age_seconds"] >= 90
    assert told["failures"] >= 3


# --- closing ------------------------------------------------------------------------------------------------------


def test_a_closed_codec_holds_no_key_and_a_late_refresh_brings_none_back(fleet: Fleet) -> None:
    codec = fleet.open()
    token = codec.seal(b"x")
    ring, refresher = codec.ring, codec.refresher
    codec.close()
    codec.close()
    refresher._swap(ring)
    refresh(codec)
    assert refused(codec, token) == "stale ring"
    with pytest.raises(CannotSeal) as raised:
        codec.seal(b"x")
    assert raised.value.code == "closed"
    assert refresher.loader.report_key is None
    assert not codec.ready()
    codec.status()


def test_the_codec_context_closes(fleet: Fleet) -> None:
    with fleet.open() as codec:
        identity = codec.status()["instance"]["id"]
    (entry,) = fleet.gathered().received
    assert (entry.report.instance, entry.report.state) == (identity, "farewell")


def test_a_start_that_fails_says_why_and_leaves_nothing_behind(fleet: Fleet) -> None:
    fleet.keks[0].enabled = False
    with pytest.raises(McpkeysError) as raised:
        fleet.open()
    assert raised.value.code == "kek-unusable"
    assert not fleet.place.stored_reports


# --- fork ---------------------------------------------------------------------------------------------------------


def test_a_fork_never_waits_for_a_lock_that_a_plugin_held(fleet: Fleet) -> None:
    """A plugin's `close` may need a lock that the parent's refresh held; its own fork handler may come to renew it."""
    codec = fleet.open()
    store, held = codec.refresher.loader.store, threading.Event()
    lock, done = threading.Lock(), threading.Event()

    def close() -> None:
        with lock:
            pass

    def amid_a_call() -> None:
        with lock:
            held.set()
            done.wait(20)

    store.close = close
    other = threading.Thread(target=amid_a_call)
    other.start()
    held.wait(10)
    parent = codec.status()["instance"]["id"]
    try:
        answer = in_child(lambda: f"{codec.status()['instance']['id']} {codec.unseal(codec.seal(b'x')).decode()}")
    finally:
        done.set()
        other.join(10)
    child, payload = answer.split()
    assert child != parent
    assert payload == "x"
    assert codec.status()["instance"]["id"] == parent


def test_a_child_serves_the_ring_that_the_refresh_had_just_adopted(fleet: Fleet) -> None:
    """The fork may come between the refresher's swap and the codec's, or before any ring of this version was made."""
    codec = fleet.open()
    fleet.learn()
    swap, answers = codec.refresher._swap, []

    def forks_first(ring) -> None:
        def child() -> str:
            generation = codec.ring.generation
            refresh(codec)
            return f"{generation} {codec.ring.generation}"

        answers.append(in_child(child))
        swap(ring)

    codec.refresher._swap = forks_first
    refresh(codec)
    assert answers == ["2 2"]
    assert codec.ring.generation == 2


def test_a_child_counts_nothing_of_its_parent(fleet: Fleet) -> None:
    codec = fleet.open()
    for _ in range(5):
        codec.seal(b"x")

    def child() -> str:
        (key,) = codec.status()["keys"]
        report = codec._instance.report("serving", codec.ring, keyset="fleet", now=1.0, started=1.0)
        return f"{key['seals']} {dict(report.last_mint)} {len(report.prefixes)} {report.seq}"

    assert in_child(child) == "0 {} 1 1"
    assert codec.status()["keys"][0]["seals"] == 5
