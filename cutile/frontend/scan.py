"""What statements do to names and to control, read from their syntax alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of one function.

    Not those of functions and classes inside it, nor the targets of comprehensions.
    """
    yield node
    if isinstance(node, _SCOPES):
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.comprehension):
            yield from _within(child.iter)
            for test in child.ifs:
                yield from _within(test)
        else:
            yield from _within(child)


def assigned(body: Sequence[ast.AST]) -> dict[str, ast.AST]:
    """The names that statements assign, with the first place of each."""
    names: dict[str, ast.AST] = {}
    for statement in body:
        for node in _within(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
                names.setdefault(node.id, node)
            elif isinstance(node, ast.FunctionDef) or (
                isinstance(node, ast.MatchAs | ast.MatchStar) and node.name is not None
            ):
                names.setdefault(str(node.name), node)
    return names


def leaves_loop(body: Sequence[ast.stmt]) -> tuple[bool, bool]:
    """Whether a loop's body has a `break` of that loop, and whether it has a `return`."""
    breaks = returns = False
    for statement in body:
        if isinstance(statement, ast.Break):
            breaks = True
        elif isinstance(statement, ast.Return):
            returns = True
        elif isinstance(statement, ast.For | ast.While):
            inner = leaves_loop(statement.body)
            after = leaves_loop(statement.orelse)
            breaks, returns = breaks or after[0], returns or inner[1] or after[1]
        else:
            for nested in _bodies(statement):
                inner = leaves_loop(nested)
                breaks, returns = breaks or inner[0], returns or inner[1]
    return breaks, returns


def _bodies(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    if isinstance(statement, ast.If):
        yield statement.body
        yield statement.orelse
    elif isinstance(statement, ast.Match):
        for case in statement.cases:
            yield case.body
