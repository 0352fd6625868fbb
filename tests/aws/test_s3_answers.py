"""What S3Store makes of S3's own answers, and of servers that only look like S3."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from servers.aws_faults import FaultyProxy, Reply, answering, reply_lost, s3_error, slow
from servers.moto import Moto

from mcpkeys.errors import ConfigurationError, Conflict, McpkeysError, NotFound, StoreDenied, StoreUnreachable
from mcpkeys.testing.store import a_body, an_instance
from mcpkeys_aws.store import S3Store

CONFLICT_409 = s3_error(
    "ConditionalRequestConflict",
    "The conditional request cannot succeed due to a conflicting operation against this resource.",
    status=409,
)


def soon(seconds: float = 20.0) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def bucket(aws: Moto) -> str:
    return aws.create_bucket("keys-" + os.urandom(6).hex())


@pytest.fixture
def store(bucket: str, faulty: FaultyProxy) -> S3Store:
    return S3Store(f"s3://{bucket}/fleet.keyset.json")


def for_document(exchange) -> bool:
    return exchange.path.split("?")[0].endswith("/fleet.keyset.json")


# Compare-and-swap.


def test_a_write_sends_the_condition_that_makes_it_safe(store: S3Store, faulty: FaultyProxy) -> None:
    version = store.replace(a_body(), None, deadline=soon())
    store.replace(a_body(), version, deadline=soon())
    created, replaced = [call for call in faulty.seen if call.method == "PUT" and for_document(call)]
    assert created.headers["If-None-Match"] == "*"
    assert "If-Match" not in created.headers
    assert replaced.headers["If-Match"] == version
    assert "If-None-Match" not in replaced.headers


def test_a_409_is_retried_and_succeeds_where_nothing_was_written(store: S3Store, faulty: FaultyProxy) -> None:
    version = store.replace(a_body(), None, deadline=soon())
    busy = [2]

    def fault(exchange, forward):
        if exchange.method == "PUT" and busy[0]:
            busy[0] -= 1
            return CONFLICT_409(exchange, forward)
        return forward()

    body = a_body()
    with faulty.failing(fault):
        newer = store.replace(body, version, deadline=soon())
    found = store.read(None, fresh=True, deadline=soon())
    assert found is not None
    assert (found.body, found.version) == (body, newer)


def test_a_409_behind_which_another_writer_won_is_a_conflict(store: S3Store, faulty: FaultyProxy, aws: Moto) -> None:
    version = store.replace(a_body(), None, deadline=soon())
    theirs = a_body()

    def fault(exchange, forward):
        if exchange.method != "PUT":
            return forward()
        aws.client("s3").put_object(Bucket=exchange.path.split("/")[1], Key="fleet.keyset.json", Body=theirs)
        return CONFLICT_409(exchange, forward)

    with faulty.failing(fault), pytest.raises(Conflict):
        store.replace(a_body(), version, deadline=soon())
    found = store.read(None, fresh=True, deadline=soon())
    assert found is not None
    assert found.body == theirs


def test_a_409_that_never_ends_is_told_within_the_deadline(store: S3Store, faulty: FaultyProxy) -> None:
    version = store.replace(a_body(), None, deadline=soon())
    begun = time.monotonic()

    def fault(exchange, forward):
        return CONFLICT_409(exchange, forward) if exchange.method == "PUT" else forward()

    with faulty.failing(fault), pytest.raises(StoreUnreachable):
        store.replace(a_body(), version, deadline=begun + 1.0)
    assert time.monotonic() - begun < 2.0


def test_a_document_deleted_meanwhile_is_a_conflict(store: S3Store, aws: Moto, bucket: str) -> None:
    version = store.replace(a_body(), None, deadline=soon())
    aws.client("s3").delete_object(Bucket=bucket, Key="fleet.keyset.json")
    with pytest.raises(Conflict):
        store.replace(a_body(), version, deadline=soon())
    with pytest.raises(NotFound):
        store.read(version, fresh=True, deadline=soon())


def test_a_write_that_was_answered_too_late_is_recognised(store: S3Store, faulty: FaultyProxy) -> None:
    version = store.replace(a_body(), None, deadline=soon())
    body, late = a_body(), [True]

    def fault(exchange, forward):
        reply = forward()
        if exchange.method == "PUT" and late.pop() if late else False:
            time.sleep(1.2)
        return reply

    with faulty.failing(fault):
        newer = store.replace(body, version, deadline=soon(1.5))
    found = store.read(None, fresh=True, deadline=soon())
    assert found is not None
    assert (found.body, found.version) == (body, newer)


def test_a_lost_reply_that_cannot_be_read_back_says_that_it_is_unknown(store: S3Store, faulty: FaultyProxy) -> None:
    version = store.replace(a_body(), None, deadline=soon())
    lost, broken = reply_lost(), s3_error("InternalError", status=500)

    def fault(exchange, forward):
        return lost(exchange, forward) if exchange.method == "PUT" else broken(exchange, forward)

    with faulty.failing(fault), pytest.raises(StoreUnreachable) as caught:
        store.replace(a_body(), version, deadline=soon(3))
    assert caught.value.code == "write-unknown"
    assert "mcpkeys status" in caught.value.next


def test_a_write_that_was_not_sent_is_not_called_unknown(store: S3Store, faulty: FaultyProxy) -> None:
    version = store.replace(a_body(), None, deadline=soon())
    with faulty.failing(s3_error("SlowDown", status=503)), pytest.raises(StoreUnreachable) as caught:
        store.replace(a_body(), version, deadline=soon(3))
    assert caught.value.code == "store-throttled"


# Servers without conditional writes.


def without(header: str):
    """A clone that ignores this header."""

    def fault(exchange, forward):
        exchange.headers = {name: value for name, value in exchange.headers.items() if name != header}
        return forward()

    return fault


@pytest.mark.parametrize("header", ["If-None-Match", "If-Match"])
def test_a_clone_that_ignores_a_condition_is_refused_before_anything_is_written(
    store: S3Store, faulty: FaultyProxy, header: str
) -> None:
    with faulty.failing(without(header)):
        with pytest.raises(ConfigurationError) as caught:
            store.replace(a_body(), None, deadline=soon())
        assert caught.value.code == "store-without-cas"
        with pytest.raises(ConfigurationError):
            store.self_test(soon())
    assert not any(for_document(call) for call in faulty.seen)
    store.self_test(soon())
    store.replace(a_body(), None, deadline=soon())


def test_a_clone_that_does_not_know_conditions_is_refused(store: S3Store, faulty: FaultyProxy) -> None:
    refuses = s3_error("NotImplemented", "A header you provided implies functionality that is not implemented.", 501)
    with faulty.failing(refuses), pytest.raises(ConfigurationError) as caught:
        store.self_test(soon())
    assert caught.value.code == "store-without-cas"


def test_the_self_test_runs_once_and_two_at_once_do_not_deceive_each_other(store: S3Store, faulty: FaultyProxy) -> None:
    version = store.replace(a_body(), None, deadline=soon())
    tests = sum(".selftest" in call.path for call in faulty.seen)
    store.replace(a_body(), version, deadline=soon())
    assert sum(".selftest" in call.path for call in faulty.seen) == tests > 0
    with ThreadPoolExecutor(8) as pool:
        for outcome in [pool.submit(store.self_test, soon()) for _ in range(24)]:
            outcome.result()


# Reading.


@pytest.mark.parametrize(
    ("code", "status", "kind", "word", "told"),
    [
        ("AccessDenied", 403, StoreDenied, "store-denied", "s3:ListBucket"),
        ("InvalidAccessKeyId", 403, StoreDenied, "credentials-invalid", "does not know"),
        ("SignatureDoesNotMatch", 403, StoreDenied, "credentials-invalid", "secret access key"),
        ("RequestTimeTooSkewed", 403, StoreDenied, "clock-skew", "clock"),
        ("ExpiredToken", 400, StoreDenied, "credentials-expired", "expired"),
        ("NoSuchBucket", 404, ConfigurationError, "bucket-not-found", "AWS_REGION"),
        ("PermanentRedirect", 301, ConfigurationError, "configuration", "AWS_REGION"),
        ("SlowDown", 503, StoreUnreachable, "store-throttled", "quota"),
        ("InternalError", 500, StoreUnreachable, "store-unreachable", "500"),
        ("NoSuchKey", 404, NotFound, "keyset-not-found", "mcpkeys init"),
    ],
)
def test_each_answer_of_s3_is_told_as_what_it_means(
    store: S3Store, faulty: FaultyProxy, code: str, status: int, kind: type[McpkeysError], word: str, told: str
) -> None:
    with faulty.failing(s3_error(code, "x", status, only="GET")), pytest.raises(kind) as caught:
        store.read(None, fresh=True, deadline=soon())
    assert caught.value.exit_code == kind.exit_code
    assert caught.value.code == word
    assert told in f"{caught.value.why} {caught.value.next}"


def test_a_bucket_that_does_not_exist_is_not_an_empty_place(aws: Moto) -> None:
    """NotFound would invite `init` to create a keyset there."""
    store = S3Store("s3://nobody-has-made-this/k")
    for call in (
        lambda: store.read(None, fresh=True, deadline=soon()),
        lambda: store.replace(a_body(), None, deadline=soon()),
        lambda: list(store.reports(deadline=soon())),
        lambda: store.put_report(an_instance(), b"{}", deadline=soon()),
    ):
        with pytest.raises(ConfigurationError) as caught:
            call()
        assert caught.value.code == "bucket-not-found"
        assert not isinstance(caught.value, NotFound)


def test_a_body_that_breaks_off_is_an_outage_not_a_document(store: S3Store, faulty: FaultyProxy) -> None:
    store.replace(b'{"whole": true}' * 1000, None, deadline=soon())

    def fault(exchange, forward):
        reply = forward()
        length = str(len(reply.body))
        headers = {name: value for name, value in reply.headers.items() if name.lower() != "content-length"}
        return Reply(reply.status, reply.body[:-7], {**headers, "Content-Length": length, "Connection": "close"})

    with faulty.failing(fault), pytest.raises(StoreUnreachable):
        store.read(None, fresh=True, deadline=soon(3))


def test_an_unchanged_document_is_not_sent_again(store: S3Store, faulty: FaultyProxy) -> None:
    version = store.replace(a_body(), None, deadline=soon())
    faulty.seen.clear()
    assert store.read(version, fresh=False, deadline=soon()) is None
    (call,) = faulty.seen
    assert (call.status, call.answer) == (304, b"")


@pytest.mark.parametrize("stored", [True, False])
def test_the_clock_is_s3s_own(store: S3Store, faulty: FaultyProxy, stored: bool) -> None:
    if stored:
        store.replace(a_body(), None, deadline=soon())

    def fault(exchange, forward):
        reply = forward()
        headers = {name: value for name, value in reply.headers.items() if name.lower() != "date"}
        return Reply(reply.status, reply.body, {**headers, "Date": "Sun, 29 Nov 2026 22:51:07 GMT"})

    with faulty.failing(fault):
        assert store.now(deadline=soon()) == (1795992667.0, 1.0)


@pytest.mark.parametrize("headers", [{}, {"Date": "yesterday"}])
def test_a_server_without_a_date_has_no_clock(store: S3Store, faulty: FaultyProxy, headers: dict[str, str]) -> None:
    with faulty.failing(lambda exchange, forward: Reply(200, b"", headers)), pytest.raises(StoreUnreachable):
        store.now(deadline=soon())


# Reports.


def test_a_report_withdrawn_between_listing_and_reading_is_left_out(store: S3Store, faulty: FaultyProxy) -> None:
    stays, goes = an_instance(), an_instance()
    for instance in (stays, goes):
        store.put_report(instance, b"{}", deadline=soon())

    def fault(exchange, forward):
        return s3_error("NoSuchKey", status=404)(exchange, forward) if goes in exchange.path else forward()

    with faulty.failing(fault):
        assert [found.name for found in store.reports(deadline=soon())] == [stays]


def test_a_report_that_cannot_be_read_is_an_error(store: S3Store, faulty: FaultyProxy) -> None:
    instances = [an_instance() for _ in range(5)]
    for instance in instances:
        store.put_report(instance, b"{}", deadline=soon())

    def fault(exchange, forward):
        return s3_error("AccessDenied")(exchange, forward) if instances[3] in exchange.path else forward()

    with faulty.failing(fault), pytest.raises(StoreDenied):
        list(store.reports(deadline=soon()))


@pytest.mark.parametrize(
    "page",
    [
        b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
        b"</ListBucketResult>",
        b"<ListBucketResult></ListBucketResult>",
        b"<html/>",
        b"",
    ],
)
def test_a_listing_that_never_ends_or_makes_no_sense_is_an_error(
    store: S3Store, faulty: FaultyProxy, page: bytes
) -> None:
    with faulty.failing(answering(200, page)), pytest.raises(StoreUnreachable):
        list(store.reports(deadline=soon(5)))


def test_reports_are_fetched_side_by_side(store: S3Store, faulty: FaultyProxy) -> None:
    for _ in range(12):
        store.put_report(an_instance(), b"{}", deadline=soon())
    begun = time.monotonic()
    with faulty.failing(slow(0.3)):
        assert len(list(store.reports(deadline=soon()))) == 12
    assert time.monotonic() - begun < 12 * 0.3


# Races of processes.

_RACER = """
import os, sys, time
from mcpkeys.errors import Conflict, StoreUnreachable
from mcpkeys_aws.store import S3Store
# No two documents are alike: by that a store tells its own write after a reply was lost.
store, wins, mark = S3Store(sys.argv[1]), 0, b"%d" % os.getpid()
until = time.monotonic() + 120
while wins < int(sys.argv[2]):
    try:
        found = store.read(None, fresh=True, deadline=until)
    except StoreUnreachable:
        continue  # moto answers 500 now and then where sixteen ask at once; a read changes nothing
    try:
        store.replace(b"%d by %s" % (int(found.body.split()[0]) + 1, mark), found.version, deadline=until)
        wins += 1
    except Conflict:
        pass
"""


@pytest.mark.slow
def test_sixteen_processes_lose_no_update_among_200(aws: Moto, bucket: str) -> None:
    import subprocess
    import sys

    store = S3Store(f"s3://{bucket}/k")
    store.replace(b"0", None, deadline=soon())
    wins = [13] * 8 + [12] * 8
    racers = [subprocess.Popen([sys.executable, "-c", _RACER, store.uri, str(count)]) for count in wins]
    assert [racer.wait(timeout=110) for racer in racers] == [0] * 16
    found = store.read(None, fresh=True, deadline=soon())
    assert found is not None
    assert int(found.body.split()[0]) == sum(wins) == 200
