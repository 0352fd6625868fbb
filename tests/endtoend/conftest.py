"""The commands and the codec against test servers of each cloud, all on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.conftest import Shell
from endtoend.hurry import HURRIED_SECONDS, hurrying
from endtoend.wire import BaoWire
from servers.gcpkms import GcpKmsDouble, ServiceAccount, make_certificates
from servers.moto import aws, faulty, moto
from servers.openbao import Bao, dev_server

__all__ = ["aws", "faulty", "moto"]
FOREIGN = ("AWS_", "VAULT_", "BAO_", "MCPKEYS_", "GOOGLE_", "STORAGE_EMULATOR_HOST")


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nonexistent/gcloud")
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def shell(_loopback_only: None, tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    shell.environ = {}  # the test's own environment as it is when a command runs
    return shell


@pytest.fixture(scope="session")
def bao() -> Iterator[Bao]:
    with dev_server("root-" + os.urandom(12).hex()) as server:
        yield server


@pytest.fixture(scope="session")
def bao_wire(bao: Bao) -> Iterator[BaoWire]:
    wire = BaoWire(bao.port)
    yield wire
    wire.proxy.close()


@pytest.fixture
def at_bao(bao: Bao, bao_wire: BaoWire, monkeypatch: pytest.MonkeyPatch) -> Iterator[BaoWire]:
    """The environment points at a recording proxy in front of the server, as root."""
    monkeypatch.setenv("VAULT_ADDR", bao_wire.proxy.address)
    monkeypatch.setenv("VAULT_TOKEN", bao.token)
    bao_wire.reset()
    yield bao_wire
    bao_wire.reset()


@pytest.fixture
def hurried() -> Iterator[float]:
    """A start gives up after `HURRIED_SECONDS` in place of 10, and a call gets its share of that."""
    with hurrying():
        yield HURRIED_SECONDS


@pytest.fixture(scope="session")
def account() -> ServiceAccount:
    return ServiceAccount()


@pytest.fixture(scope="session")
def google_server(account: ServiceAccount) -> Iterator[GcpKmsDouble]:
    with GcpKmsDouble() as double:
        double.accept = account.accept
        yield double


@pytest.fixture
def google(
    shell: Shell, google_server: GcpKmsDouble, account: ServiceAccount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[GcpKmsDouble]:
    """The double of Google Cloud KMS, found as Google's own is but for the TLS: gRPC reads its CA once a process."""
    import grpc

    file = tmp_path / "service-account.json"
    file.write_text(json.dumps(account.info()))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    monkeypatch.setenv("MCPKEYS_GCP_KMS_ENDPOINT", google_server.endpoint)
    shell.environ["MCPKEYS_GCP_KMS_ENDPOINT"] = google_server.endpoint
    monkeypatch.setattr(
        grpc, "secure_channel", lambda target, credentials, options: grpc.insecure_channel(target, options)
    )
    yield google_server
    google_server.faults.clear()


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A TLS server on loopback whose certificate nobody here trusts: its https:// address."""
    _, chain, private = make_certificates()
    file = tmp_path_factory.mktemp("stranger") / "server.pem"
    file.write_bytes(private + chain)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError):
                    context.wrap_socket(connection, server_side=True).close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"https://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="session")
def nobody() -> str:
    """The http:// address of a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"
