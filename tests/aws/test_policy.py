"""The IAM policies: evaluated as IAM documents them, against the calls that each role has to make."""

from __future__ import annotations

import fnmatch
import json
from typing import Any

import pytest

from mcpkeys.errors import ConfigurationError
from mcpkeys_aws.policy import aws_policy

KEY = "arn:aws-us-gov:kms:us-gov-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"
SIGN = KEY[:-1] + "c"
S3 = "arn:aws-us-gov:s3:::acme-keys/prod/fleet.json"
URI = "s3://acme-keys/prod/fleet.json"
BUCKET = "arn:aws-us-gov:s3:::acme-keys"
REPORT = S3 + ".reports/abc.json"


def policy(role: str, keks: tuple[str, ...] = ("awskms:///" + KEY,), uri: str = URI, **more: Any) -> dict[str, Any]:
    return aws_policy(role, "fleet", keks, uri, **more)


def allows(document: dict[str, Any], action: str, resource: str, **context: str) -> bool:
    """IAM's evaluation of identity policies, as far as these use it: every condition has to hold (AWS IAM User Guide,
    Policy evaluation logic; a key that the request lacks does not match)."""

    def holds(operator: str, key: str, allowed: Any) -> bool:
        value = context.get(key)
        allowed = [allowed] if isinstance(allowed, str) else allowed
        if operator == "StringEquals":
            return value in allowed
        assert operator == "StringLike"
        return value is not None and any(fnmatch.fnmatchcase(value, pattern) for pattern in allowed)

    return any(
        statement["Effect"] == "Allow"
        and action in statement["Action"]
        and any(fnmatch.fnmatchcase(resource, pattern) for pattern in statement["Resource"])
        and all(
            holds(operator, key, allowed)
            for operator, pairs in statement.get("Condition", {}).items()
            for key, allowed in pairs.items()
        )
        for statement in document["Statement"]
    )


def about(purpose: str, keyset: str = "fleet") -> dict[str, str]:
    front = "kms:EncryptionContext:mcpkeys:"
    return {f"{front}purpose": purpose, f"{front}keyset": keyset, f"{front}kid": "AAAAAAAAAAAA"}


def listing(prefix: str) -> dict[str, str]:
    return {"s3:prefix": prefix}


def test_a_server_opens_its_own_keys_and_writes_its_reports_and_nothing_else() -> None:
    server = policy("server")
    assert allows(server, "kms:Decrypt", KEY, **about("seal"))
    assert allows(server, "kms:Decrypt", KEY, **about("report"))
    assert not allows(server, "kms:Decrypt", KEY, **about("sign")), "a compromised server could sign a keyset"
    assert not allows(server, "kms:Decrypt", KEY, **about("seal", "other"))
    assert not allows(server, "kms:Decrypt", KEY), "no context at all"
    assert not allows(server, "kms:Decrypt", SIGN, **about("seal"))
    for action in ("kms:Encrypt", "kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncryptTo", "kms:GenerateDataKey"):
        assert not allows(server, action, KEY, **about("seal")), "a process that can encrypt can plant a key"
    assert allows(server, "s3:GetObject", S3)
    assert allows(server, "s3:PutObject", REPORT)
    assert allows(server, "s3:DeleteObject", REPORT)
    for action in ("s3:PutObject", "s3:DeleteObject"):
        assert not allows(server, action, S3)
        assert not allows(server, action, S3 + ".selftest")
    assert not allows(server, "s3:GetObject", S3 + "2")


def test_an_operator_makes_and_signs_keys_and_does_not_open_data_keys() -> None:
    operator = policy("operator")
    for action in ("kms:Encrypt", "kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncryptFrom", "kms:ReEncryptTo"):
        assert allows(operator, action, KEY, **about("seal"))
        assert not allows(operator, action, KEY, **about("seal", "other"))
    assert allows(operator, "kms:DescribeKey", KEY)
    assert allows(operator, "kms:Decrypt", KEY, **about("sign"))
    assert allows(operator, "kms:Decrypt", KEY, **about("report"))
    assert not allows(operator, "kms:Decrypt", KEY, **about("seal"))
    for resource in (S3, S3 + ".selftest"):
        assert allows(operator, "s3:PutObject", resource)
    assert allows(operator, "s3:GetObject", REPORT)
    assert not allows(operator, "s3:PutObject", REPORT), "an operator does not speak for an instance"
    assert not allows(operator, "s3:DeleteObject", S3)
    assert allows(operator, "s3:ListBucket", BUCKET, **listing("prod/fleet.json.reports/"))
    assert not allows(operator, "s3:ListBucket", BUCKET, **listing("prod/"))
    assert not allows(operator, "s3:ListBucket", BUCKET)


def test_an_operator_of_several_keks_opens_data_keys_to_wrap_them_by_each() -> None:
    operator = policy("operator", ("awskms:///" + KEY, "gcpkms://projects/p/locations/l/keyRings/r/cryptoKeys/k"))
    assert allows(operator, "kms:Decrypt", KEY, **about("seal"))
    assert not allows(operator, "kms:Decrypt", KEY, **about("seal", "other"))


def test_an_inspector_opens_and_reads_and_writes_nothing() -> None:
    inspector = policy("inspector")
    assert allows(inspector, "kms:Decrypt", KEY, **about("seal"))
    assert not allows(inspector, "kms:Decrypt", KEY, **about("sign"))
    assert allows(inspector, "s3:GetObject", REPORT)
    actions = {action for statement in inspector["Statement"] for action in statement["Action"]}
    assert actions == {"kms:Decrypt", "kms:DescribeKey", "s3:GetObject", "s3:ListBucket"}


def test_a_signer_of_its_own_is_opened_by_the_operator_only() -> None:
    signing = ("awskms:///" + SIGN,)
    assert allows(policy("operator", sign_keks=signing), "kms:Decrypt", SIGN, **about("sign"))
    assert not allows(policy("operator", sign_keks=signing), "kms:Decrypt", KEY, **about("sign"))
    assert not allows(policy("server", sign_keks=signing), "kms:Decrypt", SIGN, **about("sign"))


def test_a_wildcard_in_a_key_is_no_wildcard_in_the_policy() -> None:
    document = json.dumps(policy("server", uri="s3://acme-keys/a*b?$c"))
    assert "acme-keys/a${*}b${?}${$}c" in document


def test_what_is_not_on_aws_is_passed_over() -> None:
    only_s3 = policy("server", ("local:///k",))
    assert {action.split(":")[0] for statement in only_s3["Statement"] for action in statement["Action"]} == {"s3"}
    only_kms = policy("server", uri="gs://bucket/key")
    assert {action.split(":")[0] for statement in only_kms["Statement"] for action in statement["Action"]} == {"kms"}
    with pytest.raises(ConfigurationError):
        policy("server", ("local:///k",), "file:///k")
    with pytest.raises(ConfigurationError):
        policy("server", ("awskms:///alias/fleet?region=eu-central-1",))


@pytest.mark.parametrize("role", ["server", "operator", "inspector"])
def test_a_policy_is_a_document_that_iam_takes(role: str) -> None:
    document = policy(role, tuple("awskms:///" + KEY[:-1] + end for end in "12345678"))
    assert document["Version"] == "2012-10-17"
    sids = [statement["Sid"] for statement in document["Statement"]]
    assert len(set(sids)) == len(sids)
    assert all(sid.isalnum() for sid in sids)
    assert len(json.dumps(document, separators=(",", ":"))) < 6144, "the limit of a managed policy"
