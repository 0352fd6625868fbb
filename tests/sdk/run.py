"""The SDK's own tests, from its sdist, with this codec in place of the built-in one (`make test-sdk`).

The sdist is fetched once, checked against the hash in sdist.txt, and unpacked under .cache. None of it is committed.
`--built-in` runs the same tests unchanged, with the SDK's codec: all of them pass, or this harness is what is broken.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "sdk"

FILES = (
    "tests/server/test_request_state.py",
    "tests/server/test_request_state_boundary.py",
    "tests/server/mcpserver/test_resolve.py",
    "tests/server/mcpserver/test_server.py",
    "tests/docs_src/test_mrtr.py",
    "tests/docs_src/test_deploy.py",
    "tests/docs_src/test_troubleshooting.py",
)
# The tests tell a sealed value from a plain one by how the built-in codec's tokens begin.
THEIR_PREFIX, OUR_PREFIX = '"v1."', '"mk1."'


def fetched() -> Path:
    """The sdist, verified by pip against sdist.txt: each time, also when it was there already."""
    CACHE.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--quiet", "--disable-pip-version-check"]
    # Its build back end comes pinned from requirements/dev.txt: pip runs it to read the name and version.
    command += ["--no-deps", "--no-binary", "mcp", "--no-build-isolation", "--require-hashes"]
    command += ["--dest", str(CACHE), "--requirement", str(HERE / "sdist.txt")]
    subprocess.run(command, check=True, timeout=180)
    (sdist,) = CACHE.glob("mcp-*.tar.gz")
    return sdist


def unpacked(sdist: Path, name: str) -> Path:
    """A clean copy of what the sdist holds, in a folder of that name."""
    folder = CACHE / name
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (top,) = folder.iterdir()
    return top


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--built-in", action="store_true", help="the SDK's own codec: proves the harness")
    parser.add_argument("pytest_args", nargs="*", help="handed to pytest, after --")
    args = parser.parse_args()

    top = unpacked(fetched(), "built-in" if args.built_in else "mcpkeys")
    command = [sys.executable, "-m", "pytest", "-q", "--color=no", "-o", "log_cli=false", "-p", "no:cacheprovider"]
    if not args.built_in:
        for file in FILES:
            path = top / file
            path.write_text(path.read_text(encoding="utf-8").replace(THEIR_PREFIX, OUR_PREFIX), encoding="utf-8")
        command += ["-p", "swap_codec"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MCPKEYS_", "PYTEST_"))}
    env = clean | {"PYTHONPATH": str(HERE), "PYTHONSAFEPATH": ""}
    return subprocess.run([*command, *args.pytest_args, *FILES], cwd=top, env=env, timeout=600, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
