"""The table of docs/how-to/migrate.md: which step accepts what another one mints, and in which words it refuses."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp.server.request_state import AESGCMRequestStateCodec, InvalidRequestState
from servers.localkeyset import local_keyset

from mcpkeys import EnvelopeCodec

K, FORMER = secrets.token_hex(32), secrets.token_bytes(32)
STEPS = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def codecs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Any]]:
    pins = local_keyset(tmp_path_factory.mktemp("keyset")).pins
    opened = {
        1: EnvelopeCodec.open(**pins, sdk_keys=[K, FORMER], mint="sdk"),
        2: EnvelopeCodec.open(**pins, sdk_keys=[K, FORMER]),
        3: EnvelopeCodec.open(**pins),
    }
    yield {0: AESGCMRequestStateCodec([K, FORMER]), **opened}
    for codec in opened.values():
        codec.close()


@pytest.mark.parametrize("minter", STEPS)
@pytest.mark.parametrize("reader", STEPS)
def test_neighbouring_steps_read_each_other_and_others_refuse(codecs: dict[int, Any], minter: int, reader: int) -> None:
    payload = os.urandom(300)
    token = codecs[minter].seal(payload)
    assert token.startswith("mk1." if minter >= 2 else "v1.")
    readable = (minter <= 1 and reader <= 2) or (minter >= 2 and reader >= 1)
    if readable:
        assert codecs[reader].unseal(token) == payload
    else:
        assert abs(minter - reader) > 1
        with pytest.raises(InvalidRequestState, match=r"^malformed$"):
            codecs[reader].unseal(token)


@pytest.mark.parametrize("step", [1, 2])
def test_the_whole_of_the_sdks_ring_goes_along(codecs: dict[int, Any], step: int) -> None:
    token = AESGCMRequestStateCodec([FORMER]).seal(b"under a former key")
    assert codecs[step].unseal(token) == b"under a former key"


@pytest.mark.parametrize("step", [1, 2])
def test_another_secret_is_an_unknown_key_and_a_changed_token_a_broken_seal(codecs: dict[int, Any], step: int) -> None:
    with pytest.raises(InvalidRequestState, match=r"^unknown key$"):
        codecs[step].unseal(AESGCMRequestStateCodec([secrets.token_hex(32)]).seal(b"x" * 40))
    token = codecs[0].seal(b"x" * 40)
    changed = token[:-3] + ("A" if token[-3] != "A" else "B") + token[-2:]
    with pytest.raises(InvalidRequestState, match=r"^seal$"):
        codecs[step].unseal(changed)


def test_what_step_one_mints_is_what_the_sdk_mints(codecs: dict[int, Any]) -> None:
    for size in (1, 40, 5000):
        payload = os.urandom(size)
        assert codecs[0].unseal(codecs[1].seal(payload)) == payload
        assert len(codecs[0].seal(payload)) == len(codecs[1].seal(payload))


def test_an_instance_says_which_step_it_runs(codecs: dict[int, Any]) -> None:
    assert codecs[1].status()["migration"]["mints_sdk"] is True
    assert codecs[2].status()["migration"]["mints_sdk"] is False
    assert len(codecs[2].status()["migration"]["sdk_kids"]) == 2
    assert codecs[3].status()["migration"] is None
    assert K not in repr(codecs[1].status())


def test_the_runbook_names_the_steps_as_they_are() -> None:
    text = (Path(__file__).parents[2] / "docs/how-to/migrate.md").read_text()
    for line in ('sdk_keys=[K], mint="sdk")', "sdk_keys=[K])", "request_state_security()", "migration-running"):
        assert line in text
