"""A KMS in memory that fails when told to."""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mcpkeys.clock import Clock, SystemClock
from mcpkeys.errors import KekUnusable, KmsDenied, KmsUnreachable, UnwrapRefused
from mcpkeys.kms import DATA_KEY_BYTES, KekState, Wrap, WrapContext, identity
from mcpkeys.testing.faults import Answers, Faults, Gate

_ANSWERS = Answers(
    late=lambda why: KmsUnreachable("the fake KMS gave no answer", why=why, next="clear its faults"),
    throttled=lambda why: KmsUnreachable("the fake KMS is busy", why=why, next="wait a second", throttled=True),
    denied=lambda why: KmsDenied("the fake KMS refuses", why=why, next="clear its faults"),
)


class FakeKek:
    """The KMS's side of one KEK: its versions, its state, its faults and counts. Open as many `FakeKms` as you like.

    Attributes:
        exists, enabled: its state.
        faults: for every caller.
        gate: counts.
        hides_keys: whether `generate` and `rewrap` are offered.
    """

    def __init__(self, uri: str = "fake:///kek-1", *, clock: Clock | None = None, hides_keys: bool = True) -> None:
        self.uri = uri
        self.clock = clock or SystemClock()
        self.exists = True
        self.enabled = True
        self.hides_keys = hides_keys
        self.faults = Faults()
        self.gate = Gate(self.clock, _ANSWERS)
        self.oldest = 1
        self._versions = {1: AESGCM(os.urandom(32))}

    def __repr__(self) -> str:
        return f"FakeKek({self.uri!r}, versions {self.oldest} to {self.newest})"

    @property
    def newest(self) -> int:
        """The version that wraps."""
        return max(self._versions)

    def rotate(self) -> None:
        """A new version; the older ones still unwrap."""
        self._versions[self.newest + 1] = AESGCM(os.urandom(32))

    def trim(self) -> None:
        """Only the newest version still unwraps."""
        self.oldest = self.newest

    def open(self) -> FakeKms:
        """A caller of this KEK."""
        return FakeKms(self)

    def seal(self, key: bytes, context: WrapContext) -> Wrap:
        """`key` wrapped under the newest version: two bytes of version, twelve of nonce, ciphertext and tag."""
        nonce, version = os.urandom(12), self.newest
        front = version.to_bytes(2, "big")
        return Wrap(self.uri, str(version), front + nonce + self._versions[version].encrypt(nonce, key, context.aad()))

    def unseal(self, blob: bytes, context: WrapContext) -> bytes:
        """The key in `blob`. Raises `KekUnusable` (version gone) or `UnwrapRefused`."""
        version = int.from_bytes(blob[:2], "big")
        if version in self._versions and version < self.oldest:
            raise KekUnusable(
                f"version {version} of {self.uri} is gone", why="it was trimmed", next="use another KEK, then rewrap"
            )
        try:
            return self._versions[version].decrypt(blob[2:14], blob[14:], context.aad())
        except (KeyError, InvalidTag, ValueError):
            raise UnwrapRefused(
                f"{self.uri} does not unwrap this key",
                why="altered, or of another kid, keyset, purpose or KEK",
                next="verify the keyset: mcpkeys verify",
            ) from None


class FakeKms:
    """A `mcpkeys.kms.Kms` in memory.

    Args:
        kek: the KEK to call; by default one of its own, `FakeKms().kek`.

    Attributes:
        faults: between this caller and the KMS, beside those of `kek.faults`.
        gate: this KEK's counts, of all callers.
    """

    def __init__(self, kek: FakeKek | None = None) -> None:
        self.kek = kek or FakeKek()
        self.faults = Faults()
        self.uri = self.kek.uri

    def __repr__(self) -> str:
        return f"FakeKms({self.uri!r})"

    @property
    def gate(self) -> Gate:
        return self.kek.gate

    def _enter(self, operation: str, deadline: float, *, writes: bool = False) -> None:
        self.gate.enter(operation, (self.kek.faults, self.faults), deadline, writes=writes)
        if operation == "describe":
            return
        if not self.kek.exists:
            raise KekUnusable(f"{self.uri} cannot be used", why="it does not exist", next="correct the URI")
        if not self.kek.enabled:
            raise KekUnusable(f"{self.uri} cannot be used", why="it is disabled", next="enable it")

    def wrap(self, key: bytes, context: WrapContext, *, deadline: float) -> Wrap:
        try:
            self._enter("wrap", deadline, writes=True)
            return self.kek.seal(key, context)
        finally:
            del key  # tracebacks show the locals of every frame that an error crosses

    def unwrap(self, wrap: Wrap, context: WrapContext, *, deadline: float) -> bytes:
        if identity(wrap.kek) != identity(self.uri):
            raise UnwrapRefused(
                f"{self.uri} is not asked to unwrap", why="the wrap names another KEK", next="check MCPKEYS_KEKS"
            )
        self._enter("unwrap", deadline)
        return self.kek.unseal(wrap.blob, context)

    def generate(self, context: WrapContext, *, deadline: float) -> Wrap | None:
        if not self.kek.hides_keys:
            return None
        self._enter("generate", deadline, writes=True)
        return self.kek.seal(os.urandom(DATA_KEY_BYTES), context)

    def rewrap(self, wrap: Wrap, context: WrapContext, *, deadline: float) -> Wrap | None:
        if not self.kek.hides_keys:
            return None
        self._enter("rewrap", deadline, writes=True)
        return self.kek.seal(self.kek.unseal(wrap.blob, context), context)

    def describe(self, *, deadline: float) -> KekState:
        self._enter("describe", deadline)
        if not self.kek.exists:
            return KekState(False, False, detail="does not exist")
        detail = "enabled" if self.kek.enabled else "disabled"
        return KekState(True, self.kek.enabled, str(self.kek.newest), str(self.kek.oldest), detail)

    def close(self) -> None:
        """Nothing is held open."""
