"""Bad input: the documented exit code, what / why / next, and nothing changed."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Shell


def told(answer: dict[str, Any], code: int, word: str | None = None) -> dict[str, Any]:
    assert answer["exit"] == code, answer
    error = answer["error"]
    assert error["message"]
    assert error["next"], error
    if word is not None:
        assert error["code"] == word, error
    return error


def state(folder: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


def damaged(shell: Shell) -> dict[str, bytes]:
    body = shell.keyset.read_bytes()
    document = json.loads(body)
    edited = dict(document, ttl_seconds=document["ttl_seconds"] + 1)
    return {
        "empty": b"",
        "truncated": body[: len(body) // 2],
        "edited by hand": json.dumps(edited).encode(),
        "not json": b"hello",
        "json, but another thing": b'{"schema": "something/1"}',
        "a duplicate name": body.replace(b'"name": "fleet"', b'"name": "fleet", "name": "fleet"', 1),
        "a float": body.replace(b'"ttl_seconds": 600', b'"ttl_seconds": 600.0', 1),
        "too large": b" " * (1 << 20) + body,
        "deeply nested": b"[" * 100_000,
        "not utf-8": body.replace(b"fleet", b"fl\xffet", 1),
    }


def test_a_damaged_keyset_is_told_and_never_written_on(shell: Shell) -> None:
    shell.init()
    for what, body in damaged(shell).items():
        shell.keyset.write_bytes(body)
        before = state(shell.folder)
        for arguments in (("verify",), ("status",), ("rotate", "--phase", "1", "--yes")):
            error = told(shell.json(*arguments), 2)
            assert error["why"], (what, arguments, error)
        assert state(shell.folder) == before, what


def test_a_missing_keyset(shell: Shell) -> None:
    shell.init()
    shell.keyset.unlink()
    for arguments in (("verify",), ("status",), ("rotate", "--phase", "1", "--yes")):
        told(shell.json(*arguments), 2, "keyset-not-found")
    assert not shell.keyset.exists()


def test_another_services_authentic_keyset(shell: Shell) -> None:
    shell.init()
    ours = dict(shell.environ)
    other = shell.json("init", "other", "--keyset", str(shell.folder / "other.json"), "--kek", f"local://{shell.kek}")
    assert other["ok"]
    error = told(shell.json("status", env={"MCPKEYS_KEYSET": str(shell.folder / "other.json")}), 2, "keyset-signer")
    assert ours["MCPKEYS_SIGNERS"] in error["why"]
    environ = {**other["settings"], "MCPKEYS_NAME": "fleet"}
    told(shell.json("status", env=environ), 2, "keyset-name")


def test_a_second_init_overwrites_nothing(shell: Shell) -> None:
    shell.init()
    before = state(shell.folder)
    again = shell.json("init", "fleet", "--keyset", str(shell.keyset), "--kek", f"local://{shell.kek}")
    told(again, 2, "keyset-exists")
    assert state(shell.folder) == before
    told(
        shell.json("init", "fleet", "--keyset", str(shell.keyset), "--kek", f"local://{shell.kek}", "--replace"),
        2,
        "reason-missing",
    )
    assert state(shell.folder) == before


@pytest.mark.parametrize("case", ["missing", "short", "long", "readable by others"])
def test_a_kek_file_that_cannot_be_used(shell: Shell, case: str) -> None:
    shell.init()
    key = shell.kek.read_bytes()
    if case == "missing":
        shell.kek.unlink()
    elif case == "short":
        shell.kek.write_bytes(key[:31])
    elif case == "long":
        shell.kek.write_bytes(key + b"x")
    else:
        shell.kek.chmod(0o644)
    before = state(shell.folder)
    for arguments in (("status",), ("rotate", "--phase", "1", "--yes")):
        error = told(shell.json(*arguments), 2)
        assert str(shell.kek) in error["message"] + error["why"]
        assert key.hex() not in json.dumps(error)
    assert state(shell.folder) == before


@pytest.mark.parametrize(
    ("option", "value"),
    [("--keyset", "nosuch://x/y"), ("--kek", "nosuch://x"), ("--kek", "no scheme at all"), ("--keyset", "")],
)
def test_a_uri_that_nothing_serves(shell: Shell, option: str, value: str) -> None:
    uris = {"--keyset": str(shell.keyset), "--kek": f"local://{shell.kek}", option: value}
    told(shell.json("init", "fleet", *[part for pair in uris.items() for part in pair]), 2)
    assert not shell.keyset.exists()


def test_rotate_in_the_wrong_order(shell: Shell) -> None:
    shell.init()
    before = state(shell.folder)
    for phase in ("2", "3"):
        error = told(shell.json("rotate", "--phase", phase, "--yes"), 5, "gate-order")
        assert "--phase 1" in error["next"]
    told(shell.json("rotate", "--rollback", "--yes"), 5)
    assert state(shell.folder) == before


def test_no_prompt_where_stdin_is_no_terminal(shell: Shell) -> None:
    shell.init()
    before = state(shell.folder)
    error = told(shell.json("rotate", "--phase", "1"), 2, "confirmation-needed")
    assert "--yes" in error["next"]
    assert state(shell.folder) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("rotate",),
        ("rotate", "--phase", "4"),
        ("rotate", "--phase", "1", "--auto"),
        ("rotate", "--phase", "1", "--once"),
        ("rotate", "--emergency"),
        ("rotate", "--emergency", "--kid", "A" * 12, "--reason", "r", "--yes"),
        ("init", "Not A Name", "--keyset", "x", "--kek", "local:///x"),
        ("init", "fleet", "--keyset", "x", "--kek", "local:///x", "--ttl", "soon"),
        ("init", "fleet", "--keyset", "x", "--kek", "local:///x", "--audience", "mcp-server"),
        ("nosuch",),
        ("status", "--nosuch"),
        ("help", "nosuch"),
    ],
)
def test_usage_is_exit_2_in_both_outputs(shell: Shell, arguments: tuple[str, ...]) -> None:
    shell.init()
    before = state(shell.folder)
    assert shell.json(*arguments)["exit"] == 2
    text = shell.run(*arguments)
    assert text.code == 2
    assert text.out == ""
    assert "error:" in text.err
    assert state(shell.folder) == before


@pytest.mark.parametrize(
    "text", ["", "x" * 1_000_000, "mk1.é", '{"a": 1}', "v1.AAAA", "\x00\x1b[31m", "mk1." + "A" * 5000]
)
def test_a_token_that_is_none(shell: Shell, text: str) -> None:
    shell.init()
    answer = shell.json("inspect", "-", stdin=text.encode())
    told(answer, 3)
    quiet = shell.run("inspect", "-", stdin=text.encode())
    assert quiet.code == 3
    assert "\x1b" not in quiet.out + quiet.err


def test_settings_with_control_characters_are_refused_and_escaped(shell: Shell) -> None:
    shell.init()
    for name in ("MCPKEYS_NAME", "MCPKEYS_KEYSET", "MCPKEYS_KEKS", "MCPKEYS_SIGNERS"):
        ran = shell.run("status", env={name: "a\x1b]0;owned\x07b"})
        assert ran.code == 2
        assert "\x1b" not in ran.out + ran.err
        assert name in ran.err


def test_every_flipped_byte_is_told_and_the_ring_stays(shell: Shell) -> None:
    """In process, so that every byte of the document gets its turn."""
    from mcpkeys import document
    from mcpkeys.errors import KeysetError
    from mcpkeys.keks import Keks
    from mcpkeys.loading import Loader, Pins
    from mcpkeys.registry import open_kms, open_store

    settings = shell.init()["settings"]
    pins = Pins("fleet", (settings["MCPKEYS_SIGNERS"],))
    loader = Loader(open_store(str(shell.keyset)), Keks([open_kms(f"local://{shell.kek}")]), pins)
    ring = loader.first()
    body = shell.keyset.read_bytes()
    white = b" \n"
    for position in range(len(body)):
        flipped = bytearray(body)
        flipped[position] ^= 1 << (position % 7)
        if body[position] in white:
            # Only white space between the fields may read differently and say the same.
            with suppress(KeysetError):
                assert document.read(bytes(flipped), signers=pins.signers, name="fleet") == ring.keyset
            continue
        with pytest.raises(KeysetError) as caught:
            document.read(bytes(flipped), signers=pins.signers, name="fleet")
        assert caught.value.why or caught.value.next
    for position in range(0, len(body), 97):
        flipped = bytearray(body)
        flipped[position] ^= 4
        shell.keyset.write_bytes(bytes(flipped))
        loaded = loader.load(ring)
        assert loaded.ring is ring
        assert loaded.error is not None
    shell.keyset.write_bytes(body)
    assert loader.load(ring).error is None


def test_an_older_authentic_document_is_refused(shell: Shell) -> None:
    from mcpkeys.codec import EnvelopeCodec

    shell.init("--refresh", "1s")
    first = shell.keyset.read_bytes()
    assert shell.json("rotate", "--phase", "1", "--yes")["ok"]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in shell.environ.items():
            if name.startswith("MCPKEYS_"):
                patch.setenv(name, value)
        with EnvelopeCodec.open() as codec:
            assert codec.ring.generation == 2
            shell.keyset.write_bytes(first)
            codec._refresher.step()  # type: ignore[union-attr]
            assert codec.ring.generation == 2
            assert codec.status()["refresh"]["error"]["code"] == "keyset-rollback"
            error = told(shell.json("rotate", "--phase", "1", "--yes"), 5, "gate-restored")
            assert "restore" in error["next"]
            assert shell.keyset.read_bytes() == first
