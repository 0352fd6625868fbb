"""What an instance says of itself: one report, its authentication, and gathering them from a store.

A report is authenticated by HMAC-SHA256 under the keyset's report key, over `mcpkeys/report/1` 0x00 and the
RFC 8785 form without `mac`. Absence never means farewell: only an authentic `farewell` withdraws an instance.
Times are integer milliseconds.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from mcpkeys import strictjson
from mcpkeys.encoding import MAX_MS, b64u, unb64u
from mcpkeys.keyset import KID
from mcpkeys.kms import MAX_URI_CHARS
from mcpkeys.store import MAX_REPORT_BYTES, Found, check_instance

SCHEMA = "mcpkeys.report/1"
MAC_LABEL = b"mcpkeys/report/1\x00"
MAX_PREFIXES = 64

ReportState = Literal["joining", "serving", "farewell"]


class BadReport(ValueError):
    """A report that says nothing: not authentic, not of this keyset, or not of its shape."""


@dataclass(frozen=True, slots=True)
class Canary:
    """The last canary unwrap by one KEK: when (milliseconds), and whether it succeeded."""

    at: int
    ok: bool


@dataclass(frozen=True, slots=True)
class Report:
    """What one instance says of itself.

    Attributes:
        keyset: the keyset's name.
        instance: 16 random bytes, base64url (22 characters).
        label: what an operator recognises: host, pod; at most 255 characters.
        pid: the process id.
        state: `joining` before it loads a ring, `serving`, `farewell` when it is gone for good.
        seq: counts up with every report of this instance.
        generation, digest: of the document it holds; 0 and "" while joining.
        verifies: the kids it has unwrapped and self-tested.
        mints: the kid its ring would seal with now, whether or not it has; None where it does not mint.
        minting_since: when `mints` became so, or None.
        last_mint, last_unseal: by kid, of this instance.
        prefixes: the token prefixes it has minted under (16 characters each), newest last.
        ttl_observed: the largest `exp - iat` it has sealed, in milliseconds; None before the first seal.
        clock: its wall clock when it wrote this.
        clock_started: its wall clock when the refresh began that this report follows.
        canary: by KEK URI.
        unwraps_by: the KEKs by which it has shown that it can unwrap.
        max_stale: the max_stale_seconds its ring obeys, in milliseconds; None is off (it serves for ever).
    """

    keyset: str
    instance: str
    label: str
    pid: int
    state: ReportState
    seq: int
    generation: int
    digest: str
    verifies: tuple[str, ...] = ()
    mints: str | None = None
    minting_since: int | None = None
    last_mint: Mapping[str, int] = field(default_factory=dict)
    last_unseal: Mapping[str, int] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ()
    ttl_observed: int | None = None
    clock: int = 0
    clock_started: int = 0
    canary: Mapping[str, Canary] = field(default_factory=dict)
    unwraps_by: tuple[str, ...] = ()
    max_stale: int | None = None


NAMES = frozenset(("schema", *Report.__dataclass_fields__))
MAC_CHARS = 43


@dataclass(frozen=True, slots=True)
class ReceivedReport:
    """An authentic report and when it reached the store: seconds since the epoch, by the store's clock."""

    report: Report
    modified_at: float


def to_json(report: Report) -> dict[str, Any]:
    """The report as JSON values, without `mac`."""
    return {"schema": SCHEMA, **json.loads(json.dumps(asdict(report)))}


def mac(report_key: bytes, value: dict[str, Any]) -> str:
    """HMAC-SHA256 (RFC 2104) over the label and the RFC 8785 form; base64url, 43 characters."""
    return b64u(hmac.digest(report_key, MAC_LABEL + strictjson.canonical(value), hashlib.sha256))


def encode(report: Report, report_key: bytes) -> bytes:
    """The bytes to store. Raises ValueError where the report is longer than 64 KiB."""
    value = to_json(report)
    body = json.dumps({**value, "mac": mac(report_key, value)}, ensure_ascii=False).encode()
    if len(body) > MAX_REPORT_BYTES:
        raise ValueError("a report is at most 64 KiB")
    return body


def decode(body: bytes, report_keys: Iterable[bytes], *, keyset: str, instance: str | None = None) -> Report:
    """The report that these bytes hold.

    Args:
        report_keys: the keys to try; each comparison is constant-time.
        keyset: the keyset's name that it must carry.
        instance: the id of the place it was found at; it must be the id that it carries.

    Raises:
        BadReport: not authentic, of another keyset or instance, or not of its shape.
    """
    try:
        value = strictjson.loads(body, max_bytes=MAX_REPORT_BYTES)
    except strictjson.NotStrict as exc:
        raise BadReport(str(exc)) from None
    claimed = value.pop("mac", None)
    # The names first: garbage is not worth the canonical form, which costs twice what reading it did.
    if not isinstance(claimed, str) or value.get("schema") != SCHEMA or len(claimed) != MAC_CHARS:
        raise BadReport("not a report")
    if value.keys() != NAMES:
        raise BadReport("not a report, or of another version of mcpkeys")
    matches = [hmac.compare_digest(mac(key, value).encode(), claimed.encode()) for key in report_keys]
    if not any(matches):
        raise BadReport("not authentic under this keyset's report key")
    try:
        report = _parse(value)
    except (KeyError, TypeError, ValueError, AttributeError):
        # Authentic, so written by a holder of the report key; still nothing but its exact shape is read.
        raise BadReport("authentic, but not of the expected shape") from None
    if report.keyset != keyset:
        raise BadReport("a report of another keyset")
    if instance is not None and report.instance != instance:
        raise BadReport("a copy of another instance's report")
    return report


def from_json(value: dict[str, Any], *, keyset: str) -> Report:
    """The report that `to_json` made, where something else authenticates it (a bundle). Raises BadReport."""
    try:
        if value.get("schema") != SCHEMA:
            raise BadReport("not a report")
        report = _parse(dict(value))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadReport("not of the expected shape") from None
    if report.keyset != keyset:
        raise BadReport("a report of another keyset")
    return report


def _parse(value: dict[str, Any]) -> Report:
    del value["schema"]
    known = set(Report.__dataclass_fields__)
    if set(value) != known:
        raise ValueError
    for name in ("pid", "seq", "generation"):
        if type(value[name]) is not int or value[name] < 0:
            raise TypeError
    for name in ("clock", "clock_started"):
        value[name] = _ms(value[name])
    for name in ("minting_since", "ttl_observed", "max_stale"):
        value[name] = None if value[name] is None else _ms(value[name])
    for name in ("keyset", "label", "digest"):
        _text(value[name], 255)
    if value["state"] not in ("joining", "serving", "farewell"):
        raise ValueError
    check_instance(value["instance"])
    mints = value["mints"]
    if mints is not None and KID.fullmatch(mints) is None:
        raise ValueError
    for name in ("last_mint", "last_unseal"):
        if not all(KID.fullmatch(kid) for kid in value[name]):
            raise ValueError
        value[name] = {kid: _ms(at) for kid, at in value[name].items()}
    for kid in value["verifies"]:
        if KID.fullmatch(kid) is None:
            raise ValueError
    for prefix in value["prefixes"]:
        if len(unb64u(prefix)) != 12:
            raise ValueError
    for kek in (*value["unwraps_by"], *value["canary"]):
        _text(kek, MAX_URI_CHARS)
    for name in ("verifies", "prefixes", "unwraps_by"):
        if not isinstance(value[name], list):
            raise TypeError
    canary = {kek: Canary(_ms(entry["at"]), entry["ok"] is True) for kek, entry in value["canary"].items()}
    lists = {name: tuple(value[name]) for name in ("verifies", "prefixes", "unwraps_by")}
    return replace(Report(**{**value, **lists}), canary=canary)


def _text(value: object, most: int) -> None:
    """What instances write is printable. Anything else is a liar's try at the terminal of who reads it."""
    if not isinstance(value, str) or len(value) > most or not value.isprintable():
        raise TypeError


def _ms(value: object) -> int:
    """A time or duration in milliseconds. A clock gone mad is somebody's to name, so it is bounded, not refused."""
    if type(value) is not int or value < 0:
        raise TypeError
    return min(value, MAX_MS)


@dataclass(frozen=True, slots=True)
class Gathered:
    """Every report of a keyset.

    Attributes:
        received: the authentic ones, in order of instance id.
        rejected: (instance id, why) of those that say nothing; a forged one never counts as an instance gone.
    """

    received: tuple[ReceivedReport, ...]
    rejected: tuple[tuple[str, str], ...]


def gather(found: Iterable[Found], report_keys: Iterable[bytes], *, keyset: str) -> Gathered:
    """Authenticate what a store's `reports()` yielded."""
    keys = tuple(report_keys)
    received: list[ReceivedReport] = []
    rejected: list[tuple[str, str]] = []
    for entry in found:
        try:
            report = decode(entry.body, keys, keyset=keyset, instance=entry.name)
        except BadReport as exc:
            rejected.append((entry.name, str(exc)))
        else:
            received.append(ReceivedReport(report, entry.modified_at))
    received.sort(key=lambda entry: entry.report.instance)
    return Gathered(tuple(received), tuple(sorted(rejected)))
