"""One OpenBao through a bad day: sealed, unsealed, killed, started again, its key rotated, its token expired."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from servers.openbao import FileServer, file_server

from mcpkeys.errors import KekUnusable, KmsDenied, KmsUnreachable, StoreUnreachable
from mcpkeys.kms import WrapContext
from mcpkeys_vault.kms import VaultKms
from mcpkeys_vault.policy import vault_policy
from mcpkeys_vault.store import VaultKvStore

pytestmark = pytest.mark.slow
CONTEXT = WrapContext("seal", "fleet", "AbCdEfGhIjKl")


def soon() -> float:
    return time.monotonic() + 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    with file_server(tmp_path_factory.mktemp("bao")) as bao:
        yield bao


def test_the_same_objects_work_again_after_each_trouble(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    name = server.transit_key()
    kms, store, key = VaultKms(f"hashivault://{name}"), VaultKvStore("vaultkv://secret/fleet"), os.urandom(32)
    wrap = kms.wrap(key, CONTEXT, deadline=soon())
    version = store.replace(b"{}", None, deadline=soon())

    server.seal()
    with pytest.raises(KmsUnreachable) as sealed:
        kms.unwrap(wrap, CONTEXT, deadline=soon())
    assert sealed.value.code == "vault-sealed"
    with pytest.raises(StoreUnreachable) as sealed_store:
        store.read(None, fresh=False, deadline=soon())
    assert sealed_store.value.code == "vault-sealed"
    server.unseal()
    assert kms.unwrap(wrap, CONTEXT, deadline=soon()) == key

    server.stop()
    with pytest.raises(KmsUnreachable) as gone:
        kms.unwrap(wrap, CONTEXT, deadline=soon())
    assert gone.value.code == "kms-unreachable"
    server.start()
    with pytest.raises(KmsUnreachable) as starting:
        kms.unwrap(wrap, CONTEXT, deadline=soon())
    assert starting.value.code == "vault-sealed"
    server.unseal()
    assert kms.unwrap(wrap, CONTEXT, deadline=soon()) == key
    assert store.read(version, fresh=True, deadline=soon()) is None

    server.api("POST", f"transit/keys/{name}/rotate", {})
    assert kms.unwrap(wrap, CONTEXT, deadline=soon()) == key
    newer = kms.wrap(key, CONTEXT, deadline=soon())
    server.api("POST", f"transit/keys/{name}/config", {"min_decryption_version": 2})
    with pytest.raises(KekUnusable, match="version 1"):
        kms.unwrap(wrap, CONTEXT, deadline=soon())
    assert kms.unwrap(newer, CONTEXT, deadline=soon()) == key


def test_a_token_that_expires_by_the_clock_is_told_as_expired(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    uri = f"hashivault://{server.transit_key()}"
    wrap = VaultKms(uri).wrap(os.urandom(32), CONTEXT, deadline=soon())
    policy = vault_policy("server", "fleet", [uri], "-")
    monkeypatch.setenv("VAULT_TOKEN", server.token_for(policy, ttl="2s", renewable=False))
    kms = VaultKms(uri)
    kms.unwrap(wrap, CONTEXT, deadline=soon())
    end = time.monotonic() + 10
    while True:
        try:
            kms.unwrap(wrap, CONTEXT, deadline=soon())
        except KmsDenied as error:
            assert error.code == "credentials-expired"  # noqa: PT017
            break
        assert time.monotonic() < end, "it never expired"
        time.sleep(0.1)


def test_a_short_lived_renewable_token_is_kept_alive_by_use(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    uri = f"hashivault://{server.transit_key()}"
    key = os.urandom(32)
    wrap = VaultKms(uri).wrap(key, CONTEXT, deadline=soon())
    policy = vault_policy("server", "fleet", [uri], "-")
    monkeypatch.setenv("VAULT_TOKEN", server.token_for(policy, ttl="3s", renewable=True))
    kms = VaultKms(uri)
    end = time.monotonic() + 7
    while time.monotonic() < end:
        assert kms.unwrap(wrap, CONTEXT, deadline=soon()) == key
        time.sleep(0.2)
