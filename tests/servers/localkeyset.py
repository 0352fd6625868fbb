"""A signed keyset under a local KEK and a file store, made without the command line."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mcpkeys.document import public_of, sign
from mcpkeys.encoding import b64u
from mcpkeys.keyset import Key, Keyset, ReportKey, Signer, dumps
from mcpkeys.kms import Wrap, WrapContext
from mcpkeys_local.kekfile import create_kek
from mcpkeys_local.kms import LocalKms


@dataclass(frozen=True)
class LocalKeyset:
    """Where it lies, and the pins a server needs."""

    name: str
    path: Path
    kek: str
    signer: str
    document: Keyset
    private: Ed25519PrivateKey

    @property
    def pins(self) -> dict[str, Any]:
        """Keyword arguments of `EnvelopeCodec.open`."""
        return {"name": self.name, "keyset": str(self.path), "keks": [self.kek], "signers": [self.signer]}

    @property
    def environ(self) -> dict[str, str]:
        """The same as variables."""
        return {
            "MCPKEYS_NAME": self.name,
            "MCPKEYS_KEYSET": str(self.path),
            "MCPKEYS_KEKS": self.kek,
            "MCPKEYS_SIGNERS": self.signer,
        }

    def reports(self) -> list[Path]:
        """The reports that instances left."""
        folder = Path(f"{self.path}.reports")
        return sorted(folder.glob("*.json")) if folder.is_dir() else []


def local_keyset(folder: Path, name: str = "fleet", *, audience: str = "acme-orders", **changes: Any) -> LocalKeyset:
    """A first generation with one key; `changes` are fields of the document."""
    kek_path, path = folder / "kek.key", folder / f"{name}.keyset.json"
    if not kek_path.exists():
        create_kek(kek_path)
    kms = LocalKms(f"local://{kek_path}")
    now = int(time.time() * 1000)
    private = Ed25519PrivateKey.generate()

    def wrapped(purpose: Any, key: bytes) -> tuple[str, tuple[Wrap, ...]]:
        kid = b64u(secrets.token_bytes(9))
        return kid, (kms.wrap(key, WrapContext(purpose, name, kid), deadline=time.monotonic() + 5),)

    kid, wraps = wrapped("seal", os.urandom(32))
    report_kid, report_wraps = wrapped("report", os.urandom(32))
    sign_kid, sign_wraps = wrapped("sign", private.private_bytes_raw())
    fields: dict[str, Any] = {
        "name": name,
        "audience": audience,
        "ttl_seconds": 600,
        "skew_seconds": 60,
        "refresh_seconds": 30,
        "max_stale_seconds": None,
        "max_token_chars": 1_048_576,
        "evidence": "reports",
        "generation": 1,
        "previous": None,
        "keks": (kms.uri,),
        "sign_keks": (kms.uri,),
        "keys": (Key(kid, "minting", now, now, wraps),),
        "report_key": ReportKey(report_kid, report_wraps),
        "rotation": None,
        "past_ttls": (),
        "history": (),
        "signer": Signer(public_of(private), sign_kid, sign_wraps),
    }
    document = sign(Keyset(**fields | changes), private)
    path.write_bytes(dumps(document))
    return LocalKeyset(name, path, kms.uri, document.signer.public, document, private)
