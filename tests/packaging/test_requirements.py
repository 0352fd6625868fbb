"""The pinned requirement files: whole, by hash, for every supported Python, and telling nobody where they came from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "requirements").glob("*.txt"))
# Installed into environments of their own, where other versions do no harm.
OWN_ENVIRONMENT = {"lock.txt", "localstack.txt"}
PYTHONS = ("3.11", "3.12", "3.13")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def pins(path: Path) -> list[tuple[Requirement, list[str]]]:
    """Each requirement of a compiled file with its hashes."""
    text = re.sub(r"\\\n\s*", " ", re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.M))
    lines = [line for line in text.splitlines() if line.strip()]
    return [(Requirement(line.split(" --hash=")[0]), HASH.findall(line)) for line in lines]


def pinned(path: Path, python: str) -> dict[str, Requirement]:
    """Name -> what pip installs from this file on Linux under that Python."""
    environment = {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": "linux"}
    found: dict[str, Requirement] = {}
    for requirement, _ in pins(path):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            name = canonicalize_name(requirement.name)
            assert name not in found, f"{path.name} pins {name} twice for Python {python}"
            found[name] = requirement
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_line_is_one_exact_version_with_its_hashes(path: Path) -> None:
    found = pins(path)
    assert found
    for requirement, hashes in found:
        assert [spec.operator for spec in requirement.specifier] == ["=="], requirement
        assert hashes, requirement
        assert requirement.url is None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_file_says_where_packages_come_from(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*-", re.sub(r"^\s+--hash=.*$", "", text, flags=re.M), flags=re.M)


@pytest.mark.parametrize("python", PYTHONS)
def test_the_files_agree_so_that_all_fit_into_one_environment(python: str) -> None:
    versions: dict[str, str] = {}
    for path in FILES:
        if path.name not in OWN_ENVIRONMENT:
            for name, requirement in pinned(path, python).items():
                assert versions.setdefault(name, str(requirement.specifier)) == str(requirement.specifier), (path, name)


@pytest.mark.parametrize("python", PYTHONS)
def test_what_pyproject_asks_for_is_pinned_within_its_ranges(project: dict[str, Any], python: str) -> None:
    base = pinned(ROOT / "requirements/base.txt", python)
    everything = base | pinned(ROOT / "requirements/dev.txt", python)
    for line in [*project["project"]["dependencies"], *project["build-system"]["requires"]]:
        asked = Requirement(line)
        (spec,) = base[canonicalize_name(asked.name)].specifier
        assert asked.specifier.contains(spec.version), line
    for extra, lines in project["project"]["optional-dependencies"].items():
        for line in lines:
            asked = Requirement(line)
            if extra != "all":
                (spec,) = everything[canonicalize_name(asked.name)].specifier
                assert asked.specifier.contains(spec.version), line


def test_each_runtime_dependency_has_its_reason_on_record(project: dict[str, Any]) -> None:
    adrs = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs/adr").glob("*.md"))
    lines = [
        *project["project"]["dependencies"],
        *(x for xs in project["project"]["optional-dependencies"].values() for x in xs),
    ]
    for name in {Requirement(line).name for line in lines} - {"mcpkeys"}:
        assert f"`{name}`" in adrs, f"no page in docs/adr/ gives the reason for {name}"
