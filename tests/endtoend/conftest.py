"""The commands and the codec against test servers of each cloud, all on loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.conftest import Shell
from endtoend.wire import BaoWire
from servers.moto import aws, faulty, moto
from servers.openbao import Bao, dev_server

from mcpkeys import keks, patience

__all__ = ["aws", "faulty", "moto"]
FOREIGN = ("AWS_", "VAULT_", "BAO_", "MCPKEYS_", "GOOGLE_", "STORAGE_EMULATOR_HOST")


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nonexistent/gcloud")
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def shell(_loopback_only: None, tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    shell.environ = {}  # the test's own environment as it is when a command runs
    return shell


@pytest.fixture(scope="session")
def bao() -> Iterator[Bao]:
    with dev_server("root-" + os.urandom(12).hex()) as server:
        yield server


@pytest.fixture(scope="session")
def bao_wire(bao: Bao) -> Iterator[BaoWire]:
    wire = BaoWire(bao.port)
    yield wire
    wire.proxy.close()


@pytest.fixture
def at_bao(bao: Bao, bao_wire: BaoWire, monkeypatch: pytest.MonkeyPatch) -> Iterator[BaoWire]:
    """The environment points at a recording proxy in front of the server, as root."""
    monkeypatch.setenv("VAULT_ADDR", bao_wire.proxy.address)
    monkeypatch.setenv("VAULT_TOKEN", bao.token)
    bao_wire.reset()
    yield bao_wire
    bao_wire.reset()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> float:
    """The budget of all unwraps shortened from 10 seconds to this, that of a call from 2 to a half of it."""
    seconds = 0.8
    monkeypatch.setitem(patience.Patience.__init__.__kwdefaults__, "total", seconds)
    for module in (patience, keks):
        monkeypatch.setattr(module, "CALL_SECONDS", seconds / 2)
    return seconds
