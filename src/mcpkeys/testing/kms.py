"""The contract of a KMS plugin, as tests: subclass `KmsContract` and run pytest."""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import ClassVar, NoReturn

import pytest

from mcpkeys.errors import KekUnusable, KmsDenied, KmsUnreachable, McpkeysError, UnwrapRefused
from mcpkeys.kms import Kms, Purpose, Wrap, WrapContext
from mcpkeys.testing.child import in_child
from mcpkeys.testing.leaks import Listener, leaked, shown

Fault = AbstractContextManager[Kms]
Errors = tuple[type[McpkeysError], ...]


class KmsContract:
    """What every KMS plugin must do. Subclass it under a name that begins with `Test`, provide `make_kms`.

    Every other hook is optional: a test whose hook is absent is skipped and names it. A fault hook takes a healthy
    `Kms` and is a context manager that yields the `Kms` to call while the fault lasts (the same one or another).
    Hooks are methods, so that a subclass can take servers from its own autouse fixtures through `self`.

        class TestAcmeKms(KmsContract):
            @pytest.fixture(autouse=True)
            def server(self, acme_server): self.acme = acme_server

            def make_kms(self): return AcmeKms(f"acme:///{self.acme.key}")

            @contextmanager
            def denied(self, kms):
                with self.acme.without_permissions(): yield kms

    A plugin whose test server is laxer or otherwise worded than the real one widens `foreign_errors` or
    `tamper_errors` and says why beside it.
    """

    call_seconds: ClassVar[float] = 10.0
    """The deadline given to calls that should succeed."""
    tamper_positions: ClassVar[int] = 48
    """At most so many bytes of a blob are tampered with, evenly spread, the first and last 16 always; 0: all."""
    deadline_slack: ClassVar[float] = 1.0
    """A call may return so many seconds after its deadline, on a busy machine."""
    threads: ClassVar[int] = 8
    foreign_errors: ClassVar[Errors] = (UnwrapRefused,)
    tamper_errors: ClassVar[Errors] = (UnwrapRefused, KekUnusable)

    # Hooks.

    def make_kms(self) -> Kms:
        """A new object for the KEK under test: one and the same KEK within a test."""
        raise NotImplementedError("a KmsContract needs make_kms()")

    def parse(self, uri: str) -> Kms:
        """The plugin's object for `uri`, contacting nobody. Default: the class of `make_kms()`, called with it."""
        factory: Callable[[str], Kms] = type(self.make_kms())
        return factory(uri)

    def make_foreign_kms(self) -> Kms:
        """Another KEK of the same KMS, usable by the same identity."""
        self._absent("make_foreign_kms")

    def make_missing_kms(self) -> Kms:
        """A well-formed URI whose KEK does not exist."""
        self._absent("make_missing_kms")

    def secrets(self) -> tuple[bytes, ...]:
        """Credentials that this test session uses and that nothing may show."""
        return ()

    def disabled(self, kms: Kms) -> Fault:
        """While entered, the KEK exists and cannot unwrap."""
        self._absent("disabled")

    def gone(self, kms: Kms) -> Fault:
        """From entering on, the KEK is deleted, or waits for its deletion."""
        self._absent("gone")

    def rotated(self, kms: Kms) -> Fault:
        """From entering on, the KEK has a newer version; the older one still unwraps."""
        self._absent("rotated")

    def version_gone(self, kms: Kms) -> Fault:
        """From entering on, the KEK has a newer version and the one that wrapped before no longer unwraps."""
        self._absent("version_gone")

    def denied(self, kms: Kms) -> Fault:
        """While entered, the identity may do nothing with the KEK."""
        self._absent("denied")

    def unauthenticated(self, kms: Kms) -> Fault:
        """While entered, the credentials are missing, wrong or expired."""
        self._absent("unauthenticated")

    def throttled(self, kms: Kms) -> Fault:
        """While entered, the KMS answers that a quota is used up."""
        self._absent("throttled")

    def unreachable(self, kms: Kms) -> Fault:
        """While entered, nobody listens, or the server answers with a server error."""
        self._absent("unreachable")

    def slow(self, kms: Kms, seconds: float) -> Fault:
        """While entered, the KMS answers after `seconds`."""
        self._absent("slow")

    def garbled(self, kms: Kms) -> Fault:
        """While entered, the KMS answers success with a body that makes no sense, or fails its checksum."""
        self._absent("garbled")

    def run_in_child(self, work: Callable[[], str]) -> str:
        """Run `work` in a forked child."""
        return in_child(work)

    # What the tests share.

    def _absent(self, hook: str) -> NoReturn:
        pytest.skip(f"{type(self).__name__} does not provide the hook {hook}()")

    def _has(self, hook: str) -> bool:
        return getattr(type(self), hook) is not getattr(KmsContract, hook)

    def soon(self) -> float:
        """A deadline that a healthy KMS meets."""
        return time.monotonic() + self.call_seconds

    @pytest.fixture
    def kms(self) -> Iterator[Kms]:
        kms = self.make_kms()
        yield kms
        kms.close()

    def _wrapped(self, kms: Kms, key: bytes | None = None) -> tuple[Wrap, WrapContext, bytes]:
        context = a_context()
        key = os.urandom(32) if key is None else key
        return kms.wrap(key, context, deadline=self.soon()), context, key

    # Round trip.

    @pytest.mark.parametrize("purpose", ["seal", "sign", "report"])
    def test_what_is_wrapped_unwraps(self, kms: Kms, purpose: Purpose) -> None:
        context, key = a_context(purpose), os.urandom(32)
        wrap = kms.wrap(key, context, deadline=self.soon())
        assert kms.unwrap(wrap, context, deadline=self.soon()) == key
        assert wrap.kek == kms.uri
        assert 1 <= len(wrap.blob) <= 8192
        assert key not in wrap.blob

    @pytest.mark.parametrize("length", [1, 2, 16, 31, 33, 63, 64])
    def test_keys_of_1_to_64_bytes_unwrap_to_themselves(self, kms: Kms, length: int) -> None:
        wrap, context, key = self._wrapped(kms, os.urandom(length))
        assert kms.unwrap(wrap, context, deadline=self.soon()) == key

    def test_the_same_key_wrapped_twice_looks_different(self, kms: Kms) -> None:
        key, context = os.urandom(32), a_context()
        first = kms.wrap(key, context, deadline=self.soon())
        assert kms.wrap(key, context, deadline=self.soon()).blob != first.blob

    def test_another_object_for_the_same_kek_unwraps(self, kms: Kms) -> None:
        wrap, context, key = self._wrapped(kms)
        other = self.make_kms()
        try:
            assert other.uri == kms.uri
            assert other.unwrap(wrap, context, deadline=self.soon()) == key
        finally:
            other.close()

    def test_the_longest_keyset_name_is_accepted(self, kms: Kms) -> None:
        context = WrapContext("seal", "n" + "0._-" * 15 + "xy", a_kid())
        assert len(context.keyset) == 63
        key = os.urandom(32)
        wrap = kms.wrap(key, context, deadline=self.soon())
        assert kms.unwrap(wrap, context, deadline=self.soon()) == key

    # Binding.

    def test_a_wrap_moved_to_another_kid_is_refused(self, kms: Kms) -> None:
        self._refused(kms, lambda context: replace(context, kid=a_kid()))

    def test_a_wrap_moved_to_another_keyset_is_refused(self, kms: Kms) -> None:
        self._refused(kms, lambda context: replace(context, keyset="another"))

    @pytest.mark.parametrize("purpose", ["sign", "report"])
    def test_a_wrap_moved_to_another_purpose_is_refused(self, kms: Kms, purpose: Purpose) -> None:
        self._refused(kms, lambda context: replace(context, purpose=purpose))

    def test_characters_moved_between_keyset_and_kid_are_refused(self, kms: Kms) -> None:
        """A context that is a plain concatenation would accept this one."""

        def shift(context: WrapContext) -> WrapContext:
            return replace(context, keyset=context.keyset + context.kid[0], kid=context.kid[1:])

        self._refused(kms, shift)

    @pytest.mark.parametrize("part", ["keyset", "kid"])
    @pytest.mark.parametrize("change", ["missing", "extra"])
    def test_a_context_with_something_missing_or_extra_is_refused(self, kms: Kms, part: str, change: str) -> None:
        def changed(context: WrapContext) -> WrapContext:
            value = "" if change == "missing" else getattr(context, part) + "x"
            return replace(context, keyset=value) if part == "keyset" else replace(context, kid=value)

        self._refused(kms, changed)

    def _refused(self, kms: Kms, moved: Callable[[WrapContext], WrapContext]) -> None:
        wrap, context, key = self._wrapped(kms)
        with pytest.raises(UnwrapRefused) as caught:
            kms.unwrap(wrap, moved(context), deadline=self.soon())
        self._well_told(caught.value, key, wrap)
        assert kms.unwrap(wrap, context, deadline=self.soon()) == key

    def test_any_tampered_byte_is_refused(self, kms: Kms) -> None:
        wrap, context, key = self._wrapped(kms)
        for position in spread(len(wrap.blob), self.tamper_positions):
            blob = bytearray(wrap.blob)
            blob[position] ^= 1 << (position % 7)
            with pytest.raises(self.tamper_errors) as caught:
                kms.unwrap(replace(wrap, blob=bytes(blob)), context, deadline=self.soon())
            self._well_told(caught.value, key, wrap)

    @pytest.mark.parametrize("cut", ["empty", "one byte", "half", "all but one", "one more", "doubled", "huge"])
    def test_a_blob_of_another_length_is_refused(self, kms: Kms, cut: str) -> None:
        wrap, context, _ = self._wrapped(kms)
        blob = {
            "empty": b"",
            "one byte": wrap.blob[:1],
            "half": wrap.blob[: len(wrap.blob) // 2],
            "all but one": wrap.blob[:-1],
            "one more": wrap.blob + b"A",
            "doubled": wrap.blob * 2,
            "huge": os.urandom(9000),
        }[cut]
        with pytest.raises(self.tamper_errors):
            kms.unwrap(replace(wrap, blob=blob), context, deadline=self.soon())

    def test_another_keks_blob_is_refused(self, kms: Kms) -> None:
        foreign = self.make_foreign_kms()
        try:
            assert foreign.uri != kms.uri
            wrap, context, key = self._wrapped(foreign)
            with pytest.raises(self.foreign_errors) as caught:
                kms.unwrap(replace(wrap, kek=kms.uri), context, deadline=self.soon())
            self._well_told(caught.value, key, wrap)
        finally:
            foreign.close()

    def test_a_wrap_that_names_another_kek_is_never_unwrapped_by_that_one(self, kms: Kms) -> None:
        """Who writes the store must not choose which KEK is called."""
        foreign = self.make_foreign_kms()
        try:
            wrap, context, _ = self._wrapped(foreign)
            with pytest.raises((*self.foreign_errors, *self.tamper_errors)):
                kms.unwrap(wrap, context, deadline=self.soon())
        finally:
            foreign.close()

    # Making and rewrapping without showing.

    def test_generated_keys_are_32_bytes_bound_and_new_or_not_offered(self, kms: Kms) -> None:
        context = a_context()
        wrap = kms.generate(context, deadline=self.soon())
        if wrap is None:
            return
        key = kms.unwrap(wrap, context, deadline=self.soon())
        assert len(key) == 32
        assert wrap.kek == kms.uri
        again = kms.generate(context, deadline=self.soon())
        assert again is not None
        assert kms.unwrap(again, context, deadline=self.soon()) != key
        with pytest.raises(UnwrapRefused):
            kms.unwrap(wrap, replace(context, kid=a_kid()), deadline=self.soon())

    def test_rewrapping_keeps_the_key_and_its_binding_or_is_not_offered(self, kms: Kms) -> None:
        wrap, context, key = self._wrapped(kms)
        again = kms.rewrap(wrap, context, deadline=self.soon())
        if again is None:
            return
        assert again.kek == kms.uri
        assert kms.unwrap(again, context, deadline=self.soon()) == key
        with pytest.raises(UnwrapRefused):
            kms.unwrap(again, replace(context, kid=a_kid()), deadline=self.soon())

    def test_a_rotated_kek_unwraps_the_old_and_wraps_anew(self, kms: Kms) -> None:
        wrap, context, key = self._wrapped(kms)
        with self.rotated(kms) as turned:
            assert turned.unwrap(wrap, context, deadline=self.soon()) == key
            newer = turned.wrap(key, context, deadline=self.soon())
            assert turned.unwrap(newer, context, deadline=self.soon()) == key
            if wrap.version:
                assert newer.version != wrap.version
            again = turned.rewrap(wrap, context, deadline=self.soon())
            if again is not None:
                assert again.version == newer.version
                assert turned.unwrap(again, context, deadline=self.soon()) == key

    # The KEK's state.

    def test_a_healthy_kek_is_described_as_one(self, kms: Kms) -> None:
        wrap, _, _ = self._wrapped(kms)
        state = kms.describe(deadline=self.soon())
        assert state.exists
        assert state.enabled
        assert "\n" not in state.detail
        if state.newest is not None:
            assert state.newest == wrap.version

    def test_a_missing_kek_is_described_as_missing(self) -> None:
        missing = self.make_missing_kms()
        state = missing.describe(deadline=self.soon())
        assert not state.exists
        assert not state.enabled
        missing.close()

    def test_a_missing_kek_wraps_nothing_and_is_not_created_by_trying(self, kms: Kms) -> None:
        missing = self.make_missing_kms()
        wrap, context, key = self._wrapped(kms)
        with pytest.raises(KekUnusable) as caught:
            missing.wrap(key, context, deadline=self.soon())
        self._well_told(caught.value, key, wrap)
        with pytest.raises(KekUnusable):
            missing.unwrap(replace(wrap, kek=missing.uri), context, deadline=self.soon())
        assert not missing.describe(deadline=self.soon()).exists
        missing.close()

    def test_a_disabled_kek_is_unusable_and_works_again_when_enabled(self, kms: Kms) -> None:
        wrap, context, key = self._wrapped(kms)
        with self.disabled(kms) as broken:
            with pytest.raises(KekUnusable) as caught:
                broken.unwrap(wrap, context, deadline=self.soon())
            self._well_told(caught.value, key, wrap)
            with pytest.raises(KekUnusable):
                broken.wrap(key, context, deadline=self.soon())
            state = broken.describe(deadline=self.soon())
            assert state.exists
            assert not state.enabled
        assert kms.unwrap(wrap, context, deadline=self.soon()) == key

    def test_a_kek_that_is_gone_is_unusable(self, kms: Kms) -> None:
        wrap, context, key = self._wrapped(kms)
        with self.gone(kms) as broken:
            with pytest.raises(KekUnusable) as caught:
                broken.unwrap(wrap, context, deadline=self.soon())
            self._well_told(caught.value, key, wrap)
            assert not broken.describe(deadline=self.soon()).enabled

    def test_a_version_that_is_gone_is_unusable_and_the_newest_still_works(self, kms: Kms) -> None:
        wrap, context, key = self._wrapped(kms)
        with self.version_gone(kms) as broken:
            with pytest.raises(KekUnusable) as caught:
                broken.unwrap(wrap, context, deadline=self.soon())
            self._well_told(caught.value, key, wrap)
            newer = broken.wrap(key, context, deadline=self.soon())
            assert broken.unwrap(newer, context, deadline=self.soon()) == key

    # Faults.

    def test_a_denied_identity_is_told_so(self, kms: Kms) -> None:
        self._all_raise(kms, self.denied, KmsDenied)

    def test_missing_or_expired_credentials_are_told_so(self, kms: Kms) -> None:
        self._all_raise(kms, self.unauthenticated, KmsDenied)

    def test_a_used_up_quota_is_told_apart_from_an_outage(self, kms: Kms) -> None:
        for error in self._all_raise(kms, self.throttled, KmsUnreachable, seconds=1.5):
            assert isinstance(error, KmsUnreachable)
            assert error.throttled

    def test_an_outage_is_told_apart_from_a_used_up_quota(self, kms: Kms) -> None:
        for error in self._all_raise(kms, self.unreachable, KmsUnreachable, seconds=1.5):
            assert isinstance(error, KmsUnreachable)
            assert not error.throttled

    def test_a_garbled_answer_is_never_taken_for_a_key(self, kms: Kms) -> None:
        wrap, context, key = self._wrapped(kms)
        with self.garbled(kms) as broken, pytest.raises(KmsUnreachable) as caught:
            broken.unwrap(wrap, context, deadline=time.monotonic() + 1.5)
        self._well_told(caught.value, key, wrap)

    def test_the_kms_recovers_after_a_fault(self, kms: Kms) -> None:
        hooks = [hook for hook in ("unreachable", "throttled", "denied") if self._has(hook)]
        if not hooks:
            self._absent("unreachable")
        wrap, context, key = self._wrapped(kms)
        for hook in hooks:
            with getattr(self, hook)(kms) as broken, pytest.raises((KmsUnreachable, KmsDenied)):
                broken.unwrap(wrap, context, deadline=time.monotonic() + 1.0)
            assert kms.unwrap(wrap, context, deadline=self.soon()) == key

    def _all_raise(
        self, kms: Kms, fault: Callable[[Kms], Fault], kind: type[McpkeysError], *, seconds: float | None = None
    ) -> list[McpkeysError]:
        wrap, context, key = self._wrapped(kms)
        seconds = self.call_seconds if seconds is None else seconds
        caught: list[McpkeysError] = []
        with fault(kms) as broken:
            for call in (
                lambda: broken.unwrap(wrap, context, deadline=time.monotonic() + seconds),
                lambda: broken.wrap(key, context, deadline=time.monotonic() + seconds),
            ):
                begun = time.monotonic()
                with pytest.raises(kind) as error:
                    call()
                assert time.monotonic() - begun < seconds + self.deadline_slack
                self._well_told(error.value, key, wrap)
                caught.append(error.value)
        return caught

    # Deadlines.

    def test_a_deadline_is_kept_when_the_kms_is_slow(self, kms: Kms) -> None:
        wrap, context, key = self._wrapped(kms)
        with self.slow(kms, 3.0) as late:
            for call in (
                lambda deadline: late.unwrap(wrap, context, deadline=deadline),
                lambda deadline: late.wrap(key, context, deadline=deadline),
                lambda deadline: late.describe(deadline=deadline),
            ):
                begun = time.monotonic()
                with pytest.raises(KmsUnreachable) as caught:
                    call(begun + 0.4)
                assert time.monotonic() - begun < 0.4 + self.deadline_slack
                self._well_told(caught.value, key, wrap)

    def test_a_deadline_that_has_passed_is_refused_at_once(self, kms: Kms) -> None:
        wrap, context, key = self._wrapped(kms)
        passed = time.monotonic() - 1.0
        for call in (
            lambda: kms.unwrap(wrap, context, deadline=passed),
            lambda: kms.wrap(key, context, deadline=passed),
            lambda: kms.describe(deadline=passed),
        ):
            begun = time.monotonic()
            with pytest.raises(KmsUnreachable) as caught:
                call()
            assert time.monotonic() - begun < self.deadline_slack
            self._well_told(caught.value, key, wrap)

    # Secrets.

    def test_nothing_shows_a_key_or_a_credential(self, kms: Kms) -> None:
        """Messages, tracebacks with local variables, and logs with the root logger at DEBUG.

        A frame that holds a key as it raises shows it: delete the name, then raise a fresh error `from None`.
        """
        planted = [os.urandom(32)]
        context = a_context()
        errors: list[BaseException] = []

        def note(call: Callable[[], object]) -> None:
            try:
                call()
            except Exception as error:
                errors.append(error)

        with Listener() as listener:
            fresh = self.make_kms()
            wrap = fresh.wrap(planted[0], context, deadline=self.soon())
            fresh.unwrap(wrap, context, deadline=self.soon())
            made = fresh.generate(context, deadline=self.soon())
            if made is not None:
                planted.append(fresh.unwrap(made, context, deadline=self.soon()))
            fresh.rewrap(wrap, context, deadline=self.soon())
            note(lambda: fresh.unwrap(wrap, a_context(), deadline=self.soon()))
            note(lambda: fresh.unwrap(replace(wrap, blob=b""), context, deadline=self.soon()))
            note(lambda: fresh.wrap(planted[0], context, deadline=time.monotonic() - 1.0))
            for hook in ("denied", "unauthenticated", "throttled", "unreachable", "garbled"):
                if self._has(hook):
                    with getattr(self, hook)(fresh) as broken:
                        note(lambda: broken.wrap(planted[0], context, deadline=time.monotonic() + 0.7))
                        note(lambda: broken.unwrap(wrap, context, deadline=time.monotonic() + 0.7))
            fresh.close()
        hidden = [*planted, *self.secrets()]
        assert len(errors) >= 3, "wrong contexts, empty blobs and passed deadlines were accepted"
        assert not leaked(listener.text, hidden), "a log record shows a key or a credential"
        for error in errors:
            assert not leaked(shown(error, skip=(__file__,)), hidden), f"{type(error).__name__} shows a secret"
        assert not leaked(repr(fresh) + repr(vars(fresh) if hasattr(fresh, "__dict__") else ""), hidden), (
            "the object's repr or attributes show a secret"
        )

    def _well_told(self, error: McpkeysError, key: bytes, wrap: Wrap) -> None:
        assert error.what, "an error says what happened"
        assert error.why, "an error says why"
        assert error.next, "an error says what to do next"
        told = f"{error} {error.what} {error.why} {error.next}"
        assert "\n" not in told, "an error is one line"
        hidden = [key, *self.secrets()] if len(key) >= 12 else list(self.secrets())
        assert not leaked(told, hidden), "the message shows a key or a credential"
        secret_half = wrap.blob[len(wrap.blob) // 2 :]  # the front may be the KEK's name, as in a blob of AWS
        assert not leaked(told, [secret_half]), "the message shows a blob"

    # Threads, processes, closing.

    def test_threads_share_one_object(self, kms: Kms) -> None:
        gate = threading.Barrier(self.threads)

        def work() -> bool:
            gate.wait(timeout=30)
            wrap, context, key = self._wrapped(kms)
            return kms.unwrap(wrap, context, deadline=self.soon()) == key

        with ThreadPoolExecutor(self.threads) as pool:
            assert all(future.result() for future in [pool.submit(work) for _ in range(self.threads)])

    def test_closing_is_idempotent_and_the_object_works_again(self, kms: Kms) -> None:
        kms.close()
        wrap, context, key = self._wrapped(kms)
        kms.close()
        kms.close()
        assert kms.unwrap(wrap, context, deadline=self.soon()) == key

    @pytest.mark.parametrize("closing", ["closed first", "as it is"])
    def test_a_forked_child_can_use_it_and_the_parent_still_can(self, kms: Kms, closing: str) -> None:
        wrap, context, key = self._wrapped(kms)

        def work() -> str:
            if closing == "closed first":
                kms.close()
            return "same" if kms.unwrap(wrap, context, deadline=self.soon()) == key else "other"

        assert self.run_in_child(work) == "same"
        assert kms.unwrap(wrap, context, deadline=self.soon()) == key

    # The URI.

    def test_the_canonical_uri_is_stable(self, kms: Kms) -> None:
        again = self.parse(kms.uri)
        assert again.uri == kms.uri
        assert kms.uri.isascii()
        assert kms.uri.isprintable()
        again.close()


def a_kid() -> str:
    """A random kid: 9 bytes, base64url, 12 characters."""
    return base64.urlsafe_b64encode(os.urandom(9)).decode()


def a_context(purpose: Purpose = "seal") -> WrapContext:
    """A context with a fresh kid in the keyset `fleet-a`."""
    return WrapContext(purpose, "fleet-a", a_kid())


def spread(length: int, most: int) -> list[int]:
    """At most `most` positions of `length` (0: all), the first and last 16 among them."""
    if most == 0 or length <= most:
        return list(range(length))
    ends = {*range(min(16, length)), *range(max(0, length - 16), length)}
    inner = max(1, most - len(ends))
    return sorted(ends | {round((i + 1) * (length - 1) / (inner + 1)) for i in range(inner)})
