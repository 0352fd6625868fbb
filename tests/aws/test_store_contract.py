"""S3Store against the contract: moto behind a proxy that can fail as S3 fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from servers.aws_faults import FaultyProxy, Reply, answering, reply_lost, s3_error, slow
from servers.moto import Moto

from mcpkeys.errors import Conflict
from mcpkeys.store import Store
from mcpkeys.testing import StoreContract
from mcpkeys.testing.store import a_body
from mcpkeys_aws.store import S3Store

TOKEN = "FwoGZXIvYXdzE" + os.urandom(24).hex()


class TestS3Store(StoreContract):
    call_seconds = 20.0
    report_count = 25  # pages of 10: see small_pages

    @pytest.fixture(autouse=True)
    def server(self, aws: Moto, faulty: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moto, self.proxy = aws, faulty
        self.bucket = aws.create_bucket("keys-" + os.urandom(6).hex())
        self.key = "prod/fleet.keyset.json"
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI" + "K7MDENGbPxRfiCY")
        monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
        faulty.rewrite = small_pages

    def make_store(self) -> S3Store:
        return S3Store(f"s3://{self.bucket}/{self.key}")

    def make_neighbour(self) -> S3Store:
        return S3Store(f"s3://{self.bucket}/{self.key}2")

    def secrets(self) -> tuple[bytes, ...]:
        return (os.environ.get("AWS_SECRET_ACCESS_KEY", "").encode(), TOKEN.encode())

    def plant(self, body: bytes) -> None:
        self.moto.client("s3").put_object(Bucket=self.bucket, Key=self.key, Body=body)

    def plant_stray(self) -> None:
        for name in ("README", "x.json", "sub/" + "a" * 22 + ".json", "a" * 22):
            self.moto.client("s3").put_object(Bucket=self.bucket, Key=f"{self.key}.reports/{name}", Body=b"{}")

    def test_versions_do_not_return_when_a_body_does(self, store: Store) -> None:
        """Not in S3: an ETag is a digest of the content. It suffices, for no two documents of a keyset are alike:
        each has a higher generation. What has to hold is that a body returns only with its own version."""
        body, first = self._create(store)
        second = store.replace(a_body(), first, deadline=self.soon())
        third = store.replace(body, second, deadline=self.soon())
        assert first == third != second
        with pytest.raises(Conflict):
            store.replace(a_body(), second, deadline=self.soon())

    def denied(self, store: Store):
        return self._failing(store, s3_error("AccessDenied", "Access Denied"))

    def read_only(self, store: Store):
        return self._failing(store, s3_error("AccessDenied", "Access Denied", only="PUT"))

    def unreachable(self, store: Store):
        return self._failing(store, s3_error("InternalError", status=500))

    def throttled(self, store: Store):
        return self._failing(store, s3_error("SlowDown", "Please reduce your request rate.", status=503))

    def slow(self, store: Store, seconds: float):
        return self._failing(store, slow(seconds))

    def garbled(self, store: Store):
        return self._failing(store, answering(200, b"<html>welcome</html>"))

    def reply_lost(self, store: Store):
        return self._failing(store, reply_lost())

    def reply_lost_and_overtaken(self, store: Store, body: bytes):
        return self._failing(store, reply_lost(lambda: self.plant(body)))

    def listing_breaks(self, store: Store):
        pages = []

        def fault(exchange, forward):
            if "list-type=2" in exchange.path:
                pages.append(exchange)
                if len(pages) > 1:
                    return Reply(0)
            return forward()

        return self._failing(store, fault)

    @contextmanager
    def _failing(self, store: Store, fault) -> Iterator[Store]:
        with self.proxy.failing(fault):
            yield store


def small_pages(path: str) -> str:
    """Listings in pages of 10 instead of 1,000."""
    return path + "&max-keys=10" if "list-type=2" in path else path
