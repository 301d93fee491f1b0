"""Arithmetic: Python's operators where Numba gives them NumPy's meaning, else calls of intrinsics."""

from __future__ import annotations

from cutile.backend.cpu.emit._text import (
    AND,
    NOT,
    OR,
    PRODUCT,
    SUM,
    UNARY,
    XOR,
    Expression,
    Printer,
    Text,
    call,
    infix,
    is_small_float,
    narrowed,
    rounded,
)
from cutile.backend.cpu.stage import Larger, Smaller
from cutile.ir.core import Op
from cutile.ops.arith import (
    Abs,
    Add,
    And,
    Div,
    FloorDiv,
    Fma,
    Max,
    Min,
    Mod,
    Mul,
    Neg,
    Not,
    Or,
    Shl,
    Shr,
    Sub,
    Xor,
)


def _infix(operator: str, binds: int) -> Expression:
    def emit(printer: Printer, op: Op) -> Text:
        left, right = map(printer.operand, op.operands)
        return rounded(printer, infix(left, operator, right, binds), op.result.tile.dtype)

    return emit


def _call(function: str, by_sign: bool = False) -> Expression:
    """A call; `by_sign` where unsigned integers have a function of their own."""

    def emit(printer: Printer, op: Op) -> Text:
        suffix = "_unsigned" if by_sign and op.result.tile.dtype.kind == "uint" else ""
        return call(printer, function + suffix, *map(printer.operand, op.operands))

    return emit


def _negative(printer: Printer, op: Neg) -> Text:
    x, dtype = printer.operand(op.x), op.x.tile.dtype
    if dtype.kind == "float":
        return Text(f"-{x.within(UNARY)}", UNARY)
    return call(printer, dtype.name, infix(Text("0"), "-", x, SUM))


def _absolute(printer: Printer, op: Abs) -> Text:
    x = printer.operand(op.x)
    return x if op.x.tile.dtype.kind == "uint" else call(printer, "absolute", x)


def _not(printer: Printer, op: Not) -> Text:
    x, dtype = printer.operand(op.x), op.x.tile.dtype
    if dtype.kind == "bool":
        return Text(f"not {x.within(NOT)}", NOT)
    return call(printer, dtype.name, Text(f"~{x.within(UNARY)}", UNARY))


def _fma(printer: Printer, op: Fma) -> Text:
    x, y, z = map(printer.operand, op.operands)
    if not is_small_float(op.x.tile.dtype):
        return call(printer, "fma", x, y, z)
    wide = [call(printer, "f64", each) for each in (x, y, z)]  # holds the product of two 16-bit floats exactly
    total = infix(infix(wide[0], "*", wide[1], PRODUCT), "+", wide[2], SUM)
    return narrowed(printer, total, op.x.tile.dtype)


EXPRESSIONS: dict[type[Op], Expression] = {
    Add: _infix("+", SUM),
    Sub: _infix("-", SUM),
    Mul: _infix("*", PRODUCT),
    Div: _infix("/", PRODUCT),
    FloorDiv: _call("floor_div", by_sign=True),
    Mod: _call("mod", by_sign=True),
    Min: _call("minimum", by_sign=True),
    Max: _call("maximum", by_sign=True),
    Neg: _negative,
    Abs: _absolute,
    Fma: _fma,
    And: _infix("&", AND),
    Or: _infix("|", OR),
    Xor: _infix("^", XOR),
    Not: _not,
    Shl: _call("shift_left"),
    Shr: _call("shift_right", by_sign=True),
    Smaller: _call("smaller"),
    Larger: _call("larger"),
}
