"""Every error of mcpkeys.

    McpkeysError                          exit 1
    ├── ConfigurationError                exit 2   something given is missing, wrong or already there
    │   ├── SettingError                           a MCPKEYS_* variable, an option, the configuration file
    │   ├── UriError                               a KEK or keyset URI that cannot be read
    │   ├── PluginError                            unknown scheme, missing extra, broken or duplicate plugin
    │   ├── KekUnusable                            the KEK exists not, is disabled, has the wrong shape
    │   ├── UnwrapRefused                          the KEK answered: this is not what was wrapped here
    │   ├── NotFound                               nothing is stored at this URI
    │   ├── KeysetExists                           something is stored where nothing may be
    │   └── KeysetError                            a document that must not be used
    │       ├── KeysetMalformed                    not a keyset: syntax, fields, caps
    │       ├── KeysetForged                       the signature does not verify
    │       ├── KeysetMismatch                     authentic, but not what the pins ask for
    │       ├── KeysetRollback                     older than, or other than, what was seen already
    │       └── KeysetLocked                       no pinned KEK unwraps a live key
    ├── TokenRejected                     exit 3
    ├── Unreachable                       exit 4   nobody answered in time; trying again may help
    │   ├── KmsUnreachable                         (`throttled` tells a quota from an outage)
    │   └── StoreUnreachable
    ├── Unsafe                            exit 5   something must be done first; nothing was changed
    │   └── Conflict                               another writer was faster
    ├── NotYet                            exit 6   only time is missing
    ├── Denied                            exit 7   the identity lacks a right
    │   ├── KmsDenied
    │   └── StoreDenied
    └── CannotSeal                        exit 1   no token can be minted now

`unseal` raises none of these: it raises the SDK's `InvalidRequestState` and nothing else.

Each error says `what` happened, `why`, and what to do `next`; `code` is a stable word that scripts may
compare. No error ever carries key bytes, tokens or credentials: frames that hold them raise `from None`.
"""

from __future__ import annotations

from typing import ClassVar


class McpkeysError(Exception):
    """Base of all errors of this package.

    Args:
        what: what happened, one sentence without a full stop.
        why: the cause as far as it is known.
        next: what the reader can do about it: a command where there is one.
        code: a stable word for programs; the class's own where not given.
    """

    code: str = "unexpected"
    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, why: str = "", next: str = "", code: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.next = next
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        text = self.what if not self.why else f"{self.what}: {self.why}"
        return text if not self.next else f"{text} (next: {self.next})"


class ConfigurationError(McpkeysError):
    """What was given is missing, wrong or already there."""

    code = "configuration"
    exit_code = 2


class SettingError(ConfigurationError):
    """A setting, option or configuration file has no usable value. Names the variable, never a secret's value."""

    code = "setting-invalid"


class UriError(ConfigurationError):
    """A KEK or keyset URI cannot be read."""

    code = "uri-invalid"


class PluginError(ConfigurationError):
    """No plugin serves this scheme, its extra is not installed, or the plugin itself is broken."""

    code = "plugin-unavailable"


class KekUnusable(ConfigurationError):
    """The KEK does not exist, is disabled or pending deletion, or has the wrong kind or shape."""

    code = "kek-unusable"


class UnwrapRefused(ConfigurationError):
    """The KEK answered that this blob was not wrapped by it under this context.

    A wrapped key moved to another kid, keyset or purpose, a tampered blob, or a blob of another KEK.
    """

    code = "unwrap-refused"


class NotFound(ConfigurationError):
    """Nothing is stored at this URI."""

    code = "keyset-not-found"


class KeysetExists(ConfigurationError):
    """A keyset is stored where a new one was to be created."""

    code = "keyset-exists"


class KeysetError(ConfigurationError):
    """A keyset document that must not be used. Nothing of it has been used."""

    code = "keyset-invalid"


class KeysetMalformed(KeysetError):
    """Not a keyset document: syntax, a field, or a cap. The message names the field."""

    code = "keyset-malformed"


class KeysetForged(KeysetError):
    """The signature does not verify: the document was edited, damaged or forged."""

    code = "keyset-forged"


class KeysetMismatch(KeysetError):
    """An authentic document that the pins refuse: another name, another signer, no pinned KEK."""

    code = "keyset-mismatch"


class KeysetRollback(KeysetError):
    """Older than a generation seen already, or another document of the same generation, or a retired kid returned."""

    code = "keyset-rollback"


class KeysetLocked(KeysetError):
    """No pinned KEK unwraps a live key of the document."""

    code = "keyset-locked"


class TokenRejected(McpkeysError):
    """The boundary would refuse this token."""

    code = "token-rejected"
    exit_code = 3


class Unreachable(McpkeysError):
    """A KMS, store or instance did not answer in time."""

    code = "unreachable"
    exit_code = 4


class KmsUnreachable(Unreachable):
    """The KMS did not answer, answered late, with a server error or with garbage.

    `throttled` is true where it answered that a quota is used up: such an answer extends the start-up deadline.
    """

    code = "kms-unreachable"

    def __init__(
        self, what: str, *, why: str = "", next: str = "", code: str | None = None, throttled: bool = False
    ) -> None:
        super().__init__(what, why=why, next=next, code=code)
        self.throttled = throttled


class StoreUnreachable(Unreachable):
    """The store did not answer, answered late, with a server error or with garbage."""

    code = "store-unreachable"


class Unsafe(McpkeysError):
    """Refused because something must be done first. Nothing was changed."""

    code = "unsafe"
    exit_code = 5


class Conflict(Unsafe):
    """Compare-and-swap lost: the stored version is not the expected one. Nothing was written."""

    code = "conflict"


class NotYet(McpkeysError):
    """Refused because time is missing, or a wait timed out. The same command resumes."""

    code = "not-yet"
    exit_code = 6


class Denied(McpkeysError):
    """The identity lacks a right."""

    code = "denied"
    exit_code = 7


class KmsDenied(Denied):
    """The KMS refused this identity, or its credentials are missing or expired."""

    code = "kms-denied"


class StoreDenied(Denied):
    """The store refused this identity, or the file or mount is read-only."""

    code = "store-denied"


class CannotSeal(McpkeysError):
    """No token can be minted: the ring is stale, has no minting key, or the payload is too long."""

    code = "cannot-seal"
