"""Audience names: which of them separate one service from another, and which only look as if they did.

`MCPServer` names the audience after the server and the boundary compares one string, byte for byte (SDK:
`mcp.server.request_state`). So a name must be the same in every replica of a service, different in every
other service, and readable by a person who compares two of them. Pure: no I/O, no clock.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

from mcpkeys.errors import ConfigurationError
from mcpkeys.findings import Finding, Level, is_invisible, printable

MAX_AUDIENCE_BYTES: Final = 255
MAX_EXAMINED_CHARS: Final = 1024
"""A longer name is refused for its length alone: what else might be wrong with it is not worth the work."""
PLACEHOLDER: Final = "mcp-server"
"""What `MCPServer()` without a name is called."""

_EXAMPLE = "name the service and its owner, for example 'acme-orders'"

_GENERIC_WORDS = """
a an the my new app application myapp api agent audience backend default dev development example examples sample demo
fastmcp gateway host node instance worker replica local localhost main mcp mcpserver module name none null undefined
unknown unnamed untitled prod production staging project proxy server myserver service site svc temp template tmp todo
test testing tests tool tools web website hello world foo bar baz base xxx
"""
_GENERIC: Final = frozenset(_GENERIC_WORDS.split())

# Kubernetes draws random names from this alphabet (k8s.io/apimachinery, util/rand): no vowels, no 0, 1 or 3.
_K8S = "bcdfghjklmnpqrstvwxz2456789"
_REPLICA_RULES: Final[tuple[tuple[str, str, re.Pattern[str]], ...]] = tuple(
    (label, reason, re.compile(pattern, re.IGNORECASE))
    for label, reason, pattern in (
        (
            "a UUID",
            "a UUID is drawn anew for each process or deployment",
            r"(?:[-_.:@/]|^)[{(]?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}[)}]?$",
        ),
        (
            "a machine id",
            "cloud machines and containers are named by such an id",
            r"(?:[-_.:@/]|^)(?:i-(?:[0-9a-f]{17}|[0-9a-f]{8})|(?=[a-f]*[0-9])[0-9a-f]{12,})$",
        ),
        (
            "an IP address",
            "an address belongs to one machine",
            r"(?:[-_.@/]|^)(?:ip-)?(?:[0-9]{1,3}[-.]){3}[0-9]{1,3}(?::[0-9]{1,5})?(?:\.[a-z0-9.-]+)?$",
        ),
        (
            "an IP address",
            "an address belongs to one machine",
            r"^\[?[0-9a-f]*:[0-9a-f]*:[0-9a-f:]*\]?(?::[0-9]{1,5})?$",
        ),
        ("a port", "replicas on one machine differ in their port", r":[0-9]{2,5}/?$"),
        (
            "a pod's name",
            "a Deployment's pods carry a random suffix each",
            rf"-[{_K8S}]{{8,10}}-[{_K8S}]{{5}}$",
        ),
        (
            "a pod's name",
            "the pods of a DaemonSet or Job carry a random suffix each",
            rf"-(?=[a-z]*[0-9])(?=[0-9]*[a-z])[{_K8S}]{{5}}$",
        ),
        (
            "a host's name",
            "a host's name belongs to one machine",
            r"^(?:localhost(?:\.[a-z.]+)?|[a-z0-9-]+\.(?:local|localdomain|lan|internal|home\.arpa)"
            r"|(?!v[0-9]+\.)[a-z-]*[0-9]+(?:\.[a-z0-9-]+){2,}|.+\.(?:compute|ec2|c)\.(?:[a-z0-9-]+\.)*(?:internal|amazonaws\.com))$",
        ),
        (
            "a replica's number",
            "numbered workers, nodes and pods each get another number",
            r"(?:[-_. ]|^)(?:worker|replica|pod|instance|node|host|shard|proc|process)[-_. ]?#?[0-9]+$",
        ),
        (
            "a process id",
            "a process id differs in every process and after every restart",
            r"(?:(?:[-_.:#@ ]|^)pid[-_.:=# ]?[0-9]+|\[[0-9]+\]|[-_.#@](?!(?:19|20)[0-9]{2}$)[0-9]{3,7})$",
        ),
        # But `orders-eu-west-1` ends with a region.
        (
            "a pod's ordinal",
            "a StatefulSet's pods are numbered from -0",
            r"(?<!east|west)(?<!north|south)(?<!central)-[0-9]{1,2}$",
        ),
    )
)


def check_audience(name: str, *, known: Iterable[str] = (), strict: bool = False, hostname: str = "") -> list[Finding]:
    """What is wrong with an audience name; an empty list where nothing is.

    Args:
        name: the name as it would be sealed into tokens; any string, lone surrogates included.
        known: names of other services, to tell apart. `name` itself among them is no finding.
        strict: warnings are refusals.
        hostname: this machine's name, if it is known; a name equal to it is per-replica.

    Returns:
        Refusals first, then warnings; codes `audience-empty`, `-placeholder`, `-invisible`, `-space`, `-too-long`,
        `-not-nfc`; then `-generic` or `-per-replica`, `-not-ascii`, `-similar`. Raises nothing.
    """
    if len(name) > MAX_EXAMINED_CHARS:
        return [_too_long(name)]
    found = [*_refusals(name, _advice(name))]
    if not any(finding.code in ("audience-empty", "audience-placeholder") for finding in found):
        found += _warnings(name, known, hostname)
    return [finding.refused() for finding in found] if strict else found


def require_audience(name: str, *, known: Iterable[str] = (), strict: bool = False) -> list[Finding]:
    """The warnings of a usable name. Raises `ConfigurationError` (with the finding's code) where it is refused."""
    found = check_audience(name, known=known, strict=strict)
    for finding in found:
        if finding.level == "refused":
            raise ConfigurationError(finding.what, why=finding.why, next=finding.next, code=finding.code)
    return found


def better_name(name: str) -> str | None:
    """A name with nothing against it that `name` was probably meant to be, or None."""
    if len(name) > MAX_EXAMINED_CHARS:
        return None
    visible = (" " if char in "\t\n\r" else char for char in name if char in "\t\n\r" or not is_invisible(char))
    cleaned = unicodedata.normalize("NFC", "".join(visible)).strip()
    for _ in range(3):
        if _is_clean(cleaned):
            break
        cleaned = _without_replica(cleaned).strip(" -_.:@#/")
    return cleaned if cleaned != name and _is_clean(cleaned) else None


def _is_clean(name: str) -> bool:
    return not (any(_refusals(name, _EXAMPLE)) or _is_generic(name) or _replica(name, "") is not None)


def _without_replica(name: str) -> str:
    for _, _, rule in _REPLICA_RULES:
        if match := rule.search(name):
            return name[: match.start()]
    return name


def _advice(name: str) -> str:
    better = better_name(name)
    return f"use {better!r}" if better is not None else _EXAMPLE


def _refusals(name: str, advice: str) -> Iterable[Finding]:
    def refuse(code: str, what: str, why: str, next: str) -> Finding:
        return _finding(code, "refused", name, what, why, next)

    if not name:
        yield refuse(
            "audience-empty",
            "the audience is empty",
            "tokens of every service without an audience are alike, so one service accepts another's",
            _EXAMPLE,
        )
        return
    shown = printable(name)
    if name == PLACEHOLDER:
        yield refuse(
            "audience-placeholder",
            f"the audience is {shown!r}, which is what the SDK calls a server without a name",
            "every unnamed server has this audience, so the claim separates nothing",
            "give the server a name, MCPServer('acme-orders'), or set audience=",
        )
    if any(map(is_invisible, name)):
        yield refuse(
            "audience-invisible",
            f"the audience '{shown}' contains characters that cannot be seen ({_points(filter(is_invisible, name))})",
            "two names that look alike would be different audiences, and logs and terminals can be misled",
            advice,
        )
    if name != name.strip():
        yield refuse(
            "audience-space",
            f"the audience '{shown}' begins or ends with a space",
            "the boundary compares every character, and a space at the end gets lost between files and environments",
            advice,
        )
    if len(name.encode("utf-8", "surrogatepass")) > MAX_AUDIENCE_BYTES:
        yield _too_long(name)
    if not unicodedata.is_normalized("NFC", name):
        yield refuse(
            "audience-not-nfc",
            f"the audience '{shown}' is not in Unicode normalization form C",
            "the same name typed on another system has other bytes, and the boundary compares them",
            advice,
        )


def _too_long(name: str) -> Finding:
    size = len(name.encode("utf-8", "surrogatepass"))
    what = f"the audience '{printable(name, 40)}' is {size} bytes of UTF-8, more than {MAX_AUDIENCE_BYTES}"
    return _finding("audience-too-long", "refused", name, what, "the name travels in every token", _EXAMPLE)


def _warnings(name: str, known: Iterable[str], hostname: str) -> Iterable[Finding]:
    shown = printable(name)

    def warn(code: str, what: str, why: str, next: str) -> Finding:
        return _finding(code, "warned", name, what, why, next)

    replica = _replica(name, hostname)
    if replica is None and _is_generic(name):
        yield warn(
            "audience-generic",
            f"the audience '{shown}' could be anybody's",
            "another service with the same keys and an equally general name would accept this one's tokens",
            _EXAMPLE,
        )
    if replica is not None:
        label, reason = replica
        yield warn(
            "audience-per-replica",
            f"the audience '{shown}' looks as if it contained {label}",
            f"{reason}; a retry that lands on another replica is then refused",
            _advice(name),
        )
    if not name.isascii():
        yield warn(
            "audience-not-ascii",
            f"the audience '{shown}' is not ASCII: {_points(char for char in name if not char.isascii())}",
            "letters of other alphabets can look like these and are other audiences",
            "use letters a-z, digits, and . _ -",
        )
    for other in known:
        if (difference := _difference(name, other)) is not None:
            yield warn(
                "audience-similar",
                f"the audience '{shown}' differs from the known '{printable(other)}' only by {difference}",
                "one of the two is probably a typing error, and a retry between them is refused",
                f"use {printable(other)!r} if it is the same service; otherwise choose names that cannot be confused",
            )


def _points(chars: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(chars))
    return ", ".join(f"U+{ord(char):04X}" for char in distinct[:8]) + (" ..." if len(distinct) > 8 else "")


def _finding(code: str, level: Level, name: str, what: str, why: str, next: str) -> Finding:
    return Finding(code, level, printable(name), what, why, next)


def _is_generic(name: str) -> bool:
    words = [word for word in re.split(r"[\W_]+", name.casefold()) if word]
    return all(word.rstrip("0123456789") in _GENERIC or word.isdecimal() or len(word) == 1 for word in words)


def _replica(name: str, hostname: str) -> tuple[str, str] | None:
    if hostname and name.casefold() in (hostname.casefold(), hostname.partition(".")[0].casefold()):
        return "this machine's name", "a host's name belongs to one machine"
    # Such suffixes are short; a longer name is refused for its length and costs no search.
    text = name[-(MAX_AUDIENCE_BYTES + 1) :]
    first, dot, _ = text.partition(".")
    for label, reason, rule in _REPLICA_RULES:
        # `web-0.orders.prod.svc.cluster.local` is a pod's name although `orders.prod.svc.cluster.local` is a service's.
        if rule.search(text) or (dot and first and text.count(".") >= 2 and rule.search(first)):
            return label, reason
    return None


def _difference(name: str, other: str) -> str | None:
    """How two names differ, if by so little that one may be a slip: `case`, or one edit."""
    if name == other or len(other) > MAX_EXAMINED_CHARS:
        return None
    folded, other_folded = (unicodedata.normalize("NFKC", text).casefold() for text in (name, other))
    if folded == other_folded:
        return "case" if name.casefold() == other.casefold() else "the form of its characters"
    return "one edit" if min(len(folded), len(other_folded)) >= 3 and one_edit(folded, other_folded) else None


def one_edit(a: str, b: str) -> bool:
    """Damerau-Levenshtein distance exactly 1: one insertion, deletion, substitution or swap of neighbours."""
    if len(a) > len(b):
        a, b = b, a
    if len(b) - len(a) > 1 or a == b:
        return False
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    if len(a) < len(b):
        return a[start:] == b[start + 1 :]
    return a[start + 1 :] == b[start + 1 :] or (
        a[start : start + 2] == b[start : start + 2][::-1] and a[start + 2 :] == b[start + 2 :]
    )
