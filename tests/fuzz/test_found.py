"""What fuzzing and reading for it found, each as a test of its whole kind."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from fuzz.targets import _hold_against
from hypothesis import example, given
from hypothesis import strategies as st
from vectors import make

from mcpkeys import document, registry, reports
from mcpkeys.encoding import MAX_MS, format_ms, parse_ms
from mcpkeys.errors import KeysetMalformed, UriError
from mcpkeys.keyset import to_json
from mcpkeys.kms import MAX_URI_CHARS

LARGEST = (1 << 53) - 1
TIMES = ("clock", "clock_started", "minting_since", "ttl_observed", "max_stale")


@given(ms=st.integers(-62_135_596_800_000, MAX_MS))
def test_every_time_from_the_year_1_to_4199_is_written_as_it_is_read(ms: int) -> None:
    """The years before 1000 were written without their zeros."""
    assert parse_ms(format_ms(ms)) == ms


def authentic(**changes: object) -> bytes:
    value = {**reports.to_json(make.report()), **changes}
    return json.dumps({**value, "mac": reports.mac(make.REPORT_KEY, value)}).encode()


@pytest.mark.parametrize("at", [MAX_MS, MAX_MS + 1, 253_402_300_799_999, LARGEST])
@pytest.mark.parametrize("name", [*TIMES, "last_mint", "last_unseal", "canary"])
def test_a_clock_gone_mad_stops_no_command_of_the_operator(name: str, at: int) -> None:
    """An authentic report whose times no calendar has was an unexpected error of `status` and `rotate`."""
    kid = make.kid("minting")
    shaped = {"last_mint": {kid: at}, "last_unseal": {kid: at}, "canary": {make.URI: {"at": at, "ok": True}}}
    report = reports.decode(authentic(**{name: shaped.get(name, at)}), [make.REPORT_KEY], keyset=make.NAME)
    _hold_against(report)


@pytest.mark.parametrize("at", [-1, True, "1", None, 1.5, [], {}])
@pytest.mark.parametrize("name", ["clock", "last_mint", "canary"])
def test_a_time_that_is_none_makes_the_report_say_nothing(name: str, at: object) -> None:
    kid = make.kid("minting")
    shaped = {"last_mint": {kid: at}, "canary": {make.URI: {"at": at, "ok": True}}}
    with pytest.raises(reports.BadReport):
        reports.decode(authentic(**{name: shaped.get(name, at)}), [make.REPORT_KEY], keyset=make.NAME)


@pytest.mark.parametrize("name", ["verifies", "prefixes", "unwraps_by"])
@pytest.mark.parametrize("value", [{}, "", None, 7, {"AAAAAAAAAAAA": 1}])
def test_a_list_of_a_report_is_a_list(name: str, value: object) -> None:
    with pytest.raises(reports.BadReport):
        reports.decode(authentic(**{name: value}), [make.REPORT_KEY], keyset=make.NAME)


def test_a_document_s_time_that_nothing_can_be_added_to_is_refused() -> None:
    keyset = make.keyset()
    value = to_json(replace(keyset, signature=""))
    value["keys"][0]["created_at"] = "9999-12-31T23:59:59.999Z"
    signature = make.b64u(make.SIGNER.sign(document.signed_bytes(value)))
    with pytest.raises(KeysetMalformed, match="created_at"):
        document.read(json.dumps({**value, "signature": signature}).encode(), signers=[keyset.signer.public])


@pytest.mark.parametrize(
    ("opened", "front"), [(registry.open_store, ""), (registry.open_store, "file://"), (registry.open_kms, "local://")]
)
@pytest.mark.parametrize("character", ['"', "^", "a", "%22"])
def test_a_path_that_escaping_makes_too_long_for_a_uri_is_refused(opened, front, character: str) -> None:
    """`init` wrote a keyset with a KEK URI that no reader accepts."""
    for length in range(300, 1020, 40):
        text = front + "/" + character * (length // len(character))
        try:
            backend = opened(text)
        except UriError:
            # Never without need: three characters at most are written for one.
            assert len("file://") + len(text) * 3 > MAX_URI_CHARS
            continue
        assert len(backend.uri) <= MAX_URI_CHARS
        assert opened(backend.uri).uri == backend.uri


SEGMENTS = st.lists(
    st.sampled_from(["", ".", "a", "k.json", "..", "%2e", "%2E%2e", "%2f", "a b", "%20", "~"]), max_size=6
)


@given(segments=SEGMENTS, front=st.sampled_from(["local:///", "file:///", "/", "./", ""]))
@example(segments=["."], front="local:///")
@example(segments=["a", "."], front="./")
@example(segments=["."], front="")
def test_the_canonical_uri_of_a_path_is_its_own_and_names_a_file(segments: list[str], front: str) -> None:
    """`local:///.` was taken for the file `/`, whose URI was then refused."""
    opened = registry.open_kms if front == "local:///" else registry.open_store
    try:
        backend = opened(front + "/".join(segments))
    except UriError:
        return
    assert opened(backend.uri).uri == backend.uri
    assert backend.uri[-1] != "/"
    assert segments[-1] not in ("", ".", "..")
