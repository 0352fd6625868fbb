"""What Cloud Storage's answers mean: from the client library's exceptions to ours."""

from __future__ import annotations

from mcpkeys.errors import Conflict, McpkeysError, NotFound, StoreDenied, StoreUnreachable
from mcpkeys_gcp.bounded import DeadlinePassed
from mcpkeys_gcp.identity import oauth_word


def late(uri: str) -> StoreUnreachable:
    """No answer before the deadline."""
    return StoreUnreachable(
        f"Cloud Storage did not answer in time for {uri}",
        why="the deadline passed",
        next="check the network path to storage.googleapis.com:443, then try again",
    )


def missing(uri: str) -> NotFound:
    return NotFound(
        f"nothing is stored at {uri}",
        why="Cloud Storage knows no such object, or no such bucket",
        next="correct the bucket and the object's name, or create a keyset: mcpkeys init",
    )


def conflict(uri: str) -> Conflict:
    return Conflict(
        f"{uri} was changed by someone else",
        why="its generation is not the expected one",
        next="look at the new document (mcpkeys status), then repeat the command",
    )


def garbage(uri: str, what: str) -> StoreUnreachable:
    return StoreUnreachable(
        f"Cloud Storage gave an answer that cannot be right for {uri}",
        why=what,
        next="try again; if it persists, look for a proxy that alters traffic",
        code="store-garbled",
    )


def explain(exc: BaseException, uri: str) -> tuple[McpkeysError, str]:
    """The error to raise for `exc`, and what a second try may do.

    The second part is `throttled` (nothing was done; try again later), `unsure` (it may or may not have been
    done), or empty (an answer: trying again changes nothing). The texts of Google's errors are left out: they
    quote URLs and reply bodies.
    """
    import requests
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth

    if isinstance(exc, McpkeysError):
        return exc, ""
    if isinstance(exc, DeadlinePassed):
        return late(uri), "unsure"
    if isinstance(exc, api.NotFound):
        return missing(uri), ""
    if isinstance(exc, api.PreconditionFailed):
        return conflict(uri), ""
    if isinstance(exc, api.TooManyRequests):
        return StoreUnreachable(
            f"Cloud Storage is throttling {uri}",
            why="429: one object takes about one write a second, and projects have request quotas",
            next="wait a few seconds, then repeat the command",
            code="store-throttled",
        ), "throttled"
    if isinstance(exc, api.Forbidden):
        return StoreDenied(
            f"Cloud Storage refused this identity for {uri}",
            why="403: a right is missing, a retention policy holds the object, or the project's billing is off",
            next="compare the identity's rights with: mcpkeys policy gcp",
        ), ""
    if isinstance(exc, api.Unauthorized):
        return StoreDenied(
            f"Cloud Storage did not accept the credentials for {uri}",
            why="401",
            next="renew the credentials: gcloud auth application-default login; compare this machine's clock too",
            code="credentials-expired",
        ), ""
    if isinstance(exc, auth.DefaultCredentialsError):
        return StoreDenied(
            "no Google Cloud credentials were found",
            why="neither GOOGLE_APPLICATION_CREDENTIALS, nor gcloud's, nor a metadata server gave usable ones",
            next="set GOOGLE_APPLICATION_CREDENTIALS, or run: gcloud auth application-default login",
            code="credentials-missing",
        ), ""
    if isinstance(exc, auth.RefreshError) and not getattr(exc, "retryable", False):
        word = oauth_word(exc)
        return StoreDenied(
            "the Google Cloud credentials are no longer accepted",
            why=f"renewing them was refused{f' ({word})' if word else ''}",
            next="run: gcloud auth application-default login, or replace the key file",
            code="credentials-expired",
        ), ""
    if isinstance(exc, requests.exceptions.SSLError):
        return StoreUnreachable(
            f"no trusted TLS connection to Cloud Storage for {uri}",
            why="the server's certificate was not accepted",
            next="name the right CA bundle in REQUESTS_CA_BUNDLE",
            code="store-untrusted",
        ), "unsure"
    if isinstance(exc, requests.exceptions.JSONDecodeError):
        return garbage(uri, "the reply is not JSON"), "unsure"
    if isinstance(exc, requests.exceptions.RequestException | auth.GoogleAuthError | OSError):
        return StoreUnreachable(
            f"Cloud Storage cannot be reached for {uri}",
            why=type(exc).__name__,
            next="check the network path to storage.googleapis.com:443, then try again",
        ), "unsure"
    if isinstance(exc, api.GoogleAPICallError):
        return StoreUnreachable(
            f"Cloud Storage failed for {uri}",
            why=f"status {exc.code}" if isinstance(exc.code, int) else type(exc).__name__,
            next="wait, then try again; Google's status page tells of outages",
        ), "unsure"
    return garbage(uri, type(exc).__name__), "unsure"
