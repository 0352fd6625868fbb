"""Carrying out a restore: what is stored may be missing, damaged, forged or old; it is read for what it is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mcpkeys import document, reports, restoring, rotation, strictjson
from mcpkeys.authoring import Author, Stored, new_kid
from mcpkeys.clock import SystemClock
from mcpkeys.encoding import to_ms
from mcpkeys.errors import KeysetError, McpkeysError, NotFound
from mcpkeys.keyset import Keyset
from mcpkeys.reports import BadReport, Gathered, Report
from mcpkeys.restoring import Evidence
from mcpkeys.revising import Revised, Revision, conflict
from mcpkeys.stepping import Observed
from mcpkeys.steps import Plan
from mcpkeys.store import MAX_REPORT_BYTES, Found


def restore(
    author: Author,
    body: bytes,
    *,
    reason: str,
    who: str,
    above: int = 0,
    lose: Sequence[str] = (),
    agreed: Callable[[Revision, Observed], None] = lambda revision, observed: None,
    dry: bool = False,
) -> tuple[Revised, str]:
    """Sign the document in `body` again; also what was found stored, one sentence.

    Raises:
        KeysetError: `body` is no authentic document of this keyset under the pinned signers.
        Conflict: somebody wrote meanwhile.
        McpkeysError: what the store and the KEKs answer.
    """
    backup = document.read(body, signers=author.pins.signers, name=author.pins.name)

    def look() -> tuple[Revision, Observed, str | None, str, Keyset]:
        stored, version, modified_at, told = _stored(author)
        newest = backup if stored is None or stored.generation <= backup.generation else stored
        gathered, claims = _gather(author, [newest, *([stored] if stored is not None else []), backup])
        now, resolution = author.now()
        known = Evidence(stored, gathered.received, claims, max(above, author.pins.min_generation), frozenset(lose))
        revision = restoring.decide(backup, known, now=now, reason=reason, who=who)
        seen = Observed(Stored(newest, version or "", modified_at), gathered, now, resolution, SystemClock().time())
        return revision, seen, version, told, newest

    revision, observed, version, told, newest = look()
    if revision.document is None or dry:
        return Revised(revision, observed), told
    agreed(revision, observed)
    key = None
    if Plan("do", "", (), None, "", revision.document).needs_key:
        key = author.data_key(newest.name, newest.keks, now_ms=to_ms(observed.now))
    private, rotation_id = author.signer(newest), new_kid()
    revision, observed, again, told, newest = look()
    if again != version:
        raise conflict(newest)
    if revision.document is None:
        return Revised(revision, observed), told
    whole = rotation.complete(revision.document, key=key, rotation_id=rotation_id)
    written, _ = author.write(whole, version, private)
    return Revised(revision, observed, written), told


def _stored(author: Author) -> tuple[Keyset | None, str | None, float, str]:
    """(the stored document if it is authentic, its version, when it was written, what to tell of it)."""
    try:
        found = author.store.read(None, fresh=True, deadline=author.deadline())
    except NotFound:
        return None, None, 0.0, "nothing is stored"
    assert found is not None
    try:
        keyset = document.read(found.body, signers=author.pins.signers, name=author.pins.name)
    except KeysetError as exc:
        return None, found.version, found.modified_at, f"what is stored cannot be used: {exc.what}"
    return keyset, found.version, found.modified_at, f"generation {keyset.generation} is stored"


def _gather(author: Author, keysets: Sequence[Keyset]) -> tuple[Gathered, list[Report]]:
    """The reports under any report key that can be had, and what the others claim. Raises where no key opens."""
    keys: dict[str, bytes] = {}
    failure: McpkeysError | None = None
    for keyset in keysets:
        if keyset.report_key.kid not in keys:
            try:
                keys[keyset.report_key.kid] = author.report_key(keyset)
            except McpkeysError as exc:
                failure = exc
    if not keys and failure is not None:
        raise failure
    found = author.listed()
    gathered = reports.gather(author.in_time(found), keys.values(), keyset=keysets[0].name)
    doubtful = {instance for instance, _ in gathered.rejected}
    claims = [_claim(entry, keysets[0].name) for entry in author.in_time(found) if entry.name in doubtful]
    return gathered, [claim for claim in claims if claim is not None]


def _claim(found: Found, keyset: str) -> Report | None:
    """What an unbelievable report says, or None where it is no report of this keyset and place."""
    try:
        value = strictjson.loads(found.body, max_bytes=MAX_REPORT_BYTES)
        value.pop("mac", None)
        report = reports.from_json(value, keyset=keyset)
    except (strictjson.NotStrict, BadReport):
        return None
    return report if report.instance == found.name else None
