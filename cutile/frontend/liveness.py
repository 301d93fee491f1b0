"""What statements do to names and to control, read from their syntax alone.

Which names they bind, whether they jump, and whether a body may use a variable's value from before the iteration.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


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


def is_only_overwritten(loop: ast.For | ast.While, name: str) -> bool:
    """Whether every iteration assigns the variable before it reads it, if at all."""
    if isinstance(loop, ast.While) and _loads(loop.test, name):
        return False
    return not _body(loop.body, name)[0]


def _loads(node: ast.AST, name: str) -> bool:
    """Whether the name is read anywhere in it.

    Also by a function that it defines, which may be called later.
    """
    return any(isinstance(each, ast.Name) and each.id == name and not _is_stored(each) for each in ast.walk(node))


def _stores(node: ast.AST, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name and _is_stored(each) for each in ast.walk(node))


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _body(body: Sequence[ast.stmt], name: str) -> tuple[bool, bool]:
    """Whether it may read the name first, and whether all paths assign it.

    Paths that go on.
    """
    for statement in body:
        reads, assigns = _statement(statement, name)
        if reads or assigns:
            return reads, assigns
    return False, False


def _statement(node: ast.stmt, name: str) -> tuple[bool, bool]:
    match node:
        case ast.Assign(targets=targets, value=value):
            return _loads(node, name), any(_stores(each, name) for each in targets) or _stores(value, name)
        case ast.AnnAssign(target=target, value=ast.expr()):
            return _loads(node, name), _stores(target, name)
        case ast.AugAssign(target=target):
            return _loads(node, name) or _stores(target, name), False
        case ast.Break() | ast.Continue() | ast.Return(value=None):
            return False, True  # nothing after it is reached
        case ast.If(test=test, body=then, orelse=orelse):
            first, second = _body(then, name), _body(orelse, name)
            return _loads(test, name) or first[0] or second[0], first[1] and second[1]
        case ast.For(target=target, iter=over, body=inner, orelse=orelse):
            reads = not _stores(target, name) and _body(inner, name)[0]  # it may have no turn, so it assigns nothing
            return _loads(over, name) or reads or _body(orelse, name)[0], False
        case ast.While(test=test, body=inner, orelse=orelse):
            return _loads(test, name) or _body(inner, name)[0] or _body(orelse, name)[0], False
        case _:
            return _loads(node, name), False
