"""The KMS operations, as functions of a boto3 client: request, check of the answer, result.

Each runs in a thread of its own (`calls.py`). Their frames hold keys; what they raise is stripped of its traceback.
An answer of the wrong shape raises KeyError or TypeError, which the caller reports as an answer that cannot be read.
"""

from __future__ import annotations

from typing import Any, NoReturn

from mcpkeys.errors import KmsUnreachable, UnwrapRefused
from mcpkeys.kms import DATA_KEY_BYTES, identity
from mcpkeys_aws import arn

MAX_BLOB_BYTES = 6144
"""Of a CiphertextBlob (AWS KMS API Reference, Decrypt)."""
_Pairs = dict[str, str]


def encrypt(key_id: str, key: bytes, pairs: _Pairs, client: Any) -> bytes:
    answer = client.encrypt(KeyId=key_id, Plaintext=key, EncryptionContext=pairs)
    _same_key(key_id, answer["KeyId"])
    return _blob(answer)


def decrypt(key_id: str, blob: bytes, pairs: _Pairs, client: Any) -> bytes:
    answer = client.decrypt(KeyId=key_id, CiphertextBlob=blob, EncryptionContext=pairs)
    if identity(arn.uri_of(answer["KeyId"])) != identity(arn.uri_of(key_id)):
        raise UnwrapRefused(
            f"{arn.uri_of(key_id)} did not open this wrapped key",
            why="AWS answered that another key did",
            next="an endpoint or proxy between here and AWS is not to be trusted: check AWS_ENDPOINT_URL",
        )
    key = answer["Plaintext"]
    if not isinstance(key, bytes) or not key:
        raise TypeError
    return key


def generate(key_id: str, pairs: _Pairs, client: Any) -> bytes:
    answer = client.generate_data_key_without_plaintext(
        KeyId=key_id, NumberOfBytes=DATA_KEY_BYTES, EncryptionContext=pairs
    )
    _same_key(key_id, answer["KeyId"])
    return _blob(answer)


def reencrypt(key_id: str, blob: bytes, pairs: _Pairs, client: Any) -> bytes:
    answer = client.re_encrypt(
        CiphertextBlob=blob,
        SourceKeyId=key_id,
        SourceEncryptionContext=pairs,
        DestinationKeyId=key_id,
        DestinationEncryptionContext=pairs,
    )
    _same_key(key_id, answer["SourceKeyId"])
    _same_key(key_id, answer["KeyId"])
    return _blob(answer)


def metadata(key_id: str, client: Any) -> dict[str, Any] | None:
    try:
        metadata = client.describe_key(KeyId=key_id)["KeyMetadata"]
    except client.exceptions.NotFoundException:
        return None
    if not isinstance(metadata, dict) or "KeyState" not in metadata:
        raise TypeError
    return metadata


def _blob(answer: dict[str, Any]) -> bytes:
    blob = answer["CiphertextBlob"]
    if not isinstance(blob, bytes) or not 1 <= len(blob) <= MAX_BLOB_BYTES:
        raise TypeError
    return blob


def _same_key(key_id: str, told: object) -> None:
    if told != key_id:
        _wrong_key(key_id)


def _wrong_key(key_id: str) -> NoReturn:
    raise KmsUnreachable(
        f"the answer does not come from {arn.uri_of(key_id)}",
        why="it names another key",
        next="an endpoint or proxy between here and AWS is not to be trusted: check AWS_ENDPOINT_URL",
    )


def unfit(metadata: dict[str, Any]) -> str:
    """Why this key can never wrap a data key; empty if it can."""
    usage, spec = metadata.get("KeyUsage", "ENCRYPT_DECRYPT"), metadata.get("KeySpec", "SYMMETRIC_DEFAULT")
    if usage != "ENCRYPT_DECRYPT" or spec != "SYMMETRIC_DEFAULT":
        return f"it is a {spec} key for {usage}; a symmetric encryption key is needed"
    if metadata.get("KeyManager") == "AWS":
        return "it is managed by an AWS service and serves no other caller"
    return ""


def detail(metadata: dict[str, Any], unfit: str) -> str:
    parts = [str(metadata["KeyState"])]
    if metadata.get("DeletionDate") is not None:
        parts.append(
            f"will be deleted {metadata['DeletionDate']:%Y-%m-%dT%H:%M:%SZ}; cancel with kms:CancelKeyDeletion"
        )
    if metadata.get("MultiRegion"):
        kind = metadata.get("MultiRegionConfiguration", {}).get("MultiRegionKeyType", "")
        parts.append(f"multi-region {kind.lower()}".rstrip())
    if metadata.get("Origin") not in (None, "AWS_KMS"):
        parts.append(f"origin {metadata['Origin']}")
    if metadata.get("ValidTo") is not None:
        parts.append(f"imported material expires {metadata['ValidTo']:%Y-%m-%dT%H:%M:%SZ}")
    if unfit:
        parts.append(unfit)
    return "; ".join(parts)
