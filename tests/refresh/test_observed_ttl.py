"""The ttl that an instance observes: of the payloads that it looks at, the longest."""

from __future__ import annotations

import random
import threading

import pytest

from mcpkeys.instance import Instance


def payload(ttl: float, iat: float = 1_796_022_455.25) -> bytes:
    return f'{{"v":1,"iat":{iat!r},"exp":{iat + ttl!r},"m":"tools/call","s":"{"x" * 300}"}}'.encode()


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 31, 32, 33, 100])
def test_the_longest_is_told_however_many_were_looked_at(count: int) -> None:
    for at in {0, count // 2, count - 1}:
        instance = Instance("")
        assert instance.ttl_observed is None
        for number in range(count):
            instance.observe_ttl(payload(3600 if number == at else 600))
        assert instance.ttl_observed == 3600
        assert instance.ttl_observed == 3600
        instance.observe_ttl(payload(60))
        assert instance.ttl_observed == 3600


@pytest.mark.parametrize(
    "other", [b"", b"state", b"\xff" * 200, b'{"v":1,"iat":1,"exp":', b'{"v":1,"iat":nan,"exp":2,', b'{"iat":1,"v":1}']
)
def test_what_is_no_envelope_says_nothing(other: bytes) -> None:
    instance = Instance("")
    for _ in range(40):
        instance.observe_ttl(other)
    assert instance.ttl_observed is None
    instance.observe_ttl(payload(600))
    instance.observe_ttl(other)
    assert instance.ttl_observed == 600


def test_a_long_state_is_not_kept_and_few_beginnings_are() -> None:
    instance = Instance("")
    for _ in range(1000):
        instance.observe_ttl(payload(600) + b"y" * 100_000)
        assert sum(map(len, instance._heads)) <= 1600


def test_another_instance_begins_anew() -> None:
    instance = Instance("")
    instance.observe_ttl(payload(600))
    instance.redraw()
    assert instance.ttl_observed is None


def test_threads_lose_none() -> None:
    instance, ttls = Instance(""), random.Random(7).sample(range(60, 100_000), 4000)

    def seal(mine: list[int]) -> None:
        for ttl in mine:
            instance.observe_ttl(payload(ttl))

    threads = [threading.Thread(target=seal, args=(ttls[i::4],)) for i in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert (instance.ttl_observed or 0) <= max(ttls)
    assert instance.ttl_observed == max(ttls)
