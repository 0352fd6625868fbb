"""A few seconds of what tests/fuzz/run.py does for hours: nothing but promised errors, for any input."""

from __future__ import annotations

import random

import pytest
from fuzz import corpus
from fuzz.mutator import mutate
from fuzz.targets import TARGETS
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("name", TARGETS)
def test_the_kept_corpus_breaks_nothing(name: str) -> None:
    target = TARGETS[name]
    for data in [*target.seeds(), *corpus.read(name)]:
        target.check(data)


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs_break_nothing(name: str) -> None:
    target = TARGETS[name]
    inputs = [*target.seeds(), *corpus.read(name)]

    # Not by strategies of its own: the mutator knows these formats, and a seed repeats what it did.
    @given(start=st.integers(0, len(inputs) - 1), seed=st.integers(0, 1 << 32))
    @settings(max_examples=150)
    def check(start: int, seed: int) -> None:
        target.check(mutate(inputs[start], random.Random(seed), inputs))

    check()


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_break_nothing(name: str) -> None:
    @given(data=st.one_of(st.binary(max_size=300), st.text(max_size=100).map(str.encode)))
    @settings(max_examples=60)
    def check(data: bytes) -> None:
        TARGETS[name].check(data)

    check()


def test_a_broken_promise_is_noticed() -> None:
    """Or the whole suite could not fail."""
    from dataclasses import replace

    def fails(data: bytes) -> None:
        raise KeyError(data)

    with pytest.raises(KeyError):
        replace(TARGETS["token"], run=fails).check(b"x")
