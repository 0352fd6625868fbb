"""The same patience, shorter: for tests of what nobody answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mcpkeys import authoring, keks, patience

HURRIED_SECONDS = 1.2
HURRIED_CALL_SECONDS = 0.8


@contextmanager
def hurrying() -> Iterator[None]:
    """Meanwhile all tries together have 1.2 seconds in place of 10 (or 60), and a call 0.8 in place of 2."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("total", "throttled"):
            patch.setitem(patience.Patience.__init__.__kwdefaults__, name, HURRIED_SECONDS)
        patch.setattr(authoring, "CALL_SECONDS", HURRIED_CALL_SECONDS / 2)  # it gives a write twice that
        for module in (patience, keks):
            patch.setattr(module, "CALL_SECONDS", HURRIED_CALL_SECONDS)
        yield
