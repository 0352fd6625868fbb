"""What is committed names no machine and no package registry."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Written in pieces, so that this file does not find itself.
REGISTRIES = [
    "pypi" + ".org",
    "python" + "hosted.org",
    "registry." + "npmjs",
    "npm" + "js.com",
    "deb." + "debian.org",
    "proxy." + "golang",
]
MACHINES = [
    "/ro" + "ot/",
    "/wo" + "rk/",
    "/tm" + "p/w/",
    "/ho" + "me/[a-z]",
    "/Us" + "ers/[a-z]",
    "/opt/py" + "pi",
    "/opt/wh" + "eels",
]
FORBIDDEN = re.compile(
    "|".join(re.escape(host) for host in REGISTRIES) + "|" + "|".join(rf"(?<![\w.]){path}" for path in MACHINES)
)


def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("no git checkout: the sdist holds what git tracked")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, timeout=30)
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name]


def test_no_tracked_file_names_a_registry_or_a_machine() -> None:
    found = []
    for path in tracked():
        if path.is_file():
            for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
                if hit := FORBIDDEN.search(line):
                    found.append(f"{path.relative_to(ROOT)}:{number}: {hit.group()}")
    assert not found, "\n".join(found)


def test_the_search_finds_what_it_is_for() -> None:
    for line in ("see " + REGISTRIES[0], f"cd {MACHINES[0]}x", f"--find-links={MACHINES[5]}"):
        assert FORBIDDEN.search(line), line
    assert not FORBIDDEN.search("docs/work/x and src/root/y")


def test_nothing_large_or_built_is_committed() -> None:
    for path in tracked():
        if path.is_file():
            assert path.stat().st_size < 1 << 20, f"{path.relative_to(ROOT)} is larger than 1 MiB"
            assert path.suffix not in {".pyc", ".whl", ".gz", ".so"}, path.relative_to(ROOT)


def test_the_list_of_decisions_is_current() -> None:
    adrs = ROOT / "docs" / "adr"
    pages = sorted(adrs.glob("[0-9]*.md"))
    numbers = [page.name[:4] for page in pages]
    assert len(set(numbers)) == len(numbers), "two decisions share a number"
    listed = [line for line in (adrs / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("- [")]
    expected = [
        f"- [{page.read_text(encoding='utf-8').splitlines()[0].removeprefix('# ')}]({page.name})" for page in pages
    ]
    assert listed == expected, "run python scripts/adr_index.py"
