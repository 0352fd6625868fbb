"""What AwsKms makes of AWS's own answers, where moto is laxer than AWS or gives them only on request.

The shapes are those of the AWS KMS API Reference (errors of each operation, Common Errors) and of AWS's signature
errors, sent over a real connection to the real client.
"""

from __future__ import annotations

import base64
import json
import os
import time

import pytest
from servers.aws_faults import FaultyProxy, answering, kms_error
from servers.moto import Moto

from mcpkeys.errors import KekUnusable, KmsDenied, KmsUnreachable, McpkeysError, UnwrapRefused
from mcpkeys.kms import Wrap, WrapContext
from mcpkeys.testing.kms import a_context, a_kid
from mcpkeys_aws.kms import AwsKms

ARN = "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
OTHER = "arn:aws:kms:eu-central-1:111122223333:key/4321abcd-12ab-34cd-56ef-1234567890ab"
MRK = "arn:aws:kms:{}:111122223333:key/mrk-" + "1234abcd" * 4
BLOB = bytes(range(3, 120))
EXPIRED = "Signature expired: 20261129T120000Z is now earlier than 20261129T120100Z (20261129T120600Z - 5 min.)"
EARLY = "Signature not yet current: 20261129T121200Z is still later than 20261129T121100Z (20261129T120600Z + 5 min.)"
MISFIT = "The request signature we calculated does not match the signature you provided. x-amz-security-token:PLANTED"


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


def unwrap(uri: str, wrapped_by: str = "", blob: bytes = BLOB, context: WrapContext | None = None) -> bytes:
    kms = AwsKms(uri)
    return kms.unwrap(Wrap(wrapped_by or uri, "", blob), context or a_context(), deadline=soon())


@pytest.mark.parametrize(
    ("code", "status", "message", "kind", "word", "told"),
    [
        (
            "AccessDeniedException",
            400,
            "is not authorized to perform: kms:Decrypt",
            KmsDenied,
            "kms-denied",
            "kms:Decrypt",
        ),
        ("ExpiredTokenException", 400, "expired", KmsDenied, "credentials-expired", "expired"),
        ("UnrecognizedClientException", 400, "invalid", KmsDenied, "credentials-invalid", "does not know"),
        ("MissingAuthenticationTokenException", 400, "", KmsDenied, "credentials-invalid", "does not know"),
        ("InvalidSignatureException", 400, EXPIRED, KmsDenied, "clock-skew", "clock"),
        ("InvalidSignatureException", 400, EARLY, KmsDenied, "clock-skew", "clock"),
        ("InvalidSignatureException", 400, MISFIT, KmsDenied, "credentials-invalid", "secret access key"),
        ("RequestTimeTooSkewed", 403, "", KmsDenied, "clock-skew", "clock"),
        ("NotFoundException", 400, "", KekUnusable, "kek-not-found", "eu-central-1"),
        ("DisabledException", 400, "", KekUnusable, "kek-unusable", "disabled"),
        ("KMSInvalidStateException", 400, "", KekUnusable, "kek-unusable", "pending deletion"),
        ("InvalidKeyUsageException", 400, "", KekUnusable, "kek-unusable", "cannot encrypt"),
        ("InvalidArnException", 400, "", KekUnusable, "kek-unusable", "ARN"),
        ("SomethingNewException", 400, "", KekUnusable, "kek-unusable", "SomethingNewException"),
        ("IncorrectKeyException", 400, "", UnwrapRefused, "unwrap-refused", "another key"),
        ("InvalidCiphertextException", 400, "", UnwrapRefused, "unwrap-refused", "altered"),
        ("ValidationException", 400, "", UnwrapRefused, "unwrap-refused", "altered"),
        ("ThrottlingException", 400, "", KmsUnreachable, "kms-throttled", "quota"),
        ("LimitExceededException", 400, "", KmsUnreachable, "kms-throttled", "quota"),
        ("KMSInternalException", 500, "", KmsUnreachable, "kms-unreachable", "500"),
        ("DependencyTimeoutException", 503, "", KmsUnreachable, "kms-unreachable", "503"),
        ("KeyUnavailableException", 500, "", KmsUnreachable, "kms-unreachable", "500"),
    ],
)
def test_each_answer_of_aws_is_told_as_what_it_means(
    faulty: FaultyProxy, code: str, status: int, message: str, kind: type[McpkeysError], word: str, told: str
) -> None:
    with faulty.failing(kms_error(code, message, status)), pytest.raises(kind) as caught:
        unwrap("awskms:///" + ARN)
    error = caught.value
    assert type(error) is kind
    assert error.code == word
    assert told in f"{error.what} {error.why}"
    assert ARN in error.what
    assert error.next
    assert "PLANTED" not in str(error), "the message of a signature error repeats the session token"
    assert getattr(error, "throttled", False) == (word == "kms-throttled")


def test_a_denied_call_names_the_action_the_key_and_who_was_denied(faulty: FaultyProxy) -> None:
    who = "User: arn:aws:sts::1:assumed-role/web/i-1 is not authorized to perform: kms:Decrypt\x1b[31m\nbecause"
    with faulty.failing(kms_error("AccessDeniedException", who)), pytest.raises(KmsDenied) as caught:
        unwrap("awskms:///" + ARN)
    assert "assumed-role/web" in caught.value.why
    assert caught.value.why.isprintable()
    assert "kms:Decrypt" in caught.value.next


def test_an_access_denied_while_assuming_a_role_names_that_call(faulty: FaultyProxy, tmp_path, monkeypatch) -> None:
    config = tmp_path / "config"
    config.write_text(
        "[profile web]\nrole_arn=arn:aws:iam::123456789012:role/web\nsource_profile=base\n"
        "[profile base]\naws_access_key_id=AKIAIOSFODNN7EXAMPLE\naws_secret_access_key=x\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "web")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    body = b"<ErrorResponse><Error><Code>AccessDenied</Code><Message>no</Message></Error></ErrorResponse>"
    with faulty.failing(answering(403, body)), pytest.raises(KmsDenied) as caught:
        unwrap("awskms:///" + ARN)
    assert "AssumeRole" in caught.value.why
    assert "trust policy" in caught.value.next


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"<html>sign in to the guest network</html>",
        b'{"KeyId": "' + ARN.encode() + b'"}',
        b'{"Plaintext": "AAAA"}',
        b'{"KeyId": "' + ARN.encode() + b'", "Plaintext": ""}',
        b'{"KeyId": "' + ARN.encode() + b'", "Plaintext": "!"}',
        b'{"KeyId": "' + ARN.encode() + b'", "Plaintext": 5}',
        b'{"KeyId": null, "Plaintext": "AAAA"}',
        b'{"KeyId": "' + ARN.encode(),
        b"\xff" * 300,
    ],
)
def test_a_garbled_answer_is_an_outage_not_a_key(faulty: FaultyProxy, body: bytes) -> None:
    with faulty.failing(answering(200, body)), pytest.raises(KmsUnreachable) as caught:
        unwrap("awskms:///" + ARN)
    assert caught.value.next


@pytest.mark.parametrize("status", [301, 400, 403, 404, 407, 418, 502, 503])
def test_a_page_of_something_in_between_is_no_answer_of_aws(faulty: FaultyProxy, status: int) -> None:
    page = b"<html><body>blocked by policy</body></html>"
    with faulty.failing(answering(status, page)), pytest.raises((KmsUnreachable, KmsDenied)) as caught:
        unwrap("awskms:///" + ARN)
    assert "blocked by policy" not in str(caught.value)


def decrypted(key_id: str, key: bytes) -> bytes:
    return json.dumps({"KeyId": key_id, "Plaintext": base64.b64encode(key).decode()}).encode()


def test_a_plaintext_that_another_key_opened_is_refused(faulty: FaultyProxy) -> None:
    with faulty.failing(answering(200, decrypted(OTHER, os.urandom(32)))), pytest.raises(UnwrapRefused) as caught:
        unwrap("awskms:///" + ARN)
    assert "another key" in caught.value.why


def test_a_plaintext_that_a_replica_opened_is_accepted(faulty: FaultyProxy) -> None:
    here, there, key = MRK.format("eu-central-1"), MRK.format("us-east-1"), os.urandom(32)
    with faulty.failing(answering(200, decrypted(there, key))):
        assert unwrap("awskms:///" + here, "awskms:///" + there) == key
    (call,) = faulty.seen
    assert json.loads(call.body)["KeyId"] == here, "the configured replica is the one that is called"


@pytest.mark.parametrize("told", [OTHER, None, 7])
@pytest.mark.parametrize("method", ["wrap", "generate", "rewrap"])
def test_a_wrap_that_another_key_made_is_refused(faulty: FaultyProxy, method: str, told: object) -> None:
    blob = base64.b64encode(BLOB).decode()
    body = json.dumps({"KeyId": told, "SourceKeyId": ARN, "CiphertextBlob": blob}).encode()
    kms, context = AwsKms("awskms:///" + ARN), a_context()
    given = {"wrap": (os.urandom(32), context), "generate": (context,), "rewrap": (Wrap(kms.uri, "", BLOB), context)}
    with faulty.failing(answering(200, body)), pytest.raises(KmsUnreachable):
        getattr(kms, method)(*given[method], deadline=soon())


def test_a_wrap_of_another_kek_never_reaches_aws(faulty: FaultyProxy) -> None:
    """Who writes the store must not choose which key is called."""
    kms = AwsKms("awskms:///" + ARN)
    for foreign in ("awskms:///" + OTHER, "local:///etc/kek.key", "", "awskms:///" + MRK.format("eu-central-1")):
        for call in (kms.unwrap, kms.rewrap):
            with pytest.raises(UnwrapRefused):
                call(Wrap(foreign, "", BLOB), a_context(), deadline=soon())
    assert faulty.seen == []


def test_every_call_names_the_key_and_carries_the_whole_context(aws: Moto, faulty: FaultyProxy) -> None:
    kms, context = AwsKms(aws.create_key()), WrapContext("report", "fleet", a_kid())
    wrap = kms.wrap(os.urandom(32), context, deadline=soon())
    kms.unwrap(wrap, context, deadline=soon())
    kms.generate(context, deadline=soon())
    kms.rewrap(wrap, context, deadline=soon())
    pairs = {"mcpkeys:purpose": "report", "mcpkeys:keyset": "fleet", "mcpkeys:kid": context.kid}
    sent = {call.action: json.loads(call.body) for call in faulty.seen}
    key_id = kms.uri.removeprefix("awskms:///")
    for action in ("kms:Encrypt", "kms:Decrypt", "kms:GenerateDataKeyWithoutPlaintext"):
        assert sent[action]["KeyId"] == key_id
        assert sent[action]["EncryptionContext"] == pairs
    again = sent["kms:ReEncrypt"]
    assert again["SourceKeyId"] == again["DestinationKeyId"] == key_id
    assert again["SourceEncryptionContext"] == again["DestinationEncryptionContext"] == pairs
    assert len(faulty.seen) == 4


def test_making_and_rewrapping_a_data_key_never_shows_it(aws: Moto, faulty: FaultyProxy) -> None:
    kms, context = AwsKms(aws.create_key()), a_context()
    made = kms.generate(context, deadline=soon())
    assert made is not None
    again = kms.rewrap(made, context, deadline=soon())
    assert again is not None
    calls = list(faulty.seen)
    key = kms.unwrap(made, context, deadline=soon())
    assert kms.unwrap(again, context, deadline=soon()) == key
    assert [call.action for call in calls] == ["kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncrypt"]
    for call in calls:
        assert "Plaintext" not in json.loads(call.answer)
        assert base64.b64encode(key) not in call.answer
        assert "Plaintext" not in json.loads(call.body)


def test_an_alias_is_resolved_to_the_arn_behind_it_and_wraps_nothing_itself(aws: Moto, faulty: FaultyProxy) -> None:
    uri, name = aws.create_key(), "alias/fleet-" + os.urandom(4).hex()
    aws.client("kms").create_alias(AliasName=name, TargetKeyId=uri.rsplit("/", 1)[-1])
    kms = AwsKms(f"awskms:///{name}?region=eu-central-1")
    assert kms.resolve(soon()) == uri
    assert AwsKms(uri).resolve(soon()) == uri
    assert [call.action for call in faulty.seen] == ["kms:DescribeKey"]
    with pytest.raises(KekUnusable) as caught:
        kms.wrap(os.urandom(32), a_context(), deadline=soon())
    assert caught.value.code == "kek-not-pinned"
    for refused in (lambda: kms.generate(a_context(), deadline=soon()), lambda: unwrap(kms.uri)):
        with pytest.raises(KekUnusable):
            refused()
    assert len(faulty.seen) == 1


def test_an_alias_of_nothing_and_an_alias_of_a_signing_key_are_refused(aws: Moto) -> None:
    with pytest.raises(KekUnusable) as caught:
        AwsKms("awskms:///alias/nobody?region=eu-central-1").resolve(soon())
    assert "eu-central-1" in caught.value.why
    uri, name = aws.create_key(KeyUsage="SIGN_VERIFY", KeySpec="ECC_NIST_P256"), "alias/sign-" + os.urandom(4).hex()
    aws.client("kms").create_alias(AliasName=name, TargetKeyId=uri.rsplit("/", 1)[-1])
    with pytest.raises(KekUnusable) as caught:
        AwsKms(f"awskms:///{name}?region=eu-central-1").resolve(soon())
    assert "symmetric" in caught.value.why


def test_a_key_is_described_with_what_an_operator_must_know(aws: Moto) -> None:
    signing = AwsKms(aws.create_key(KeyUsage="SIGN_VERIFY", KeySpec="ECC_NIST_P256")).describe(deadline=soon())
    assert (signing.exists, signing.enabled) == (True, False)
    assert "ECC_NIST_P256" in signing.detail
    multi = AwsKms(aws.create_key(MultiRegion=True)).describe(deadline=soon())
    assert multi.enabled
    assert "multi-region primary" in multi.detail
    uri = aws.create_key()
    aws.client("kms").schedule_key_deletion(KeyId=uri.rsplit("/", 1)[-1], PendingWindowInDays=7)
    dying = AwsKms(uri).describe(deadline=soon())
    assert (dying.exists, dying.enabled) == (True, False)
    assert "will be deleted 20" in dying.detail
    assert (dying.newest, dying.oldest_usable) == (None, None)
