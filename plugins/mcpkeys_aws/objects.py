"""The S3 operations, as functions of a boto3 client: conditional get and put, listing, deletion, the server's date."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final

from mcpkeys.store import Found
from mcpkeys_aws.failures import answer_of

Condition = Mapping[str, str]
"""Of a PutObject: IfMatch, IfNoneMatch, or neither."""
_ETAG = re.compile(r'(?:W/)?"[!#-~]+"')
_NO_ETAG = '"00000000000000000000000000000000"'


class _Absent:
    """There is no such object."""


ABSENT: Final = _Absent()


@dataclass(frozen=True, slots=True)
class Put:
    """What became of a conditional write.

    Attributes:
        etag: the new version; None where nothing was written.
        lost: the condition failed (412, or 404 where a version was expected); otherwise a concurrent write (409).
    """

    etag: str | None
    lost: bool = False


def get(bucket: str, key: str, known: str | None, limit: int, client: Any) -> Found | _Absent | None:
    """The object, None where its ETag is still `known`, ABSENT where there is none. Cut at `limit` + 1 bytes."""
    condition = {} if known is None else {"IfNoneMatch": known}
    try:
        answer = client.get_object(Bucket=bucket, Key=key, **condition)
    except Exception as exc:
        status, code = answer_of(exc)
        if status == 304:
            return None
        if code in ("NoSuchKey", "404"):
            return ABSENT
        raise
    stream = answer["Body"]
    try:
        chunks, size = [], 0
        # The empty read at the end is what makes botocore compare the length received with the one announced.
        while size <= limit and (chunk := stream.read(limit + 1 - size)):
            chunks.append(chunk)
            size += len(chunk)
    finally:
        stream.close()
    return Found(b"".join(chunks), _text(answer["ETag"]), answer["LastModified"].timestamp())


def must_be(version: str | None) -> Condition:
    """The condition that the stored version is this one; None: that nothing is stored.

    A version that S3 never gave out becomes an ETag that no object has: sent as it is, `*` would match any.
    """
    if version is None:
        return {"IfNoneMatch": "*"}
    return {"IfMatch": version if _ETAG.fullmatch(version) else _NO_ETAG}


def put(bucket: str, key: str, body: bytes, condition: Condition, client: Any) -> Put:
    """Write the object if the condition holds (an empty one always does)."""
    try:
        answer = client.put_object(Bucket=bucket, Key=key, Body=body, ContentType="application/json", **condition)
    except Exception as exc:
        status, code = answer_of(exc)
        if status == 412 or (status == 404 and code != "NoSuchBucket" and condition):
            return Put(None, lost=True)
        if status == 409 and code == "ConditionalRequestConflict":
            return Put(None)
        raise
    return Put(_text(answer["ETag"]))


def delete(bucket: str, key: str, client: Any) -> None:
    """Delete the object, if there is one."""
    client.delete_object(Bucket=bucket, Key=key)


def names(bucket: str, prefix: str, client: Any) -> list[str]:
    """The names of all objects that begin with `prefix`, every page of them."""
    found: list[str] = []
    more: dict[str, str] = {}
    while True:
        page = client.list_objects_v2(Bucket=bucket, Prefix=prefix, **more)
        found.extend(_text(entry["Key"]) for entry in page.get("Contents", ()))
        if not page["IsTruncated"]:
            return found
        if page["NextContinuationToken"] == more.get("ContinuationToken"):
            raise TypeError  # a server that pages in a circle would never end
        more = {"ContinuationToken": _text(page["NextContinuationToken"])}


def date(bucket: str, key: str, client: Any) -> float:
    """The server's clock by the Date header of a HeadObject, seconds since the epoch; the object need not exist."""
    try:
        answer = client.head_object(Bucket=bucket, Key=key)
    except Exception as exc:
        if answer_of(exc)[0] != 404:
            raise
        answer = getattr(exc, "response", {})
    return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp()


def honours_conditions(bucket: str, key: str, client: Any) -> bool:
    """Whether the server refuses a second creation (If-None-Match) and a write over another ETag (If-Match).

    Leaves a small object behind: deleting it would look, to another operator's test at that moment, like a server that
    ignores If-None-Match.
    """
    body = secrets.token_urlsafe(12).encode()  # a text of its own, so that two operators' tests do not look alike
    try:
        put(bucket, key, body, must_be(None), client)  # refused where an earlier test left the object: as good
        return not any(
            put(bucket, key, body, condition, client).etag for condition in (must_be(None), must_be(_NO_ETAG))
        )
    except Exception as exc:
        if answer_of(exc)[1] in ("NotImplemented", "501"):
            return False
        raise


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value
