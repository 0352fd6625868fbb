"""Keysets to measure with: under a local KEK in a folder, with as many keys as asked for."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mcpkeys.document import public_of, sign
from mcpkeys.encoding import b64u
from mcpkeys.keyset import (
    DEFAULT_MAX_TOKEN_CHARS,
    DEFAULT_REFRESH_SECONDS,
    DEFAULT_SKEW_SECONDS,
    DEFAULT_TTL_SECONDS,
    Key,
    Keyset,
    ReportKey,
    Signer,
    dumps,
)
from mcpkeys.kms import Kms, Purpose, Wrap, WrapContext

NAME = "bench"


def signed_keyset(kms: Sequence[Kms], *, keys: int, sign_kms: Sequence[Kms] = ()) -> Keyset:
    """A first generation with one minting and `keys - 1` verifying keys, wrapped by each of `kms`.

    `sign_kms` wrap the signer; by default the same.
    """
    sign_kms = sign_kms or kms
    now = int(time.time() * 1000)
    private = Ed25519PrivateKey.generate()

    def wrapped(purpose: Purpose, key: bytes) -> tuple[str, tuple[Wrap, ...]]:
        kid = b64u(secrets.token_bytes(9))
        context = WrapContext(purpose, NAME, kid)
        by = sign_kms if purpose == "sign" else kms
        return kid, tuple(kek.wrap(key, context, deadline=time.monotonic() + 60) for kek in by)

    made = [wrapped("seal", os.urandom(32)) for _ in range(keys)]
    report_kid, report = wrapped("report", os.urandom(32))
    sign_kid, signer = wrapped("sign", private.private_bytes_raw())
    uris = tuple(kek.uri for kek in kms)
    return sign(
        Keyset(
            name=NAME,
            audience="acme-orders",
            ttl_seconds=DEFAULT_TTL_SECONDS,
            skew_seconds=DEFAULT_SKEW_SECONDS,
            refresh_seconds=DEFAULT_REFRESH_SECONDS,
            max_stale_seconds=None,
            max_token_chars=DEFAULT_MAX_TOKEN_CHARS,
            evidence="reports",
            generation=1,
            previous=None,
            keks=uris,
            sign_keks=tuple(kek.uri for kek in sign_kms),
            keys=tuple(Key(kid, "verifying" if i else "minting", now, now, w) for i, (kid, w) in enumerate(made)),
            report_key=ReportKey(report_kid, report),
            rotation=None,
            past_ttls=(),
            history=(),
            signer=Signer(public_of(private), sign_kid, signer),
        ),
        private,
    )


def local(folder: Path, *, keys: int = 1) -> dict[str, Any]:
    """A keyset file under a local KEK; keyword arguments of `EnvelopeCodec.open`."""
    from mcpkeys_local.kekfile import create_kek
    from mcpkeys_local.kms import LocalKms

    folder.mkdir(parents=True, exist_ok=True)
    kek, sign_kek = folder / "kek.key", folder / "operator.key"
    create_kek(kek)
    create_kek(sign_kek)
    document = signed_keyset([LocalKms(f"local://{kek}")], keys=keys, sign_kms=[LocalKms(f"local://{sign_kek}")])
    path = folder / "bench.keyset.json"
    path.write_bytes(dumps(document))
    return {"name": NAME, "keyset": str(path), "keks": [f"local://{kek}"], "signers": [document.signer.public]}


def environ(opened: dict[str, Any]) -> dict[str, str]:
    """The same as MCPKEYS_* variables."""
    return {
        "MCPKEYS_NAME": opened["name"],
        "MCPKEYS_KEYSET": opened["keyset"],
        "MCPKEYS_KEKS": ",".join(opened["keks"]),
        "MCPKEYS_SIGNERS": ",".join(opened["signers"]),
    }
