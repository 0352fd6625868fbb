"""Two clouds side by side: AWS (moto) and a real OpenBao, one environment that leads to both."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from servers.moto import Moto, moto  # noqa: F401 - a fixture
from servers.openbao import Bao, dev_server

ROOT = "root-" + os.urandom(12).hex()


@pytest.fixture(scope="session")
def openbao() -> Iterator[Bao]:
    with dev_server(ROOT) as server:
        yield server


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """Nothing of this machine's own settings; nothing leaves it."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "VAULT_", "BAO_", "MCPKEYS_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def aws(moto: Moto, clean: None, monkeypatch: pytest.MonkeyPatch) -> Moto:  # noqa: F811
    for name, value in moto.environ.items():
        monkeypatch.setenv(name, value)
    return moto


@pytest.fixture
def bao(openbao: Bao, clean: None, monkeypatch: pytest.MonkeyPatch) -> Bao:
    """As root."""
    for name, value in openbao.environment().items():
        monkeypatch.setenv(name, value)
    return openbao
