"""What people download holds what the checkout holds, and works away from it."""

from __future__ import annotations

import configparser
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOTS = (
    "src/mcpkeys",
    "plugins/mcpkeys_local",
    "plugins/mcpkeys_aws",
    "plugins/mcpkeys_gcp",
    "plugins/mcpkeys_vault",
    "cli/mcpkeys_cli",
)
PACKAGES = tuple(Path(root).name for root in ROOTS)


def test_every_package_of_the_checkout_is_a_root_of_the_build(project: dict[str, Any]) -> None:
    on_disk = {
        str(init.parent.relative_to(ROOT))
        for home in ("src", "plugins", "cli")
        for init in ROOT.glob(f"{home}/*/__init__.py")
    }
    assert on_disk == set(ROOTS)
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == set(ROOTS)
    assert set(project["tool"]["mypy"]["packages"]) == set(PACKAGES)


@pytest.mark.parametrize("root", ROOTS)
def test_the_wheel_holds_every_file_of_a_root_and_says_it_is_typed(distributions: Any, root: str) -> None:
    names = set(zipfile.ZipFile(distributions.wheel).namelist())
    top = Path(root)
    files = {
        f"{top.name}/{path.relative_to(ROOT / top)}"
        for path in (ROOT / top).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files <= names
    assert f"{top.name}/py.typed" in names


def test_the_wheel_holds_nothing_else(distributions: Any, project: dict[str, Any]) -> None:
    info = f"mcpkeys-{project['project']['version']}.dist-info"
    tops = {name.split("/", 1)[0] for name in zipfile.ZipFile(distributions.wheel).namelist()}
    assert tops == {*PACKAGES, info}


def test_the_wheel_carries_the_entry_points_of_pyproject(distributions: Any, project: dict[str, Any]) -> None:
    version = project["project"]["version"]
    wheel = zipfile.ZipFile(distributions.wheel)
    declared = configparser.ConfigParser(delimiters=("=",))
    declared.optionxform = str  # type: ignore[assignment,method-assign]
    declared.read_string(wheel.read(f"mcpkeys-{version}.dist-info/entry_points.txt").decode())
    assert dict(declared["console_scripts"]) == project["project"]["scripts"]
    assert dict(declared["mcpkeys.kms"]) == project["project"]["entry-points"]["mcpkeys.kms"]
    assert dict(declared["mcpkeys.stores"]) == project["project"]["entry-points"]["mcpkeys.stores"]


def test_the_licence_travels_with_both(distributions: Any, project: dict[str, Any]) -> None:
    version = project["project"]["version"]
    assert f"mcpkeys-{version}.dist-info/licenses/LICENSE" in zipfile.ZipFile(distributions.wheel).namelist()
    with tarfile.open(distributions.sdist) as sdist:
        assert f"mcpkeys-{version}/LICENSE" in sdist.getnames()


def test_the_sdist_can_be_tested_and_holds_no_rubbish(distributions: Any, project: dict[str, Any]) -> None:
    prefix = f"mcpkeys-{project['project']['version']}/"
    with tarfile.open(distributions.sdist) as sdist:
        names = {name.removeprefix(prefix) for name in sdist.getnames()}
    assert {"Makefile", "requirements/base.txt", "requirements/dev.txt", "tests/packaging/conftest.py"} <= names
    rubbish = (".venv", ".cache", ".git/", "dist/", "site/", ".hypothesis", ".mypy_cache", ".ruff_cache")
    assert not [name for name in names if name.startswith(rubbish) or "__pycache__" in name]


def test_the_installed_wheel_is_what_runs(installed: Any, tmp_path: Path) -> None:
    code = f"import importlib, json; print(json.dumps([importlib.import_module(n).__file__ for n in {list(PACKAGES)}]))"
    done = installed.run(installed.python, "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    places = json.loads(done.stdout)
    assert len(places) == len(PACKAGES)
    assert all(Path(place).is_relative_to(installed.python.parents[1]) for place in places)


@pytest.mark.skipif(not (ROOT / "cli/mcpkeys_cli/main.py").exists(), reason="the command is not written yet")
def test_the_installed_command_answers_help_and_version(
    installed: Any, tmp_path: Path, project: dict[str, Any]
) -> None:
    done = installed.run(installed.command, "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rotate" in done.stdout
    assert "inspect" in done.stdout
    assert done.stderr == ""
    done = installed.run(installed.command, "--version", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert project["project"]["version"] in done.stdout


@pytest.mark.parametrize("group", ["mcpkeys.kms", "mcpkeys.stores"])
def test_every_entry_point_names_something_that_can_be_called(
    installed: Any, tmp_path: Path, group: str, project: dict[str, Any]
) -> None:
    points = {
        scheme: target
        for scheme, target in project["project"]["entry-points"][group].items()
        if any(ROOT.glob(f"plugins/{target.split(':')[0].replace('.', '/')}.py"))
    }
    code = (
        "import json, sys; from importlib.metadata import entry_points\n"
        f"points = [point for point in entry_points(group={group!r}) if point.name in sys.argv[1:]]\n"
        "print(json.dumps({point.name: callable(point.load()) for point in points}))"
    )
    done = installed.run(installed.python, "-c", code, *points, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == dict.fromkeys(points, True)
