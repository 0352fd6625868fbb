"""Killed anywhere, refused anywhere: the keyset file is the old document or the new one, whole."""

import fcntl
import os
import pwd
import signal
import stat
import subprocess
import sys
import time

import pytest

from mcpkeys.errors import ConfigurationError, Conflict, NotFound, StoreDenied, StoreUnreachable
from mcpkeys.testing.child import in_child
from mcpkeys_local.store import FileStore

SYSCALLS = ("open", "write", "fsync", "fchmod", "fchown", "utime", "replace", "close", "unlink", "scandir", "fstat")
OLD = b'{"old":"' + os.urandom(3000).hex().encode() + b'"}'
NEW = b'{"new":"' + os.urandom(5000).hex().encode() + b'"}'


def soon():
    return time.monotonic() + 10


def kill_at(step, after):
    """From now on this process dies by SIGKILL at its `step`-th system call, before or after it is carried out."""
    seen = [0]

    def wrap(module, name):
        real = getattr(module, name)

        def call(*args, **kwargs):
            seen[0] += 1
            if seen[0] == step and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            if name == "write" and seen[0] == step:
                # Half of a write is the worst that a kill inside it leaves.
                real(args[0], bytes(args[1])[: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            mine = seen[0] == step
            try:
                return real(*args, **kwargs)
            finally:
                if mine:
                    os.kill(os.getpid(), signal.SIGKILL)

        setattr(module, name, call)

    for name in SYSCALLS:
        wrap(os, name)
    wrap(fcntl, "flock")
    return seen


def died_at(work, step, after):
    """Whether the forked child that runs `work` was killed at its `step`-th system call; False: it had fewer."""
    pid = os.fork()
    if pid == 0:
        try:
            kill_at(step, after)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the write failed in the child"
    return False


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("start", ["replacing", "creating"])
def test_a_kill_at_any_system_call_leaves_a_whole_document_and_the_same_write_completes(tmp_path, start, after):
    outcomes = []
    for step in range(1, 200):
        folder = tmp_path / str(step)
        folder.mkdir()
        store = FileStore(str(folder / "k.json"))
        expected = store.replace(OLD, None, deadline=soon()) if start == "replacing" else None
        if not died_at(lambda: store.replace(NEW, expected, deadline=soon()), step, after):  # noqa: B023
            break
        try:
            found = store.read(None, fresh=True, deadline=soon())
        except NotFound:
            found = None
        assert (None if found is None else found.body) in ((OLD, NEW) if start == "replacing" else (None, NEW))
        outcomes.append(found is not None and found.body == NEW)
        # The same command again: no lock is left, and what was begun is swept away.
        store.replace(NEW, None if found is None else found.version, deadline=soon())
        assert store.read(None, fresh=True, deadline=soon()).body == NEW
        assert sorted(os.listdir(folder)) == ["k.json", "k.json.lock"]
    else:
        pytest.fail("the write never came to its end")
    assert len(outcomes) >= 12, "too few system calls were seen: are they still called as os.NAME?"
    assert outcomes == sorted(outcomes), "after the rename every kill leaves the new document"
    assert set(outcomes) == {False, True}


def test_a_kill_at_any_system_call_of_a_report_leaves_a_whole_report(tmp_path):
    instance = "A" * 22
    steps = 0
    for step in range(1, 100):
        store = FileStore(str(tmp_path / f"{step}.json"))
        store.put_report(instance, OLD, deadline=soon())
        store = FileStore(str(tmp_path / f"{step}.json"))
        if not died_at(lambda: store.put_report(instance, NEW, deadline=soon()), step, False):  # noqa: B023
            break
        steps += 1
        (found,) = store.reports(deadline=soon())
        assert found.body in (OLD, NEW)
    assert steps >= 5


@pytest.mark.parametrize("call", ["write", "fsync", "utime", "fchmod", "replace"])
@pytest.mark.parametrize("number", [28, 5, 122])
def test_a_failing_disk_leaves_the_old_document_and_no_draft(tmp_path, monkeypatch, call, number):
    store = FileStore(str(tmp_path / "k.json"))
    version = store.replace(OLD, None, deadline=soon())

    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(StoreUnreachable) as caught:
            store.replace(NEW, version, deadline=soon())
    assert os.strerror(number) in caught.value.why
    assert store.read(version, fresh=True, deadline=soon()) is None
    assert sorted(os.listdir(tmp_path)) == ["k.json", "k.json.lock"]


def test_writes_that_the_disk_takes_in_pieces_are_completed(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:777]))
    store = FileStore(str(tmp_path / "k.json"))
    store.replace(NEW, None, deadline=soon())
    assert (tmp_path / "k.json").read_bytes() == NEW


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o664, 0o444])
def test_mode_and_owner_are_preserved(tmp_path, mode):
    path = tmp_path / "k.json"
    store = FileStore(str(path))
    version = store.replace(OLD, None, deadline=soon())
    path.chmod(mode)
    if os.geteuid() == 0:
        os.chown(path, 1234, 4321)
    owner = (path.stat().st_uid, path.stat().st_gid)
    version = store.read(version, fresh=True, deadline=soon()).version
    store.replace(NEW, version, deadline=soon())
    assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_uid, path.stat().st_gid) == (mode, *owner)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_keyset_and_its_reports_follow_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        store = FileStore(str(tmp_path / "k.json"))
        store.replace(NEW, None, deadline=soon())
        store.put_report("A" * 22, b"{}", deadline=soon())
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "k.json").stat().st_mode) == mode
    assert stat.S_IMODE((tmp_path / "k.json.reports" / ("A" * 22 + ".json")).stat().st_mode) == mode


def test_the_lock_is_no_ones_who_may_only_read(tmp_path):
    before = os.umask(0)
    try:
        FileStore(str(tmp_path / "k.json")).replace(NEW, None, deadline=soon())
    finally:
        os.umask(before)
    assert not (tmp_path / "k.json.lock").stat().st_mode & 0o007


def as_another_user(folder, work, group=5555):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    for parent in (folder, *folder.parents):
        if not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)

    def act():
        os.setgroups([])
        os.setgid(group)
        os.setuid(5555)
        return work()

    return in_child(act)


def test_operators_of_one_group_write_in_turn_unless_the_owner_would_lose_the_file(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    account = next(entry for entry in pwd.getpwall() if entry.pw_uid and entry.pw_gid)
    owner, group, unknown = account.pw_uid, account.pw_gid, 54321
    path = tmp_path / "k.json"
    os.chown(tmp_path, owner, group)
    tmp_path.chmod(0o2775)
    store = FileStore(str(path))
    store.replace(OLD, None, deadline=soon())
    for mode in (0o640, 0o664, 0o440):
        os.chown(path, owner, group)
        path.chmod(mode)
        assert as_another_user(tmp_path, lambda: replaced(store, path), group) == "kept"
    os.chown(path, unknown, group)
    path.chmod(0o644)
    assert as_another_user(tmp_path, lambda: replaced(store, path), group) == "kept"
    # A user of whom nobody says that he is in the group, and a file that only the group may read.
    os.chown(path, unknown, group)
    path.chmod(0o640)
    before = path.read_bytes()

    def refused():
        found = store.read(None, fresh=True, deadline=soon())
        try:
            store.replace(NEW, found.version, deadline=soon())
        except StoreDenied as error:
            return str(error)
        return "written"

    assert f"run as user {unknown}" in as_another_user(tmp_path, refused, group)
    assert path.read_bytes() == before
    assert path.stat().st_uid == unknown


def replaced(store, path):
    mode = path.stat().st_mode
    body = os.urandom(20)
    store.replace(body, store.read(None, fresh=True, deadline=soon()).version, deadline=soon())
    assert (path.read_bytes(), path.stat().st_mode) == (body, mode)
    return "kept"


def refusal(store):
    try:
        store.replace(NEW, "1", deadline=soon())
    except (StoreDenied, Conflict) as error:
        return f"{type(error).__name__}: {error}"
    return "written"


def test_a_reader_is_told_that_it_may_not_write(tmp_path):
    store = FileStore(str(tmp_path / "k.json"))
    store.replace(OLD, None, deadline=soon())
    tmp_path.chmod(0o755)
    told = as_another_user(tmp_path, lambda: refusal(store))
    assert told.startswith("StoreDenied")
    assert "5555" in told


def test_a_server_that_may_not_report_is_told_how_to_share_the_folder(tmp_path):
    store = FileStore(str(tmp_path / "k.json"))
    store.put_report("A" * 22, b"{}", deadline=soon())
    (tmp_path / "k.json.reports").chmod(0o755)

    def work():
        try:
            store.put_report("B" * 22, b"{}", deadline=soon())
        except StoreDenied as error:
            return str(error)
        return "written"

    told = as_another_user(tmp_path, work)
    assert "2770" in told
    assert "attest" in told
    (tmp_path / "k.json.reports").chmod(0o1777)
    assert as_another_user(tmp_path, work) == "written"


# Mounts.


def config_map(tmp_path, body):
    """A folder as Kubernetes mounts a ConfigMap: name -> ..data/name, ..data -> ..2026_1."""
    folder = tmp_path / "mount"
    version = folder / "..2026_1"
    version.mkdir(parents=True)
    (version / "k.json").write_bytes(body)
    (folder / "..data").symlink_to("..2026_1")
    (folder / "k.json").symlink_to("..data/k.json")
    return folder


def test_a_config_map_mount_is_read_followed_and_never_written(tmp_path):
    folder = config_map(tmp_path, OLD)
    store = FileStore(str(folder / "k.json"))
    found = store.read(None, fresh=False, deadline=soon())
    assert found.body == OLD
    assert store.read(found.version, fresh=False, deadline=soon()) is None
    with pytest.raises(StoreDenied, match="symbolic link"):
        store.replace(NEW, found.version, deadline=soon())
    assert (folder / "k.json").is_symlink()
    assert sorted(os.listdir(folder)) == ["..2026_1", "..data", "k.json"]
    # As the kubelet updates it: a new folder, and the middle link is swapped.
    (folder / "..2026_2").mkdir()
    (folder / "..2026_2" / "k.json").write_bytes(NEW)
    (folder / "..data_tmp").symlink_to("..2026_2")
    os.replace(folder / "..data_tmp", folder / "..data")
    assert store.read(found.version, fresh=False, deadline=soon()).body == NEW


def test_a_link_to_nowhere_is_not_found(tmp_path):
    (tmp_path / "k.json").symlink_to("nowhere")
    with pytest.raises(NotFound):
        FileStore(str(tmp_path / "k.json")).read(None, fresh=True, deadline=soon())


MOUNTED = """
import os, sys, time
from mcpkeys.errors import StoreDenied
from mcpkeys_local.store import FileStore
store = FileStore(sys.argv[1])
found = store.read(None, fresh=True, deadline=time.monotonic() + 5)
assert store.now(deadline=time.monotonic() + 5)
try:
    store.replace(b"new", found.version, deadline=time.monotonic() + 5)
except StoreDenied as error:
    print(error)
assert store.read(found.version, fresh=True, deadline=time.monotonic() + 5) is None
print(sorted(os.listdir(os.path.dirname(sys.argv[1]))))
"""


def in_mount_namespace(mounts, path):
    script = f'{mounts} && exec "$0" -c "$1" "$2"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, sys.executable, MOUNTED, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode and ("unshare" in done.stderr or "mount:" in done.stderr):
        pytest.skip("this user may not mount")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_bind_mounted_file_is_refused_with_the_way_out_and_left_whole(tmp_path):
    inside, outside = tmp_path / "k.json", tmp_path / "host.json"
    inside.touch()
    outside.write_bytes(OLD)
    told = in_mount_namespace(f"mount --bind {outside} {inside}", inside)
    assert "mount the folder instead" in told
    assert outside.read_bytes() == OLD
    assert ".tmp" not in told


def test_a_read_only_mount_is_read_and_refused_with_the_way_out(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "k.json").write_bytes(OLD)
    told = in_mount_namespace(f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}", folder / "k.json")
    assert "where this mount comes from" in told
    assert (folder / "k.json").read_bytes() == OLD


@pytest.mark.parametrize("number", [16, 18], ids=["EBUSY", "EXDEV"])
def test_a_file_that_cannot_be_renamed_over_is_refused_and_left_whole(tmp_path, monkeypatch, number):
    """The same refusals where nothing may be mounted."""
    store = FileStore(str(tmp_path / "k.json"))
    version = store.replace(OLD, None, deadline=soon())

    def fail(*args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(StoreDenied, match="mount the folder instead"):
        store.replace(NEW, version, deadline=soon())
    assert (tmp_path / "k.json").read_bytes() == OLD


# What is not a document.


@pytest.mark.parametrize("kind", ["folder", "pipe", "below a file"])
def test_what_is_no_file_is_a_wrong_path(tmp_path, kind):
    path = tmp_path / "k.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.touch()
        path = path / "k.json"
    with pytest.raises(ConfigurationError) as caught:
        FileStore(str(path)).read(None, fresh=True, deadline=soon())
    assert caught.value.exit_code == 2


def test_a_missing_folder_is_named_with_the_command_that_makes_it(tmp_path):
    with pytest.raises(NotFound, match="mkdir"):
        FileStore(str(tmp_path / "no" / "k.json")).replace(NEW, None, deadline=soon())
    with pytest.raises(ConfigurationError):
        FileStore(str(tmp_path / "no" / "k.json")).put_report("A" * 22, NEW, deadline=soon())
    assert os.listdir(tmp_path) == []


# Locks and drafts.


def test_a_writer_waits_for_the_lock_no_longer_than_its_deadline(tmp_path):
    store = FileStore(str(tmp_path / "k.json"))
    version = store.replace(OLD, None, deadline=soon())
    with open(tmp_path / "k.json.lock", "rb+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        begun = time.monotonic()
        with pytest.raises(StoreUnreachable, match="locked"):
            store.replace(NEW, version, deadline=begun + 0.2)
        assert 0.15 < time.monotonic() - begun < 2
        assert store.read(version, fresh=True, deadline=soon()) is None
    store.replace(NEW, version, deadline=soon())


def test_a_lock_that_is_a_link_is_refused(tmp_path):
    """In a folder that others may write, a link would let them choose which file is opened."""
    (tmp_path / "k.json.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreDenied):
        FileStore(str(tmp_path / "k.json")).replace(NEW, None, deadline=soon())
    assert not (tmp_path / "elsewhere").exists()


def test_only_own_drafts_are_swept(tmp_path):
    own = tmp_path / ".k.json.0123456789abcdef.tmp"
    kept = [".k.json.swp", ".other.json.0123456789abcdef.tmp", "k.json.tmp", ".k.json.x.0123456789abcdef.tmp"]
    for name in (own.name, *kept):
        (tmp_path / name).touch()
    FileStore(str(tmp_path / "k.json")).replace(NEW, None, deadline=soon())
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "k.json", "k.json.lock"])


def test_drafts_of_servers_killed_long_ago_are_swept(tmp_path):
    reports = tmp_path / "k.json.reports"
    reports.mkdir()
    old, young = (reports / f".{letter * 22}.json.0123456789abcdef.tmp" for letter in "AB")
    for path in (old, young):
        path.touch()
    os.utime(old, (time.time() - 7200,) * 2)
    FileStore(str(tmp_path / "k.json")).put_report("C" * 22, b"{}", deadline=soon())
    assert not old.exists()
    assert young.exists()


def test_versions_never_return_even_within_one_tick_of_the_clock(tmp_path, monkeypatch):
    """The filesystem reuses inodes, and its clock ticks 250 times a second."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    store = FileStore(str(tmp_path / "k.json"))
    versions = [store.replace(OLD, None, deadline=soon())]
    for _ in range(200):
        versions.append(store.replace(OLD, versions[-1], deadline=soon()))
    assert len(set(versions)) == 201
    for version in versions[:-1]:
        with pytest.raises(Conflict):
            store.replace(NEW, version, deadline=soon())


def test_an_edit_in_place_within_one_tick_is_seen(tmp_path):
    """Same inode, size and times: only the bytes tell."""
    path = tmp_path / "k.json"
    path.write_bytes(b"aaaa")
    store = FileStore(str(path))
    found = store.read(None, fresh=True, deadline=soon())
    path.write_bytes(b"bbbb")
    os.utime(path, ns=(path.stat().st_atime_ns, int(found.modified_at * 1e9)))
    assert store.read(found.version, fresh=True, deadline=soon()).body == b"bbbb"


def test_reports_of_a_hostile_neighbour_stay_outside(tmp_path):
    """In a shared folder another user may put links to what only the reader may read."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    store = FileStore(str(tmp_path / "k.json"))
    store.put_report("A" * 22, b"{}", deadline=soon())
    (tmp_path / "k.json.reports" / ("B" * 22 + ".json")).symlink_to(secret)
    assert [found.name for found in store.reports(deadline=soon())] == ["A" * 22]
    store.put_report("B" * 22, b"mine", deadline=soon())
    assert secret.read_bytes() == b"secret"
