"""Bundles: one file, a passphrase, an expiry that is authenticated; nothing else opens them."""

from __future__ import annotations

import json
import pickle
import warnings
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from inspection.scene import CALL, MINTING, NOW, RETIRED, VERIFYING, Scene

from mcpkeys import bundle, document
from mcpkeys.bundle import BundleError, open_bundle, seal, selected
from mcpkeys.encoding import b64u
from mcpkeys.errors import KeysetError
from mcpkeys.inspection import CallContext, inspect_token

PASSPHRASE = "correct horse battery größe"
SIGNER = Ed25519PrivateKey.generate()


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Any:
    # The smallest cost that is readable: these tests are not about scrypt.
    kept, bundle.SCRYPT_N = bundle.SCRYPT_N, 1 << 15
    yield
    bundle.SCRYPT_N = kept


@pytest.fixture(scope="module")
def scene() -> Scene:
    made = Scene()
    from dataclasses import replace

    signer = replace(made.keyset.signer, public=document.public_of(SIGNER))
    made.keyset = document.sign(replace(made.keyset, signer=signer), SIGNER)
    return made


@pytest.fixture(scope="module")
def body(scene: Scene) -> bytes:
    keys = {kid: scene.data_keys[kid] for kid in selected(scene.keyset, include_minting=False)}
    received = [scene.report("web-1", prefixes=(b64u(scene.prefix),))]
    return seal(scene.keyset, keys, received, PASSPHRASE, now=NOW, expires=86_400)


def refused(body: bytes, code: str, passphrase: str = PASSPHRASE, now: float = NOW, **more: Any) -> BundleError:
    with pytest.raises(BundleError) as caught:
        open_bundle(body, passphrase, now=now, **more)
    assert caught.value.code == code
    assert caught.value.exit_code == 2
    assert caught.value.next
    return caught.value


def test_a_bundle_opens_with_its_passphrase_and_reads_tokens(scene: Scene, body: bytes) -> None:
    opened = open_bundle(body, PASSPHRASE, now=NOW)
    call = CallContext(**CALL, audience="acme-orders", principal=None)
    assert inspect_token(scene.token(VERIFYING), opened.ring(), call, now=NOW).verdict == "accepted"
    retired = inspect_token(scene.token(RETIRED), opened.ring(), call, now=NOW)
    assert (retired.reason, retired.claims is not None) == ("retired key", True)
    assert opened.reports[0].report.label == "web-1"


def test_the_minting_key_stays_out_unless_asked_for(scene: Scene, body: bytes) -> None:
    assert selected(scene.keyset, include_minting=False) == (VERIFYING, RETIRED)
    assert selected(scene.keyset, include_minting=True) == (MINTING, VERIFYING, RETIRED)
    found = inspect_token(scene.token(MINTING), open_bundle(body, PASSPHRASE, now=NOW).ring(), now=NOW)
    assert (found.verdict, found.reason) == ("unverified", None)


def test_a_wrong_passphrase_is_refused(body: bytes) -> None:
    refused(body, "bundle-passphrase", PASSPHRASE[:-1])
    refused(body, "bundle-passphrase", "")


def test_the_same_passphrase_in_another_normal_form_opens(body: bytes) -> None:
    import unicodedata

    assert open_bundle(body, unicodedata.normalize("NFD", PASSPHRASE), now=NOW).data_keys


def test_an_expired_bundle_is_refused_at_the_very_millisecond(body: bytes) -> None:
    assert open_bundle(body, PASSPHRASE, now=NOW + 86_400 - 0.001)
    refused(body, "bundle-expired", now=NOW + 86_400)


def test_the_expiry_cannot_be_edited(body: bytes) -> None:
    head = json.loads(body)
    head["expires_at"] = "2036-11-29T00:00:00.000Z"
    refused(json.dumps(head).encode(), "bundle-passphrase")


@pytest.mark.parametrize(
    "field", ["schema", "keyset", "generation", "kids", "created_at", "expires_at", "scrypt", "nonce", "sealed"]
)
def test_every_field_is_authenticated(body: bytes, field: str) -> None:
    head = json.loads(body)
    value = head[field]
    if isinstance(value, str):
        head[field] = value[:-1] + ("A" if value[-1] != "A" else "E")
    elif isinstance(value, int):
        head[field] = value + 1
    elif isinstance(value, list):
        head[field] = value[1:]
    else:
        head[field] = {**value, "n": 1 << 16}
    with pytest.raises(BundleError):
        open_bundle(json.dumps(head).encode(), PASSPHRASE, now=NOW)


@pytest.mark.parametrize(
    "change",
    [
        {"scrypt": {"n": 1 << 24, "r": 8, "p": 1, "salt": "A" * 22}},
        {"scrypt": {"n": 1 << 15, "r": 8, "p": 1_000_000, "salt": "A" * 22}},
        {"scrypt": {"n": 1 << 15, "r": 4096, "p": 1, "salt": "A" * 22}},
        {"scrypt": {"n": True, "r": 8, "p": 1, "salt": "A" * 22}},
        {"scrypt": 7},
        {"kids": "abc"},
        {"nonce": "A"},
        {"sealed": ""},
        {"more": 1},
    ],
)
def test_work_is_capped_before_any_is_done(
    body: bytes, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> bytes:
        raise AssertionError("scrypt was run")

    monkeypatch.setattr(bundle, "_derive", never)
    refused(json.dumps(json.loads(body) | change).encode(), "bundle-malformed")


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_other_file_is_no_bundle(noise: bytes) -> None:
    refused(noise, "bundle-malformed")


def test_pins_hold_for_the_keyset_inside(body: bytes) -> None:
    assert open_bundle(body, PASSPHRASE, now=NOW, signers=[document.public_of(SIGNER)])
    with pytest.raises(KeysetError):
        open_bundle(body, PASSPHRASE, now=NOW, signers=[document.public_of(Ed25519PrivateKey.generate())])


@pytest.mark.parametrize(
    ("passphrase", "expires"), [("short", 60.0), ("x" * 1025, 60.0), (PASSPHRASE, 0.0), (PASSPHRASE, 8 * 86_400.0)]
)
def test_weak_passphrases_and_long_expiries_make_no_bundle(scene: Scene, passphrase: str, expires: float) -> None:
    with pytest.raises(BundleError):
        seal(scene.keyset, {}, (), passphrase, now=NOW, expires=expires)


def test_a_bundle_shows_no_keys_and_is_never_pickled(scene: Scene, body: bytes) -> None:
    opened = open_bundle(body, PASSPHRASE, now=NOW)
    for key in opened.data_keys.values():
        assert key.hex() not in repr(opened)
        assert repr(key)[2:-1] not in repr(opened)
        assert b64u(key).encode() not in body
    with warnings.catch_warnings(), pytest.raises(TypeError):
        pickle.dumps(opened)


def test_new_bundles_cost_what_the_format_says() -> None:
    assert bundle.SCRYPT_READABLE[-1] == 1 << 17
