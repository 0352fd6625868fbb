"""What has to hold before a release (`make release-check`). Leaves sdist, wheel, SBOM and checksums in dist/.

One version everywhere; two builds that are the same bytes; metadata that an index accepts; the wheel with no extra,
with each extra alone and with all, in fresh virtual environments; the extra that is missing named by its command.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION: str = PROJECT["version"]

# A module of each extra, and the schemes that need it.
EXTRAS = {
    "aws": ("boto3", ("awskms", "s3")),
    "gcp": ("google.cloud.kms", ("gcpkms", "gs")),
    "vault": ("hvac", ("hashivault", "vaultkv")),
}
URIS = {
    "awskms": "awskms:///arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab",
    "s3": "s3://acme-keys/fleet.json",
    "gcpkms": "gcpkms://projects/p/locations/l/keyRings/r/cryptoKeys/k",
    "gs": "gs://acme-keys/fleet.json",
    "hashivault": "hashivault://key",
    "vaultkv": "vaultkv://secret/fleet",
}
OPEN = """
import sys
from mcpkeys import errors, registry
scheme, uri = sys.argv[1:]
opener = registry.open_kms if scheme in ("awskms", "gcpkms", "hashivault") else registry.open_store
try:
    opener(uri)
except errors.PluginError as exc:
    print(exc.code, exc.next)
except errors.McpkeysError as exc:
    print("found", exc.code)
else:
    print("found")
"""


class Failed(Exception):
    """A check that did not hold."""


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """The output of a command that must succeed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MCPKEYS_", "PYTHONPATH"))}
    done = subprocess.run(  # noqa: S603  (the commands are this file's own)
        [str(part) for part in command], cwd=cwd, env=clean | (env or {}), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Failed(
            f"{' '.join(str(part) for part in command[:4])} ...: exit {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def one_version() -> str:
    source = (ROOT / "src/mcpkeys/__init__.py").read_text(encoding="utf-8")
    stated = re.search(r'^__version__ = "(.+)"$', source, flags=re.M)
    if stated is None or stated[1] != VERSION:
        raise Failed(f"pyproject.toml says {VERSION}, src/mcpkeys/__init__.py {stated and stated[1]}")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    dated = re.search(rf"^## \[{re.escape(VERSION)}\] - \d{{4}}-\d\d-\d\d$", changelog, flags=re.M)
    if dated is None and "## [Unreleased]" not in changelog:
        raise Failed(f"CHANGELOG.md has neither a dated section for {VERSION} nor an unreleased one")
    return f"{VERSION}, {'dated in the changelog' if dated else 'not dated in the changelog yet'}"


def promises() -> str:
    run(sys.executable, ROOT / "scripts" / "promises.py")
    return "kept, and recorded in full"


def same_bytes_twice() -> str:
    shutil.rmtree(DIST, ignore_errors=True)
    moment = run("git", "log", "-1", "--format=%ct").strip() if (ROOT / ".git").exists() else "1767225600"
    env = {"SOURCE_DATE_EPOCH": moment}
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, ROOT, env=env)
    with tempfile.TemporaryDirectory() as other:
        run(
            sys.executable,
            "-m",
            "build",
            "--no-isolation",
            "--outdir",
            other,
            ROOT,
            env=env | {"TZ": "Pacific/Chatham"},
        )
        first, second = digests(DIST), digests(Path(other))
    if first != second:
        raise Failed(f"two builds differ: {first} and {second}")
    return ", ".join(first)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def metadata() -> str:
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir()))
    return "accepted by twine check --strict"


def constraints(folder: Path) -> Path:
    """The pinned versions without their hashes, which pip does not take beside a local wheel."""
    text = "".join((ROOT / "requirements" / name).read_text(encoding="utf-8") for name in ("base.txt", "dev.txt"))
    lines = re.findall(r"^([A-Za-z0-9_.-]+==[^ \n]+(?: ; [^\\\n]+)?)", text, flags=re.M)
    path = folder / "constraints.txt"
    path.write_text("\n".join(line.strip() for line in lines) + "\n", encoding="utf-8")
    return path


def installed(folder: Path, extras: tuple[str, ...]) -> str:
    """The wheel with these extras in a fresh environment: consistent, its command works, what is missing is named."""
    home = folder / ("-".join(extras) or "bare")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    (wheel,) = DIST.glob("*.whl")
    asked = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--quiet", "--no-compile", "--constraint", constraints(folder), asked)
    run(*pip, "check")
    if "rotate" not in run(home / "bin" / "mcpkeys", "--help", cwd=folder):
        raise Failed("mcpkeys --help does not list rotate")
    quiet = {"AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true", "GCE_METADATA_HOST": "127.0.0.1:1"}
    for extra, (_, schemes) in EXTRAS.items():
        for scheme in schemes:
            said = run(python, "-c", OPEN, scheme, URIS[scheme], cwd=folder, env=quiet).strip()
            has = extra in extras or "all" in extras
            if has is not said.startswith("found") or (not has and f'pip install "mcpkeys[{extra}]"' not in said):
                raise Failed(f"{scheme}:// with the extras {list(extras)}: {said}")
    return f"installs, pip check, --help, {len(URIS)} schemes answer"


def bill_of_materials(python: Path) -> str:
    out = DIST / f"mcpkeys-{VERSION}.cdx.json"
    run(
        *(sys.executable, "-m", "cyclonedx_py", "environment", python, "--pyproject", ROOT / "pyproject.toml"),
        *("--mc-type", "library", "--output-reproducible", "--of", "JSON", "-o", out),
    )
    components = json.loads(out.read_text(encoding="utf-8"))["components"]
    if "mcp" not in {component["name"] for component in components}:
        raise Failed("the SBOM lacks the SDK")
    return f"{out.name}, {len(components)} components"


def checksums() -> str:
    lines = "".join(f"{digest}  {name}\n" for name, digest in digests(DIST).items())
    (DIST / "SHA256SUMS").write_text(lines, encoding="utf-8")
    return "SHA256SUMS"


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        checks = [("version", one_version), ("promises", promises), ("build", same_bytes_twice), ("metadata", metadata)]
        for extras in ((), *((name,) for name in EXTRAS), ("all",)):
            checks.append((f"wheel {list(extras) or ''}", lambda extras=extras: installed(folder, extras)))  # type: ignore[misc]
        checks += [("SBOM", lambda: bill_of_materials(folder / "all" / "bin" / "python")), ("checksums", checksums)]
        for name, check in checks:
            try:
                print(f"{name:<16} {check()}", flush=True)
            except Failed as failure:
                print(f"{name:<16} FAILED: {failure}", flush=True)
                return 1
    print(f"{len(checks)} passed, 0 failed: dist/ is ready")
    return 0


if __name__ == "__main__":
    sys.exit(main())
