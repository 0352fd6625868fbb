"""An attacker who may write the store at will, and one who owns a server beside: no document of theirs is accepted."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from servers.fakefleet import Fleet, refresh

from mcpkeys.document import public_of, sign
from mcpkeys.encoding import b64u
from mcpkeys.errors import McpkeysError
from mcpkeys.keyset import Keyset, Signer, dumps, signed_bytes, to_json
from mcpkeys.kms import Wrap, WrapContext
from mcpkeys.testing import FakeClock, FakeKek


@dataclass
class Attacker:
    """Whoever writes the store; with `secrets`, one who owns a server: its data keys, its report key.

    Attributes:
        fleet: what they attack; its private signer is not theirs.
        old: every document that was ever stored, authentic ones.
        secrets: kid -> key, empty for a mere store writer.
        kek: a KEK of their own.
    """

    fleet: Fleet
    old: list[bytes] = field(default_factory=list)
    secrets: dict[str, bytes] = field(default_factory=dict)
    kek: FakeKek = field(default_factory=lambda: FakeKek("fake:///attacker"))

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.old[-1])

    def edit(self, **changes: Any) -> bytes:
        """The current document with some fields changed, signed as well as they can."""
        return self.sign({**self.document, **changes})

    def sign(self, document: dict[str, Any]) -> bytes:
        """A store writer keeps the old signature; one with keys tries the best of them in the signer's place."""
        if self.secrets:
            best = Ed25519PrivateKey.from_private_bytes(next(iter(self.secrets.values())))
            document["signature"] = b64u(best.sign(signed_bytes(document)))
        return json.dumps(document).encode()

    def own_wrap(self, purpose: Any, kid: str) -> list[dict[str, str]]:
        """A wrap under their own KEK: of the true key where they have it, of their own otherwise."""
        key = self.secrets.get(kid, secrets.token_bytes(32))
        wrap = self.kek.seal(key, WrapContext(purpose, self.fleet.name, kid))
        return [{"kek": wrap.kek, "version": wrap.version, "blob": b64u(wrap.blob)}]


Attack = Callable[[Attacker], bytes | None]
ATTACKS: dict[str, tuple[Attack, str, str]] = {}


def attack(code: str, told: str) -> Callable[[Attack], Attack]:
    """An attack, the code of its refusal by a running server, and words of its message."""

    def register(play: Attack) -> Attack:
        ATTACKS[play.__name__] = (play, code, told)
        return play

    return register


@attack("keyset-rollback", "goes back to generation 1 after 3")
def replayed_old_document(attacker: Attacker) -> bytes:
    return attacker.old[0]


@attack("keyset-forged", "in generation")
def fast_forwarded_generation(attacker: Attacker) -> bytes:
    return attacker.edit(generation=1_000_000)


@attack("keyset-forged", "keys[0].wrapped[0].kek")
def repointed_kek(attacker: Attacker) -> bytes:
    document = attacker.document
    document["keys"][0]["wrapped"][0]["kek"] = attacker.kek.uri
    return attacker.sign(document)


@attack("keyset-forged", "keys[0].wrapped[0].blob")
def rewrapped_under_an_own_kek(attacker: Attacker) -> bytes:
    document = attacker.document
    for key in document["keys"]:
        key["wrapped"] = attacker.own_wrap("seal", key["kid"])
    return attacker.sign(document)


@attack("keyset-forged", "keks[0]")
def kek_list_repointed(attacker: Attacker) -> bytes:
    return attacker.edit(keks=[attacker.kek.uri])


@attack("keyset-forged", "keys[1].wrapped[0].blob")
def wraps_swapped_between_kids(attacker: Attacker) -> bytes:
    document = attacker.document
    one, two = document["keys"]
    one["wrapped"], two["wrapped"] = two["wrapped"], one["wrapped"]
    return attacker.sign(document)


@attack("keyset-forged", "keys[0].wrapped[0].blob")
def wrap_of_another_keyset(attacker: Attacker) -> bytes:
    document = attacker.document
    other = Fleet("other", keks=attacker.fleet.keks, clock=attacker.fleet.clock)
    document["keys"][0]["wrapped"] = to_json(other.create())["keys"][0]["wrapped"]
    return attacker.sign(document)


@attack("keyset-forged", "signer.wrapped[0].blob")
def signer_presented_as_a_data_key(attacker: Attacker) -> bytes:
    document = attacker.document
    document["keys"][0]["wrapped"], document["signer"]["wrapped"] = (
        document["signer"]["wrapped"],
        document["keys"][0]["wrapped"],
    )
    return attacker.sign(document)


@attack("keyset-forged", "keys[0].state")
def flipped_states(attacker: Attacker) -> bytes:
    document = attacker.document
    one, two = document["keys"]
    one["state"], two["state"] = two["state"], one["state"]
    return attacker.sign(document)


@attack("keyset-forged", "ttl_seconds")
def shortened_ttl(attacker: Attacker) -> bytes:
    return attacker.edit(ttl_seconds=1)


@attack("keyset-forged", "max_stale_seconds")
def another_max_stale(attacker: Attacker) -> bytes:
    return attacker.edit(max_stale_seconds=31)


@attack("keyset-forged", "audience")
def another_audience(attacker: Attacker) -> bytes:
    return attacker.edit(audience="evil")


@attack("keyset-forged", "keys")
def dropped_key(attacker: Attacker) -> bytes:
    document = attacker.document
    return attacker.edit(keys=[key for key in document["keys"] if key["state"] == "minting"])


@attack("keyset-not-found", "nothing is stored")
def deleted_document(attacker: Attacker) -> None:
    return None


@attack("keyset-malformed", "empty")
def emptied_document(attacker: Attacker) -> bytes:
    return b""


@attack("keyset-malformed", "schema")
def empty_object(attacker: Attacker) -> bytes:
    return b"{}"


@attack("keyset-malformed", "not JSON")
def half_a_document(attacker: Attacker) -> bytes:
    return attacker.old[-1][: len(attacker.old[-1]) // 2]


@attack("keyset-malformed", "longer than 1,048,576 bytes")
def ten_thousand_keys(attacker: Attacker) -> bytes:
    document = attacker.document
    key = document["keys"][0]
    return attacker.edit(keys=[{**key, "kid": f"{number:012d}"} for number in range(10_000)])


@attack("keyset-forged", "keys")
def as_many_keys_as_fit(attacker: Attacker) -> bytes:
    document = attacker.document
    key = {**document["keys"][0], "state": "verifying", "wrapped": []}
    return attacker.edit(keys=[*document["keys"], *({**key, "kid": f"{number:012d}"} for number in range(5000))])


@attack("keyset-mismatch", "is named 'other', expected 'fleet'")
def another_keyset_of_the_same_signer(attacker: Attacker) -> bytes:
    fleet = attacker.fleet
    return dumps(Fleet("other", keks=fleet.keks, clock=fleet.clock, private=fleet.private).create(generation=9))


@attack("keyset-mismatch", "not pinned")
def another_service_s_authentic_keyset(attacker: Attacker) -> bytes:
    fleet = attacker.fleet
    return dumps(Fleet(fleet.name, keks=fleet.keks, clock=fleet.clock).create(generation=9))


@attack("keyset-mismatch", "not pinned")
def own_signer_over_everything_else(attacker: Attacker) -> bytes:
    """The whole document as it is, a generation on, under a signer of their own."""
    private = Ed25519PrivateKey.generate()
    keyset = replace(
        attacker.fleet.keyset,
        generation=attacker.fleet.keyset.generation + 1,
        signer=replace(attacker.fleet.keyset.signer, public=public_of(private)),
    )
    return dumps(sign(keyset, private))


@attack("keyset-forged", "signature")
def signature_of_an_older_document(attacker: Attacker) -> bytes:
    return json.dumps({**attacker.document, "signature": json.loads(attacker.old[0])["signature"]}).encode()


@attack("keyset-malformed", "stands twice")
def duplicate_names(attacker: Attacker) -> bytes:
    text = attacker.old[-1].decode()
    return text.replace('"ttl_seconds"', '"ttl_seconds": 1,\n  "ttl_seconds"', 1).encode()


@attack("keyset-malformed", "stands twice")
def duplicate_names_spelled_by_an_escape(attacker: Attacker) -> bytes:
    text = attacker.old[-1].decode()
    return text.replace('"ttl_seconds"', '"\\u0074tl_seconds": 1,\n  "ttl_seconds"', 1).encode()


@attack("keyset-malformed", "not an integer")
def the_same_number_as_a_float(attacker: Attacker) -> bytes:
    return attacker.old[-1].replace(b'"ttl_seconds": 600', b'"ttl_seconds": 6e2')


@attack("keyset-malformed", "not an integer")
def not_a_number(attacker: Attacker) -> bytes:
    return attacker.old[-1].replace(b'"ttl_seconds": 600', b'"ttl_seconds": NaN')


@attack("keyset-malformed", "larger than 2^53")
def a_million_digits(attacker: Attacker) -> bytes:
    return attacker.old[-1].replace(b'"ttl_seconds": 600', b'"ttl_seconds": ' + b"9" * 1_000_000)


@attack("keyset-malformed", "nested deeper")
def deep_nesting(attacker: Attacker) -> bytes:
    return b'{"schema":' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@attack("keyset-malformed", "not UTF-8")
def not_utf_8(attacker: Attacker) -> bytes:
    return attacker.old[-1].replace(b"acme-orders", b"acme\xff\xfeorders")


@attack("keyset-malformed", "surrogate")
def half_a_surrogate_pair(attacker: Attacker) -> bytes:
    return attacker.old[-1].replace(b"acme-orders", b"acme\\ud800")


@attack("keyset-malformed", "not JSON")
def byte_order_mark(attacker: Attacker) -> bytes:
    return b"\xef\xbb\xbf" + attacker.old[-1]


@attack("keyset-malformed", "not JSON")
def a_second_document_behind_the_first(attacker: Attacker) -> bytes:
    return attacker.old[-1] + attacker.edit(ttl_seconds=1)


@attack("keyset-forged", "fields that no keyset has")
def a_field_that_forges_log_lines(attacker: Attacker) -> bytes:
    return attacker.edit(**{"x\n2026-01-01 ERROR forged \x1b[31m": 1})


@attack("keyset-malformed", "schema")
def another_schema(attacker: Attacker) -> bytes:
    return attacker.edit(schema="mcpkeys.keyset/2")


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Three generations: one key, two, and the second minting."""
    made = Fleet(clock=FakeClock())
    made.create()
    yield made
    made.close()


@pytest.fixture(params=["store writer", "compromised server"])
def attacker(request: pytest.FixtureRequest, fleet: Fleet) -> Attacker:
    old = [dumps(fleet.keyset), dumps(fleet.learn()), dumps(fleet.turn())]
    return Attacker(fleet, old, dict(fleet.keys) if request.param == "compromised server" else {})


@pytest.mark.parametrize("name", ATTACKS)
def test_a_running_server_keeps_serving_and_says_what_it_refused(
    attacker: Attacker, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    play, code, told = ATTACKS[name]
    fleet = attacker.fleet
    codec = fleet.open()
    token, ring = codec.seal(b"a round"), codec.ring
    stored, calls = fleet.place.document.body, fleet.unwraps

    fleet.place.document = play(attacker)
    with caplog.at_level(logging.INFO, "mcpkeys"):
        for _ in range(3):
            refresh(codec)

    assert codec.ring is ring
    assert codec.ready()
    assert codec.unseal(token) == b"a round"
    assert codec.unseal(codec.seal(b"another")) == b"another"
    assert fleet.unwraps == calls, "a document that is refused costs no KMS call"
    assert attacker.kek.gate.calls["unwrap"] == 0
    error = codec._refresher.last_error
    assert error.code in (code, f"{code}-name", "keyset-name", "keyset-signer")
    assert told in str(error)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1, "told once, not at every refresh"
    assert told in lines[0]
    assert lines[0].isprintable()

    fleet.place.document = stored
    refresh(codec)
    assert codec._refresher.last_error is None
    assert fleet.report(codec).generation == 3


@pytest.mark.parametrize("name", ATTACKS)
def test_no_server_starts_with_it(attacker: Attacker, name: str) -> None:
    play, code, _ = ATTACKS[name]
    if name == "replayed_old_document":
        pytest.skip("a fresh start knows no generation: test_min_generation_pins_it_across_restarts")
    calls = attacker.fleet.unwraps
    attacker.fleet.place.document = play(attacker)
    with pytest.raises(McpkeysError) as raised:
        attacker.fleet.open()
    assert raised.value.code in (code, "keyset-name", "keyset-signer")
    assert raised.value.next
    assert attacker.fleet.unwraps == calls
    assert not attacker.fleet.place.stored_reports


def test_min_generation_pins_it_across_restarts(attacker: Attacker) -> None:
    attacker.fleet.place.document = attacker.old[1]
    with pytest.raises(McpkeysError) as raised:
        attacker.fleet.open(min_generation=3)
    assert raised.value.code == "keyset-rollback"
    attacker.fleet.place.document = attacker.old[2]
    assert attacker.fleet.open(min_generation=3).ready()


# --- documents that the operator's own signature vouches for ------------------------------------------------------


def test_another_document_of_the_same_generation_is_refused(fleet: Fleet) -> None:
    codec = fleet.open()
    fleet.store(replace(fleet.keyset, ttl_seconds=30))
    refresh(codec)
    assert codec._refresher.last_error.code == "keyset-rollback"
    assert codec.ring.keyset.ttl_seconds == 600


def test_a_retired_key_never_returns(fleet: Fleet) -> None:
    fleet.learn()
    codec = fleet.open()
    burnt = fleet.keyset.minting
    fleet.burn(burnt.kid)
    refresh(codec)
    back = [replace(key, state="verifying") if key.kid == burnt.kid else key for key in fleet.keyset.keys]
    fleet.next(keys=tuple(back))
    refresh(codec)
    assert codec._refresher.last_error.code == "keyset-rollback"
    assert burnt.kid in str(codec._refresher.last_error)
    assert not codec.ring.keys[burnt.kid].unwrapped


def _signed_change(fleet: Fleet, change: Callable[[Keyset], Keyset]) -> None:
    keyset = change(fleet.keyset)
    fleet.store(replace(keyset, generation=keyset.generation + 1))


@pytest.mark.parametrize("purpose", ["seal", "report"])
def test_a_repointed_kek_never_sees_a_call_even_where_the_document_is_authentic(fleet: Fleet, purpose: str) -> None:
    """The pins decide, not the signature: a signer that was stolen sends no data key to another KEK."""
    codec, foreign = fleet.open(), FakeKek("fake:///attacker", clock=fleet.clock)
    calls = fleet.unwraps

    def change(keyset: Keyset) -> Keyset:
        if purpose == "report":
            return replace(keyset, report_key=replace(fleet.report_key(), wrapped=(Wrap(foreign.uri, "1", b"x" * 60),)))
        return replace(keyset, keks=(foreign.uri,), keys=(fleet.data_key("minting", [foreign]), *_verifying(keyset)))

    _signed_change(fleet, change)
    refresh(codec)
    assert codec._refresher.last_error.code == "keyset-locked"
    assert foreign.uri in str(codec._refresher.last_error)
    assert fleet.keks[0].uri in str(codec._refresher.last_error)
    assert (fleet.unwraps, foreign.gate.calls["unwrap"]) == (calls, 0)
    assert codec.ring.generation == 1


def _verifying(keyset: Keyset) -> list[Any]:
    return [replace(key, state="verifying") for key in keyset.keys]


def test_wraps_moved_to_another_kid_keyset_or_purpose_do_not_unwrap(fleet: Fleet) -> None:
    fleet.learn()
    codec = fleet.open()
    other = Fleet("other", keks=fleet.keks, clock=fleet.clock)
    moved = {
        "kid": fleet.keyset.keys[0].wrapped,
        "keyset": other.create().keys[0].wrapped,
        "purpose sign": fleet.keyset.signer.wrapped,
        "purpose report": fleet.keyset.report_key.wrapped,
    }
    for what, wrapped in moved.items():
        fresh = replace(fleet.data_key(), wrapped=wrapped)
        _signed_change(fleet, lambda keyset, fresh=fresh: replace(keyset, keys=(*keyset.keys, fresh)))
        refresh(codec)
        assert codec._refresher.last_error.code == "unwrap-refused", what
        assert codec.ring.generation == 2
        fleet.next(keys=fleet.keyset.keys[:2])


@pytest.mark.parametrize("live", [129, 3000])
def test_too_many_keys_are_refused_before_any_call(fleet: Fleet, live: int) -> None:
    codec = fleet.open()
    calls = fleet.unwraps
    wrapped = (Wrap(fleet.keks[0].uri, "1", b"x" * 60),)
    keys = [
        replace(fleet.keyset.keys[0], kid=f"{number:012d}", state="verifying", wrapped=wrapped)
        for number in range(live)
    ]
    document = to_json(replace(fleet.keyset, generation=2, keys=(*fleet.keyset.keys, *keys)))
    document["signature"] = b64u(fleet.private.sign(signed_bytes(document)))
    fleet.place.document = json.dumps(document).encode()
    refresh(codec)
    assert codec._refresher.last_error.code == "keyset-malformed"
    assert "128 live keys" in str(codec._refresher.last_error)
    assert fleet.unwraps == calls


def test_a_signature_by_the_weakest_of_keys_is_worth_nothing(fleet: Fleet) -> None:
    """The all-zero public key verifies signatures that nobody made, for some implementations."""
    keyset = replace(fleet.keyset, signer=Signer("ed25519:" + b64u(bytes(32)), "A" * 12, fleet.keyset.signer.wrapped))
    document = {**to_json(keyset), "signature": b64u(bytes(64))}
    fleet.place.document = json.dumps(document).encode()
    with pytest.raises(McpkeysError):
        fleet.open()
