"""Compare-and-swap among processes: no update is lost, and the number of writes is the number of wins."""

import multiprocessing
import os
import random
import signal
import time

import pytest

from mcpkeys.errors import Conflict
from mcpkeys_local.store import FileStore


def writer(path, writes, report):
    """Count up from what is stored, until `writes` writes were won; report how many were lost on the way."""
    store = FileStore(path)
    lost = 0
    for _ in range(writes):
        while True:
            found = store.read(None, fresh=True, deadline=time.monotonic() + 60)
            try:
                store.replace(b"%d" % (int(found.body) + 1), found.version, deadline=time.monotonic() + 60)
                break
            except Conflict:
                lost += 1
    report.put(lost)


def race(path, writers, writes, seconds):
    FileStore(path).replace(b"0", None, deadline=time.monotonic() + 10)
    context = multiprocessing.get_context("fork")
    report = context.Queue()
    processes = [context.Process(target=writer, args=(path, writes, report)) for _ in range(writers)]
    for process in processes:
        process.start()
    lost = [report.get(timeout=seconds) for _ in processes]
    for process in processes:
        process.join(seconds)
        assert process.exitcode == 0
    found = FileStore(path).read(None, fresh=True, deadline=time.monotonic() + 10)
    assert int(found.body) == writers * writes
    assert sum(lost) > 0, "nobody ever lost: the writers did not race"


def test_racing_processes_lose_no_update(tmp_path):
    race(str(tmp_path / "k.json"), 8, 25, 60)


@pytest.mark.slow
def test_16_processes_racing_200_writes_each_lose_no_update(tmp_path):
    race(str(tmp_path / "k.json"), 16, 200, 400)


def test_writers_killed_at_random_lose_no_update_that_was_answered(tmp_path):
    """Writers are killed by SIGKILL again and again; each answered write is below the count that is stored."""
    path = str(tmp_path / "k.json")
    store = FileStore(path)
    store.replace(b"0", None, deadline=time.monotonic() + 10)
    draw = random.Random(4711)
    for _ in range(25):
        reader, pipe = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                mine = FileStore(path)
                while True:
                    found = mine.read(None, fresh=True, deadline=time.monotonic() + 10)
                    count = int(found.body) + 1
                    mine.replace(b"%d" % count, found.version, deadline=time.monotonic() + 10)
                    os.write(pipe, b"%d\n" % count)
            finally:
                os._exit(1)
        os.close(pipe)
        time.sleep(draw.uniform(0.005, 0.05))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with os.fdopen(reader) as answers:
            answered = [int(line) for line in answers if line.endswith("\n")]
        stored = int(store.read(None, fresh=True, deadline=time.monotonic() + 10).body)
        assert stored - (answered[-1] if answered else stored) in (0, 1)
    found = store.read(None, fresh=True, deadline=time.monotonic() + 10)
    store.replace(b"end", found.version, deadline=time.monotonic() + 10)
    assert sorted(os.listdir(tmp_path)) == ["k.json", "k.json.lock"]
