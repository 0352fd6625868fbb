"""Reports under attack: forged, replayed, copied, deleted. The plan sees through it or waits; it never hurries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from servers.fakefleet import Fleet, refresh

from mcpkeys import reports, rotation
from mcpkeys.encoding import b64u
from mcpkeys.keyset import dumps
from mcpkeys.rotation import Step
from mcpkeys.store import Found
from mcpkeys.testing import FakeClock

INTERVAL = 30


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    made = Fleet(clock=FakeClock())
    made.create()
    yield made
    made.close()


def plan(fleet: Fleet, to: object, **step: object) -> rotation.Plan:
    """What the operator would do now, from what lies in the store."""
    gathered = fleet.gathered()
    asked = Step(to, rejected=gathered.rejected, operator_clock=fleet.clock.time(), **step)
    return rotation.plan(fleet.keyset, gathered.received, asked, fleet.clock.time())


def write(fleet: Fleet, answer: rotation.Plan) -> None:
    assert answer.verdict == "do", answer
    fleet.store(
        rotation.complete(
            answer.document, key=fleet.data_key(), rotation_id=b64u(bytes(9)), report_key=fleet.report_key()
        )
    )


def everyone(fleet: Fleet, seconds: float, *, but: object = None) -> None:
    """Time passes; everyone refreshes in each interval, but one."""
    while seconds > 0:
        fleet.clock.advance(min(INTERVAL, seconds))
        seconds -= INTERVAL
        for codec in fleet.opened:
            if codec is not but:
                refresh(codec)


def lies(fleet: Fleet, codec) -> str:
    """Where the report of this instance lies."""
    return codec.status()["instance"]["id"]


def stored(fleet: Fleet, instance: str) -> bytes:
    return fleet.place.stored_reports[instance].body


def plant(fleet: Fleet, instance: str, body: bytes) -> None:
    fleet.place.stored_reports[instance] = fleet.place.stamp(body, instance)


def lagging_fleet(fleet: Fleet):
    """Two instances in phase 1, one of which has not learnt the new key. Returns the one that lags."""
    fleet.open("quick")
    slow = fleet.open("slow")
    everyone(fleet, INTERVAL)
    write(fleet, plan(fleet, 1))
    everyone(fleet, 4 * INTERVAL, but=slow)
    refresh(fleet.opened[0])
    return slow


def test_the_honest_case_goes_on(fleet: Fleet) -> None:
    slow = lagging_fleet(fleet)
    assert plan(fleet, 2).verdict == "unsafe"
    refresh(slow)
    assert plan(fleet, 2).verdict == "do"


# --- a writer of the store without any key ------------------------------------------------------------------------


def forgeries(body: bytes) -> dict[str, bytes]:
    """A report made to say that the new key is known, in every way that needs no key."""
    value = json.loads(body)
    better = {**value, "generation": value["generation"] + 1, "verifies": [*value["verifies"], "A" * 12]}
    text = body.decode()
    return {
        "the old mac": json.dumps(better).encode(),
        "no mac": json.dumps({k: v for k, v in better.items() if k != "mac"}).encode(),
        "an empty mac": json.dumps({**better, "mac": ""}).encode(),
        "mac null": json.dumps({**better, "mac": None}).encode(),
        "a list of macs": json.dumps({**better, "mac": [value["mac"]]}).encode(),
        "the name twice": text.replace('"generation"', '"generation": 99, "generation"', 1).encode(),
        "the mac twice": text.replace('"mac"', '"mac": "x", "mac"', 1).encode(),
        "a farewell": text.replace('"serving"', '"farewell"').encode(),
        "a younger clock": json.dumps({**value, "clock": value["clock"] + 60_000}).encode(),
        "empty": b"",
        "half": body[: len(body) // 2],
        "too long": body + b" " * 70_000,
        "not UTF-8": body.replace(b"slow", b"s\xffow"),
        "nested": b'{"mac":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    }


@pytest.mark.parametrize("how", sorted(forgeries(b'{"generation":1,"verifies":[],"clock":1,"mac":""}')))
def test_a_forged_report_is_told_and_blocks(fleet: Fleet, how: str) -> None:
    slow = lagging_fleet(fleet)
    instance = lies(fleet, slow)
    plant(fleet, instance, forgeries(stored(fleet, instance))[how])
    answer = plan(fleet, 2)
    assert answer.verdict == "unsafe"
    assert [(entry.instance, entry.code) for entry in answer.blocking] == [(instance, "gate-report-rejected")]
    assert slow.ready()
    refresh(slow)
    assert plan(fleet, 2).verdict == "do", "its next true report heals it"


def test_another_instance_s_report_under_this_name_is_a_copy(fleet: Fleet) -> None:
    slow = lagging_fleet(fleet)
    plant(fleet, lies(fleet, slow), stored(fleet, lies(fleet, fleet.opened[0])))
    answer = plan(fleet, 2)
    assert answer.verdict == "unsafe"
    assert "a copy of another instance's report" in answer.blocking[0].why


def test_another_service_s_authentic_report_counts_for_nothing(fleet: Fleet) -> None:
    slow = lagging_fleet(fleet)
    other = Fleet("other", clock=fleet.clock)
    other.create(report_key=replace(fleet.keyset.report_key))
    instance = lies(fleet, slow)
    body = reports.encode(replace(fleet.report(slow), keyset="other"), fleet.keys[fleet.keyset.report_key.kid])
    plant(fleet, instance, body)
    assert "of another keyset" in plan(fleet, 2).blocking[0].why


def test_a_deleted_report_is_missing_not_gone(fleet: Fleet) -> None:
    slow = lagging_fleet(fleet)
    del fleet.place.stored_reports[lies(fleet, slow)]
    answer = plan(fleet, 2)
    assert answer.verdict == "unsafe"
    assert [(entry.instance, entry.code) for entry in answer.blocking] == [(lies(fleet, slow), "gate-report-missing")]


def test_all_reports_deleted_are_no_empty_fleet(fleet: Fleet) -> None:
    lagging_fleet(fleet)
    fleet.place.stored_reports.clear()
    for to in (2, "auto"):
        assert plan(fleet, to).verdict == "unsafe"


def test_a_deleted_report_comes_back_with_the_next_refresh(fleet: Fleet) -> None:
    codec = fleet.open()
    fleet.place.stored_reports.clear()
    refresh(codec)
    assert fleet.report(codec).state == "serving"


def test_an_older_report_replayed_for_a_dead_instance_does_not_make_it_look_alive(fleet: Fleet) -> None:
    """The store stamps a replay as new, but the report carries the clock that it was written by."""
    slow = lagging_fleet(fleet)
    instance, last = lies(fleet, slow), stored(fleet, lies(fleet, slow))
    plant(fleet, instance, last)
    answer = plan(fleet, 2)
    assert answer.verdict == "unsafe"
    assert answer.blocking[0].code == "gate-clock"


def test_a_replay_fresh_enough_to_pass_for_a_slow_journey_proves_nothing_new(fleet: Fleet) -> None:
    """Within half of skew_seconds: it confirms no more than it did, and its last mint counts as that much later."""
    fleet.open("quick")
    slow = fleet.open("slow")
    everyone(fleet, INTERVAL)
    write(fleet, plan(fleet, 1))
    old = stored(fleet, lies(fleet, slow))  # 30 s old by the next line
    everyone(fleet, INTERVAL)
    plant(fleet, lies(fleet, slow), old)
    everyone(fleet, 4 * INTERVAL, but=slow)
    plant(fleet, lies(fleet, slow), old)
    assert plan(fleet, 2).verdict == "unsafe"


def test_a_report_from_before_the_phase_replayed_in_phase_2_never_opens_phase_3(fleet: Fleet) -> None:
    quick, slow = fleet.open("quick"), fleet.open("slow")
    everyone(fleet, INTERVAL)
    write(fleet, plan(fleet, 1))
    everyone(fleet, 4 * INTERVAL)
    write(fleet, plan(fleet, 2))
    seen = []
    for _ in range(60):
        everyone(fleet, INTERVAL, but=slow)
        for body in (*seen, stored(fleet, lies(fleet, slow))):
            plant(fleet, lies(fleet, slow), body)
            assert plan(fleet, 3).verdict != "do"
            seen = [body, *seen][:2]
    assert quick.ready()


def test_the_farewell_of_one_instance_is_no_farewell_of_another(fleet: Fleet) -> None:
    slow = lagging_fleet(fleet)
    quick = fleet.opened[0]
    gone = lies(fleet, quick)
    quick.close()
    farewell = stored(fleet, gone)
    plant(fleet, lies(fleet, slow), farewell)
    plant(fleet, lies(fleet, slow), farewell.replace(gone.encode(), lies(fleet, slow).encode()))
    answer = plan(fleet, 2)
    assert answer.verdict == "unsafe"
    assert answer.blocking[0].code == "gate-report-rejected"


def test_thousands_of_planted_reports_cost_the_operator_time_and_the_servers_nothing(fleet: Fleet) -> None:
    codec = fleet.open()
    body = stored(fleet, lies(fleet, codec))
    for number in range(2_000):
        plant(fleet, f"{number:022d}", body)
    gathered = fleet.gathered()
    assert (len(gathered.received), len(gathered.rejected)) == (1, 2_000)
    reads = fleet.place.gate.calls["reports"]
    refresh(codec)
    assert fleet.place.gate.calls["reports"] == reads
    assert codec.ready()


def test_a_report_whose_name_climbs_out_of_its_place_is_no_report(fleet: Fleet) -> None:
    codec = fleet.open()
    body = stored(fleet, lies(fleet, codec))
    key = fleet.keys[fleet.keyset.report_key.kid]
    gathered = reports.gather([Found(body, "1", 0.0, "../fleet.keyset.json")], [key], keyset="fleet")
    assert not gathered.received


# --- a compromised server: it holds the data keys and the report key ----------------------------------------------


def test_it_can_speak_for_others_until_the_report_key_is_renewed(fleet: Fleet) -> None:
    """The residual: whoever holds the report key forges any report of this keyset. An emergency ends it."""
    slow = lagging_fleet(fleet)
    stolen = fleet.keys[fleet.keyset.report_key.kid]
    true = fleet.report(fleet.opened[0])
    claimed = replace(true, instance=lies(fleet, slow), seq=99, clock=fleet.now_ms)
    plant(fleet, lies(fleet, slow), reports.encode(claimed, stolen))
    assert plan(fleet, 2).verdict == "do", "the price of this residual: rounds refused at the lagging instance"

    fleet.burn(fleet.keyset.minting.kid, rotation=None)
    everyone(fleet, INTERVAL)
    plant(fleet, lies(fleet, slow), reports.encode(claimed, stolen))
    assert [instance for instance, _ in fleet.gathered().rejected] == [lies(fleet, slow)]


def test_its_right_to_unwrap_opens_no_signer(fleet: Fleet) -> None:
    """Purposes `seal` and `report` are all that a server's policy allows; the wrap of the signer answers to neither."""
    codec = fleet.open()
    loader, keyset = codec.refresher.loader, fleet.keyset
    kms = next(iter(loader.keks))
    for purpose in ("seal", "report"):
        for kid in (keyset.signer.kid, keyset.minting.kid, keyset.report_key.kid):
            forged = loader._job(purpose, keyset, kid, keyset.signer.wrapped)
            with pytest.raises(Exception, match="does not unwrap"):
                kms.unwrap(forged.wrapped[0], forged.context, deadline=fleet.clock.monotonic() + 5)


def test_its_data_keys_sign_no_document_and_make_no_report_of_another_keyset(fleet: Fleet) -> None:
    codec = fleet.open()
    for key in fleet.keys.values():
        assert key not in dumps(fleet.keyset)
        with pytest.raises(reports.BadReport):
            reports.decode(
                reports.encode(fleet.report(codec), key),
                [k for k in fleet.keys.values() if k != key],
                keyset="fleet",
            )


def test_a_burnt_key_takes_the_compromised_servers_tokens_with_it(fleet: Fleet) -> None:
    codec, thief = fleet.open(), fleet.open()
    forged = thief.seal(b"forged by a stolen key")
    assert codec.unseal(forged) == b"forged by a stolen key"
    fleet.burn(fleet.keyset.minting.kid)
    refresh(codec)
    with pytest.raises(Exception, match="retired key"):
        codec.unseal(forged)
