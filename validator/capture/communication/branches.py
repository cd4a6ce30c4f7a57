"""Whether a script takes a branch or a size from a value, by its source and the names to which the value is assigned."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

# Functions and methods whose arguments are sizes.
_SIZED: Final = (
    "range", "islice", "arange", "empty", "zeros", "ones", "full", "rand", "randn", "randint", "new_empty", "new_zeros",
    "new_ones", "new_full", "view", "reshape", "expand", "repeat", "tile", "pad", "narrow", "split", "chunk",
)  # fmt: skip
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


class Expression(NamedTuple):
    """A part of a file: its first and last line, and its columns there, as compiled code has them."""

    path: str
    line: int
    end_line: int
    column: int
    end_column: int

    def is_in(self, node: Any) -> bool:
        """Whether a node of the file contains it."""
        begin, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        return begin <= (self.line, self.column) and (self.end_line, self.end_column) <= end


@functools.cache
def decides(expression: Expression, writes: bool = False) -> bool:
    """Whether a branch, a loop or a size may depend on the value of an expression. writes: whether on what it writes to its
    arguments instead."""
    try:
        tree = ast.parse(Path(expression.path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return False
    # from the outermost to the innermost
    around = [node for node in ast.walk(tree) if isinstance(node, (ast.stmt, ast.expr)) and expression.is_in(node)]
    is_asserted = any(isinstance(node, ast.Assert) for node in around)
    is_tested = not is_asserted and any(inner is one for outer, inner in itertools.pairwise(around) for one in _deciding(outer))
    # a truth value that nothing calls for has the place of the statement
    if is_tested or (around and isinstance(around[-1], (ast.If, ast.While))):
        return True
    function = next((node for node in reversed(around) if isinstance(node, _FUNCTIONS)), None)
    names = set[str]().union(*map(_assigned, around))
    if writes and around and isinstance(around[-1], ast.Call):
        arguments = (*around[-1].args, *(one.value for one in around[-1].keywords))
        # a dictionary that the call makes is an object that is sent
        names |= _names(*(one for one in arguments if not isinstance(one, ast.Dict)))
    is_returned = any(isinstance(node, ast.Return) for node in around)
    is_attribute = any(isinstance(node, ast.Attribute) and node.attr in names for one in around for node in ast.walk(one))
    scope = tree if function is None or is_attribute else function
    found = [(scope, _reached(scope, names))]
    if function is not None:
        returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
        if is_returned or any(found[0][1] & _names(one) for one in returned):
            found.append((tree, _reached(tree, {function.name})))
    return any(names & _names(one) for scope, names in found for node in _acting(scope) for one in _deciding(node))


def _acting(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a part of a file that are in no assertion, which ends the script or does nothing."""
    yield node
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, ast.Assert):
            yield from _acting(inner)


def _reached(scope: ast.AST, names: set[str]) -> set[str]:
    """Names, and those that are assigned what depends on them."""
    before: set[str] = set()
    while names != before:
        before = names
        names = names.union(
            *(
                _assigned(node)
                for node in ast.walk(scope)
                if (value := getattr(node, "value", None)) and isinstance(value, ast.expr) and names & _names(value)
            )
        )
    return names


def _assigned(node: ast.AST) -> set[str]:
    """Names of variables and attributes that a node assigns."""
    match node:
        case ast.Assign(targets=targets):
            parts = targets
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target) | ast.NamedExpr(target=target):
            parts = [target]
        case _:
            return set()
    stored = (ast.Store, ast.Del)
    inner = [one for part in parts for one in ast.walk(part)]
    return {one.id for one in inner if isinstance(one, ast.Name) and isinstance(one.ctx, stored)} | {
        one.attr for one in inner if isinstance(one, ast.Attribute) and isinstance(one.ctx, stored)
    }


def _names(*nodes: ast.AST) -> set[str]:
    """Names of variables and attributes that nodes read."""
    inner = [one for node in nodes for one in ast.walk(node)]
    return {one.id if isinstance(one, ast.Name) else one.attr for one in inner if isinstance(one, (ast.Name, ast.Attribute))}


def _deciding(node: ast.AST) -> Iterator[ast.expr]:
    """Parts of a node on which a branch, a loop or a size depends."""
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield test
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            yield from (test for generator in node.generators for test in generator.ifs)
        case ast.Match(subject=subject):
            yield subject
        case ast.Slice():
            yield from filter(None, (node.lower, node.upper, node.step))
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _SIZED:
            yield from (*node.args, *(one.value for one in node.keywords))
