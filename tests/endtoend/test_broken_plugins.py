"""One broken plugin never breaks the command: only its own scheme is out of order, and that is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.conftest import Shell
from endtoend.brokenplugins import SOURCES, install

from mcpkeys import registry


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path, looked at anew."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    registry._points.cache_clear()
    yield folder
    registry._points.cache_clear()


def test_every_command_works_beside_every_broken_plugin(shell: Shell, site: Path) -> None:
    for kind in SOURCES:
        install(site, kind)
    shell.init()
    assert shell.json("status")["exit"] == 0
    assert shell.json("rotate", "--phase", "1", "--expect", "0", "--yes")["exit"] == 0
    assert shell.json("verify")["exit"] == 0


@pytest.mark.parametrize("kind", sorted(SOURCES))
def test_a_broken_plugin_is_told_where_its_own_scheme_is_used(shell: Shell, site: Path, kind: str) -> None:
    scheme = install(site, kind)
    shell.init()
    for arguments in (
        ("init", "other", "--keyset", str(shell.folder / "other.json"), "--kek", f"{scheme}://x"),
        ("init", "other", "--keyset", f"{scheme}://x", "--kek", f"local://{shell.kek}"),
        ("status", "--kek", f"{scheme}://x"),
    ):
        answer = shell.json(*arguments)
        assert answer["exit"] == 2, answer
        error = answer["error"]
        assert error["code"] == "plugin-broken", error
        assert scheme in error["message"]
        assert error["why"]
        assert "upgrade or uninstall" in error["next"]
    assert not (shell.folder / "other.json").exists()
    assert shell.json("status")["exit"] == 0


def test_two_plugins_for_one_scheme_are_refused_by_name(shell: Shell, site: Path) -> None:
    scheme = install(site, "unnamed")
    twin = site / "mcpkeys_twin-1.0.dist-info"
    twin.mkdir()
    (twin / "METADATA").write_text("Metadata-Version: 2.1\nName: mcpkeys-twin\nVersion: 1.0\n")
    (twin / "entry_points.txt").write_text(f"[mcpkeys.kms]\n{scheme} = mcpkeys_twin:Other\n")
    shell.init()
    assert shell.json("status")["exit"] == 0, "other schemes are not affected"
    answer = shell.json("status", "--kek", f"{scheme}://x")
    assert (answer["exit"], answer["error"]["code"]) == (2, "plugin-duplicate")
    assert "mcpkeys_twin:Other" in answer["error"]["message"]
