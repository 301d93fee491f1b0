"""Statements: one function per kind of syntax, dispatched by the node's type."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from cutile.frontend import operators
from cutile.frontend.assign import assign
from cutile.frontend.control import for_loop, if_statement, while_loop
from cutile.frontend.expressions import evaluate
from cutile.frontend.frame import NOT_RETURNED, Frame
from cutile.frontend.syntax import refuse


def execute(frame: Frame, body: Sequence[ast.stmt]) -> None:
    """Compile statements in order, up to a return."""
    for node in body:
        if frame.returned is not NOT_RETURNED:
            return
        visit = _VISITORS.get(type(node))
        if visit is None:
            refuse(frame, node)
        with frame.at(node):
            visit(frame, node)


def _assignment(frame: Frame, node: ast.Assign) -> None:
    value = evaluate(frame, node.value)
    for target in node.targets:
        assign(frame, target, value)


def _annotated(frame: Frame, node: ast.AnnAssign) -> None:
    if node.value is not None:
        assign(frame, node.target, evaluate(frame, node.value))


def _augmented(frame: Frame, node: ast.AugAssign) -> None:
    if not isinstance(node.target, ast.Name):
        refuse(frame, node.target, "an assignment to an element or attribute")
    old = frame.name(ast.copy_location(ast.Name(id=node.target.id, ctx=ast.Load()), node.target))
    value = operators.binary(frame, type(node.op), old, evaluate(frame, node.value))
    assign(frame, node.target, value)


def _expression(frame: Frame, node: ast.Expr) -> None:
    if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return  # a docstring, or a string used as a comment
    evaluate(frame, node.value)


def _return(frame: Frame, node: ast.Return) -> None:
    if frame.is_entry and node.value is not None:
        frame.syntax_error(node, "a kernel returns nothing", "Store results into a Mut parameter.")
    if frame.dynamic_depth:
        frame.syntax_error(
            node,
            "a return inside a loop or a branch that is decided when the kernel runs",
            "Assign the result to a variable, and return it at the end of the function.",
        )
    frame.returned = None if node.value is None else evaluate(frame, node.value)


def _pass(frame: Frame, node: ast.Pass) -> None:
    del frame, node


_VISITORS: dict[type[ast.stmt], Callable[[Frame, Any], None]] = {
    ast.Assign: _assignment,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.Expr: _expression,
    ast.Return: _return,
    ast.Pass: _pass,
    ast.For: for_loop,
    ast.While: while_loop,
    ast.If: if_statement,
}
