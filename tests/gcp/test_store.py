"""GcsStore beyond the contract: what it sends, quotas, credentials, URIs, processes that race."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from google.auth.exceptions import RefreshError
from google.oauth2.credentials import Credentials
from servers import gcs
from servers.fault_proxy import Answer, FaultProxy, Request

from mcpkeys.errors import Conflict, NotFound, StoreDenied, StoreUnreachable, UriError
from mcpkeys.registry import open_store
from mcpkeys_gcp.store import GcsStore

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server() -> Iterator[gcs.Gcs]:
    with gcs.serving() as running:
        yield running


@pytest.fixture
def proxy(server: gcs.Gcs, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    proxy = FaultProxy(f"127.0.0.1:{server.port}")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.address)
    yield proxy
    proxy.close()


@pytest.fixture
def store(server: gcs.Gcs, proxy: FaultProxy) -> Iterator[GcsStore]:
    store = GcsStore(f"gs://{server.new_bucket()}/fleet.keyset.json")
    yield store
    store.close()


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


def queries(proxy: FaultProxy, method: str) -> list[dict[str, list[str]]]:
    return [parse_qs(urlsplit(path).query) for verb, path in proxy.seen if verb == method]


# What goes over the wire: right for Google, not only for the local server.


def test_writes_carry_the_generation_they_expect(store, proxy):
    version = store.replace(b"one", None, deadline=soon())
    store.replace(b"two", version, deadline=soon())
    assert [q["ifGenerationMatch"] for q in queries(proxy, "POST")] == [["0"], [version]]


def test_content_is_read_by_the_generation_that_was_announced(store, proxy):
    version = store.replace(b"one", None, deadline=soon())
    proxy.seen.clear()
    found = store.read(None, fresh=True, deadline=soon())
    assert found is not None
    assert [q.get("generation") for q in queries(proxy, "GET")] == [None, [version]]


def test_an_unchanged_object_costs_one_request_without_content(store, proxy):
    version = store.replace(b"one", None, deadline=soon())
    proxy.seen.clear()
    assert store.read(version, fresh=False, deadline=soon()) is None
    assert len(proxy.seen) == 1
    assert "alt=media" not in proxy.seen[0][1]


def test_nothing_is_asked_of_the_bucket_itself(store, proxy):
    """Servers have rights on objects only; what they may not ask would show up in audit logs as denied."""
    version = store.replace(b"one", None, deadline=soon())
    store.read(version, fresh=True, deadline=soon())
    store.put_report("a" * 22, b"report", deadline=soon())
    store.delete_report("b" * 22, deadline=soon())
    store.now(deadline=soon())
    time.sleep(0.2)
    assert all("/o/" in path or "/o?" in path for _, path in proxy.seen)
    assert len(proxy.seen) == 5


def test_objects_are_never_cached_and_carry_their_checksum(store, proxy):
    sent = []

    def look(request: Request, forward: Callable[[], Answer]) -> Answer:
        sent.append(request)
        return forward()

    with proxy.faulty(look):
        store.replace(b"one", None, deadline=soon())
        store.put_report("a" * 22, b"report", deadline=soon())
    assert len(sent) == 2
    for request in sent:
        assert b"no-store" in request[3]
        assert b"crc32c" in request[3]


def test_an_object_overwritten_between_metadata_and_content_is_read_anew(store, proxy, server):
    store.replace(b"one", None, deadline=soon())
    bucket = store.uri.split("/")[2]
    meddled = []

    def fault(request: Request, forward: Callable[[], Answer]) -> Answer:
        if "alt=media" in request[1] and not meddled:
            meddled.append(1)
            server.put(bucket, "fleet.keyset.json", b"another")
        return forward()

    with proxy.faulty(fault):
        found = store.read(None, fresh=True, deadline=soon())
    assert found is not None
    assert found.body == b"another"
    assert meddled


# Quotas and outages.


def refuse(times: int, status: int) -> Callable[[Request, Callable[[], Answer]], Answer]:
    left = [times]

    def fault(request: Request, forward: Callable[[], Answer]) -> Answer:
        if left[0] > 0:
            left[0] -= 1
            return status, JSON, json.dumps({"error": {"code": status, "message": "injected"}}).encode()
        return forward()

    return fault


@pytest.mark.parametrize(("status", "times"), [(429, 3), (503, 2), (500, 2)])
def test_a_throttled_or_failing_write_is_tried_again(store, proxy, status, times):
    """Cloud Storage takes about one write a second per object: a 429 there is nothing out of the ordinary."""
    with proxy.faulty(refuse(times, status)):
        version = store.replace(b"one", None, deadline=soon(20))
    found = store.read(None, fresh=True, deadline=soon())
    assert found is not None
    assert (found.body, found.version) == (b"one", version)


def test_an_outage_is_told_before_the_deadline_when_trying_again_is_no_use(store, proxy):
    begun = time.monotonic()
    with proxy.faulty(lambda request, forward: None), pytest.raises(StoreUnreachable):
        store.read(None, fresh=True, deadline=soon(30))
    assert time.monotonic() - begun < 10


def test_a_deadline_is_kept_when_content_trickles(server, monkeypatch):
    """Every byte resets a socket's time-out; the call ends all the same."""
    import socket

    listener = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{listener.getsockname()[1]}")
    done = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
            while not done.wait(0.05):
                try:
                    connection.sendall(b" ")
                except OSError:
                    return

    thread = threading.Thread(target=drip)
    thread.start()
    begun = time.monotonic()
    with pytest.raises(StoreUnreachable):
        GcsStore("gs://acme-keys/fleet.json").read(None, fresh=True, deadline=soon(0.5))
    assert time.monotonic() - begun < 1.5
    done.set()
    thread.join()
    listener.close()


def test_a_bucket_that_is_not_there_is_not_found(server, proxy):
    store = GcsStore("gs://no-such-bucket/fleet.json")
    for call in (
        lambda: store.read(None, fresh=True, deadline=soon()),
        lambda: store.replace(b"x", None, deadline=soon()),
        lambda: list(store.reports(deadline=soon())),
    ):
        with pytest.raises(NotFound, match="no-such-bucket"):
            call()


def test_one_report_that_cannot_be_read_fails_the_listing(store, proxy):
    for n in range(5):
        store.put_report(f"{n}" * 22, b"report", deadline=soon())

    def fault(request: Request, forward: Callable[[], Answer]) -> Answer:
        if "3" * 22 in request[1]:
            return 403, JSON, b'{"error": {"code": 403, "message": "injected"}}'
        return forward()

    with proxy.faulty(fault), pytest.raises(StoreDenied):
        list(store.reports(deadline=soon()))


def test_a_report_deleted_while_listing_is_left_out(store, proxy):
    for n in range(5):
        store.put_report(f"{n}" * 22, b"report", deadline=soon())

    def fault(request: Request, forward: Callable[[], Answer]) -> Answer:
        if "3" * 22 in request[1]:
            return 404, JSON, b'{"error": {"code": 404, "message": "injected"}}'
        return forward()

    with proxy.faulty(fault):
        assert {found.name[0] for found in store.reports(deadline=soon())} == {"0", "1", "2", "4"}


# Credentials.


class Expired(Credentials):
    def refresh(self, request):
        raise RefreshError("invalid_grant: reauthentication planted-in-the-reply is needed")


def test_missing_and_expired_credentials_are_told_apart(monkeypatch):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    with pytest.raises(StoreDenied) as caught:
        GcsStore("gs://acme-keys/fleet.json").read(None, fresh=True, deadline=soon(5))
    assert caught.value.code == "credentials-missing"
    with pytest.raises(StoreDenied) as caught:
        GcsStore("gs://acme-keys/fleet.json", session=Expired(None)).read(None, fresh=True, deadline=soon(5))
    assert caught.value.code == "credentials-expired"
    assert "invalid_grant" in caught.value.why
    assert "planted" not in str(caught.value)


def test_the_registry_opens_gs_without_importing_google(proxy, server):
    program = (
        "import sys, time; from mcpkeys.registry import open_store; store = open_store(sys.argv[1]);"
        "assert not any(n.startswith('google.cloud.storage') for n in sys.modules), 'imported before it is used';"
        "print(store.replace(b'x', None, deadline=time.monotonic() + 10))"
    )
    uri = f"gs://{server.new_bucket()}/fleet.json"
    done = subprocess.run(
        [sys.executable, "-c", program, uri], capture_output=True, text=True, timeout=60, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    found = open_store(uri).read(None, fresh=True, deadline=soon())
    assert found is not None
    assert found.version == done.stdout.strip()


def test_a_report_can_be_written_at_exit(proxy, server):
    """Farewells are written there, and Python 3.12 starts no thread then."""
    uri = f"gs://{server.new_bucket()}/fleet.json"
    program = (
        "import atexit, sys, time; from mcpkeys_gcp.store import GcsStore; store = GcsStore(sys.argv[1]);"
        "atexit.register(lambda: store.put_report('a' * 22, b'bye', deadline=time.monotonic() + 10))"
    )
    subprocess.run([sys.executable, "-c", program, uri], check=True, timeout=60, env=dict(os.environ))
    assert [found.body for found in GcsStore(uri).reports(deadline=soon())] == [b"bye"]


# URIs.


@pytest.mark.parametrize(
    "uri",
    [
        *("gs://", "gs://b/x", "gs://Bucket/x", "gs://bucket", "gs://bucket/", "gs:///x", "gs://bucket//x"),
        *("gs://bucket/x/", "gs://bucket/x?generation=1", "gs://bucket/x#1", "gs://bucket/a/../x", "s3://bucket/x"),
        "gs://bucket/" + "x" * 990,
    ],
)
def test_other_uris_are_refused(uri):
    with pytest.raises(UriError) as caught:
        GcsStore(uri)
    assert caught.value.next


def test_names_with_spaces_and_other_letters_are_kept(server, proxy):
    store = GcsStore(f"gs://{server.new_bucket()}/teams/größe 5/fleet+a,b=c%2F.json")
    version = store.replace(b"x", None, deadline=soon())
    store.put_report("a" * 22, b"r", deadline=soon())
    found = store.read(None, fresh=True, deadline=soon())
    assert found is not None
    assert found.version == version
    assert [report.name for report in store.reports(deadline=soon())] == ["a" * 22]
    assert abs(store.now(deadline=soon())[0] - time.time()) < 5


# Processes that race.


def _race(uri: str, wins: int, seconds: float) -> None:
    # No two documents are alike: by that a store tells its own write after a reply was lost.
    store, mark = GcsStore(uri), os.urandom(6).hex().encode()
    end = time.monotonic() + seconds
    while wins:
        found = store.read(None, fresh=True, deadline=end)
        assert found is not None
        try:
            store.replace(b"%d by %s" % (int(found.body.split()[0]) + 1, mark), found.version, deadline=end)
            wins -= 1
        except Conflict:
            continue


@pytest.mark.slow
def test_16_processes_racing_200_writes_lose_none(server, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.address)
    uri = f"gs://{server.new_bucket()}/fleet.json"
    store = GcsStore(uri)
    store.replace(b"0", None, deadline=soon())
    shares = [13] * 8 + [12] * 8
    assert sum(shares) == 200
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_race, args=(uri, share, 100.0)) for share in shares]
    for process in processes:
        process.start()
    for process in processes:
        process.join(110)
        assert process.exitcode == 0
    found = store.read(None, fresh=True, deadline=soon())
    assert found is not None
    assert int(found.body.split()[0]) == 200


def test_16_writers_racing_lose_no_update(server, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.address)
    uri = f"gs://{server.new_bucket()}/fleet.json"
    store = GcsStore(uri)
    store.replace(b"0", None, deadline=soon())
    failures: list[BaseException] = []

    def work() -> None:
        try:
            _race(uri, 2, 50.0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    found = store.read(None, fresh=True, deadline=soon())
    assert found is not None
    assert int(found.body.split()[0]) == 32


def test_no_module_of_the_plugin_is_a_catch_all():
    """Each module is one noun, of at most about 300 lines."""
    import mcpkeys_gcp

    for module in Path(mcpkeys_gcp.__file__).parent.glob("*.py"):
        assert len(module.read_text().splitlines()) <= 320, module.name
