"""AWS KMS as a key-encryption key: `awskms:///arn:PARTITION:kms:REGION:ACCOUNT:key/ID`."""

from __future__ import annotations

from functools import partial
from typing import Any

from mcpkeys.errors import KekUnusable, KmsDenied, KmsUnreachable, McpkeysError, UnwrapRefused
from mcpkeys.kms import KekState, Wrap, WrapContext, identity
from mcpkeys_aws import arn, operations
from mcpkeys_aws.calls import AwsCalls
from mcpkeys_aws.failures import cause_of

_USABLE_STATES = frozenset({"Enabled", "Updating"})
_REFUSALS = frozenset({"InvalidCiphertextException", "IncorrectKeyException"})


class AwsKms:
    """One symmetric AWS KMS key (`SYMMETRIC_DEFAULT`, `ENCRYPT_DECRYPT`).

    Every call carries the context as EncryptionContext. Decrypt always names this key as KeyId and the KeyId that
    comes back is compared: a blob of another key never opens, whatever the identity may decrypt. The
    replicas of one multi-region key are one KEK; this one is called.

    Permissions: a server needs kms:Decrypt; an operator kms:GenerateDataKeyWithoutPlaintext, kms:Encrypt,
    kms:ReEncryptFrom, kms:ReEncryptTo, kms:DescribeKey, and kms:Decrypt for purposes `sign` and `report`
    (`mcpkeys policy aws --role ...` prints them).

    Args:
        uri: the key's ARN behind `awskms:///`; or `awskms:///alias/NAME?region=R`, which only `resolve` and
            `describe` accept.
        session: a `boto3.Session` with the caller's own credentials; None for boto3's default chain. A session is
            shared with a forked child as it is: bring one only where no thread uses it during the fork.

    Raises:
        UriError: the URI names no key.
        ModuleNotFoundError: boto3 is not installed.
    """

    def __init__(self, uri: str, *, session: Any = None) -> None:
        self._name = arn.parse(uri)
        self._calls = AwsCalls("kms", self._name.region, session, self._explain)

    def __repr__(self) -> str:
        return f"AwsKms({self.uri!r})"

    @property
    def uri(self) -> str:
        """The canonical URI; of an alias, the URI that named it."""
        return self._name.uri

    @property
    def unresolved(self) -> bool:
        """Whether this names an alias: `resolve` tells which key it is now."""
        return not self._name.pinned

    def resolve(self, deadline: float) -> str:
        """The pinned URI (by ARN) of this key: its own, or for an alias that of the key it points to now.

        Raises:
            KekUnusable: the alias points to no key, or to one that cannot wrap.
            KmsDenied, KmsUnreachable: as every call; needs kms:DescribeKey.
        """
        if self._name.pinned:
            return self.uri
        metadata = self._describe(deadline)
        found = None if metadata is None else metadata.get("Arn")
        if not arn.is_key_arn(found):
            raise self._absent()
        if metadata is not None and (unfit := operations.unfit(metadata)):
            raise KekUnusable(f"{self.uri} cannot wrap data keys", why=unfit, next=_NEW_KEY)
        return arn.uri_of(str(found))

    def wrap(self, key: bytes, context: WrapContext, *, deadline: float) -> Wrap:
        """Encrypt 1 to 64 bytes. Raises `KekUnusable`, `KmsDenied`, `KmsUnreachable`."""
        if self.unresolved:
            del key  # so that no traceback of this frame holds it
            raise self._not_pinned()
        pending = self._calls.start(
            "kms:Encrypt", partial(operations.encrypt, self._id, key, context.pairs()), deadline
        )
        del key
        return Wrap(self.uri, "", pending.result())

    def unwrap(self, wrap: Wrap, context: WrapContext, *, deadline: float) -> bytes:
        """Decrypt with this key and no other. Raises `UnwrapRefused`, `KekUnusable`, `KmsDenied`, `KmsUnreachable`."""
        self._need_pinned()
        self._need_own(wrap)
        return self._calls.call(
            "kms:Decrypt", partial(operations.decrypt, self._id, wrap.blob, context.pairs()), deadline
        )

    def generate(self, context: WrapContext, *, deadline: float) -> Wrap | None:
        """A new 32-byte key by GenerateDataKeyWithoutPlaintext: it never leaves AWS in the clear."""
        self._need_pinned()
        work = partial(operations.generate, self._id, context.pairs())
        return Wrap(self.uri, "", self._calls.call("kms:GenerateDataKeyWithoutPlaintext", work, deadline))

    def rewrap(self, wrap: Wrap, context: WrapContext, *, deadline: float) -> Wrap | None:
        """ReEncrypt under the newest key material, same context; the key stays inside AWS."""
        self._need_pinned()
        self._need_own(wrap)
        work = partial(operations.reencrypt, self._id, wrap.blob, context.pairs())
        return Wrap(self.uri, "", self._calls.call("kms:ReEncrypt", work, deadline))

    def describe(self, *, deadline: float) -> KekState:
        """DescribeKey: state, kind, deletion date. AWS shows no versions, so both are None."""
        metadata = self._describe(deadline)
        if metadata is None:
            return KekState(exists=False, enabled=False, detail=_not_here(self._name.region))
        state = str(metadata.get("KeyState", ""))
        unfit = operations.unfit(metadata)
        return KekState(
            exists=True, enabled=state in _USABLE_STATES and not unfit, detail=operations.detail(metadata, unfit)
        )

    def credentials(self, *, deadline: float) -> str:
        """Where credentials were found: for `mcpkeys doctor`. Raises as every call."""
        return self._calls.credentials(deadline)

    def close(self) -> None:
        """Drop the client; the next call builds another."""
        self._calls.close()

    @property
    def _id(self) -> str:
        return self._name.key_id

    def _describe(self, deadline: float) -> dict[str, Any] | None:
        return self._calls.call("kms:DescribeKey", partial(operations.metadata, self._id), deadline)

    def _need_pinned(self) -> None:
        if self.unresolved:
            raise self._not_pinned()

    def _not_pinned(self) -> KekUnusable:
        return KekUnusable(
            f"{self.uri} is an alias, and whoever may update it can repoint it",
            next="configure the key's ARN: aws kms describe-key --key-id alias/... prints it",
            code="kek-not-pinned",
        )

    def _need_own(self, wrap: Wrap) -> None:
        why = ""
        if identity(wrap.kek) != identity(self.uri):
            why = f"it was wrapped by {wrap.kek[:300]!r}"
        elif not 1 <= len(wrap.blob) <= operations.MAX_BLOB_BYTES:
            why = "no AWS ciphertext has this length"
        if why:
            raise UnwrapRefused(f"{self.uri} did not wrap this key", why=why, next=_INTACT)

    def _absent(self) -> KekUnusable:
        return KekUnusable(
            f"{self.uri} does not exist",
            why=_not_here(self._name.region),
            next="check region, account and id: aws kms describe-key --key-id ... --region ...",
            code="kek-not-found",
        )

    def _explain(self, exc: BaseException, action: str) -> McpkeysError:
        cause = cause_of(exc)
        what = f"{action} with {self.uri} failed"
        code = cause.code or None
        if cause.kind == "denied":
            step = cause.next or f"allow {action} on this key in the key policy or IAM; see mcpkeys policy aws"
            return KmsDenied(what, why=cause.why, next=step, code=code)
        if cause.kind == "configuration":
            return KekUnusable(what, why=cause.why, next=cause.next, code=code)
        if cause.kind == "throttled":
            return KmsUnreachable(what, why=cause.why, next=cause.next, code="kms-throttled", throttled=True)
        if cause.kind == "unreachable":
            return KmsUnreachable(what, why=cause.why, next=cause.next, code=code)
        return self._answered(cause.name, action, what)

    def _answered(self, name: str, action: str, what: str) -> McpkeysError:
        opens = action in ("kms:Decrypt", "kms:ReEncrypt")
        if name in _REFUSALS or (opens and name == "ValidationException"):
            return UnwrapRefused(
                f"{self.uri} does not open this wrapped key",
                why=f"it was wrapped by another key, under another keyset, kid or purpose, or altered ({name})",
                next=_INTACT,
            )
        if name == "NotFoundException":
            return self._absent()
        if name.isdigit():
            return KmsUnreachable(what, why=f"HTTP {name} without an AWS error: another server answered", next=_PROXY)
        why, step = _UNUSABLE.get(name, (f"AWS answered {name}", "aws kms describe-key tells what this key can do"))
        return KekUnusable(what, why=why, next=step)


def _not_here(region: str) -> str:
    return f"AWS knows no such key in {region}, or not for this account"


_INTACT = "mcpkeys verify checks the keyset; mcpkeys restore brings back an intact one"
_PROXY = "check HTTPS_PROXY, NO_PROXY and AWS_ENDPOINT_URL"
_NEW_KEY = "name a symmetric encryption key of your own: aws kms create-key"
_STATE_STEP = "aws kms describe-key tells its state; enable it, or cancel its deletion"
_UNUSABLE: dict[str, tuple[str, str]] = {
    "DisabledException": (
        "the key is disabled",
        "aws kms enable-key, or use another KEK that the keyset is wrapped by",
    ),
    "KMSInvalidStateException": ("the key is pending deletion, pending import or otherwise not usable", _STATE_STEP),
    "InvalidKeyUsageException": ("the key cannot encrypt and decrypt (it signs, or makes MACs)", _NEW_KEY),
    "UnsupportedOperationException": ("the key cannot do this (it is not a symmetric encryption key)", _NEW_KEY),
    "InvalidArnException": ("AWS does not accept this ARN", "check partition, region, account and key id"),
    "ValidationException": ("AWS refuses the request as malformed", "check partition, region, account and key id"),
}
