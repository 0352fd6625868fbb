from __future__ import annotations

import os
from pathlib import Path

import pytest
from servers.localkeyset import LocalKeyset, local_keyset


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MCPKEYS_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def keyset(tmp_path: Path) -> LocalKeyset:
    return local_keyset(tmp_path)
