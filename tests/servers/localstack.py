"""LocalStack's KMS: an implementation of AWS KMS independent of moto, stricter about key ids and key states.

It needs older libraries than ours, so it runs from a virtual environment of its own, made on first use under
`.cache/localstack` from requirements/localstack.txt (240 MB). `MCPKEYS_SKIP_LOCALSTACK=1` skips it and says so.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from servers.moto import Moto

_ROOT = Path(__file__).resolve().parents[2]
_REQUIREMENTS = _ROOT / "requirements" / "localstack.txt"
_HOME = _ROOT / ".cache" / "localstack"


def installed() -> Path:
    """The interpreter of LocalStack's environment, which is made where it is missing or its pins have changed."""
    _HOME.parent.mkdir(exist_ok=True)
    python, stamp = _HOME / "bin" / "python", _HOME / ".installed"
    wanted = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()
    with open(_HOME.parent / "localstack.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes: the first installs, the others wait
        if not stamp.exists() or stamp.read_text() != wanted:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(_HOME)], check=True)
            pip = [str(python), "-m", "pip", "install", "-q", "-q", "--disable-pip-version-check", "--no-compile"]
            subprocess.run([*pip, "--require-hashes", "-r", str(_REQUIREMENTS)], check=True)
            stamp.write_text(wanted)
    return python


@contextmanager
def running_localstack(folder: Path) -> Iterator[Moto]:
    """Start KMS and STS on a free loopback port; `folder` is for its files."""
    python = installed()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environ = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(folder),
        "FILESYSTEM_ROOT": str(folder / "root"),
        "GATEWAY_SERVER": "hypercorn",
        "GATEWAY_LISTEN": f"127.0.0.1:{port}",
        "SERVICES": "kms,sts",
        "EAGER_SERVICE_LOADING": "1",
        "DNS_ADDRESS": "0",
        "USE_SSL": "0",
        "DISABLE_EVENTS": "1",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [str(python), "-m", "localstack.runtime.main"], env=environ, cwd=folder, stdout=log, stderr=log
        )
        try:
            until = time.monotonic() + 60
            while not _healthy(port):
                assert process.poll() is None, (folder / "log").read_text()[-2000:]
                assert time.monotonic() < until, (folder / "log").read_text()[-2000:]
                time.sleep(0.1)
            yield Moto(port)
        finally:
            process.kill()
            process.wait()


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/_localstack/health", timeout=2) as answer:
            return b'"kms": "running"' in answer.read()
    except OSError:
        return False


@pytest.fixture(scope="session")
def localstack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moto]:
    """One server for the test session, with the same handles as `moto`."""
    if os.environ.get("MCPKEYS_SKIP_LOCALSTACK"):
        pytest.skip("MCPKEYS_SKIP_LOCALSTACK is set")
    with running_localstack(tmp_path_factory.mktemp("localstack")) as server:
        yield server
