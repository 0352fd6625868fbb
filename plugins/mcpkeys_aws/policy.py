"""Least-privilege IAM policies for the three roles, as documents to hand to `aws iam`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from mcpkeys.errors import ConfigurationError
from mcpkeys_aws import arn

Role = Literal["server", "operator", "inspector"]
_KEYSET = "kms:EncryptionContext:mcpkeys:keyset"
_PURPOSE = "kms:EncryptionContext:mcpkeys:purpose"


def aws_policy(
    role: Role, keyset_name: str, keks: Sequence[str], keyset_uri: str, *, sign_keks: Sequence[str] = ()
) -> dict[str, Any]:
    """An IAM policy for one role on one keyset. KEKs and stores that are not AWS's are passed over.

    - `server`: opens data keys and the report key of this keyset, reads the document, writes and deletes under the
      reports' prefix. It may not open the signer, nor wrap, nor write the document.
    - `operator`: makes, wraps and rewraps keys of this keyset and opens the signer and the report key. It may open
      data keys only where there are several KEKs, for then each new key passes through its hands.
    - `inspector`: opens data keys and the report key, reads document and reports, writes nothing.

    Args:
        keyset_name: the keyset's name; part of every condition.
        keks: all KEKs of the keyset, pinned URIs.
        keyset_uri: where the keyset is stored.
        sign_keks: the KEKs that wrap the signer, where they are not `keks`.

    Raises:
        ConfigurationError: none of it is AWS's.
        UriError: an `awskms` URI that is no pinned key.
    """
    own = [arn.parse(uri) for uri in keks if uri.startswith("awskms:")]
    signing = [arn.parse(uri) for uri in sign_keks if uri.startswith("awskms:")] if sign_keks else own
    for name in (*own, *signing):
        if not name.pinned:
            raise ConfigurationError(f"{name.uri} is an alias, and policies name keys by ARN", next=_RESOLVE)
    place = keyset_uri.removeprefix("s3://") if keyset_uri.startswith("s3://") else ""
    if not own and not signing and not place:
        raise ConfigurationError("nothing of this keyset is on AWS", next="mcpkeys policy gcp, or mcpkeys policy vault")
    partition = arn.partition_of((own or signing)[0].uri) if own or signing else "aws"
    keys, signers = [name.key_id for name in own], [name.key_id for name in signing]
    statements: list[dict[str, Any]] = []
    if role == "server":
        statements += _kms("OpenKeys", ["kms:Decrypt"], keys, keyset_name, ["seal", "report"])
    elif role == "inspector":
        statements += _kms("OpenKeys", ["kms:Decrypt"], keys, keyset_name, ["seal", "report"])
        statements += _plain("SeeState", ["kms:DescribeKey"], keys)
    else:
        opens = ["report"] if len(keks) <= 1 else ["report", "seal"]
        statements += _kms("MakeAndRewrapKeys", _MAKE, sorted({*keys, *signers}), keyset_name, _ALL)
        statements += _kms("OpenKeys", ["kms:Decrypt"], keys, keyset_name, opens)
        statements += _kms("OpenSigner", ["kms:Decrypt"], signers, keyset_name, ["sign"])
        statements += _plain("SeeState", ["kms:DescribeKey"], sorted({*keys, *signers}))
    if place:
        statements += _store(role, f"arn:{partition}:s3:::", place)
    return {"Version": "2012-10-17", "Statement": statements}


def _store(role: Role, front: str, place: str) -> list[dict[str, Any]]:
    place = "".join(f"${{{char}}}" if char in "*?$" else char for char in place)  # literal, not IAM's wildcards
    bucket, _, key = place.partition("/")
    document, reports = [front + place], [f"{front}{place}.reports/*"]
    if role == "server":
        return [
            *_plain("ReadKeyset", ["s3:GetObject"], document),
            *_plain("WriteOwnReports", ["s3:PutObject", "s3:DeleteObject"], reports),
        ]
    listing = {
        "Sid": "ListReports",
        "Effect": "Allow",
        "Action": ["s3:ListBucket"],
        "Resource": [front + bucket],
        "Condition": {"StringLike": {"s3:prefix": [f"{key}.reports/*"]}},
    }
    if role == "inspector":
        return [*_plain("ReadKeysetAndReports", ["s3:GetObject"], document + reports), listing]
    return [
        *_plain("ReadKeysetAndReports", ["s3:GetObject"], document + reports),
        *_plain("WriteKeyset", ["s3:PutObject"], [*document, f"{front}{place}.selftest"]),
        *_plain("RemoveReports", ["s3:DeleteObject"], reports),
        listing,
    ]


def _kms(sid: str, actions: list[str], keys: list[str], keyset: str, purposes: list[str]) -> list[dict[str, Any]]:
    allowed = _plain(sid, actions, keys)
    for statement in allowed:
        statement["Condition"] = {"StringEquals": {_KEYSET: keyset, _PURPOSE: purposes}}
    return allowed


def _plain(sid: str, actions: list[str], resources: list[str]) -> list[dict[str, Any]]:
    if not resources:
        return []
    return [{"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources}]


_MAKE = ["kms:GenerateDataKeyWithoutPlaintext", "kms:Encrypt", "kms:ReEncryptFrom", "kms:ReEncryptTo"]
_ALL = ["seal", "report", "sign"]
_RESOLVE = "aws kms describe-key --key-id alias/... prints the ARN"
