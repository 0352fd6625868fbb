"""Rewrap and doctor where no KMS hides a key and none restricts by context: Google Cloud (our double of it)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import kms_v1
from servers.gcpkms import GcpKmsDouble

from mcpkeys import EnvelopeCodec, document
from mcpkeys.authoring import Author
from mcpkeys.diagnosis import Diagnosis
from mcpkeys.kekcheck import check_kek
from mcpkeys.keks import Keks
from mcpkeys.loading import Pins
from mcpkeys.registry import open_store
from mcpkeys.rewrapper import rewrap
from mcpkeys.rewrapping import Request

KEY = "projects/double/locations/global/keyRings/mcpkeys/cryptoKeys/fleet"


@pytest.fixture
def double() -> Iterator[GcpKmsDouble]:
    server = GcpKmsDouble(keys=(KEY, KEY + "-sign")).start()
    yield server
    server.stop()


def test_a_rotated_google_key_is_rewrapped_and_its_old_version_destroyed(double: GcpKmsDouble, tmp_path: Path) -> None:
    session = (AnonymousCredentials(), lambda: grpc.insecure_channel(double.endpoint))
    kek, sign, path = double.uri(KEY), double.uri(KEY + "-sign"), tmp_path / "fleet.json"
    sessions = {"gcpkms": session}

    def author(signer: str = "") -> Author:
        pins = Pins("fleet", (signer,) if signer else ())
        return Author(open_store(str(path)), Keks.open([kek], sessions=sessions), pins, sessions=sessions)

    made, _ = author().create("fleet", audience="fleet", sign_keks=[sign], now_ms=1)
    pins = {"keyset": str(path), "keks": [kek], "signers": [made.signer.public], "sessions": sessions}
    with EnvelopeCodec.open("fleet", **pins, refresh="inline") as codec:
        token = codec.seal(b"round")
        double.keys[KEY].rotate()
        seen = Diagnosis("operator")
        author_ = author(made.signer.public)
        check_kek(seen, next(iter(author_.keks)), made, "fleet")
        assert [finding.code for finding in seen.findings] == ["rewrap-due"]
        done = rewrap(author(made.signer.public), Request())
        assert done.revised.written is not None
        assert {item.context.purpose for item in done.layout.due} == {"seal", "report"}
        assert rewrap(author(made.signer.public), Request()).revised.revision.verdict == "done"
        double.keys[KEY].states[1] = kms_v1.CryptoKeyVersion.CryptoKeyVersionState.DESTROYED
        codec._refresher.step()
        assert codec.unseal(token) == b"round"
    with EnvelopeCodec.open("fleet", **pins, refresh="inline") as later:
        assert later.unseal(token) == b"round"
    stored = document.read(path.read_bytes())
    assert {wrap.version for wrap in stored.minting.wrapped} != {wrap.version for wrap in made.minting.wrapped}
    check_kek(seen := Diagnosis("operator"), next(iter(author_.keks)), stored, "fleet")
    assert seen.findings == []
    assert any(check.check == "credentials" and "Anonymous" in check.detail for check in seen.checks)
