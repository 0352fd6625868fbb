"""Deadlines, credentials and logs: how calls to AWS behave on a real network and a real machine."""

from __future__ import annotations

import datetime
import json
import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from servers.aws_faults import FaultyProxy, Reply
from servers.moto import Moto

from mcpkeys.errors import (
    ConfigurationError,
    KekUnusable,
    KmsDenied,
    KmsUnreachable,
    PluginError,
    StoreDenied,
    StoreUnreachable,
)
from mcpkeys.kms import Wrap
from mcpkeys.registry import open_kms, open_store
from mcpkeys.testing.kms import a_context
from mcpkeys.testing.leaks import Listener, leaked
from mcpkeys_aws import calls
from mcpkeys_aws.kms import AwsKms
from mcpkeys_aws.store import S3Store

URI = "awskms:///arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def soon(seconds: float = 15.0) -> float:
    return time.monotonic() + seconds


def unwrap(uri: str = URI, deadline: float | None = None, **given: object) -> bytes:
    kms = AwsKms(uri, **given)
    return kms.unwrap(Wrap(uri, "", bytes(range(9, 99))), a_context(), deadline=deadline or soon())


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A loopback port whose connections `serve` gets, each in a thread of its own."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        open_ones: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                open_ones.append(connection)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        for connection in open_ones:
            connection.close()


def says_nothing(connection: socket.socket) -> None:
    return None


def trickles(connection: socket.socket) -> None:
    """A byte every 100 ms: no single read ever takes long."""
    try:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n")
        while True:
            connection.sendall(b" ")
            time.sleep(0.1)
    except OSError:
        return


@pytest.mark.parametrize("server", [says_nothing, trickles])
def test_a_deadline_holds_whatever_the_server_does(aws: Moto, monkeypatch, server) -> None:
    with listening(server) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        kms = AwsKms(URI)
        with pytest.raises(KmsUnreachable):  # the first call also builds the client
            kms.describe(deadline=soon(0.2))
        begun = time.monotonic()
        with pytest.raises(KmsUnreachable) as caught:
            kms.describe(deadline=begun + 0.3)
        assert time.monotonic() - begun < 0.3 + 0.5
        assert "deadline" in caught.value.why
        with pytest.raises(StoreUnreachable):
            S3Store("s3://abc/k").read(None, fresh=True, deadline=soon(0.3))


def test_a_passed_deadline_costs_no_call(faulty: FaultyProxy) -> None:
    with pytest.raises(KmsUnreachable):
        unwrap(deadline=time.monotonic() - 0.001)
    assert faulty.seen == []


def test_a_closed_port_is_told_at_once(aws: Moto, monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    with pytest.raises(KmsUnreachable) as caught:
        unwrap()
    assert "cannot be reached" in caught.value.why
    assert "AWS_ENDPOINT_URL" in caught.value.next


def test_a_proxy_that_does_not_answer_is_named(aws: Moto, monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.2:9")
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(KmsUnreachable) as caught:
        unwrap()
    assert "proxy" in caught.value.why
    assert "HTTPS_PROXY" in caught.value.next


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> str:
    """A certificate for 127.0.0.1 that nobody has signed but itself, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    pem = serialization.Encoding.PEM
    path.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(pem)
    )
    return str(path)


@pytest.mark.parametrize("bundle", ["none", "absent"])
def test_a_certificate_that_is_not_trusted_names_the_ca_bundle(
    aws: Moto, monkeypatch, certificate: str, bundle
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def serve(connection: socket.socket) -> None:
        with pytest.raises(OSError):
            context.wrap_socket(connection, server_side=True).recv(1)

    if bundle == "absent":
        monkeypatch.setenv("AWS_CA_BUNDLE", "/nonexistent/ca.pem")
    with listening(serve) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{port}")
        with pytest.raises(KmsUnreachable) as caught:
            unwrap()
    assert caught.value.code == "tls-untrusted"
    assert "AWS_CA_BUNDLE" in caught.value.next


# Credentials.


def test_no_credentials_at_all_is_said_so(aws: Moto, monkeypatch) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    with pytest.raises(KmsDenied) as caught:
        unwrap()
    assert caught.value.code == "credentials-missing"
    with pytest.raises(StoreDenied) as told:
        S3Store("s3://abc/k").read(None, fresh=True, deadline=soon())
    assert told.value.code == "credentials-missing"
    assert "AWS_PROFILE" in told.value.next


def test_half_of_a_credential_is_said_so(aws: Moto, monkeypatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(KmsDenied) as caught:
        unwrap()
    assert caught.value.code == "credentials-missing"


def test_a_profile_that_does_not_exist_is_a_matter_of_configuration(aws: Moto, monkeypatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(KekUnusable) as caught:
        unwrap()
    assert caught.value.code == "aws-configuration"
    with pytest.raises(ConfigurationError) as told:
        S3Store("s3://abc/k").read(None, fresh=True, deadline=soon())
    assert told.value.code == "aws-configuration"


def test_an_sso_session_that_was_never_opened_asks_for_a_login(aws: Moto, monkeypatch, tmp_path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "[default]\nsso_session=s\nsso_account_id=111122223333\nsso_role_name=r\n"
        "[sso-session s]\nsso_region=eu-central-1\nsso_start_url=https://127.0.0.1/start\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    with pytest.raises(KmsDenied) as caught:
        unwrap()
    assert caught.value.code == "credentials-expired"
    assert "aws sso login" in caught.value.next


def signed_by(proxy: FaultyProxy) -> set[str]:
    """The access key ids that signed the KMS calls which passed."""
    told = [call.headers["Authorization"] for call in proxy.seen if call.action.startswith("kms:")]
    return {line.split("Credential=")[1].split("/")[0] for line in told}


def test_an_assumed_role_is_used_and_its_credentials_are_not_logged(
    aws: Moto, faulty: FaultyProxy, monkeypatch, tmp_path
) -> None:
    config = tmp_path / "config"
    config.write_text(
        "[profile web]\nrole_arn=arn:aws:iam::123456789012:role/web\nsource_profile=base\n"
        "[profile base]\naws_access_key_id=AKIAIOSFODNN7EXAMPLE\naws_secret_access_key=x\n"
    )
    uri = aws.create_key()
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "web")
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    with Listener() as listener:
        assert AwsKms(uri).describe(deadline=soon()).enabled
    (assume,) = [call for call in faulty.seen if b"AssumeRole" in call.body]
    secret = assume.answer.split(b"<SecretAccessKey>")[1].split(b"<")[0]
    token = assume.answer.split(b"<SessionToken>")[1].split(b"<")[0]
    assert not leaked(listener.text, [secret, token])
    assert signed_by(faulty) == {assume.answer.split(b"<AccessKeyId>")[1].split(b"<")[0].decode()}


def test_a_web_identity_is_exchanged(aws: Moto, faulty: FaultyProxy, monkeypatch, tmp_path) -> None:
    (tmp_path / "token").write_text("header.payload.signature")
    uri = aws.create_key()
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/pod")
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    with Listener() as listener:
        assert AwsKms(uri).describe(deadline=soon()).enabled
    assert any(b"AssumeRoleWithWebIdentity" in call.body for call in faulty.seen)
    assert signed_by(faulty)
    assert "AKIAIOSFODNN7EXAMPLE" not in signed_by(faulty)
    assert "header.payload.signature" not in listener.text


def test_a_containers_credentials_are_fetched(aws: Moto, faulty: FaultyProxy, monkeypatch) -> None:
    uri = aws.create_key()
    lasts = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=6)).strftime("%Y-%m-%dT%H:%M:%SZ")
    given = {"AccessKeyId": "ASIACONTAINER", "SecretAccessKey": "s3cr3t", "Token": "t0ken", "Expiration": lasts}

    def provider(exchange, forward):
        if exchange.path != "/credentials":
            return forward()
        assert exchange.headers["Authorization"] == "pod-token"
        return Reply(200, json.dumps(given).encode(), {"Content-Type": "application/json"})

    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{faulty.endpoint}/credentials")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "pod-token")
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    with faulty.failing(provider):
        assert AwsKms(uri).describe(deadline=soon()).enabled
    assert signed_by(faulty) == {"ASIACONTAINER"}


def test_a_credential_provider_that_hangs_does_not_outlast_the_deadline(aws: Moto, monkeypatch) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    with listening(says_nothing) as port:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{port}/credentials")
        begun = time.monotonic()
        with pytest.raises(KmsUnreachable):
            unwrap(deadline=begun + 0.5)
        assert time.monotonic() - begun < 1.2


def test_a_session_that_the_caller_brings_is_used(aws: Moto, faulty: FaultyProxy) -> None:
    import boto3

    session = boto3.Session(aws_access_key_id="AKIABROUGHT", aws_secret_access_key="x", region_name="us-east-1")
    uri = aws.create_key()
    kms = open_kms(uri, session=session)
    assert kms.describe(deadline=soon()).enabled
    assert signed_by(faulty) == {"AKIABROUGHT"}
    assert "/eu-central-1/kms/" in faulty.seen[0].headers["Authorization"], "the key's region, not the session's"


# Logs.


def test_the_callers_own_boto3_logs_as_before_and_ours_shows_nothing(aws: Moto) -> None:
    kms, context, key = AwsKms(aws.create_key()), a_context(), os.urandom(32)
    wrap = kms.wrap(key, context, deadline=soon())
    with Listener() as ours:
        assert kms.unwrap(wrap, context, deadline=soon()) == key
    assert not leaked(ours.text, [key])
    with Listener() as theirs:
        aws.client("kms").decrypt(CiphertextBlob=wrap.blob, EncryptionContext=context.pairs())
    assert leaked(theirs.text, [key]), "botocore no longer logs plaintexts: the filter can go"


def test_a_logger_that_appears_later_is_covered_by_name(aws: Moto) -> None:
    from mcpkeys_aws import quiet

    quiet.install()
    handler = Listener()
    with handler, quiet.quiet():
        for name in ("botocore", "botocore.parsers", "botocore.retries.standard", "botocore.auth", "botocore.endpoint"):
            logging.getLogger(name).debug("planted detail")
            logging.getLogger(name).warning("a warning of %s", name)
    assert "planted detail" not in handler.text
    assert "a warning of botocore.parsers" in handler.text


# Modules and processes.


def test_importing_the_plugin_imports_no_sdk() -> None:
    program = (
        "import sys, mcpkeys_aws.kms, mcpkeys_aws.store, mcpkeys_aws.policy\n"
        f"mcpkeys_aws.kms.AwsKms({URI!r})\n"
        "assert not {'boto3', 'botocore', 'mcp'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_missing_boto3_is_named_with_the_command_that_installs_it(monkeypatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for opening in (lambda: open_kms(URI), lambda: open_store("s3://acme-keys/k")):
        with pytest.raises(PluginError) as caught:
            opening()
        assert caught.value.code == "extra-missing"
        assert "mcpkeys[aws]" in caught.value.next


def test_a_call_is_made_even_where_no_thread_can_start(aws: Moto, monkeypatch) -> None:
    """At interpreter shutdown: the farewell of an instance still has to go out."""

    def refuses(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    kms = AwsKms(aws.create_key())
    monkeypatch.setattr(calls.threading.Thread, "start", refuses)
    assert kms.describe(deadline=soon()).enabled


def test_a_farewell_goes_out_at_exit(aws: Moto) -> None:
    bucket = aws.create_bucket("keys-" + os.urandom(6).hex())
    program = (
        "import atexit, time\n"
        "from mcpkeys_aws.store import S3Store\n"
        f"store = S3Store('s3://{bucket}/k')\n"
        "store.put_report('a' * 22, b'joining', deadline=time.monotonic() + 20)\n"
        "atexit.register(lambda: store.put_report('a' * 22, b'farewell', deadline=time.monotonic() + 20))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    (found,) = S3Store(f"s3://{bucket}/k").reports(deadline=soon())
    assert found.body == b"farewell"
