"""Keeping Google's clients from logging what they send, while this package calls them.

At DEBUG the generated client logs whole requests and replies (data keys in base64), and google-auth logs the bodies
of token requests. The loggers are shared with the rest of the process, so their levels stay as they are: a filter
drops records only on threads that are inside `quiet()`.

Out of reach: gRPC's own tracing (`GRPC_TRACE`) writes bytes of the wire to stderr from C. It is off unless asked for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LOGGERS = (
    "google.cloud.kms_v1.services.key_management_service.client",
    "google.cloud.kms_v1.services.key_management_service.transports.grpc",
    "google.cloud.kms_v1.services.key_management_service.transports.rest",
    "google.auth.transport.requests",
    "google.auth.transport.urllib3",
    "google.auth.transport._http_client",
    "google.auth.compute_engine._metadata",
    "google.oauth2._client",
    "grpc._channel",
    "grpc._common",
    "grpc._plugin_wrapping",
    "urllib3.connectionpool",
)
"""Where payloads, headers or exceptions with payloads in their frames have been seen to be logged."""

_here = threading.local()


class _Silence(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(_here, "depth", 0)


_silence = _Silence()


@contextmanager
def quiet() -> Iterator[None]:
    """While entered, this thread's records of `LOGGERS` are dropped. Nests."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_silence)  # no-op where it is there already; a reconfiguration may drop it
    _here.depth = getattr(_here, "depth", 0) + 1
    try:
        yield
    finally:
        _here.depth -= 1
