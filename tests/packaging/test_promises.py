"""What was promised to those who build on mcpkeys is kept, or has a new version and with it a warning."""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("promises", ROOT / "scripts" / "promises.py")
assert SPEC is not None
assert SPEC.loader is not None
promises = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(promises)


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return json.loads(promises.RECORD.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def current() -> dict[str, Any]:
    return promises.surface()


def test_every_promise_is_kept_or_has_a_new_version(recorded: dict[str, Any], current: dict[str, Any]) -> None:
    problems = promises.broken({name: section for name, section in recorded.items() if name != "token"}, current)
    assert not problems, "\n".join([*problems, "scripts/promises.py says what to do"])


def test_tokens_sealed_by_earlier_releases_open(recorded: dict[str, Any]) -> None:
    assert recorded["token"]["version"] == "mk1"
    assert recorded["token"]["members"]
    for sealed, payload in recorded["token"]["members"].items():
        assert promises.opens(sealed) == payload


def test_a_change_without_a_version_is_noticed_and_one_with_it_is_not(recorded: dict[str, Any]) -> None:
    kept = {name: section for name, section in recorded.items() if name != "token"}
    assert promises.broken(kept, kept) == []
    for name, section in kept.items():
        changed = copy.deepcopy(kept)
        member = next(iter(section["members"]))
        del changed[name]["members"][member]
        assert promises.broken(kept, changed) == [f"{name} {section['version']}: {member} is gone"]
        changed[name]["version"] = "another"
        assert promises.broken(kept, changed) == []
    changed = copy.deepcopy(kept)
    changed["errors"]["members"]["NotYet"] = "not-yet 5"
    assert promises.broken(kept, changed) == ["errors 1: NotYet was not-yet 6, is not-yet 5"]


def test_what_is_new_is_told_from_what_is_broken(recorded: dict[str, Any]) -> None:
    kept = {name: section for name, section in recorded.items() if name != "token"}
    more = copy.deepcopy(kept)
    more["errors"]["members"]["Tired"] = "tired 1"
    assert promises.broken(kept, more) == []
    assert promises.unrecorded(kept, more) == ["errors: Tired"]
