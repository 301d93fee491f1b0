"""Arithmetic, comparisons, other roundings, functions of floats.

Operations are Python's operators where Numba gives them NumPy's meaning, else calls of intrinsics. An approximate
operation is computed as the exact one, rounded to nearest.
"""

from cutile.backend.cpu.emit._text import (
    AND,
    COMPARE,
    FUNCTIONS,
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
    rounded,
)
from cutile.backend.cpu.stage import Larger, Smaller, TimesReciprocal
from cutile.ir.core import Op
from cutile.ops.arith import (
    Abs,
    Add,
    And,
    Div,
    DivCeil,
    DivTrunc,
    FloorDiv,
    Fma,
    Max,
    Min,
    Mod,
    Mul,
    MulHi,
    Neg,
    Not,
    Or,
    Rem,
    Shl,
    Shr,
    Sub,
    Xor,
)
from cutile.ops.compare import Eq, Ge, Gt, Le, Lt, Ne, Select
from cutile.ops.math import Flushing
from cutile.ops.registry import OPS, family
from cutile.ops.rounding import (
    Rounded,
    RoundedAdd,
    RoundedDiv,
    RoundedFma,
    RoundedMul,
    RoundedSqrt,
    RoundedSub,
    RoundedTanh,
)


def _infix(operator: str, binds: int) -> Expression:
    def emit(printer: Printer, op: Op) -> Text:
        left, right = map(printer.operand, op.operands)
        return rounded(printer, infix(left, operator, right, binds), op.result.tile.dtype)

    return emit


def _call(function: str, by_sign: bool = False, floats: str = "") -> Expression:
    """A call.

    Args:
        function: the intrinsic.
        by_sign: whether unsigned integers have an intrinsic of their own.
        floats: the intrinsic of floats, where they have one.
    """

    def emit(printer: Printer, op: Op) -> Text:
        dtype = op.result.tile.dtype
        operands = map(printer.operand, op.operands)
        if dtype.is_float and floats:
            return rounded(printer, call(printer, floats, *operands), dtype)
        return call(printer, function + ("_unsigned" if by_sign and dtype.kind == "uint" else ""), *operands)

    return emit


def _negative(printer: Printer, op: Neg) -> Text:
    x, dtype = printer.operand(op.x), op.x.tile.dtype
    if dtype.is_float:
        return Text(f"-{x.within(UNARY)}", UNARY)
    # `-x` of an unsigned integer is an i64 in Numba.
    return call(printer, dtype.name, infix(Text("0"), "-", x, SUM))


def _absolute(printer: Printer, op: Abs) -> Text:
    x = printer.operand(op.x)
    return x if op.x.tile.dtype.kind == "uint" else call(printer, "absolute", x)


def _not(printer: Printer, op: Not) -> Text:
    x, dtype = printer.operand(op.x), op.x.tile.dtype
    if dtype.is_bool:
        return Text(f"not {x.within(NOT)}", NOT)
    return call(printer, dtype.name, Text(f"~{x.within(UNARY)}", UNARY))


def _extreme(name: str) -> Expression:
    def emit(printer: Printer, op: Min | Max) -> Text:
        x, y = map(printer.operand, op.operands)
        if op.ftz:
            x, y = call(printer, "flush", x), call(printer, "flush", y)
        if op.nan and op.x.tile.dtype.is_float:
            return call(printer, f"{name}_or_nan", x, y)
        return call(printer, name + ("_unsigned" if op.x.tile.dtype.kind == "uint" else ""), x, y)

    return emit


def _truncating(signed: str, unsigned: str) -> Expression:
    """A call of one of two intrinsics, by the sign of the dtype.

    Of unsigned integers the truncated quotient is the floored one.
    """

    def emit(printer: Printer, op: Op) -> Text:
        is_unsigned = op.result.tile.dtype.kind == "uint"
        return call(printer, unsigned if is_unsigned else signed, *map(printer.operand, op.operands))

    return emit


def _times_reciprocal(printer: Printer, op: TimesReciprocal) -> Text:
    product = infix(call(printer, "f64", printer.operand(op.x)), "*", printer.operand(op.reciprocal), PRODUCT)
    return call(printer, "f32", product)


def _fma(printer: Printer, op: Fma) -> Text:
    x, y, z = map(printer.operand, op.operands)
    if not op.x.tile.dtype.is_half:
        return call(printer, "fma", x, y, z)
    return rounded(printer, call(printer, "fma_odd", x, y, z), op.x.tile.dtype)


def _compare(operator: str) -> Expression:
    def emit(printer: Printer, op: Op) -> Text:
        left, right = map(printer.operand, op.operands)
        return Text(f"{left.within(OR)} {operator} {right.within(OR)}", COMPARE)

    return emit


def _select(printer: Printer, op: Select) -> Text:
    return call(printer, "choose", *map(printer.operand, op.operands))


# How the intrinsics of directed roundings end, by the rounding.
MODES = {"positive_inf": "upward", "negative_inf": "downward", "zero": "to_zero"}
OPERATORS = {"add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT), "div": ("/", PRODUCT)}


def _rounded(printer: Printer, op: Rounded) -> Text:
    operands = [printer.operand(each) for each in op.operands]
    if op.ftz:
        operands = [call(printer, "flush", each) for each in operands]
    name = op.exact_name
    if op.rounding in MODES:
        result = call(printer, f"{name}_{MODES[op.rounding]}", *operands)
    elif name in OPERATORS:
        operator, binds = OPERATORS[name]
        result = infix(operands[0], operator, operands[1], binds)
    else:
        result = call(printer, name, *operands)
    return call(printer, "flush", result) if op.ftz else result


def _function(printer: Printer, op: Op) -> Text:
    return rounded(printer, call(printer, FUNCTIONS[op.name], *map(printer.operand, op.operands)), op.result.tile.dtype)


def _flushing(printer: Printer, op: Flushing) -> Text:
    if not op.ftz:
        return _function(printer, op)
    return call(printer, "flush", call(printer, op.name, call(printer, "flush", printer.operand(op.x))))


EXPRESSIONS: dict[type[Op], Expression] = {
    # Arithmetic without a row of its own is the intrinsic of its name.
    **{op: _call(name) for name, op in OPS.items() if family(op) == "arith"},
    Add: _infix("+", SUM),
    Sub: _infix("-", SUM),
    Mul: _infix("*", PRODUCT),
    Div: _infix("/", PRODUCT),
    TimesReciprocal: _times_reciprocal,
    FloorDiv: _call("floor_div", by_sign=True, floats="floor_div_float"),
    Mod: _call("mod", by_sign=True, floats="mod_float"),
    DivTrunc: _truncating("div_trunc", "floor_div_unsigned"),
    DivCeil: _call("div_ceil", by_sign=True),
    Rem: _truncating("remainder", "mod_unsigned"),
    MulHi: _call("mul_hi", by_sign=True),
    Min: _extreme("minimum"),
    Max: _extreme("maximum"),
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
    Eq: _compare("=="),
    Ne: _compare("!="),
    Lt: _compare("<"),
    Le: _compare("<="),
    Gt: _compare(">"),
    Ge: _compare(">="),
    Select: _select,
    **dict.fromkeys((RoundedAdd, RoundedSub, RoundedMul, RoundedDiv, RoundedFma, RoundedSqrt, RoundedTanh), _rounded),
    **{OPS[name]: _flushing if issubclass(OPS[name], Flushing) else _function for name in FUNCTIONS},
}
