"""Launch-known integers as data, for what a compiled kernel keeps of them: a launch evaluates no text from a file.

(x.shape[1] + 63) // 64     ->   ("//", ("+", ("extent", 1, 1), 63), 64)
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from cutile.ir.core import Attribute

_OPERATORS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//"}


def count_of(text: str, names: Sequence[str]) -> Attribute:
    """The integer that a text stands for (`Linear.text`), as `Executable` says.

    Args:
        text: Python over the kernel's parameters: sums, multiples, quotients, minima and maxima.
        names: of the parameters, in order.

    Raises:
        ValueError: it is something else.

    Example:
        >>> count_of("min(n - 1, grid[0])", ["x", "n"])
        ('min', ('-', ('argument', 1), 1), ('grid', 0))
    """

    def read(node: ast.expr) -> Attribute:
        match node:
            case ast.Constant(value=int() as number):
                return number
            case ast.Name(id=name) if name in names:
                return ("argument", names.index(name))
            case ast.Subscript(value=ast.Name(id="grid"), slice=ast.Constant(value=int() as axis)):
                return ("grid", axis)
            case ast.Subscript(
                value=ast.Attribute(value=ast.Name(id=name), attr="shape"), slice=ast.Constant(value=int() as axis)
            ) if name in names:
                return ("extent", names.index(name), axis)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return ("-", 0, read(operand))
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
                return (_OPERATORS[type(operator)], read(left), read(right))
            case ast.Call(func=ast.Name(id="min" | "max" as function), args=[left, right], keywords=[]):
                return (function, read(left), read(right))
            case _:
                raise ValueError(f"{text!r} is no sum, quotient, minimum or maximum of what a launch knows")

    return read(ast.parse(text, mode="eval").body)
