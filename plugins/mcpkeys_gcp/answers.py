"""What Google Cloud KMS's answers mean: from google-api-core's exceptions to ours."""

from __future__ import annotations

import re

from mcpkeys.errors import KekUnusable, KmsDenied, KmsUnreachable, McpkeysError, UnwrapRefused
from mcpkeys_gcp.bounded import DeadlinePassed
from mcpkeys_gcp.identity import oauth_word

_NOT_PLAIN = re.compile(r"[^\x20-\x7e]+")
_LONG_WORD = re.compile(r"[A-Za-z0-9+/=_-]{44,}")


RIGHTS = {
    "encrypt": "cloudkms.cryptoKeyVersions.useToEncrypt",
    "decrypt": "cloudkms.cryptoKeyVersions.useToDecrypt",
    "get_crypto_key": "cloudkms.cryptoKeys.get",
    "list_crypto_key_versions": "cloudkms.cryptoKeyVersions.list",
}
"""The permission that each call needs on the key."""


def one_line(text: str, most: int = 240) -> str:
    """A server's words as one line of printable ASCII; words long enough to be a key or a blob are cut out.

    Names of resources stay: they are long, public, and what the reader needs.
    """
    plain = _LONG_WORD.sub(lambda m: m[0] if "/keyRings/" in m[0] else "[...]", _NOT_PLAIN.sub(" ", text)).strip()
    return plain if len(plain) <= most else plain[: most - 3] + "..."


def garbage(what: str) -> KmsUnreachable:
    """The answer cannot be right: damaged on its way, or not from Google Cloud KMS."""
    return KmsUnreachable(
        "Google Cloud KMS gave an answer that cannot be right",
        why=what,
        next="try again; if it persists, look for a proxy that alters traffic",
        code="kms-garbled",
    )


def late(name: str) -> KmsUnreachable:
    """No answer before the deadline."""
    return KmsUnreachable(
        f"Google Cloud KMS did not answer in time for {name}",
        why="the deadline passed",
        next="check the network path to cloudkms.googleapis.com:443, then try again",
    )


def explain(exc: BaseException, name: str, *, method: str, version: str = "") -> McpkeysError:
    """The error to raise for `exc`, which a call about the crypto key `name` raised.

    Args:
        exc: what google-api-core, google-auth or gRPC raised.
        name: `projects/.../cryptoKeys/K`.
        method: the client's method, a key of `RIGHTS`.
        version: of the wrap that was to be unwrapped, may be empty.
    """
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth

    if isinstance(exc, DeadlinePassed | api.DeadlineExceeded):
        return late(name)
    if isinstance(exc, auth.DefaultCredentialsError | auth.RefreshError | auth.TransportError):
        return _credentials(exc, retryable=bool(getattr(exc, "retryable", False)))
    if isinstance(exc, auth.GoogleAuthError):
        return KmsDenied(
            "the Google Cloud credentials cannot be used",
            why=type(exc).__name__,
            next="check GOOGLE_APPLICATION_CREDENTIALS, or run: gcloud auth application-default login",
            code="credentials-missing",
        )
    if not isinstance(exc, api.GoogleAPICallError):
        return KmsUnreachable(
            f"the call to Google Cloud KMS failed for {name}",
            why=type(exc).__name__,
            next="try again; if it persists, upgrade google-cloud-kms and grpcio",
        )
    said, wrapping = one_line(str(exc.message or "")), method != "decrypt"
    if isinstance(exc, api.Unauthenticated):
        return KmsDenied(
            "Google Cloud KMS did not accept the credentials",
            why=said or "UNAUTHENTICATED",
            next="renew the credentials; compare this machine's clock: tokens made minutes off are refused",
            code="credentials-expired",
        )
    if isinstance(exc, api.PermissionDenied):
        return KmsDenied(
            f"Google Cloud KMS refused this identity for {name}",
            why=said or "PERMISSION_DENIED",
            next=f"grant {RIGHTS[method]} on the key (see mcpkeys policy gcp), or correct the key's name",
        )
    if isinstance(exc, api.NotFound):
        return KekUnusable(
            f"Google Cloud KMS has no key {name}",
            why=said or "NOT_FOUND",
            next="correct project, location, key ring and key in the gcpkms:// URI",
            code="kek-missing",
        )
    if isinstance(exc, api.FailedPrecondition):
        return _not_now(name, said, wrapping=wrapping, version=version)
    if isinstance(exc, api.InvalidArgument):
        if "crc32c" in said.lower() or "checksum" in said.lower():
            return garbage("the request arrived damaged: its checksum did not match")
        if wrapping:
            return KekUnusable(
                f"the key {name} cannot wrap",
                why=said or "INVALID_ARGUMENT",
                next="name a symmetric key of purpose ENCRYPT_DECRYPT",
            )
        return UnwrapRefused(
            f"{name} did not unwrap this key",
            why="it was wrapped by another key or for another keyset, kid or purpose, or it was altered",
            next="run mcpkeys verify on the keyset; if it is authentic, run mcpkeys doctor",
        )
    if isinstance(exc, api.ResourceExhausted):
        return KmsUnreachable(
            "Google Cloud KMS answers that a quota is used up",
            why=said or "RESOURCE_EXHAUSTED",
            next="wait and try again; raise the project's Cloud KMS cryptographic requests quota if this recurs",
            code="kms-throttled",
            throttled=True,
        )
    return _unreachable(name, said or type(exc).__name__)


def _credentials(exc: BaseException, *, retryable: bool) -> McpkeysError:
    from google.auth import exceptions as auth

    if isinstance(exc, auth.DefaultCredentialsError):
        return KmsDenied(
            "no Google Cloud credentials were found",
            why="neither GOOGLE_APPLICATION_CREDENTIALS, nor gcloud's, nor a metadata server gave usable ones",
            next="set GOOGLE_APPLICATION_CREDENTIALS, or run: gcloud auth application-default login",
            code="credentials-missing",
        )
    if isinstance(exc, auth.TransportError) or retryable:
        return KmsUnreachable(
            "the Google Cloud credentials could not be renewed",
            why="the token endpoint or metadata server did not answer",
            next="check the network path to the token endpoint, then try again",
        )
    word = oauth_word(exc)
    return KmsDenied(
        "the Google Cloud credentials are no longer accepted",
        why=f"renewing them was refused{f' ({word})' if word else ''}",
        next="run: gcloud auth application-default login, or replace the key file; compare this machine's clock too",
        code="credentials-expired",
    )


def _not_now(name: str, said: str, *, wrapping: bool, version: str) -> KekUnusable:
    if "purpose" in said.lower():
        return KekUnusable(
            f"the key {name} cannot wrap",
            why=said,
            next="name a symmetric key of purpose ENCRYPT_DECRYPT",
            code="kek-wrong-purpose",
        )
    if wrapping:
        return KekUnusable(
            f"the primary version of {name} cannot be used",
            why=said or "FAILED_PRECONDITION",
            next="enable it, or make an enabled version primary: gcloud kms keys update --primary-version",
            code="kek-version-unusable",
        )
    which = f"version {version}" if version else "the version that wrapped this"
    return KekUnusable(
        f"{which} of {name} cannot be used",
        why=said or "FAILED_PRECONDITION",
        next=f"enable {which} (restore it first if it is scheduled for destruction), then run mcpkeys rewrap",
        code="kek-version-unusable",
    )


def _unreachable(name: str, said: str) -> KmsUnreachable:
    if "certificate" in said.lower() or "handshake" in said.lower():
        return KmsUnreachable(
            "no trusted TLS connection to Google Cloud KMS",
            why=said,
            next="name the right CA bundle in GRPC_DEFAULT_SSL_ROOTS_FILE_PATH; check MCPKEYS_GCP_KMS_ENDPOINT",
            code="kms-untrusted",
        )
    return KmsUnreachable(
        f"Google Cloud KMS cannot be reached for {name}",
        why=said,
        next="check the network path to cloudkms.googleapis.com:443 (or MCPKEYS_GCP_KMS_ENDPOINT), then try again",
    )
