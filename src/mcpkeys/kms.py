"""The KMS plugin interface: what a key-encryption key (KEK) must be able to do, and how it is named.

A plugin registers under the entry-point group `mcpkeys.kms`, keyed by URI scheme, a callable
`(uri, *, session=None) -> Kms`. `mcpkeys.testing.KmsContract` pins the behaviour.

Vendor exceptions stop at the plugin's edge; a method raises only

- `KmsUnreachable`: no answer before the deadline, server error, garbage, throttled (`throttled=True`);
- `KmsDenied`: the identity lacks the right, or its credentials are missing or expired;
- `KekUnusable`: the KEK does not exist, is disabled, or cannot do this;
- `UnwrapRefused`: wrong context, tampered, or another KEK's blob.

None of them may carry a blob, a key or a credential.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from mcpkeys.errors import UriError
from mcpkeys.glimpse import SCHEME, glimpse_of_uri

Purpose = Literal["seal", "sign", "report"]
PURPOSES: tuple[Purpose, ...] = ("seal", "sign", "report")
MAX_URI_CHARS = 1024
DATA_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class WrapContext:
    """What a wrapped key is bound to: it unwraps under exactly this context and no other.

    Attributes:
        purpose: `seal` (a data key), `sign` (the signer's private half) or `report` (the report key).
        keyset: the keyset's name, 1 to 63 characters.
        kid: the key's public id, 12 characters of base64url.
    """

    purpose: Purpose
    keyset: str
    kid: str

    def pairs(self) -> dict[str, str]:
        """AWS EncryptionContext."""
        return {"mcpkeys:purpose": self.purpose, "mcpkeys:keyset": self.keyset, "mcpkeys:kid": self.kid}

    def aad(self) -> bytes:
        """Google Cloud's additional_authenticated_data, Vault's associated_data, local AES-GCM's associated data.

        `mcpkeys1:` + purpose padded to 6 + (keyset name and `:`) padded to a multiple of 3 + kid: every part
        ends on a base64 boundary, so that a policy can allow one purpose of one keyset by a glob.
        """
        return self.aad_front() + self.kid.encode()

    def aad_front(self) -> bytes:
        """`aad()` up to the kid; its base64 form has no padding and is a prefix of that of `aad()`."""
        name = f"{self.keyset}:".encode()
        return b"mcpkeys1:" + self.purpose.ljust(6).encode() + name.ljust(-(-len(name) // 3) * 3)


@dataclass(frozen=True, slots=True)
class Wrap:
    """A key wrapped by one KEK.

    Attributes:
        kek: the KEK's canonical URI.
        version: the KEK's version as the KMS names it; empty where the KMS does not tell.
        blob: the wrapped key, 1 to 8,192 bytes. Public.
    """

    kek: str
    version: str
    blob: bytes


@dataclass(frozen=True, slots=True)
class KekState:
    """What a KMS tells of a KEK.

    Attributes:
        exists: the KMS knows it.
        enabled: it can unwrap now.
        newest: the version that wraps now, spelled as `Wrap.version`; None where the KMS has or shows no versions.
        oldest_usable: the oldest version that still unwraps; None likewise.
        detail: one line for a person (type, state, deletion date), may be empty.
    """

    exists: bool
    enabled: bool
    newest: str | None = None
    oldest_usable: str | None = None
    detail: str = ""


class Kms(Protocol):
    """One key-encryption key. Thread-safe; opens no connection before the first call.

    `deadline` is a `time.monotonic()` value by which the call has returned or raised.
    """

    @property
    def uri(self) -> str:
        """The canonical URI (defaults dropped, query sorted): what pins compare."""
        ...

    def wrap(self, key: bytes, context: WrapContext, *, deadline: float) -> Wrap:
        """Wrap 32 bytes (1 to 64 are accepted) under the KEK's newest version."""
        ...

    def unwrap(self, wrap: Wrap, context: WrapContext, *, deadline: float) -> bytes:
        """Reverse `wrap`. `wrap.kek` may name a replica of this KEK (`identity()` equal); this KEK is called."""
        ...

    def generate(self, context: WrapContext, *, deadline: float) -> Wrap | None:
        """Make a new 32-byte key wrapped, without showing it to the caller. None: this KMS or key cannot."""
        ...

    def rewrap(self, wrap: Wrap, context: WrapContext, *, deadline: float) -> Wrap | None:
        """Wrap the same key under the newest version, without showing it. None: unwrap and wrap instead."""
        ...

    def describe(self, *, deadline: float) -> KekState:
        """The KEK's state. A KEK that does not exist is an answer (`exists=False`), not an error."""
        ...

    def close(self) -> None:
        """Drop connections. Idempotent; the object works again after it, also in the child after fork."""
        ...


class KmsFactory(Protocol):
    """What an entry point of the group `mcpkeys.kms` names."""

    def __call__(self, uri: str, *, session: Any = None) -> Kms: ...


_MRK = re.compile(r"(awskms:///arn:[a-z0-9-]+:kms:)([a-z0-9-]+)(:[0-9]{12}:key/mrk-[0-9a-f]+)")


def scheme_of(uri: str) -> str:
    """The scheme of a KEK URI. Raises `UriError` for anything that is not `scheme://...` in printable ASCII."""
    if len(uri) > MAX_URI_CHARS or not uri.isascii() or not uri.isprintable() or " " in uri:
        raise UriError(
            "a KEK URI must be printable ASCII without spaces, at most 1,024 characters",
            next="for example awskms:///arn:aws:kms:REGION:ACCOUNT:key/ID or local:///etc/mcpkeys/kek.key",
        )
    match = SCHEME.match(uri)
    if match is None:
        raise UriError(
            f"{glimpse_of_uri(uri)} is not a KEK URI",
            why="it has no scheme",
            next="awskms:///ARN, gcpkms://projects/..., hashivault://KEY or local:///path/to/kek.key",
        )
    return match[1]


def identity(uri: str) -> str:
    """The KEK that a canonical URI names, replicas folded: what "the same KEK" means.

    Replicas of one AWS multi-region key (same partition, account and `mrk-` id) are one KEK.
    """
    match = _MRK.fullmatch(uri)
    return uri if match is None else f"{match[1]}*{match[3]}"
