"""`mcpkeys restore`: an old authentic document signed again above every generation seen. Pure.

Settings come from the file. Keys come from whatever is newest: the file, the stored document, and what instances
report of documents that are lost. Three rules keep rounds and secrets safe:

- a key that any of them calls retired stays retired, and so does one that no instance of the newest generation
  verifies any more: it was retired in a document that is lost, and may have been burnt;
- a key that is live in either document, or verified by the fleet, at least keeps verifying;
- a key that the fleet verifies and neither document holds is lost with its wraps: that is refused until the
  operator names it, for every round under it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mcpkeys.changing import past_ttls
from mcpkeys.encoding import to_ms
from mcpkeys.keyset import MAX_KEKS, Key, Keyset, Rotation, RotationStep, StepEvidence, digest
from mcpkeys.kms import Wrap, identity
from mcpkeys.reports import ReceivedReport, Report
from mcpkeys.revising import Revision, done, succeed, unsafe
from mcpkeys.steps import NEW_KID, ROTATION_ID, Blocking

SETTINGS = (
    "audience", "ttl_seconds", "skew_seconds", "refresh_seconds", "max_stale_seconds", "max_token_chars", "evidence",
)  # fmt: skip
LEAP = 1 << 20
"""A report so many generations above every document at hand counts only once the operator says that it is true
(`above`): a compromised server could otherwise use up the generations that are left."""
_OF_GATES = ("skew_seconds", "refresh_seconds", "evidence")


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that is known beside the file.

    Attributes:
        stored: the stored document where it is authentic, or None.
        reports: the authentic ones.
        claims: reports that cannot be checked: under the report key of a document that is lost, or forged. They count
            once the operator says (`above`) that their generation was seen.
        above: what the operator says was seen; MCPKEYS_MIN_GENERATION counts as well.
        lose: kids that the operator knows to be lost.
    """

    stored: Keyset | None
    reports: Sequence[ReceivedReport] = ()
    claims: Sequence[Report] = ()
    above: int = 0
    lose: frozenset[str] = frozenset()

    def newest(self, base: Keyset) -> tuple[Report, ...]:
        """The reports of the newest generation, where they know of a document that is not `base`; else none."""
        vouched = [report for report in self.claims if report.generation <= self.above]
        every = [*(entry.report for entry in self.reports), *vouched]
        told = [report for report in every if report.state != "joining" and report.generation]
        top = max((report.generation for report in told), default=0)
        found = [report for report in told if report.generation == top]
        if top < base.generation or (top == base.generation and all(r.digest == digest(base) for r in found)):
            return ()
        return tuple(found)


def decide(backup: Keyset, known: Evidence, *, now: float, reason: str, who: str) -> Revision:
    """What comes of restoring `backup`. The document may wait for a fresh key: it goes through `rotation.complete`."""
    base = backup if known.stored is None or known.stored.generation <= backup.generation else known.stored
    other = known.stored if base is backup else backup
    known = _believable(known, base)
    informed = known.newest(base)
    seen = max(
        base.generation,
        known.above,
        *(entry.report.generation for entry in known.reports),
        0 if other is None else other.generation,
    )
    refusal = _unseen(known, seen)
    if refusal is not None:
        return refusal
    if known.stored is not None and digest(known.stored) == digest(backup) and not informed and seen == base.generation:
        return done("nothing to do: this very document is stored, and nobody has seen a newer one")
    refusal = _lost(base, other, informed, known)
    if refusal is not None:
        return refusal
    if backup.audience != base.audience and not reason.strip() and _runs(base, known):
        return unsafe(
            "restore-audience",
            f"servers run, and rounds under the audience {base.audience!r} are refused once they restart with "
            f"{backup.audience!r}",
            'stop the servers first, or say why it has to be: --reason "..."',
        )
    at = to_ms(now)
    keys = _merged(base, other, informed, at)
    fields: dict[str, Any] = {"keys": keys, "generation": seen + 1, "rotation": _rotation(base, keys, known, at)}
    running = fields["rotation"] is not None and fields["rotation"].ended is None
    for name in SETTINGS:
        if not (running and name in _OF_GATES):
            fields[name] = getattr(backup, name)
    if backup.ttl_seconds != base.ttl_seconds:
        fields["past_ttls"] = past_ttls(base, at)
    what = f"restore: generation {backup.generation} ({digest(backup)[:19]}) signed again above {seen}"
    overrides = [f"--lose-kid {kid}" for kid in sorted(known.lose)]
    document = succeed(base, now, what, who=who, reason=reason, overrides=overrides, **fields)
    # `succeed` counts from the base; what was seen may be far above it.
    document = replace(document, history=(*document.history[:-1], replace(document.history[-1], generation=seen + 1)))
    then = f"mcpkeys status --watch until all hold generation {seen + 1}; then MCPKEYS_MIN_GENERATION={seen + 1}"
    return Revision("do", what, then, document, "do", _effects(backup, base, keys, document))


def _runs(base: Keyset, known: Evidence) -> bool:
    """Whether anybody may be serving."""
    reporting = any(entry.report.state != "farewell" for entry in known.reports)
    return reporting or bool(known.claims) or base.evidence == "attest"


def _believable(known: Evidence, base: Keyset) -> Evidence:
    """A report that leaps is no more than a claim."""
    limit = max(base.generation, known.above) + LEAP
    leaping = [entry for entry in known.reports if entry.report.generation > limit]
    if not leaping:
        return known
    return replace(
        known,
        reports=[entry for entry in known.reports if entry not in leaping],
        claims=[*known.claims, *(entry.report for entry in leaping)],
    )


def _unseen(known: Evidence, seen: int) -> Revision | None:
    """Reports that nobody can check claim a higher generation: only the operator can say whether that is true."""
    higher = [report for report in known.claims if report.generation > seen]
    if not higher:
        return None
    top = max(report.generation for report in higher)
    blocking = [
        Blocking(
            report.instance,
            report.label,
            f"claims generation {report.generation}, and nothing else tells of it",
            "restore-unread",
            True,
        )
        for report in higher
    ]
    return unsafe(
        "restore-unread",
        f"{len(higher)} reports claim generations up to {top}, and nothing else tells of them: their report key "
        "is lost, or they are forged. An instance never goes back",
        f"look into those servers' logs (generation in use); if it is true: --above {top}",
        blocking,
    )


def _lost(base: Keyset, other: Keyset | None, informed: Sequence[Report], known: Evidence) -> Revision | None:
    """Keys that the fleet verifies and no document holds."""
    held = {key.kid for key in (*base.keys, *(other.keys if other is not None else ()))}
    serving = [report for report in informed if report.state == "serving"]
    lost = {kid for report in serving for kid in report.verifies if kid not in held} - known.lose
    if not lost:
        return None
    by_kid = {kid: [r for r in serving if kid in r.verifies] for kid in sorted(lost)}
    blocking = [
        Blocking(
            report.instance,
            report.label,
            f"holds generation {report.generation} and {'mints' if report.mints == kid else 'verifies'} {kid}, "
            "which no document at hand wraps",
            "restore-loses-keys",
            True,
        )
        for kid, reports in by_kid.items()
        for report in reports
    ]
    top = max(report.generation for report in serving)
    words = " ".join(f"--lose-kid {kid}" for kid in by_kid)
    return unsafe(
        "restore-loses-keys",
        f"the fleet holds {', '.join(by_kid)}, which came after this document: every round under it would be refused",
        f"restore a copy of generation {top} or later instead (the bucket's versions; mcpkeys verify FILE tells it); "
        f"if there is none: {words}",
        blocking,
    )


def _merged(base: Keyset, other: Keyset | None, informed: Sequence[Report], at: int) -> tuple[Key, ...]:
    """Every key of both documents, with its state from now on; one that is still to be drawn where none can mint."""
    others = {key.kid: key for key in (other.keys if other is not None else ())}
    all_keys = [*base.keys, *(key for kid, key in others.items() if base.key(kid) is None)]
    retired = set(base.retired) | (set(other.retired) if other is not None else set())
    if informed:
        verified = {kid for report in informed for kid in report.verifies}
        retired |= {key.kid for key in all_keys if key.kid not in verified}
    live = [key.kid for key in all_keys if key.kid not in retired]
    minter = _minter(base, live, informed)
    keys: list[Key] = []
    for key in all_keys:
        twin = others.get(key.kid)
        wrapped = key.wrapped if twin is None or twin is key else _union(key.wrapped, twin.wrapped)
        state = "retired" if key.kid in retired else "minting" if key.kid == minter else "verifying"
        before = base.key(key.kid)
        since = key.state_since if before is not None and before.state == state else at
        keys.append(Key(key.kid, state, key.created_at, since, wrapped))  # type: ignore[arg-type]
    if minter == NEW_KID:
        keys.append(Key(NEW_KID, "minting", at, at, ()))
    return tuple(keys)


def _minter(base: Keyset, live: Sequence[str], informed: Sequence[Report]) -> str:
    """Who mints: a key that the fleet mints already, or one that all of it verifies; else a fresh one."""
    own = base.minting.kid
    serving = [report for report in informed if report.state == "serving"]
    if own in live and (not serving or any(report.mints == own for report in serving)):
        return own
    minted = [report.mints for report in serving if report.mints in live]
    if minted:
        return str(max(set(minted), key=minted.count))
    for kid in (own, *reversed(live)):
        if kid in live and all(kid in report.verifies for report in serving):
            return kid
    return NEW_KID


def _union(one: tuple[Wrap, ...], other: tuple[Wrap, ...]) -> tuple[Wrap, ...]:
    names = {identity(wrap.kek) for wrap in one}
    return (*one, *(wrap for wrap in other if identity(wrap.kek) not in names))[:MAX_KEKS]


def _rotation(base: Keyset, keys: Iterable[Key], known: Evidence, at: int) -> Rotation | None:
    """The base's rotation where its keys stand as it left them; else one that has ended, so that phase 3 cleans up."""
    states = {key.kid: key.state for key in keys if key.state != "retired"}
    same = states == {key.kid: key.state for key in base.live}
    if same and (base.rotation is not None or len(states) == 1):
        return base.rotation
    present = tuple(sorted(e.report.instance for e in known.reports if e.report.state != "farewell"))
    minter = next(kid for kid, state in states.items() if state == "minting")
    left = next((kid for kid, state in states.items() if state == "verifying"), None)
    if base.rotation is not None:
        return replace(base.rotation, ended=base.rotation.ended or "emergency", roster=present)
    if left is None:
        return None
    step = RotationStep(2, at, StepEvidence("none"))
    return Rotation(ROTATION_ID, 2, "emergency", left, minter, present, None, (step,))


def _effects(backup: Keyset, base: Keyset, keys: Sequence[Key], document: Keyset) -> tuple[str, ...]:
    found = [
        f"{name} {getattr(base, name)!r} -> {getattr(document, name)!r}"
        for name in SETTINGS
        if getattr(document, name) != getattr(base, name)
    ]
    revived = [key.kid for key in keys if key.state == "retired" and key.kid in {old.kid for old in backup.live}]
    if revived:
        found.append(f"retired since, and stays so: {', '.join(revived)}")
    live = [key.kid for key in keys if key.state == "verifying"]
    if live:
        found.append(f"keeps verifying: {', '.join(live)}")
    if any(key.kid == NEW_KID for key in keys):
        found.append("no known key can mint: a fresh one does, whose rounds may be refused for one refresh interval")
    if base is not backup:
        found.append("KEKs, report key and signer stay those of the newer document")
    return tuple(found)
