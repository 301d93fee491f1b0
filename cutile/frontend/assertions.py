"""`assert` in a kernel: decided now for a constant condition, else at run time."""

from __future__ import annotations

import ast
from typing import Any

from cutile.frontend.families.debug import constant_text, require
from cutile.frontend.frame import Frame
from cutile.frontend.operators import truth
from cutile.frontend.values import is_tile


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
