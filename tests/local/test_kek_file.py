"""A KEK file is 32 bytes for its owner alone, and is never overwritten."""

import os
import stat
import threading
import time

import pytest

from mcpkeys.errors import ConfigurationError, KekUnusable, KmsDenied, UnwrapRefused
from mcpkeys.kms import WrapContext
from mcpkeys.testing.child import in_child
from mcpkeys.testing.leaks import leaked, shown
from mcpkeys_local.kekfile import create_kek, read_kek, version_of
from mcpkeys_local.kms import LocalKms

CONTEXT = WrapContext("seal", "fleet", "AbCdEfGhIjKl")


def soon():
    return time.monotonic() + 10


def test_a_created_kek_is_32_bytes_and_its_owners_alone(tmp_path):
    path = tmp_path / "kek.key"
    before = os.umask(0)
    try:
        create_kek(path)
    finally:
        os.umask(before)
    status = path.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_size) == (0o600, 32)
    assert os.listdir(tmp_path) == ["kek.key"]


def test_a_strict_umask_does_not_lock_the_owner_out(tmp_path):
    before = os.umask(0o777)
    try:
        create_kek(tmp_path / "kek.key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "kek.key").stat().st_mode) == 0o600


def test_two_created_keks_differ_in_key_and_version(tmp_path):
    for name in "ab":
        create_kek(tmp_path / name)
    a, b = read_kek(str(tmp_path / "a")), read_kek(str(tmp_path / "b"))
    assert a.key != b.key
    assert a.version != b.version
    assert len(a.version) == 8


@pytest.mark.parametrize("there", ["file", "empty file", "folder", "dangling link", "link"])
def test_whatever_is_there_is_never_overwritten(tmp_path, there):
    path, target = tmp_path / "kek.key", tmp_path / "target"
    content = os.urandom(32)
    if there == "file":
        path.write_bytes(content)
    elif there == "empty file":
        path.touch()
    elif there == "folder":
        path.mkdir()
    else:
        path.symlink_to(target)
        if there == "link":
            target.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        create_kek(path)
    assert caught.value.code == "kek-exists"
    if there in ("file", "link"):
        assert path.read_bytes() == content
    if there == "dangling link":
        assert not target.exists()
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


def test_racing_creators_agree_on_one_kek(tmp_path):
    path, outcomes, gate = tmp_path / "kek.key", [], threading.Barrier(8)

    def work():
        gate.wait()
        try:
            create_kek(path)
            outcomes.append((True, path.read_bytes()))
        except ConfigurationError:
            outcomes.append((False, path.read_bytes()))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(won for won, _ in outcomes) == 1
    assert len({key for _, key in outcomes}) == 1


def test_a_missing_folder_is_named_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(ConfigurationError, match="mkdir"):
        create_kek(tmp_path / "nowhere" / "kek.key")


@pytest.mark.parametrize("length", [0, 1, 31, 33, 44, 64, 100_000])
def test_a_kek_of_another_length_is_refused(tmp_path, length):
    path = tmp_path / "kek.key"
    content = os.urandom(length)
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KekUnusable, match="32") as caught:
        read_kek(str(path))
    assert f"{length:,}" in caught.value.why
    assert not leaked(shown(caught.value, skip=(__file__,)), [content[:64]])
    state = LocalKms(f"local://{path}").describe(deadline=soon())
    assert state.exists
    assert not state.enabled


def test_a_kek_that_is_cut_while_it_is_read_is_refused_and_not_shown(tmp_path, monkeypatch):
    path = tmp_path / "kek.key"
    create_kek(path)
    key = path.read_bytes()
    monkeypatch.setattr(os, "read", lambda fd, length: key[:20])
    with pytest.raises(KekUnusable) as caught:
        read_kek(str(path))
    assert not leaked(shown(caught.value, skip=(__file__,)), [key])


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o644, 0o666, 0o777])
def test_a_kek_that_others_can_reach_is_refused_with_the_remedy(tmp_path, mode):
    path = tmp_path / "kek.key"
    create_kek(path)
    path.chmod(mode)
    with pytest.raises(KekUnusable, match="chmod 600") as caught:
        LocalKms(f"local://{path}").wrap(os.urandom(32), CONTEXT, deadline=soon())
    assert f"{mode:04o}" in caught.value.why


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_what_is_no_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "kek.key"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path, 0o600)
    else:
        path = "/dev/null"
    with pytest.raises(KekUnusable, match="not a regular file"):
        read_kek(str(path))


def test_a_mounted_secret_which_is_a_link_is_read(tmp_path):
    create_kek(tmp_path / "real.key")
    (tmp_path / "kek.key").symlink_to("real.key")
    assert read_kek(str(tmp_path / "kek.key")).key == (tmp_path / "real.key").read_bytes()


def test_another_users_kek_is_denied(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    path = tmp_path / "kek.key"
    create_kek(path)
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)

    def work():
        os.setuid(65534)
        try:
            LocalKms(f"local://{path}").describe(deadline=soon())
        except KmsDenied as error:
            return error.why
        return "read"

    assert "65534" in in_child(work)


def test_a_replaced_kek_is_told_apart_from_a_tampered_blob(tmp_path):
    path = tmp_path / "kek.key"
    create_kek(path)
    kms = LocalKms(f"local://{path}")
    wrap = kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    path.unlink()
    create_kek(path)
    with pytest.raises(UnwrapRefused, match="replaced") as caught:
        kms.unwrap(wrap, CONTEXT, deadline=soon())
    assert wrap.version in caught.value.why
    assert kms.describe(deadline=soon()).newest in caught.value.why


def test_the_version_tells_nothing_of_the_key(tmp_path):
    """HKDF-Expand (RFC 5869) of the key: a known answer, and no byte of the key in it."""
    key = bytes(range(32))
    assert version_of(key) == version_of(key)
    assert bytes.fromhex(version_of(key)) not in key
    import hashlib
    import hmac

    assert version_of(key) == hmac.digest(key, b"mcpkeys/local/version\x01", hashlib.sha256)[:4].hex()


def test_the_object_holds_no_key(tmp_path):
    path = tmp_path / "kek.key"
    create_kek(path)
    kms = LocalKms(f"local://{path}")
    kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    assert not leaked(repr(kms) + repr(vars(kms)) + repr(read_kek(str(path))), [path.read_bytes()])


@pytest.mark.parametrize("length", [0, 65])
def test_only_keys_of_1_to_64_bytes_are_wrapped(tmp_path, length):
    create_kek(tmp_path / "kek.key")
    with pytest.raises(ValueError, match="1 to 64"):
        LocalKms(f"local://{tmp_path}/kek.key").wrap(b"x" * length, CONTEXT, deadline=soon())
