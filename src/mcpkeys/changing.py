"""`mcpkeys set`: changing a setting of a live keyset; what it does to running servers, and when it needs a word. Pure.

Servers take ttl and audience when they start and everything else with the next refresh.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from mcpkeys.encoding import to_ms
from mcpkeys.errors import SettingError
from mcpkeys.keyset import Evidence, Keyset, PastTtl
from mcpkeys.revising import Fleet, Revision, done, named, succeed, unsafe
from mcpkeys.rotation import due

MAX_PAST_TTLS = 16
_RANGES = {
    "ttl_seconds": ("--ttl", 1, 3660 * 86_400),
    "skew_seconds": ("--skew", 0, 86_400),
    "refresh_seconds": ("--refresh", 1, 86_400),
    "max_token_chars": ("--max-token-chars", 256, 4 * 1024 * 1024),
    "max_stale_seconds": ("--max-stale", 1, 366 * 86_400),
}
_DURING_ROTATION = ("skew_seconds", "refresh_seconds", "evidence")
"""What the gates of a running rotation measure by: it does not change under them."""


@dataclass(frozen=True, slots=True)
class Change:
    """What the operator asks for; None is not asked for. Seconds, and characters.

    Attributes:
        max_stale: seconds, or `off`.
    """

    ttl: int | None = None
    skew: int | None = None
    refresh: int | None = None
    max_stale: int | Literal["off"] | None = None
    max_token_chars: int | None = None
    audience: str | None = None
    evidence: Evidence | None = None
    reason: str = ""
    who: str = ""

    def fields(self) -> dict[str, Any]:
        """The document's fields and the values asked for."""
        asked: dict[str, Any] = {
            "ttl_seconds": self.ttl,
            "skew_seconds": self.skew,
            "refresh_seconds": self.refresh,
            "max_token_chars": self.max_token_chars,
            "audience": self.audience,
            "evidence": self.evidence,
        }
        found = {name: value for name, value in asked.items() if value is not None}
        if self.max_stale is not None:
            found["max_stale_seconds"] = None if self.max_stale == "off" else self.max_stale
        return found


def decide(keyset: Keyset, fleet: Fleet, change: Change, *, now: float) -> Revision:
    """What comes of a change. Raises `SettingError` for a value that no keyset can have."""
    asked = change.fields()
    if not asked:
        raise SettingError(
            "nothing is to be set", why="no setting was given", next="mcpkeys set --ttl 15m", code="usage"
        )
    fields = {name: value for name, value in asked.items() if getattr(keyset, name) != value}
    _check({**{name: getattr(keyset, name) for name in _RANGES}, **fields})
    if not fields:
        return done("nothing to do: every setting has this value already")
    refusal = _refused(keyset, fleet, change, fields)
    if refusal is not None:
        return refusal
    what = "set: " + "; ".join(
        f"{name} {_shown(getattr(keyset, name))} -> {_shown(value)}" for name, value in fields.items()
    )
    effects = _effects(keyset, fields)
    if "ttl_seconds" in fields:
        fields["past_ttls"] = past_ttls(keyset, to_ms(now))
    document = succeed(keyset, now, what, who=change.who, reason=change.reason, **fields)
    return Revision("do", what, _next(fields), document, "do", effects)


def past_ttls(keyset: Keyset, at: int) -> tuple[PastTtl, ...]:
    """The past ttls once the present one is past as well. Where there are too many the longest stay: they decide."""
    by_length = {past.ttl_seconds: past for past in keyset.past_ttls}
    by_length[keyset.ttl_seconds] = PastTtl(keyset.ttl_seconds, at)
    longest = sorted(by_length.values(), key=lambda past: -past.ttl_seconds)[:MAX_PAST_TTLS]
    return tuple(sorted(longest, key=lambda past: past.until))


def _check(fields: dict[str, Any]) -> None:
    for name, (option, low, high) in _RANGES.items():
        value = fields[name]
        if value is not None and not low <= value <= high:
            raise SettingError(
                f"{option} is from {low:,} to {high:,}", why=f"got {value:,}", next="give one in between"
            )
    limit, refresh = fields["max_stale_seconds"], fields["refresh_seconds"]
    if limit is not None and limit <= 3 * refresh:
        raise SettingError(
            f"max_stale of {limit} s must be longer than 3 refresh intervals ({3 * refresh} s)",
            why="one missed refresh would stop an instance",
            next=f"for example --max-stale {10 * refresh}s, or off, or a shorter --refresh",
        )


def _shown(value: Any) -> str:
    if value is None:
        return "off"
    return repr(value) if isinstance(value, str) else f"{value}"


def _refused(keyset: Keyset, fleet: Fleet, change: Change, fields: dict[str, Any]) -> Revision | None:
    fixed = [name for name in _DURING_ROTATION if name in fields]
    if fixed and due(keyset) is not None:
        return unsafe(
            "set-rotation-runs",
            f"{', '.join(fixed)} cannot change now: the gates of the running rotation measure by it",
            "finish the rotation, or roll it back: mcpkeys status names the next command",
        )
    if change.reason.strip():
        return None
    runs = keyset.evidence == "attest" or not fleet.empty
    who = "servers may run" if keyset.evidence == "attest" else f"{named(fleet.live) or 'somebody'} reports"
    if "audience" in fields and runs:
        return unsafe(
            "set-audience",
            f"{who}: a round that began under the audience {keyset.audience!r} is refused by a server that "
            f"has restarted with {fields['audience']!r}",
            'stop the servers first, or say why it has to be: --reason "..."',
        )
    if fields.get("max_token_chars", keyset.max_token_chars) < keyset.max_token_chars and runs:
        return unsafe(
            "set-token-limit",
            f"{who}: a round in flight whose token is longer than {fields['max_token_chars']:,} characters is refused",
            'say why it has to be: --reason "..."; mcpkeys triage shows how long real tokens are',
        )
    return None


def _effects(keyset: Keyset, fields: dict[str, Any]) -> tuple[str, ...]:
    """What each change does, one sentence each."""
    found: list[str] = []
    if "ttl_seconds" in fields:
        longer = fields["ttl_seconds"] > keyset.ttl_seconds
        found.append(
            f"a server takes the ttl when it starts: those running go on with {keyset.ttl_seconds} s; rounds get "
            + (
                "more time only after the restart"
                if longer
                else "less time only after the restart, and a rotation waits "
            )
            + (
                ""
                if longer
                else f"for {keyset.ttl_seconds} s until mcpkeys purge --past-ttls says that all have restarted"
            )
        )
    if "audience" in fields:
        found.append(
            f"a server takes the audience when it starts; rounds under {keyset.audience!r} are refused from then on"
        )
    if "skew_seconds" in fields:
        found.append("clocks may differ by half of skew_seconds before a rotation stops and names them")
    if "refresh_seconds" in fields:
        found.append(
            f"each instance looks once more after {keyset.refresh_seconds} s at most, then by the new interval"
        )
    if "max_stale_seconds" in fields:
        limit = fields["max_stale_seconds"]
        found.append(
            "an instance cut off from the store serves for ever: only its own word or yours proves it stopped"
            if limit is None
            else f"an instance that has read this and whose last refresh began over {limit} s ago serves nothing"
        )
    if "max_token_chars" in fields:
        more = fields["max_token_chars"] > keyset.max_token_chars
        found.append(
            "until its next refresh an instance refuses what another one already mints longer"
            if more
            else "longer tokens are neither minted nor accepted once an instance has read this"
        )
    if fields.get("evidence") == "attest":
        found.append("instances stop reporting; phases 2 and 3 of a rotation need your word: --attest TEXT")
    elif fields.get("evidence") == "reports":
        found.append("every instance reports from its next refresh on; one that may not write cannot start any more")
    return tuple(found)


def _next(fields: dict[str, Any]) -> str:
    if "ttl_seconds" in fields or "audience" in fields:
        return "restart the servers: they take ttl and audience when they start; then mcpkeys status"
    if fields.get("evidence") == "attest":
        return "once every server has refreshed, delete what they reported: mcpkeys purge --silent-for 1h"
    return "mcpkeys status --watch, until every instance holds the new generation"
