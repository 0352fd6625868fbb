"""The documents that the steps of a rotation lead to. Pure: no randomness, no KMS, no clock.

Each builder returns the unsigned keyset that follows the given one. Where a key or an id has to be drawn the
document carries a placeholder, which `complete` fills. Times are integer milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from mcpkeys.keyset import (
    MAX_HISTORY,
    MAX_ROSTER,
    RETIRED_WRAPS_KEPT_SECONDS,
    Ended,
    HistoryEntry,
    Key,
    Keyset,
    Phase,
    ReportKey,
    Rotation,
    RotationStep,
    State,
    StepEvidence,
    check,
    digest,
)
from mcpkeys.reports import ReceivedReport
from mcpkeys.steps import NEW_KID, REPORT_KID, ROTATION_ID, Step

MAX_TEXT_CHARS = 1000
MAX_STEPS = 64


def succeed(
    keyset: Keyset,
    step: Step,
    at: int,
    what: str,
    *,
    overrides: Collection[str] = (),
    states: dict[str, State] | None = None,
    fresh: State | None = None,
    rotation: Rotation | None = None,
    report_key: ReportKey | None = None,
) -> Keyset:
    """The document after `keyset`: generation + 1, linked by digest, with one more entry of history.

    Args:
        at: when it is written.
        states: the new states by kid; a state that does not change keeps its `state_since`.
        fresh: also a key that is still to be drawn, in this state.
        rotation: the rotation it carries; None keeps the one there is.
        report_key: None keeps it.
    """
    states = states or {}
    keys = [_moved(key, states.get(key.kid, key.state), at) for key in keyset.keys]
    if fresh is not None:
        keys.append(Key(NEW_KID, fresh, at, at, ()))
    generation = keyset.generation + 1
    entry = HistoryEntry(
        at=at,
        who=step.who[:MAX_TEXT_CHARS],
        what=what[:MAX_TEXT_CHARS],
        generation=generation,
        reason=(step.reason or "")[:MAX_TEXT_CHARS],
        overrides=tuple(text[:MAX_TEXT_CHARS] for text in overrides)[:MAX_ROSTER],
    )
    return replace(
        keyset,
        generation=generation,
        previous=digest(keyset),
        keys=tuple(keys),
        report_key=report_key or keyset.report_key,
        rotation=rotation or keyset.rotation,
        history=(*keyset.history, entry)[-MAX_HISTORY:],
        signature="",
    )


def _moved(key: Key, state: State, at: int) -> Key:
    if state != key.state:
        return replace(key, state=state, state_since=at)
    if state == "retired" and at - key.state_since > RETIRED_WRAPS_KEPT_SECONDS * 1000:
        return replace(key, wrapped=())
    return key


def stamp(keyset: Keyset, now: int) -> int:
    """`now`, but always after the last step: a store's clock that was set back must not shorten a wait."""
    last = keyset.rotation.steps[-1].entered_at if keyset.rotation is not None else 0
    return max(now, last + 1, keyset.minting.state_since)


def entered(
    rotation: Rotation,
    phase: Phase,
    at: int,
    evidence: StepEvidence,
    *,
    roster: tuple[str, ...] | None = None,
    ended: Ended | None = None,
) -> Rotation:
    """The rotation, one step on."""
    evidence = replace(
        evidence,
        confirmed=evidence.confirmed[:MAX_ROSTER],
        missing=evidence.missing[:MAX_ROSTER],
        proven_gone=evidence.proven_gone[:MAX_ROSTER],
        word=evidence.word[:MAX_TEXT_CHARS],
    )
    steps = (*rotation.steps, RotationStep(phase, at, evidence))
    while len(steps) > MAX_STEPS:
        steps = steps[: _dropped(steps)] + steps[_dropped(steps) + 1 :]
    return replace(
        rotation,
        phase=phase,
        ended=ended,
        roster=rotation.roster if roster is None else roster[:MAX_ROSTER],
        steps=steps,
    )


def _dropped(steps: tuple[RotationStep, ...]) -> int:
    """Which entry goes where there are too many: the oldest word, never the entry into a phase.

    A word that is lost has to be given again, which is safe.
    """
    return next(i for i in range(1, len(steps)) if steps[i].phase == steps[i - 1].phase)


def begun(keyset: Keyset, step: Step, at: int, roster: tuple[str, ...], stopped: tuple[str, ...]) -> Rotation:
    """A new rotation in phase 1, NEW still to be drawn.

    Args:
        roster: whom it waits for.
        stopped: who was named as stopped in the last rotation and has not reported since.
    """
    first = RotationStep(1, at, StepEvidence("none", missing=stopped[:MAX_ROSTER]))
    return Rotation(
        id=step.rotation or ROTATION_ID,
        phase=1,
        ended=None,
        from_kid=keyset.minting.kid,
        to_kid=NEW_KID,
        roster=roster[:MAX_ROSTER],
        expect=step.expect,
        steps=(first,),
    )


def present(reports: Mapping[str, ReceivedReport]) -> tuple[str, ...]:
    """Whoever reports and has not said farewell."""
    return tuple(sorted(id for id, entry in reports.items() if entry.report.state != "farewell"))


def with_present(roster: tuple[str, ...], reports: Mapping[str, ReceivedReport]) -> tuple[str, ...]:
    """The roster and every later joiner."""
    return tuple(sorted({*roster, *present(reports)}))


def complete(
    document: Keyset,
    *,
    key: Key | None = None,
    rotation_id: str | None = None,
    report_key: ReportKey | None = None,
) -> Keyset:
    """The document with what had to be drawn.

    Args:
        document: of a `Plan`.
        key: the fresh data key: its kid and wraps are taken, state and times stay as planned.
        rotation_id: 12 characters of base64url from 9 random bytes.
        report_key: the fresh report key.

    Raises:
        ValueError: something that the document waits for is missing.
        KeysetMalformed: the document would contradict itself (`keyset.check`).
    """
    rotation = document.rotation
    if document.key(NEW_KID) is not None:
        if key is None:
            raise ValueError("the document waits for a fresh key")
        keys = tuple(
            replace(entry, kid=key.kid, wrapped=key.wrapped) if entry.kid == NEW_KID else entry
            for entry in document.keys
        )
        history = tuple(replace(entry, what=entry.what.replace(NEW_KID, key.kid)) for entry in document.history)
        if rotation is not None and rotation.to_kid == NEW_KID:
            rotation = replace(rotation, to_kid=key.kid)
        document = replace(document, keys=keys, history=history)
    if rotation is not None and rotation.id == ROTATION_ID:
        if rotation_id is None:
            raise ValueError("the document waits for the id of the rotation")
        rotation = replace(rotation, id=rotation_id)
        history = tuple(replace(e, what=e.what.replace(ROTATION_ID, rotation_id)) for e in document.history)
        document = replace(document, history=history)
    if document.report_key.kid == REPORT_KID:
        if report_key is None:
            raise ValueError("the document waits for a fresh report key")
        document = replace(document, report_key=report_key)
    document = replace(document, rotation=rotation)
    check(document)
    return document
