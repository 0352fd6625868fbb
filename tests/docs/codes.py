"""Every `code` word of errors, findings and gates, read off the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from docs.pages import ROOT

SOURCES = [
    path
    for folder in ("src", "plugins", "cli")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "testing" not in path.parts and "story" not in path.parts
]
_WORD = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# Called with the code first: findings and what makes them, refusals of a gate.
_CODE_FIRST = {"Finding", "Refusal", "finding", "_finding", "refuse", "warn"}


def codes() -> dict[str, set[str]]:
    """Each code with the places it stands at, as `file:line class-or-function`."""
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for code, line, what in _codes(tree):
            if _WORD.fullmatch(code):
                found.setdefault(code, set()).add(f"{path.relative_to(ROOT).as_posix()}:{line} {what}")
    return found


def _codes(tree: ast.AST) -> Iterator[tuple[str, int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            what = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "?")
            for keyword in node.keywords:
                if keyword.arg == "code":
                    yield from ((text, node.lineno, what) for text in _texts(keyword.value))
            if what == "found" and len(node.args) > 3:  # Diagnosis.found(subject, check, level, code, ...)
                yield from ((text, node.lineno, what) for text in _texts(node.args[3]))
            if what in _CODE_FIRST and node.args:
                yield from ((text, node.lineno, what) for text in _texts(node.args[0]))
        elif isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.Assign | ast.AnnAssign):
                    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                    if any(isinstance(target, ast.Name) and target.id == "code" for target in targets):
                        yield from ((text, node.lineno, node.name) for text in _texts(statement.value))
        elif isinstance(node, ast.Assign):
            # `answer.exit, answer.code = 3, "token-rejected"` and `code = "..."`
            for target, value in _pairs(node):
                if (
                    isinstance(target, ast.Attribute | ast.Name)
                    and getattr(target, "attr", getattr(target, "id", "")) == "code"
                ):
                    yield from ((text, node.lineno, "assigned") for text in _texts(value))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("gate-"):
            yield node.value, node.lineno, "gate"


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def _texts(node: ast.expr | None) -> Iterator[str]:
    """The strings an expression can be, as far as it says so itself."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _texts(value)


def events() -> dict[str, set[Path]]:
    """Each `extra={"event": ...}` word with the files it stands in."""
    found: dict[str, set[Path]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "event":
                        for text in _texts(value):
                            found.setdefault(text, set()).add(path)
    return found
