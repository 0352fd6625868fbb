"""Whoever a key leaked to may hold the report key and a place to write: the key is burnt all the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from servers.fakefleet import Fleet

from mcpkeys import listing, reports, restoring, stepping
from mcpkeys.encoding import b64u
from mcpkeys.errors import McpkeysError, StoreDenied, StoreUnreachable
from mcpkeys.keyset import MAX_ROSTER
from mcpkeys.rotation import Step, complete, plan
from mcpkeys.testing import FakeClock

MOST = 2**53 - 1


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    made = Fleet(clock=FakeClock())
    made.create()
    made.open()
    yield made
    made.close()


def lie(fleet: Fleet, **fields: object) -> str:
    """A report that a holder of the report key invents; its instance."""
    instance = b64u(os.urandom(16))
    report = replace(fleet.report(fleet.opened[0]), **{"instance": instance, "clock": fleet.now_ms, **fields})
    body = reports.encode(report, fleet.keys[fleet.keyset.report_key.kid])
    fleet.place.stored_reports[instance] = fleet.place.stamp(body, instance)
    return instance


def burning(fleet: Fleet, **more: object):
    step = Step("emergency", kid=fleet.keyset.minting.kid, reason="leaked", **more)
    return plan(fleet.keyset, fleet.gathered().received, step, fleet.clock.time())


@pytest.mark.parametrize(
    "claim",
    [
        {"generation": MOST},
        {"generation": 2},
        {"digest": "sha256:" + "0" * 64},
        {"generation": MOST, "last_mint": {"A" * 12: MOST}, "ttl_observed": MOST, "minting_since": MOST},
    ],
)
def test_a_claim_of_a_document_that_is_not_stored_stops_no_burn_once_it_is_named(fleet: Fleet, claim: dict) -> None:
    liar = lie(fleet, **claim)
    refusal = burning(fleet)
    assert (refusal.verdict, refusal.code) == ("unsafe", "gate-restored")
    assert f"--allow-missing={liar}" in refusal.next
    answer = burning(fleet, allow_missing=(liar,))
    assert answer.verdict == "do", answer
    assert answer.document.history[-1].overrides == (f"--allow-missing {liar}: its report is not believed",)
    assert plan(fleet.keyset, fleet.gathered().received, Step(1, allow_missing=(liar,)), fleet.clock.time()).code == (
        "gate-restored"
    ), "only an emergency goes by that word"


@pytest.mark.parametrize("fields", [{name: MOST} for name in ("ttl_observed", "minting_since", "max_stale", "clock")])
def test_no_number_in_a_report_stops_a_burn(fleet: Fleet, fields: dict) -> None:
    lie(fleet, **fields)
    assert burning(fleet).verdict == "do"


def test_more_instances_than_a_roster_holds_stop_no_burn(fleet: Fleet) -> None:
    honest = fleet.gathered().received
    begun = plan(fleet.keyset, honest, Step(1), fleet.clock.time()).document
    fleet.store(complete(begun, key=fleet.data_key(), rotation_id=b64u(bytes(9))))
    invented = [
        replace(honest[0], report=replace(honest[0].report, instance=b64u(os.urandom(16)))) for _ in range(MAX_ROSTER)
    ]
    step = Step("emergency", kid=fleet.keyset.minting.kid, reason="leaked")
    answer = plan(fleet.keyset, [*honest, *invented], step, fleet.clock.time())
    whole = complete(answer.document, key=fleet.data_key(), report_key=fleet.report_key())
    assert len(whole.rotation.roster) == MAX_ROSTER


def test_a_lie_does_not_use_up_the_generations_that_are_left(fleet: Fleet) -> None:
    lie(fleet, generation=MOST)
    known = restoring.Evidence(fleet.keyset, fleet.gathered().received)
    answer = restoring.decide(fleet.keyset, known, now=fleet.clock.time(), reason="", who="test")
    assert (answer.verdict, answer.code) == ("unsafe", "restore-unread")
    told = replace(known, above=5_000_000)
    assert restoring.decide(fleet.keyset, told, now=fleet.clock.time(), reason="", who="test").verdict == "unsafe"


class Behind:
    """An author whose reports cannot be gathered."""

    def __init__(self, inner, error: McpkeysError) -> None:
        self._inner, self._error = inner, error

    def gather(self, keyset):
        raise self._error

    def __getattr__(self, name: str):
        return getattr(self._inner, name)


@pytest.mark.parametrize("error", [StoreDenied("not yours"), StoreUnreachable("too many to read in time")])
def test_reports_that_cannot_be_read_stop_every_step_but_a_burn(shell_author, error: McpkeysError) -> None:
    author = Behind(shell_author, error)
    kid = author.read().keyset.minting.kid
    with pytest.raises(type(error)):
        stepping.take(author, Step(1))
    taken = stepping.take(author, Step("emergency", kid=kid, reason="leaked"))
    assert taken.written is not None
    assert taken.written.key(kid).state == "retired"
    assert error.what in taken.written.history[-1].overrides[0]
    assert error.what in taken.plan.why


@pytest.fixture
def shell_author(tmp_path: Path):
    from mcpkeys import registry
    from mcpkeys.authoring import Author
    from mcpkeys.keks import Keks
    from mcpkeys.loading import Pins
    from mcpkeys_local.kekfile import create_kek

    create_kek(tmp_path / "kek.key")
    kek = f"local://{tmp_path}/kek.key"
    store = registry.open_store(str(tmp_path / "fleet.keyset.json"))
    made = Author(store, Keks.open([kek]), Pins("fleet", ()))
    keyset, _ = made.create("fleet", audience="fleet", sign_keks=[kek], now_ms=1_800_000_000_000)
    yield Author(store, Keks.open([kek]), Pins("fleet", (keyset.signer.public,)))
    made.close()


def test_more_reports_than_can_be_looked_at_are_an_error_in_time_and_stop_no_burn(
    shell_author, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b'{"schema":"mcpkeys.report/1","mac":"' + b"A" * 43 + b'","x":[' + b"0," * 20_000 + b"0]}"
    for _ in range(40):
        shell_author.store.put_report(b64u(os.urandom(16)), body, deadline=shell_author.deadline())
    kid = shell_author.read().keyset.minting.kid
    for limit, value in (("MAX_BYTES", 1 << 20), ("LOOK_SECONDS", 0.05)):
        with monkeypatch.context() as patch:
            patch.setattr(listing, limit, value)
            with pytest.raises(StoreUnreachable, match="more reports than can be looked at") as caught:
                stepping.observe(shell_author)
            assert caught.value.code == "reports-flooded"
            blind = stepping.observe(shell_author, blindly=True)
            assert blind.blind
            assert blind.plan(Step("emergency", kid=kid, reason="leaked")).verdict == "do"
    assert len(stepping.observe(shell_author).gathered.rejected) == 40
