"""Where nonces come from."""

from __future__ import annotations

import os

import pytest

from mcpkeys import codec, randomness


def test_a_seal_draws_from_the_kernel_and_keeps_the_interpreter() -> None:
    drawn = {randomness.random_bytes(12) for _ in range(1000)}
    assert len(drawn) == 1000
    assert {len(one) for one in drawn} == {12}
    assert codec.random_bytes is randomness.random_bytes
    if hasattr(os, "getrandom"):
        assert randomness.random_bytes is os.getrandom


@pytest.mark.parametrize("error", [OSError(38, "no such call"), PermissionError(1, "a sandbox forbids it")])
def test_where_the_call_is_refused_there_is_another_way(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    def refused(size: int) -> bytes:
        raise error

    monkeypatch.setattr(os, "getrandom", refused, raising=False)
    assert randomness.kernel() is os.urandom


def test_where_the_system_has_no_such_call_there_is_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "getrandom", raising=False)
    assert randomness.kernel() is os.urandom
