"""The recipes of docs/how-to/serve.md run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from servers.localkeyset import LocalKeyset

from mcpkeys.settings_file import read_config
from mcpkeys.settings_values import PARSERS

PAGE = (Path(__file__).parents[2] / "docs/how-to/serve.md").read_text()
RECIPES = dict(re.findall(r'```python title="(\w+)"\n(.*?)```', PAGE, re.DOTALL))


@pytest.fixture
def run(keyset: LocalKeyset, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in keyset.environ.items():
        monkeypatch.setenv(name, value)

    def recipe(title: str) -> dict[str, Any]:
        names: dict[str, Any] = {"KEYSET": str(keyset.path), "KEK": keyset.kek, "SIGNER": keyset.signer}
        names["__name__"] = f"recipe_{title}"
        exec(compile(RECIPES[title], title, "exec"), names)  # noqa: S102 (our own page)
        return names

    return recipe


def test_every_recipe_is_tested() -> None:
    assert set(RECIPES) == {"settings", "mcpserver", "lowlevel", "several", "frozen"}


@pytest.mark.parametrize("title", ["settings", "frozen"])
def test_a_policy_alone(run: Any, title: str) -> None:
    with run(title)["security"].codec as codec:
        assert codec.ready()


def test_the_lifespan_closes_and_the_route_tells(run: Any) -> None:
    from starlette.testclient import TestClient

    names = run("mcpserver")
    codec = names["security"].codec
    with TestClient(names["app"], base_url="http://127.0.0.1:1") as client:
        assert client.get("/ready").status_code == 200
        assert client.get("/ready").json() == {"ready": True}
        codec.close()
        assert client.get("/ready").status_code == 503
    assert not codec.ready()


def test_the_lifespan_alone_closes(run: Any, keyset: LocalKeyset) -> None:
    from starlette.testclient import TestClient

    names = run("mcpserver")
    with TestClient(names["app"], base_url="http://127.0.0.1:1"):
        assert names["security"].codec.ready()
    assert not names["security"].codec.ready()
    (report,) = keyset.reports()
    assert '"farewell"' in report.read_text()


def test_the_low_level_boundary(run: Any) -> None:
    names = run("lowlevel")
    with names["codec"] as codec:
        assert names["server"].middleware[-1] is names["boundary"]
        assert codec.ready()


def test_several_services_accept_each_others_tokens(run: Any) -> None:
    names = run("several")
    boundaries = [
        next(item for item in names[name]._lowlevel_server.middleware if hasattr(item, "_security"))
        for name in ("orders", "refunds")
    ]
    one, other = (boundary._security for boundary in boundaries)
    assert {boundary._audience for boundary in boundaries} == {"acme-orders"}
    with one.codec, other.codec:
        assert other.codec.unseal(one.codec.seal(b"shared")) == b"shared"


def test_the_file_on_the_page_is_right(tmp_path: Path) -> None:
    (page,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "fleet.toml").write_text(page)
    (tmp_path / "fleet.toml").chmod(0o644)
    for field, value in read_config(tmp_path / "fleet.toml").items():
        assert PARSERS[field](value)
