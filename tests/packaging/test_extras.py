"""Without an extra everything else works, and what is missing is named with the command that installs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

# What each extra brings. A blocked name answers as one that was never installed.
BLOCK = """
import sys
class Blocked:
    names = {"boto3", "botocore", "google", "grpc", "hvac"}
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
"""

OPEN = (
    BLOCK
    + """
from mcpkeys.errors import PluginError
from mcpkeys.registry import open_kms, open_store
what, uri = sys.argv[1:]
try:
    {"kms": open_kms, "store": open_store}[what](uri)
except PluginError as exc:
    print(exc.code, exc.exit_code, exc.next)
else:
    print("opened")
"""
)

CASES = [
    ("kms", "awskms:///arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab", "aws"),
    ("kms", "gcpkms://projects/p/locations/l/keyRings/r/cryptoKeys/k", "gcp"),
    ("kms", "hashivault://key", "vault"),
    ("store", "s3://acme-keys/fleet.json", "aws"),
    ("store", "gs://acme-keys/fleet.json", "gcp"),
    ("store", "vaultkv://secret/fleet", "vault"),
]


@pytest.mark.parametrize(("what", "uri", "extra"), CASES)
def test_a_missing_extra_is_named_with_its_command(
    installed: Any, tmp_path: Path, project: dict[str, Any], what: str, uri: str, extra: str
) -> None:
    scheme = uri.split(":", 1)[0]
    group = {"kms": "mcpkeys.kms", "store": "mcpkeys.stores"}[what]
    module = project["project"]["entry-points"][group][scheme].split(":")[0]
    if not (ROOT / "plugins" / f"{module.replace('.', '/')}.py").exists():
        pytest.skip(f"{module} is not written yet")
    done = installed.run(installed.python, "-c", OPEN, what, uri, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f'extra-missing 2 pip install "mcpkeys[{extra}]"'


@pytest.mark.skipif(not (ROOT / "plugins/mcpkeys_local/kms.py").exists(), reason="mcpkeys_local is not written yet")
def test_the_embedded_default_needs_no_extra(installed: Any, tmp_path: Path) -> None:
    for what, uri in (("kms", f"local://{tmp_path}/kek.key"), ("store", f"file://{tmp_path}/fleet.json")):
        done = installed.run(installed.python, "-c", OPEN, what, uri, cwd=tmp_path)
        assert done.stdout.strip() == "opened", done.stdout + done.stderr


def test_the_extra_all_is_every_extra(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    assert extras["all"] == [f"mcpkeys[{','.join(name for name in extras if name != 'all')}]"]
