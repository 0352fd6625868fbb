"""Names on Google Cloud: of keys, of objects, and of the service's endpoint."""

from __future__ import annotations

import os
import re

from mcpkeys.errors import SettingError, UriError
from mcpkeys.glimpse import glimpse_of_uri
from mcpkeys.kms import scheme_of as kek_scheme
from mcpkeys.store import scheme_of as keyset_scheme

ENDPOINT_VARIABLE = "MCPKEYS_GCP_KMS_ENDPOINT"
ENDPOINT = "cloudkms.googleapis.com:443"
_URI = re.compile(
    r"gcpkms://(projects/[a-z0-9][a-z0-9.:-]{0,79}/locations/[a-z0-9-]{1,63}"
    r"/keyRings/[A-Za-z0-9_-]{1,63}/cryptoKeys/[A-Za-z0-9_-]{1,63})"
)
_ENDPOINT = re.compile(r"([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:]{2,45}\]):([0-9]{1,5})")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_EXAMPLE = "gcpkms://projects/P/locations/L/keyRings/R/cryptoKeys/K"


def parse_kek(uri: str) -> str:
    """The crypto key's resource name. Raises `UriError`."""
    kek_scheme(uri)
    match = _URI.fullmatch(uri)
    if match is not None:
        return match[1]
    front, found, _ = uri.partition("/cryptoKeyVersions")
    if found and _URI.fullmatch(front):
        raise UriError(
            "a gcpkms:// URI names a key, not one of its versions",
            why="wrapping uses the primary version, unwrapping the one that wrapped",
            next=f"use {front}",
        )
    raise UriError(
        f"{glimpse_of_uri(uri)} is not a Google Cloud KMS URI", why="its form is fixed", next=f"use {_EXAMPLE}"
    )


def service_endpoint() -> str:
    """`host:port` of the service: MCPKEYS_GCP_KMS_ENDPOINT, or Google's. Raises `SettingError`."""
    value = os.environ.get(ENDPOINT_VARIABLE, "").strip()
    if not value:
        return ENDPOINT
    match = _ENDPOINT.fullmatch(value)
    if match is None or not 1 <= int(match[2]) <= 65535:
        raise SettingError(
            f"{ENDPOINT_VARIABLE} is not host:port",
            why=f"it has {len(value)} characters" + (" and a scheme" if "://" in value else ""),
            next=f"for example {ENDPOINT_VARIABLE}=cloudkms.europe-west3.rep.googleapis.com:443 (TLS is always used)",
        )
    return value


def parse_keyset(uri: str) -> tuple[str, str]:
    """Bucket and object. Raises `UriError`."""
    keyset_scheme(uri)
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    example = "for example gs://acme-keys/fleet.keyset.json"
    if not uri.startswith("gs://") or _BUCKET.fullmatch(bucket) is None:
        raise UriError(
            f"{glimpse_of_uri(uri)} names no bucket",
            why="a bucket's name is 3 to 222 small letters, digits, dots, dashes and underscores",
            next=example,
        )
    if not name or name.startswith("/") or name.endswith("/") or "//" in name or any(c in name for c in "?#*[]"):
        raise UriError(
            f"{glimpse_of_uri(uri)} names no object",
            why="an object's name is not empty, has no empty part between slashes and none of ? # * [ ]",
            next=example,
        )
    if any(part in (".", "..") for part in name.split("/")) or len(name.encode()) > 980:
        raise UriError(
            f"{glimpse_of_uri(uri)} names no usable object",
            why="a part is . or .., or it is over 980 bytes",
            next=example,
        )
    return bucket, name


def parse_generation(version: str) -> int | None:
    """A generation from its canonical decimal form; None for anything else."""
    if not version.isascii() or not version.isdigit() or len(version) > 19:
        return None
    number = int(version)
    return number if 0 < number < 1 << 63 and str(number) == version else None
