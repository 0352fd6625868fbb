"""The document's fields and rules, each at its bound and one beyond; strict JSON; no way back."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from vectors import make

from mcpkeys import document, strictjson
from mcpkeys.encoding import MAX_MS, b64u, format_ms, parse_ms, to_ms, unb64u
from mcpkeys.errors import KeysetForged, KeysetMalformed, KeysetMismatch, KeysetRollback
from mcpkeys.keyset import (
    RETIRED_WRAPS_KEPT_SECONDS,
    HistoryEntry,
    Keyset,
    Seen,
    check,
    check_name,
    check_signer,
    check_succession,
    differing_fields,
    digest,
    dumps,
    signed_bytes,
    to_json,
    with_history,
)
from mcpkeys.kms import Wrap

KEYSET = make.keyset()
YEAR = 366 * 86_400
Edit = Callable[[dict[str, Any]], Any]


def read(edit: Edit) -> Keyset:
    """The vectors' document, edited and signed again."""
    value = json.loads(json.dumps(to_json(KEYSET)))
    edit(value)
    value["signature"] = b64u(make.SIGNER.sign(signed_bytes(value)))
    return document.read(json.dumps(value, ensure_ascii=False).encode(), signers=[KEYSET.signer.public])


def refused(edit: Edit, field: str) -> None:
    with pytest.raises(KeysetMalformed) as caught:
        read(edit)
    assert f"field {field} is wrong" in str(caught.value)


def put(path: str, value: object) -> Edit:
    """An edit of one field, named as errors name it: `keys[0].kid`."""
    *parents, last = path.replace("[", ".[").split(".")

    def edit(doc: Any) -> None:
        for name in parents:
            doc = doc[int(name[1:-1])] if name.startswith("[") else doc[name]
        doc[int(last[1:-1]) if last.startswith("[") else last] = value

    return edit


def edits(*changes: Edit) -> Edit:
    return lambda doc: [change(doc) for change in changes]


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        ("ttl_seconds", 1, 10 * YEAR),
        ("skew_seconds", 0, 86_400),
        ("max_stale_seconds", 31, YEAR),
        ("max_token_chars", 256, 4 * 1024 * 1024),
        ("generation", 1, (1 << 53) - 1),
        ("past_ttls[0].ttl_seconds", 1, 10 * YEAR),
        ("history[0].generation", 1, (1 << 53) - 1),
        ("rotation.expect", 0, 1_000_000),
    ],
)
def test_integers_have_bounds(field: str, low: int, high: int) -> None:
    for value in (low, high):
        read(put(field, value))
    beyond = [low - 1, high + 1] if field != "max_stale_seconds" else [0, high + 1]
    for value in [*beyond, True, "1", [], {}]:
        if value == 1 << 53:
            continue  # strict JSON refuses it before any field is read
        refused(put(field, value), field)
    if field in ("max_stale_seconds", "rotation.expect"):
        read(put(field, None))
    else:
        refused(put(field, None), field)


def test_refreshing_and_staleness_fit_together() -> None:
    for value in (1, 86_400):
        read(edits(put("refresh_seconds", value), put("max_stale_seconds", value + 1)))
        refused(edits(put("refresh_seconds", value), put("max_stale_seconds", value)), "max_stale_seconds")
    for value in (0, 86_401):
        refused(put("refresh_seconds", value), "refresh_seconds")


@pytest.mark.parametrize(
    ("field", "longest"),
    [
        ("audience", 255),
        ("history[1].who", 1000),
        ("history[1].what", 1000),
        ("history[1].reason", 1000),
        ("history[1].overrides[0]", 1000),
        ("rotation.roster[0]", 1000),
        ("rotation.steps[1].evidence.word", 1000),
        ("rotation.steps[1].evidence.confirmed[0]", 1000),
        ("keys[0].wrapped[0].version", 255),
        ("previous", 71),
    ],
)
def test_texts_have_a_longest(field: str, longest: int) -> None:
    assert read(put(field, "é" * longest))
    for value in ("x" * (longest + 1), 7, True, [], {}):
        refused(put(field, value), field)
    if field == "previous":
        assert read(put(field, None)).previous is None
    else:
        refused(put(field, None), field)


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("name", ["a", "0", "a" * 63, "a.b_c-d"], ["", "A", "-a", ".a", "a" * 64, "a b", "ä", "a\n"]),
        ("keys[2].kid", ["AAAABBBBCCCC", "-_09azAZ0000"], ["", "A" * 11, "A" * 13, "A" * 11 + "+", "AAAABBBBCCC\n"]),
        ("rotation.id", ["AAAABBBBCCCC"], ["", "A" * 13, None]),
        ("signer.kid", ["AAAABBBBCCCC"], ["", "A" * 13]),
        ("report_key.kid", ["AAAABBBBCCCC"], ["", "A" * 13]),
        ("evidence", ["reports", "attest"], ["", "Reports", None, 1, "none"]),
        ("keys[2].state", ["retired", "verifying"], ["", "minted", None, 1]),
        ("rotation.steps[0].phase", [1, 2, 3, "rolling_back"], [0, 4, "1", True, None, 1.5]),
        ("rotation.ended", ["done", "rolled_back", "emergency"], ["", "ended", False, 0]),
        ("rotation.steps[0].evidence.kind", ["reports", "attest", "none"], ["", None]),
        ("keks[0]", ["x", "x" * 1024, "local:///a"], ["", "x" * 1025, "ä", "a\n", 7, None]),
        ("sign_keks[0]", ["x" * 1024], ["", "x" * 1025, "ä", "a\x00"]),
        ("keys[0].wrapped[0].kek", ["x" * 1024], ["", "x" * 1025, "\x7f", None]),
        (
            "keys[0].wrapped[0].blob",
            ["AA", b64u(bytes(8192))],
            ["", "A", "AB", "AA==", "A+AA", b64u(bytes(8193)), "A" * 16385, None, 7],
        ),
        (
            "keys[0].created_at",
            [format_ms(0), format_ms(MAX_MS)],
            ["", "2026-11-29T22:51:00Z", 7, None, "2026-13-01T00:00:00.000Z"],
        ),
        ("past_ttls[0].until", [format_ms(0)], ["", "2026-11-29 22:51:00.123Z", 7]),
    ],
)
def test_shapes(field: str, good: list[Any], bad: list[Any]) -> None:
    extra = {"keys[2].state": put("keys[2].wrapped", [{"kek": "x", "version": "", "blob": "AA"}])}
    for value in good:
        read(edits(extra.get(field, lambda doc: None), put(field, value)))
    for value in bad:
        if isinstance(value, float):
            continue
        refused(put(field, value), field)


def names_of(value: Any, at: str = "") -> list[tuple[str, str]]:
    """(path of an object, one of its names) of every object in a document."""
    found: list[tuple[str, str]] = []
    if isinstance(value, dict):
        for name, inner in value.items():
            path = f"{at}.{name}" if at else name
            found += [(at, name), *names_of(inner, path)]
    elif isinstance(value, list):
        for i, inner in enumerate(value[:2]):
            found += names_of(inner, f"{at}[{i}]")
    return found


@pytest.mark.parametrize(("at", "name"), names_of(to_json(KEYSET)))
def test_no_field_may_be_missing_or_of_another_type(at: str, name: str) -> None:
    path = f"{at}.{name}" if at else name
    if path in ("signature", "schema", "signer", "signer.public"):
        return  # read before the signature is: below

    def dropped(doc: Any) -> None:
        holder = doc
        for part in at.replace("[", ".[").split(".") if at else ():
            holder = holder[int(part[1:-1])] if part.startswith("[") else holder[part]
        del holder[name]

    refused(dropped, path)
    refused(put(path, -1), path)


@pytest.mark.parametrize(
    "at", ["", "keys[0]", "keys[0].wrapped[0]", "report_key", "signer", "rotation", "past_ttls[0]"]
)
def test_no_field_may_be_added(at: str) -> None:
    refused(put(f"{at}.zzz" if at else "zzz", 1), f"{at}.zzz" if at else "zzz")
    refused(put("rotation.steps[0].evidence.zzz", 1), "rotation.steps[0].evidence.zzz")
    refused(put("rotation.steps[0].zzz", 1), "rotation.steps[0].zzz")
    refused(put("history[0].zzz", 1), "history[0].zzz")


WRAP = {"kek": "x", "version": "", "blob": "AA"}
UNSIGNED = replace(KEYSET, signature="", rotation=None)


@pytest.mark.parametrize(
    ("field", "most"),
    [
        ("keks", 8),
        ("sign_keks", 8),
        ("past_ttls", 16),
        ("history", 100),
        ("history[0].overrides", 4096),
        ("rotation.roster", 4096),
        ("rotation.steps", 64),
        ("rotation.steps[1].evidence.confirmed", 4096),
        ("rotation.steps[1].evidence.missing", 4096),
        ("rotation.steps[1].evidence.proven_gone", 4096),
        ("keys[0].wrapped", 8),
        ("report_key.wrapped", 8),
        ("signer.wrapped", 8),
    ],
)
def test_arrays_have_a_longest(field: str, most: int) -> None:
    shapes: dict[str, Callable[[int], Any]] = {
        "keks": lambda i: f"kek-{i}",
        "sign_keks": lambda i: f"kek-{i}",
        "past_ttls": lambda i: {"ttl_seconds": 1, "until": format_ms(i)},
        "history": lambda i: {
            "at": format_ms(i),
            "who": "",
            "what": "",
            "generation": 1,
            "reason": "",
            "overrides": [],
        },
        "rotation.steps": lambda i: {**to_json(KEYSET)["rotation"]["steps"][1], "entered_at": format_ms(make.NOW + i)},
        **dict.fromkeys(("keys[0].wrapped", "report_key.wrapped", "signer.wrapped"), lambda i: {**WRAP, "kek": f"{i}"}),
    }
    shape = shapes.get(field, str)
    read(put(field, [shape(i) for i in range(most)]))
    refused(put(field, [shape(i) for i in range(most + 1)]), field)
    for value in ({}, "", None):
        refused(put(field, value), field)


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (put("keks", []), "keks"),
        (put("sign_keks", []), "sign_keks"),
        (put("keks", ["x", "x"]), "keks"),
        (put("sign_keks", ["x", "x"]), "sign_keks"),
        (put("keys", []), "keys"),
        (put("keys[0].kid", KEYSET.signer.kid), "keys"),
        (put("keys[0].kid", KEYSET.report_key.kid), "keys"),
        (put("keys[0].wrapped", []), "keys[0].wrapped"),
        (put("report_key.wrapped", []), "report_key.wrapped"),
        (put("signer.wrapped", []), "signer.wrapped"),
        (put("keys[0].wrapped", [WRAP, WRAP]), "keys[0].wrapped"),
        (put("signer.wrapped", [WRAP, WRAP]), "signer.wrapped"),
        (put("report_key.wrapped", [{**WRAP, "kek": f"{i}"} for i in range(9)]), "report_key.wrapped"),
        (put("rotation.steps", []), "rotation.steps"),
        (put("rotation.from", "AAAABBBBCCCC"), "rotation"),
        (put("rotation.to", "AAAABBBBCCCC"), "rotation"),
        (put("rotation.phase", 1), "rotation.phase"),
        (put("rotation.phase", "rolling_back"), "rotation.phase"),
        (put("rotation.phase", 3), "rotation.phase"),
        (put("rotation.to", KEYSET.keys[2].kid), "rotation.phase"),
    ],
)
def test_parts_that_contradict_each_other(edit: Edit, field: str) -> None:
    refused(edit, field)


def test_what_the_rules_leave_alone() -> None:
    assert read(put("keys[2].wrapped", [])).retired == {KEYSET.keys[2].kid}
    assert read(put("report_key.wrapped", [{**WRAP, "kek": f"{i}"} for i in range(8)]))
    ended = edits(put("rotation.ended", "done"), put("rotation.phase", 3), put("rotation.from", "AAAABBBBCCCC"))
    assert read(ended).running is None
    swapped = edits(put("rotation.phase", 1), put("keys[0].state", "minting"), put("keys[1].state", "verifying"))
    assert read(swapped).running is not None
    assert read(edits(swapped, put("rotation.phase", "rolling_back"))).running is not None
    assert read(put("rotation", None)).rotation is None


def test_at_most_128_keys_are_live() -> None:
    def keys(live: int) -> Keyset:
        made = [replace(KEYSET.keys[0], kid=make.kid(f"many {i}"), state="verifying") for i in range(live - 1)]
        return replace(UNSIGNED, keys=(KEYSET.keys[1], *made, *(replace(k, state="retired") for k in made[:0])))

    check(keys(128))
    with pytest.raises(KeysetMalformed, match="more than 128"):
        check(keys(129))


def test_rules_that_the_reader_s_own_caps_come_before() -> None:
    entry = HistoryEntry(0, "", "", 1)
    for changed, field in (
        (replace(UNSIGNED, keks=tuple(f"{i}" for i in range(9))), "keks"),
        (replace(UNSIGNED, sign_keks=tuple(f"{i}" for i in range(9))), "sign_keks"),
        (replace(UNSIGNED, history=(entry,) * 101), "history"),
        (replace(KEYSET, rotation=replace(KEYSET.rotation, roster=("x",) * 4097)), "rotation.roster"),
        (
            replace(UNSIGNED, signer=replace(KEYSET.signer, wrapped=tuple(Wrap(f"{i}", "", b"x") for i in range(9)))),
            "signer.wrapped",
        ),
    ):
        with pytest.raises(KeysetMalformed, match=f"field {field} is wrong"):
            check(changed)
    check(replace(UNSIGNED, history=(entry,) * 100))
    check(replace(KEYSET, rotation=replace(KEYSET.rotation, roster=("x",) * 4096)))


# --- signature and pins ------------------------------------------------------------------------------------------


def test_before_the_signature_nothing_but_the_signer_is_looked_at() -> None:
    value = to_json(KEYSET)
    for signer in (None, 7, {}, {"public": 7}, {"public": "ed25519:" + "A" * 42}, {"public": "A" * 43}):
        with pytest.raises(KeysetMalformed, match=r"signer\.public"):
            document.verify_signature({**value, "signer": signer})
    for signature in (None, 7, [], {}):
        with pytest.raises(KeysetMalformed, match="signature"):
            document.verify_signature({**value, "signature": signature})
    for signature in ("", "A", "A" * 86, "A" * 87, KEYSET.signature + "=", KEYSET.signature[:-1] + "?"):
        with pytest.raises(KeysetForged):
            document.verify_signature({**value, "signature": signature})
    assert document.verify_signature(value) == KEYSET.signer.public


def test_another_schema_is_another_kind_of_file() -> None:
    for schema in (None, "", "mcpkeys.keyset/2", "mcpkeys.report/1", 1):
        with pytest.raises(KeysetMalformed, match="schema"):
            document.read(json.dumps({**to_json(KEYSET), "schema": schema}).encode())


def test_only_its_signer_signs_it_and_only_what_is_whole() -> None:
    with pytest.raises(ValueError, match="not the keyset's signer"):
        document.sign(KEYSET, make.STRANGER)
    with pytest.raises(KeysetMalformed):
        document.sign(replace(KEYSET, keys=KEYSET.keys[:1]), make.SIGNER)
    assert document.sign(replace(KEYSET, signature=""), make.SIGNER) == KEYSET
    assert document.public_of(make.SIGNER) == KEYSET.signer.public


def test_pins() -> None:
    check_name(KEYSET, None)
    check_name(KEYSET, "fleet")
    with pytest.raises(KeysetMismatch) as caught:
        check_name(KEYSET, "other")
    assert caught.value.code == "keyset-name"
    check_signer("ed25519:a", [])
    check_signer("ed25519:a", ["ed25519:b", "ed25519:a"])
    with pytest.raises(KeysetMismatch) as caught:
        check_signer("ed25519:a", ["ed25519:b"])
    assert caught.value.code == "keyset-signer"
    body = dumps(KEYSET)
    assert document.read(body, name="fleet") == document.read(body) == KEYSET
    with pytest.raises(KeysetMismatch):
        document.read(body, name="other")
    with pytest.raises(KeysetMismatch):
        document.read(body, signers=["ed25519:" + "A" * 43])


# --- the past ----------------------------------------------------------------------------------------------------


def test_no_way_back() -> None:
    seen = Seen().after(KEYSET)
    assert seen == Seen(7, digest(KEYSET), frozenset({KEYSET.keys[2].kid}))
    check_succession(Seen(), KEYSET)
    check_succession(seen, KEYSET)
    check_succession(seen, replace(KEYSET, generation=8))
    check_succession(Seen(generation=7), KEYSET)
    for one, match in (
        (replace(KEYSET, generation=6), "goes back to generation 6 after 7"),
        (replace(KEYSET, audience="other"), "another document of generation 7"),
        (
            replace(KEYSET, generation=9, keys=(*KEYSET.keys[:2], replace(KEYSET.keys[2], state="verifying"))),
            KEYSET.keys[2].kid,
        ),
    ):
        with pytest.raises(KeysetRollback, match=match):
            check_succession(seen, one)
    # A retired kid is remembered however long ago it was, and one that is simply gone is none that returned.
    gone = replace(KEYSET, generation=8, keys=KEYSET.keys[:2])
    assert seen.after(gone).retired == seen.retired
    check_succession(seen, gone)


def test_lookups() -> None:
    verifying, minting, retired = KEYSET.keys
    assert KEYSET.key(minting.kid) is minting
    assert KEYSET.key("AAAABBBBCCCC") is None
    assert KEYSET.minting is minting
    assert KEYSET.live == (verifying, minting)
    assert KEYSET.retired == {retired.kid}
    assert KEYSET.running is KEYSET.rotation
    assert RETIRED_WRAPS_KEPT_SECONDS == 30 * 24 * 60 * 60


def test_the_history_keeps_its_last_hundred() -> None:
    keyset = KEYSET
    for number in range(150):
        keyset = with_history(keyset, HistoryEntry(number, "", "", 1))
    assert [entry.at for entry in keyset.history] == list(range(50, 150))


def test_differences_are_named() -> None:
    one, other = to_json(KEYSET), json.loads(json.dumps(to_json(KEYSET)))
    assert differing_fields(one, other) == []
    other["signature"] = "x"
    assert differing_fields(one, other) == []
    other["keys"][1]["state"] = "retired"
    other["audience"] = "x"
    other["rotation"]["roster"] = []
    other["new"] = 1
    del other["previous"]
    assert differing_fields(one, other) == ["audience", "keys[1].state", "new", "previous", "rotation.roster"]
    # Whatever stands on either side: an object, a list, a value, nothing.
    values = [{"a": 1}, [1], [1, 2], "text", None]
    for a in values:
        for b in values:
            same = differing_fields({"x": a}, {"x": b})
            assert same == ([] if a == b else ["x"])
            assert differing_fields({"x": [a]}, {"x": [b]}) == ([] if a == b else ["x[0]"])
    assert differing_fields({"x": {"a": 1, "signature": 1}}, {"x": {"b": 1}}) == ["x.a", "x.b", "x.signature"]


# --- strict JSON ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"[]", "not a JSON object"),
        (b'"x"', "not a JSON object"),
        (b"{", "not JSON: .* at line 1, column 2"),
        (b'{"a":1,"a":1}', "'a' stands twice"),
        (b'{"' + b"n" * 50 + b'":1,"' + b"n" * 50 + b'":1}', "the name 'n{40}' stands twice"),
        (b'{"x":{"a":1,"b":2,"a":3}}', "'a' stands twice"),
        (b'{"x":1,"a":1,"b":2,"a":3,"b":4}', "'a' stands twice"),
        (b'{"a":1.0}', "'1.0' is not an integer"),
        (b'{"a":1e2}', "is not an integer"),
        (b'{"a":NaN}', "'NaN' is not an integer"),
        (b'{"a":-Infinity}', "is not an integer"),
        (b'{"a":9007199254740992}', "larger than 2"),
        (b'{"a":-9007199254740992}', "larger than 2"),
        (b'{"a":' + b"9" * 5000 + b"}", "larger than 2"),
        (b'{"a":"\\ud800"}', "half of a surrogate pair"),
        (b'{"\\udc00":1}', "half of a surrogate pair"),
        (b'{"a":["\\udc00"]}', "half of a surrogate pair"),
        (b'{"a":"\xff"}', "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'{"a":' * 12 + b"{}" + b"}" * 12, "deeper than 12"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deeper than 12"),
    ],
)
def test_json_that_two_parsers_could_read_differently(text: bytes, word: str) -> None:
    with pytest.raises(strictjson.NotStrict, match=word):
        strictjson.loads(text, max_bytes=1 << 20)


def test_json_at_the_bounds_is_read() -> None:
    def loads(text: bytes, most: int = 1 << 20) -> Any:
        return strictjson.loads(text, max_bytes=most)

    assert loads(b'{"a":9007199254740991,"b":-9007199254740991}') == {"a": (1 << 53) - 1, "b": -(1 << 53) + 1}
    deepest = b'{"a":' * 11 + b"{}" + b"}" * 11
    assert loads(deepest)
    with pytest.raises(strictjson.NotStrict, match="longer than"):
        loads(deepest, len(deepest) - 1)
    assert loads(deepest, len(deepest))
    assert loads('{"a":"😀","b":[true,null,"é"]}'.encode()) == {"a": "😀", "b": [True, None, "é"]}
    assert strictjson.canonical({"b": 1, "a": "é"}) == '{"a":"é","b":1}'.encode()


def test_objects_and_arrays_nest_to_one_depth_however_they_mix() -> None:
    def nested(kinds: str) -> bytes:
        value: Any = {}
        for kind in kinds:
            value = [value] if kind == "[" else {"a": value}
        return json.dumps({"a": value}).encode()

    for kinds in ("[" * 11, "{" * 11, "[{" * 6, "{[" * 6, "[" * 6 + "{" * 6, "{" * 6 + "[" * 6):
        assert strictjson.loads(nested(kinds[:10]), max_bytes=1 << 20)
        with pytest.raises(strictjson.NotStrict, match="deeper than 12"):
            strictjson.loads(nested(kinds[:11]), max_bytes=1 << 20)
    # What stands at the bottom is looked at too.
    with pytest.raises(strictjson.NotStrict, match="half of a surrogate pair"):
        strictjson.loads(b'{"a":' + b"[" * 10 + b'"\\ud800"' + b"]" * 10 + b"}", max_bytes=1 << 20)


# --- spellings -----------------------------------------------------------------------------------------------------


def test_the_other_alphabet_is_refused_also_where_warnings_are_errors() -> None:
    """pybase64 warns of it before it decodes; `ValueError` is what callers expect."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for bad in ("A+AA", "A/AA"):
            with pytest.raises(ValueError, match="canonical"):
                unb64u(bad)


def test_times_and_bytes_have_one_spelling() -> None:
    assert format_ms(1_796_000_000_123) == "2026-11-30T00:53:20.123Z"
    assert parse_ms("1970-01-01T00:00:00.001Z") == 1
    assert parse_ms(format_ms(MAX_MS)) == MAX_MS
    assert to_ms(1.9999) == 1999
    right = "2026-11-29T22:51:00.123Z"
    for bad in (
        format_ms(MAX_MS + 1),
        right[:-1],
        right[:-1] + "4Z",
        " " + right,
        right + "\n",
        right.replace("T", " "),
    ):
        with pytest.raises(ValueError, match="a time"):
            parse_ms(bad)
    for bad in ("=", "A", "AB", "AAA=", "A+AA", "A/AA", "AA AA", "A\nAA", "ä", "AAAAA"):
        with pytest.raises(ValueError):
            unb64u(bad)
    for data in (b"", b"\xff", b"\xfb\xef", bytes(9)):
        assert unb64u(b64u(data)) == data
        assert "=" not in b64u(data)
