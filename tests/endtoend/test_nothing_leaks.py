"""No output, log or error report of a keyset's whole life shows a key or a credential, on any backend."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from cli.conftest import Shell
from endtoend.hurry import hurrying
from endtoend.watch import Watch, watching
from endtoend.wire import BaoWire
from servers.aws_faults import FaultyProxy, Reply, kms_error, s3_error
from servers.fault_proxy import Answer, Request
from servers.gcpkms import DISABLED, Fault, GcpKmsDouble
from servers.moto import Moto
from servers.openbao import Bao

from mcpkeys.testing.leaks import leaked
from mcpkeys_local.kekfile import create_kek


@dataclass
class Place:
    """Where a keyset lives: its URIs, the credentials that lead there, and the ways in which it fails.

    Attributes:
        faults: each a context in which something fails, keys perhaps in flight.
    """

    keyset: str
    kek: str
    secrets: list[str | bytes]
    faults: list[Callable[[], AbstractContextManager[Any]]] = field(default_factory=list)


def damaged(body: bytes) -> list[tuple[int, bytes]]:
    """A right answer that does not arrive as one: cut, with something behind it, as an error, as a page."""
    return [(200, body[: len(body) * 9 // 10]), (200, body + b"}"), (500, body), (403, body), (200, b"<p>" + body)]


@pytest.fixture
def local(shell: Shell) -> Place:
    kek = shell.folder / "kek.key"
    create_kek(str(kek))
    material = kek.read_bytes()

    @contextmanager
    def holding(body: bytes) -> Iterator[None]:
        kek.write_bytes(body)
        yield
        kek.write_bytes(material)

    @contextmanager
    def no_reports() -> Iterator[None]:
        folder = shell.folder / "fleet.keyset.json.reports"
        folder.rename(shell.folder / "aside")
        folder.write_text("")
        yield
        folder.unlink()
        (shell.folder / "aside").rename(folder)

    contents = (material[:31], material + b"\n", material.hex().encode(), os.urandom(32))
    faults = [lambda body=body: holding(body) for body in contents]
    return Place(str(shell.keyset), f"local://{kek}", [material], [*faults, no_reports])


@pytest.fixture
def cloud_aws(shell: Shell, aws: Moto, faulty: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> Place:
    secret, session = base64.b64encode(os.urandom(30)).decode(), base64.b64encode(os.urandom(90)).decode()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_SESSION_TOKEN", session)

    def damage(which: int) -> AbstractContextManager[None]:
        def fault(exchange: Any, forward: Callable[[], Reply]) -> Reply:
            reply = forward()
            if not exchange.action.startswith("kms:"):
                return reply
            status, body = damaged(reply.body)[which]
            return Reply(status, body, {"Content-Type": "application/x-amz-json-1.1"})

        return faulty.failing(fault)

    def quoting(exchange: Any, forward: Callable[[], Reply]) -> Reply:
        """AWS's signature error repeats the canonical request, session token included."""
        message = f"The Canonical String should have been 'x-amz-security-token:{session}'"
        body = json.dumps({"__type": "InvalidSignatureException", "message": message}).encode()
        return Reply(403, body, {"Content-Type": "application/x-amz-json-1.1"})

    faults = [lambda which=which: damage(which) for which in range(5)]
    faults += [
        lambda fault=fault: faulty.failing(fault)
        for fault in (
            quoting,
            kms_error("AccessDeniedException", "not authorized", only="kms:Encrypt"),
            kms_error("DisabledException", only="kms:Decrypt"),
            s3_error("AccessDenied", only="s3:PUT"),
            lambda exchange, forward: Reply(0),
        )
    ]
    bucket = aws.create_bucket("keys-" + os.urandom(6).hex())
    return Place(f"s3://{bucket}/fleet.keyset.json", aws.create_key(), [secret, session], faults)


@pytest.fixture
def cloud_openbao(shell: Shell, bao: Bao, at_bao: BaoWire) -> Place:
    def setting(fault: Any) -> Callable[[], AbstractContextManager[None]]:
        @contextmanager
        def failing() -> Iterator[None]:
            at_bao.fault = fault
            yield
            at_bao.fault = lambda request, forward: forward()

        return failing

    def damage(which: int) -> Any:
        def fault(request: Request, forward: Callable[[], Answer]) -> Answer:
            status, headers, body = forward()
            if "/transit/" not in request[1] or "/keys/" in request[1]:
                return status, headers, body
            return (*damaged(body)[which][:1], headers, damaged(body)[which][1])

        return fault

    def refusing(under: str, status: int = 403) -> Any:
        said = {"Content-Type": "application/json"}, b'{"errors": ["1 error occurred: permission denied"]}'
        return lambda request, forward: (status, *said) if under in request[1] else forward()

    faults = [setting(damage(which)) for which in range(5)]
    faults += [setting(refusing("/transit/encrypt")), setting(refusing("/transit/decrypt"))]
    faults += [setting(refusing(".reports/")), setting(refusing("/", 503)), setting(lambda request, forward: None)]
    keyset = f"vaultkv://secret/leaks/{os.urandom(5).hex()}"
    return Place(keyset, f"hashivault://{bao.transit_key()}", [bao.token], faults)


@pytest.fixture
def cloud_google(shell: Shell, google: GcpKmsDouble) -> Place:
    name = f"projects/acme-prod/locations/europe-west3/keyRings/mcpkeys/cryptoKeys/k{os.urandom(5).hex()}"
    key = google.add_key(name)
    google.tokens.clear()
    private = json.loads((shell.folder / "service-account.json").read_text())["private_key"]
    inside = "".join(private.splitlines()[1:-1])

    @contextmanager
    def disabled() -> Iterator[None]:
        before, key.states[1] = key.states[1], DISABLED
        yield
        key.states[1] = before

    kinds = [
        Fault("Decrypt", corrupt="plaintext_crc"),
        Fault("Decrypt", corrupt="plaintext"),
        Fault("Encrypt", corrupt="ciphertext_crc"),
        Fault("Encrypt", code=grpc.StatusCode.PERMISSION_DENIED),
        Fault(corrupt="garbage"),
        Fault(code=grpc.StatusCode.UNAUTHENTICATED),
    ]
    faults: list[Callable[[], AbstractContextManager[Any]]] = [
        lambda fault=fault: google.fault(Fault(fault.method, fault.code, corrupt=fault.corrupt)) for fault in kinds
    ]
    return Place(str(shell.keyset), google.uri(name), [inside, key.material[1]], [*faults, disabled])


def live(watch: Watch, place: Place) -> None:
    """A keyset's life: created, looked at, rotated, served, inspected, burnt."""
    ran = watch.run("init", "fleet", "--keyset", place.keyset, "--kek", place.kek, "--refresh", "1", "--output", "json")
    assert ran.code == 0, ran
    watch.shell.environ |= json.loads(ran.out)["settings"]
    watch.learn()
    codec = watch.open()
    assert codec is not None
    with codec:
        state = os.urandom(24).hex().encode()
        watch.hide(state)
        token = codec.seal(state)
        assert watch.run("rotate", "--phase", "1", "--yes").code == 0
        watch.learn()
        for arguments in (("status",), ("status", "--output", "json"), ("verify",), ("history",), ("doctor",)):
            watch.run(*arguments)
        for extra in ((), ("--output", "json")):
            assert watch.run("inspect", "-", *extra, stdin=token.encode()).code in (0, 3)
            assert watch.run("inspect", "-", *extra, stdin=token[:-3].encode()).code == 3
        watch.run("rewrap", "--renew", "--yes")
        kid = codec.ring.minting
        assert kid is not None
        burnt = watch.run("rotate", "--emergency", "--kid", kid, "--reason", "leaked", "--yes")
        assert burnt.code in (0, 6), burnt
        codec.refresher.step()
        watch.shown += [repr(codec.status()), repr(codec.ring), repr(codec.ring.keys)]
    watch.learn()


def fail(watch: Watch, place: Place) -> None:
    """Each fault met by a server's start and by every command that handles keys."""
    document = watch.stored()
    for fault in place.faults:
        before = watch.errors
        with fault(), hurrying():
            codec = watch.open()
            if codec is not None:
                codec.close()
            watch.run("status")
            watch.run("rotate", "--phase", "1", "--expect", "0", "--yes")
            watch.run("init", "other", "--keyset", str(watch.shell.folder / "other.json"), "--kek", place.kek)
            (watch.shell.folder / "other.json").unlink(missing_ok=True)
        assert watch.errors > before, "this fault was met by nobody"
    assert document


LONG = pytest.mark.slow


@pytest.mark.parametrize(
    ("where", "faults"),
    [("local", 9), ("aws", 1), ("openbao", 1)]
    + [pytest.param(where, 99, marks=LONG) for where in ("aws", "openbao", "google")],
)
def test_nothing_shows_a_key_or_a_credential(
    shell: Shell, where: str, faults: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    place: Place = request.getfixturevalue(where if where == "local" else f"cloud_{where}")
    place.faults[faults:] = []
    with watching(shell, monkeypatch) as watch:
        watch.hide(*place.secrets)
        live(watch, place)
        fail(watch, place)
        if where == "google":
            double: GcpKmsDouble = request.getfixturevalue("google")
            watch.hide(*{token.rsplit(".", 1)[-1] for token in double.tokens if token is not None})
    assert watch.errors >= len(place.faults)
    assert len(watch.secrets) > 12
    assert len(watch.text) > 10_000
    begun = time.monotonic()
    for number, secret in enumerate(sorted(watch.secrets)):
        if leaked(watch.text, [secret]):
            pytest.fail(f"secret {number} of {len(secret)} bytes is shown: {where_shown(watch, secret)}")
    assert time.monotonic() - begun < 60
    for spelling in (secret.hex(), base64.b64encode(secret).decode(), base64.urlsafe_b64encode(b"x" + secret).decode()):
        assert leaked(watch.text + spelling, [secret]), "the search finds"
    assert leaked(watch.text + repr(secret), [secret])


def where_shown(watch: Watch, secret: bytes) -> str:
    """Which piece shows it, by its first words: never the piece itself."""
    return "; ".join(" ".join(piece.split()[:4])[:60] for piece in watch.shown if leaked(piece, [secret]))
