"""The ring: what it takes from a keyset, what it notes, and that swapping it under threads breaks nothing."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace

import pytest
from core.judging import attempt, opened
from cryptography.exceptions import InvalidTag
from mcp.server.request_state import InvalidRequestState
from vectors import make

from mcpkeys import token
from mcpkeys.codec import EnvelopeCodec
from mcpkeys.errors import CannotSeal
from mcpkeys.instance import Instance
from mcpkeys.keyset import digest
from mcpkeys.keyuse import KeyUse
from mcpkeys.ring import Ring, RingKey

MINTING, VERIFYING, RETIRED = (make.kid(label) for label in ("minting", "verifying", "retired"))
LIVE = {kid: make.DATA_KEYS[kid] for kid in (MINTING, VERIFYING)}


@pytest.fixture
def ring() -> Ring:
    return Ring.from_keyset(make.keyset(), LIVE)


def test_a_ring_is_its_keyset_and_the_keys_that_were_unwrapped(ring: Ring) -> None:
    keyset = make.keyset()
    assert (ring.name, ring.generation, ring.digest) == ("fleet", 7, digest(keyset))
    assert ring.max_token_chars == keyset.max_token_chars
    assert ring.minting == MINTING
    assert {kid: (key.state, key.unwrapped) for kid, key in ring.keys.items()} == {
        MINTING: ("minting", True),
        VERIFYING: ("verifying", True),
        RETIRED: ("retired", False),
    }
    key = ring.keys[MINTING]
    stored = keyset.key(MINTING)
    assert stored is not None
    assert (key.created_at, key.state_since) == (stored.created_at, stored.state_since)


def test_a_ring_of_secrets_was_made_now_and_seals_by_the_first() -> None:
    ring = Ring.from_secrets([os.urandom(32), os.urandom(40)], now=1234.5678)
    assert [(key.created_at, key.state_since) for key in ring.keys.values()] == [(1_234_567, 1_234_567)] * 2
    assert [key.state for key in ring.keys.values()] == ["minting", "verifying"]
    assert (ring.name, ring.generation, ring.digest, ring.minting) == ("", 0, "", next(iter(ring.keys)))


def test_a_data_key_or_what_was_made_of_it_are_the_same(ring: Ring) -> None:
    made = {kid: token.xaes_key(key, "fleet") for kid, key in LIVE.items()}
    other = Ring.from_keyset(make.keyset(), made)
    assert opened(other, make.sealed("verifying", b"state")) == b"state"
    assert opened(ring, make.sealed("verifying", b"state")) == b"state"


def test_a_ring_that_cannot_unwrap_its_minting_key_mints_nothing() -> None:
    ring = Ring.from_keyset(make.keyset(), {VERIFYING: LIVE[VERIFYING]})
    assert ring.minting is None
    assert ring.minter(os.urandom(12)) is None
    assert opened(ring, make.sealed("minting", b"x")) == "unknown key"
    assert attempt(ring, make.sealed("minting", b"x")) == ("unknown key", "minting")
    with pytest.raises(ValueError, match="not unwrapped"):
        ring.keys[MINTING].derive(bytes(12))


def test_what_is_noted_of_a_key_outlives_the_ring() -> None:
    uses: dict[str, KeyUse] = {}
    before = time.time()
    one = Ring.from_keyset(make.keyset(), LIVE, uses=uses)
    assert opened(one, make.sealed("minting", b"1")) == b"1"
    assert uses[MINTING].unseals == 1
    two = Ring.from_keyset(make.keyset(), LIVE, uses=uses)
    for _ in range(2):
        assert opened(two, make.sealed("minting", b"2")) == b"2"
    assert uses[MINTING].unseals == 3
    assert uses[VERIFYING].unseals == 0
    assert before <= uses[MINTING].last_unseal <= time.time()
    assert uses[VERIFYING].last_unseal == 0.0
    # Without them, each ring begins anew.
    assert Ring.from_keyset(make.keyset(), LIVE).keys[MINTING].use.unseals == 0


def test_a_refusal_is_noted_of_no_key_and_names_its_state(ring: Ring) -> None:
    good = make.sealed("minting", b"state")
    wrong = good[:-3] + ("AAA" if good[-3:] != "AAA" else "BBB")
    strange = make.sealed("strange", b"state")
    for known in (False, True):
        assert attempt(ring, wrong) == ("seal", "minting")
        assert attempt(ring, good + "=") == ("malformed", "minting")
        assert attempt(ring, good[:69]) == ("malformed", "minting" if known else "none")
        assert attempt(ring, good + "A" * 700) == ("malformed", "none")
        assert attempt(ring, strange) == ("unknown key", "none")
        assert attempt(ring, make.sealed("retired", b"")) == ("retired key", "retired")
        assert ring.keys[MINTING].use.unseals == int(known)
        assert opened(ring, good) == b"state"


def test_the_shortest_and_the_longest_token_open_at_first_sight_and_later(ring: Ring) -> None:
    longest = token.max_payload(ring.max_token_chars)
    for payload in (b"", os.urandom(longest)):
        sealed = make.sealed("minting", payload)
        assert token.MIN_TOKEN_CHARS <= len(sealed) <= ring.max_token_chars
        fresh = Ring.from_keyset(make.keyset(), LIVE)
        assert opened(fresh, sealed) == opened(fresh, sealed) == opened(ring, sealed) == payload
    over = make.sealed("minting", os.urandom(longest + 1))
    assert opened(ring, over) == "malformed"
    assert len(make.sealed("minting", b"")) == token.MIN_TOKEN_CHARS
    minter = ring.minter(os.urandom(12))
    assert minter is not None
    assert minter.max_payload == longest
    assert minter.kid == MINTING
    assert minter.header.encode() == minter.aad


@pytest.mark.parametrize("length", [0, 16, 31, 33, 64])
def test_keys_and_prefixes_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        token.XaesKey(os.urandom(length))
    with pytest.raises(ValueError, match="data key is 32 bytes"):
        token.xaes_key(os.urandom(length), "fleet")
    with pytest.raises(ValueError, match="12 bytes"):
        token.XaesKey(os.urandom(32)).derive(os.urandom(length))


def test_the_same_key_is_told_from_another() -> None:
    key = os.urandom(32)
    assert token.XaesKey(key).same(token.XaesKey(key)) is True
    assert token.XaesKey(key).same(token.XaesKey(os.urandom(32))) is False


def test_a_header_is_recognised_by_its_whole_shape() -> None:
    good = token.header("AAAABBBBCCCC", bytes(12))
    assert token.is_header(good)
    assert token.has_header(good + "rest")
    for bad in (good[:-1], "mk2" + good[3:], good[:10] + "." + good[11:], good[:10] + "٣" + good[11:], " " + good):
        assert not token.is_header(bad)
        assert not token.has_header(bad)
    assert not token.is_header(good + "A")


# --- threads -----------------------------------------------------------------------------------------------------


def run(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_threads_that_derive_at_once_get_the_same_keys() -> None:
    """The block ciphers that `derive` keeps are used by one thread at a time."""
    key = token.XaesKey(os.urandom(32))
    nonce, wrong = os.urandom(12), []
    prefixes = [os.urandom(12) for _ in range(200)]
    sealed = [token.XaesKey(key._key).derive(prefix).encrypt(nonce, prefix, b"") for prefix in prefixes]

    def work() -> None:
        for prefix, expected in zip(prefixes, sealed, strict=True):
            try:
                if key.derive(prefix).decrypt(nonce, expected, b"") != prefix:
                    wrong.append(prefix)
            except InvalidTag:
                wrong.append(prefix)

    run([threading.Thread(target=work) for _ in range(6)])
    assert not wrong
    assert 1 <= len(key._spare) <= 6


def test_rings_swapped_without_pause_under_threads_raise_nothing_undocumented() -> None:
    """Two keys change roles, one is burnt and comes back, all of it far faster than any fleet does."""
    keyset = make.keyset()
    old, new = keyset.key(VERIFYING), keyset.key(MINTING)
    assert old is not None
    assert new is not None
    phases = [
        replace(keyset, keys=(replace(old, state="minting"), replace(new, state="verifying"))),
        replace(keyset, keys=(replace(old, state="verifying"), replace(new, state="minting"))),
        replace(keyset, keys=(replace(old, state="retired"), replace(new, state="minting"))),
    ]
    rings = [*(Ring.from_keyset(phase, LIVE) for phase in phases), Ring.from_keyset(phases[1], {})]
    codec = EnvelopeCodec(Instance("race"))
    codec._use(rings[0])
    stop, broken, opened = threading.Event(), [], [0] * 4

    def swap() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            # Now and then a new one, whose headers are all unknown yet.
            codec._use(rings[number % 4] if number % 7 else Ring.from_keyset(phases[number % 2], LIVE))

    def work(number: int) -> None:
        while not stop.is_set():
            payload = os.urandom(20)
            try:
                sealed = codec.seal(payload)
                if codec.unseal(sealed) != payload:
                    broken.append("another payload")
                opened[number] += 1
            except CannotSeal as exc:
                if exc.code != "no-minting-key":
                    broken.append(exc.code)
            except InvalidRequestState as exc:
                if str(exc) not in ("retired key", "unknown key"):
                    broken.append(str(exc))
            except Exception as exc:
                broken.append(repr(exc))

    threads = [threading.Thread(target=swap), *(threading.Thread(target=work, args=(i,)) for i in range(4))]
    ending = threading.Timer(1.5, stop.set)
    ending.start()
    run(threads)
    assert not broken
    assert all(opened)
    assert codec.refusals["malformed"] == codec.refusals["seal"] == 0


def test_a_key_without_bytes_says_so() -> None:
    key = RingKey("AAAABBBBCCCC", "verifying", 1, 2, None, KeyUse())
    assert not key.unwrapped
    assert "unwrapped=False" in repr(key)
