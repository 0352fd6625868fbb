"""The independent reader opens every vector and refuses every refusal, for the reason that is written there."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from interop import documents, reader

VECTORS = Path(__file__).parent.parent / "vectors"


def vectors(name: str) -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text(encoding="ascii"))


REFUSALS = vectors("refusals")
RING = {
    key["kid"]: (key["state"], None if key["data_key"] is None else bytes.fromhex(key["data_key"]))
    for key in REFUSALS["keys"]
}


def opened(text: str) -> bytes | str:
    return reader.open_token(text, keyset=REFUSALS["keyset"], keys=RING, limit=REFUSALS["max_token_chars"])


def test_the_reader_shares_no_code_with_the_package() -> None:
    source = Path(reader.__file__).read_text() + Path(documents.__file__).read_text()
    assert "import mcpkeys" not in source
    assert "from mcpkeys" not in source
    named = {**vars(reader), **vars(documents)}
    used = {value.__module__ for value in named.values() if hasattr(value, "__module__")}
    assert not [name for name in used if name.partition(".")[0].startswith("mcpkeys")]
    assert "pybase64" not in {getattr(value, "__name__", "") for value in named.values()}
    assert sys.modules["interop.reader"] is reader


@pytest.mark.parametrize("vector", vectors("tokens")["tokens"], ids=lambda vector: vector["comment"])
def test_tokens(vector: dict[str, str]) -> None:
    keys = {vector["kid"]: ("minting", bytes.fromhex(vector["data_key"]))}
    found = reader.open_token(vector["token"], keyset=vector["keyset"], keys=keys, limit=1_048_576)
    assert found == bytes.fromhex(vector["payload"])
    # And the other way round: another language that seals writes the same string.
    head = vector["token"][:32]
    prefix, nonce = bytes.fromhex(vector["prefix"]), bytes.fromhex(vector["nonce"])
    assert head == "mk1." + vector["kid"] + base64.urlsafe_b64encode(prefix).decode()
    aead = reader.derived(reader.xaes_key(bytes.fromhex(vector["data_key"]), vector["keyset"]), prefix)
    sealed = nonce + aead.encrypt(nonce, bytes.fromhex(vector["payload"]), head.encode())
    assert head + base64.urlsafe_b64encode(sealed).decode().rstrip("=") == vector["token"]


@pytest.mark.parametrize("vector", REFUSALS["refused"], ids=lambda vector: vector["comment"])
def test_refusals(vector: dict[str, str]) -> None:
    assert opened(vector["token"]) == vector["reason"]


@pytest.mark.parametrize("vector", REFUSALS["accepted"])
def test_the_same_keys_open_what_they_sealed(vector: dict[str, str]) -> None:
    assert opened(vector["token"]) == bytes.fromhex(vector["payload"])


def test_derivations() -> None:
    found = vectors("derivations")
    for vector in found["xaes_key"]:
        assert reader.xaes_key(bytes.fromhex(vector["data_key"]), vector["keyset"]).hex() == vector["xaes_key"]
    for vector in found["from_secrets"]:
        secret = vector["secret"].encode() if vector["encoding"] == "utf-8" else bytes.fromhex(vector["secret"])
        key = reader.hkdf(secret, b"mcpkeys/secret/key", 32)
        kid = base64.urlsafe_b64encode(reader.hkdf(secret, b"mcpkeys/secret/kid", 9)).decode()
        assert (key.hex(), kid) == (vector["data_key"], vector["kid"])
        found = reader.open_token(vector["token"], keyset="", keys={kid: ("minting", key)}, limit=1_048_576)
        assert found == bytes.fromhex(vector["payload"])


@pytest.mark.parametrize("vector", vectors("contexts")["contexts"])
def test_contexts(vector: dict[str, Any]) -> None:
    bound = reader.context_bytes(vector["purpose"], vector["keyset"], vector["kid"])
    assert bound.hex() == vector["associated_data"]
    assert base64.b64encode(bound).decode() == vector["vault_associated_data"]
    glob = vector["vault_policy_glob"]
    assert glob.endswith("*")
    assert vector["vault_associated_data"].startswith(glob[:-1])
    assert base64.b64decode(glob[:-1]) + vector["kid"].encode() == bound
    named = {"purpose": vector["purpose"], "keyset": vector["keyset"], "kid": vector["kid"]}
    assert vector["aws_encryption_context"] == {f"mcpkeys:{name}": value for name, value in named.items()}


def test_the_keyset_and_its_signature() -> None:
    found = vectors("keysets")
    document = json.loads(found["document"])
    assert reader.signed_bytes(document).hex() == found["signed_bytes"]
    assert reader.verify_keyset(found["document"], found["signer"])
    assert "sha256:" + hashlib.sha256(reader.canonical(document)).hexdigest() == found["digest"]


@pytest.mark.parametrize("vector", vectors("keysets")["refused"], ids=lambda vector: vector["comment"])
def test_documents_that_no_server_may_use(vector: dict[str, str]) -> None:
    signer = vectors("keysets")["signer"]
    assert not documents.usable(vector["document"], signer)
    if vector["code"] != "keyset-malformed":
        assert not reader.verify_keyset(vector["document"], signer)


def test_the_document_that_a_server_may_use() -> None:
    found = vectors("keysets")
    assert documents.usable(found["document"], found["signer"])
    assert not documents.usable(found["document"], "ed25519:" + "A" * 43)


def test_local_wraps() -> None:
    found, keyset = vectors("local-wraps"), vectors("keysets")["document"]
    kek = AESGCM(bytes.fromhex(found["kek"]))
    for vector in found["wraps"]:
        blob = reader.b64u(vector["blob"])
        bound = reader.context_bytes(vector["purpose"], vector["keyset"], vector["kid"])
        assert blob[0] == 1
        assert kek.decrypt(blob[1:13], blob[13:], bound).hex() == vector["key"]
        assert vector["blob"] in keyset


def test_the_report() -> None:
    found = vectors("reports")
    key = bytes.fromhex(found["report_key"])
    assert reader.report_mac(found["report"], key) == (found["mac"], found["mac"])
    for vector in found["refused"]:
        carried, right = reader.report_mac(vector["report"], key)
        other = json.loads(vector["report"])["keyset"] != found["keyset"]
        assert carried != right or other, vector["comment"]


def test_the_bundle() -> None:
    found = vectors("bundle")
    content = reader.open_bundle(found["bundle"], found["passphrase"])
    assert {kid: reader.b64u(key).hex() for kid, key in content["keys"].items()} == found["data_keys"]
    assert reader.verify_keyset(json.dumps(content["keyset"]), vectors("keysets")["signer"])
    for vector in found["refused"]:
        with pytest.raises(InvalidTag):
            reader.open_bundle(vector["bundle"], found["passphrase"])
