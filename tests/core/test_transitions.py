"""How one document follows another: what is kept, what is cut, what has to be drawn."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
from vectors import make

from mcpkeys import transitions
from mcpkeys.errors import KeysetMalformed
from mcpkeys.keyset import RETIRED_WRAPS_KEPT_SECONDS, HistoryEntry, ReportKey, StepEvidence, digest
from mcpkeys.kms import Wrap
from mcpkeys.reports import ReceivedReport
from mcpkeys.steps import NEW_KID, REPORT_KID, ROTATION_ID, Step

KEYSET = make.keyset()
VERIFYING, MINTING, RETIRED = KEYSET.keys
NOW = make.NOW
ROTATION = KEYSET.rotation
assert ROTATION is not None


def test_the_next_document_is_linked_and_says_who_did_what() -> None:
    step = Step(to=2, who="ops" + "w" * 2000, reason="r" * 2000)
    found = transitions.succeed(KEYSET, step, NOW, "x" * 2000, overrides=["o" * 2000])
    assert (found.generation, found.previous, found.signature) == (8, digest(KEYSET), "")
    assert found.history[:-1] == KEYSET.history
    assert found.history[-1] == HistoryEntry(NOW, ("ops" + "w" * 2000)[:1000], "x" * 1000, 8, "r" * 1000, ("o" * 1000,))
    assert (found.keys, found.rotation, found.report_key) == (KEYSET.keys, ROTATION, KEYSET.report_key)
    assert transitions.succeed(KEYSET, Step(to=2), NOW, "x").history[-1].reason == ""


def test_the_history_and_what_was_overridden_are_bounded() -> None:
    long = replace(KEYSET, history=(HistoryEntry(0, "", "", 1),) * 100)
    found = transitions.succeed(long, Step(to=2), NOW, "x", overrides=["o"] * 5000)
    assert len(found.history) == 100
    assert found.history[-1].what == "x"
    assert len(found.history[-1].overrides) == 4096


def test_a_state_that_changes_begins_now_and_one_that_does_not_goes_on() -> None:
    found = transitions.succeed(
        KEYSET, Step(to=2), NOW, "x", states={VERIFYING.kid: "retired", MINTING.kid: "minting"}, fresh="verifying"
    )
    assert [(key.state, key.state_since) for key in found.keys] == [
        ("retired", NOW),
        ("minting", MINTING.state_since),
        ("retired", RETIRED.state_since),
        ("verifying", NOW),
    ]
    assert found.keys[0].wrapped == VERIFYING.wrapped
    assert (found.keys[3].kid, found.keys[3].created_at, found.keys[3].wrapped) == (NEW_KID, NOW, ())


def test_a_retired_key_keeps_its_wraps_for_thirty_days() -> None:
    old = replace(KEYSET, keys=(MINTING, replace(RETIRED, wrapped=VERIFYING.wrapped, state_since=NOW)))
    kept = RETIRED_WRAPS_KEPT_SECONDS * 1000
    assert transitions.succeed(old, Step(to=2), NOW + kept, "x").keys[1].wrapped == VERIFYING.wrapped
    assert transitions.succeed(old, Step(to=2), NOW + kept + 1, "x").keys[1].wrapped == ()
    # A live one for ever.
    assert transitions.succeed(old, Step(to=2), NOW + 100 * kept, "x").keys[0].wrapped == MINTING.wrapped


def test_a_step_is_always_later_than_the_last() -> None:
    last = ROTATION.steps[-1].entered_at
    assert transitions.stamp(KEYSET, 0) == max(last + 1, MINTING.state_since)
    assert transitions.stamp(KEYSET, last) == last + 1
    assert transitions.stamp(KEYSET, last + 5) == last + 5
    none = replace(KEYSET, rotation=None)
    assert transitions.stamp(none, 0) == MINTING.state_since
    assert transitions.stamp(none, MINTING.state_since + 1) == MINTING.state_since + 1


def test_too_many_words_drop_the_oldest_word_and_never_the_entry_into_a_phase() -> None:
    rotation = replace(ROTATION, steps=ROTATION.steps[:1])
    words = 0
    for number in range(200):
        phase = 1 if number < 100 else 2
        evidence = StepEvidence("attest", word=f"{number}")
        before = rotation.steps
        rotation = transitions.entered(rotation, phase, number, evidence)  # type: ignore[arg-type]
        if len(before) == 64:
            words += 1
            gone = [entry for entry in before if entry not in rotation.steps]
            assert len(gone) == 1
            place = before.index(gone[0])
            assert place >= 1
            assert gone[0].phase == before[place - 1].phase
            firsts = [i for i in range(1, 64) if before[i].phase == before[i - 1].phase]
            assert place == firsts[0]
        assert len(rotation.steps) == min(64, number + 2)
    assert words == 200 - 63
    assert rotation.steps[0] == ROTATION.steps[0]
    assert next(entry.entered_at for entry in rotation.steps if entry.phase == 2) == 100


def test_a_step_s_evidence_and_roster_are_bounded() -> None:
    many = tuple(f"{i}" for i in range(5000))
    evidence = StepEvidence("reports", many, many, many, "w" * 2000)
    found = transitions.entered(ROTATION, 3, NOW, evidence, roster=many, ended="done")
    last = found.steps[-1]
    assert (found.phase, found.ended, found.roster) == (3, "done", many[:4096])
    assert (last.phase, last.entered_at) == (3, NOW)
    assert last.evidence == StepEvidence("reports", many[:4096], many[:4096], many[:4096], "w" * 1000)
    assert transitions.entered(ROTATION, 2, NOW, StepEvidence()).roster == ROTATION.roster
    assert transitions.entered(ROTATION, 2, NOW, StepEvidence()).ended is None


def test_a_rotation_begins_in_phase_1_with_a_key_to_be_drawn() -> None:
    many = tuple(f"{i}" for i in range(5000))
    found = transitions.begun(KEYSET, Step(to=1, expect=3), NOW, many, many)
    assert (found.id, found.phase, found.ended, found.expect) == (ROTATION_ID, 1, None, 3)
    assert (found.from_kid, found.to_kid, found.roster) == (MINTING.kid, NEW_KID, many[:4096])
    (first,) = found.steps
    assert (first.phase, first.entered_at) == (1, NOW)
    assert first.evidence == StepEvidence("none", missing=many[:4096])
    assert transitions.begun(KEYSET, Step(to=1, rotation="AAAABBBBCCCC"), NOW, (), ()).id == "AAAABBBBCCCC"


def test_whoever_reports_and_has_not_left_is_present() -> None:
    report = make.report()
    reports = {
        "b": ReceivedReport(report, 0.0),
        "a": ReceivedReport(replace(report, state="joining"), 0.0),
        "c": ReceivedReport(replace(report, state="farewell"), 0.0),
    }
    assert transitions.present(reports) == ("a", "b")
    assert transitions.with_present(("z", "b"), reports) == ("a", "b", "z")


WRAPS = (Wrap(make.URI, "", b"w"),)


def planned():
    """A document that waits for a key, an id and a report key."""
    step = Step(to=1)
    rotation = transitions.begun(KEYSET, step, NOW, (), ())
    return transitions.succeed(
        KEYSET,
        step,
        NOW,
        f"rotation {ROTATION_ID}: {NEW_KID} verifies",
        fresh="verifying",
        rotation=rotation,
        report_key=ReportKey(REPORT_KID, ()),
    )


def test_what_was_drawn_is_put_in_everywhere() -> None:
    key = replace(MINTING, kid="AAAABBBBCCCC", state="retired", state_since=5, created_at=6, wrapped=WRAPS)
    drawn = {"key": key, "rotation_id": "IIIIIIIIIIII", "report_key": ReportKey("RRRRRRRRRRRR", WRAPS)}
    found = transitions.complete(planned(), **drawn)
    new = found.key("AAAABBBBCCCC")
    assert new is not None
    assert (new.state, new.state_since, new.created_at, new.wrapped) == ("verifying", NOW, NOW, WRAPS)
    assert found.rotation is not None
    assert (found.rotation.id, found.rotation.to_kid, found.rotation.from_kid) == (
        "IIIIIIIIIIII",
        "AAAABBBBCCCC",
        MINTING.kid,
    )
    assert found.history[-1].what == "rotation IIIIIIIIIIII: AAAABBBBCCCC verifies"
    assert found.report_key == ReportKey("RRRRRRRRRRRR", WRAPS)
    text = str(dataclasses.asdict(found))
    assert not [name for name in (NEW_KID, ROTATION_ID, REPORT_KID) if name in text]
    for missing in drawn:
        with pytest.raises(ValueError, match="waits for"):
            transitions.complete(planned(), **{name: value for name, value in drawn.items() if name != missing})


def test_what_contradicts_itself_is_not_completed() -> None:
    with pytest.raises(KeysetMalformed):
        transitions.complete(replace(KEYSET, keys=(VERIFYING, RETIRED)))
    assert transitions.complete(KEYSET) == KEYSET
    # A key that is nobody's NEW leaves the rotation alone.
    extra = transitions.succeed(KEYSET, Step(to=2), NOW, "x", fresh="verifying")
    key = replace(MINTING, kid="AAAABBBBCCCC", wrapped=WRAPS)
    assert transitions.complete(extra, key=key).rotation == ROTATION
