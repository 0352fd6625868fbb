"""Keep secrets out of botocore's logs.

At DEBUG, botocore logs request parameters (`botocore.endpoint`), response bodies (`botocore.parsers`: the base64
plaintext of a Decrypt, the credentials of an AssumeRole) and signed headers (`botocore.auth`: the session token). A
filter on its loggers drops what is below INFO, but only in threads that make our calls: the caller's own use of boto3
logs as it did.
"""

from __future__ import annotations

import logging
import pkgutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PACKAGES = ("botocore", "boto3", "s3transfer")


class _InOurThread(threading.local):
    active = False


_here = _InOurThread()


class _DropDetails(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not (_here.active and record.levelno < logging.INFO)


_filter = _DropDetails("")


def install() -> None:
    """Attach the filter to every logger of botocore and boto3, present or to come. Idempotent, a millisecond.

    A logger's filters are not inherited by its children, so each module's own logger needs it.
    """
    import botocore
    import botocore.retries

    names = {name for name in list(logging.root.manager.loggerDict) if name.split(".", 1)[0] in _PACKAGES}
    names.update(_PACKAGES)
    for package in (botocore, botocore.retries):
        names.update(f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__))
    for name in names:
        logging.getLogger(name).addFilter(_filter)  # addFilter ignores a filter that is there already


@contextmanager
def quiet() -> Iterator[None]:
    """In this thread, until the block ends, botocore logs nothing below INFO."""
    before = _here.active
    _here.active = True
    try:
        yield
    finally:
        _here.active = before
