"""`mcpkeys purge`: bounding the past. What may go, and what still counts. Pure.

Kids of retired keys are never dropped: that is what keeps them from returning. A report goes only where no step can
wait for its instance: no rotation runs, no key is left to retire, and it said farewell, or the operator says that it
is stopped. Silence alone proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mcpkeys.encoding import to_ms
from mcpkeys.errors import SettingError
from mcpkeys.keyset import Keyset
from mcpkeys.reports import ReceivedReport
from mcpkeys.revising import Revision, done, named, succeed, unsafe
from mcpkeys.rotation import due
from mcpkeys.standing import silent_after
from mcpkeys.stepping import Observed
from mcpkeys.steps import Blocking

FAREWELL_KEPT_SECONDS = 3600
DEFAULT_WRAPS_SECONDS = 30 * 86_400


@dataclass(frozen=True, slots=True)
class Request:
    """What the operator asks for.

    Attributes:
        older_than: seconds since a key was retired, after which its wraps go.
        keep_history: so many entries stay; None keeps all.
        silent_for: the operator's word that an instance silent for so many seconds is stopped; None: no such word.
        past_ttls: the operator's word that every server was restarted since the last change of the ttl.
    """

    older_than: float = DEFAULT_WRAPS_SECONDS
    keep_history: int | None = None
    silent_for: float | None = None
    past_ttls: bool = False
    reason: str = ""
    who: str = ""


@dataclass(frozen=True, slots=True)
class Purge:
    """What goes.

    Attributes:
        revision: `do` without a document where only reports go.
        wraps: kids of the retired keys whose wraps go.
        history: how many entries go.
        reports: instances whose reports go: withdrawn ones, and those that the operator says are stopped.
        silent: instances whose reports would go with `--silent-for`, and how long they have been silent (seconds).
    """

    revision: Revision
    wraps: tuple[str, ...] = ()
    history: int = 0
    reports: tuple[str, ...] = ()
    silent: tuple[tuple[str, float], ...] = ()


def decide(observed: Observed, stamps: Mapping[str, float], request: Request) -> Purge:
    """What goes. `stamps`: when each stored report was written (seconds by the store's clock), believable or not.

    Raises `SettingError` for a `silent_for` within which a living instance may be silent.
    """
    keyset, now = observed.stored.keyset, observed.now
    least = silent_after(keyset) / 1000
    if request.silent_for is not None and request.silent_for <= least:
        raise SettingError(
            f"--silent-for must be longer than 3 refresh intervals ({least:g} s)",
            why="an instance that lives may be silent for so long",
            next="for example --silent-for 1d",
        )
    contradiction = _contradiction(observed) if request.past_ttls else None
    if contradiction is not None:
        return Purge(contradiction)
    wraps = tuple(
        key.kid
        for key in keyset.keys
        if key.state == "retired" and key.wrapped and to_ms(now) - key.state_since > request.older_than * 1000
    )
    trimmed = 0 if request.keep_history is None else max(0, len(keyset.history) - request.keep_history)
    farewell, silent = _gone(observed, stamps)
    word = () if request.silent_for is None else tuple(id for id, age in silent if age > request.silent_for)
    past = request.past_ttls and bool(keyset.past_ttls)
    reports = (*farewell, *word)
    left = tuple(entry for entry in silent if entry[0] not in word)
    if not (wraps or trimmed or reports or past):
        return Purge(done(_nothing(keyset, left)), silent=left)
    parts = []
    if wraps:
        parts.append(f"wraps of {len(wraps)} retired keys")
    if trimmed:
        parts.append(f"{trimmed} entries of history")
    if past:
        parts.append("past ttls")
    if reports:
        parts.append(f"{len(reports)} reports")
    what = "purge: " + ", ".join(parts)
    document = None
    if wraps or trimmed or past or word:
        document = _document(keyset, request, what, wraps, word, past=past, now=now)
    revision = Revision("do", what, "mcpkeys status", document, "do", _effects(wraps, word, past))
    return Purge(revision, wraps, trimmed, reports, left)


def withdrawn(keyset: Keyset, received: Iterable[ReceivedReport], now: float) -> tuple[str, ...]:
    """Instances whose farewell is old enough to go, in order of id. None while a step may wait for any instance."""
    if due(keyset) is not None:
        return ()
    kept = max(FAREWELL_KEPT_SECONDS, silent_after(keyset) / 1000)
    return tuple(
        sorted(e.report.instance for e in received if e.report.state == "farewell" and now - e.modified_at > kept)
    )


def _gone(observed: Observed, stamps: Mapping[str, float]) -> tuple[tuple[str, ...], list[tuple[str, float]]]:
    """(withdrawn ones that may go, silent ones with their age). None while a step may wait for any of them."""
    keyset, now = observed.stored.keyset, observed.now
    if due(keyset) is not None:
        return (), []
    limit = silent_after(keyset) / 1000
    farewells = {e.report.instance for e in observed.gathered.received if e.report.state == "farewell"}
    silent = [(instance, now - at) for instance, at in sorted(stamps.items()) if instance not in farewells]
    return withdrawn(keyset, observed.gathered.received, now), [entry for entry in silent if entry[1] > limit]


def _document(
    keyset: Keyset,
    request: Request,
    what: str,
    wraps: tuple[str, ...],
    word: tuple[str, ...],
    *,
    past: bool,
    now: float,
) -> Keyset:
    overrides = [f"--silent-for {request.silent_for:g}s: {instance} is stopped" for instance in word]
    overrides += ["--past-ttls: every server was restarted since"] if past else []
    fields: dict[str, Any] = {"past_ttls": ()} if past else {}
    document = succeed(keyset, now, what, who=request.who, reason=request.reason, overrides=overrides, **fields)
    keys = tuple(replace(key, wrapped=()) if key.kid in wraps else key for key in document.keys)
    history = document.history
    if request.keep_history is not None:
        history = history[-max(1, request.keep_history + 1) :]
    return replace(document, keys=keys, history=history)


def _contradiction(observed: Observed) -> Revision | None:
    """A report that has sealed with a longer ttl than the keyset's since it started."""
    ttl = observed.stored.keyset.ttl_seconds * 1000
    found: list[ReceivedReport] = [
        entry
        for entry in observed.gathered.received
        if entry.report.state != "farewell" and (entry.report.ttl_observed or 0) > ttl
    ]
    if not found:
        return None
    blocking = [
        Blocking(
            e.report.instance, e.report.label, f"mints with a ttl of {(e.report.ttl_observed or 0) // 1000} s",
            "purge-contradiction", True,
        )
        for e in found
    ]  # fmt: skip
    return unsafe(
        "purge-contradiction",
        f"{named(found)} still mints with a longer ttl than the keyset's: it was not restarted",
        "restart it, then run this again",
        blocking,
    )


def _nothing(keyset: Keyset, silent: tuple[tuple[str, float], ...]) -> str:
    if due(keyset) is not None:
        return "nothing to do: a rotation runs or a key is left to retire, so every report still counts"
    if silent:
        return (
            f"nothing to do: {len(silent)} instances are silent, which proves nothing; "
            "if you know that they are stopped: --silent-for DURATION"
        )
    return "nothing to do: nothing is old enough"


def _effects(wraps: tuple[str, ...], word: tuple[str, ...], past: bool) -> tuple[str, ...]:
    found = []
    if wraps:
        found.append(f"tokens of {', '.join(wraps[:5])} can no longer be inspected; the kids stay, and never return")
    if word:
        found.append("an instance that lives after all reports again with its next refresh")
    if past:
        found.append("rotations wait for the present ttl only, and for what instances were seen to mint")
    return tuple(found)
