"""Before any step: what makes no sense, which documents are old ones put back, which rotation is meant."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rotation.fleets import T0, Fleet, kid, new_keyset

from mcpkeys.errors import ConfigurationError
from mcpkeys.keyset import HistoryEntry, digest
from mcpkeys.preconditions import check_step, last_write, other_rotation, restored
from mcpkeys.steps import Step

KEYSET = new_keyset()
MINTING = KEYSET.minting.kid


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (Step(0), "usage"),
        (Step(4), "usage"),
        (Step("rotate"), "usage"),
        (Step(2, expect=-1), "usage"),
        (Step(2, expect=1_000_001), "usage"),
        (Step(2, attest=""), "usage"),
        (Step(2, attest=" \t\n"), "usage"),
        (Step("emergency", kid=MINTING, reason="leaked", attest=""), "usage"),
        (Step("emergency", reason="leaked"), "kid-missing"),
        (Step("emergency", kid="", reason="leaked"), "kid-missing"),
        (Step("emergency", kid="x" * 100, reason="leaked"), "kid-unknown"),
        (Step("emergency", kid=MINTING), "reason-missing"),
        (Step("emergency", kid=MINTING, reason=" \n"), "reason-missing"),
    ],
)
def test_a_step_that_no_fleet_could_make_sense_of(step: Step, code: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_step(KEYSET, step)
    assert caught.value.code == code
    assert "x" * 65 not in str(caught.value)


@pytest.mark.parametrize(
    "step",
    [
        *(Step(to) for to in (1, 2, 3, "rollback", "auto")),
        Step(2, expect=0),
        Step(2, expect=1_000_000),
        Step(2, attest="x"),
        # Only an emergency burns a key and has to say why.
        Step(2, kid="nobody", reason=""),
        Step("emergency", kid=MINTING, reason="x"),
    ],
)
def test_a_step_that_makes_sense(step: Step) -> None:
    check_step(KEYSET, step)


def reports(*fields: dict[str, object]):
    fleet = Fleet(len(fields))
    for instance, some in zip(fleet.instances, fields, strict=True):
        instance.again(T0, **{"digest": digest(KEYSET), "generation": KEYSET.generation, **some})
    return {instance.id: instance.received for instance in fleet.instances}


def test_an_old_document_put_back_is_told_by_the_report_that_is_furthest() -> None:
    own = KEYSET.generation
    assert restored(KEYSET, {}) is None
    assert restored(KEYSET, reports({}, {"generation": own - 1, "digest": "other"})) is None
    # One that has loaded nothing yet has no digest.
    assert restored(KEYSET, reports({"digest": ""})) is None
    received = reports({}, {"generation": own + 1}, {"generation": own + 2}, {"generation": own + 1})
    who, why = restored(KEYSET, received)
    assert who == list(received)[2]
    assert why == f"the stored keyset is generation {own}, but pod-2 holds {own + 2}: a backup was restored"
    received = reports({"generation": own + 1, "label": ""})
    assert f"but {next(iter(received))} holds" in restored(KEYSET, received)[1]
    received = reports({}, {"digest": "sha256:other"})
    who, why = restored(KEYSET, received)
    assert who == list(received)[1]
    assert why.startswith(f"pod-1 holds another document of generation {own}")
    received = reports({"digest": "sha256:other", "label": ""})
    assert restored(KEYSET, received)[1].startswith(f"{next(iter(received))} holds another")


def test_a_step_that_names_another_rotation() -> None:
    fleet = Fleet()
    mine, other = kid(), kid()
    assert other_rotation(fleet.keyset, Step(1, rotation=mine)) is None
    for to in (2, 3, "rollback", "auto"):
        found = other_rotation(fleet.keyset, Step(to, rotation=mine))
        assert (found.code, found.why) == ("gate-other-rotation", f"the step names rotation {mine}, but there is none")
    fleet.take(1, rotation=mine, who="ops")
    for to in (1, 2, 3, "rollback", "auto"):
        assert other_rotation(fleet.keyset, Step(to)) is None
        assert other_rotation(fleet.keyset, Step(to, rotation=mine)) is None
        found = other_rotation(fleet.keyset, Step(to, rotation=other))
        assert found.why.startswith(f"the step names rotation {other}, but rotation {mine} (ops at ")
    fleet.take("rollback")
    # One that has ended is there for a step that is repeated; phase 1 begins another.
    assert other_rotation(fleet.keyset, Step("rollback", rotation=mine)) is None
    assert other_rotation(fleet.keyset, Step("rollback", rotation=other)) is not None
    assert other_rotation(fleet.keyset, Step(1, rotation=other)) is None


def test_who_wrote_last() -> None:
    assert last_write(KEYSET) == ""
    entries = (HistoryEntry(0, "first", "a", 1), HistoryEntry(1, "last", "b", 2))
    assert last_write(replace(KEYSET, history=entries)) == " (last at 1970-01-01T00:00:00.001Z: b)"
    assert last_write(replace(KEYSET, history=(HistoryEntry(0, "", "a", 1),))).startswith(" (someone at ")
