"""Why: the usual causes of a verdict in this keyset's situation, and the next command. Pure, no I/O, no clock.

An inspection says which check failed; this says what that most likely means for the one who holds the token, the
keyset and perhaps the fleet's reports. Nothing here changes a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mcpkeys import causes
from mcpkeys.inspection import Inspection
from mcpkeys.reports import Report
from mcpkeys.situation import Situation, who


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a verdict means.

    Attributes:
        summary: one sentence without a full stop.
        causes: the usual ones, the likeliest first.
        next: what to do, a command where there is one.
        minted_by: the instance whose prefix the token carries, or None where no report tells.
        cannot_verify: instances that would refuse it whatever else holds: label and why.
        still_verify: instances that would accept a key that this generation retired.
    """

    summary: str
    causes: tuple[str, ...]
    next: str
    minted_by: str | None = None
    cannot_verify: tuple[str, ...] = ()
    still_verify: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The shape in JSON output."""
        return asdict(self)


def explain(inspection: Inspection, situation: Situation) -> Explanation:
    """The explanation of one inspection. Never raises."""
    key, reports = inspection.key, [entry.report for entry in situation.reports]
    minter = _minter(inspection, reports)
    cannot: list[str] = []
    still: list[str] = []
    for report in reports if key is not None and key.prefix is not None else ():
        if report.state == "farewell":
            continue
        holds = f"holds generation {report.generation}" if report.generation else "has not loaded a ring yet"
        if key is not None and key.kid in report.verifies:
            if key.state in ("retired", "unknown"):
                still.append(f"{who(report)} {holds}")
        elif key is not None and key.state in ("minting", "verifying"):
            cannot.append(f"{who(report)} {holds} and logs 'unknown key'")
    summary, told, next_step = _by_reason(inspection, situation, minter)
    if inspection.verdict == "accepted" and cannot:
        told = [f"the key is not known everywhere: {'; '.join(cannot[:5])}", *told]
        next_step = "mcpkeys status names what each instance holds and what it waits for"
    later = [check for check in inspection.failed[1:] if check.reason != inspection.reason]
    if later:
        also = "; ".join(f"{check.reason or 'no word'} ({check.detail})" for check in later[:4])
        told.append(f"and once that is mended: {also}")
    if situation.trimmed and inspection.verdict != "rejected":
        told.append(f"only the token inside is meant ({', '.join(situation.trimmed)}); the server compares exactly")
    return Explanation(
        summary, tuple(told), next_step, None if minter is None else who(minter), tuple(cannot), tuple(still)
    )


def _minter(inspection: Inspection, reports: Sequence[Report]) -> Report | None:
    prefix = None if inspection.key is None else inspection.key.prefix
    return next((report for report in reports if prefix is not None and prefix in report.prefixes), None)


def _by_reason(inspection: Inspection, situation: Situation, minter: Report | None) -> causes.Told:
    if inspection.verdict == "accepted":
        return _accepted(inspection, situation)
    if inspection.verdict == "unverified":
        return _unverified(inspection, situation)
    return causes.of_rejection(inspection, situation, minter)


def _accepted(inspection: Inspection, situation: Situation) -> causes.Told:
    if inspection.not_checked:
        told = ["the parts that were not checked decide: the server compares them all"]
        claim = (inspection.claims or {}).get("aud")
        keyset = situation.keyset
        if keyset is not None and claim != keyset.audience:
            shown = "no audience" if claim is None else repr(claim)
            told.insert(0, f"it was minted for {shown}, and the keyset's audience is {keyset.audience!r}")
        return (
            "what could be checked passes",
            told,
            "give the call it was used in: --request FILE, or --method --name --arguments --audience and --principal",
        )
    return (
        "every check of the boundary passes",
        [
            "an instance that holds an older ring, has another audience or another clock may still refuse it",
            "the refusal in the log was of another token",
        ],
        "mcpkeys status names instances that lag; their log lines name the reason each one saw",
    )


def _unverified(inspection: Inspection, situation: Situation) -> causes.Told:
    first = inspection.checks[0]
    if first.name in ("request state", "carrier"):
        return first.detail, [], "inspect the call that carried the token"
    key = inspection.key
    if key is not None and key.kid and len(key.kid) == 8:
        return (
            "a token of the SDK's own codec; its keys were not given",
            ["the servers that minted it run RequestStateSecurity(keys=[...]), or verify its keys during a migration"],
            "--sdk-key-file FILE, one secret a line",
        )
    if situation.keyset is None:
        return (
            "well formed; nothing more can be said without a keyset",
            [],
            "--keyset URI (or MCPKEYS_KEYSET), or --bundle FILE on a machine without a network",
        )
    return (
        "its key" + (f" {key.kid} is {key.state}" if key else "") + ", and there is no key here to open it with",
        [
            "this identity may not use the KEK, no KEK answered, or the bundle leaves the minting key out",
            "an instance whose ring is like this one refuses it as 'unknown key'",
        ],
        "--bundle FILE, or an identity that may unwrap: mcpkeys policy KMS --role inspector",
    )


__all__ = ["Explanation", "Situation", "explain"]
