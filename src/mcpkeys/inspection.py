"""A token's verdict as data: would the boundary accept it, and if not, which check refuses it?

Pure: no I/O, no clock, nothing sent anywhere; imports neither the SDK nor a cloud SDK. The checks are those of the
SDK's `RequestStateBoundary._unseal`, in its order and with its log words; tests/inspection/test_differential.py
holds the two against each other. Checks after a failing one are made all the same where there is something to check,
so that a token that has merely expired since does not hide the other failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from mcpkeys import claims as claims_of
from mcpkeys.call import (
    CARRIERS,
    NO_CALL,
    NOT_GIVEN,
    CallContext,
    NoIdentity,
    NotGiven,
    arguments,
    arguments_digest,
    principal_matches,
    target,
)
from mcpkeys.claims import FUTURE_SKEW_SECONDS, BadEnvelope
from mcpkeys.opening import Check, Fronts, Result, TokenKey, open_token
from mcpkeys.ring import Ring
from mcpkeys.sdktoken import SdkRing

Verdict = Literal["accepted", "rejected", "unverified"]

REASONS: Final = (
    "non-string requestState",
    "malformed",
    "unknown key",
    "retired key",
    "seal",
    "minted in the future",
    "expired",
    "request binding",
    "audience",
    "principal binding error",
    "principal drift",
    "principal",
)
"""Every word that an inspection can give, in the boundary's order. `bind_principal returned X, expected str or None`
is the one that varies; `stale ring` and `codec error` are states of an instance, not of a token."""


RawCheck = tuple[str, Result, Any, str | None]
"""A check whose detail may still be (function, *arguments): written out when somebody reads it."""


class Inspection:
    """One token's verdict.

    Attributes:
        verdict: `accepted`: it opened, and no check failed; those that are `not_checked` were not given.
            `rejected`: a check failed. `unverified`: nothing failed, but there was no key to open it with, or the
            boundary would not look at it at all.
        reason: the boundary's log word for the first failing check; None where it logs none.
        checks: in the boundary's order.
        key: the key that the token names, or None where none can be read.
        claims: without the state; None unless it opened. Authentic, yet written by whoever held the key.
        sizes: `token` in characters, and where it opened `payload` in bytes and `state` in characters.
        state: the state's text where it opened. Show it only on request.
    """

    # Checks and claims are written out when they are read: of a hundred thousand tokens most are only counted.
    __slots__ = ("_checks", "_claims", "_raw_checks", "_raw_claims", "key", "reason", "sizes", "state", "verdict")

    def __init__(
        self,
        verdict: Verdict,
        reason: str | None,
        checks: Sequence[RawCheck],
        key: TokenKey | None = None,
        claims: dict[str, Any] | None = None,
        sizes: dict[str, int] | None = None,
        state: str | None = None,
    ) -> None:
        self.verdict = verdict
        self.reason = reason
        self.key = key
        self.sizes = {} if sizes is None else sizes
        self.state = state
        self._raw_checks = checks
        self._raw_claims = claims
        self._checks: tuple[Check, ...] | None = None
        self._claims: dict[str, Any] | None = None

    @property
    def checks(self) -> tuple[Check, ...]:
        """In the boundary's order."""
        if self._checks is None:
            self._checks = tuple(
                Check(name, result, detail if isinstance(detail, str) else detail[0](*detail[1:]), reason)
                for name, result, detail, reason in self._raw_checks
            )
        return self._checks

    @property
    def claims(self) -> dict[str, Any] | None:
        """Without the state, as strict JSON can carry them."""
        if self._claims is None and self._raw_claims is not None:
            self._claims = claims_of.shown(self._raw_claims)
        return self._claims

    @property
    def opened(self) -> bool:
        """Whether its claims could be read."""
        return self._raw_claims is not None

    @property
    def audience(self) -> str | None:
        """The audience it was minted for; None where it did not open, or names none."""
        audience = None if self._raw_claims is None else self._raw_claims.get("aud")
        return audience if isinstance(audience, str) else None

    def __repr__(self) -> str:
        return (
            f"Inspection(verdict={self.verdict!r}, reason={self.reason!r}, checks={self.checks!r}, key={self.key!r}, "
            f"claims={self.claims!r}, sizes={self.sizes!r})"
        )

    @property
    def failed(self) -> tuple[Check, ...]:
        """The failing checks."""
        return tuple(check for check in self.checks if check.result == "fail")

    @property
    def failed_names(self) -> tuple[str, ...]:
        """The names of the failing checks, without writing out their details."""
        return tuple(check[0] for check in self._raw_checks if check[1] == "fail")

    @property
    def not_checked(self) -> tuple[Check, ...]:
        """The checks for which something was missing."""
        return tuple(check for check in self.checks if check.result == "not_checked")

    def as_dict(self) -> dict[str, Any]:
        """The shape in JSON output: strict JSON, without the state's text."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "checks": [check._asdict() for check in self.checks],
            "key": None if self.key is None else self.key._asdict(),
            "claims": self.claims,
            "sizes": self.sizes,
        }


def inspect_token(
    token: object,
    ring: Ring | SdkRing | None,
    call: CallContext = NO_CALL,
    *,
    now: float,
    fronts: Fronts | None = None,
) -> Inspection:
    """What the boundary would say of `token` in this call at this moment.

    Args:
        token: the value of `requestState` as parsed from JSON; None counts as absent, as it does for the boundary.
        ring: what a codec holds (`codec.ring`) or is loaded from a keyset; an `SdkRing` for a server with the SDK's
            own codec; None without keys.
        call: the call it was used in, as far as it is known.
        now: seconds since the epoch by the server's clock.
        fronts: a dict of the caller's, to open many tokens of one ring; it will hold derived keys.

    Returns:
        An Inspection. Never raises, whatever the token, its claims and the call.
    """
    if token is None:
        return _unlooked("no requestState: a first round, the boundary has nothing to verify", "request state")
    if not isinstance(token, str):
        check = Check("string", "fail", f"{claims_of.kind(token)}, not a string", "non-string requestState")
        return _judge([check, *_OPENING, *_CLAIMS], None, None, {}, None)
    if call.method is not NOT_GIVEN and call.method not in CARRIERS:
        return _unlooked("the boundary acts on tools/call, prompts/get and resources/read only", "carrier")
    opened = open_token(token, ring, fronts)
    checks: list[RawCheck] = [*opened.checks]
    sizes = {"token": len(token)}
    if opened.payload is None:
        checks += _CLAIMS
        return _judge(checks, opened.key, None, sizes, None)
    sizes["payload"] = len(opened.payload)
    try:
        claims = claims_of.parse(opened.payload)
    except BadEnvelope as exc:
        checks.append(Check("envelope", "fail", str(exc), None if exc.raises else "malformed"))
        checks += _CLAIMS[1:]
        return _judge(checks, opened.key, None, sizes, None)
    fault = claims_of.fault(claims)
    checks.append(_ENVELOPE if fault is None else Check("envelope", "fail", fault, "malformed"))
    checks.append(_minted(claims, now))
    checks.append(_expiry(claims, now))
    checks += _binding(claims, call)
    checks.append(_audience(claims, call.audience))
    checks += _principal(claims, call.principal)
    state = claims.get("s")
    if isinstance(state, str):
        sizes["state"] = len(state)
    else:
        state = None
    return _judge(checks, opened.key, claims, sizes, state)


_BINDING = "request binding"
_OPENING = tuple(
    Check(name, "not_checked", "not reached", reason)
    for name, reason in (("format", "malformed"), ("key", "unknown key"), ("encoding", "malformed"), ("seal", "seal"))
)
_CLAIMS = tuple(
    Check(name, "not_checked", "not reached", reason)
    for name, reason in (
        ("envelope", "malformed"),
        ("minted", "minted in the future"),
        ("expiry", "expired"),
        ("method", _BINDING),
        ("target", _BINDING),
        ("arguments", _BINDING),
        ("audience", "audience"),
        ("principal binding", "principal binding error"),
        ("principal presence", "principal drift"),
        ("principal", "principal"),
    )
)
_NO_PRESENCE, _NO_PRINCIPAL = _CLAIMS[-2:]
# Made once: they say the same of every sound token.
_ENVELOPE = Check("envelope", "pass", "version 1", "malformed")
_TARGET_NOT_GIVEN = Check("target", "not_checked", "not given", _BINDING)
_ARGUMENTS_NOT_GIVEN = Check("arguments", "not_checked", "not given", _BINDING)
_NO_BINDING = Check("principal binding", "pass", "no principal", "principal binding error")
_BOUND = Check("principal binding", "pass", "a principal", "principal binding error")
_BOTH = Check("principal presence", "pass", "both have one", "principal drift")
_SAME = Check("principal", "pass", "the same", "principal")
_DIFFERENT = Check("principal", "fail", "minted for another one", "principal")
_NOBODY = (
    _NO_BINDING,
    Check("principal presence", "pass", "neither has one", "principal drift"),
    Check("principal", "pass", "bound to nobody", "principal"),
)
_NOBODY_NOT_GIVEN, _SOMEBODY_NOT_GIVEN = (
    (
        Check("principal binding", "not_checked", "not given", "principal binding error"),
        Check("principal presence", "not_checked", f"{bound}; not given", "principal drift"),
        Check("principal", "not_checked", "not given", "principal"),
    )
    for bound in ("bound to nobody", "bound to a principal")
)


def _unlooked(detail: str, name: str) -> Inspection:
    return Inspection("unverified", None, (Check(name, "not_checked", detail, None), *_OPENING, *_CLAIMS))


def _judge(
    checks: Sequence[RawCheck],
    key: TokenKey | None,
    claims: dict[str, Any] | None,
    sizes: dict[str, int],
    state: str | None,
) -> Inspection:
    for check in checks:
        if check[1] == "fail":
            return Inspection("rejected", check[3], checks, key, claims, sizes, state)
    return Inspection("unverified" if claims is None else "accepted", None, checks, key, claims, sizes, state)


def _minted(claims: dict[str, Any], now: float) -> RawCheck:
    # The boundary's own expression, stated positively: a NaN claim fails it. So does `_expiry`'s.
    iat = claims.get("iat", NOT_GIVEN)
    if iat is NOT_GIVEN:
        return ("minted", "not_checked", "no such claim", "minted in the future")
    sound = isinstance(iat, (int, float)) and iat <= now + FUTURE_SKEW_SECONDS
    return ("minted", "pass" if sound else "fail", (_ago, iat, now), "minted in the future")


def _expiry(claims: dict[str, Any], now: float) -> RawCheck:
    exp = claims.get("exp", NOT_GIVEN)
    if exp is NOT_GIVEN:
        return ("expiry", "not_checked", "no such claim", "expired")
    sound = isinstance(exp, (int, float)) and now < exp
    return ("expiry", "pass" if sound else "fail", (_ago, exp, now), "expired")


def _ago(value: object, now: float) -> str:
    at = claims_of.seconds(value)
    if at is None:
        return f"{claims_of.scalar(value)!r} is no moment"
    return f"{now - at:.3f} s ago" if at <= now else f"in {at - now:.3f} s"


def _binding(claims: dict[str, Any], call: CallContext) -> list[RawCheck]:
    method, params = call.method, call.params
    checks = [_compared("method", claims.get("m"), method)]
    if params is NOT_GIVEN:
        return [*checks, _TARGET_NOT_GIVEN, _ARGUMENTS_NOT_GIVEN]
    if method is NOT_GIVEN:
        # Told by the token itself, and only used to read the params its way; the method stays unchecked.
        claimed = claims.get("m")
        if not isinstance(claimed, str):
            return [*checks, _TARGET_NOT_GIVEN, _ARGUMENTS_NOT_GIVEN]
        method = claimed
    raising: list[RawCheck] = []
    try:
        checks.append(_compared("target", claims.get("t"), target(method, params)))
    except NoIdentity as exc:
        raising.append(("target", "fail", f"the boundary raises {exc} on it", None))
    try:
        given = arguments(method, params)
        digest = NOT_GIVEN if given is NOT_GIVEN else arguments_digest(given)
        checks.append(_compared("arguments", claims.get("a"), digest))
    except NoIdentity as exc:
        raising.append(("arguments", "fail", f"the boundary raises {exc} on them", None))
    # The boundary computes both before it compares any of the three.
    return [*raising, *checks] if raising else checks


def _compared(name: str, claim: object, given: str | NotGiven) -> RawCheck:
    if given is NOT_GIVEN:
        return (name, "not_checked", (_bound_to, claim), _BINDING)
    if claim == given:
        return (name, "pass", (_short, given), _BINDING)
    return (name, "fail", (_other, claim, given), _BINDING)


def _bound_to(claim: object) -> str:
    return f"bound to {claims_of.scalar(claim)!r}; not given"


def _short(given: str) -> str:
    return given if len(given) <= 200 else given[:200] + "…"


def _other(claim: object, given: str) -> str:
    return f"bound to {claims_of.scalar(claim)!r}, used with {claims_of.scalar(given)!r}"


def _audience(claims: dict[str, Any], expected: str | NotGiven | None) -> RawCheck:
    claim = claims.get("aud")
    if expected is NOT_GIVEN:
        return ("audience", "not_checked", (_minted_for, claim), "audience")
    if claim == expected:
        return ("audience", "pass", (_name, claim), "audience")
    return ("audience", "fail", (_minted_for_other, claim, expected), "audience")


def _minted_for(claim: object) -> str:
    return f"minted for {_name(claim)}; not given"


def _minted_for_other(claim: object, expected: object) -> str:
    return f"minted for {_name(claim)}, used with {_name(expected)}"


def _name(audience: object) -> str:
    return "no audience" if audience is None else repr(claims_of.scalar(audience))


def _principal(claims: dict[str, Any], principal: object) -> Sequence[RawCheck]:
    claim = claims.get("p")
    if principal is NOT_GIVEN:
        return _NOBODY_NOT_GIVEN if claim is None else _SOMEBODY_NOT_GIVEN
    fault = _binding_fault(principal)
    if fault is not None:
        detail = "bind_principal raised" if isinstance(principal, BaseException) else fault
        return (("principal binding", "fail", detail, fault), _NO_PRESENCE, _NO_PRINCIPAL)
    if claim is None and principal is None:
        return _NOBODY
    if claim is None or principal is None:
        binding = _NO_BINDING if principal is None else _BOUND
        detail = (
            "minted for nobody in particular, used by a principal"
            if claim is None
            else "minted for a principal, used by nobody in particular"
        )
        return (binding, ("principal presence", "fail", detail, "principal drift"), _NO_PRINCIPAL)
    assert isinstance(principal, str)
    same = isinstance(claim, str) and principal_matches(claim, principal)
    return (_BOUND, _BOTH, _SAME if same else _DIFFERENT)


def _binding_fault(principal: object) -> str | None:
    if isinstance(principal, BaseException):
        return "principal binding error"
    if principal is not None and not isinstance(principal, str):
        return f"bind_principal returned {type(principal).__name__}, expected str or None"
    return None


__all__ = ["NOT_GIVEN", "REASONS", "CallContext", "Check", "Inspection", "NotGiven", "TokenKey", "inspect_token"]
