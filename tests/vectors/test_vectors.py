"""The code reproduces tests/vectors/*.json, opens what is to be opened and refuses the rest for the reason given."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from mcp.server.request_state import InvalidRequestState
from vectors import make

from mcpkeys import bundle, document, reports
from mcpkeys.codec import EnvelopeCodec
from mcpkeys.encoding import unb64u
from mcpkeys.errors import KeysetError, UnwrapRefused
from mcpkeys.instance import Instance
from mcpkeys.keyset import digest
from mcpkeys.keyuse import KeyUse
from mcpkeys.kms import Wrap, WrapContext
from mcpkeys.ring import Ring, RingKey
from mcpkeys.token import xaes_key
from mcpkeys_local.kms import LocalKms

HERE = Path(__file__).parent


def vectors(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_text(encoding="ascii"))


@pytest.mark.parametrize("name", make.FILES)
def test_the_code_reproduces_the_file(name: str) -> None:
    assert make.rendered(name) == (HERE / name).read_text(encoding="ascii")


def test_every_file_is_generated_or_names_its_source() -> None:
    for path in HERE.glob("*.json"):
        if path.name not in make.FILES:
            assert json.loads(path.read_text())["source"], path.name


def codec() -> EnvelopeCodec:
    found = vectors("refusals")
    keys = [
        RingKey(
            key["kid"],
            key["state"],
            0,
            0,
            None if key["data_key"] is None else xaes_key(bytes.fromhex(key["data_key"]), found["keyset"]),
            KeyUse(),
        )
        for key in found["keys"]
    ]
    made = EnvelopeCodec(Instance("vectors"))
    made._use(Ring(name=found["keyset"], keys=keys, max_token_chars=found["max_token_chars"]))
    return made


@pytest.mark.parametrize("warm", [False, True], ids=["at first sight", "with every header known"])
def test_the_codec_refuses_for_the_reason_given(warm: bool) -> None:
    found, ours = vectors("refusals"), codec()
    if warm:
        for vector in found["accepted"]:
            assert ours.unseal(vector["token"]) == bytes.fromhex(vector["payload"])
    for vector in found["refused"]:
        with pytest.raises(InvalidRequestState) as caught:
            ours.unseal(vector["token"])
        assert str(caught.value) == vector["reason"], vector["comment"]
    for vector in found["accepted"]:
        assert ours.unseal(vector["token"]) == bytes.fromhex(vector["payload"])


def test_keysets() -> None:
    found = vectors("keysets")
    keyset = document.read(found["document"].encode(), signers=[found["signer"]], name="fleet")
    assert digest(keyset) == found["digest"]
    for vector in found["refused"]:
        with pytest.raises(KeysetError) as caught:
            document.read(vector["document"].encode(), signers=[found["signer"]], name="fleet")
        assert caught.value.code == vector["code"], vector["comment"]


def test_local_wraps_open_under_their_own_context_only(tmp_path: Path) -> None:
    found = vectors("local-wraps")
    kek = tmp_path / "kek.key"
    kek.write_bytes(bytes.fromhex(found["kek"]))
    kek.chmod(0o600)
    kms = LocalKms(f"local://{kek}")
    contexts = [WrapContext(vector["purpose"], vector["keyset"], vector["kid"]) for vector in found["wraps"]]
    for vector, own in zip(found["wraps"], contexts, strict=True):
        for context in contexts:
            wrap = Wrap(kms.uri, "", unb64u(vector["blob"]))
            if context == own:
                assert kms.unwrap(wrap, context, deadline=time.monotonic() + 5).hex() == vector["key"]
            else:
                with pytest.raises(UnwrapRefused):
                    kms.unwrap(wrap, context, deadline=time.monotonic() + 5)


def test_reports() -> None:
    found = vectors("reports")
    key = bytes.fromhex(found["report_key"])
    assert reports.decode(found["report"].encode(), [key], keyset=found["keyset"]) == make.report()
    for vector in found["refused"]:
        with pytest.raises(reports.BadReport):
            reports.decode(vector["report"].encode(), [key], keyset=found["keyset"])


def test_the_bundle_opens_until_its_expiry() -> None:
    found = vectors("bundle")
    ends = found["expires_at_ms"] / 1000
    opened = bundle.open_bundle(found["bundle"].encode(), found["passphrase"], now=ends - 1)
    assert {kid: key.hex() for kid, key in opened.data_keys.items()} == found["data_keys"]
    with pytest.raises(bundle.BundleError, match="expired"):
        bundle.open_bundle(found["bundle"].encode(), found["passphrase"], now=ends)
    for vector in found["refused"]:
        with pytest.raises(bundle.BundleError, match="does not open"):
            bundle.open_bundle(vector["bundle"].encode(), found["passphrase"], now=ends - 1)


# --- published vectors of what the format is made of -----------------------------------------------------------


@pytest.mark.parametrize("vector", vectors("wycheproof-aes-gcm")["tests"], ids=lambda vector: f"tcId {vector['tcId']}")
def test_wycheproof_aes_256_gcm(vector: dict[str, Any]) -> None:
    key, iv, aad, msg, ct, tag = (bytes.fromhex(vector[name]) for name in ("key", "iv", "aad", "msg", "ct", "tag"))
    aead = AESGCM(key)
    if vector["result"] == "valid":
        assert aead.encrypt(iv, msg, aad) == ct + tag
        assert aead.decrypt(iv, ct + tag, aad) == msg
    else:
        with pytest.raises((InvalidTag, ValueError)):
            aead.decrypt(iv, ct + tag, aad)


@pytest.mark.parametrize("vector", vectors("wycheproof-ed25519")["tests"], ids=lambda vector: f"tcId {vector['tcId']}")
def test_wycheproof_ed25519_as_signatures_of_keysets_are_verified(
    vector: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`verify_signature` with the vector's key and signature, its message in place of a document's bytes."""
    message = bytes.fromhex(vector["msg"])
    monkeypatch.setattr(document, "signed_bytes", lambda value: message)
    claimed = "ed25519:" + make.b64u(bytes.fromhex(vector["public"]))
    value = {"signer": {"public": claimed}, "signature": make.b64u(bytes.fromhex(vector["sig"]))}
    if vector["result"] == "valid":
        assert document.verify_signature(value) == claimed
    else:
        with pytest.raises(KeysetError):
            document.verify_signature(value)
