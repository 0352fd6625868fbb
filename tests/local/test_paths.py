"""Paths in local:// and file:// URIs: one path, one canonical URI, nothing else accepted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpkeys.errors import UriError
from mcpkeys_local.kms import LocalKms
from mcpkeys_local.store import FileStore


@pytest.mark.parametrize(
    "uri",
    [
        "local://etc/kek.key",
        "local://",
        "local:///",
        "local:///etc/mcpkeys/",
        "local:///etc/../kek.key",
        "local:///etc/kek.key?version=1",
        "local:///etc/kek.key#1",
        "local:///etc/kek%2",
        "local:///etc/kek%zz",
        "local:///etc/kek%00",
        "local://./kek.key",
        "local://~/kek.key",
        "local:///etc/%2e%2e/kek.key",
        "local:///etc/kek key",
        "local:///etc/kek\nkey",
        "local:///etc/schlüssel",
    ],
)
def test_a_kek_uri_that_names_no_absolute_file_is_refused(uri):
    with pytest.raises(UriError) as caught:
        LocalKms(uri)
    assert caught.value.exit_code == 2
    assert caught.value.next


@pytest.mark.parametrize(
    "uri",
    [
        "file://host/keyset.json",
        "file://keyset.json",
        "file://",
        "file:///etc/",
        "file:///etc/../keyset.json",
        "file:///k?generation=1",
        "file:///k#1",
        "/etc/mcpkeys/",
        "",
        "/etc/a\0b",
        "/etc/a\nb",
    ],
)
def test_a_keyset_uri_that_names_no_file_is_refused(uri):
    with pytest.raises(UriError) as caught:
        FileStore(uri)
    assert caught.value.next


@pytest.mark.parametrize(
    ("given_uri", "canonical"),
    [
        ("local:///etc//mcpkeys/./kek.key", "local:///etc/mcpkeys/kek.key"),
        ("local:////etc/kek.key", "local:///etc/kek.key"),
        ("local:///etc/%6bek.key", "local:///etc/kek.key"),
        ("local:///etc/my%20kek.key", "local:///etc/my%20kek.key"),
        ("local:///etc/a%25b", "local:///etc/a%25b"),
        ("local:///etc/a%3fb", "local:///etc/a%3Fb"),
    ],
)
def test_spellings_of_one_path_are_one_uri(given_uri, canonical):
    assert LocalKms(given_uri).uri == canonical


def test_a_plain_path_is_the_same_keyset_as_its_uri(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    uri = f"file://{tmp_path}/fleet.keyset.json"
    assert FileStore("fleet.keyset.json").uri == uri
    assert FileStore(f"{tmp_path}/fleet.keyset.json").uri == uri
    assert FileStore(uri).path == f"{tmp_path}/fleet.keyset.json"


def test_a_plain_path_is_taken_literally():
    assert FileStore("/tmp/a%20b?c#d").path == "/tmp/a%20b?c#d"
    assert FileStore(FileStore("/tmp/a%20b?c#d").uri).path == "/tmp/a%20b?c#d"


def test_a_relative_path_keeps_meaning_the_same_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = FileStore("fleet.keyset.json")
    monkeypatch.chdir("/")
    assert store.path == f"{tmp_path}/fleet.keyset.json"


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40))
def test_any_path_survives_its_canonical_uri(name):
    path = "/x/" + name
    try:
        store = FileStore(path)
    except UriError:
        return
    again = FileStore(store.uri)
    assert (again.path, again.uri) == (store.path, store.uri)
    assert store.uri.isascii()
