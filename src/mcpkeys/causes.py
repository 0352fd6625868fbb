"""The usual causes of each refusal, one function per log word: summary, causes (the likeliest first), next step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from mcpkeys import claims as claims_of
from mcpkeys.call import NOT_GIVEN, NoIdentity, arguments, arguments_digest
from mcpkeys.difference import differences
from mcpkeys.encoding import format_ms
from mcpkeys.findings import printable
from mcpkeys.inspection import Inspection
from mcpkeys.keyset import Key
from mcpkeys.reports import Report
from mcpkeys.situation import Situation, span, who

MAX_DIFFERENCES: Final = 20
Told = tuple[str, list[str], str]


def of_rejection(inspection: Inspection, situation: Situation, minter: Report | None) -> Told:
    """What a rejection means. `minter` is the instance that minted the token, where a report tells."""
    reason = inspection.reason or ""
    if reason.startswith("bind_principal returned "):
        reason = "bind_principal"
    return _TELLERS.get(reason, _no_word)(inspection, situation, minter)


def _non_string(inspection: Inspection, situation: Situation, minter: Report | None) -> Told:
    return (
        "requestState is not a JSON string",
        ["the client parsed the state and sent what it made of it; it must echo the string unread"],
        "correct the client: requestState goes back exactly as it came",
    )


def _malformed(inspection: Inspection, situation: Situation, minter: Report | None) -> Told:
    failed = inspection.failed[0]
    if failed.name == "envelope":
        return (
            f"authentic, but not what the boundary seals: {failed.detail}",
            [
                "another program seals with the same key, or a server's SDK is of another version",
                "the codec is used for something other than RequestStateSecurity",
            ],
            "compare the versions of mcp on the instances; nothing but the boundary may call seal",
        )
    causes = [
        "it was cut, wrapped or re-encoded on its way: a log line's limit, a proxy, a copy from a terminal",
        "the client changed it; it must echo the string unread",
    ]
    if "SDK's own codec" in failed.detail:
        causes = [
            "some servers still run RequestStateSecurity(keys=[...]) while this ring has none of their keys",
            "a migration's first phase was skipped: every server verifies both before any mints mk1",
        ]
        return "a token of the SDK's own codec", causes, "--sdk-key-file FILE; give the servers sdk_keys= meanwhile"
    if "mk1 token" in failed.detail:
        causes = ["this server does not run the codec of mcpkeys yet, while another one mints with it"]
    return (
        f"not a token that seal produced: {failed.detail}",
        causes,
        "take the token from the request itself (--request FILE) rather than from a log",
    )


def _unknown_key(inspection: Inspection, situation: Situation, minter: Report | None) -> Told:
    key, keyset = inspection.key, situation.keyset
    kid = "" if key is None else key.kid
    if key is None or key.prefix is None:
        return (
            f"no SDK key that was given has the fingerprint {kid}",
            ["another service's keys, or a key that was taken out of keys=[...]"],
            "--sdk-key-file with every key the servers have",
        )
    if keyset is None:
        return (
            f"the ring has no key {kid}",
            ["another service's token, or one of the instances was given other secrets"],
            "compare the keys that the instances were started with",
        )
    holders = [
        entry.report for entry in situation.reports if kid in entry.report.verifies and entry.report.state != "farewell"
    ]
    newest = max((report.generation for report in holders), default=0)
    if newest > keyset.generation:
        return (
            f"{kid} is newer than generation {keyset.generation} held here",
            [f"{who(report)} holds generation {report.generation}, which has it" for report in holders[:3]],
            "read the stored keyset again; mcpkeys status names the instances that lag",
        )
    mentions = [entry for entry in keyset.history if kid in entry.what or kid in entry.reason]
    if mentions:
        last = mentions[-1]
        return (
            f"{kid} left the keyset: {printable(last.what)} in generation {last.generation} at {format_ms(last.at)}",
            ["the round was in flight under a key that was dropped", "an instance still mints with an older ring"],
            "mcpkeys history; mcpkeys status names who still mints with it",
        )
    causes = [
        "another service's token: its keyset has another name, or the client mixed up two servers",
        f"a key newer than generation {keyset.generation}: this document, or the instance, is behind",
        f"the keyset was created anew (init --replace) at another place, and {kid} belongs to the old one",
        "a server without a keyset: EnvelopeCodec.from_secrets, or the ephemeral default before a restart",
    ]
    return (
        f"{kid} was never in this keyset up to generation {keyset.generation}",
        causes,
        "mcpkeys status compares generations; mcpkeys verify --keyset URI shows whose keyset that is",
    )


def _retired(inspection: Inspection, situation: Situation, minter: Report | None) -> Told:
    key, keyset = inspection.key, situation.keyset
    held: Key | None = keyset.key(key.kid) if keyset is not None and key is not None else None
    if key is None or keyset is None or held is None:
        return "its key is retired", [], "mcpkeys history"
    at = held.state_since / 1000
    summary = f"{key.kid} was retired at {format_ms(held.state_since)}, {span(situation.now - at)} ago"
    causes: list[str] = []
    rotation = keyset.rotation
    burnt = [entry for entry in keyset.history if "emergency" in entry.what and abs(entry.at / 1000 - at) < 1]
    if burnt or (rotation is not None and rotation.ended == "emergency" and rotation.from_kid == key.kid):
        why = f": {printable(burnt[-1].reason)}" if burnt and burnt[-1].reason else ""
        causes.append(f"it was burnt in an emergency{why}; rounds in flight are refused knowingly")
    exp = None if inspection.claims is None else claims_of.seconds(inspection.claims.get("exp"))
    iat = None if inspection.claims is None else claims_of.seconds(inspection.claims.get("iat"))
    if exp is not None and situation.now >= exp:
        causes.append("it has expired as well: the answer came late, and rotation only decided which word is logged")
    if iat is not None and iat > at:
        causes.append(f"it was minted {span(iat - at)} after that: an instance with a stale ring minted it")
    elif exp is not None and exp > at and not burnt:
        causes.append("it was still valid when its key was retired: the last step did not wait for this server's ttl")
    if not held.wrapped:
        causes.append("its wrapped form is no longer kept, so its claims cannot be read")
    causes.append("the user took longer to answer than the rotation waited")
    return (
        summary,
        causes,
        "ask the client to start again; mcpkeys history shows the rotation, mcpkeys status its fleet",
    )


def _seal(inspection: Inspection, situation: Situation, minter: Report | None) -> Told:
    known = "an instance of this fleet has minted under this prefix" if minter is not None else ""
    causes = [
        "the token was changed after the header: a character lost, a case changed, two tokens mixed",
        "whoever minted it holds other key bytes under this kid: a copied and edited keyset, a restored KEK",
        "someone forged or probed it",
    ]
    if known:
        causes[0] += f" ({known})"
    return (
        "the tag does not verify, so nothing in the token can be believed",
        causes,
        "take the token from the request itself (--request FILE); if it came unchanged, look at who sent it",
    )


def _future(inspection: Inspection, situation: Situation, minter: Report | None) -> Told:
    iat = _claim(inspection, "iat")
    if iat is None:
        return "its time of minting is no moment", ["the sealed claims were not written by the boundary"], _WRONG_CLAIMS
    ahead = iat - situation.now
    causes = [f"a clock is wrong by {span(ahead)}: the minting instance's is ahead, or the refusing one's is behind"]
    for entry in situation.reports:
        drift = entry.report.clock / 1000 - entry.modified_at
        if abs(drift) > 30:
            way = "ahead of" if drift > 0 else "behind"
            causes.append(f"{who(entry.report)} reports a clock {span(drift)} {way} the store's")
    if situation.now_is_capture:
        causes.append("the moment given by --now or the capture is of another clock")
    return (
        f"minted {span(ahead)} in the future; the boundary allows {claims_of.FUTURE_SKEW_SECONDS:.0f} s",
        causes,
        "mcpkeys status names the instance whose clock is off; then NTP there",
    )


def _expired(inspection: Inspection, situation: Situation, minter: Report | None) -> Told:
    exp, iat = _claim(inspection, "exp"), _claim(inspection, "iat")
    if exp is None:
        return "its time of expiry is no moment", ["the sealed claims were not written by the boundary"], _WRONG_CLAIMS
    late = situation.now - exp
    ttl = None if iat is None else exp - iat
    summary = f"expired {span(late)} ago" + ("" if ttl is None else f"; its ttl was {span(ttl)}")
    causes: list[str] = []
    others = [check.name for check in inspection.failed[1:]]
    if situation.now_is_capture:
        causes.append("the user took longer to answer than the ttl allows")
    elif others:
        causes.append(f"that may have happened since; {', '.join(others)} would have failed as well")
    else:
        causes.append("it may have expired only since: no other check fails; --now replays the moment of the call")
        causes.append("the user took longer to answer than the ttl allows")
    keyset = situation.keyset
    if keyset is not None and late < keyset.skew_seconds:
        causes.append(f"clocks differ: {span(late)} is within the keyset's skew of {keyset.skew_seconds} s")
    if keyset is not None and ttl is not None and abs(ttl - keyset.ttl_seconds) >= 1:
        causes.append(f"the minting server's ttl of {span(ttl)} is not the keyset's {keyset.ttl_seconds} s")
    return summary, causes, "ask the client to start again; mcpkeys set --ttl SECONDS if people need longer"


def _binding(inspection: Inspection, situation: Situation, minter: Report | None) -> Told:
    failed = [check for check in inspection.failed if check.reason == "request binding"]
    names = [check.name for check in failed]
    causes: list[str] = []
    for check in failed:
        if check.name == "method":
            causes.append(f"method: {check.detail}: the state of one kind of call was sent with another")
        elif check.name == "target":
            causes.append(
                f"target: {check.detail}: the client mixed up two rounds, or names were rewritten by a gateway"
            )
        else:
            causes.append("arguments: the retry must repeat the first round's arguments exactly, key order aside")
            causes += _differing(inspection, situation)
    return (
        f"bound to another request: {', '.join(names)} {'differ' if len(names) > 1 else 'differs'}",
        causes,
        "--first FILE with the request of the first round shows which arguments differ"
        if "arguments" in names and situation.first is None
        else "correct the client, or what rewrites requests between it and the server",
    )


def _differing(inspection: Inspection, situation: Situation) -> list[str]:
    call, first = situation.call, situation.first
    if first is None or call.params is NOT_GIVEN or not isinstance(call.method, str):
        return []
    assert call.params is None or isinstance(call.params, Mapping)
    before, after = arguments(call.method, first), arguments(call.method, call.params)
    try:
        fits = inspection.claims is not None and arguments_digest(before) == inspection.claims.get("a")
    except NoIdentity:
        return ["the arguments of the round given by --first cannot be compared"]
    if not fits:
        return ["the round given by --first is not the one that minted this token: its arguments do not fit either"]
    found = [f"arguments{path}: {what}" for path, what in differences(before, after)]
    return found[:MAX_DIFFERENCES] + (["... and more"] if len(found) > MAX_DIFFERENCES else [])


def _audience(inspection: Inspection, situation: Situation, minter: Report | None) -> Told:
    # Its rules are many regular expressions, compiled at import: most inspections do without.
    from mcpkeys.audience import check_audience

    claim = None if inspection.claims is None else inspection.claims.get("aud")
    expected = situation.call.audience
    causes: list[str] = []
    if isinstance(claim, str) and isinstance(expected, str):
        similar = [f for f in check_audience(expected, known=[claim]) if f.code == "audience-similar"]
        if similar:
            causes.append(f"a slip: {similar[0].what}")
        else:
            causes.append(
                "minted under another name: a release of this service that names its audience differently, or another "
                "service under shared keys"
            )
    elif claim is None:
        causes.append("it was minted by a server without an audience, and used with one that has one")
    else:
        causes.append("it was minted for a named audience, and used with a server that has none")
    keyset = situation.keyset
    if keyset is not None:
        for name, whose in ((claim, "the token's"), (expected, "the expected one")):
            if isinstance(name, str) and name == keyset.audience:
                causes.append(f"{whose} is the keyset's audience, {keyset.audience!r}")
        if keyset.audience not in (claim, expected):
            causes.append(f"neither is the keyset's audience, {keyset.audience!r}")
    causes.append("a server was renamed, or is named after its replica: MCPServer names the audience after the server")
    shown = "no audience" if claim is None else repr(claim)
    wanted = "no audience" if expected is None else repr(expected)
    return (
        f"minted for {shown}, expected {wanted}",
        causes,
        "mcpkeys check MODULE:SERVER on both; mcpkeys audience NAME --known OTHER",
    )


def _binding_error(inspection: Inspection, situation: Situation, minter: Report | None) -> Told:
    return (
        "bind_principal raised, so the call was refused",
        ["what it asks (session store, token introspection) was down", "it does not expect this kind of caller"],
        "the server's log has the traceback: 'bind_principal raised while processing requestState'",
    )


def _bind_principal(inspection: Inspection, situation: Situation, minter: Report | None) -> Told:
    return (
        inspection.reason or "",
        ["bind_principal returned something other than a string or None; it is not converted"],
        "correct bind_principal: a string names the principal, None says there is none",
    )


def _drift(inspection: Inspection, situation: Situation, minter: Report | None) -> Told:
    if situation.call.principal is None:
        causes = [
            "the first round was authenticated, the retry was not: the credential expired in between or was not sent",
            "the retry reached an instance or route without the authentication middleware",
        ]
        return "minted for a principal, used by nobody in particular", causes, "compare how both requests authenticated"
    causes = [
        "the first round was not authenticated and the retry was: the user signed in between",
        "the first round reached an instance or route without the authentication middleware",
        "bind_principal is set on some instances only",
    ]
    return "minted for nobody in particular, used by a principal", causes, "compare how both requests authenticated"


def _principal(inspection: Inspection, situation: Situation, minter: Report | None) -> Told:
    return (
        "minted for another principal; the claim is a salted digest and does not tell which",
        [
            "another user, or another OAuth client of the same user: client, issuer and subject must all be the same",
            "the token verifier supplies a subject or issuer on some instances only",
            "bind_principal differs between instances or versions",
            "someone uses another's token",
        ],
        "try who it may have been: --client-id --issuer --subject, or --principal with what bind_principal returns",
    )


def _no_word(inspection: Inspection, situation: Situation, minter: Report | None) -> Told:
    detail = inspection.failed[0].detail if inspection.failed else ""
    return (
        f"the boundary fails on it without a word of its own: {detail}",
        ["whoever holds a key sealed something hostile, or the request is hostile; no ordinary client does this"],
        "the server's log has a traceback instead of 'requestState rejected'; look at who sent it",
    )


def _claim(inspection: Inspection, name: str) -> float | None:
    return None if inspection.claims is None else claims_of.seconds(inspection.claims.get(name))


_WRONG_CLAIMS: Final = "nothing but the boundary may call seal: look for another user of this key"
_TELLERS: Final[dict[str, Callable[[Inspection, Situation, Report | None], Told]]] = {
    "non-string requestState": _non_string,
    "malformed": _malformed,
    "unknown key": _unknown_key,
    "retired key": _retired,
    "seal": _seal,
    "minted in the future": _future,
    "expired": _expired,
    "request binding": _binding,
    "audience": _audience,
    "principal binding error": _binding_error,
    "bind_principal": _bind_principal,
    "principal drift": _drift,
    "principal": _principal,
}
