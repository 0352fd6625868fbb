"""Random nonces stay far from their bound: a prefix serves a bounded number of seals, whatever becomes of the ring."""

from __future__ import annotations

import os

import pytest

from mcpkeys import codec as codecs


@pytest.mark.parametrize("swaps", [0, 1, 7])
def test_a_prefix_ends_after_its_seals_however_often_the_ring_is_swapped(
    swaps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codecs, "SEALS_PER_PREFIX", 256)
    with codecs.EnvelopeCodec.from_secrets([os.urandom(32)]) as codec:
        counts: dict[str, int] = {}
        for number in range(2048):
            if swaps and number % (256 // (swaps + 1)) == 0:
                codec._use(codec.ring)
            prefix = codec.seal(b"x")[16:32]
            counts[prefix] = counts.get(prefix, 0) + 1
    assert max(counts.values()) <= 256 + codecs.TTL_SAMPLE
