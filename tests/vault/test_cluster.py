"""A two-node OpenBao cluster whose standby answers reads: what is read there, and when it lags."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.openbao import FileServer, cluster

from mcpkeys.errors import NotFound
from mcpkeys.kms import WrapContext
from mcpkeys_vault.kms import VaultKms
from mcpkeys_vault.store import VaultKvStore

pytestmark = pytest.mark.slow
CONTEXT = WrapContext("seal", "fleet", "AbCdEfGhIjKl")


def soon() -> float:
    return time.monotonic() + 15


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FileServer, FileServer]]:
    with cluster(tmp_path_factory.mktemp("raft")) as pair:
        yield pair


def at(node: FileServer, env: pytest.MonkeyPatch) -> None:
    env.setenv("VAULT_ADDR", node.address)
    env.setenv("VAULT_TOKEN", node.token)


def test_a_fresh_read_at_a_lagging_standby_sees_every_answered_write(
    nodes: tuple[FileServer, FileServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    active, standby = nodes
    at(active, monkeypatch)
    writer = VaultKvStore("vaultkv://secret/fleet")
    at(standby, monkeypatch)
    reader = VaultKvStore("vaultkv://secret/fleet")
    version = None
    stale = 0
    for number in range(150):
        version = writer.replace(b"%d" % number, version, deadline=soon())
        if number % 3 == 0:
            try:
                found = reader.read(None, fresh=False, deadline=soon())
                stale += found is None or found.version != version
            except NotFound:
                stale += 1
        found = reader.read(None, fresh=True, deadline=soon())
        assert found is not None
        assert found.version == version
    print(f"{stale} of 50 reads that were not fresh were stale")


def test_a_process_reads_its_own_writes_at_a_standby(
    nodes: tuple[FileServer, FileServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    at(nodes[1], monkeypatch)
    store = VaultKvStore("vaultkv://secret/own")
    version = None
    for number in range(60):
        version = store.replace(b"%d" % number, version, deadline=soon())
        found = store.read(None, fresh=False, deadline=soon())
        assert found is not None
        assert found.version == version


def test_a_login_at_a_standby_is_usable_at_once(
    nodes: tuple[FileServer, FileServer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    active, standby = nodes
    key = active.transit_key()
    at(active, monkeypatch)
    secret = os.urandom(32)
    wrap = VaultKms(f"hashivault://{key}").wrap(secret, CONTEXT, deadline=soon())
    active.api("POST", "sys/auth/approle", {"type": "approle"})
    active.api("POST", "sys/policies/acl/fleet", {"policy": 'path "transit/*" { capabilities = ["update"] }'})
    active.api("POST", "auth/approle/role/fleet", {"token_policies": ["fleet"]})
    monkeypatch.delenv("VAULT_TOKEN")
    monkeypatch.setenv("VAULT_ADDR", standby.address)
    monkeypatch.setenv("MCPKEYS_VAULT_AUTH", "approle")
    monkeypatch.setenv("MCPKEYS_VAULT_ROLE_ID", active.api("GET", "auth/approle/role/fleet/role-id")["data"]["role_id"])
    paths = [tmp_path / f"secret-id-{number}" for number in range(15)]
    for path in paths:
        path.write_text(active.api("POST", "auth/approle/role/fleet/secret-id", {})["data"]["secret_id"])
    time.sleep(1)  # other people's writes reach a standby when they do; what we write ourselves must not wait
    for path in paths:
        monkeypatch.setenv("MCPKEYS_VAULT_SECRET_ID_FILE", str(path))
        assert VaultKms(f"hashivault://{key}").unwrap(wrap, CONTEXT, deadline=soon()) == secret
