"""The KEK in Vault's or OpenBao's Transit engine."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from mcpkeys.errors import KekUnusable, KmsDenied, KmsUnreachable, McpkeysError, UnwrapRefused
from mcpkeys.kms import DATA_KEY_BYTES, KekState, Wrap, WrapContext
from mcpkeys_vault.client import VaultClient, open_client
from mcpkeys_vault.policy import Role
from mcpkeys_vault.reply import KMS_EDGE, Reply
from mcpkeys_vault.rights import excess_rights
from mcpkeys_vault.uri import parse_kek

AEAD_TYPES = frozenset({"aes128-gcm96", "aes256-gcm96", "chacha20-poly1305", "xchacha20-poly1305"})
_DERIVED = b"derived:"
_CIPHERTEXT = re.compile(r"vault:v([1-9][0-9]{0,9}):([A-Za-z0-9+/]+={0,2})")
_NOT_OURS = (
    "message authentication failed",
    "invalid ciphertext",
    "decryption failed",
    "could not decode",
    "failed to decode",
    "illegal base64",
    "unable to decrypt",
)


class VaultKms:
    """One Transit key, `hashivault://KEY?mount=transit&namespace=N`. Works with Vault and OpenBao.

    The context binds a wrapped key as `associated_data`, or, where the key is *derived*, as the `context` its
    derivation takes. A derived key can also make and rewrap data keys without showing them (`generate`,
    `rewrap`); Vault's `datakey` and `rewrap` carry no associated data, so another key cannot. How a blob is bound
    is written in front of it, because servers may decrypt and nothing else, not even read the key:

        vault:v3:...            bound by associated_data
        derived:vault:v3:...    bound by derivation

    Rights. A server: `update` on `MOUNT/decrypt/KEY`. The operator also: `read` on `MOUNT/keys/KEY`, `update` on
    `MOUNT/encrypt/KEY`, and for a derived key `MOUNT/datakey/wrapped/KEY` and `MOUNT/rewrap/KEY`. Never `create` on
    `MOUNT/encrypt/*`: Vault would make a key of a mistyped name. This class reads the key before each encryption,
    so that only a deletion in that very moment could. `mcpkeys policy vault` prints exact policies.
    """

    def __init__(self, uri: str, *, session: Any = None) -> None:
        """Contacts nobody. `session`: a caller's `hvac.Client`. Raises `UriError`, `SettingError`, `PluginError`."""
        self._key = parse_kek(uri)
        self._client: VaultClient = open_client(session)
        self.uri = self._key.uri

    def __repr__(self) -> str:
        return f"VaultKms({self.uri!r})"

    def wrap(self, key: bytes, context: WrapContext, *, deadline: float) -> Wrap:
        """Wrap 1 to 64 bytes under the newest version. Raises as `mcpkeys.kms` says; never creates a Transit key."""
        outcome = self._wrap(key, context, deadline)
        del key
        if isinstance(outcome, McpkeysError):
            raise outcome
        return outcome

    def unwrap(self, wrap: Wrap, context: WrapContext, *, deadline: float) -> bytes:
        """Reverse `wrap`, by `decrypt` alone. Raises as `mcpkeys.kms` says."""
        outcome = self._unwrap(wrap, context, deadline)
        if isinstance(outcome, McpkeysError):
            raise outcome
        return outcome

    def generate(self, context: WrapContext, *, deadline: float) -> Wrap | None:
        """A new 32-byte key from a derived KEK, wrapped and never shown. None: the KEK is not derived."""
        key = self._describe(deadline)
        if not _derived(key):
            return None
        reply = self._post(
            "datakey/wrapped", {"context": _b64(context.aad()), "bits": 8 * DATA_KEY_BYTES}, deadline=deadline
        )
        return self._wrapped(reply, "datakey/wrapped", _DERIVED)

    def rewrap(self, wrap: Wrap, context: WrapContext, *, deadline: float) -> Wrap | None:
        """The same key under the newest version, never shown. None: the blob is bound by associated data."""
        ciphertext, derived = self._ciphertext(wrap)
        if not derived:
            return None
        reply = self._post("rewrap", {"ciphertext": ciphertext, "context": _b64(context.aad())}, deadline=deadline)
        if not reply.ok:
            raise self._refusal(reply, "rewrap", wrap.version)
        return self._wrapped(reply, "rewrap", _DERIVED)

    def describe(self, *, deadline: float) -> KekState:
        """The key's state, from `MOUNT/keys/KEY` (needs `read`)."""
        reply = self._read_key(deadline)
        if reply.missing or (reply.status == 404 and "no handler" in reply.errors):
            why = "no transit engine is mounted there" if "no handler" in reply.errors else "no such key"
            return KekState(exists=False, enabled=False, detail=f"{why}: {self._path('keys')}")
        if not reply.ok:
            raise self._error(reply, "the KEK cannot be described", "read", "keys")
        data = reply.data
        newest, oldest = _versions(data)
        kind = str(data.get("type", "unknown"))[:40]
        trouble = _unfit(data)
        notes = [kind, "derived" if _derived(data) else "not derived", *([f"unfit: {trouble}"] if trouble else [])]
        notes += [
            f"warning: {flag}"
            for flag in ("exportable", "allow_plaintext_backup", "deletion_allowed")
            if data.get(flag) is True
        ]
        return KekState(
            exists=True,
            enabled=not trouble,
            newest=str(newest),
            oldest_usable=str(oldest),
            detail=", ".join(notes),
        )

    def credentials(self, *, deadline: float) -> str:
        """How this identity logs in, and its policies: for `mcpkeys doctor`. Raises `KmsDenied`, `KmsUnreachable`."""
        reply = self._client.whoami(deadline=deadline)
        if not reply.ok:
            right = "read on auth/token/lookup-self"
            raise KMS_EDGE.error(reply, what=f"{self.uri}: the token cannot be looked up", right=right)
        return self._client.describe_identity(reply)

    def excess_rights(self, role: Role, *, deadline: float) -> list[str]:
        """What this identity may do with the key beyond `role`: for `mcpkeys doctor`."""
        return excess_rights(role, [self.uri], "", deadline=deadline, client=self._client)

    def close(self) -> None:
        """Drop connections; the object works again after it."""
        self._client.close()

    def _wrap(self, key: bytes, context: WrapContext, deadline: float) -> Wrap | McpkeysError:
        if not 1 <= len(key) <= 64:
            return KekUnusable("only 1 to 64 bytes can be wrapped", why=f"{len(key)} bytes were given")
        try:
            described = self._describe(deadline)
        except McpkeysError as exc:
            return exc.with_traceback(None)  # its frames hold this one, and this one holds the key
        derived = _derived(described)
        payload = {"plaintext": _b64(key), "context" if derived else "associated_data": _b64(context.aad())}
        reply = self._post("encrypt", payload, deadline=deadline)
        try:
            return self._wrapped(reply, "encrypt", _DERIVED if derived else b"")
        except McpkeysError as exc:
            return exc.with_traceback(None)

    def _unwrap(self, wrap: Wrap, context: WrapContext, deadline: float) -> bytes | McpkeysError:
        try:
            ciphertext, derived = self._ciphertext(wrap)
        except McpkeysError as exc:
            return exc
        payload = {"ciphertext": ciphertext, "context" if derived else "associated_data": _b64(context.aad())}
        reply = self._post("decrypt", payload, deadline=deadline)
        if not reply.ok:
            return self._refusal(reply, "decrypt", wrap.version)
        plaintext = reply.data.get("plaintext")
        try:
            key = base64.b64decode(plaintext, validate=True) if isinstance(plaintext, str) else b""
        except ValueError:
            key = b""
        if not 1 <= len(key) <= 64:
            return KmsUnreachable(
                f"{self.uri} gave no key", why="the answer of decrypt is garbage", next="see what answers at VAULT_ADDR"
            )
        return key

    def _ciphertext(self, wrap: Wrap) -> tuple[str, bool]:
        derived = wrap.blob.startswith(_DERIVED)
        text = (wrap.blob[len(_DERIVED) :] if derived else wrap.blob).decode("ascii", "replace")
        match = _CIPHERTEXT.fullmatch(text)
        if wrap.kek != self.uri or match is None or match[1] != wrap.version or _loose(match[2]):
            raise UnwrapRefused(
                f"{self.uri} did not wrap this",
                why="it names another KEK"
                if wrap.kek != self.uri
                else "the blob is not Transit's, or was tampered with",
                next="`mcpkeys verify` tells whether the keyset is authentic",
            )
        return text, derived

    def _describe(self, deadline: float) -> Mapping[str, Any]:
        """The Transit key, proven to exist and to bind its context. Raises otherwise."""
        reply = self._read_key(deadline)
        if reply.missing:
            raise KekUnusable(
                f"{self.uri} does not exist",
                why=f"Vault has no key at {self._path('keys')}",
                next=f"correct the URI, or create it: vault write -f {self._path('keys')} type=aes256-gcm96",
                code="kek-not-found",
            )
        if not reply.ok:
            raise self._error(reply, "the KEK cannot be read, so nothing was wrapped", "read", "keys")
        trouble = _unfit(reply.data)
        if trouble:
            raise KekUnusable(
                f"{self.uri} cannot be a KEK", why=trouble, next="create a Transit key of type aes256-gcm96"
            )
        return reply.data

    def _wrapped(self, reply: Reply, operation: str, mark: bytes) -> Wrap:
        if not reply.ok:
            raise self._error(reply, "nothing was wrapped", "update", operation)
        ciphertext = reply.data.get("ciphertext")
        match = _CIPHERTEXT.fullmatch(ciphertext) if isinstance(ciphertext, str) else None
        if match is None:
            raise KmsUnreachable(
                f"{self.uri} wrapped nothing", why=f"the answer of {operation} is garbage", next="see VAULT_ADDR"
            )
        return Wrap(self.uri, match[1], mark + match[0].encode())

    def _refusal(self, reply: Reply, operation: str, version: str) -> McpkeysError:
        said = reply.errors
        if reply.status in (400, 500) and not reply.failure:
            if "encryption key not found" in said or "no existing key" in said:
                return KekUnusable(
                    f"{self.uri} does not exist",
                    why=f"Vault has no key at {self._path('keys')}",
                    next="correct the URI, or restore the key",
                    code="kek-not-found",
                )
            if "too old" in said or "min_available_version" in said or "version was archived" in said:
                return KekUnusable(
                    f"version {version} of {self.uri} no longer unwraps",
                    why=f"its min_decryption_version was raised above it: {said}",
                    next="lower min_decryption_version to it, run `mcpkeys rewrap`, then raise it again",
                    code="kek-version-too-old",
                )
            if "soft-deleted" in said or "soft deleted" in said:
                return KekUnusable(f"{self.uri} is soft-deleted", why=said, next="restore the key", code="kek-disabled")
            if reply.status == 400:
                known = any(word in said for word in _NOT_OURS) or "context" in said
                return UnwrapRefused(
                    f"{self.uri} did not wrap this here",
                    why=said if known else f"Vault answered: {said}",
                    next="compare the KEK's URI with the keyset's; `mcpkeys verify` tells whether that is authentic",
                )
        return self._error(reply, "the key was not unwrapped", "update", operation)

    def _error(self, reply: Reply, what: str, verb: str, operation: str) -> McpkeysError:
        error = KMS_EDGE.error(reply, what=f"{self.uri}: {what}", right=f"{verb} on {self._path(operation)}")
        if isinstance(error, KmsDenied) and error.code == "permission" and operation == "keys":
            error.next = f"grant read on {self._path('keys')}: a key that cannot be read is never written to"
        return error

    def _path(self, operation: str) -> str:
        return f"{self._key.mount}/{operation}/{self._key.name}"

    def _read_key(self, deadline: float) -> Reply:
        return self._client.call("GET", self._path("keys"), namespace=self._key.namespace, deadline=deadline)

    def _post(self, operation: str, payload: Mapping[str, Any], *, deadline: float) -> Reply:
        return self._client.call(
            "POST", self._path(operation), payload, namespace=self._key.namespace, deadline=deadline
        )


def _derived(key: Mapping[str, Any]) -> bool:
    return key.get("derived") is True


def _versions(key: Mapping[str, Any]) -> tuple[int, int]:
    def number(name: str) -> int:
        value = key.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    newest = max(1, number("latest_version"))
    return newest, max(1, number("min_decryption_version"), number("min_available_version"))


def _unfit(key: Mapping[str, Any]) -> str:
    """Why this Transit key cannot be a KEK; empty where it can."""
    if key.get("soft_deleted") is True:
        return "it is soft-deleted"
    if key.get("type") not in AEAD_TYPES:
        return f"its type {str(key.get('type'))[:40]} takes no associated data"
    if key.get("convergent_encryption") is True:
        return "convergent encryption would make equal wraps of equal keys, and needs nonces"
    if key.get("supports_encryption") is False or key.get("supports_decryption") is False:
        return "it does not encrypt and decrypt"
    return ""


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _loose(text: str) -> bool:
    """Whether this base64 is not the one way to write its bytes (Vault's decoder takes several)."""
    try:
        return _b64(base64.b64decode(text, validate=True)) != text
    except ValueError:
        return True
