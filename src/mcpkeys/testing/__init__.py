"""For authors of KMS and store plugins: contract suites to subclass, and fakes with fault injection.

`KmsContract` and `StoreContract` need pytest, and their failures are readable because pytest rewrites their
assertions; the fakes need nothing. Each is imported when it is first named, so that a program that only wants a
fake never imports pytest.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcpkeys.testing.clock import FakeClock
    from mcpkeys.testing.fakekms import FakeKek, FakeKms
    from mcpkeys.testing.fakestore import FakePlace, FakeStore
    from mcpkeys.testing.faults import Faults
    from mcpkeys.testing.kms import KmsContract
    from mcpkeys.testing.store import StoreContract

__all__ = ["FakeClock", "FakeKek", "FakeKms", "FakePlace", "FakeStore", "Faults", "KmsContract", "StoreContract"]

_HOME = {
    "FakeClock": "mcpkeys.testing.clock",
    "FakeKek": "mcpkeys.testing.fakekms",
    "FakeKms": "mcpkeys.testing.fakekms",
    "FakePlace": "mcpkeys.testing.fakestore",
    "FakeStore": "mcpkeys.testing.fakestore",
    "Faults": "mcpkeys.testing.faults",
    "KmsContract": "mcpkeys.testing.kms",
    "StoreContract": "mcpkeys.testing.store",
}

if "pytest" in sys.modules:
    # Modules outside a test directory keep plain assertions unless they are named before their first import.
    sys.modules["pytest"].register_assert_rewrite(
        "mcpkeys.testing.kms", "mcpkeys.testing.store", "mcpkeys.testing.leaks", "mcpkeys.testing.child"
    )


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
