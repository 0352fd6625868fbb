"""Every rule for audience names, both ways, and what holds for any string at all."""

from __future__ import annotations

import unicodedata
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcpkeys.audience import (
    MAX_AUDIENCE_BYTES,
    MAX_EXAMINED_CHARS,
    better_name,
    check_audience,
    one_edit,
    require_audience,
)
from mcpkeys.errors import ConfigurationError
from mcpkeys.findings import any_refused, is_invisible, printable

E, P, H, S, L, N = (
    f"audience-{word}" for word in ("empty", "placeholder", "invisible", "space", "too-long", "not-nfc")
)
G, R, A = "audience-generic", "audience-per-replica", "audience-not-ascii"

TABLE: list[tuple[str, set[str], str | None]] = [
    # name, codes, the better name that is told
    ("acme-orders", set(), None),
    ("orders", set(), None),
    ("Weather Service", set(), None),
    ("acme/orders", set(), None),
    ("https://orders.example.com/mcp", set(), None),
    ("orders.example.com", set(), None),
    ("orders.prod.svc.cluster.local", set(), None),
    ("fleet", set(), None),
    # empty, placeholder
    ("", {E}, None),
    ("mcp-server", {P}, None),
    ("mcp-server-acme", set(), None),
    # what cannot be seen
    ("acme\tорders", {H, A}, None),
    ("acme\norders", {H}, "acme orders"),
    ("acme-orders\x00", {H}, "acme-orders"),
    ("acme-\x1b[31morders", {H}, "acme-[31morders"),
    ("acme-orders\x7f", {H}, "acme-orders"),
    ("acme-orders\x85", {H, S, A}, "acme-orders"),
    ("acme-\u202eorders", {H, A}, "acme-orders"),
    ("acme-\u2066orders\u2069", {H, A}, "acme-orders"),
    ("acme\u200b-orders", {H, A}, "acme-orders"),
    ("acme\u200d-orders", {H, A}, "acme-orders"),
    ("\ufeffacme-orders", {H, A}, "acme-orders"),
    ("acme\u00ad-orders", {H, A}, "acme-orders"),
    ("acme\u2028orders", {H, A}, "acmeorders"),
    ("acme\u3164orders", {H, A}, "acmeorders"),
    ("acme-orders\ufe0f", {H, A}, "acme-orders"),
    ("acme-\udc80", {H, A}, "acme-"),
    # surrounding space, and space inside
    (" acme-orders", {S}, "acme-orders"),
    ("acme-orders ", {S}, "acme-orders"),
    ("acme-orders\u3000", {S, A}, "acme-orders"),
    ("acme orders", set(), None),
    # length, in bytes
    ("orders" + "x" * (MAX_AUDIENCE_BYTES - 6), set(), None),
    ("orders" + "x" * (MAX_AUDIENCE_BYTES - 5), {L}, None),
    ("é" * 127, {A}, None),
    ("é" * 128, {L, A}, None),
    # normalization
    (unicodedata.normalize("NFC", "cafe\u0301-orders"), {A}, None),
    ("cafe\u0301-orders", {N, A}, unicodedata.normalize("NFC", "cafe\u0301-orders")),
    ("orders-\u212b", {N, A}, "orders-\u00c5"),
    # anybody's names
    ("server", {G}, None),
    ("MCP Server", {G}, None),
    ("mcp_server", {G}, None),
    ("my-mcp-server", {G}, None),
    ("app", {G}, None),
    ("test", {G}, None),
    ("test-server2", {G}, None),
    ("Demo", {G}, None),
    ("localhost", {R}, None),
    ("---", {G}, None),
    ("x", {G}, None),
    ("test-lab-results", set(), None),
    ("appointments", set(), None),
    ("api-catalog", set(), None),
    # a replica's names
    ("550e8400-e29b-41d4-a716-446655440000", {R}, None),
    ("acme-orders-550E8400-E29B-41D4-A716-446655440000", {R}, "acme-orders"),
    ("acme-orders-550e8400e29b41d4a716446655440000", {R}, "acme-orders"),
    ("orders-i-0abcdef1234567890", {R}, "orders"),
    ("3f4e5d6c7b8a", {R}, None),
    ("acme-facade", set(), None),
    ("ip-10-0-1-2", {R}, None),
    ("ip-10-0-1-2.eu-west-1.compute.internal", {R}, None),
    ("10.0.0.7", {R}, None),
    ("10.0.0.7:8080", {R}, None),
    ("fe80::1", {R}, None),
    ("acme-orders:8080", {R}, "acme-orders"),
    ("https://orders.example.com:8443/", {R}, "https://orders.example.com"),
    ("urn:acme:orders", set(), None),
    ("laptop.local", {R}, None),
    ("web01.prod.example.com", {R}, None),
    ("web-0.orders.prod.svc.cluster.local", {R}, None),
    ("web-7d9f8b6c5d-x2x4z", {R}, None),
    ("acme-orders-7d9f8b6c5d-x2x4z", {R}, "acme-orders"),
    ("acme-orders-x2x4z", {R}, "acme-orders"),
    ("acme-customer-order", set(), None),
    ("acme-plans", set(), None),
    ("acme-orders-0", {R}, "acme-orders"),
    ("acme-orders-v2", set(), None),
    ("orders2", set(), None),
    ("acme-orders-eu-west-1", set(), None),
    ("acme-orders-ap-northeast-2", set(), None),
    ("v2.orders.example.com", set(), None),
    ("acme-orders-west-1-0", {R}, "acme-orders-west-1"),
    ("acme-orders-worker-3", {R}, "acme-orders"),
    ("acme-orders_replica12", {R}, "acme-orders"),
    ("acme-orders-12345", {R}, "acme-orders"),
    ("acme-orders.48213", {R}, "acme-orders"),
    ("acme-orders pid 77", {R}, "acme-orders"),
    ("acme-orders[4711]", {R}, "acme-orders"),
    ("acme-orders-2026", set(), None),
    ("rapid7", set(), None),
    # not ASCII
    ("bücher", {A}, None),
    ("注文", {A}, None),
    ("аcme-orders", {A}, None),
]


def codes(name: str, **options: object) -> set[str]:
    return {finding.code for finding in check_audience(name, **options)}  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "expected", "better"), TABLE, ids=[ascii(row[0])[:50] for row in TABLE])
def test_each_rule_both_ways(name: str, expected: set[str], better: str | None) -> None:
    found = check_audience(name)
    assert {finding.code for finding in found} == expected
    assert len(TABLE) >= 60
    for finding in found:
        assert finding.level == ("refused" if finding.code in {E, P, H, S, L, N} else "warned")
        assert finding.what
        assert finding.why
        assert finding.next
    if better is not None:
        assert better_name(name) == better
        assert any(repr(better) in finding.next for finding in found)


@pytest.mark.parametrize(
    ("name", "other", "similar"),
    [
        ("acme-orders", "Acme-Orders", "case"),
        ("acme-orders", "acme-order", "one edit"),
        ("acme-orders", "acme-orderss", "one edit"),
        ("acme-orders", "acme-ordres", "one edit"),
        ("acme-orders", "acme_orders", "one edit"),
        ("acme-orders", "Acme-Order", "one edit"),
        ("acme-orders", "ａcme-orders", "the form of its characters"),
        ("acme-orders", "acme-orders", None),
        ("acme-orders", "acme-oredsr", None),
        ("acme-orders", "acme-orders-eu", None),
        ("acme-orders", "acme-refunds", None),
        ("ab", "ac", None),
        ("ab", "abc", None),
        ("abc", "abd", "one edit"),
        ("abc", "abcd", "one edit"),
    ],
)
def test_a_name_close_to_a_known_one_is_told(name: str, other: str, similar: str | None) -> None:
    found = [finding for finding in check_audience(name, known=[other]) if finding.code == "audience-similar"]
    assert len(found) == (similar is not None)
    if similar is not None:
        assert similar in found[0].what
        assert other in found[0].next


def test_one_edit_is_what_a_search_of_every_edit_finds() -> None:
    words = ["".join(letters) for length in range(5) for letters in product("abc", repeat=length)]

    def edited(word: str) -> set[str]:
        found = set()
        for at in range(len(word) + 1):
            head, tail = word[:at], word[at:]
            found |= {head + letter + tail for letter in "abc"} | {head + tail[1:]}
            found |= {head + letter + tail[1:] for letter in "abc" if tail}
            found |= {head + tail[1::-1] + tail[2:]} if len(tail) >= 2 else set()
        return found - {word}

    for a in words:
        near = edited(a)
        assert {b for b in words if one_edit(a, b)} == near & set(words)


def test_strict_refuses_what_was_warned() -> None:
    assert not any_refused(check_audience("server"))
    assert any_refused(check_audience("server", strict=True))
    assert check_audience("acme-orders", strict=True) == []


def test_this_machines_name_is_a_replicas_name() -> None:
    assert codes("pollux", hostname="Pollux.example.net") == {R}
    assert codes("pollux", hostname="castor") == set()


def test_the_code_points_of_a_name_outside_ascii_are_listed() -> None:
    (finding,) = check_audience("аcme")
    assert "U+0430" in finding.what
    # Each once, and eight of them at most.
    for many in (8, 9):
        (finding,) = check_audience("acme" + "".join(chr(0x430 + i % many) for i in range(20)))
        assert finding.what.count("U+04") == 8
        assert finding.what.endswith("U+0437") is (many == 8)
        assert finding.what.endswith("U+0437 ...") is (many == 9)


def test_a_name_has_a_longest_in_bytes_and_is_shown_cut() -> None:
    assert codes("x" * 255) == codes("é" * 127) - {A} == set()
    for name, size in (("x" * 256, 256), ("é" * 128, 256), ("x" * 100_000, 100_000)):
        (finding,) = (found for found in check_audience(name) if found.code == L)
        assert f"'{name[:40]}…' is {size} bytes of UTF-8, more than 255" in finding.what
    # A suffix is still seen at the end of what is too long.
    assert codes("x" * 300 + "-worker-3") == {L, R}


def test_a_pod_of_a_service_is_told_by_the_first_part_of_its_name() -> None:
    assert codes("web-0.orders.prod.svc.cluster.local") == codes("orders-7d4b9c6f5d-x2x4z.acme.example") == {R}
    # With one dot the first part is no host of a domain.
    assert R not in codes("orders-0.acme")
    assert R not in codes(".orders-0.acme")
    assert codes("orders.acme.example") == set()


def test_a_better_name_is_found_below_several_suffixes() -> None:
    assert better_name("acme-orders-worker-3-4711") == "acme-orders"
    assert better_name("acme-orders\t") == "acme-orders"
    assert better_name("acme\norders") == "acme orders"
    assert better_name("ac\u200bme-orders") == "acme-orders"
    assert better_name("server-1") is None
    assert better_name("acme-orders") is None


def test_generic_words_are_told_with_numbers_and_single_letters() -> None:
    for name in ("server2", "my-app", "mcp_server_7", "x", "tool-b", "MCP Server", "7", "--"):
        assert codes(name) & {G, R}, name
    for name in ("acme-server", "xy", "orders", "server2x"):
        assert not codes(name) & {G, R}, name


def test_require_raises_what_is_refused_and_returns_what_is_warned() -> None:
    assert require_audience("acme-orders") == []
    assert [finding.code for finding in require_audience("server")] == [G]
    with pytest.raises(ConfigurationError) as caught:
        require_audience("mcp-server")
    assert caught.value.code == P
    assert caught.value.next
    with pytest.raises(ConfigurationError):
        require_audience("server", strict=True)


patient = settings(deadline=None)

any_text = st.text(st.characters(codec=None), max_size=300) | st.from_regex(
    r"\A[a-z]{1,6}[-.:@ ]([0-9]{1,7}|[0-9a-f]{8,40}|[a-z0-9]{5})([.:][a-z0-9]{1,9}){0,3}\Z"
)


@patient
@given(any_text, st.lists(any_text, max_size=3))
@example("\ud800", ["\udfff"])
@example("a" * 5_000, ["a" * 4_999])
def test_any_string_has_an_answer_that_is_safe_to_print(name: str, known: list[str]) -> None:
    for finding in check_audience(name, known=known):
        for text in (finding.subject, finding.what, finding.why, finding.next):
            assert not any(map(is_invisible, text))
            assert len(text) < 3000
            text.encode()


@patient
@given(any_text, st.lists(any_text, max_size=3))
def test_refusals_depend_on_the_name_alone_and_strict_only_raises_levels(name: str, known: list[str]) -> None:
    plain = check_audience(name)
    refused = [finding for finding in plain if finding.level == "refused"]
    assert [f for f in check_audience(name, known=known) if f.level == "refused"] == refused
    assert [f.code for f in check_audience(name, strict=True)] == [f.code for f in plain]
    assert any_refused(check_audience(name, strict=True)) == bool(plain)
    assert plain == refused + [finding for finding in plain if finding.level == "warned"]


@patient
@given(any_text)
def test_a_better_name_has_nothing_refused_and_is_final(name: str) -> None:
    better = better_name(name)
    if better is not None:
        assert better != name
        assert codes(better) <= {A}
        assert better_name(better) is None


@patient
@given(st.from_regex(r"\A[a-z]{2,8}-(orders|billing|search)\Z"))
def test_an_ordinary_name_has_no_finding(name: str) -> None:
    assert check_audience(name, known=[name]) == []


@patient
@given(any_text)
def test_what_is_printed_names_exactly_one_text(text: str) -> None:
    shown = printable(text, 10_000)
    assert shown.encode("ascii", "backslashreplace").decode("unicode_escape") == text


class Counted(str):
    """A name that tells how often it was walked through."""

    walks = 0

    def __iter__(self):
        Counted.walks += 1
        return super().__iter__()


@pytest.mark.parametrize("character", ["a", "ü", "\u202e", "\ud800", " ", "0", "-"])
def test_a_name_of_any_length_costs_no_search(character: str) -> None:
    name = Counted(character * (MAX_EXAMINED_CHARS + 1))
    Counted.walks = 0
    (found,) = check_audience(name, known=["acme-orders", name[1:]], hostname="pod-7")
    assert (found.code, found.level) == ("audience-too-long", "refused")
    assert better_name(name) is None
    assert Counted.walks == 0
    shortest = check_audience(character * MAX_EXAMINED_CHARS)
    assert "audience-too-long" in [finding.code for finding in shortest]
    assert not [f for f in check_audience("acme-orders", known=["acme-orders" * 100]) if f.code == "audience-similar"]
