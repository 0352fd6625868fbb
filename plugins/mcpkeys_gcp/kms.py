"""The KMS backend for Google Cloud: `gcpkms://projects/P/locations/L/keyRings/R/cryptoKeys/K`."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

from mcpkeys.errors import (
    KekUnusable,
    KmsDenied,
    KmsUnreachable,
    McpkeysError,
    UnwrapRefused,
)
from mcpkeys.kms import KekState, Wrap, WrapContext
from mcpkeys_gcp import forks
from mcpkeys_gcp.answers import explain, garbage, late
from mcpkeys_gcp.bounded import left, pause
from mcpkeys_gcp.identity import Identity
from mcpkeys_gcp.quiet import quiet
from mcpkeys_gcp.uri import parse_kek, service_endpoint

SCOPES = ("https://www.googleapis.com/auth/cloud-platform", "https://www.googleapis.com/auth/cloudkms")
MAX_KEY_BYTES = 64
MAX_BLOB_BYTES = 8192
ATTEMPTS = 4
"""Tries per call at most, while the deadline allows: throttled, unreachable and garbled answers are tried again."""
_VERSION = re.compile(r"/cryptoKeyVersions/([0-9]{1,19})")


@dataclass(frozen=True, slots=True)
class _Line:
    """A connection: the client, who calls, and whether the channel is ours to drop."""

    pid: int
    client: Any
    identity: Identity
    own: bool


class GcpKms:
    """One symmetric key of Google Cloud KMS, called over gRPC with TLS.

    Needs, on the key: `cloudkms.cryptoKeyVersions.useToDecrypt` to unwrap (all that a server needs),
    `cloudkms.cryptoKeyVersions.useToEncrypt` to wrap, `cloudkms.cryptoKeys.get` to describe, and, for the oldest
    usable version, `cloudkms.cryptoKeyVersions.list` (left out where it is not granted).

    The context travels as additional_authenticated_data. IAM conditions cannot look at it: who may decrypt with this
    key may decrypt under every context, so the keyset's signer belongs under another key (`--sign-kek`).

    CRC32C checksums go with every request and are checked on every reply. Google Cloud cannot make or rewrap a key
    without showing it, so `generate` and `rewrap` answer None.

    Args:
        uri: `gcpkms://projects/P/locations/L/keyRings/R/cryptoKeys/K`, never a version.
        session: the caller's own `google.auth.credentials.Credentials`, or a pair (credentials, channel): either may
            be None; the channel is a `grpc.Channel`, or a function that returns a new one, which works after fork too.

    Raises:
        UriError: `uri` is not of this form.
        SettingError: MCPKEYS_GCP_KMS_ENDPOINT is not `host:port`.
        ModuleNotFoundError: google-cloud-kms is not installed.
    """

    def __init__(self, uri: str, *, session: Any = None) -> None:
        self._name = parse_kek(uri)
        self._uri = f"gcpkms://{self._name}"
        for module in ("google.auth", "google.cloud.kms_v1", "google_crc32c", "grpc"):
            if find_spec(module) is None:
                raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        self._endpoint = service_endpoint()
        self._credentials, self._channel = session if isinstance(session, tuple) else (session, None)
        self._home = os.getpid()
        self._lock = threading.Lock()
        self._line: _Line | None = None
        forks.join(self)

    def __repr__(self) -> str:
        return f"GcpKms({self._uri!r})"

    @property
    def uri(self) -> str:
        return self._uri

    def wrap(self, key: bytes, context: WrapContext, *, deadline: float) -> Wrap:
        """Encrypt `key` (1 to 64 bytes) under the primary version. `Wrap.version` is that version's number."""
        if not 1 <= len(key) <= MAX_KEY_BYTES:
            del key
            raise ValueError("a key to wrap is 1 to 64 bytes long")
        reply = self._encrypt(key, context.aad(), deadline)
        del key
        if isinstance(reply, McpkeysError):
            raise reply
        return reply

    def _encrypt(self, key: bytes, aad: bytes, deadline: float) -> Wrap | McpkeysError:
        import google_crc32c

        request = {
            "name": self._name,
            "plaintext": key,
            "plaintext_crc32c": google_crc32c.value(key),
            "additional_authenticated_data": aad,
            "additional_authenticated_data_crc32c": google_crc32c.value(aad),
        }

        def accept(reply: Any) -> Wrap | McpkeysError:
            version = _VERSION.fullmatch(reply.name.removeprefix(self._name))
            if version is None or not reply.name.startswith(self._name):
                return garbage("the reply names another key")
            if not (reply.verified_plaintext_crc32c and reply.verified_additional_authenticated_data_crc32c):
                return garbage("the request's checksums were not verified")
            blob = bytes(reply.ciphertext)
            if not 1 <= len(blob) <= MAX_BLOB_BYTES or reply.ciphertext_crc32c != google_crc32c.value(blob):
                return garbage("the wrapped key does not match its checksum")
            return Wrap(self._uri, version[1], blob)

        return cast("Wrap | McpkeysError", self._call("encrypt", request, accept, deadline))

    def unwrap(self, wrap: Wrap, context: WrapContext, *, deadline: float) -> bytes:
        """Decrypt. Refuses, without a call, a wrap of another KEK and a blob of 0 or over 8,192 bytes."""
        if wrap.kek != self._uri or not 1 <= len(wrap.blob) <= MAX_BLOB_BYTES:
            raise UnwrapRefused(
                f"{self._name} did not wrap this key",
                why="the wrap names another KEK" if wrap.kek != self._uri else "the blob is empty or too long",
                next="run mcpkeys verify on the keyset",
            )
        reply = self._decrypt(wrap, context.aad(), deadline)
        if isinstance(reply, McpkeysError):
            raise reply
        return reply

    def _decrypt(self, wrap: Wrap, aad: bytes, deadline: float) -> bytes | McpkeysError:
        import google_crc32c

        request = {
            "name": self._name,
            "ciphertext": wrap.blob,
            "ciphertext_crc32c": google_crc32c.value(wrap.blob),
            "additional_authenticated_data": aad,
            "additional_authenticated_data_crc32c": google_crc32c.value(aad),
        }

        def accept(reply: Any) -> bytes | McpkeysError:
            key = bytes(reply.plaintext)
            if not 1 <= len(key) <= MAX_KEY_BYTES or reply.plaintext_crc32c != google_crc32c.value(key):
                return garbage("the unwrapped key does not match its checksum")
            return key

        reply = self._call("decrypt", request, accept, deadline, version=wrap.version)
        return cast("bytes | McpkeysError", reply)

    def generate(self, context: WrapContext, *, deadline: float) -> Wrap | None:
        """None: Google Cloud KMS has no call that makes a wrapped key without showing it."""
        return None

    def rewrap(self, wrap: Wrap, context: WrapContext, *, deadline: float) -> Wrap | None:
        """None: Google Cloud KMS has no re-encryption; unwrap and wrap."""
        return None

    def describe(self, *, deadline: float) -> KekState:
        """GetCryptoKey, and ListCryptoKeyVersions where this identity may. `enabled` is the primary version's state."""
        key = self._call("get_crypto_key", {"name": self._name}, _as_it_is, deadline)
        if isinstance(key, McpkeysError):
            if key.code == "kek-missing":
                return KekState(exists=False, enabled=False, detail="Google Cloud KMS has no such key")
            raise key
        purpose = str(getattr(key.purpose, "name", key.purpose))
        if purpose != "ENCRYPT_DECRYPT":
            return KekState(exists=True, enabled=False, detail=f"purpose {purpose}; a KEK needs ENCRYPT_DECRYPT")
        primary = _VERSION.fullmatch(key.primary.name.removeprefix(self._name)) if key.primary.name else None
        if primary is None:
            return KekState(exists=True, enabled=False, detail="it has no primary version")
        state = str(getattr(key.primary.state, "name", key.primary.state))
        usable = self._usable(deadline)
        return KekState(
            exists=True,
            enabled=state == "ENABLED",
            newest=primary[1],
            oldest_usable=str(usable[0]) if usable else None,
            detail=f"primary version {primary[1]} is {state}",
        )

    def _usable(self, deadline: float) -> list[int]:
        """The enabled versions, ascending; empty where there are none or this identity may not list them."""
        found: list[int] = []
        token = ""
        while True:
            request = {"parent": self._name, "page_size": 1000, "page_token": token}
            page = self._call("list_crypto_key_versions", request, _as_it_is, deadline)
            if isinstance(page, KmsDenied):
                return []
            if isinstance(page, McpkeysError):
                raise page
            for version in page.crypto_key_versions:
                number = _VERSION.fullmatch(version.name.removeprefix(self._name))
                if number is not None and getattr(version.state, "name", "") == "ENABLED":
                    found.append(int(number[1]))
            token = page.next_page_token
            if not token:
                return sorted(found)

    def credentials(self, *, deadline: float) -> str:
        """The kind of credentials that were found, and whose: for `mcpkeys doctor`. Raises as every call."""
        try:
            with forks.in_flight(), quiet():
                found = self._connect().identity.credentials(deadline)
        except McpkeysError:
            raise
        except Exception as exc:
            raise explain(exc, self._name, method="credentials") from None
        return f"{type(found).__module__}.{type(found).__name__} {getattr(found, 'service_account_email', '')}".strip()

    def close(self) -> None:
        """Drop the connection; calls in flight fail. A channel that the caller handed in stays open."""
        line, self._line = self._line, None
        if line is not None and line.own and line.pid == os.getpid():
            line.client.transport.close()

    def after_fork(self) -> None:
        """In the child: its own lock, and no connection of the parent's."""
        self._lock = threading.Lock()
        line, self._line = self._line, None
        if line is not None:
            forks.keep(line)

    # Calls.

    def _call(
        self,
        method: str,
        request: dict[str, Any],
        accept: Callable[[Any], Any],
        deadline: float,
        *,
        version: str = "",
    ) -> Any:
        """What `accept` makes of the reply, or the error to raise.

        Returned, not raised: the frames here hold keys, and must not be in its traceback.
        """
        error: McpkeysError = late(self._name)
        for attempt in range(ATTEMPTS):
            if time.monotonic() >= deadline or (attempt and not pause(attempt, deadline, base=0.1, cap=1.0)):
                break
            line: _Line | None = None
            try:
                with forks.in_flight(), quiet():
                    line = self._connect()
                    metadata = line.identity.headers(f"https://{self._endpoint}/", deadline)
                    seconds = left(deadline)
                    # retry=None: with the client's own policy `timeout` bounds one try, not the call
                    reply = getattr(line.client, method)(
                        request=request, retry=None, timeout=seconds, metadata=metadata
                    )
                answer = accept(reply)
            except McpkeysError as exc:
                return exc
            except Exception as exc:
                answer = explain(exc, self._name, method=method, version=version)
            if not isinstance(answer, KmsUnreachable):
                return answer
            error = answer
            if line is not None and line.own and not answer.throttled:
                self._forget(line)
        return error

    def _connect(self) -> _Line:
        line = self._line
        if line is not None:
            return line
        with self._lock:
            if self._line is None:
                self._line = self._open()
            return self._line

    def _open(self) -> _Line:
        import grpc
        from google.cloud.kms_v1 import KeyManagementServiceClient
        from google.cloud.kms_v1.services.key_management_service.transports import KeyManagementServiceGrpcTransport

        channel = self._channel
        if channel is None:
            channel = grpc.secure_channel(
                self._endpoint,
                grpc.ssl_channel_credentials(),
                # A connection of its own, or a new channel would inherit a lost one's back-off of up to two minutes.
                options=[("grpc.use_local_subchannel_pool", 1)],
            )
        elif not isinstance(channel, grpc.Channel):
            channel = channel()
        elif os.getpid() != self._home:
            raise KekUnusable(
                "the gRPC channel that was handed in does not work after fork",
                next="hand in a function that returns a new channel instead",
                code="channel-forked",
            )
        transport = KeyManagementServiceGrpcTransport(channel=channel, host=self._endpoint)
        client = KeyManagementServiceClient(transport=transport)
        own = channel is not self._channel
        return _Line(os.getpid(), client, Identity(self._credentials, SCOPES), own)

    def _forget(self, line: _Line) -> None:
        """Let the next call connect anew; other calls on this line end by themselves."""
        with self._lock:
            if self._line is line:
                self._line = None


def _as_it_is(reply: Any) -> Any:
    return reply
