from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers.fakefleet import Fleet

from mcpkeys.testing import FakeClock


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """One generation with one key, refreshed every 30 s, on a clock that stands still."""
    made = Fleet(clock=FakeClock())
    made.create()
    yield made
    made.close()
