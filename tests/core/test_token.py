"""The token format: C2SP's vectors, round trips, and that only the exact string verifies."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import string
import time
from pathlib import Path

import pytest
from core.judging import opened
from cryptography.exceptions import InvalidTag
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.server.request_state import AESGCMRequestStateCodec, InvalidRequestState

from mcpkeys import token
from mcpkeys.codec import EnvelopeCodec
from mcpkeys.ring import MAX_OPENERS, Ring
from mcpkeys.sdktoken import SdkRing

VECTORS = Path(__file__).parents[1] / "vectors"
XAES = json.loads((VECTORS / "xaes-256-gcm.json").read_text())
ALPHABET = string.ascii_letters + string.digits + "-_"


@pytest.fixture(scope="module")
def codec() -> EnvelopeCodec:
    return EnvelopeCodec.from_secrets([os.urandom(32), os.urandom(48)])


@pytest.mark.parametrize("vector", XAES["single"], ids=lambda vector: vector["name"])
def test_c2sp_single_vectors(vector: dict[str, str]) -> None:
    key, nonce = bytes.fromhex(vector["key"]), bytes.fromhex(vector["nonce"])
    plaintext, aad = bytes.fromhex(vector["plaintext"]), bytes.fromhex(vector["aad"])
    sealed = token.XaesKey(key).derive(nonce[:12]).encrypt(nonce[12:], plaintext, aad)
    assert sealed.hex() == vector["ciphertext"]


def accumulated(iterations: int) -> str:
    source, digest = hashlib.shake_128(), hashlib.shake_128()
    # SHAKE128 of the empty string, read as one stream: C2SP's generator of inputs.
    stream = memoryview(source.digest(iterations * (32 + 24 + 1 + 256 + 1 + 256)))
    at = 0

    def read(count: int) -> bytes:
        nonlocal at
        at += count
        return bytes(stream[at - count : at])

    for _ in range(iterations):
        key, nonce = read(32), read(24)
        plaintext = read(read(1)[0])
        aad = read(read(1)[0])
        aead = token.XaesKey(key).derive(nonce[:12])
        sealed = aead.encrypt(nonce[12:], plaintext, aad)
        assert aead.decrypt(nonce[12:], sealed, aad) == plaintext
        digest.update(sealed)
    return digest.digest(32).hex()


def test_c2sp_accumulated_10_000() -> None:
    assert accumulated(10_000) == XAES["accumulated"]["10000"]


@pytest.mark.slow
def test_c2sp_accumulated_1_000_000() -> None:
    assert accumulated(1_000_000) == XAES["accumulated"]["1000000"]


@given(payload=st.binary(max_size=5000))
def test_any_bytes_come_back(codec: EnvelopeCodec, payload: bytes) -> None:
    sealed = codec.seal(payload)
    assert codec.unseal(sealed) == payload
    assert len(sealed) == 32 + -(-(28 + len(payload)) * 4 // 3)
    assert sealed.startswith("mk1.")
    assert set(sealed[4:]) <= set(ALPHABET)


@pytest.mark.parametrize("size", [*range(token.LONG - 32, token.LONG + 5), 3 * token.LONG])
def test_long_states_are_spelled_and_checked_like_short_ones(size: int) -> None:
    secret, payload = os.urandom(32), os.urandom(size)
    codec, other = EnvelopeCodec.from_secrets([secret]), EnvelopeCodec.from_secrets([secret])
    sealed = codec.seal(payload)
    body = token.decode_body(sealed)
    assert body is not None
    assert len(body) == 28 + size
    assert token.encode(sealed[:32], body) == sealed
    for forged in (
        sealed[:-1],
        sealed + "A",
        sealed + "=",
        sealed[:-1] + ALPHABET[(ALPHABET.index(sealed[-1]) + 32) % 64],
        sealed[:40] + ALPHABET[(ALPHABET.index(sealed[40]) + 1) % 64] + sealed[41:],
    ):
        for one in (codec, other):  # one knows the header by the end, the other has yet to see a tag verify
            with pytest.raises(InvalidRequestState):
                one.unseal(forged)
        codec.unseal(sealed)
    assert type(other.unseal(sealed)) is bytes
    assert codec.unseal(sealed) == other.unseal(sealed) == payload


@given(text=st.text(st.characters(codec=None), max_size=400))
@settings(max_examples=500)
def test_any_text_is_refused(codec: EnvelopeCodec, text: str) -> None:
    with pytest.raises(InvalidRequestState):
        codec.unseal(text)


@given(text=st.text(ALPHABET + ".", max_size=200), cut=st.integers(0, 80))
def test_any_text_behind_an_authentic_front_is_refused(codec: EnvelopeCodec, text: str, cut: int) -> None:
    sealed = codec.seal(b"payload")
    forged = sealed[:cut] + text
    if forged == sealed:
        return
    with pytest.raises(InvalidRequestState):
        codec.unseal(forged)


def test_every_single_character_change_insertion_and_deletion_is_refused(codec: EnvelopeCodec) -> None:
    sealed = codec.seal(os.urandom(40))
    codec.unseal(sealed)
    odd = ALPHABET + ".+/= \n\r\t\x00é\ud800😀"
    for position in range(len(sealed) + 1):
        candidates = {sealed[:position] + sealed[position + 1 :]} if position < len(sealed) else set()
        for character in odd:
            candidates.add(sealed[:position] + character + sealed[position + 1 :])
            candidates.add(sealed[:position] + character + sealed[position:])
        for candidate in candidates - {sealed}:
            with pytest.raises(InvalidRequestState):
                codec.unseal(candidate)
    assert codec.unseal(sealed)


@pytest.mark.parametrize("size", range(4))
def test_trailing_bits_and_padding_are_refused(codec: EnvelopeCodec, size: int) -> None:
    sealed = codec.seal(b"x" * size)
    for variant in (sealed + "=", sealed + "==", sealed.replace("-", "+").replace("_", "/") + "=="):
        with pytest.raises(InvalidRequestState):
            codec.unseal(variant)
    last = ALPHABET.index(sealed[-1])
    for other in ALPHABET[:last] + ALPHABET[last + 1 :]:
        with pytest.raises(InvalidRequestState):
            codec.unseal(sealed[:-1] + other)


def test_refusals_use_the_words_of_the_built_in_codec() -> None:
    old, new = os.urandom(32), os.urandom(32)
    ours, theirs = EnvelopeCodec.from_secrets([old]), EnvelopeCodec.from_secrets([new])
    sealed = ours.seal(b"state")

    def reason(codec: EnvelopeCodec, text: str) -> str:
        with pytest.raises(InvalidRequestState) as caught:
            codec.unseal(text)
        assert caught.value.__cause__ is None
        return str(caught.value)

    assert reason(theirs, sealed) == "unknown key"
    assert reason(ours, sealed[:-2] + ("AA" if sealed[-2:] != "AA" else "BB")) == "seal"
    assert reason(ours, "") == reason(ours, "mk1.") == reason(ours, sealed[:69]) == "malformed"
    assert reason(ours, "mk2." + sealed[4:]) == "malformed"
    assert reason(ours, sealed[:20] + "ü" + sealed[21:]) == "malformed"


def test_the_header_is_bound_under_the_tag(codec: EnvelopeCodec) -> None:
    one, two = codec.ring.minter(os.urandom(12)), codec.ring.minter(os.urandom(12))
    assert one is not None
    assert two is not None
    nonce = os.urandom(12)
    body = token.encode("", nonce + one.encrypt(nonce, b"state", one.aad))
    assert codec.unseal(one.header + body) == b"state"
    with pytest.raises(InvalidRequestState, match="seal"):
        codec.unseal(two.header + body)


def test_another_keyset_name_is_another_key() -> None:
    data_key, prefix, nonce = os.urandom(32), os.urandom(12), os.urandom(12)
    sealed = token.xaes_key(data_key, "one").derive(prefix).encrypt(nonce, b"x", b"")
    with pytest.raises(InvalidTag):
        token.xaes_key(data_key, "two").derive(prefix).decrypt(nonce, sealed, b"")


def test_seal_refuses_what_unseal_would_refuse() -> None:
    ring = Ring.from_secrets([os.urandom(32)], now=time.time())
    ring.max_token_chars = 300
    minter = ring.minter(os.urandom(12))
    assert minter is not None
    for size in range(minter.max_payload - 4, minter.max_payload + 5):
        nonce = os.urandom(12)
        sealed = token.encode(minter.header, nonce + minter.encrypt(nonce, os.urandom(size), minter.aad))
        assert isinstance(opened(ring, sealed), bytes) == (size <= minter.max_payload)


def test_a_flood_of_forged_prefixes_is_never_remembered(codec: EnvelopeCodec) -> None:
    sealed = codec.seal(b"state")
    known = len(codec.ring.openers)
    for _ in range(300):
        forged = sealed[:16] + "".join(random.choices(ALPHABET, k=16)) + sealed[32:]
        with pytest.raises(InvalidRequestState):
            codec.unseal(forged)
    assert len(codec.ring.openers) <= known + 1


def test_remembered_derived_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpkeys.ring.MAX_OPENERS", 50)
    ring = Ring.from_secrets([os.urandom(32)], now=time.time())
    tokens = []
    for _ in range(120):
        minter = ring.minter(os.urandom(12))
        assert minter is not None
        nonce = os.urandom(12)
        tokens.append(token.encode(minter.header, nonce + minter.encrypt(nonce, b"s", minter.aad)))
        assert opened(ring, tokens[-1]) == b"s"
    assert len(ring.openers) == 50 < MAX_OPENERS
    assert all(opened(ring, text) == b"s" for text in tokens)


def test_no_key_is_shown_pickled_or_copied(codec: EnvelopeCodec) -> None:
    import copy

    key = next(iter(codec.ring.keys.values()))
    secret = key._xaes._key  # type: ignore[union-attr]
    for thing in (codec, codec.ring, key, key._xaes, SdkRing([secret])):
        assert secret.hex() not in repr(thing)
        assert repr(secret)[2:-1] not in repr(thing)
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError):
                attempt(thing)


@given(payload=st.binary(max_size=300))
def test_the_sdk_token_is_the_sdks_own(payload: bytes) -> None:
    keys = [b"0" * 31 + b"a", "k" * 40]
    ours, theirs = SdkRing(keys), AESGCMRequestStateCodec(keys)
    assert theirs.unseal(ours.seal(payload)) == payload
    assert ours.open(theirs.seal(payload)) == payload


@given(text=st.one_of(st.text(max_size=80), st.text(ALPHABET, max_size=90).map(lambda text: "v1." + text)))
def test_the_sdk_token_is_refused_for_the_sdks_reasons(text: str) -> None:
    keys = [bytes(range(32))]
    try:
        expected: bytes | str = AESGCMRequestStateCodec(keys).unseal(text)
    except InvalidRequestState as exc:
        expected = str(exc)
    assert SdkRing(keys).open(text) == expected


@given(body=st.one_of(st.text(ALPHABET + "+/= \n\x00é", max_size=60), st.text(ALPHABET, max_size=60)))
@settings(max_examples=2000)
def test_the_decoder_is_as_strict_as_encoding_again(body: str) -> None:
    import base64

    front = "m" * token.HEADER_CHARS
    decoded = token.decode_body(front + body)
    try:
        raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)) if body else None
    except ValueError:
        raw = None
    canonical = raw is not None and base64.urlsafe_b64encode(raw).decode().rstrip("=") == body
    assert decoded == (raw if canonical else None)


def test_every_last_character_of_every_length(codec: EnvelopeCodec) -> None:
    import base64

    for surplus in range(1, 5):
        for last in ALPHABET + "+/=":
            body = "A" * (surplus - 1) + last
            raw = token.decode_body("m" * token.HEADER_CHARS + body)
            if raw is not None:
                assert base64.urlsafe_b64encode(raw).decode().rstrip("=") == body
