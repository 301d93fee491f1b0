"""Arithmetic, comparisons, other roundings, functions of floats, conversions.

Operations become Python's operators where Numba gives them NumPy's meaning, else calls of intrinsics. An approximate
operation is computed as the exact one, rounded to nearest.

Values of f16 and bf16 are f32 values already: to widen them costs nothing. Values of types that are only stored are
their bits. They are converted by way of the f32 that the bits stand for, which is exact.
"""

from cutile.backend.cpu.emit._text import (
    AND,
    COMPARE,
    FUNCTIONS,
    NOT,
    OR,
    PRODUCT,
    SUFFIXES,
    SUM,
    UNARY,
    XOR,
    Expression,
    Printer,
    Text,
    call,
    infix,
    machine_type,
    rounded,
)
from cutile.backend.cpu.stage import Larger, Smaller, TimesReciprocal, Truncate
from cutile.conversion import MEANING, NEAREST_EVEN, NEGATIVE_INF, POSITIVE_INF, ZERO
from cutile.dtypes import DTypeLike, f32, f64
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
from cutile.ops.cast import Bitcast, Convert
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

    The truncated quotient of unsigned integers is the floored one.
    """

    def emit(printer: Printer, op: Op) -> Text:
        is_unsigned = op.result.tile.dtype.kind == "uint"
        return call(printer, unsigned if is_unsigned else signed, *map(printer.operand, op.operands))

    return emit


def _times_reciprocal(printer: Printer, op: TimesReciprocal) -> Text:
    return call(printer, "quotient", printer.operand(op.x), printer.operand(op.reciprocal))


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


# The suffix of an intrinsic with directed rounding, by the rounding.
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


# Conversions between element types.

WHOLE = {NEAREST_EVEN: "nearest", POSITIVE_INF: "ceil", NEGATIVE_INF: "floor", ZERO: "truncated"}
EXACT_IN_F32 = 16
"""Bits of the widest integer dtype whose every number an f32 holds exactly."""


def _float(printer: Printer, x: Text, source: DTypeLike) -> Text:
    """A float as the f32 or f64 of the same value."""
    return call(printer, f"{source.name}_value", x) if not source.computes else x


def _single(printer: Printer, x: Text, source: DTypeLike) -> Text:
    """A value as an f32 that may be rounded to a narrower float.

    It is exact, or rounded to odd.
    """
    if source.format is not None and source is not f64:
        return _float(printer, x, source)
    if source.kind in ("int", "uint", "bool"):
        if source.bits <= EXACT_IN_F32:
            return call(printer, "f32", x)
        if source.bits == 64:
            x = call(printer, "whole_to_odd" if source.is_signed else "whole_to_odd_unsigned", x)
        else:
            x = call(printer, "f64", x)
    return call(printer, "to_odd", x)


def _to_float(printer: Printer, x: Text, source: DTypeLike, target: DTypeLike, rounding: str) -> Text:
    """A value of any dtype as a float of `target`, rounded once."""
    suffix = SUFFIXES[rounding]
    if not target.computes:
        return call(printer, f"{target.name}_bits{suffix}", _single(printer, x, source))
    if target.is_half:
        return call(printer, f"{target.name}_round{suffix}", _single(printer, x, source))
    if source.format is not None:
        if source is f64:
            return call(printer, f"f32{suffix}", x)
        wide = _float(printer, x, source)
        return wide if target is f32 else call(printer, "f64", wide)
    # Integers: rounded to nearest, or exact, by Numba's own conversion.
    if not suffix or source.bits <= EXACT_IN_F32 or (target is f64 and source.bits <= 32):
        return call(printer, target.name, x)
    unsigned = "_unsigned" if source.kind == "uint" else ""
    if target is f64:
        return call(printer, f"f64{suffix}{unsigned}", x)
    wide = call(printer, f"whole_to_odd{unsigned}", x) if source.bits == 64 else call(printer, "f64", x)
    return call(printer, f"f32{suffix}", wide)


def _convert(printer: Printer, op: Convert) -> Text:
    x, source, dtype = printer.operand(op.x), op.x.tile.dtype, op.dtype
    if source is dtype:
        return x
    if dtype.is_bool:
        return Text(f"{_float(printer, x, source).within(OR)} != 0", COMPARE)
    if dtype.format is not None:
        return _to_float(printer, x, source, dtype, op.rounding or NEAREST_EVEN)
    if source.format is not None:
        whole = _float(printer, x, source)
        if (op.rounding or ZERO) != ZERO:
            whole = call(printer, WHOLE[op.rounding or ZERO], whole)
        return call(printer, f"saturated_{dtype.name}", whole)
    return call(printer, dtype.name, x)


def _truncate(printer: Printer, op: Truncate) -> Text:
    whole = printer.operand(op.x)
    if (op.rounding or ZERO) != ZERO:
        whole = call(printer, WHOLE[op.rounding or ZERO], whole)
    return call(printer, f"truncated_{op.dtype.name}", whole)


def _bitcast(printer: Printer, op: Bitcast) -> Text:
    x, source, dtype = printer.operand(op.x), op.x.tile.dtype, op.dtype
    machine = machine_type(source)
    if source in MEANING:  # the other bits mean nothing, and are 0 in the result
        x = call(printer, machine, infix(x, "&", Text(hex(MEANING[source])), AND))
    elif source.is_half:
        x, machine = call(printer, f"{source.name}_bits", x), "u16"
    if dtype.is_half:
        return call(printer, f"{dtype.name}_value", x if machine == "u16" else call(printer, "as_u16", x))
    return x if machine == machine_type(dtype) else call(printer, f"as_{machine_type(dtype)}", x)


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
    Convert: _convert,
    Truncate: _truncate,
    Bitcast: _bitcast,
}
