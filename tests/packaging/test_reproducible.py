"""Two builds of one checkout are the same bytes, whoever makes them and when."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def built(out: Path, umask: int, timezone: str) -> dict[str, str]:
    env = os.environ | {"SOURCE_DATE_EPOCH": "1780000000", "TZ": timezone}
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, timeout=60, umask=umask)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()}


def test_two_builds_are_the_same_bytes(tmp_path: Path) -> None:
    first = built(tmp_path / "first", 0o022, "UTC")
    second = built(tmp_path / "second", 0o077, "Pacific/Chatham")
    assert sorted(path.rsplit(".", 1)[1] for path in first) == ["gz", "whl"]
    assert first == second
