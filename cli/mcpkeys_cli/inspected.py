"""How an inspection is shown: the JSON document and the page a person reads.

The verdict is of the string exactly as it was given. Where something had to be taken off around a token, what is
inside is shown as well, and never called valid by itself.
"""

from __future__ import annotations

import sys
from typing import Any

from mcpkeys import claims as claims_of
from mcpkeys.encoding import format_ms, to_ms
from mcpkeys.explanation import Explanation
from mcpkeys.inspection import Inspection
from mcpkeys.situation import Situation
from mcpkeys_cli.output import escape, moment, paint
from mcpkeys_cli.sight import Sight

MAX_STATE_SHOWN = 20_000
_MARKS = {"pass": "pass", "fail": "FAIL", "not_checked": "not checked"}


def document(
    exact: Inspection,
    found: Inspection,
    told: Explanation,
    trimmed: tuple[str, ...],
    sight: Sight,
    situation: Situation,
    *,
    show_state: bool,
) -> dict[str, Any]:
    """The fields of the JSON document. `inside` is there only where something was trimmed."""
    data: dict[str, Any] = {
        **exact.as_dict(),
        "now": format_ms(to_ms(situation.now)),
        "now_is_capture": situation.now_is_capture,
        "held_against": {
            "source": sight.source,
            "generation": None if sight.keyset is None else sight.keyset.generation,
            "reports": len(sight.reports),
        },
        "explanation": told.as_dict(),
        "trimmed": list(trimmed),
        "notes": list(sight.notes),
        "contacted": "no MCP server",
    }
    if trimmed:
        data["inside"] = found.as_dict()
    if show_state:
        data["state"] = found.state
    return data


def text(
    exact: Inspection,
    found: Inspection,
    told: Explanation,
    trimmed: tuple[str, ...],
    logged: str | None,
    sight: Sight,
    situation: Situation,
    *,
    show_state: bool,
) -> str:
    """The page. Its first line is the verdict."""
    lines: list[str] = []
    if trimmed:
        lines.append(f"{_headline(exact)} as given: {', '.join(trimmed)}")
        lines.append(f"inside it: {_headline(found)}")
    else:
        lines.append(_headline(found))
    lines.append(f"  {told.summary}")
    if logged is not None:
        lines.append(f"  the server logged: {logged}")
    lines += ["", *_facts(found, told, situation), "", *_checks(found)]
    if told.causes:
        lines += ["", "most likely:", *(f"  - {cause}" for cause in told.causes)]
    for label, names in (("cannot verify it", told.cannot_verify), ("still accept its key", told.still_verify)):
        if names:
            lines += ["", f"instances that {label}:", *(f"  - {name}" for name in names[:20])]
    if show_state and found.state is not None:
        shown = found.state[:MAX_STATE_SHOWN]
        lines += ["", "state:", *(f"  | {line}" for line in shown.split("\n"))]
        if len(found.state) > len(shown):
            lines.append(f"  ... and {len(found.state) - len(shown):,} more characters")
    lines += ["", *_source(sight)]
    # No text from outside may begin a line of its own, or steer the terminal.
    first, *rest = [escape(line).replace("\n", "\\n") for line in lines]
    return "\n".join([paint(first, _colour(first), sys.stdout), *rest])


def _headline(found: Inspection) -> str:
    if found.verdict == "rejected":
        return f"REJECTED: {found.reason or 'the boundary raises, with no word of its own'}"
    if found.verdict == "unverified":
        return "NOT VERIFIED (no key)" if found.checks[0].name not in ("request state", "carrier") else "NOT LOOKED AT"
    missing = [check.name for check in found.not_checked]
    return f"ACCEPTED as far as checked; not checked: {', '.join(missing)}" if missing else "ACCEPTED"


def _colour(headline: str) -> str:
    if headline.startswith("REJECTED"):
        return "red"
    return "green" if headline == "ACCEPTED" else "yellow"


def _facts(found: Inspection, told: Explanation, situation: Situation) -> list[str]:
    key, claims, now = found.key, found.claims, situation.now
    rows: list[tuple[str, str]] = []
    if key is not None:
        state: str = {"unknown": "state unknown", "sdk": "a key of the SDK's own codec"}.get(key.state, key.state)
        if key.state_since is not None:
            state += f" since {moment(key.state_since, now)}"
        rows.append(("key", f"{key.kid}  {state}" + (f", generation {key.generation}" if key.generation else "")))
        if key.prefix is not None:
            minter = told.minted_by or ("no report names its process" if situation.reports else "no reports at hand")
            # Before the tag verified, a header is what anybody may have written.
            told_by = "prefix" if found.claims is not None else "unauthenticated prefix"
            rows.append(("minted by", f"{minter}  ({told_by} {key.prefix})"))
    if claims is not None:
        rows += [("minted", _when(claims.get("iat"), now)), ("expires", _when(claims.get("exp"), now))]
        rows.append(("bound to", f"{claims.get('m')} {claims.get('t')!r}, arguments {claims.get('a')}"))
        audience = claims.get("aud")
        rows.append(("audience", "none" if audience is None else repr(audience)))
        rows.append(("principal", "none" if claims.get("p") is None else "bound to one (a salted digest)"))
        if claims.get("others"):
            rows.append(("also", f"claims that nobody reads: {', '.join(map(repr, claims['others']))}"))
    sizes = found.sizes
    if sizes:
        size = f"{sizes['token']:,} characters"
        size += f"; sealed {sizes['payload']:,} bytes" if "payload" in sizes else ""
        size += f"; state {sizes['state']:,} characters (--show-state)" if "state" in sizes else ""
        rows.append(("size", size))
    moment_of = "of the capture or --now" if situation.now_is_capture else "this machine's"
    rows.append(("moment", f"{format_ms(to_ms(now))}, {moment_of}"))
    return [f"{name:<10} {value}" for name, value in rows]


def _when(claim: object, now: float) -> str:
    at = claims_of.seconds(claim)
    if at is None or not -6e10 < at < 2e11:
        return f"{claims_of.scalar(claim)!r}, which is no moment"
    return moment(to_ms(at), now)


def _checks(found: Inspection) -> list[str]:
    lines: list[str] = []
    unreached: list[str] = []
    for check in found.checks:
        if check.detail == "not reached":
            unreached.append(check.name)
        else:
            lines.append(f"  {_MARKS[check.result]:<12} {check.name:<19} {check.detail}")
    if unreached:
        lines.append(f"  {_MARKS['not_checked']:<12} not reached: {', '.join(unreached)}")
    return lines


def _source(sight: Sight) -> list[str]:
    held = f"held against {sight.source}"
    if sight.keyset is not None:
        held += f", generation {sight.keyset.generation}"
    lines = [f"{held}; no MCP server was contacted, nothing was sent to one"]
    return [*(f"note: {note}" for note in sight.notes), *lines]
