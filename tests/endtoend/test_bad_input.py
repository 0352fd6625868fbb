"""Everything that goes wrong with a KMS, through `status`, a server's start and `init`: what, why, next, exit code."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import grpc
import pytest
from cli.conftest import Shell
from endtoend.doors import check, command, creation, every, server
from endtoend.hurry import hurrying
from endtoend.wire import BaoWire, aws_calls
from servers.aws_faults import Fault, FaultyProxy, Reply, answering, kms_error, slow
from servers.fault_proxy import Answer, Request
from servers.gcpkms import DESTROYED, DISABLED, GcpKmsDouble
from servers.gcpkms import Fault as GoogleFault
from servers.moto import Moto
from servers.openbao import Bao

ASYMMETRIC_SIGN = 5
RING = "projects/acme-prod/locations/europe-west3/keyRings/mcpkeys/cryptoKeys"


def keyset(shell: Shell, *keks: str) -> None:
    options = [option for kek in keks for option in ("--kek", kek)]
    answer = shell.json("init", "fleet", "--keyset", str(shell.keyset), *options)
    assert answer["ok"], answer
    shell.environ |= answer["settings"]


def cases(table: Mapping[str, Any], *long: str) -> list[Any]:
    """The names of a table; those in `long` are left to the long run."""
    return [pytest.param(name, marks=pytest.mark.slow if name in long else ()) for name in table]


# --- AWS ------------------------------------------------------------------------------------------------------

AWS: dict[str, tuple[Fault, int, str | None, tuple[str, ...]]] = {
    "wrong account": (
        kms_error(
            "AccessDeniedException",
            "User: arn:aws:sts::111122223333:assumed-role/web/i-1 is not authorized to perform this on this resource "
            "because the resource does not exist in this Region, or no resource-based policies allow access",
        ),
        7,
        "kms-denied",
        ("assumed-role/web", "mcpkeys policy aws"),
    ),
    "disabled": (kms_error("DisabledException", "it is disabled."), 2, None, ("disabled", "enable")),
    "pending deletion": (
        kms_error("KMSInvalidStateException", "it is pending deletion."),
        2,
        None,
        ("pending deletion", "cancel its deletion"),
    ),
    "cannot encrypt": (kms_error("InvalidKeyUsageException"), 2, None, ("cannot encrypt", "create-key")),
    "expired credentials": (
        kms_error("ExpiredTokenException", "The security token included in the request is expired"),
        7,
        "credentials-expired",
        ("expired", "aws sso login"),
    ),
    "clock six minutes slow": (
        kms_error(
            "InvalidSignatureException",
            "Signature expired: 20261130T000000Z is now earlier than 20261130T000100Z (20261130T000600Z - 5 min.)",
        ),
        7,
        "clock-skew",
        ("clock", "chronyc"),
    ),
    "clock six minutes fast": (
        kms_error(
            "InvalidSignatureException",
            "Signature not yet current: 20261130T000600Z is still later than 20261130T000500Z (now + 5 min.)",
        ),
        7,
        "clock-skew",
        ("clock", "timedatectl"),
    ),
    "credentials of nobody": (
        kms_error("UnrecognizedClientException", "The security token included in the request is invalid."),
        7,
        "credentials-invalid",
        ("get-caller-identity",),
    ),
    "after the deadline": (slow(1.4), 4, "kms-unreachable", ("deadline", "network path")),
    "server error": (kms_error("KMSInternalException", status=500), 4, "kms-unreachable", ("500",)),
    "throttled": (kms_error("ThrottlingException", "Rate exceeded"), 4, "kms-throttled", ("quota",)),
    "connection lost": (lambda exchange, forward: Reply(0), 4, "kms-unreachable", ("connection",)),
    "a page": (answering(200, b"<html>welcome</html>"), 4, "kms-unreachable", ("HTTPS_PROXY",)),
    "a redirect": (answering(302, b""), 4, "kms-unreachable", ("HTTPS_PROXY",)),
    "nothing": (answering(200, b""), 4, "kms-unreachable", ()),
    "another shape": (answering(200, b'{"KeyId": 7, "Plaintext": "", "CiphertextBlob": []}'), 4, None, ()),
}


@pytest.fixture
def at_aws(shell: Shell, aws: Moto, faulty: FaultyProxy) -> str:
    kek = aws.create_key()
    keyset(shell, kek)
    faulty.seen.clear()
    return kek


@pytest.mark.parametrize(
    "case", cases(AWS, "server error", "credentials of nobody", "a redirect", "nothing", "clock six minutes fast")
)
def test_aws(shell: Shell, at_aws: str, faulty: FaultyProxy, case: str) -> None:
    fault, exit, code, words = AWS[case]
    with faulty.failing(fault), hurrying() if exit == 4 else nullcontext():
        for told in every(shell, at_aws):
            check(told, exit, code, *words, kek=at_aws)
    assert shell.json("status")["exit"] == 0, "and all is well afterwards"


@pytest.mark.parametrize("missing", ["both", "half"])
def test_aws_without_credentials(
    shell: Shell, at_aws: str, faulty: FaultyProxy, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    if missing == "both":
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    for told in every(shell, at_aws):
        check(told, 7, "credentials-missing", "AWS_PROFILE", kek=at_aws)
    assert not aws_calls(faulty)


def test_aws_behind_a_certificate_that_is_not_trusted(
    shell: Shell, at_aws: str, stranger: str, hurried: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", stranger)
    for told in every(shell, at_aws):
        check(told, 4, "tls-untrusted", "AWS_CA_BUNDLE", kek=at_aws)


def test_aws_in_the_wrong_region(shell: Shell, at_aws: str, faulty: FaultyProxy) -> None:
    elsewhere = at_aws.replace(":eu-central-1:", ":us-east-1:")
    check(creation(shell, elsewhere), 2, "kek-not-found", "us-east-1", "check region, account", kek=elsewhere)
    faulty.seen.clear()
    shell.environ["MCPKEYS_KEKS"] = elsewhere
    for told in (command(shell, "status"), server(shell)):
        check(told, 2, "keyset-locked", at_aws, "MCPKEYS_KEKS", kek=elsewhere)
    assert not aws_calls(faulty), "a KEK that wrapped nothing here is not called"


@pytest.mark.parametrize("kind", [{"KeyUsage": "SIGN_VERIFY", "KeySpec": "ECC_NIST_P256"}])
def test_aws_key_that_cannot_encrypt(shell: Shell, aws: Moto, kind: dict[str, str]) -> None:
    key = aws.create_key(**kind)
    name = "signing-" + os.urandom(4).hex()
    aws.client("kms").create_alias(AliasName=f"alias/{name}", TargetKeyId=key.removeprefix("awskms:///"))
    alias = f"awskms:///alias/{name}?region=eu-central-1"
    check(creation(shell, alias), 2, "kek-unusable", "SIGN_VERIFY", "aws kms create-key", kek=alias)


def test_an_alias_is_pinned_as_the_key_behind_it_and_may_move(shell: Shell, aws: Moto, faulty: FaultyProxy) -> None:
    """Whoever may repoint an alias must not decide who sees the data keys."""
    first, second = aws.create_key(), aws.create_key()
    name = "alias/fleet-" + os.urandom(4).hex()
    alias = f"awskms:///{name}?region=eu-central-1"
    aws.client("kms").create_alias(AliasName=name, TargetKeyId=first.removeprefix("awskms:///"))
    keyset(shell, alias)
    assert shell.environ["MCPKEYS_KEKS"] == first
    aws.client("kms").update_alias(AliasName=name, TargetKeyId=second.removeprefix("awskms:///"))
    faulty.seen.clear()
    assert shell.json("status")["exit"] == 0
    assert shell.json("rotate", "--phase", "1", "--expect", "0", "--yes")["exit"] == 0
    assert aws_calls(faulty)
    assert not [call for call in aws_calls(faulty) if b"alias/" in call.sent or second[-36:].encode() in call.sent]
    faulty.seen.clear()
    shell.environ["MCPKEYS_KEKS"] = alias
    for told in (command(shell, "status"), server(shell)):
        check(told, 2, None, "alias", "ARN")
    assert not aws_calls(faulty)


# --- Vault and OpenBao ------------------------------------------------------------------------------------------

VaultFault = Callable[[Request, Callable[[], Answer]], Answer | None]
JSON = {"Content-Type": "application/json"}


def saying(status: int, body: bytes) -> VaultFault:
    return lambda request, forward: (status, JSON, body)


def late(request: Request, forward: Callable[[], Answer]) -> Answer:
    time.sleep(1.4)
    return forward()


VAULT: dict[str, tuple[VaultFault, int, str | None, tuple[str, ...]]] = {
    "sealed": (saying(503, b'{"errors": ["Vault is sealed"]}'), 4, "vault-sealed", ("sealed", "unseal")),
    "standby": (saying(473, b""), 4, "vault-standby", ("standby", "active node")),
    "throttled": (saying(429, b'{"errors": ["quota exceeded"]}'), 4, "vault-throttled", ("quota",)),
    "after the deadline": (late, 4, "kms-unreachable", ("VAULT_ADDR",)),
    "server error": (saying(500, b'{"errors": ["internal error"]}'), 4, "kms-unreachable", ("500",)),
    "connection lost": (lambda request, forward: None, 4, "kms-unreachable", ("VAULT_ADDR",)),
    "a page": (saying(200, b"<html>welcome</html>"), 4, "kms-unreachable", ("VAULT_ADDR",)),
    "another shape": (saying(200, b'{"data": {"plaintext": 7, "ciphertext": []}}'), 4, None, ()),
}


@pytest.fixture
def at_vault(shell: Shell, bao: Bao, at_bao: BaoWire) -> str:
    kek = f"hashivault://{bao.transit_key()}"
    keyset(shell, kek)
    at_bao.calls = []
    return kek


def unless_described(fault: VaultFault) -> VaultFault:
    """Only where keys pass; `init` reads the key first, and may say what is wrong with that answer instead."""

    def faulty(request: Request, forward: Callable[[], Answer]) -> Answer | None:
        return forward() if "/transit/keys/" in request[1] else fault(request, forward)

    return faulty


@pytest.mark.parametrize(
    "case", cases(VAULT, "server error", "throttled", "after the deadline", "standby", "connection lost")
)
def test_vault(shell: Shell, at_vault: str, at_bao: BaoWire, case: str) -> None:
    fault, exit, code, words = VAULT[case]
    at_bao.fault = unless_described(fault) if case == "another shape" else fault
    with hurrying() if exit == 4 else nullcontext():
        for told in every(shell, at_vault):
            check(told, exit, code, *words, kek=at_vault)
    at_bao.fault = lambda request, forward: forward()
    assert shell.json("status")["exit"] == 0


def test_vault_in_an_unknown_namespace(shell: Shell, at_vault: str, bao: Bao, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = f"{at_vault}?namespace=nowhere"
    check(creation(shell, unknown), 2, "namespace-not-found", "nowhere", "VAULT_NAMESPACE", kek=unknown)


def test_vault_with_a_mistyped_mount_or_key(shell: Shell, at_vault: str, at_bao: BaoWire) -> None:
    check(creation(shell, f"{at_vault}?mount=transitt"), 2, "mount-not-found", "transitt", "enable the engine")
    check(creation(shell, f"{at_vault}x"), 2, "kek-not-found", "correct the URI", kek=f"{at_vault}x")
    assert not [call for call in at_bao.calls if call.action == "encrypt"], "a mistyped key is never created"


@pytest.mark.parametrize(
    ("token", "code", "word"),
    [
        ("", "credentials-missing", "MCPKEYS_VAULT_AUTH"),
        ("revoked", "credentials-expired", "new token"),
        ("useless", "permission", "mcpkeys policy vault"),
    ],
)
def test_vault_with_a_token_that_opens_nothing(
    shell: Shell, at_vault: str, bao: Bao, monkeypatch: pytest.MonkeyPatch, token: str, code: str, word: str
) -> None:
    if token:
        made = bao.token_for('path "sys/nothing" { capabilities = ["read"] }')
        monkeypatch.setenv("VAULT_TOKEN", made)
        if token == "revoked":
            bao.api("POST", "auth/token/revoke", {"token": made})
    else:
        monkeypatch.delenv("VAULT_TOKEN")
    for told in every(shell, at_vault):
        check(told, 7, code, kek=at_vault)
        assert word in told.text or "grant read on" in told.next, told


def test_vault_behind_a_certificate_that_is_not_trusted(
    shell: Shell, at_vault: str, stranger: str, hurried: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VAULT_ADDR", stranger)
    for told in every(shell, at_vault):
        check(told, 4, "vault-tls", "VAULT_CACERT", kek=at_vault)


# --- Google Cloud -------------------------------------------------------------------------------------------------

GOOGLE: dict[str, tuple[GoogleFault, int, str | None, tuple[str, ...]]] = {
    "wrong project": (
        GoogleFault(
            code=grpc.StatusCode.PERMISSION_DENIED, details="Permission denied on resource (or it may not exist)."
        ),
        7,
        "kms-denied",
        ("mcpkeys policy gcp",),
    ),
    "not there": (GoogleFault(code=grpc.StatusCode.NOT_FOUND, details="not found"), 2, "kek-missing", ("key ring",)),
    "expired credentials": (
        GoogleFault(code=grpc.StatusCode.UNAUTHENTICATED, details="invalid authentication credentials"),
        7,
        "credentials-expired",
        ("clock",),
    ),
    "unavailable": (GoogleFault(code=grpc.StatusCode.UNAVAILABLE, details="down"), 4, "kms-unreachable", ("443",)),
    "after the deadline": (GoogleFault(delay=1.4), 4, "kms-unreachable", ("in time",)),
    "throttled": (
        GoogleFault(code=grpc.StatusCode.RESOURCE_EXHAUSTED, details="quota"),
        4,
        "kms-throttled",
        ("quota",),
    ),
    "garbage": (GoogleFault(corrupt="garbage"), 4, None, ("try again",)),
}


@pytest.fixture
def at_google(shell: Shell, google: GcpKmsDouble) -> str:
    name = f"{RING}/k{os.urandom(5).hex()}"
    google.add_key(name)
    keyset(shell, google.uri(name))
    return google.uri(name)


@pytest.mark.parametrize("case", cases(GOOGLE, "throttled", "not there", "after the deadline", "garbage"))
def test_google(shell: Shell, at_google: str, google: GcpKmsDouble, case: str) -> None:
    fault, exit, code, words = GOOGLE[case]
    with google.fault(fault), hurrying() if exit == 4 else nullcontext():
        for told in every(shell, at_google):
            check(told, exit, code, *words)
    assert shell.json("status")["exit"] == 0


@pytest.mark.parametrize("state", [DISABLED, DESTROYED])
def test_google_with_a_version_that_is_gone(shell: Shell, at_google: str, google: GcpKmsDouble, state: object) -> None:
    google.keys[at_google.removeprefix("gcpkms://")].states[1] = state
    for told in every(shell, at_google):
        check(told, 2, "kek-version-unusable", "version", "enable", kek=at_google)


def test_google_with_a_key_that_signs(shell: Shell, google: GcpKmsDouble) -> None:
    name = f"{RING}/k{os.urandom(5).hex()}"
    google.add_key(name, purpose=ASYMMETRIC_SIGN)
    check(creation(shell, google.uri(name)), 2, "kek-wrong-purpose", "ENCRYPT_DECRYPT", kek=google.uri(name))


def test_google_without_credentials(shell: Shell, at_google: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    for told in every(shell, at_google):
        check(told, 7, "credentials-missing", "gcloud auth application-default login")


# --- all of them ----------------------------------------------------------------------------------------------------


@pytest.fixture
def everywhere(shell: Shell, aws: Moto, bao: Bao, at_bao: BaoWire, google: GcpKmsDouble) -> list[str]:
    """A keyset under three KEKs in three clouds."""
    name = f"{RING}/k{os.urandom(5).hex()}"
    google.add_key(name)
    keks = [aws.create_key(), f"hashivault://{bao.transit_key()}", google.uri(name)]
    keyset(shell, *keks)
    return keks


def darken(nobody: str, google: GcpKmsDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", nobody)
    monkeypatch.setenv("VAULT_ADDR", nobody)
    google.faults.append(GoogleFault(code=grpc.StatusCode.UNAVAILABLE, details="down"))


def test_with_every_kek_out_of_reach_one_error_names_each_and_its_cause(
    shell: Shell,
    everywhere: list[str],
    nobody: str,
    google: GcpKmsDouble,
    hurried: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    darken(nobody, google, monkeypatch)
    for told in (command(shell, "status"), server(shell)):
        check(told, 4, "kms-unreachable", *everywhere, "cannot be reached", "doctor")
        assert told.why.count("; ") >= 2, "a cause for each"


@pytest.mark.slow
def test_a_start_with_every_kek_out_of_reach_ends_within_ten_seconds(
    shell: Shell, everywhere: list[str], nobody: str, google: GcpKmsDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    darken(nobody, google, monkeypatch)
    begun = time.monotonic()
    told = server(shell)
    assert time.monotonic() - begun < 11
    check(told, 4, "kms-unreachable", *everywhere)


@pytest.mark.parametrize("lit", ["aws", "vault"])
def test_any_one_of_them_is_enough(
    shell: Shell, everywhere: list[str], nobody: str, google: GcpKmsDouble, lit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {name: os.environ[name] for name in ("AWS_ENDPOINT_URL", "VAULT_ADDR")}
    darken(nobody, google, monkeypatch)
    name = {"aws": "AWS_ENDPOINT_URL", "vault": "VAULT_ADDR"}[lit]
    monkeypatch.setenv(name, kept[name])
    assert shell.json("status")["exit"] == 0


def test_a_folder_in_place_of_a_kek_file(shell: Shell) -> None:
    shell.init()
    shell.kek.unlink()
    Path(shell.kek).mkdir()
    for told in (command(shell, "status"), server(shell)):
        check(told, 2, None, kek=str(shell.kek))


# --- writing is all or nothing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dark", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_init_under_several_keks_writes_nothing_where_one_is_out_of_reach(
    shell: Shell, aws: Moto, at_bao: BaoWire, bao: Bao, google: GcpKmsDouble, nobody: str, dark: int, monkeypatch: Any
) -> None:
    name = f"{RING}/k{os.urandom(5).hex()}"
    google.add_key(name)
    keks = [aws.create_key(), f"hashivault://{bao.transit_key()}", google.uri(name)]
    if dark == 2:
        google.faults.append(GoogleFault(code=grpc.StatusCode.UNAVAILABLE, details="down"))
    else:
        monkeypatch.setenv(("AWS_ENDPOINT_URL", "VAULT_ADDR")[dark], nobody)
    options = [option for kek in keks for option in ("--kek", kek)]
    with hurrying():
        told = command(shell, "init", "fleet", "--keyset", str(shell.keyset), *options)
    check(told, 4, "kms-unreachable", kek=keks[dark])
    assert not shell.keyset.exists()


def test_a_kek_that_gives_back_another_key_is_found_out_before_anything_is_written(
    shell: Shell, aws: Moto, faulty: FaultyProxy
) -> None:
    def lying(exchange: Any, forward: Callable[[], Reply]) -> Reply:
        reply = forward()
        if exchange.action == "kms:Decrypt":
            told = json.loads(reply.body) | {"Plaintext": base64.b64encode(os.urandom(32)).decode()}
            return Reply(200, json.dumps(told).encode(), {"Content-Type": "application/x-amz-json-1.1"})
        return reply

    with faulty.failing(lying):
        told = creation(shell, kek := aws.create_key())
    check(told, 2, "unwrap-refused", "does not give back what it wrapped", "nothing was written", kek=kek)


def test_an_operator_who_may_not_unwrap_is_told_so_and_nothing_is_written(
    shell: Shell, aws: Moto, faulty: FaultyProxy
) -> None:
    kek = aws.create_key()
    with faulty.failing(kms_error("AccessDeniedException", "not authorized to perform: kms:Decrypt", only="Decrypt")):
        check(creation(shell, kek), 7, "kms-denied", "kms:Decrypt", kek=kek)
