"""How people use the API, as a type checker sees it. Checked by test_typing.py against the installed wheel, never run.

Each `type: ignore` marks a mistake that the types have to catch: under --strict one that is not needed is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

from mcp.server.mcpserver import MCPServer
from mcp.server.request_state import RequestStateCodec, RequestStateSecurity

from mcpkeys import EnvelopeCodec, request_state_security
from mcpkeys.errors import ConfigurationError, McpkeysError, NotYet
from mcpkeys.kms import KekState, Kms, KmsFactory, Wrap, WrapContext
from mcpkeys.store import Found, Store, StoreFactory


def a_server() -> MCPServer[Any]:
    with EnvelopeCodec.open(
        "fleet", keyset="s3://acme-keys/fleet.json", keks=["awskms:///..."], signers=["ed25519:..."]
    ) as codec:
        assert_type(codec, EnvelopeCodec)
        assert_type(codec.seal(b"payload"), str)
        assert_type(codec.unseal("mk1..."), bytes)
        assert_type(codec.ready(), bool)
        as_the_sdk_wants_it: RequestStateCodec = codec
        return MCPServer("fleet", request_state_security=RequestStateSecurity(codec=as_the_sdk_wants_it))


def in_one_call() -> MCPServer[Any]:
    return MCPServer("fleet", request_state_security=request_state_security())


def without_a_kms() -> EnvelopeCodec:
    return EnvelopeCodec.from_secrets([b"...", "..."])


def mistakes(codec: EnvelopeCodec) -> None:
    codec.seal("text")  # type: ignore[arg-type]
    codec.unseal(b"bytes")  # type: ignore[arg-type]
    EnvelopeCodec.open("fleet", "s3://acme-keys/fleet.json")  # type: ignore[call-arg,misc,unused-ignore]
    EnvelopeCodec.open(refresh="sometimes")  # type: ignore[arg-type]
    WrapContext("sealing", "fleet", "AAAAAAAAAAAA")  # type: ignore[arg-type]


def errors(exc: McpkeysError) -> str:
    assert_type(exc.exit_code, int)
    assert_type(exc.code, str)
    if isinstance(exc, NotYet | ConfigurationError):
        return f"{exc.what}: {exc.why} ({exc.next})"
    return str(exc)


class MyKms:
    def __init__(self, uri: str, *, session: Any = None) -> None:
        self.uri = uri

    def wrap(self, key: bytes, context: WrapContext, *, deadline: float) -> Wrap:
        return Wrap(kek=self.uri, version="1", blob=key)

    def unwrap(self, wrap: Wrap, context: WrapContext, *, deadline: float) -> bytes:
        return wrap.blob

    def generate(self, context: WrapContext, *, deadline: float) -> Wrap | None:
        return None

    def rewrap(self, wrap: Wrap, context: WrapContext, *, deadline: float) -> Wrap | None:
        return None

    def describe(self, *, deadline: float) -> KekState:
        return KekState(exists=True, enabled=True)

    def close(self) -> None: ...


class MyStore:
    def __init__(self, uri: str, *, session: Any = None) -> None:
        self.uri = uri

    def read(self, known: str | None, *, fresh: bool, deadline: float) -> Found | None:
        return None

    def replace(self, body: bytes, expected: str | None, *, deadline: float) -> str:
        return "1"

    def reports(self, *, deadline: float) -> Iterator[Found]:
        yield from ()

    def put_report(self, instance: str, body: bytes, *, deadline: float) -> None: ...

    def delete_report(self, instance: str, *, deadline: float) -> None: ...

    def now(self, *, deadline: float) -> tuple[float, float]:
        return 0.0, 1.0

    def close(self) -> None: ...


class HalfAKms:
    uri = "half://"


a_kms: Kms = MyKms("my://key")
a_store: Store = MyStore("my://place")
kms_entry_point: KmsFactory = MyKms
store_entry_point: StoreFactory = MyStore
not_a_kms: Kms = HalfAKms()  # type: ignore[assignment]
