"""What the plan of an emergency says and records."""

from __future__ import annotations

from dataclasses import replace

from vectors import make

from mcpkeys import rotation
from mcpkeys.encoding import b64u
from mcpkeys.keyset import ReportKey, StepEvidence
from mcpkeys.reports import ReceivedReport
from mcpkeys.standing import silent_after
from mcpkeys.steps import NEW_KID, REPORT_KID, Step

KEYSET = make.keyset()
VERIFYING, MINTING, RETIRED = KEYSET.keys
NOW = make.NOW / 1000
HERE, GONE = make.report().instance, b64u(make.fixed("gone", 16))


def burn(kid: str, *, seen: float = NOW, allow_missing: tuple[str, ...] = ()) -> rotation.Plan:
    step = Step(to="emergency", kid=kid, reason="leaked", allow_missing=allow_missing)
    return rotation.plan(KEYSET, [ReceivedReport(make.report(), seen)], step, NOW)


def test_burning_the_minter_says_what_still_verifies() -> None:
    found = burn(MINTING.kid)
    assert found.verdict == "do"
    assert f"{VERIFYING.kid} keeps verifying and waits for --phase 3" in found.why
    assert "A fresh key mints at once" in found.why
    assert found.needs_key
    assert found.needs_report_key


def test_burning_another_key_leaves_the_minter() -> None:
    found = burn(VERIFYING.kid)
    assert f"{MINTING.kid} goes on minting" in found.why
    assert "keeps verifying" not in found.why
    assert not found.needs_key
    assert found.needs_report_key
    assert found.document is not None
    assert found.document.rotation is not None
    assert found.document.rotation.ended == "emergency"


def test_a_word_on_an_instance_that_reports_is_recorded_and_not_believed() -> None:
    fresh = burn(MINTING.kid, allow_missing=(HERE, GONE)).document
    assert fresh is not None
    assert fresh.history[-1].overrides == (
        f"--allow-missing {GONE}",
        f"--allow-missing {HERE}: its report is not believed",
    )
    assert fresh.rotation is not None
    assert fresh.rotation.steps[-1].evidence.missing == (GONE,)
    assert fresh.rotation.steps[-1].evidence.word == f"{MINTING.kid} is burnt"
    silent = burn(MINTING.kid, seen=NOW - 10_000, allow_missing=(HERE,)).document
    assert silent is not None
    assert silent.history[-1].overrides == (f"--allow-missing {HERE}",)


def test_a_retired_key_is_burnt_already() -> None:
    assert burn(RETIRED.kid).verdict == "done"


def test_who_still_accepts_the_key_is_named_unless_it_has_left_or_never_held_it() -> None:
    report = make.report()
    others = {
        "left": replace(report, instance=b64u(make.fixed("left", 16)), state="farewell"),
        "without": replace(report, instance=b64u(make.fixed("without", 16)), verifies=(VERIFYING.kid,)),
    }
    received = [ReceivedReport(one, NOW) for one in (report, *others.values())]
    step = Step(to="emergency", kid=MINTING.kid, reason="leaked")
    assert rotation.plan(KEYSET, received, step, NOW).still_accepting == (HERE,)


def test_a_fleet_that_could_not_be_seen_is_said_and_recorded() -> None:
    step = Step(to="emergency", kid=MINTING.kid, reason="leaked", blind="the report key is out of reach")
    found = rotation.plan(KEYSET, [], step, NOW)
    assert found.document is not None
    assert found.document.history[-1].overrides == ("no report was read: the report key is out of reach",)
    assert found.why != burn(MINTING.kid).why
    assert "the report key is out of reach" in found.why


def test_only_who_is_silent_for_three_refreshes_can_be_named() -> None:
    silent = silent_after(KEYSET) / 1000
    for seen, stopped in ((NOW - silent, ()), (NOW - silent - 0.001, (HERE,))):
        found = burn(MINTING.kid, seen=seen, allow_missing=(HERE,)).document
        assert found is not None
        assert found.rotation is not None
        assert found.rotation.steps[-1].evidence == StepEvidence(
            "none", missing=stopped, word=f"{MINTING.kid} is burnt"
        )


def test_what_is_left_and_who_mints_then_is_said_in_full() -> None:
    minter, other = MINTING.kid, VERIFYING.kid
    gone = "verifies nowhere once an instance has refreshed; rounds in flight under it are refused."
    fresh = (
        "A fresh key mints at once: for one refresh interval its rounds may be refused by instances that have not "
        "refreshed."
    )
    assert burn(minter).why == f"{minter} {gone} {fresh} {other} keeps verifying and waits for --phase 3."
    assert burn(other).why == f"{other} {gone} {minter} goes on minting."
    for kid, what in (
        (minter, f"emergency: {minter} is burnt, {NEW_KID} mints"),
        (other, f"emergency: {other} is burnt"),
    ):
        found = burn(kid)
        assert found.document is not None
        assert found.document.history[-1].what == what
        assert (found.to, found.next) == ("emergency", "mcpkeys status --watch")


def test_states_after_burning_in_each_phase() -> None:
    running = KEYSET.rotation
    assert running is not None
    early = replace(
        KEYSET,
        rotation=replace(running, phase=1, from_kid=MINTING.kid, to_kid=VERIFYING.kid),
    )
    ended = replace(KEYSET, rotation=replace(running, ended="rolled_back"))
    without = replace(KEYSET, rotation=None)
    for keyset, kid, states, end in (
        (KEYSET, MINTING.kid, "verifying retired retired minting", "emergency"),
        (KEYSET, VERIFYING.kid, "retired minting retired", "emergency"),
        # NEW of phase 1, which nobody minted, goes with OLD; alone it goes alone.
        (early, MINTING.kid, "retired retired retired minting", "emergency"),
        (early, VERIFYING.kid, "retired minting retired", "emergency"),
        (ended, MINTING.kid, "verifying retired retired minting", "rolled_back"),
        (without, MINTING.kid, "verifying retired retired minting", None),
    ):
        step = Step(to="emergency", kid=kid, reason="leaked")
        found = rotation.plan(keyset, [], step, NOW).document
        assert found is not None
        assert [key.state for key in found.keys] == states.split()
        assert (None if found.rotation is None else found.rotation.ended) == end
        assert found.report_key == ReportKey(REPORT_KID, ())


def test_whoever_reports_joins_the_roster() -> None:
    found = burn(MINTING.kid).document
    assert found is not None
    assert found.rotation is not None
    assert KEYSET.rotation is not None
    assert set(found.rotation.roster) == {*KEYSET.rotation.roster, HERE}
