"""A secret that was pasted where something else belongs is not shown by the error about it."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from cli.conftest import Shell

from mcpkeys import registry
from mcpkeys.errors import McpkeysError, UriError
from mcpkeys.glimpse import glimpse, glimpse_of_path, glimpse_of_uri, is_path, without_long_words
from mcpkeys.store import scheme_of

SECRET = "CAESIK7xQm3vT0aZ9pLw2RbYhN5uJeGs8DfVcX1oPq4"
PASTED = (
    SECRET,
    f"hvs.{SECRET}",
    f"{SECRET[:9]}/{SECRET[9:30]}+{SECRET[30:]}=",
    f"correct horse {SECRET}",
    f"https://operator:{SECRET}@vault.example/v1",
    f"vaultkv://hvs.{SECRET}",
    f"s3://{SECRET}:{SECRET}",
    f"gs://{SECRET}",
    f"file://{SECRET}",
    f"file:///{SECRET}%",
    f"hashivault://{SECRET}/{SECRET}?{SECRET}=1",
    f"awskms:///{SECRET}",
    f"gcpkms://{SECRET}",
    f"local://{SECRET}",
)
PIECES = {SECRET[start : start + 12] for start in range(len(SECRET) - 12)}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def unseen(text: str) -> None:
    assert not [piece for piece in PIECES if piece in text], text


@pytest.mark.parametrize("pasted", PASTED, ids=range(len(PASTED)))
@pytest.mark.parametrize("place", ["MCPKEYS_KEYSET", "MCPKEYS_KEKS", "MCPKEYS_NAME", "MCPKEYS_SIGNERS"])
def test_no_command_shows_what_stands_in_a_setting_it_cannot_read(shell: Shell, place: str, pasted: str) -> None:
    shell.init()
    for words in (["status"], ["doctor"], ["doctor", "--as-server"], ["inspect", "-"], ["verify"], ["purge", "--yes"]):
        for form in ([], ["--output", "json"]):
            ran = shell.run(*words, *form, stdin=b"mk1.", env={place: pasted})
            assert ran.code != 1, (words, ran)
            assert ran.code or words == ["verify"], (words, ran)
            unseen(ran.out + ran.err)


OPTIONS = {
    "keyset": ["init", "fleet", "--kek", "local:///x/kek.key", "--keyset"],
    "kek": ["init", "fleet", "--keyset", "./k.json", "--kek"],
    "sign-kek": ["init", "fleet", "--keyset", "./k.json", "--kek", "local:///x/kek.key", "--sign-kek"],
    "name": ["init", "--keyset", "./k.json", "--kek", "local:///x/kek.key"],
    "ttl": ["init", "fleet", "--keyset", "./k.json", "--kek", "local:///x/kek.key", "--ttl"],
    "phase": ["rotate", "--phase"],
    "kid": ["rotate", "--emergency", "--reason", "drill", "--yes", "--kid"],
    "add-kek": ["rewrap", "--yes", "--add-kek"],
    "passphrase-file": ["inspect", "-", "--bundle", "./b", "--passphrase-file"],
    "sdk-key-file": ["inspect", "-", "--sdk-key-file"],
    "now": ["inspect", "mk1.", "--now"],
    "method": ["inspect", "mk1.", "--method"],
    "extra": ["status"],
    "command": [],
    "topic": ["help"],
    "shell": ["completion"],
    "file": ["verify"],
    "triage": ["triage"],
    "restore": ["restore", "--reason", "drill"],
    "output": ["status", "--output"],
}


@pytest.mark.parametrize("option", OPTIONS)
def test_no_command_shows_what_stands_in_an_option_it_cannot_read(shell: Shell, option: str) -> None:
    shell.init()
    (shell.folder / "b").write_bytes(b"x")
    for pasted in (SECRET, f"hvs.{SECRET}", f"ü{SECRET}"):
        ran = shell.run(*OPTIONS[option], pasted, stdin=b"mk1.")
        assert ran.code not in (0, 1), ran
        unseen(ran.out + ran.err)


@pytest.mark.parametrize("pasted", PASTED, ids=range(len(PASTED)))
def test_no_plugin_shows_a_uri_it_cannot_read(pasted: str) -> None:
    for opens in (registry.open_kms, registry.open_store):
        with pytest.raises(McpkeysError) as caught:
            opens(pasted).uri  # noqa: B018
        error = caught.value
        unseen(f"{error} {error.what} {error.why} {error.next}")


def test_no_uri_is_put_into_an_error_about_reading_it() -> None:
    """Whoever writes the next one looks here."""
    roots = ("mcpkeys", "mcpkeys_local", "mcpkeys_aws", "mcpkeys_gcp", "mcpkeys_vault", "mcpkeys_cli")
    places = [Path(spec.origin).parent for name in roots if (spec := find_spec(name)) and spec.origin]
    assert len(places) == len(roots)
    for path in (path for place in places for path in place.rglob("*.py")):
        for call in re.findall(r"UriError\(\s*f?\"[^\"]*\"", path.read_text()):
            assert (
                not re.search(r"\{(uri|given|text|value)(!r|\[[^]]*\])*\}", call) or "lies in the namespace" in call
            ), (
                path,
                call,
            )


PATHS = ("/etc/k", f"/etc/{SECRET}", "./k", f"./{SECRET}", "../k", "~/k", "k.json", "keys/fleet.keyset.json", "fleet")
PATHS += ("keys/fleet", "a-name_of.24-characters.", "my keys/fleet.json")


@pytest.mark.parametrize("path", [*PATHS, "file:///k"])
def test_a_path_that_is_plainly_one_is_a_keyset_and_shown(path: str) -> None:
    assert scheme_of(path) == "file"
    if "://" not in path:
        assert is_path(path)
        assert glimpse_of_path(path) == path


@pytest.mark.parametrize("word", [SECRET, SECRET[:25], f"keys/{SECRET}", "c2VjcmV0+a2V5", "a2V5cw==", "two words"])
def test_what_looks_like_a_secret_is_no_keyset(word: str) -> None:
    with pytest.raises(UriError, match="is no keyset URI"):
        scheme_of(word)


def test_a_glimpse_tells_the_shape() -> None:
    assert glimpse("tomorrow\x1b") == "'tomorrow\\x1b'"
    assert glimpse("a" * 17) == "'aaaaaa…' (17 characters)"
    assert glimpse_of_uri("s3://Acme/x") == "s3://… (11 characters)"
    assert glimpse_of_uri("acme") == "'acme'"
    message = "No such command 'abcdefghijklmnopqrstuvwxyz'. Did you mean --an-option-with-a-very-long-name?"
    told = "No such command 'abcdef… (26 characters)'. Did you mean --an-option-with-a-very-long-name?"
    assert without_long_words(message) == told
