"""The words of a rotation: the step that is asked for, the plan that answers it, and who stands in the way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mcpkeys.keyset import Keyset

# None of them is base64url: a document that still holds one can neither be read nor mistaken for a real one.
NEW_KID = "............"
ROTATION_ID = "~~~~~~~~~~~~"
REPORT_KID = "////////////"

To = Literal[1, 2, 3, "rollback", "emergency", "auto"]
Verdict = Literal["do", "done", "unsafe", "not_yet"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a rotation, as the operator asks for it.

    Attributes:
        to: the phase to enter, or `rollback`, `emergency`, `auto` (whatever is due).
        rotation: the id of the rotation that the operator means, or None for the running one.
        expect: how many instances the operator knows to run; 0 says that none does. None: not said.
        allow_missing: ids of instances that the operator knows to be stopped.
        attest: the operator's word that a deployment is out, for keysets with evidence `attest`.
        kid: the key to burn (emergency).
        reason: why (emergency); recorded for every step.
        who: recorded in the history.
        max_age: the age in seconds at which `auto` replaces the minting key; None never begins a rotation.
        operator_clock: the operator's wall clock, seconds, read when `now` was read from the store; None: not compared.
        rejected: (instance id, why) of the reports that say nothing: `reports.Gathered.rejected`.
        resolution: of the store's clock, seconds: a `modified_at` may be this much too early.
        blind: why no report could be read, for an emergency that goes on without them; empty where they were read.
    """

    to: To
    rotation: str | None = None
    expect: int | None = None
    allow_missing: tuple[str, ...] = ()
    attest: str | None = None
    kid: str | None = None
    reason: str | None = None
    who: str = ""
    max_age: float | None = None
    operator_clock: float | None = None
    rejected: tuple[tuple[str, str], ...] = ()
    resolution: float = 0.0
    blind: str = ""


@dataclass(frozen=True, slots=True)
class Blocking:
    """One instance that stands in the way of a step.

    Attributes:
        instance, label: who; instance is empty for the operator's own machine.
        why: one sentence, with the age of what it holds.
        code: a stable word, `gate-lagging` and the like.
        late: waiting does not help, something must be done (exit 5); False: only time is missing (exit 6).
    """

    instance: str
    label: str
    why: str
    code: str
    late: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What comes of a step. Nothing has been written.

    Attributes:
        verdict: `do`: write `document`. `done`: nothing to do, it is so already (or nothing is due).
            `unsafe`: something must be done first. `not_yet`: only time is missing.
        why: one or two sentences for the operator.
        blocking: the instances in the way, worst first.
        earliest: seconds by the store's clock before which the step cannot be safe, as far as is known now; or None.
        next: the command that comes next.
        document: the unsigned keyset to write, or None. With `needs_*` it goes through `rotation.complete` first.
        code: a stable word for scripts: `gate-...`, or the verdict where no gate refused.
        to: the step that was decided upon: never `auto`, unless nothing is due.
        rotation: the id of the rotation meant, or None.
        completes: False where `document` only records the operator's word, from which a wait begins:
            plan again after the write; that answers `not_yet`.
        still_accepting: emergency: ids of the instances whose last report verifies the burnt key.
    """

    verdict: Verdict
    why: str
    blocking: tuple[Blocking, ...]
    earliest: float | None
    next: str
    document: Keyset | None
    code: str = ""
    to: To = "auto"
    rotation: str | None = None
    completes: bool = True
    still_accepting: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 do (once written) or done, 5 unsafe, 6 not yet or only the word was recorded."""
        if self.verdict == "unsafe":
            return 5
        return 6 if self.verdict == "not_yet" or not self.completes else 0

    @property
    def needs_key(self) -> bool:
        """The document waits for a fresh data key."""
        return self.document is not None and self.document.key(NEW_KID) is not None

    @property
    def needs_report_key(self) -> bool:
        """The document waits for a fresh report key."""
        return self.document is not None and self.document.report_key.kid == REPORT_KID

    @property
    def needs_rotation_id(self) -> bool:
        """The document waits for the id of a new rotation."""
        rotation = self.document.rotation if self.document is not None else None
        return rotation is not None and rotation.id == ROTATION_ID


def named(ids: Iterable[str], *, most: int = 5) -> str:
    """A short list for a sentence: the first few, and how many more."""
    names = list(ids)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def span(ms: float) -> str:
    """A duration for a sentence: `45 s`, `12 min`, `5 h`, `3 d`."""
    seconds = max(0, round(ms / 1000))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
