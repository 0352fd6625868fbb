"""`make demo KEK=aws|gcp|openbao`: the demo with its keyset and KEK in a local test server, by the commands alone.

    python tests/kek_demo.py aws|gcp|openbao [options of mcpkeys demo]

Starts the server on a free port of 127.0.0.1, runs `mcpkeys demo` against it, stops it. Exits as the demo does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

SERVERS = Path(__file__).parent / "servers"
NOWHERE = {"AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true", "GCE_METADATA_HOST": "127.0.0.1:1"}
Place = tuple[dict[str, str], list[str]]


@contextmanager
def aws() -> Iterator[Place]:
    """moto: AWS KMS and S3."""
    from servers.moto import running_moto

    with running_moto() as moto:
        bucket = moto.create_bucket("mcpkeys-demo")
        environ = {**moto.environ, "AWS_ENDPOINT_URL_KMS": moto.endpoint, "AWS_ENDPOINT_URL_S3": moto.endpoint}
        yield environ, ["--kek", moto.create_key(), "--keyset", f"s3://{bucket}/fleet.keyset.json"]


@contextmanager
def gcp() -> Iterator[Place]:
    """The double of Google Cloud KMS, over TLS, and fake-gcs-server. The signer's key is one of its own, as advised."""
    from servers.gcs import serving

    ring = "projects/demo/locations/europe-west1/keyRings/fleet/cryptoKeys"
    double = subprocess.Popen(
        [sys.executable, str(SERVERS / "gcpkms.py"), "--until-eof", "--key", f"{ring}/data", "--key", f"{ring}/sign"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert double.stdout is not None
        said = json.loads(double.stdout.readline())
        data, sign = said["keks"]
        with serving() as gcs:
            keyset = f"gs://{gcs.new_bucket()}/fleet.keyset.json"
            environ = {**said["environment"], "STORAGE_EMULATOR_HOST": gcs.address}
            yield environ, ["--kek", data, "--sign-kek", sign, "--keyset", keyset]
    finally:
        try:
            double.communicate(timeout=10)  # its stdin ends, and so does it
        except subprocess.TimeoutExpired:
            double.kill()
            double.wait()


@contextmanager
def openbao() -> Iterator[Place]:
    """A real OpenBao: Transit and KV v2."""
    from servers.openbao import dev_server

    with dev_server() as bao:
        bao.transit_key("fleet")
        yield bao.environment(), ["--kek", "hashivault://fleet", "--keyset", "vaultkv://secret/fleet"]


PLACES: dict[str, Callable[[], AbstractContextManager[Place]]] = {"aws": aws, "gcp": gcp, "openbao": openbao}
FOREIGN = ("AWS_", "GOOGLE_", "VAULT_", "BAO_", "MCPKEYS_", "STORAGE_EMULATOR_HOST")


def main(arguments: list[str]) -> int:
    """The demo's exit code."""
    if not arguments or arguments[0] not in PLACES:
        print(f"usage: {Path(__file__).name} {'|'.join(PLACES)} [options of mcpkeys demo]", file=sys.stderr)
        return 2
    # Ended by a signal, this still ends its servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    own = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    with PLACES[arguments[0]]() as (environ, options):
        demo = subprocess.Popen(
            [sys.executable, "-m", "mcpkeys_cli", "demo", *options, *arguments[1:]], env=own | environ | NOWHERE
        )
        try:
            return demo.wait()
        except BaseException:
            # Ctrl-C reaches the demo by itself, and it ends its processes; SIGTERM does not.
            demo.terminate()
            demo.wait()
            raise


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
