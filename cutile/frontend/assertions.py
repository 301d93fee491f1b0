"""`assert` in a kernel: decided now where the condition is constant."""

from __future__ import annotations

import ast
from typing import Any

from cutile.frontend.frame import Frame
from cutile.frontend.operators import truth


def assert_statement(frame: Frame, node: ast.Assert) -> None:
    """`assert condition, message`."""
    condition = truth(frame, frame.evaluate(node.test), node.test)
    if not isinstance(condition, bool):
        frame.syntax_error(
            node.test,
            "this assert is decided when the kernel runs, and only constants are asserted",
            "Check arguments on the host, before the launch.",
        )
    if not condition:
        failed(frame, node.test, frame.evaluate(node.msg) if node.msg is not None else None)


def failed(frame: Frame, node: ast.AST, message: Any) -> None:
    """Refuse the kernel: what it asserts is false."""
    said = f": {message}" if message is not None else ""
    frame.type_error(
        f"the assertion is false{said}",
        node,
        "It is decided when the kernel is compiled, by its generics and the types of its arguments.",
    )
