"""Operators and functions, as forms to be filled in. Those of floats keep values within a few units."""

from __future__ import annotations

FLOAT_BINARY = (
    "({} + {})",
    "({} - {})",
    "({} * {} * 0.25)",
    "min({}, {})",
    "max({}, {})",
    "larger({}, {})[0]",
    "ct.fma({}, 0.5, {})",
)
INT_BINARY = (
    "({} + {})",
    "({} - {})",
    "({} * {})",
    "({} // {})",
    "({} % {})",
    "({} & {})",
    "({} | {})",
    "({} ^ {})",
    "min({}, {})",
    "max({}, {})",
    "larger({}, {})[1]",
    "ct.divi({}, {})",
    "ct.remi({}, {})",
    "ct.ceil_div({}, {})",
    "ct.mulhii({}, {})",
)
FLOAT_UNARY = (
    "(-{})",
    "abs({})",
    "ct.tanh({})",
    "ct.exp(ct.tanh({}))",
    "ct.sqrt(abs({}))",
    "ct.cos(ct.tanh({}))",
    "ct.sin(ct.tanh({}))",
    "ct.exp2(ct.tanh({}))",
    "ct.log(abs({}) + 1)",
    "ct.rsqrt(abs({}) + 1)",
    "ct.sigmoid({})",
    "ct.clamp({}, -1.5, 2.0)",
    "twice({})",
    "(twice({}, by=3) * 0.5)",
)
INT_UNARY = ("(-{})", "(~{})", "ct.clamp({}, 2, 90)", "({} >> 2)", "({} << 1)", "twice({})", "twice({}, by=3)")
UINT_UNARY = ("({} ^ 1)", *INT_UNARY[1:])
OVERFLOWS = (
    "(({0} * 2) // 2)",
    "(({0} + {0}) % 7)",
    "(({0} << 1) >> 1)",
    "(({0} * 3) // 3)",
    "ct.select({0} + 1 > {0}, {1}, {0})",
    "ct.select({0} - 1 < {0}, {0}, {2})",
    "ct.select(({0} + {2} > {0}) == ({2} > 0), {1}, {2})",
    "ct.select((0 - {0} > 0) & ({0} < 0), {1}, {2})",
    "ct.select({0} * {0} >= 0, {0}, {1})",
)
"""Of a number near an end of its dtype, and two others."""
REDUCTIONS = ("sum", "max", "min")
ACCUMULATORS = {"f32": "f32", "f64": "f64", "f16": "f32", "bf16": "f32", "i8": "i32", "u8": "i32", "i32": "i32"}
"""What products of tiles of a dtype are added up in."""
