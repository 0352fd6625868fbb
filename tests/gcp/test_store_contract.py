"""The store contract, held by GcsStore with the real google-cloud-storage client against fake-gcs-server.

Cloud Storage is reached through a proxy that misbehaves on demand: what the local server cannot do (refuse, throttle,
lose a reply, break a listing) is played there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from google.oauth2.credentials import Credentials
from servers import gcs
from servers.fault_proxy import Answer, FaultProxy, Request

from mcpkeys.store import Store
from mcpkeys.testing import StoreContract
from mcpkeys_gcp.store import GcsStore

TOKEN = "planted-token-9d2c41f07be86a53"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server() -> Iterator[gcs.Gcs]:
    with gcs.serving() as running:
        yield running


@pytest.fixture(scope="module")
def proxy(server: gcs.Gcs) -> Iterator[FaultProxy]:
    proxy = FaultProxy(f"127.0.0.1:{server.port}")
    yield proxy
    proxy.close()


class PagedGcsStore(GcsStore):
    page_size = 7


def refusal(status: int, reason: str) -> Answer:
    return status, JSON, json.dumps({"error": {"code": status, "message": reason}}).encode()


def is_write(request: Request) -> bool:
    return request[0] in ("POST", "PUT", "PATCH", "DELETE")


class TestGcsStore(StoreContract):
    @pytest.fixture(autouse=True)
    def place(self, server: gcs.Gcs, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.address)
        self.server, self.proxy = server, proxy
        self.bucket = server.new_bucket()
        self.object = "teams/blue/fleet.keyset.json"

    def make_store(self) -> Store:
        return PagedGcsStore(f"gs://{self.bucket}/{self.object}", session=Credentials(token=TOKEN))

    def make_neighbour(self) -> Store:
        return PagedGcsStore(f"gs://{self.bucket}/{self.object}2")

    def secrets(self) -> tuple[bytes, ...]:
        return (TOKEN.encode(),)

    def plant(self, body: bytes) -> None:
        self.server.put(self.bucket, self.object, body)

    def plant_stray(self) -> None:
        for name in ("", "README.md", "x/" + "a" * 22 + ".json", "a" * 22 + ".json.tmp", "a" * 23 + ".json"):
            self.server.put(self.bucket, f"{self.object}.reports/{name}", b"stray")

    @contextmanager
    def _faulty(self, store: Store, fault: Callable[[Request, Callable[[], Answer]], Answer | None]) -> Iterator[Store]:
        with self.proxy.faulty(fault):
            yield store

    def denied(self, store: Store):
        return self._faulty(store, lambda request, forward: refusal(403, "storage.objects.get denied"))

    def read_only(self, store: Store):
        return self._faulty(
            store, lambda request, forward: refusal(403, "create denied") if is_write(request) else forward()
        )

    def throttled(self, store: Store):
        return self._faulty(store, lambda request, forward: refusal(429, "rate limit exceeded"))

    def unreachable(self, store: Store):
        return self._faulty(store, lambda request, forward: None)

    def garbled(self, store: Store):
        return self._faulty(store, lambda request, forward: (200, JSON, b'{"kind": "nonsense"'))

    def slow(self, store: Store, seconds: float):
        def fault(request: Request, forward: Callable[[], Answer]) -> Answer:
            time.sleep(seconds)
            return refusal(503, "late")

        return self._faulty(store, fault)

    def reply_lost(self, store: Store):
        lost = []

        def fault(request: Request, forward: Callable[[], Answer]) -> Answer | None:
            answer = forward()
            if is_write(request) and not lost:
                lost.append(request)
                return None
            return answer

        return self._faulty(store, fault)

    def reply_lost_and_overtaken(self, store: Store, body: bytes):
        lost = []

        def fault(request: Request, forward: Callable[[], Answer]) -> Answer | None:
            answer = forward()
            if is_write(request) and not lost:
                lost.append(request)
                self.server.put(self.bucket, self.object, body)
                return None
            return answer

        return self._faulty(store, fault)

    def listing_breaks(self, store: Store):
        def fault(request: Request, forward: Callable[[], Answer]) -> Answer | None:
            return refusal(500, "backend error") if "pageToken=" in request[1] else forward()

        return self._faulty(store, fault)

    def stale(self, store: Store):
        return self._faulty(store, lambda request, forward: forward())  # reads of Cloud Storage are never stale
