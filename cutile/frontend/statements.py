"""Statements: one function per kind of syntax, dispatched by the node's type.

An `assert` is decided now for a constant condition, else at run time.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from cutile.errors import KernelError
from cutile.frontend import operators
from cutile.frontend.branches import guarded, if_statement
from cutile.frontend.expressions import evaluate
from cutile.frontend.families.debug import constant_text, require
from cutile.frontend.flow import Flow, assigned
from cutile.frontend.for_loops import for_loop, while_loop
from cutile.frontend.frame import Frame
from cutile.frontend.inline import define, with_statement
from cutile.frontend.operators import truth
from cutile.frontend.patterns import match_statement
from cutile.frontend.simple_statements import assign, break_statement, continue_statement, refuse, return_statement
from cutile.frontend.values import FAULTY, is_tile


def assert_statement(frame: Frame, node: ast.Assert) -> None:
    """`assert condition, message`: decided now if constant, else at run time."""
    condition = frame.evaluate(node.test)
    message = frame.evaluate(node.msg) if node.msg is not None else None
    if is_tile(condition):
        require(frame, condition, ast.unparse(node.test) if message is None else message, "assert")
    elif not truth(frame, condition, node.test):
        failed(frame, node.test, message)


def failed(frame: Frame, node: ast.AST, message: Any) -> None:
    """Refuse the kernel: what it asserts is false."""
    frame.type_error(
        f"the assertion is false{constant_text(message)}",
        node,
        "It is decided when the kernel is compiled, by its generics and the types of its arguments.",
    )


def execute(frame: Frame, body: Sequence[ast.stmt]) -> None:
    """Compile statements in order, up to one after which control does not go on.

    A statement that fails is reported; what it would have assigned is faulty from there on, and the rest is read.
    """
    for position, node in enumerate(body):
        if not frame.flow.falls:
            return
        if frame.flow.taken:
            guarded(frame, lambda: execute(frame, body[position:]), node)  # noqa: B023 (called at once)
            return
        before = dict(frame.variables)
        try:
            with frame.at(node):
                _execute(frame, node)
        except KernelError as error:
            frame.report.add(error)
            frame.variables = before | dict.fromkeys(assigned([node]), FAULTY)
            frame.flow = Flow()


def _execute(frame: Frame, node: ast.stmt) -> None:
    visit = STATEMENTS.get(type(node))
    if visit is None:
        refuse(frame, node)
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
        assign(frame, node.target, None)
        return
    old = frame.name(ast.copy_location(ast.Name(id=node.target.id, ctx=ast.Load()), node.target))
    value = operators.binary(frame, type(node.op), old, evaluate(frame, node.value))
    assign(frame, node.target, value)


def _expression(frame: Frame, node: ast.Expr) -> None:
    if isinstance(node.value, ast.Constant) and (isinstance(node.value.value, str) or node.value.value is ...):
        return  # a docstring, or a string used as a comment
    evaluate(frame, node.value)


def _pass(frame: Frame, node: ast.Pass) -> None:
    del frame, node


STATEMENTS: dict[type[ast.stmt], Callable[[Frame, Any], None]] = {
    ast.Assign: _assignment,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.Expr: _expression,
    ast.Pass: _pass,
    ast.If: if_statement,
    ast.For: for_loop,
    ast.While: while_loop,
    ast.Match: match_statement,
    ast.Break: break_statement,
    ast.Continue: continue_statement,
    ast.Return: return_statement,
    ast.FunctionDef: define,
    ast.Assert: assert_statement,
    ast.With: with_statement,
}
