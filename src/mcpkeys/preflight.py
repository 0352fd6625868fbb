"""What `mcpkeys check` has to say of a server object: facts in, findings out. Pure.

The facts are gathered by `preflight_child`, which imports the application in a process of its own, and travel
as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from mcpkeys.audience import check_audience
from mcpkeys.findings import Finding, Level, printable

CodecKind = Literal["mcpkeys", "secrets", "ephemeral", "keys", "foreign", "none", "unreadable"]

Make = Callable[[str, Level, str, str, str], Finding]

_SET_UP = "pass request_state_security=mcpkeys.request_state_security(...) to MCPServer"
_SET_UP_LOW = "server.middleware.append(mcpkeys.request_state_boundary(...))"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What was seen of one server.

    Attributes:
        kind: `MCPServer`, or `Server` for the low-level one.
        name: the server's name; `named`: whether it was given one.
        boundaries: how many request-state boundaries its middleware holds.
        carries: whether it has handlers whose results may carry request state.
        audience: what the boundary seals as audience; None for none.
        ttl: seconds for which a token is good, or None.
        codec: what seals. `ephemeral`: a key that this process drew; `keys`: the SDK's codec under given keys.
        codec_class: its class's name.
        binds_principal, auth: whether tokens are bound to the caller, and whether callers are authenticated.
        http: whether it is served over HTTP, as far as seen; `stdio` likewise.
        workers: how many processes serve it, as far as seen.
        per_request: whether it was built anew for each of two requests.
        opened: how many codecs were opened while one token was sealed and unsealed.
        round_trip: why a sealed payload did not come back, or empty.
        keyset, keyset_audience, keyset_ttl: the loaded keyset's name, audience and ttl in seconds; empty, empty and 0.
        ready: whether the codec can mint and verify.
        mints: `mk1`, or `sdk` in the first phase of a migration; `sdk_keys`: whether SDK tokens are still accepted.
    """

    kind: Literal["MCPServer", "Server"]
    name: str
    named: bool = True
    boundaries: int = 1
    carries: bool = True
    audience: str | None = None
    ttl: float | None = None
    codec: CodecKind = "none"
    codec_class: str = ""
    binds_principal: bool = True
    auth: bool = False
    http: bool = False
    stdio: bool = False
    workers: int = 1
    per_request: bool = False
    opened: int = 0
    round_trip: str = ""
    keyset: str = ""
    keyset_audience: str = ""
    keyset_ttl: int = 0
    ready: bool = True
    mints: str = "mk1"
    sdk_keys: bool = False

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ServerFacts:
        """The inverse of `dataclasses.asdict`; the child's word is trusted to be complete."""
        return cls(**value)


def judge(
    facts: ServerFacts, *, hostname: str = "", configured: bool = False, known: Iterable[str] = ()
) -> list[Finding]:
    """The findings of one server.

    Args:
        facts: what was seen.
        hostname: this machine's name: an audience equal to it is per-replica.
        configured: whether MCPKEYS_* settings name a keyset; a server that then seals without it is refused.
        known: audiences of other services.
    """
    subject = printable(facts.name) or facts.kind

    def finding(code: str, level: Level, what: str, why: str, next: str) -> Finding:
        return Finding(code, level, subject, what, why, next)

    if facts.boundaries == 0:
        if not facts.carries:
            return []
        return [
            finding(
                "no-boundary",
                "refused",
                f"the low-level server '{subject}' has no request-state boundary",
                "requestState travels as its handlers write it, readable and unsealed, and what comes back is believed",
                _SET_UP_LOW,
            )
        ]
    return [
        *_audience(facts, finding, hostname, known),
        *_codec(facts, finding, configured),
        *_keyset(facts, finding),
        *_callers(facts, finding),
    ]


def _audience(facts: ServerFacts, finding: Make, hostname: str, known: Iterable[str]) -> Iterable[Finding]:
    if facts.codec == "unreadable":
        return
    if facts.audience is None:
        yield finding(
            "audience-missing",
            "refused",
            "tokens are sealed without an audience",
            "another service with the same keys would accept them",
            f"use {_SET_UP_LOW}, or pass default_audience=",
        )
        return
    if facts.kind == "MCPServer" and not facts.named and facts.audience == facts.name:
        yield finding(
            "server-unnamed",
            "refused",
            "the server has no name, so its audience is the SDK's placeholder",
            "every unnamed server has the same audience, and the claim separates nothing",
            "name it: MCPServer('acme-orders')",
        )
        return
    yield from check_audience(facts.audience, hostname=hostname, known=known)


def _codec(facts: ServerFacts, finding: Make, configured: bool) -> Iterable[Finding]:
    set_up = _SET_UP if facts.kind == "MCPServer" else _SET_UP_LOW
    if facts.boundaries > 1:
        yield finding(
            "boundary-twice",
            "warned",
            f"{facts.boundaries} boundaries seal every token, one after the other",
            "MCPServer installs one itself; a second one doubles work and length",
            "keep one",
        )
    if facts.codec == "unreadable":
        yield finding(
            "policy-unreadable",
            "warned",
            "something seals the state, and its policy cannot be read",
            "it is no boundary of the SDK's, or of an unknown version; its codec, ttl and audience were not checked",
            f"{_SET_UP_LOW}, or upgrade mcpkeys",
        )
        yield from _per_request(facts, finding)
        return
    if facts.codec == "ephemeral":
        yield from _ephemeral(facts, finding, configured, set_up)
    elif facts.codec in ("keys", "foreign", "secrets"):
        told = {
            "keys": "the SDK's codec under keys=[...]",
            "secrets": "EnvelopeCodec.from_secrets",
            "foreign": f"another codec, {printable(facts.codec_class)}",
        }[facts.codec]
        yield finding(
            "codec-other",
            "refused" if configured else "warned",
            f"the server seals with {told}, not under a keyset",
            "a keyset is configured and not used" if configured else "mcpkeys rotates no key that it does not hold",
            f"{set_up}; docs/how-to/migrate.md moves a live fleet without a refused round",
        )
    if facts.round_trip:
        yield finding(
            "round-trip-failed",
            "refused",
            "what the codec sealed it did not unseal",
            printable(facts.round_trip),
            "mcpkeys doctor --as-server tells why" if facts.codec == "mcpkeys" else "mend the codec",
        )
    yield from _per_request(facts, finding)


def _per_request(facts: ServerFacts, finding: Make) -> Iterable[Finding]:
    if facts.per_request or facts.opened:
        yield finding(
            "codec-per-request",
            "refused",
            "the codec is opened anew for each request"
            if facts.per_request
            else "the codec is opened anew for each token",
            "every opening calls the KMS once per key and joins the fleet as another instance; rotations wait for each",
            "open it once, at import or in the lifespan, and keep it",
        )


def _ephemeral(facts: ServerFacts, finding: Make, configured: bool, set_up: str) -> Iterable[Finding]:
    if facts.workers > 1:
        yield finding(
            "default-key",
            "refused",
            f"each of {facts.workers} workers seals under a key of its own",
            "the SDK's default key is drawn by every process; a retry that lands on another worker is refused",
            set_up,
        )
    elif configured:
        yield finding(
            "default-key",
            "refused",
            "the server seals under the SDK's default key although a keyset is configured",
            "MCPKEYS_* variables alone change nothing: the server must be given the codec",
            set_up,
        )
    elif not facts.stdio:
        how = "over HTTP " if facts.http else ""
        yield finding(
            "default-key",
            "warned",
            f"the server is served {how}under the SDK's default key"
            if facts.http
            else "the server uses the default key",
            "every process draws its own: a second worker, a second replica or a restart refuses the rounds in flight",
            f"{set_up}; for stdio alone the default is right (--transport stdio)",
        )


def _keyset(facts: ServerFacts, finding: Make) -> Iterable[Finding]:
    if not facts.keyset:
        return
    if facts.audience is not None and facts.audience != facts.keyset_audience:
        yield finding(
            "audience-differs",
            "refused",
            f"the server seals for '{printable(facts.audience)}', the keyset '{facts.keyset}' is for "
            f"'{printable(facts.keyset_audience)}'",
            "replicas that take the keyset's audience refuse this server's tokens, and the other way round",
            "use request_state_security(), which takes the keyset's; only where every server is renamed: mcpkeys set",
        )
    if facts.ttl is not None and facts.ttl > facts.keyset_ttl:
        yield finding(
            "ttl-longer",
            "refused",
            f"tokens are good for {facts.ttl:g} s, the keyset says {facts.keyset_ttl} s",
            "a rotation retires the old key one keyset ttl after its last token; longer-lived ones would be refused",
            f"use request_state_security(), which takes the keyset's; or mcpkeys set --ttl {facts.ttl:.0f}",
        )
    if not facts.ready:
        yield finding(
            "codec-not-ready",
            "refused",
            "the codec cannot mint or verify now",
            "its minting key is not unwrapped, its ring is stale, or it was closed",
            "mcpkeys doctor --as-server tells why",
        )
    if facts.mints == "sdk" or facts.sdk_keys:
        phase = "still mints the SDK's tokens" if facts.mints == "sdk" else "still accepts the SDK's tokens"
        yield finding(
            "migration-running",
            "warned",
            f"the server {phase}",
            "the old secret can forge tokens for as long as a server accepts it",
            "go on with docs/how-to/migrate.md",
        )


def _callers(facts: ServerFacts, finding: Make) -> Iterable[Finding]:
    if facts.auth and not facts.binds_principal:
        yield finding(
            "principal-unbound",
            "refused",
            "callers are authenticated, and tokens are not bound to them (bind_principal=None)",
            "one caller's token, once seen by another, is good in the other's hands",
            "leave bind_principal= at its default, or give a function that names the caller",
        )
