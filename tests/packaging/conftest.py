"""The sdist and the wheel as `make package` builds them, and a virtual environment that holds the wheel alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Distributions:
    sdist: Path
    wheel: Path


@dataclass(frozen=True)
class Installed:
    """The wheel in a virtual environment of its own. Other distributions are borrowed from the running interpreter."""

    python: Path

    @property
    def command(self) -> Path:
        return self.python.with_name("mcpkeys")

    def run(self, *args: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MCPKEYS_"))}
        return subprocess.run(
            [str(arg) for arg in args],
            cwd=cwd,
            env=clean | env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture(scope="session")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Built as a user would: the wheel from the sdist, so that what the sdist lacks is missing from the wheel."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return Distributions(sdist, wheel)


@pytest.fixture(scope="session")
def installed(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    home = tmp_path_factory.mktemp("fresh")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(distributions.wheel)], check=True, timeout=60, capture_output=True)
    (site,) = home.glob("lib/python*/site-packages")
    # A folder that a .pth names joins the path, but the .pth files inside it are not read: the editable install of
    # this checkout, which is one, stays out.
    borrowed = [entry for entry in sys.path if Path(entry).name == "site-packages"]
    (site / "borrowed.pth").write_text("".join(f"{entry}\n" for entry in borrowed), encoding="utf-8")
    return Installed(python)
