"""Each promise of the contracts, broken once: the contract notices."""

import base64
import logging
import os
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from mcpkeys.errors import Conflict, KmsUnreachable, StoreUnreachable, UnwrapRefused
from mcpkeys.kms import Wrap, WrapContext
from mcpkeys.store import Found
from mcpkeys.testing import FakeKek, FakeKms, FakePlace, FakeStore, KmsContract, StoreContract
from mcpkeys.testing.child import in_child
from mcpkeys.testing.leaks import Listener, leaked, shown

FAILURES = (AssertionError, pytest.fail.Exception)


class Unbound(FakeKms):
    """Ignores the context."""

    fixed = WrapContext("seal", "x", "AAAAAAAAAAAA")

    def wrap(self, key, context, *, deadline):
        return super().wrap(key, self.fixed, deadline=deadline)

    def unwrap(self, wrap, context, *, deadline):
        return super().unwrap(wrap, self.fixed, deadline=deadline)


class Concatenated(FakeKms):
    """Binds to the context's characters, not to its parts."""

    def wrap(self, key, context, *, deadline):
        return super().wrap(key, self.flat(context), deadline=deadline)

    def unwrap(self, wrap, context, *, deadline):
        return super().unwrap(wrap, self.flat(context), deadline=deadline)

    def flat(self, context):
        return WrapContext(context.purpose, "x", context.keyset + context.kid)


class Lenient(FakeKms):
    """Ignores one byte at the end."""

    def wrap(self, key, context, *, deadline):
        wrap = super().wrap(key, context, deadline=deadline)
        return replace(wrap, blob=wrap.blob + b"\0")

    def unwrap(self, wrap, context, *, deadline):
        return super().unwrap(replace(wrap, blob=wrap.blob[:-1]), context, deadline=deadline)


class Plain(FakeKms):
    """Does not wrap at all."""

    def wrap(self, key, context, *, deadline):
        return Wrap(self.uri, "1", b"x" + key)

    def unwrap(self, wrap, context, *, deadline):
        return wrap.blob[1:]


class Chatty(FakeKms):
    """Logs what it was given."""

    def wrap(self, key, context, *, deadline):
        logging.getLogger("chatty").debug("wrapping %s", key.hex())
        return super().wrap(key, context, deadline=deadline)


class Holding(FakeKms):
    """Raises while a local variable holds the key."""

    def wrap(self, key, context, *, deadline):
        mine = bytes(key)
        wrap = super().wrap(mine, context, deadline=deadline)
        return wrap if mine else None


class Telling(FakeKms):
    """Puts the blob into the message."""

    def unwrap(self, wrap, context, *, deadline):
        try:
            return super().unwrap(wrap, context, deadline=deadline)
        except UnwrapRefused:
            raise UnwrapRefused("refused", why=repr(wrap.blob), next="try another") from None


class Timeless(FakeKms):
    """Does not look at the deadline."""

    def unwrap(self, wrap, context, *, deadline):
        return super().unwrap(wrap, context, deadline=float("inf"))


class Flat(FakeKms):
    """Does not tell a quota from an outage."""

    def unwrap(self, wrap, context, *, deadline):
        try:
            return super().unwrap(wrap, context, deadline=deadline)
        except KmsUnreachable as error:
            raise KmsUnreachable(error.what, next=error.next) from None


class Obliging(FakeKms):
    """Creates what is missing."""

    def wrap(self, key, context, *, deadline):
        self.kek.exists = True
        return super().wrap(key, context, deadline=deadline)


def kms_contract(kind):
    class Contract(KmsContract):
        keks = FakeKek("fake:///1"), FakeKek("fake:///2"), FakeKek("fake:///3")

        def make_kms(self):
            return kind(self.keks[0])

        def make_foreign_kms(self):
            return kind(self.keks[1])

        def make_missing_kms(self):
            self.keks[2].exists = False
            return kind(self.keks[2])

        @contextmanager
        def throttled(self, kms):
            kms.faults.per_second = 0
            yield kms
            kms.faults.clear()

    return Contract()


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (Unbound, "test_a_wrap_moved_to_another_kid_is_refused"),
        (Unbound, "test_a_wrap_moved_to_another_keyset_is_refused"),
        (Concatenated, "test_characters_moved_between_keyset_and_kid_are_refused"),
        (Lenient, "test_any_tampered_byte_is_refused"),
        (Plain, "test_the_same_key_wrapped_twice_looks_different"),
        (Plain, "test_any_tampered_byte_is_refused"),
        (Plain, "test_another_keks_blob_is_refused"),
        (Chatty, "test_nothing_shows_a_key_or_a_credential"),
        (Holding, "test_nothing_shows_a_key_or_a_credential"),
        (Telling, "test_a_wrap_moved_to_another_kid_is_refused"),
        (Timeless, "test_a_deadline_that_has_passed_is_refused_at_once"),
        (Flat, "test_a_used_up_quota_is_told_apart_from_an_outage"),
        (Obliging, "test_a_missing_kek_wraps_nothing_and_is_not_created_by_trying"),
    ],
)
def test_a_kms_that_breaks_a_promise_is_found_out(kind, test):
    contract = kms_contract(kind)
    with pytest.raises(FAILURES):
        getattr(contract, test)(contract.make_kms())
    # And the same test is content with one that keeps it.
    contract = kms_contract(FakeKms)
    getattr(contract, test)(contract.make_kms())


class Careless(FakeStore):
    """Writes without comparing."""

    def replace(self, body, expected, *, deadline):
        return self.place.put(body).version


class CheckThenWrite(FakeStore):
    """Compares, and lets others in before it writes."""

    def replace(self, body, expected, *, deadline):
        stored = self.place.document
        if (stored and stored.version) != expected:
            raise Conflict("changed", next="read again")
        time.sleep(0.01)
        return self.place.put(body).version


class ByContent(FakeStore):
    """Names a version by its content."""

    def read(self, known, *, fresh, deadline):
        found = super().read(None, fresh=fresh, deadline=deadline)
        name = str(hash(found.body))
        return None if name == known else Found(found.body, name, found.modified_at)

    def replace(self, body, expected, *, deadline):
        with self.place.lock:
            stored = self.place.document
            if (None if stored is None else str(hash(stored.body))) != expected:
                raise Conflict("changed", next="read again")
            self.place.put(body)
        return str(hash(body))


class Pessimist(FakeStore):
    """Takes its own write for another's."""

    def _look(self, body, deadline):
        raise Conflict("changed", next="read again")


class Optimist(FakeStore):
    """Takes a lost reply for success."""

    def _look(self, body, deadline):
        return self.place.document.version


class Short(FakeStore):
    """Lists one page."""

    def reports(self, *, deadline):
        for number, found in enumerate(super().reports(deadline=deadline)):
            if number < 20:
                yield found


class Silent(FakeStore):
    """Lists what it could get."""

    def reports(self, *, deadline):
        try:
            yield from super().reports(deadline=deadline)
        except StoreUnreachable:
            return


class Climber(FakeStore):
    """Builds names from whatever it is given."""

    def put_report(self, instance, body, *, deadline):
        self.place.stored_reports[instance] = self.place.stamp(body, instance)


class Greedy(FakeStore):
    """Reads whatever is there."""

    def read(self, known, *, fresh, deadline):
        return self.place.document


class Lagging(FakeStore):
    """Never reads fresh."""

    def read(self, known, *, fresh, deadline):
        return super().read(known, fresh=False, deadline=deadline)


def store_contract(kind):
    class Contract(StoreContract):
        home = FakePlace("fake://place/k")

        def make_store(self):
            return kind(self.home)

        def plant(self, body):
            self.home.put(body)

        @contextmanager
        def reply_lost(self, store):
            self.home.lose_replies = 1
            yield store

        @contextmanager
        def reply_lost_and_overtaken(self, store, body):
            self.home.lose_replies = 1
            self.home.overtake = lambda: self.home.put(body)
            yield store

        @contextmanager
        def listing_breaks(self, store):
            self.home.breaks_listing = True
            yield store

        @contextmanager
        def stale(self, store):
            self.home.freeze()
            yield store

    return Contract()


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (Careless, "test_creating_over_something_is_a_conflict"),
        (Careless, "test_replacing_an_unexpected_version_is_a_conflict"),
        (CheckThenWrite, "test_no_update_is_lost_among_racing_writers"),
        (ByContent, "test_versions_do_not_return_when_a_body_does"),
        (Pessimist, "test_a_write_whose_reply_was_lost_is_recognised_as_ones_own"),
        (Optimist, "test_a_lost_reply_is_not_taken_for_success_when_another_body_is_stored"),
        (Short, "test_a_listing_longer_than_a_page_is_complete"),
        (Silent, "test_a_listing_that_breaks_is_an_error_and_never_a_shorter_listing"),
        (Climber, "test_an_instance_id_cannot_climb_out"),
        (Greedy, "test_a_body_beyond_a_megabyte_is_cut_one_byte_beyond_it"),
        (Lagging, "test_a_fresh_read_sees_an_answered_write_where_others_may_not"),
    ],
)
def test_a_store_that_breaks_a_promise_is_found_out(kind, test):
    more = ("../" * 7 + "x",) if "climb" in test else ()
    contract = store_contract(kind)
    with pytest.raises((*FAILURES, Conflict)):
        getattr(contract, test)(contract.make_store(), *more)
    contract = store_contract(FakeStore)
    getattr(contract, test)(contract.make_store(), *more)


def test_an_absent_hook_is_a_skip_that_names_it():
    contract = kms_contract(FakeKms)
    with pytest.raises(pytest.skip.Exception, match="denied"):
        contract.test_a_denied_identity_is_told_so(contract.make_kms())


@pytest.mark.parametrize("spelling", ["raw", "repr", "hex", "HEX", "base64", "list", "shifted", "part", "exception"])
def test_a_planted_secret_is_found_in_every_spelling(spelling):
    secret = os.urandom(32)
    text = {
        "raw": "x" + secret.decode("latin-1"),
        "repr": f"key={secret!r}",
        "hex": secret.hex(),
        "HEX": secret.hex().upper(),
        "base64": base64.urlsafe_b64encode(secret).decode(),
        "list": str(list(secret)),
        "shifted": base64.b64encode(b"!" + secret + b"!").decode(),
        "part": secret[9:25].hex(),
        "exception": repr(ValueError(secret)),
    }[spelling]
    assert leaked(text, [secret])
    assert not leaked(text, [os.urandom(32)])


def test_what_a_suppressed_cause_held_is_not_shown_and_what_a_chained_one_held_is():
    secret = os.urandom(32)

    def fail(hide):
        try:
            raise ValueError(secret.hex())
        except ValueError:
            if hide:
                raise RuntimeError("hidden") from None
            raise RuntimeError("chained")  # noqa: B904

    texts = {}
    for hide in (True, False):
        with pytest.raises(RuntimeError) as caught:
            fail(hide)
        texts[hide] = shown(caught.value, skip=(__file__,))
    assert not leaked(texts[True], [secret])
    assert leaked(texts[False], [secret])


def test_a_listener_hears_debug_records_and_leaves_the_root_logger_as_it_was():
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    with Listener() as listener:
        logging.getLogger("some.dependency").debug("a %s", "word")
    assert "a word" in listener.text
    assert (root.level, list(root.handlers)) == before


def test_a_child_that_raises_or_hangs_fails_the_test():
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        in_child(lambda: str(1 // 0))
    with pytest.raises(AssertionError, match="did not finish"):
        in_child(lambda: time.sleep(30) or "", seconds=0.3)
    with pytest.raises(AssertionError, match="died"):
        in_child(lambda: os._exit(1))
