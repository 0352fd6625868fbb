"""How an AWS KMS key is named: by the ARN in every partition, or (in commands only) by an alias and a region."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mcpkeys.errors import UriError
from mcpkeys.glimpse import glimpse_of_uri

_PREFIX = "awskms:///"
_REGION = r"[a-z]{2,}(?:-[a-z]+)+-[0-9]{1,2}"
_ARN = re.compile(
    r"arn:(?P<partition>aws(?:-[a-z]+)*):kms:"
    rf"(?P<region>{_REGION}):(?P<account>[0-9]{{12}}):key/"
    r"(?P<id>mrk-[0-9a-f-]{32,36}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
)
_ALIAS = re.compile(rf"alias/(?P<name>[A-Za-z0-9/_-]{{1,250}})\?region=(?P<region>{_REGION})")
_EXAMPLE = "awskms:///arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"


@dataclass(frozen=True, slots=True)
class KeyName:
    """What an `awskms:///` URI names.

    Attributes:
        key_id: what the AWS API takes as KeyId: the key's ARN, or `alias/NAME`.
        region: the region whose endpoint is called.
        pinned: true for an ARN. An alias can be repointed by whoever may UpdateAlias, so it is never used to
            wrap or unwrap: it is resolved once, and the ARN is kept.
    """

    key_id: str
    region: str
    pinned: bool

    @property
    def uri(self) -> str:
        """The canonical URI."""
        return uri_of(self.key_id) if self.pinned else f"{_PREFIX}{self.key_id}?region={self.region}"


def uri_of(arn: str) -> str:
    """The canonical URI of a key ARN."""
    return _PREFIX + arn


def is_key_arn(text: object) -> bool:
    """Whether `text` is a KMS key ARN of any partition."""
    return isinstance(text, str) and _ARN.fullmatch(text) is not None


def partition_of(uri: str) -> str:
    """The partition (`aws`, `aws-cn`, `aws-us-gov`, `aws-iso` ...) of a pinned URI."""
    return uri.removeprefix(_PREFIX).split(":", 2)[1]


def parse(uri: str) -> KeyName:
    """Read an `awskms:///` URI. Contacts nobody.

    Raises:
        UriError: anything but a key ARN or `alias/NAME?region=R`; says which part is missing.
    """
    if not uri.startswith(_PREFIX):
        raise _refused(uri, "an awskms URI begins with awskms:/// (three slashes: it names no host)")
    rest = uri.removeprefix(_PREFIX)
    if (match := _ARN.fullmatch(rest)) is not None:
        return KeyName(rest, match["region"], pinned=True)
    if (match := _ALIAS.fullmatch(rest)) is not None:
        return KeyName(f"alias/{match['name']}", match["region"], pinned=False)
    if rest.startswith("arn:") and ":alias/" in rest:
        raise _refused(uri, "an alias is written alias/NAME?region=R, not as an ARN")
    if rest.startswith("alias/") and "?region=" not in rest:
        raise _refused(uri, "an alias needs its region: alias/NAME?region=eu-central-1")
    if rest.startswith("arn:"):
        raise _refused(uri, "this is not the ARN of a KMS key: arn:PARTITION:kms:REGION:ACCOUNT:key/ID in lower case")
    raise _refused(uri, "a key is named by its full ARN; a bare key id says neither region nor account")


def _refused(uri: str, why: str) -> UriError:
    return UriError(f"{glimpse_of_uri(uri)} does not name an AWS KMS key", why=why, next=f"for example {_EXAMPLE}")
