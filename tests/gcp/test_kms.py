"""GcpKms beyond the contract: checksums, versions, credentials, endpoint, logs, forks."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import RefreshError, TransportError
from google.cloud import kms_v1
from google.oauth2.credentials import Credentials
from servers import gcpkms
from servers.gcpkms import DESTROY_SCHEDULED, DESTROYED, DISABLED, ENABLED, Fault, GcpKmsDouble, ServiceAccount

from mcpkeys.errors import KekUnusable, KmsDenied, KmsUnreachable, SettingError, UnwrapRefused, UriError
from mcpkeys.kms import WrapContext
from mcpkeys.testing.child import in_child
from mcpkeys.testing.leaks import leaked
from mcpkeys_gcp import forks
from mcpkeys_gcp.kms import GcpKms

NAME = "projects/acme.com:prod/locations/europe-west3/keyRings/mcpkeys/cryptoKeys/fleet_1"
URI = f"gcpkms://{NAME}"
FORKS = 6
CONTEXT = WrapContext("seal", "fleet", "AbCdEfGhIjKl")


@pytest.fixture(scope="module")
def server() -> Iterator[GcpKmsDouble]:
    with GcpKmsDouble() as double:
        yield double


@pytest.fixture
def double(server: GcpKmsDouble) -> GcpKmsDouble:
    server.keys.clear()
    server.faults.clear()
    server.calls.clear()
    server.tokens.clear()
    server.accept, server.may_list_versions = None, True
    server.add_key(NAME)
    return server


@pytest.fixture
def kms(double: GcpKmsDouble) -> Iterator[GcpKms]:
    kms = open_kms(double)
    yield kms
    kms.close()


def open_kms(double: GcpKmsDouble, credentials: object = None, uri: str = URI) -> GcpKms:
    session = (credentials or AnonymousCredentials(), lambda: grpc.insecure_channel(double.endpoint))
    return GcpKms(uri, session=session)


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


# Checksums.


@pytest.mark.parametrize("what", ["ciphertext_crc", "verified", "verified_aad", "name", "garbage"])
def test_a_damaged_reply_to_encrypt_is_never_kept(double, kms, what):
    with double.fault(Fault("Encrypt", corrupt=what)), pytest.raises(KmsUnreachable) as caught:
        kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    assert not caught.value.throttled
    assert len(double.calls) == 4  # tried again: a damaged answer may be chance


@pytest.mark.parametrize("what", ["plaintext_crc", "plaintext", "garbage"])
def test_a_damaged_reply_to_decrypt_is_never_used(double, kms, what):
    wrap = kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    with double.fault(Fault("Decrypt", corrupt=what)), pytest.raises(KmsUnreachable):
        kms.unwrap(wrap, CONTEXT, deadline=soon())


def test_one_damaged_reply_is_survived(double, kms):
    key = os.urandom(32)
    with double.fault(Fault(corrupt="ciphertext_crc", times=1), Fault(corrupt="plaintext_crc", times=1)):
        wrap = kms.wrap(key, CONTEXT, deadline=soon())
        assert kms.unwrap(wrap, CONTEXT, deadline=soon()) == key


def test_the_double_refuses_requests_without_checksums_or_routing(double):
    """That the other tests pass shows that GcpKms sends both; this shows that they would fail otherwise."""
    from google.cloud.kms_v1.services.key_management_service.transports import KeyManagementServiceGrpcTransport

    channel = grpc.insecure_channel(double.endpoint)
    client = kms_v1.KeyManagementServiceClient(transport=KeyManagementServiceGrpcTransport(channel=channel))
    for more in ({}, {"plaintext_crc32c": 1, "additional_authenticated_data_crc32c": 0}):
        with pytest.raises(Exception, match="crc32c"):
            client.encrypt(request={"name": NAME, "plaintext": b"x", **more}, retry=None, timeout=5)
    raw = channel.unary_unary(f"/{gcpkms.SERVICE}/Encrypt")
    with pytest.raises(grpc.RpcError, match="routing"):
        raw(kms_v1.EncryptRequest.serialize(kms_v1.EncryptRequest(name=NAME)), timeout=5)
    channel.close()


# Versions and states.


def test_the_version_is_that_of_the_reply(double, kms):
    assert kms.wrap(b"k" * 16, CONTEXT, deadline=soon()).version == "1"
    double.keys[NAME].rotate()
    assert kms.wrap(b"k" * 16, CONTEXT, deadline=soon()).version == "2"


@pytest.mark.parametrize("state", [DISABLED, DESTROYED, DESTROY_SCHEDULED])
def test_an_unusable_version_is_named_with_the_way_out(double, kms, state):
    wrap = kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    double.keys[NAME].rotate()
    double.keys[NAME].states[1] = state
    with pytest.raises(KekUnusable, match="version 1 ") as caught:
        kms.unwrap(wrap, CONTEXT, deadline=soon())
    assert f"{NAME}/cryptoKeyVersions/1 is not enabled" in caught.value.why
    assert state.name in caught.value.why
    assert "mcpkeys rewrap" in caught.value.next


def test_describe_tells_newest_and_oldest_usable_across_pages(double, kms):
    key = double.keys[NAME]
    for _ in range(11):
        key.rotate()
    key.states[1] = key.states[2] = DESTROYED
    key.states[3] = DISABLED
    state = kms.describe(deadline=soon())
    assert (state.exists, state.enabled, state.newest, state.oldest_usable) == (True, True, "12", "4")


def test_describe_does_without_the_right_to_list(double, kms):
    double.may_list_versions = False
    state = kms.describe(deadline=soon())
    assert (state.enabled, state.newest, state.oldest_usable) == (True, "1", None)


def test_a_key_of_another_purpose_is_no_kek(double, kms):
    double.add_key(NAME, purpose=kms_v1.CryptoKey.CryptoKeyPurpose.ASYMMETRIC_SIGN)
    state = kms.describe(deadline=soon())
    assert (state.exists, state.enabled) == (True, False)
    assert "ASYMMETRIC_SIGN" in state.detail
    with pytest.raises(KekUnusable, match="cannot wrap"):
        kms.wrap(os.urandom(32), CONTEXT, deadline=soon())


def test_nothing_is_generated_or_rewrapped_without_showing_it(double, kms):
    wrap = kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    before = len(double.calls)
    assert kms.generate(CONTEXT, deadline=soon()) is None
    assert kms.rewrap(wrap, CONTEXT, deadline=soon()) is None
    assert len(double.calls) == before


def test_a_wrap_of_another_kek_makes_no_call(double, kms):
    wrap = kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    before = len(double.calls)
    for bad in (replace(wrap, kek=f"{URI}2"), replace(wrap, blob=b""), replace(wrap, blob=bytes(8193))):
        with pytest.raises(UnwrapRefused):
            kms.unwrap(bad, CONTEXT, deadline=soon())
    assert len(double.calls) == before


# Deadlines and retries.


def test_throttled_calls_are_tried_again(double, kms):
    key = os.urandom(32)
    with double.fault(Fault(code=grpc.StatusCode.RESOURCE_EXHAUSTED, times=2)):
        wrap = kms.wrap(key, CONTEXT, deadline=soon())
    assert [method for method, _ in double.calls] == ["Encrypt"] * 3
    assert kms.unwrap(wrap, CONTEXT, deadline=soon()) == key


def test_a_request_that_arrived_damaged_is_no_refusal(double, kms):
    """Google answers it by INVALID_ARGUMENT, as it answers a wrong context."""
    key = os.urandom(32)
    details = "The checksum in field ciphertext_crc32c did not match the data in field ciphertext."
    with double.fault(Fault(code=grpc.StatusCode.INVALID_ARGUMENT, details=details, times=2)):
        wrap = kms.wrap(key, CONTEXT, deadline=soon())
        assert kms.unwrap(wrap, CONTEXT, deadline=soon()) == key
    with (
        double.fault(Fault(code=grpc.StatusCode.INVALID_ARGUMENT, details=details)),
        pytest.raises(KmsUnreachable, match="damaged"),
    ):
        kms.unwrap(wrap, CONTEXT, deadline=soon())


def test_a_refusal_names_the_right_that_is_missing(double, kms):
    wrap = kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    for call, right in (
        (lambda: kms.wrap(os.urandom(32), CONTEXT, deadline=soon()), "useToEncrypt"),
        (lambda: kms.unwrap(wrap, CONTEXT, deadline=soon()), "useToDecrypt"),
        (lambda: kms.describe(deadline=soon()), "cryptoKeys.get"),
    ):
        with (
            double.fault(Fault(code=grpc.StatusCode.PERMISSION_DENIED)),
            pytest.raises(KmsDenied) as caught,
        ):
            call()
        assert right in caught.value.next


def test_a_blob_that_a_server_quotes_is_cut_out(double, kms):
    quoted = "pLaNtEd0" * 8
    with (
        double.fault(Fault(code=grpc.StatusCode.PERMISSION_DENIED, details=f"denied\nfor {quoted}\x07")),
        pytest.raises(KmsDenied) as caught,
    ):
        kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    assert "pLaNtEd0" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_answers_are_not_tried_again(double, kms):
    for code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND):
        double.calls.clear()
        with double.fault(Fault(code=code)), pytest.raises((KmsDenied, KekUnusable)):
            kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
        assert len(double.calls) == 1


def test_a_stopped_server_that_returns_is_found_at_once(double, kms):
    """A channel's own back-off would keep it away for up to two minutes."""
    wrap = kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    double.stop()
    try:
        for _ in range(6):
            with pytest.raises(KmsUnreachable):
                kms.unwrap(wrap, CONTEXT, deadline=soon(0.3))
    finally:
        double.start(double.port)
    begun = time.monotonic()
    kms.unwrap(wrap, CONTEXT, deadline=soon(2.0))
    assert time.monotonic() - begun < 1.5


def test_an_unwrap_is_one_call_and_unwraps_run_in_parallel(double, kms):
    wraps = [kms.wrap(os.urandom(32), CONTEXT, deadline=soon()) for _ in range(8)]
    double.calls.clear()
    begun = time.monotonic()
    with double.fault(Fault("Decrypt", delay=0.3)), ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda wrap: kms.unwrap(wrap, CONTEXT, deadline=soon()), wraps))
    assert [method for method, _ in double.calls] == ["Decrypt"] * 8
    assert time.monotonic() - begun < 1.6


# Credentials.


def test_every_call_carries_the_callers_token(double):
    kms = open_kms(double, Credentials(token="tok", quota_project_id="billed"))
    kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    kms.describe(deadline=soon())
    assert set(double.tokens) == {"Bearer tok"}


def test_no_credentials_at_all_is_told_as_such(double):
    kms = GcpKms(URI, session=(None, lambda: grpc.insecure_channel(double.endpoint)))
    with pytest.raises(KmsDenied) as caught:
        kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    assert caught.value.code == "credentials-missing"
    assert "GOOGLE_APPLICATION_CREDENTIALS" in caught.value.next
    assert double.calls == []


class Refreshing(Credentials):
    """Credentials whose renewal does what it is told to."""

    def __init__(self, does):
        super().__init__(token=None)
        self.does = does

    def refresh(self, request):
        self.does(self)


def raising(error: Exception):
    def does(credentials):
        raise error

    return does


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (
            RefreshError("invalid_grant: Bad Request", {"secret": "planted-in-the-reply"}),
            KmsDenied,
            "credentials-expired",
        ),
        (RefreshError("503 planted-in-the-reply", retryable=True), KmsUnreachable, "kms-unreachable"),
        (TransportError("planted-in-the-reply"), KmsUnreachable, "kms-unreachable"),
    ],
)
def test_credentials_that_cannot_be_renewed_are_told_apart(double, error, kind, code):
    kms = open_kms(double, Refreshing(raising(error)))
    with pytest.raises(kind) as caught:
        kms.wrap(os.urandom(32), CONTEXT, deadline=soon(1.0))
    assert caught.value.code == code
    assert "planted" not in str(caught.value)
    assert double.calls == []


def test_a_deadline_is_kept_when_the_token_endpoint_is_slow(double):
    def slow(credentials):
        time.sleep(2.5)

    kms = open_kms(double, Refreshing(slow))
    begun = time.monotonic()
    with pytest.raises(KmsUnreachable):
        kms.wrap(os.urandom(32), CONTEXT, deadline=soon(0.3))
    assert time.monotonic() - begun < 1.0


def test_a_token_is_renewed_once_for_many_threads(double):
    renewed = []

    def renew(credentials):
        renewed.append(1)
        time.sleep(0.2)
        credentials.token = "fresh"

    kms = open_kms(double, Refreshing(renew))
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: kms.wrap(os.urandom(32), CONTEXT, deadline=soon()), range(6)))
    assert len(renewed) == 1
    assert set(double.tokens) == {"Bearer fresh"}


# From the environment alone.

PROGRAM = """
import os, sys, time, json
from mcpkeys.registry import open_kms
from mcpkeys.kms import WrapContext
from mcpkeys.errors import McpkeysError
assert not any(name.startswith(("google", "grpc")) for name in sys.modules)
try:
    kms = open_kms(sys.argv[1])
    assert not any(name.startswith(("google.cloud.kms", "grpc")) for name in sys.modules), "imported before it is used"
    context, key = WrapContext("seal", "fleet", "AbCdEfGhIjKl"), os.urandom(32)
    wrap = kms.wrap(key, context, deadline=time.monotonic() + 10)
    assert kms.unwrap(wrap, context, deadline=time.monotonic() + 10) == key
    state = kms.describe(deadline=time.monotonic() + 10)
    print(json.dumps({"version": wrap.version, "enabled": state.enabled}))
except McpkeysError as error:
    print(json.dumps({"error": type(error).__name__, "code": error.code, "why": error.why}))
"""


@pytest.fixture(scope="module")
def standing(tmp_path_factory) -> Iterator[dict]:
    """The double as a program of its own, as `make demo KEK=gcp` starts it."""
    process = subprocess.Popen(
        [sys.executable, gcpkms.__file__, "--until-eof", "--dir", str(tmp_path_factory.mktemp("gcpkms"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(20)


def run(settings: dict, **changes: str) -> dict:
    base = {k: v for k, v in os.environ.items() if not k.startswith(("GOOGLE", "GRPC", "MCPKEYS"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, settings["keks"][0]],
        env={**base, **settings["environment"], **changes},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_endpoint_ca_and_service_account_come_from_the_environment(standing):
    """TLS under a CA of its own, self-signed tokens whose signature the server checks, no token endpoint."""
    assert run(standing) == {"version": "1", "enabled": True}


def test_a_ca_bundle_that_does_not_match_is_told_as_such(standing, tmp_path):
    (tmp_path / "other.pem").write_bytes(gcpkms.make_certificates()[0])
    told = run(standing, GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=str(tmp_path / "other.pem"))
    assert (told["error"], told["code"]) == ("KmsUnreachable", "kms-untrusted")


def test_a_service_account_that_the_server_does_not_know_is_denied(standing, tmp_path):
    (tmp_path / "sa.json").write_text(json.dumps(ServiceAccount().info()))
    told = run(standing, GOOGLE_APPLICATION_CREDENTIALS=str(tmp_path / "sa.json"))
    assert (told["error"], told["code"]) == ("KmsDenied", "credentials-expired")


@pytest.mark.parametrize("value", ["https://localhost:1", "localhost", "localhost:0", "localhost:99999", "a b:1", ":1"])
def test_a_wrong_endpoint_is_refused_naming_the_variable(monkeypatch, value):
    monkeypatch.setenv("MCPKEYS_GCP_KMS_ENDPOINT", value)
    with pytest.raises(SettingError, match="MCPKEYS_GCP_KMS_ENDPOINT") as caught:
        GcpKms(URI)
    assert "googleapis.com:443" in caught.value.next


# URIs.


@pytest.mark.parametrize(
    "uri",
    [
        "gcpkms://projects/p/locations/l/keyRings/r",
        "gcpkms://projects/p/locations/l/keyRings/r/cryptoKeys/",
        "gcpkms://projects/p/locations/l/keyRings/r/cryptoKeys/k/",
        "gcpkms://projects/p/locations/l/keyRings/r/cryptoKeys/k?x=1",
        "gcpkms:///projects/p/locations/l/keyRings/r/cryptoKeys/k",
        "gcpkms://projects/../locations/l/keyRings/r/cryptoKeys/k",
        "gcpkms://projects/p/locations/L/keyRings/r/cryptoKeys/k",
        "awskms:///arn:aws:kms:eu-west-1:1:key/1",
        "",
    ],
)
def test_other_uris_are_refused(uri):
    with pytest.raises(UriError) as caught:
        GcpKms(uri)
    assert caught.value.next


def test_a_version_in_the_uri_is_refused_with_the_way_out():
    with pytest.raises(UriError) as caught:
        GcpKms(f"{URI}/cryptoKeyVersions/3")
    assert URI in caught.value.next


def test_a_missing_extra_is_a_module_not_found(monkeypatch):
    import mcpkeys_gcp.kms as module

    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "google.cloud.kms_v1" else object())
    with pytest.raises(ModuleNotFoundError) as caught:
        GcpKms(URI)
    assert caught.value.name == "google.cloud.kms_v1"


# Logs.


class Everything(logging.Handler):
    def __init__(self):
        super().__init__(0)
        self.text, self.names = "", set()

    def emit(self, record):
        self.names.add(record.name)
        self.text += f"{record.getMessage()} {record.__dict__!r}\n"


@pytest.fixture
def everything() -> Iterator[Everything]:
    """Root, `google` and `grpc` at DEBUG with a handler: `google` does not propagate by itself."""
    handler = Everything()
    loggers = [logging.getLogger(name) for name in ("", "google", "grpc")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
        logger.addHandler(handler)
    yield handler
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.removeHandler(handler)


def test_keys_are_not_logged_with_every_logger_at_debug(double, everything):
    key, token = os.urandom(32), "planted-token-0a1b2c3d4e5f"
    kms = open_kms(double, Credentials(token=token))
    wrap = kms.wrap(key, CONTEXT, deadline=soon())
    assert kms.unwrap(wrap, CONTEXT, deadline=soon()) == key
    with double.fault(Fault(corrupt="garbage")), pytest.raises(KmsUnreachable):
        kms.unwrap(wrap, CONTEXT, deadline=soon(0.5))
    assert not leaked(everything.text, [key, token.encode()])


def test_the_same_calls_past_the_plugin_would_be_logged(double, everything):
    """Shows that the test above can fail, and that others' logging is left as it was."""
    from google.cloud.kms_v1.services.key_management_service.transports import KeyManagementServiceGrpcTransport

    open_kms(double).wrap(os.urandom(32), CONTEXT, deadline=soon())
    key = os.urandom(32)
    channel = grpc.insecure_channel(double.endpoint)
    client = kms_v1.KeyManagementServiceClient(transport=KeyManagementServiceGrpcTransport(channel=channel))
    request = {
        "name": NAME,
        "plaintext": key,
        "plaintext_crc32c": gcpkms.crc(key),
        "additional_authenticated_data_crc32c": gcpkms.crc(b""),
    }
    client.encrypt(request=request, retry=None, timeout=5)
    channel.close()
    assert leaked(everything.text, [key])


# Forks.


PLAIN = """
import sys
from servers.gcpkms import DEFAULT_KEY, Fault, GcpKmsDouble
with GcpKmsDouble(keys=(DEFAULT_KEY,)) as double:
    if len(sys.argv) > 1:
        double.faults.append(Fault("Decrypt", delay=float(sys.argv[1])))
    print(double.port, flush=True)
    sys.stdin.read()
"""


@contextmanager
def elsewhere(*delay: str) -> Iterator[GcpKms]:
    """A GcpKms whose server lives in another process: gRPC's own threads of a server would be forked otherwise."""
    root = str(Path(gcpkms.__file__).parent.parent)
    process = subprocess.Popen(
        [sys.executable, "-c", PLAIN, *delay],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert process.stdout is not None
    assert process.stdin is not None
    port = int(process.stdout.readline())
    kms = GcpKms(
        f"gcpkms://{gcpkms.DEFAULT_KEY}",
        session=(AnonymousCredentials(), lambda: grpc.insecure_channel(f"127.0.0.1:{port}")),
    )
    try:
        yield kms
    finally:
        kms.close()
        process.stdin.close()
        process.wait(20)


def test_children_forked_amid_calls_work():
    """A fork waits for calls in flight; without that, some children hang in their first call."""
    with elsewhere() as kms:
        key = os.urandom(32)
        wrap = kms.wrap(key, CONTEXT, deadline=soon())
        stop = threading.Event()

        def busy() -> int:
            calls = 0
            while not stop.is_set():
                assert kms.unwrap(wrap, CONTEXT, deadline=soon()) == key
                calls += 1
            return calls

        with ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(busy) for _ in range(3)]
            try:
                for _ in range(FORKS):
                    time.sleep(0.02)
                    assert in_child(lambda: str(kms.unwrap(wrap, CONTEXT, deadline=soon(4.0)) == key)) == "True"
            finally:
                stop.set()
            assert all(future.result() for future in futures)


def test_a_fork_waits_for_a_hung_call_no_longer_than_a_second():
    with elsewhere("2.5") as kms, ThreadPoolExecutor(1) as pool:
        key = os.urandom(32)
        wrap = kms.wrap(key, CONTEXT, deadline=soon())
        hung = pool.submit(lambda: kms.unwrap(wrap, CONTEXT, deadline=soon()))
        time.sleep(0.2)
        begun = time.monotonic()
        assert in_child(lambda: "alive") == "alive"
        assert time.monotonic() - begun < forks.WAIT_SECONDS + 1.0
        assert not hung.done()
        assert hung.result() == key


def test_a_channel_that_was_handed_in_does_not_pretend_to_survive_fork(double):
    channel = grpc.insecure_channel(double.endpoint)
    kms = GcpKms(URI, session=(AnonymousCredentials(), channel))
    wrap = kms.wrap(os.urandom(32), CONTEXT, deadline=soon())

    def work() -> str:
        try:
            kms.unwrap(wrap, CONTEXT, deadline=soon(3.0))
        except KekUnusable as error:
            return error.code
        return "no error"

    assert in_child(work) == "channel-forked"
    kms.close()
    kms.unwrap(wrap, CONTEXT, deadline=soon())
    channel.close()


def test_states_are_spelled_as_google_does():
    assert [s.name for s in (ENABLED, DISABLED, DESTROYED)] == ["ENABLED", "DISABLED", "DESTROYED"]
