from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from servers.fault_proxy import FaultProxy
from servers.openbao import Bao, dev_server

ROOT = "root-" + os.urandom(12).hex()


@pytest.fixture(scope="session")
def bao() -> Iterator[Bao]:
    with dev_server(ROOT) as server:
        yield server


@pytest.fixture(scope="session")
def session_proxy(bao: Bao) -> Iterator[FaultProxy]:
    proxy = FaultProxy(f"127.0.0.1:{bao.port}")
    yield proxy
    proxy.close()


@pytest.fixture
def proxy(session_proxy: FaultProxy) -> Iterator[FaultProxy]:
    session_proxy.seen.clear()
    yield session_proxy
    session_proxy.fault = None


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    for name in list(os.environ):
        if name.startswith(("VAULT_", "BAO_", "MCPKEYS_VAULT_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def at_bao(bao: Bao, monkeypatch: pytest.MonkeyPatch) -> Bao:
    """The environment points at the server, as root."""
    for name, value in bao.environment().items():
        monkeypatch.setenv(name, value)
    return bao


@pytest.fixture
def at_proxy(proxy: FaultProxy, bao: Bao, monkeypatch: pytest.MonkeyPatch) -> FaultProxy:
    """The environment points at the proxy in front of the server, as root."""
    monkeypatch.setenv("VAULT_ADDR", proxy.address)
    monkeypatch.setenv("VAULT_TOKEN", bao.token)
    return proxy
