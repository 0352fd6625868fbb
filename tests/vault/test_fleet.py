"""Codecs that serve from Transit and KV while their OpenBao has a bad day: no round refused, each event told once."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from servers.fault_proxy import FaultProxy
from servers.openbao import Bao, file_server

from mcpkeys import EnvelopeCodec
from mcpkeys.authoring import Author
from mcpkeys.errors import McpkeysError
from mcpkeys.keks import Keks
from mcpkeys.loading import Pins
from mcpkeys.registry import open_store
from mcpkeys_vault.policy import vault_policy


def create(bao: Bao, env: pytest.MonkeyPatch, kek: str, keyset: str) -> dict[str, object]:
    """A keyset `fleet`, made as root; returns what servers open it with."""
    env.setenv("VAULT_TOKEN", bao.token)
    author = Author(open_store(keyset), Keks.open([kek]), Pins(None, ()))
    try:
        made, _ = author.create(
            "fleet",
            audience="fleet",
            sign_keks=(kek,),
            now_ms=int(time.time() * 1000),
            ttl_seconds=8,
            skew_seconds=2,
            refresh_seconds=1,
        )
    finally:
        author.close()
    env.delenv("VAULT_TOKEN")
    return {"name": "fleet", "keyset": keyset, "keks": [kek], "signers": [made.signer.public]}


def log_in_by_approle(bao: Bao, env: pytest.MonkeyPatch, tmp_path: Path, policy: str) -> None:
    bao.api("POST", "sys/auth/approle", {"type": "approle"}, ok=False)
    bao.api("POST", "sys/policies/acl/fleet", {"policy": policy})
    bao.api("POST", "auth/approle/role/fleet", {"token_policies": ["fleet"], "token_ttl": "1h"})
    secret_id = tmp_path / "secret-id"
    secret_id.write_text(bao.api("POST", "auth/approle/role/fleet/secret-id", {})["data"]["secret_id"])
    env.setenv("MCPKEYS_VAULT_AUTH", "approle")
    env.setenv("MCPKEYS_VAULT_ROLE_ID", bao.api("GET", "auth/approle/role/fleet/role-id")["data"]["role_id"])
    env.setenv("MCPKEYS_VAULT_SECRET_ID_FILE", str(secret_id))


@contextmanager
def traffic(codecs: list[EnvelopeCodec]) -> Iterator[list[object]]:
    """Rounds minted by one codec and resumed by another, until left; yields what went wrong."""
    stop, wrong, rounds = threading.Event(), [], [0]

    def work() -> None:
        while not stop.is_set():
            payload = os.urandom(64)
            try:
                if random.choice(codecs).unseal(random.choice(codecs).seal(payload)) != payload:
                    wrong.append("another payload")
            except Exception as error:
                wrong.append(error)
            rounds[0] += 1
            time.sleep(0.002)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield wrong
    finally:
        stop.set()
        thread.join(10)
    assert rounds[0] > 100, "no traffic"


def until(what: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.05)


@pytest.mark.slow
def test_no_round_is_refused_through_a_bad_day_and_each_event_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mcpkeys")
    with file_server(tmp_path / "bao") as bao:
        monkeypatch.setenv("VAULT_ADDR", bao.address)
        key = bao.transit_key()
        kek, keyset = f"hashivault://{key}", "vaultkv://secret/mcpkeys/fleet"
        settings = create(bao, monkeypatch, kek, keyset)
        log_in_by_approle(bao, monkeypatch, tmp_path, vault_policy("server", "fleet", [kek], keyset))
        codecs = [EnvelopeCodec.open(**settings) for _ in range(3)]

        def told(event: str) -> int:
            return sum(getattr(record, "event", "") == event for record in caplog.records)

        def refreshed(times: int = 2) -> None:
            before = [codec.status()["refresh"]["successes"] for codec in codecs]
            until(
                lambda: all(
                    c.status()["refresh"]["successes"] >= b + times for c, b in zip(codecs, before, strict=True)
                )
            )

        try:
            with traffic(codecs) as wrong:
                refreshed()
                assert not caplog.records or told("refresh.failed") == 0

                # Every token of the fleet expires at once: one login, one line, no failed refresh.
                for accessor in bao.api("GET", "auth/token/accessors?list=true")["data"]["keys"]:
                    about = bao.api("POST", "auth/token/lookup-accessor", {"accessor": accessor}, ok=False)
                    if about["_status"] == 200 and "fleet" in about["data"]["policies"]:
                        bao.api("POST", "auth/token/revoke-accessor", {"accessor": accessor})
                refreshed()
                assert sum("token refused" in record.getMessage() for record in caplog.records) == 1
                assert told("refresh.failed") == 0

                bao.seal()
                until(lambda: told("refresh.failed") == 3)
                assert {record.code for record in caplog.records if hasattr(record, "code")} == {"vault-sealed"}
                bao.unseal()
                until(lambda: told("refresh.recovered") == 3)
                refreshed()

                caplog.clear()
                bao.stop()
                until(lambda: told("refresh.failed") >= 3)
                bao.start()
                bao.unseal()
                until(lambda: told("refresh.recovered") == 3)
                # Down, then up but sealed: at most one line for each.
                assert told("refresh.failed") <= 6

                caplog.clear()
                bao.api("POST", f"transit/keys/{key}/rotate", {})
                bao.api("POST", f"transit/keys/{key}/config", {"min_decryption_version": 2})
                refreshed()
                assert told("refresh.failed") == 0
                with pytest.raises(McpkeysError) as caught:
                    EnvelopeCodec.open(**settings)
                assert "min_decryption_version" in str(caught.value)
                bao.api("POST", f"transit/keys/{key}/config", {"min_decryption_version": 1})
                EnvelopeCodec.open(**settings).close()
            assert wrong == []
        finally:
            for codec in codecs:
                codec.close()


def test_a_start_costs_live_keys_and_one_unwraps_and_a_token_none(
    at_proxy: FaultProxy, bao: Bao, monkeypatch: pytest.MonkeyPatch
) -> None:
    kek, keyset = f"hashivault://{bao.transit_key()}", f"vaultkv://secret/calls/{os.urandom(5).hex()}"
    settings = create(bao, monkeypatch, kek, keyset)
    monkeypatch.setenv("VAULT_TOKEN", bao.token_for(vault_policy("server", "fleet", [kek], keyset)))
    at_proxy.seen.clear()
    with EnvelopeCodec.open(**settings) as codec:
        calls = [path for _, path in at_proxy.seen if "/transit/" in path]
        assert len(calls) == 2, "one live key and the report key"
        assert all("/decrypt/" in path for path in calls)
        for _ in range(200):
            codec.unseal(codec.seal(os.urandom(100)))
        assert sum("/transit/" in path for _, path in at_proxy.seen) == 2
