"""Bounds and defaults as documents promise them: other tests take them from the package, and would move with them."""

from __future__ import annotations

import pytest

from mcpkeys import claims, difference, encoding, keyset, opening, ring, token, transitions


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (claims, "FUTURE_SKEW_SECONDS", 60.0),
        (claims, "MAX_OTHERS", 20),
        (claims, "MAX_SHOWN_CHARS", 1000),
        (claims, "VERSION", 1),
        (difference, "MAX_DEPTH", 40),
        (difference, "MAX_FOUND", 1000),
        (encoding, "MAX_MS", 70_368_744_177_664),
        (keyset, "DEFAULT_MAX_TOKEN_CHARS", 1_048_576),
        (keyset, "DEFAULT_REFRESH_SECONDS", 30),
        (keyset, "DEFAULT_SKEW_SECONDS", 60),
        (keyset, "DEFAULT_TTL_SECONDS", 600),
        (keyset, "RETIRED_WRAPS_KEPT_SECONDS", 2_592_000),
        (opening, "_MAX_FRONTS", 4096),
        (ring, "MAX_OPENERS", 4096),
        (token, "LONG", 8192),
        (transitions, "MAX_STEPS", 64),
        (transitions, "MAX_TEXT_CHARS", 1000),
    ],
)
def test_a_bound_is_what_is_promised(module: object, name: str, value: float) -> None:
    assert getattr(module, name) == value
