"""What VaultKvStore promises beyond the contract, on a real OpenBao."""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers.fault_proxy import Answer, FaultProxy, Request
from servers.openbao import Bao

from mcpkeys.errors import ConfigurationError, Conflict, NotFound, StoreDenied, StoreUnreachable, UriError
from mcpkeys.registry import open_store
from mcpkeys_vault.document import Slot, nanoseconds, number_of, pack, unpack
from mcpkeys_vault.store import VaultKvStore
from mcpkeys_vault.uri import parse_keyset


def soon() -> float:
    return time.monotonic() + 10


@pytest.fixture
def place() -> str:
    return f"mcpkeys/{secrets.token_hex(6)}"


@pytest.mark.parametrize(
    ("uri", "canonical"),
    [
        ("vaultkv://secret/fleet", "vaultkv://secret/fleet"),
        ("vaultkv://secret/a/b.json?namespace=/admin/", "vaultkv://secret/a/b.json?namespace=admin"),
    ],
)
def test_a_uri_has_one_canonical_form(uri: str, canonical: str) -> None:
    assert parse_keyset(uri).uri == canonical


@pytest.mark.parametrize(
    "uri",
    [
        "vaultkv://",
        "vaultkv://secret",
        "vaultkv://secret/",
        "vaultkv:///x",
        "vaultkv://secret/../sys",
        "vaultkv://secret//x",
        "vaultkv://secret/x?mount=a",
        "vaultkv://secret/x?namespace=",
        "vaultkv://secret/x#y",
        "vaultkv://secret/%2e",
        "vaultkv://secret/é",
    ],
)
def test_what_is_no_keyset_uri_is_refused_with_an_example(uri: str) -> None:
    with pytest.raises(UriError) as caught:
        parse_keyset(uri)
    assert "vaultkv://" in caught.value.next


@given(st.binary(max_size=300))
def test_every_body_survives_a_secrets_json(body: bytes) -> None:
    data = {"data": pack(body), "metadata": {"version": 3, "created_time": "2026-11-29T22:51:00.1Z"}}
    slot = unpack(json.loads(json.dumps(data)))
    assert slot == Slot(3, 1795992660_100000000, body)
    assert number_of(slot.version) == 3


@given(st.text())
def test_text_lies_readable_in_the_secret(text: str) -> None:
    body = text.encode("utf-8", "surrogatepass")
    if body == text.encode("utf-8", "replace"):
        assert pack(body) == {"document": text}


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000_000),
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("1970-01-01T01:00:00.000000001+01:00", 1),
        ("2026-11-29T23:34:16.089340646Z", 1795995256_089340646),
        ("yesterday", None),
        ("", None),
        (None, None),
        (7, None),
        ("2026-13-29T23:34:16Z", None),
    ],
)
def test_times_are_read_to_the_nanosecond(text: object, ns: int | None) -> None:
    assert nanoseconds(text) == ns


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"metadata": {}},
        {"metadata": {"version": True, "created_time": "1970-01-01T00:00:01Z"}},
        {"metadata": {"version": 0, "created_time": "1970-01-01T00:00:01Z"}},
        {"metadata": {"version": 1, "created_time": "x"}},
        {"document": "a KV v1 secret"},
    ],
)
def test_what_is_no_kv_v2_answer_is_not_taken_for_one(data: dict[str, object]) -> None:
    assert unpack(data) is None


def test_an_operator_reads_the_document_in_vaults_own_interface(at_bao: Bao, place: str) -> None:
    VaultKvStore(f"vaultkv://secret/{place}").replace(b'{"name":"fleet"}', None, deadline=soon())
    assert at_bao.api("GET", f"secret/data/{place}")["data"]["data"] == {"document": '{"name":"fleet"}'}


@pytest.mark.parametrize("how", ["deleted", "destroyed", "metadata deleted"])
def test_a_deleted_keyset_is_not_found_can_be_created_anew_and_old_versions_never_match(
    at_bao: Bao, place: str, how: str
) -> None:
    store = VaultKvStore(f"vaultkv://secret/{place}")
    first = store.replace(b"one", None, deadline=soon())
    second = store.replace(b"two", first, deadline=soon())
    if how == "deleted":
        at_bao.api("DELETE", f"secret/data/{place}")
    elif how == "destroyed":
        at_bao.api("PUT", f"secret/destroy/{place}", {"versions": [2]})
    else:
        at_bao.api("DELETE", f"secret/metadata/{place}")
    for known in (None, first, second):
        with pytest.raises(NotFound):
            store.read(known, fresh=True, deadline=soon())
    for expected in (first, second):
        with pytest.raises(Conflict):
            store.replace(b"x", expected, deadline=soon())
    again = store.replace(b"one", None, deadline=soon())
    assert again not in (first, second)
    newer = store.replace(b"two", again, deadline=soon())
    found = store.read(second, fresh=True, deadline=soon())
    assert found is not None, "a secret begun anew counts from 1 again, and is another one"
    assert (found.body, found.version) == (b"two", newer)


def test_a_kv_version_1_mount_is_found_out_before_anything_is_written(at_bao: Bao) -> None:
    mount = "kv1-" + secrets.token_hex(4)
    at_bao.api("POST", f"sys/mounts/{mount}", {"type": "kv"})
    store = VaultKvStore(f"vaultkv://{mount}/fleet")
    with pytest.raises(ConfigurationError) as caught:
        store.replace(b"x", None, deadline=soon())
    assert caught.value.code == "kv-not-v2"
    with pytest.raises(ConfigurationError):
        store.read(None, fresh=False, deadline=soon())
    assert at_bao.api("LIST", f"{mount}/", ok=False)["_status"] == 404


def test_another_engine_is_no_store(at_bao: Bao) -> None:
    with pytest.raises(ConfigurationError, match="transit") as caught:
        VaultKvStore("vaultkv://transit/fleet").read(None, fresh=False, deadline=soon())
    assert caught.value.code == "kv-not-v2"


def test_a_mount_of_several_segments_is_found(at_bao: Bao) -> None:
    mount = f"team-{secrets.token_hex(4)}/kv"
    at_bao.api("POST", f"sys/mounts/{mount}", {"type": "kv", "options": {"version": "2"}})
    store = VaultKvStore(f"vaultkv://{mount}/a/fleet")
    end = time.monotonic() + 5
    while at_bao.api("GET", f"{mount}/config", ok=False)["_status"] != 200 and time.monotonic() < end:
        time.sleep(0.05)
    store.replace(b"x", None, deadline=soon())
    assert at_bao.api("GET", f"{mount}/data/a/fleet")["data"]["data"] == {"document": "x"}
    with pytest.raises(ConfigurationError):
        VaultKvStore(f"vaultkv://{mount}").read(None, fresh=False, deadline=soon())


def test_a_mount_that_does_not_exist_is_told_with_what_to_check(at_bao: Bao) -> None:
    with pytest.raises(StoreDenied, match="nothing is mounted there") as caught:
        VaultKvStore("vaultkv://nowhere/fleet").read(None, fresh=False, deadline=soon())
    assert "nowhere/data/fleet" in caught.value.next


def test_a_namespace_that_does_not_exist_is_named(at_bao: Bao) -> None:
    with pytest.raises(ConfigurationError) as caught:
        VaultKvStore("vaultkv://secret/fleet?namespace=nowhere").read(None, fresh=False, deadline=soon())
    assert caught.value.code == "namespace-not-found"


def test_a_mount_that_demands_compare_and_swap_takes_reports_too(at_bao: Bao) -> None:
    mount = "cas-" + secrets.token_hex(4)
    at_bao.api("POST", f"sys/mounts/{mount}", {"type": "kv", "options": {"version": "2"}})
    end = time.monotonic() + 5
    while at_bao.api("POST", f"{mount}/config", {"cas_required": True}, ok=False)["_status"] >= 300:
        assert time.monotonic() < end
        time.sleep(0.05)
    store = VaultKvStore(f"vaultkv://{mount}/fleet")
    version = store.replace(b"x", None, deadline=soon())
    store.replace(b"y", version, deadline=soon())
    instance = secrets.token_urlsafe(16)
    for body in (b"1", b"2"):
        store.put_report(instance, body, deadline=soon())
        assert [found.body for found in store.reports(deadline=soon())] == [body]


def test_a_report_keeps_one_version_and_its_deletion_leaves_none(at_bao: Bao, place: str) -> None:
    store, instance = VaultKvStore(f"vaultkv://secret/{place}"), secrets.token_urlsafe(16)
    for number in range(5):
        store.put_report(instance, b"%d" % number, deadline=soon())
    about = at_bao.api("GET", f"secret/metadata/{place}.reports/{instance}")["data"]
    assert about["max_versions"] == 1
    assert list(about["versions"]) == ["5"]
    store.delete_report(instance, deadline=soon())
    assert at_bao.api("GET", f"secret/metadata/{place}.reports/{instance}", ok=False)["_status"] == 404


def test_a_report_deleted_by_another_tool_is_not_listed(at_bao: Bao, place: str) -> None:
    store = VaultKvStore(f"vaultkv://secret/{place}")
    one, two = secrets.token_urlsafe(16), secrets.token_urlsafe(16)
    store.put_report(one, b"1", deadline=soon())
    store.put_report(two, b"2", deadline=soon())
    at_bao.api("DELETE", f"secret/data/{place}.reports/{one}")
    assert [found.name for found in store.reports(deadline=soon())] == [two]


def test_a_lost_reply_under_a_later_write_is_still_ones_own(at_proxy: FaultProxy, bao: Bao, place: str) -> None:
    """KV v2 keeps the version, so success can be told even where somebody wrote on top."""
    store = VaultKvStore(f"vaultkv://secret/{place}")
    lost: list[int] = []

    def fault(request: Request, forward: object) -> Answer | None:
        answer = forward()  # type: ignore[operator]
        if request[0] == "POST" and not lost:
            lost.append(1)
            bao.api("POST", f"secret/data/{place}", {"data": pack(b"theirs")})
            return None
        return answer

    with at_proxy.faulty(fault):
        version = store.replace(b"mine", None, deadline=soon())
    assert number_of(version) == 1
    found = store.read(None, fresh=True, deadline=soon())
    assert found is not None
    assert found.body == b"theirs"


def test_a_write_that_never_arrived_is_an_outage_and_not_a_conflict(at_proxy: FaultProxy, bao: Bao, place: str) -> None:
    store = VaultKvStore(f"vaultkv://secret/{place}")
    with (
        at_proxy.faulty(lambda request, forward: None if request[0] == "POST" else forward()),
        pytest.raises(StoreUnreachable, match="not known"),
    ):
        store.replace(b"x", None, deadline=soon())
    with pytest.raises(NotFound):
        store.read(None, fresh=True, deadline=soon())


def test_a_write_whose_answer_comes_too_late_is_resolved_within_the_deadline(
    at_proxy: FaultProxy, bao: Bao, place: str
) -> None:
    store = VaultKvStore(f"vaultkv://secret/{place}")

    def fault(request: Request, forward: object) -> Answer | None:
        answer = forward()  # type: ignore[operator]
        if request[0] == "POST":
            time.sleep(1.5)
        return answer

    begun = time.monotonic()
    with at_proxy.faulty(fault):
        version = store.replace(b"x", None, deadline=begun + 1.2)
    assert time.monotonic() < begun + 1.3
    assert number_of(version) == 1


def _race(uri: str, wins: int) -> int:
    # No two documents are alike: by that a store tells its own write after a reply was lost.
    store, won, lost, mark = VaultKvStore(uri), 0, 0, os.urandom(6).hex().encode()
    while won < wins:
        found = store.read(None, fresh=True, deadline=time.monotonic() + 60)
        assert found is not None
        try:
            store.replace(
                b"%d by %s" % (int(found.body.split()[0]) + 1, mark), found.version, deadline=time.monotonic() + 60
            )
            won += 1
        except Conflict:
            lost += 1
    return lost


@pytest.mark.slow
def test_sixteen_processes_racing_two_hundred_writes_lose_none(at_bao: Bao, place: str) -> None:
    uri = f"vaultkv://secret/{place}"
    store = VaultKvStore(uri)
    store.replace(b"0", None, deadline=soon())
    with multiprocessing.get_context("fork").Pool(16) as pool:
        lost = pool.starmap(_race, [(uri, n) for n in [13] * 8 + [12] * 8])
    found = store.read(None, fresh=True, deadline=soon())
    assert found is not None
    assert int(found.body.split()[0]) == 200
    assert number_of(found.version) == 201, "every version is a win"
    assert sum(lost) > 0, "nobody raced"


def test_the_registry_opens_it(at_bao: Bao) -> None:
    assert isinstance(open_store("vaultkv://secret/x"), VaultKvStore)
