"""Real processes: forked, frozen, pre-forked and told to stop. Each instance speaks for itself, to its last word."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.localkeyset import LocalKeyset, local_keyset

from mcpkeys import reports
from mcpkeys.kms import WrapContext
from mcpkeys_local.kms import LocalKms

TESTS = Path(__file__).parents[1]


@pytest.fixture
def keyset(tmp_path: Path) -> LocalKeyset:
    return local_keyset(tmp_path, refresh_seconds=1)


def said(keyset: LocalKeyset) -> dict[str, reports.Report]:
    """Every authentic report, by instance."""
    key = keyset.document.report_key
    unwrapped = LocalKms(keyset.kek).unwrap(
        key.wrapped[0], WrapContext("report", keyset.name, key.kid), deadline=time.monotonic() + 5
    )
    found = {}
    for path in keyset.reports():
        report = reports.decode(path.read_bytes(), [unwrapped], keyset=keyset.name, instance=path.stem)
        found[report.instance] = report
    return found


def until(condition: Callable[[], Any], *, seconds: float = 30.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = condition()
        if answer:
            return answer
        time.sleep(0.05)
    raise AssertionError("it did not come about in time")


class Process:
    """A process of the test's own."""

    def __init__(self, keyset: LocalKeyset, *args: str) -> None:
        env = {**os.environ, **keyset.environ, "PYTHONPATH": str(TESTS), "PYTHONUNBUFFERED": "1"}
        self.errors = keyset.path.parent / "stderr.log"
        with self.errors.open("ab") as errors:
            self.popen = subprocess.Popen(
                [sys.executable, *args], env=env, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def line(self) -> str:
        return self.popen.stdout.readline().strip()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.popen.send_signal(number)
        return self.popen.wait(30)

    def end(self) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGCONT)
            self.popen.terminate()
            try:
                self.popen.wait(20)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()
        self.popen.stdout.close()


@pytest.fixture
def run(keyset: LocalKeyset) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def start(*args: str) -> Process:
        made.append(Process(keyset, *args))
        return made[-1]

    yield start
    for process in made:
        process.end()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(port: int, query: str = "") -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/?{query}", timeout=10) as answer:
            return json.load(answer)
    except OSError:
        return None


OPEN = "import mcpkeys, time, os, sys, signal; codec = mcpkeys.EnvelopeCodec.open(); print('open')\n"


# --- the last word ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "number", "code"),
    [
        ("", None, 0),
        pytest.param("sys.exit(3)", None, 3, marks=pytest.mark.slow),
        pytest.param("raise ValueError('x')", None, 1, marks=pytest.mark.slow),
        ("time.sleep(60)", signal.SIGTERM, -signal.SIGTERM),
        pytest.param("time.sleep(60)", signal.SIGINT, -signal.SIGINT, marks=pytest.mark.slow),
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(60)", signal.SIGTERM, 0),
    ],
)
def test_a_process_that_ends_says_farewell_and_ends_as_it_would(
    keyset: LocalKeyset, run: Callable[..., Process], ending: str, number: int | None, code: int
) -> None:
    process = run("-c", OPEN + ending)
    assert process.line() == "open"
    if number is not None:
        time.sleep(0.3)
        assert process.stop(number) == code
    assert process.popen.wait(30) == code
    assert [report.state for report in said(keyset).values()] == ["farewell"]


def test_a_handler_that_was_there_before_still_decides(keyset: LocalKeyset, run: Callable[..., Process]) -> None:
    """As a server that loads the application with its own handler in place, and puts the default back at its end."""
    process = run(
        "-c",
        "import signal, time, os\nstop = []\nsignal.signal(signal.SIGTERM, lambda *_: stop.append(1))\n"
        + OPEN
        + "while not stop: time.sleep(0.05)\n"
        + "print(codec.unseal(codec.seal(b'the last round')).decode())\n"
        + "signal.signal(signal.SIGTERM, signal.SIG_DFL)\nsignal.raise_signal(signal.SIGTERM)\n",
    )
    assert process.line() == "open"
    assert process.stop() == -signal.SIGTERM
    assert process.line() == "the last round"
    assert [report.state for report in said(keyset).values()] == ["farewell"]


def test_a_second_sigterm_still_arrives(keyset: LocalKeyset, run: Callable[..., Process]) -> None:
    process = run(
        "-c",
        "import signal, time, os\nseen = []\nsignal.signal(signal.SIGTERM, lambda *_: seen.append(1))\n"
        + OPEN
        + "while len(seen) < 2: time.sleep(0.05); len(seen) == 1 and print('one')\nprint('two')",
    )
    assert process.line() == "open"
    process.popen.send_signal(signal.SIGTERM)
    assert process.line() == "one"
    process.popen.send_signal(signal.SIGTERM)
    assert process.popen.wait(20) == 0


def test_under_uvicorn_every_worker_reports_under_its_own_id_and_says_farewell(
    keyset: LocalKeyset, run: Callable[..., Process]
) -> None:
    port = free_port()
    server = run(
        "-m", "uvicorn", "servers.asgiapp:app", "--workers", "2", "--port", str(port), "--log-level", "warning"
    )
    _seen_by_all(port, keyset)
    assert server.stop() in (0, -signal.SIGTERM)
    assert [report.state for report in said(keyset).values()] == ["farewell", "farewell"]


@pytest.mark.slow
def test_under_one_uvicorn_too(keyset: LocalKeyset, run: Callable[..., Process]) -> None:
    port = free_port()
    server = run("-m", "uvicorn", "servers.asgiapp:app", "--port", str(port), "--log-level", "warning")
    until(lambda: get(port))
    assert server.stop() == -signal.SIGTERM
    assert [report.state for report in said(keyset).values()] == ["farewell"]


def test_under_gunicorn_with_a_codec_opened_before_the_fork(keyset: LocalKeyset, run: Callable[..., Process]) -> None:
    port = free_port()
    server = run(
        "-m", "gunicorn", "--preload", "--workers", "2", "--bind", f"127.0.0.1:{port}", "--log-level", "error",
        "--no-control-socket", "servers.asgiapp:wsgi",
    )  # fmt: skip
    workers = _seen_by_all(port, keyset)
    assert len(said(keyset)) == 3, "the master holds a codec too"
    server.stop()
    assert len(workers) == 2
    assert [report.state for report in said(keyset).values()] == ["farewell"] * 3


def _seen_by_all(port: int, keyset: LocalKeyset) -> dict[str, dict[str, Any]]:
    """Ask until both workers answered; each with its own id, prefix and current report, and each reads the other's."""
    workers: dict[str, dict[str, Any]] = {}

    def both() -> bool:
        answer = get(port)
        if answer is not None:
            workers[answer["id"]] = answer
        return len(workers) == 2

    until(both)
    assert len({answer["pid"] for answer in workers.values()}) == 2
    assert len({answer["token"][16:32] for answer in workers.values()}) == 2
    for answer in workers.values():
        assert get(port, answer["token"])["payload"] == "a round"
    first = until(lambda: len(serving := _serving(keyset, workers)) == 2 and serving)
    until(lambda: all(said(keyset)[i].seq > report.seq for i, report in first.items()))
    told = said(keyset)
    assert {told[i].pid for i in workers} == {answer["pid"] for answer in workers.values()}
    prefixes = [prefix for report in told.values() for prefix in report.prefixes]
    assert len(set(prefixes)) == len(prefixes)
    return workers


def _serving(keyset: LocalKeyset, workers: dict[str, Any]) -> dict[str, reports.Report]:
    return {i: report for i, report in said(keyset).items() if i in workers and report.state == "serving"}


# --- fork ---------------------------------------------------------------------------------------------------------


FORKS = """
import threading
parent = codec.status()["instance"]
store, stop = codec.refresher.loader.store, []
def busy():
    while not stop:
        codec.refresher.step()
        codec.unseal(codec.seal(b"x"))
threads = [threading.Thread(target=busy, daemon=True) for _ in range(3)]
for thread in threads: thread.start()
token = codec.seal(b"of the parent")
def child():
    signal.alarm(60)
    me = codec.status()["instance"]
    assert me["id"] != parent["id"] and me["pid"] == os.getpid()
    assert codec.unseal(token) == b"of the parent"
    mine = codec.seal(b"mine")
    assert mine[16:32] != token[16:32] and codec.unseal(mine) == b"mine"
    seen = codec.refresher.successes
    while codec.refresher.successes == seen: time.sleep(0.01)
    os.write(1, f"{me['id']} {mine[16:32]}\\n".encode())
    codec.close()
    os._exit(0)
left = int(sys.argv[1])
while left:
    # Each child waits for a refresh of its own, so six of them wait at a time.
    pids = []
    for _ in range(min(left, 6)):
        pid = os.fork()
        if pid == 0: child()
        pids.append(pid)
        left -= 1
    for pid in pids:
        _, status = os.waitpid(pid, 0)
        assert status == 0, status
stop.append(1)
assert codec.status()["instance"] == parent and codec.unseal(codec.seal(b"y")) == b"y"
print("parent", parent["id"], flush=True)
"""


@pytest.mark.parametrize("forks", [6, pytest.param(150, marks=pytest.mark.slow)])
def test_forks_amid_refreshes_never_deadlock_and_each_child_is_an_instance(
    keyset: LocalKeyset, run: Callable[..., Process], forks: int
) -> None:
    process = run("-W", "ignore", "-c", OPEN + FORKS, str(forks))
    output = process.popen.communicate(timeout=240)[0].splitlines()
    assert process.popen.returncode == 0, process.errors.read_text()[-3000:]
    children = [line.split() for line in output if not line.startswith(("open", "parent"))]
    assert len({identity for identity, _ in children}) == forks
    assert len({prefix for _, prefix in children}) == forks
    told = said(keyset)
    assert len(told) == forks + 1
    assert all(report.state == "farewell" for report in told.values())


def test_children_of_multiprocessing_say_farewell(keyset: LocalKeyset, run: Callable[..., Process]) -> None:
    process = run(
        "-W", "ignore", "-c",
        OPEN + "import multiprocessing as mp\n"
        "def work(): codec.seal(b'x'); time.sleep(0.5)\n"
        "child = mp.get_context('fork').Process(target=work)\nchild.start(); child.join(); print(child.exitcode)\n",
    )  # fmt: skip
    assert process.popen.communicate(timeout=60)[0].splitlines() == ["open", "0"]
    told = said(keyset)
    assert len(told) == 2
    assert [report.state for report in told.values()] == ["farewell", "farewell"]


# --- frozen -------------------------------------------------------------------------------------------------------


def test_a_process_that_thaws_refreshes_at_once(keyset: LocalKeyset, run: Callable[..., Process]) -> None:
    process = run("-c", OPEN + "time.sleep(60)")
    assert process.line() == "open"
    (before,) = until(lambda: [r for r in said(keyset).values() if r.seq > 2])
    process.popen.send_signal(signal.SIGSTOP)
    time.sleep(0.5)
    frozen = said(keyset)[before.instance]
    time.sleep(1.2)
    assert said(keyset)[before.instance] == frozen
    process.popen.send_signal(signal.SIGCONT)
    thawed = time.time()
    report = until(lambda: (r := said(keyset)[before.instance]).seq > frozen.seq and r, seconds=10)
    assert report.clock_started / 1000 - thawed < 0.9, "before another interval has passed"
