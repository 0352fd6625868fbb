"""Mutants of a module: its syntax tree with one thing changed, as a mistake would change it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
}
Change = Callable[[ast.AST], ast.AST]


@dataclass(frozen=True)
class Mutant:
    """One change: where, what, and its number among those of the text."""

    line: int
    what: str
    source: str
    text: str
    number: int

    @property
    def tree(self) -> ast.Module:
        """The whole module with this one change: made where it is needed, most mutants are never tried."""
        changed = ast.parse(self.text)
        target, _, change = list(_places(changed))[self.number]
        replaced = change(target)
        if replaced is not target:
            _Replace(target, replaced).visit(changed)
        return ast.fix_missing_locations(changed)


def mutants(text: str) -> Iterator[Mutant]:
    """Every mutant of a module's text.

    Left alone: docstrings, annotations, what errors say to people, assertions that narrow types, `__repr__`, imports,
    decorators.
    """
    lines = text.splitlines()
    for number, (node, what, _) in enumerate(_places(ast.parse(text))):
        yield Mutant(node.lineno, what, lines[node.lineno - 1].strip(), text, number)  # type: ignore[attr-defined]


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, ast.copy_location(new, old)

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def _places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, Change]]:
    """(node, description, what changes it) in a fixed order."""
    for node in _walked(tree):
        yield from _of(node)


def _of(node: ast.AST) -> Iterator[tuple[ast.AST, str, Change]]:
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            other = COMPARE[type(op)]
            yield node, f"{type(op).__name__} -> {other.__name__}", _compared(i, other)
        for i, side in enumerate([node.left, *node.comparators]):
            if isinstance(side, ast.Constant) and isinstance(side.value, str | bytes) and side.value:
                yield node, f"{side.value!r} changed", _other_text(i)
    elif isinstance(node, ast.BoolOp):
        yield node, "and <-> or", _flip_bool
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, "not dropped", lambda n: n.operand  # type: ignore[attr-defined]
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _texts(node):
        other_op = ARITHMETIC[type(node.op)]
        yield node, f"{type(node.op).__name__} -> {other_op.__name__}", _operated(other_op)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, f"{node.value} -> {not node.value}", _constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield node, f"{node.value} -> {node.value + 1}", _constant(node.value + 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bytes) and node.value:
        yield node, f"{node.value!r} changed", _constant(node.value + b"?")
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield node, "returns None", lambda n: ast.Return(ast.Constant(None))
    elif isinstance(node, ast.If):
        yield node, "condition always true", _condition(True)
        yield node, "condition always false", _condition(False)
    elif (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)) or isinstance(node, ast.Raise):
        yield node, "statement dropped", lambda n: ast.Pass()
    elif isinstance(node, ast.IfExp):
        yield node, "branches exchanged", _exchange


def _walked(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes in the text's order, without what is left alone."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Import | ast.ImportFrom | ast.Assert | ast.AnnAssign | ast.arg):
            if isinstance(child, ast.AnnAssign) and child.value is not None:
                yield from _walked(ast.Expression(child.value))
            continue
        if isinstance(child, ast.Subscript) and "Literal" in ast.dump(child.value):
            continue
        if isinstance(child, ast.FunctionDef) and child.name in ("__repr__", "__reduce__"):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.ClassDef):
            yield from _walked(ast.Module(child.body, []))
            continue
        if isinstance(child, ast.FunctionDef):
            parts = [*child.args.defaults, *filter(None, child.args.kw_defaults), *child.body]
            yield from _walked(ast.Module(parts, []))  # type: ignore[arg-type]
            continue
        yield child
        yield from _walked(child)


def _texts(node: ast.BinOp) -> bool:
    """Joins text, or names a type that may be None."""
    sides = (node.left, node.right)
    return any(
        _is_none(s) or isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and isinstance(s.value, str))
        for s in sides
    )


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _compared(i: int, other: type[ast.cmpop]) -> Change:
    def change(node: ast.AST) -> ast.AST:
        node.ops[i] = other()  # type: ignore[attr-defined]
        return node

    return change


def _other_text(i: int) -> Change:
    def change(node: ast.AST) -> ast.AST:
        side = [node.left, *node.comparators][i]  # type: ignore[attr-defined]
        side.value = side.value + ("?" if isinstance(side.value, str) else b"?")
        return node

    return change


def _flip_bool(node: ast.AST) -> ast.AST:
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()  # type: ignore[attr-defined]
    return node


def _operated(other: type[ast.operator]) -> Change:
    def change(node: ast.AST) -> ast.AST:
        node.op = other()  # type: ignore[attr-defined]
        return node

    return change


def _constant(value: object) -> Change:
    def change(node: ast.AST) -> ast.AST:
        node.value = value  # type: ignore[attr-defined]
        return node

    return change


def _condition(value: bool) -> Change:
    def change(node: ast.AST) -> ast.AST:
        node.test = ast.Constant(value)  # type: ignore[attr-defined]
        return node

    return change


def _exchange(node: ast.AST) -> ast.AST:
    node.body, node.orelse = node.orelse, node.body  # type: ignore[attr-defined]
    return node
