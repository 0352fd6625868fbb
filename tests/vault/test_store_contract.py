"""The store contract on a real OpenBao's KV v2."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from servers.fault_proxy import Answer, FaultProxy, Request
from servers.openbao import Bao

from mcpkeys.store import Store
from mcpkeys.testing import StoreContract
from mcpkeys_vault.document import pack
from mcpkeys_vault.store import VaultKvStore


class TestVaultKvStore(StoreContract):
    @pytest.fixture(autouse=True)
    def server(self, at_proxy: FaultProxy, bao: Bao, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proxy, self.bao, self.env = at_proxy, bao, monkeypatch
        self.path = f"mcpkeys/{secrets.token_hex(6)}/fleet"

    def make_store(self) -> Store:
        return VaultKvStore(f"vaultkv://secret/{self.path}")

    def make_neighbour(self) -> Store:
        return VaultKvStore(f"vaultkv://secret/{self.path}2")

    def secrets(self) -> tuple[bytes, ...]:
        return (self.bao.token.encode(),)

    def plant(self, body: bytes) -> None:
        self.bao.api("POST", f"secret/data/{self.path}", {"data": pack(body)})

    def plant_stray(self) -> None:
        for name in ("notes", "x/y", ".hidden", "a" * 23):
            self.bao.api("POST", f"secret/data/{self.path}.reports/{name}", {"data": {"x": "y"}})

    @contextmanager
    def _as(self, policy: str) -> Iterator[Store]:
        self.env.setenv("VAULT_TOKEN", self.bao.token_for(policy))
        yield self.make_store()
        self.env.setenv("VAULT_TOKEN", self.bao.token)

    @contextmanager
    def denied(self, store: Store) -> Iterator[Store]:
        with self._as('path "secret/data/elsewhere" { capabilities = ["read"] }') as other:
            yield other

    @contextmanager
    def read_only(self, store: Store) -> Iterator[Store]:
        rules = f"""
            path "secret/data/{self.path}" {{ capabilities = ["read"] }}
            path "secret/data/{self.path}.reports/*" {{ capabilities = ["read"] }}
            path "secret/metadata/{self.path}.reports/*" {{ capabilities = ["list"] }}
        """
        with self._as(rules) as other:
            yield other

    @contextmanager
    def unreachable(self, store: Store) -> Iterator[Store]:
        with self.proxy.faulty(lambda request, forward: None):
            yield store

    @contextmanager
    def throttled(self, store: Store) -> Iterator[Store]:
        with self.proxy.answering(429, b'{"errors": ["request path: rate limit quota exceeded"]}'):
            yield store

    @contextmanager
    def slow(self, store: Store, seconds: float) -> Iterator[Store]:
        with self.proxy.late(seconds):
            yield store

    @contextmanager
    def garbled(self, store: Store) -> Iterator[Store]:
        bodies = [b"<html>", b'{"data": []}', b'{"data": {"data": {"document": "x"}}}', b"{}"]
        with self.proxy.answering(200, bodies[secrets.randbelow(len(bodies))], under="/data/"):
            yield store

    @contextmanager
    def reply_lost(self, store: Store, then: Callable[[], None] = lambda: None) -> Iterator[Store]:
        lost: list[str] = []

        def fault(request: Request, forward: Callable[[], Answer]) -> Answer | None:
            if request[0] == "POST" and "/data/" in request[1] and not lost:
                lost.append(request[1])
                status = forward()[0]
                assert status == 200
                then()
                return None
            return forward()

        with self.proxy.faulty(fault):
            yield store
        assert lost

    @contextmanager
    def reply_lost_and_overtaken(self, store: Store, body: bytes) -> Iterator[Store]:
        # KV v2 keeps our version readable below theirs, so that the plugin would rightly claim success; here it is
        # destroyed too, as a secret with max_versions=1 would have it.
        def overtake() -> None:
            self.plant(body)
            self.bao.api("PUT", f"secret/destroy/{self.path}", {"versions": [2]})

        with self.reply_lost(store, overtake):
            yield store

    @contextmanager
    def listing_breaks(self, store: Store) -> Iterator[Store]:
        read: list[str] = []

        def fault(request: Request, forward: Callable[[], Answer]) -> Answer | None:
            if request[0] == "GET" and ".reports/" in request[1]:
                read.append(request[1])
                if len(read) > self.report_count // 2:
                    return None
            return forward()

        with self.proxy.faulty(fault):
            yield store

    @contextmanager
    def stale(self, store: Store) -> Iterator[Store]:
        old = self.bao.api("GET", f"secret/data/{self.path}")
        del old["_status"]

        def fault(request: Request, forward: Callable[[], Answer]) -> Answer | None:
            asked = {name.lower(): value for name, value in request[2].items()}
            if request[0] == "GET" and "/data/" in request[1] and asked.get("x-vault-forward") != "active-node":
                return 200, {"Content-Type": "application/json"}, json.dumps(old).encode()
            return forward()

        with self.proxy.faulty(fault):
            yield store
