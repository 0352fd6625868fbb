"""A third party's plugin, installed beside the wheel in a virtual environment of its own, keeps the contracts there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mcpkeys-example-plugin"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    source, out = tmp_path_factory.mktemp("example") / "source", tmp_path_factory.mktemp("dist")
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(out), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(distributions, wheel, tmp_path_factory):
    """The two wheels, and nothing of this checkout; what they depend on is borrowed from the running interpreter."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(distributions.wheel), str(wheel)], check=True, timeout=60, capture_output=True)
    (site,) = home.glob("lib/python*/site-packages")
    # The .pth files inside a folder that a .pth names are not read: the editable install stays out.
    borrowed = [entry for entry in sys.path if Path(entry).name == "site-packages"]
    (site / "borrowed.pth").write_text("".join(f"{entry}\n" for entry in borrowed), encoding="utf-8")
    return python


def run(python, *args, cwd, timeout):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "MCPKEYS_"))}
    return subprocess.run(
        [str(python), *map(str, args)], cwd=cwd, env=clean, capture_output=True, text=True, timeout=timeout, check=False
    )


def test_the_example_keeps_the_contracts_from_the_installed_wheel(python, tmp_path):
    tests = tmp_path / "tests"
    shutil.copytree(EXAMPLE / "tests", tests, ignore=shutil.ignore_patterns("__pycache__"))
    done = run(
        python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tests, cwd=tmp_path, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_the_contract_of_the_installed_wheel_explains_a_failure(python, tmp_path):
    """Assertions are rewritten: a plugin author sees the values, not a bare AssertionError."""
    (tmp_path / "test_broken.py").write_text(
        "from mcpkeys.testing import FakeKms, KmsContract\n"
        "class Broken(FakeKms):\n"
        "    def unwrap(self, wrap, context, *, deadline):\n"
        "        return b'wrong'\n"
        "class TestBroken(KmsContract):\n"
        "    def make_kms(self): return Broken()\n"
        "    def parse(self, uri): return Broken()\n"
    )
    select = ["-k", "31"]
    done = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *select, tmp_path, cwd=tmp_path, timeout=100)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "assert b'wrong' == b" in done.stdout


def test_the_registry_serves_the_examples_schemes_and_first_party_ones_alike(python, tmp_path):
    code = (
        "import json; from mcpkeys import registry, testing; import mcpkeys\n"
        "print(json.dumps({'kms': sorted(registry.schemes(registry.KMS_GROUP)),"
        " 'stores': sorted(registry.schemes(registry.STORE_GROUP)), 'home': mcpkeys.__file__,"
        " 'kms_type': type(registry.open_kms('envkek:///ACME_KEK')).__name__}))"
    )
    done = run(python, "-c", code, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {"envkek", "local", "awskms"} <= set(told["kms"])
    assert {"sqlite", "file", "s3"} <= set(told["stores"])
    assert told["kms_type"] == "EnvKms"
    assert Path(told["home"]).is_relative_to(python.parents[1]), "mcpkeys came from the checkout, not from the wheel"


def test_the_tutorials_commands_work(python, tmp_path):
    tutorial = (EXAMPLE.parents[1] / "docs" / "how-to" / "write-a-plugin.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```console\n(.*?)```", tutorial, re.DOTALL)
    lines = [line.removeprefix("$ ") for line in shown.splitlines() if line.startswith("$ ")]
    install, *commands = lines
    assert install == "pip install mcpkeys-example-plugin"
    script = "\n".join(commands).replace("/var/lib/acme", str(tmp_path))
    path = f"{python.parent}:{os.environ['PATH']}"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MCPKEYS_"))}
    done = subprocess.run(
        ["sh", "-ec", script],
        env=clean | {"PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"MCPKEYS_KEYSET='sqlite://{tmp_path}/fleet.db?name=fleet'" in done.stdout
    assert os.listdir(tmp_path) == ["fleet.db"]
