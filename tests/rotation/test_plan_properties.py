"""Whatever the fleet, the document and the step: `plan` answers, and its answers keep their word."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from rotation.fleets import T0, Fleet, fresh_key, instance_id, kid, new_keyset, wraps

from mcpkeys.errors import ConfigurationError
from mcpkeys.fleet import describe
from mcpkeys.keyset import ReportKey, check, digest
from mcpkeys.reports import ReceivedReport, Report
from mcpkeys.rotation import Step, complete, plan

WORDS = st.sampled_from(["", " ", "deploy 4711 finished"])


@st.composite
def situations(draw):
    """A keyset that real steps led to, reports that need not fit it, a step, and a moment."""
    source = random.Random(draw(st.integers(0, 2**32)))
    keyset = new_keyset(
        evidence=draw(st.sampled_from(["reports", "attest"])),
        skew_seconds=draw(st.sampled_from([0, 60])),
        max_stale_seconds=draw(st.sampled_from([None, 300])),
    )
    fleet = Fleet(0)
    fleet.keyset = keyset
    for _ in range(draw(st.integers(0, 6))):
        fleet.now += source.choice([1, 200, 5000])
        fleet.keyset = _any_step(fleet.keyset, fleet.now, source)
    keyset = fleet.keyset
    kids = [key.kid for key in keyset.keys] + [kid()]
    moments = st.one_of(
        st.integers(-8000, 2000).map(lambda s: int((fleet.now + s) * 1000)), st.sampled_from([0, 2**52])
    )
    received = []
    for _ in range(draw(st.integers(0, 4))):
        clock = draw(moments)
        report = Report(
            "fleet",
            instance_id(),
            "pod",
            1,
            draw(st.sampled_from(["joining", "serving", "serving", "farewell"])),
            1,
            draw(st.sampled_from([0, keyset.generation, keyset.generation - 1, keyset.generation + 1])),
            draw(st.sampled_from(["", digest(keyset)])),
            verifies=tuple(draw(st.lists(st.sampled_from(kids), max_size=3))),
            mints=draw(st.sampled_from([None, *kids])),
            minting_since=draw(st.one_of(st.none(), moments)),
            last_mint={draw(st.sampled_from(kids)): draw(moments)},
            last_unseal={draw(st.sampled_from(kids)): draw(moments)},
            ttl_observed=draw(st.sampled_from([None, 1, 7_200_000])),
            clock=clock,
            max_stale=draw(st.sampled_from([None, 300_000])),
        )
        off = draw(st.sampled_from([0, 0, 0, 0.5, 40]))
        received.append(ReceivedReport(report, min(clock / 1000, 4e12) + off))
    ids = [entry.report.instance for entry in received] + list(keyset.rotation.roster if keyset.rotation else ())
    step = Step(
        draw(st.sampled_from([1, 2, 3, "rollback", "emergency", "auto"])),
        rotation=draw(st.sampled_from([None, None, keyset.rotation.id if keyset.rotation else kid(), kid()])),
        expect=draw(st.sampled_from([None, None, 0, 1, 3, -1])),
        allow_missing=tuple(draw(st.lists(st.sampled_from([*ids, "nobody"]), max_size=2))),
        attest=draw(st.one_of(st.none(), WORDS)),
        kid=draw(st.sampled_from([None, *kids])),
        reason=draw(st.one_of(st.none(), WORDS)),
        max_age=draw(st.sampled_from([None, 0, 1e9])),
        rejected=draw(st.sampled_from([(), ((instance_id(), "not authentic"),)])),
        operator_clock=draw(st.sampled_from([None, fleet.now, fleet.now + 100])),
    )
    return keyset, received, step, fleet.now + draw(st.integers(-500, 9000))


def _any_step(keyset, now, source):
    """One write that a lenient world allows: words stand in for the fleet."""
    word = {"attest": "out"} if keyset.evidence == "attest" else {"expect": 0}
    to = source.choice([1, 2, 3, "rollback", "emergency"])
    extra = {"kid": source.choice(keyset.live).kid, "reason": "r"} if to == "emergency" else word
    answer = plan(keyset, [], Step(to, **extra), now)
    return keyset if answer.document is None else finish(answer.document)


def finish(document):
    return complete(document, key=fresh_key(T0), rotation_id=kid(), report_key=ReportKey(kid(), wraps()))


@settings(max_examples=300, deadline=None)
@given(situations())
def test_plan_answers_and_keeps_its_word(situation):
    keyset, received, step, now = situation
    try:
        answer = plan(keyset, received, step, now)
    except ConfigurationError:
        return
    assert answer.verdict in ("do", "done", "unsafe", "not_yet")
    assert answer.exit_code == (
        0 if answer.verdict == "done" or (answer.verdict == "do" and answer.completes)
        else 5 if answer.verdict == "unsafe" else 6
    )  # fmt: skip
    assert answer.why
    assert answer.next.startswith("mcpkeys ")
    assert answer.code
    assert (answer.document is not None) == (answer.verdict == "do")
    if answer.verdict == "not_yet":
        assert not any(entry.late for entry in answer.blocking)
        assert answer.earliest is not None
    if answer.document is None:
        return
    document = finish(answer.document)
    check(document)
    assert document.generation == keyset.generation + 1
    assert document.previous == digest(keyset)
    assert document.history[-1].generation == document.generation
    assert document.signature == ""
    assert keyset.retired <= document.retired  # a retired kid never returns
    assert document.minting.kid not in keyset.retired
    assert len(document.rotation.steps if document.rotation else ()) <= 64
    # A key mints only if everyone could have been told of it before; an emergency's fresh key is the exception.
    if step.to != "emergency":
        assert keyset.key(document.minting.kid) is not None
    # The same step again, on what was written, writes nothing or is the next step of its own accord.
    if step.to in (1, 2, 3):
        again = plan(document, [], replace(step, rotation=None, allow_missing=()), now)
        assert again.verdict in (("done",) if answer.completes else ("not_yet", "unsafe"))


@settings(max_examples=150, deadline=None)
@given(situations())
def test_describe_never_fails_and_agrees_with_plan(situation):
    keyset, received, step, now = situation
    view = describe(keyset, received, now, rejected=step.rejected)
    assert view.next.startswith("mcpkeys ")
    heard = {entry.report.instance for entry in received}
    assert heard <= {instance.id for instance in view.instances}
    decided = plan(keyset, received, Step("auto", max_age=0.0, rejected=step.rejected), now)
    assert view.waiting_for == decided.blocking
    assert view.earliest == decided.earliest
    for blocking in view.waiting_for:
        shown = next((i for i in view.instances if i.id == blocking.instance), None)
        assert shown is None or shown.why == blocking.why


@settings(max_examples=100, deadline=None)
@given(situations(), st.integers(1, 100_000))
def test_waiting_never_makes_a_safe_step_unsafe_for_the_keysets_sake(situation, later):
    """Time alone only opens gates, as far as the fleet keeps reporting the same in time."""
    keyset, received, step, now = situation
    moved = [
        ReceivedReport(replace(entry.report, clock=entry.report.clock + later * 1000), entry.modified_at + later)
        for entry in received
    ]
    if step.operator_clock is not None:
        step = replace(step, operator_clock=now)
    try:
        before = plan(keyset, received, step, now)
        after = plan(keyset, moved, replace(step, operator_clock=None), now + later)
    except ConfigurationError:
        return
    if before.verdict == "do" and step.to in (2, 3) and before.completes and not step.attest:
        assert after.verdict == "do"
