"""The types that the wheel ships say what a caller may do, and what not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
def test_a_type_checker_understands_the_installed_wheel(installed: Any, tmp_path: Path) -> None:
    usage = tmp_path / "typed_usage.py"
    usage.write_text((Path(__file__).parent / usage.name).read_text(encoding="utf-8"), encoding="utf-8")
    check = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-executable", str(installed.python)]
    done = subprocess.run(
        [*check, "--cache-dir", str(tmp_path / "cache"), str(usage)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
