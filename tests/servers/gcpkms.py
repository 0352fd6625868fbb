"""A double of Google Cloud KMS: real gRPC, real TLS where asked, real AES-GCM, and faults on demand.

It is a double, written from Google's documentation, and proves nothing about Google's servers. What of its behaviour
comes from there is gathered in `GOOGLE_SAYS`; everything else (ciphertext layout, messages not listed) is its own.

In a test:      `with GcpKmsDouble() as double: ...`, driven by the real google-cloud-kms client.
From a shell:   `python tests/servers/gcpkms.py [--key NAME ...]` prints one JSON line with the environment a server
                needs (endpoint, CA, service-account file) and the KEK's URIs, then serves until
                SIGTERM or SIGINT (with --until-eof: until stdin is closed).
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import json
import os
import re
import signal
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import google_crc32c
import grpc
from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.x509.oid import NameOID
from google.cloud import kms_v1 as K

GOOGLE_SAYS = {
    "crc-request": "a request checksum that does not match its field is an error (EncryptRequest.plaintext_crc32c)",
    "crc-verified": "verified_* is true only where the request carried that checksum (EncryptResponse)",
    "name": "EncryptResponse.name is the CryptoKeyVersion used; DecryptRequest names the CryptoKey, never a version",
    "aad": "Decrypt needs exactly the additional_authenticated_data of Encrypt, else INVALID_ARGUMENT",
    "sizes": "plaintext and additional_authenticated_data are at most 64 KiB each for SOFTWARE keys",
    "state": "a version that is not ENABLED answers FAILED_PRECONDITION, naming the version and its state",
    "primary": "Encrypt under a CryptoKey uses its primary version; a CryptoKey without one is FAILED_PRECONDITION",
    "purpose": "Encrypt and Decrypt need purpose ENCRYPT_DECRYPT",
    "routing": "requests carry x-goog-request-params: name=... (gRPC routing header)",
    "permission": "PERMISSION_DENIED also answers for resources that may not be seen",
}
SERVICE = "google.cloud.kms.v1.KeyManagementService"
ENABLED = K.CryptoKeyVersion.CryptoKeyVersionState.ENABLED
DISABLED = K.CryptoKeyVersion.CryptoKeyVersionState.DISABLED
DESTROYED = K.CryptoKeyVersion.CryptoKeyVersionState.DESTROYED
DESTROY_SCHEDULED = K.CryptoKeyVersion.CryptoKeyVersionState.DESTROY_SCHEDULED
ENCRYPT_DECRYPT = K.CryptoKey.CryptoKeyPurpose.ENCRYPT_DECRYPT
_HOST = "127.0.0.1"
_KEY = re.compile(r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+")


def crc(data: bytes) -> int:
    return int(google_crc32c.value(data))


@dataclass
class Fault:
    """What to do to the next `times` calls of `method` (`*`: any).

    Attributes:
        code: the status to answer, or None to answer normally.
        details: the status's text.
        delay: seconds to wait first.
        corrupt: `ciphertext_crc`, `plaintext_crc`, `verified`, `verified_aad`, `name`, `plaintext` or `garbage`.
    """

    method: str = "*"
    code: grpc.StatusCode | None = None
    details: str = "injected"
    delay: float = 0.0
    corrupt: str = ""
    times: int = 1_000_000


@dataclass
class Key:
    purpose: Any = ENCRYPT_DECRYPT
    primary: int = 1
    states: dict[int, Any] = field(default_factory=lambda: {1: ENABLED})
    material: dict[int, bytes] = field(default_factory=lambda: {1: os.urandom(32)})

    def rotate(self) -> int:
        """Add a version and make it primary."""
        version = max(self.states) + 1
        self.states[version], self.material[version] = ENABLED, os.urandom(32)
        self.primary = version
        return version


class GcpKmsDouble:
    """One server on a free loopback port.

    Attributes:
        keys: `projects/P/.../cryptoKeys/K` -> Key.
        faults: tried in order for every call.
        calls: (method, resource name) of every call that arrived.
        tokens: the authorization metadata of every call that arrived, None where there was none.
        accept: a bearer token -> may it call? None: anyone may.
    """

    def __init__(self, *, tls: bool = False, keys: tuple[str, ...] = ()) -> None:
        self.keys: dict[str, Key] = {}
        self.faults: list[Fault] = []
        self.calls: list[tuple[str, str]] = []
        self.tokens: list[str | None] = []
        self.accept: Callable[[str], bool] | None = None
        self.may_list_versions = True
        self._lock = threading.Lock()
        for name in keys:
            self.add_key(name)
        self.ca_pem = b""
        self._tls = tls
        self._server: grpc.Server | None = None
        self.port = 0

    # ---- life

    def start(self, port: int = 0) -> GcpKmsDouble:
        server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers([self._handlers()])
        address = f"{_HOST}:{port}"
        if self._tls:
            if not self.ca_pem:
                self.ca_pem, self._chain, self._private = make_certificates()
            credentials = grpc.ssl_server_credentials([(self._private, self._chain)])
            self.port = server.add_secure_port(address, credentials)
        else:
            self.port = server.add_insecure_port(address)
        server.start()
        self._server = server
        return self

    def stop(self) -> None:
        """Stop at once; `start(port)` on the same port brings it back with its keys."""
        if self._server is not None:
            self._server.stop(None).wait(5)
            self._server = None

    def __enter__(self) -> GcpKmsDouble:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- what a test turns

    @property
    def endpoint(self) -> str:
        return f"{_HOST}:{self.port}"

    def add_key(self, name: str, purpose: Any = ENCRYPT_DECRYPT) -> Key:
        assert _KEY.fullmatch(name), name
        self.keys[name] = Key(purpose=purpose)
        return self.keys[name]

    def uri(self, name: str | None = None) -> str:
        return f"gcpkms://{name or next(iter(self.keys))}"

    @contextmanager
    def fault(self, *faults: Fault) -> Iterator[None]:
        self.faults.extend(faults)
        try:
            yield
        finally:
            self.faults[:] = [f for f in self.faults if f not in faults]

    # ---- the service

    def _handlers(self) -> grpc.GenericRpcHandler:
        def unary(name: str, request: Any, response: Any, serve: Callable[..., Any]) -> Any:
            def call(message: Any, context: grpc.ServicerContext) -> Any:
                fault = self._enter(name, message, context)
                reply = serve(message, context)
                if fault is not None and fault.corrupt:
                    reply = _corrupt(reply, fault.corrupt)
                return reply

            def serialize(reply: Any) -> bytes:
                return reply if isinstance(reply, bytes) else bytes(response.serialize(reply))

            return grpc.unary_unary_rpc_method_handler(call, request.deserialize, serialize)

        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Encrypt": unary("Encrypt", K.EncryptRequest, K.EncryptResponse, self._encrypt),
                "Decrypt": unary("Decrypt", K.DecryptRequest, K.DecryptResponse, self._decrypt),
                "GetCryptoKey": unary("GetCryptoKey", K.GetCryptoKeyRequest, K.CryptoKey, self._get),
                "ListCryptoKeyVersions": unary(
                    "ListCryptoKeyVersions", K.ListCryptoKeyVersionsRequest, K.ListCryptoKeyVersionsResponse, self._list
                ),
            },
        )

    def _enter(self, method: str, message: Any, context: grpc.ServicerContext) -> Fault | None:
        resource = getattr(message, "name", "") or getattr(message, "parent", "")
        metadata = dict(context.invocation_metadata())
        token = metadata.get("authorization")
        with self._lock:
            self.calls.append((method, resource))
            self.tokens.append(token if isinstance(token, str) else None)
            fault = next((f for f in self.faults if f.times > 0 and f.method in ("*", method)), None)
            if fault is not None:
                fault.times -= 1
        if fault is not None:
            if fault.delay:
                time.sleep(fault.delay)
            if fault.code is not None:
                context.abort(fault.code, fault.details)
        if self.accept is not None and not (
            isinstance(token, str) and token.startswith("Bearer ") and self.accept(token.removeprefix("Bearer "))
        ):
            context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "Request had invalid authentication credentials. Expected OAuth 2 access token.",
            )
        params = parse_qs(str(metadata.get("x-goog-request-params", "")))
        if resource not in [value for values in params.values() for value in values]:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "double: the routing header does not name the resource")
        return fault

    def _key(self, name: str, context: grpc.ServicerContext) -> Key:
        key = self.keys.get(name)
        if key is None:
            if not _KEY.fullmatch(name):
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "double: the name is not that of a CryptoKey")
            context.abort(grpc.StatusCode.NOT_FOUND, f"CryptoKey {name} not found.")
        assert key is not None
        return key

    def _usable(self, name: str, key: Key, context: grpc.ServicerContext) -> None:
        if key.purpose != ENCRYPT_DECRYPT:
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{name} has purpose {K.CryptoKey.CryptoKeyPurpose(key.purpose).name}, not ENCRYPT_DECRYPT.",
            )

    def _enabled(self, name: str, key: Key, version: int, context: grpc.ServicerContext) -> None:
        state = key.states[version]
        if state != ENABLED:
            label = K.CryptoKeyVersion.CryptoKeyVersionState(state).name
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{name}/cryptoKeyVersions/{version} is not enabled, current state is: {label}.",
            )

    def _encrypt(self, request: K.EncryptRequest, context: grpc.ServicerContext) -> K.EncryptResponse:
        key = self._key(request.name, context)
        self._usable(request.name, key, context)
        self._check_crc(request, ("plaintext", "additional_authenticated_data"), context)
        if len(request.plaintext) > 65536 or len(request.additional_authenticated_data) > 65536:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the plaintext is too long")
        version = key.primary
        self._enabled(request.name, key, version, context)
        nonce = os.urandom(12)
        head = b"\x0a\x24\x00" + struct.pack(">I", version)
        aad = head + request.additional_authenticated_data
        ciphertext = head + nonce + AESGCM(key.material[version]).encrypt(nonce, request.plaintext, aad)
        return K.EncryptResponse(
            name=f"{request.name}/cryptoKeyVersions/{version}",
            ciphertext=ciphertext,
            ciphertext_crc32c=crc(ciphertext),
            verified_plaintext_crc32c=_given(request, "plaintext_crc32c"),
            verified_additional_authenticated_data_crc32c=_given(request, "additional_authenticated_data_crc32c"),
            protection_level=K.ProtectionLevel.SOFTWARE,
        )

    def _decrypt(self, request: K.DecryptRequest, context: grpc.ServicerContext) -> K.DecryptResponse:
        key = self._key(request.name, context)
        self._usable(request.name, key, context)
        self._check_crc(request, ("ciphertext", "additional_authenticated_data"), context)
        blob = request.ciphertext
        version = struct.unpack(">I", blob[3:7])[0] if len(blob) >= 35 else 0
        if version not in key.states:
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                "Decryption failed: verify that 'name' refers to the correct CryptoKey.",
            )
        self._enabled(request.name, key, version, context)
        try:
            plaintext = AESGCM(key.material[version]).decrypt(
                blob[7:19], blob[19:], blob[:7] + request.additional_authenticated_data
            )
        except InvalidTag:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Decryption failed: the ciphertext is invalid.")
        return K.DecryptResponse(
            plaintext=plaintext,
            plaintext_crc32c=crc(plaintext),
            used_primary=version == key.primary,
            protection_level=K.ProtectionLevel.SOFTWARE,
        )

    def _version(self, name: str, key: Key, version: int) -> K.CryptoKeyVersion:
        return K.CryptoKeyVersion(name=f"{name}/cryptoKeyVersions/{version}", state=key.states[version])

    def _get(self, request: K.GetCryptoKeyRequest, context: grpc.ServicerContext) -> K.CryptoKey:
        key = self._key(request.name, context)
        reply = K.CryptoKey(name=request.name, purpose=key.purpose)
        if key.purpose == ENCRYPT_DECRYPT:
            reply.primary = self._version(request.name, key, key.primary)
        return reply

    def _list(
        self, request: K.ListCryptoKeyVersionsRequest, context: grpc.ServicerContext
    ) -> K.ListCryptoKeyVersionsResponse:
        if not self.may_list_versions:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "Permission 'cloudkms.cryptoKeyVersions.list' denied.")
        key = self._key(request.parent, context)
        first = int(request.page_token or 0)
        size = min(request.page_size or 2, 2)  # small pages, so that paging is always exercised
        numbers = sorted(key.states)
        more = str(first + size) if first + size < len(numbers) else ""
        return K.ListCryptoKeyVersionsResponse(
            crypto_key_versions=[self._version(request.parent, key, n) for n in numbers[first : first + size]],
            next_page_token=more,
            total_size=len(numbers),
        )

    @staticmethod
    def _check_crc(request: Any, names: tuple[str, ...], context: grpc.ServicerContext) -> None:
        for name in names:
            if not _given(request, f"{name}_crc32c"):
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"double: {name}_crc32c was not sent")
            if getattr(request, f"{name}_crc32c") != crc(getattr(request, name)):
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"The checksum in field {name}_crc32c did not match.")


def _given(request: Any, name: str) -> bool:
    return name in request


def _corrupt(reply: Any, what: str) -> Any:
    if what == "garbage":
        return b"\xff\xff not protobuf"
    if what == "ciphertext_crc":
        reply.ciphertext_crc32c = reply.ciphertext_crc32c ^ 1
    elif what == "plaintext_crc":
        reply.plaintext_crc32c = reply.plaintext_crc32c ^ 1
    elif what == "plaintext":
        reply.plaintext = bytes(reversed(reply.plaintext))
    elif what == "verified":
        reply.verified_plaintext_crc32c = False
    elif what == "verified_aad":
        reply.verified_additional_authenticated_data_crc32c = False
    elif what == "name":
        reply.name = reply.name.replace("/cryptoKeys/", "/cryptoKeys/other-")
    else:
        raise ValueError(what)
    return reply


def make_certificates() -> tuple[bytes, bytes, bytes]:
    """A CA of its own and a leaf for 127.0.0.1 and localhost: (CA, chain, private key), PEM."""
    now = datetime.datetime.now(datetime.UTC)
    ca_key, leaf_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mcpkeys test CA")])
    span = (now - datetime.timedelta(hours=1), now + datetime.timedelta(days=2))
    ca = (
        x509.CertificateBuilder()
        .subject_name(ca_name)
        .issuer_name(ca_name)
        .public_key(ca_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(span[0])
        .not_valid_after(span[1])
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(_HOST))]
    leaf = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]))
        .issuer_name(ca_name)
        .public_key(leaf_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(span[0])
        .not_valid_after(span[1])
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = leaf_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return ca.public_bytes(pem), leaf.public_bytes(pem), private


class ServiceAccount:
    """A service account whose tokens are self-signed JWTs: for GOOGLE_APPLICATION_CREDENTIALS, no token endpoint.

    Its token_uri is a loopback port that nobody listens on: a client that asked it would fail at once.
    """

    email = "mcpkeys@double.iam.gserviceaccount.com"

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.public_pem = self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def info(self) -> dict[str, str]:
        private = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return {
            "type": "service_account",
            "project_id": "double",
            "private_key_id": "1",
            "private_key": private.decode(),
            "client_email": self.email,
            "client_id": "1",
            "token_uri": "http://127.0.0.1:1/token",
        }

    def accept(self, token: str) -> bool:
        """Signature, expiry, issuer and scope of a self-signed JWT."""
        from google.auth import jwt

        try:
            claims = jwt.decode(token, certs=self.public_pem.decode(), verify=True)
        except ValueError:
            return False
        return claims.get("iss") == self.email and "cloudkms" in f"{claims.get('scope', '')}{claims.get('aud', '')}"


DEFAULT_KEY = "projects/double/locations/global/keyRings/mcpkeys/cryptoKeys/fleet"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Google Cloud KMS double for demos and tests")
    parser.add_argument("--key", action="append", default=[], help="a CryptoKey's full name; repeatable")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--dir", help="where the CA and the service-account file go; default: a temporary directory")
    parser.add_argument("--until-eof", action="store_true", help="stop when stdin is closed, too")
    options = parser.parse_args(argv)
    double = GcpKmsDouble(tls=True, keys=tuple(options.key) or (DEFAULT_KEY,))
    account = ServiceAccount()
    double.accept = account.accept
    double.start(options.port)
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(options.dir or scratch)
        home.mkdir(parents=True, exist_ok=True)
        (home / "ca.pem").write_bytes(double.ca_pem)
        secret = home / "service-account.json"
        secret.touch(0o600)
        secret.write_text(json.dumps(account.info()))
        environment = {
            "MCPKEYS_GCP_KMS_ENDPOINT": double.endpoint,
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(home / "ca.pem"),
            "GOOGLE_APPLICATION_CREDENTIALS": str(secret),
            "NO_GCE_CHECK": "true",
            "GCE_METADATA_HOST": "127.0.0.1:1",
        }
        print(json.dumps({"environment": environment, "keks": [double.uri(n) for n in double.keys]}), flush=True)

        def watch_stdin() -> None:
            sys.stdin.buffer.read()
            done.set()

        if options.until_eof:
            threading.Thread(target=watch_stdin, daemon=True).start()
        done.wait()
    double.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
