"""What a restore may never do, over random pasts: revive a retired key, lose a live one unnamed, go back."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mcpkeys import rotation
from mcpkeys.encoding import b64u
from mcpkeys.keyset import Key, Keyset, ReportKey, Signer, check, digest
from mcpkeys.kms import Wrap
from mcpkeys.reports import ReceivedReport, Report
from mcpkeys.restoring import Evidence, decide

KEK = "local:///kek"
WRAPS = (Wrap(KEK, "1", b"blob"),)
KIDS = [b64u(bytes([n]) * 9) for n in range(1, 7)]


def kid() -> str:
    return b64u(os.urandom(9))


BLANK = Keyset(
    name="fleet", audience="fleet", ttl_seconds=600, skew_seconds=60, refresh_seconds=30, max_stale_seconds=None,
    max_token_chars=1 << 20, evidence="reports", generation=1, previous=None, keks=(KEK,), sign_keks=(KEK,), keys=(),
    report_key=ReportKey(kid(), WRAPS), rotation=None, past_ttls=(), history=(),
    signer=Signer("ed25519:" + "A" * 43, kid(), WRAPS),
)  # fmt: skip


@st.composite
def keysets(draw: Any) -> Keyset:
    kids = draw(st.lists(st.sampled_from(KIDS), min_size=1, max_size=5, unique=True))
    states = ["minting", *(draw(st.sampled_from(["verifying", "retired"])) for _ in kids[1:])]
    keys = tuple(Key(k, s, 1, 2, WRAPS) for k, s in zip(kids, states, strict=True))
    return replace(
        BLANK,
        keys=keys,
        generation=draw(st.integers(1, 6)),
        ttl_seconds=draw(st.sampled_from([60, 600])),
        audience=draw(st.sampled_from(["fleet", "orders"])),
    )


@st.composite
def reports(draw: Any) -> Report:
    verifies = draw(st.lists(st.sampled_from(KIDS), max_size=4, unique=True))
    return Report(
        keyset="fleet",
        instance=b64u(os.urandom(16)),
        label="pod",
        pid=1,
        state=draw(st.sampled_from(["serving", "joining", "farewell"])),
        seq=1,
        generation=draw(st.integers(0, 8)),
        digest="sha256:" + "0" * 64,
        verifies=tuple(verifies),
        mints=draw(st.sampled_from([None, *verifies])),
    )


@given(
    backup=keysets(),
    stored=st.none() | keysets(),
    received=st.lists(reports(), max_size=4),
    above=st.integers(0, 10),
    reason=st.sampled_from(["", "why"]),
)
def test_a_restore_never_revives_never_loses_and_never_goes_back(backup, stored, received, above, reason):
    known = Evidence(stored, [ReceivedReport(report, 1.0) for report in received], (), above)
    revision = decide(backup, known, now=100.0, reason=reason, who="test")
    if revision.document is None:
        assert revision.verdict in ("done", "unsafe")
        assert revision.next
        return
    after = rotation.complete(revision.document, key=Key(kid(), "verifying", 1, 1, WRAPS), rotation_id=kid())
    check(after)
    documents = [backup, *([stored] if stored is not None else [])]
    assert after.generation > max([above, *(d.generation for d in documents), *(r.generation for r in received)])
    assert after.history[-1].generation == after.generation

    retired = frozenset().union(*(document.retired for document in documents))
    assert after.retired >= retired, "a retired kid never returns"
    kids = {key.kid for document in documents for key in document.keys}
    assert kids <= {key.kid for key in after.keys}, "nor is it forgotten"

    base = max(documents, key=lambda document: (document.generation, document is backup))
    informed = known.newest(base)
    for key in (key for document in documents for key in document.live):
        if key.kid in retired:
            continue
        gone = bool(informed) and not any(key.kid in report.verifies for report in informed)
        assert (key.kid in after.retired) == gone, "live keys stay, but for those that the fleet has retired"
    serving = [report for report in informed if report.state == "serving"]
    held = {kid for report in serving for kid in report.verifies}
    assert held <= kids, "what no document wraps is refused before"
    if serving and after.minting.kid in kids:
        minted = any(report.mints == after.minting.kid for report in serving)
        assert minted or all(after.minting.kid in report.verifies for report in serving)
    if len(after.live) > 1 and after.running is None:
        assert after.rotation is not None, "or no phase 3 could clean up"


@given(backup=keysets())
def test_what_is_stored_and_seen_by_nobody_newer_is_left_alone(backup):
    own = Report("fleet", b64u(os.urandom(16)), "pod", 1, "serving", 1, backup.generation, digest(backup))
    known = Evidence(backup, [ReceivedReport(own, 1.0)])
    assert decide(backup, known, now=100.0, reason="", who="test").verdict == "done"
