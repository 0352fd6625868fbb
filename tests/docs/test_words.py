"""No undocumented setting, exit code, error, code word, reason or event; and none documented that is not there."""

from __future__ import annotations

import inspect
import json
import re
import tomllib

import pytest
from docs.codes import SOURCES, codes, events
from docs.pages import DOCS, PAGES, ROOT, name

from mcpkeys import errors
from mcpkeys.reports import Report
from mcpkeys_cli.help import TOPICS

# What the names of a plugin's settings begin with: no settings themselves.
PREFIXES = {"MCPKEYS_VAULT", "MCPKEYS_GCP", "MCPKEYS_AWS"}
VARIABLE = re.compile(r"(?<![A-Z_])MCPKEYS_[A-Z][A-Z_]*[A-Z]")


def page(path: str) -> str:
    return (DOCS / path).read_text(encoding="utf-8")


def rows(path: str, heading: str = "") -> set[str]:
    """The words in back quotes in the first cell of each table row, below a heading or anywhere."""
    text = page(path)
    if heading:
        text = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        assert text, heading
    return {
        word
        for line in re.findall(r"^\| ((?:\(none\), )?`[^|]*) \|", text, re.M)
        for word in re.findall(r"`([^`]+)`", line)
    }


def classes() -> dict[str, type[errors.McpkeysError]]:
    return {
        key: value
        for key, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.McpkeysError)
    }


def test_every_setting_is_documented_and_none_else() -> None:
    found = {word for path in SOURCES for word in VARIABLE.findall(path.read_text(encoding="utf-8"))}
    found -= PREFIXES
    documented = set(VARIABLE.findall(page("reference/settings.md"))) - {"MCPKEYS_VAULT"}
    assert documented == found
    for where in PAGES:
        used = set(VARIABLE.findall(where.read_text(encoding="utf-8"))) - {
            "MCPKEYS_VAULT",
            "MCPKEYS_GCP",
            "MCPKEYS_AWS",
        }
        assert used <= found, name(where)


def test_exit_codes_are_those_of_the_program() -> None:
    documented = set(re.findall(r"^\| (\d+) \|", page("reference/exit-codes.md"), re.M))
    told = set(re.findall(r"^  (\d+) ", TOPICS["exit-codes"], re.M))
    assert documented == told
    assert {str(cls.exit_code) for cls in classes().values()} <= documented


def test_every_error_class_is_drawn_with_its_exit_code() -> None:
    drawn = re.findall(r"^[│├└─ ]*([A-Z]\w+)(?: +exit (\d+))?", page("reference/errors.md"), re.M)
    seen = {word: code for word, code in drawn if word in classes()}
    assert set(seen) == set(classes())
    for word, code in seen.items():
        assert not code or int(code) == classes()[word].exit_code, word


def test_every_code_word_is_documented_and_none_else() -> None:
    found = codes()
    documented = rows("reference/errors.md")
    missing = {code: sorted(places) for code, places in found.items() if code not in documented}
    # Findings of names and servers have their own page, and their own test (tests/adoption/test_reference.py).
    missing = {code: places for code, places in missing.items() if code not in rows("reference/findings.md")}
    assert not missing, f"not in docs/reference/errors.md: {missing}"
    assert documented <= set(found), f"in docs/reference/errors.md, but nobody says it: {documented - set(found)}"


def test_documented_exit_codes_of_classes_are_right() -> None:
    for line in re.findall(r"^\| `[^|]*\| [0-9, ]+ \|", page("reference/errors.md"), re.M):
        words, exits = re.findall(r"`([^`]+)`", line), set(map(int, re.findall(r"\d+", line.split("|")[2])))
        for cls in classes().values():
            if cls.code in words:
                assert cls.exit_code in exits, f"{cls.code}: {exits}"


def test_every_event_is_documented_and_none_else() -> None:
    assert rows("reference/observability.md", "Log events") == set(events())


def test_every_metric_and_span_is_documented_and_none_else() -> None:
    source = (ROOT / "src/mcpkeys/metrics.py").read_text(encoding="utf-8")
    names = set(re.findall(r'"(mcpkeys\.[a-z_.]+[a-z])"', source))
    text = page("reference/observability.md").partition("## Metrics\n")[2]
    assert set(re.findall(r"`(mcpkeys\.[a-z_.]+[a-z])`", text)) == names
    assert "mcpkeys.kms.<operation>" in text


@pytest.mark.parametrize(("group", "heading"), [("kms", "KEKs"), ("stores", "Keysets")])
def test_every_scheme_is_documented(group: str, heading: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert rows("reference/uris.md", heading) == set(project["entry-points"][f"mcpkeys.{group}"])
    for scheme in project["entry-points"][f"mcpkeys.{group}"]:
        assert scheme in TOPICS["uris"]


def test_the_reasons_are_the_codecs_own() -> None:
    from mcpkeys.codec import REASONS

    assert rows("token-format.md", "Reasons") == set(REASONS)


def test_json_schemas_are_documented() -> None:
    from importlib.util import find_spec

    from mcpkeys_cli.main import COMMANDS

    text = page("reference/json.md")
    for word, (module, _) in COMMANDS.items():
        if find_spec(module) is not None:
            assert f"`mcpkeys.{word}/1`" in text, word
    for word in re.findall(r"`mcpkeys\.(\w+)/1`", text):
        assert word in {*COMMANDS, "keyset", "report", "mcpkeys"}, word


PROMISES = json.loads((ROOT / "tests/packaging/promises.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("section", [key for key in PROMISES if key.startswith("json ")])
def test_every_field_of_a_json_output_is_documented(section: str) -> None:
    word = section.removeprefix("json mcpkeys.")
    text = page("reference/json.md")
    sections = re.split(r"^## ", text, flags=re.M)
    told = next(part for part in sections if f"`mcpkeys.{word}/1`" in part and not part.startswith("# "))
    names = {re.split(r"[.\[]", member)[0] for member in PROMISES[section]["members"]}
    common = {"schema", "ok", "exit", "next", "error"}
    assert {f for f in names - common if f"`{f}`" not in told} == set()


def test_every_field_of_keyset_and_report_is_documented() -> None:
    text = page("keyset.md")
    for section, heading in (("keyset", "Fields"), ("report", "Reports")):
        part = text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        for member in PROMISES[section]["members"]:
            for field in re.split(r"[.\[\]]+", member):
                assert field in ("", "*") or f"`{field}`" in part, f"{section}: {member}"
    for field in Report.__dataclass_fields__:
        assert f"`{field}`" in text.partition("## Reports\n")[2], field
