"""With Python and make and nothing else, the right interpreter is found, or the reader is told what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "find-python"
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def find(tmp_path: Path, *wanted: str, path: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The script with that PATH and an empty HOME."""
    shell = shutil.which("sh")
    assert shell is not None
    command = [shell, str(SCRIPT), *wanted]
    env = {"PATH": path, "HOME": str(tmp_path)} | env
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def stand_in(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """A folder with this interpreter under its versioned name. Not a link: Python finds its home by where it lies."""
    stand_in(tmp_path / "real", f"python{HERE}", f'exec "{getattr(sys, "_base_executable", sys.executable)}" "$@"')
    return tmp_path / "real"


def test_an_interpreter_along_path_is_found_behind_names_that_do_not_answer(tmp_path: Path, real: Path) -> None:
    stand_in(tmp_path / "shims", f"python{HERE}", "echo 'command not found' >&2; exit 127")
    stand_in(tmp_path / "shims", "python3", "exit 127")
    done = find(tmp_path, path=f"{tmp_path / 'shims'}{os.pathsep}{real}")
    assert done.stdout.strip() == str(real / f"python{HERE}"), done.stderr


def test_one_under_pyenv_is_found_without_its_shims(tmp_path: Path, real: Path) -> None:
    home = tmp_path / "pyenv"
    (home / "versions" / f"{HERE}.7").mkdir(parents=True)
    real.rename(home / "versions" / f"{HERE}.7" / "bin")
    done = find(tmp_path, HERE, path=str(tmp_path), PYENV_ROOT=str(home))
    assert done.stdout.strip() == str(home / "versions" / f"{HERE}.7" / "bin" / f"python{HERE}")


def test_another_version_than_the_one_wanted_is_not_taken(tmp_path: Path, real: Path) -> None:
    other = "3.12" if HERE != "3.12" else "3.13"
    stand_in(real, f"python{other}", f'exec "{sys.executable}" "$@"')
    done = find(tmp_path, other, path=str(real))
    assert (done.returncode, done.stdout) == (1, "")


def test_with_none_the_reader_is_told_what_to_install(tmp_path: Path) -> None:
    done = find(tmp_path, path=str(tmp_path))
    assert done.returncode == 1
    assert "No Python 3.11, 3.12 or 3.13" in done.stderr
    assert "Next: install one" in done.stderr


def test_a_named_one_that_does_not_suit_is_refused_and_not_replaced(tmp_path: Path, real: Path) -> None:
    stand_in(real, "python2", "exit 1")
    done = find(tmp_path, path=str(real), PYTHON="python2")
    assert (done.returncode, done.stdout) == (1, "")
    assert "PYTHON=python2 is no Python 3.11 to 3.13" in done.stderr
