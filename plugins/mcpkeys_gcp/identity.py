"""Who this process is to Google Cloud: credentials, found and refreshed within a deadline."""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

from mcpkeys_gcp.bounded import bounded

_OAUTH_ERRORS = re.compile(
    r"\b(invalid_(?:grant|client|scope|request|target|rapt)|unauthorized_client|access_denied|unsupported_grant_type)\b"
)


class Identity:
    """Google credentials: the caller's, or those that Application Default Credentials find.

    That is, in google-auth's own order: the file that GOOGLE_APPLICATION_CREDENTIALS names (service account,
    workload identity federation, impersonation), `gcloud auth application-default login`, then the metadata server.
    Service accounts sign their tokens themselves: no token endpoint is called.

    Args:
        given: a `google.auth.credentials.Credentials`, or None to find some at first use.
        scopes: the OAuth scopes asked for where credentials take any and name none.
    """

    def __init__(self, given: Any, scopes: Sequence[str]) -> None:
        self._given = given
        self._scopes = scopes
        self._lock = threading.Lock()
        self._found: Any = None
        self._request: Any = None

    def credentials(self, deadline: float) -> Any:
        """The credentials. Raises google-auth's errors, and `DeadlinePassed`."""
        return bounded(self._find, deadline)

    def headers(self, url: str, deadline: float) -> list[tuple[str, str]]:
        """What authorises a call to `url`, refreshed where needed. Raises as `credentials`."""
        return bounded(lambda: self._headers(url, deadline), deadline)

    def _find(self) -> Any:
        with self._lock:
            return self._find_locked()

    def _find_locked(self) -> Any:
        if self._found is None:
            import google.auth
            import google.auth.credentials
            from google.oauth2 import service_account

            found = self._given
            if found is None:
                found, _ = google.auth.default(default_scopes=self._scopes)
            else:
                found = google.auth.credentials.with_scopes_if_required(  # type: ignore[no-untyped-call]
                    found, None, default_scopes=self._scopes
                )
            if isinstance(found, service_account.Credentials):
                found = found.with_always_use_jwt_access(True)  # type: ignore[no-untyped-call]
            self._found = found
        return self._found

    def _headers(self, url: str, deadline: float) -> list[tuple[str, str]]:
        with self._lock:  # one refresh at a time; those who wait keep their own deadlines
            credentials = self._find_locked()
            if self._request is None:
                from google.auth.transport.requests import Request

                self._request = Request()
            seconds = max(0.1, deadline - time.monotonic())
            headers: dict[str, str] = {}
            credentials.before_request(functools.partial(self._request, timeout=seconds), "POST", url, headers)
        return [(name.lower(), value) for name, value in headers.items()]


def oauth_word(error: BaseException) -> str:
    """The OAuth error word in a google-auth error, or empty. The rest of its text may quote replies: it is left out."""
    match = _OAUTH_ERRORS.search(str(error))
    return match[1] if match else ""
