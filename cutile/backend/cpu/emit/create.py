"""Constants, written in place."""

from __future__ import annotations

import math

import numpy as np

from cutile.backend.cpu.emit._text import UNARY, Expression, Printer, Text, call, held
from cutile.conversion import bits_of
from cutile.dtypes import DTypeLike
from cutile.ir.constant import Constant
from cutile.ir.core import Op


def number(printer: Printer, value: float, dtype: DTypeLike) -> Text:
    """A literal of a dtype."""
    if dtype.kind == "storage":
        return call(printer, held(dtype), repr(bits_of(value, dtype)))
    if dtype.kind == "bool":
        return Text(repr(bool(value)))
    if dtype.kind != "float":
        wrapped = int(np.asarray(value).astype(dtype.numpy))
        text = Text(repr(wrapped), UNARY if wrapped < 0 else 0)
        return text if dtype.name == "i64" else call(printer, dtype.name, text)
    with np.errstate(over="ignore"):  # what was folded may be too large
        exact = float(np.asarray(value).astype(dtype.numpy))  # f16 and bf16: rounded, then held as f32
    if math.isnan(exact):
        literal = printer.use("nan")
    elif math.isinf(exact):
        literal = ("-" if exact < 0 else "") + printer.use("inf")
    else:
        literal = repr(exact)
    return call(printer, held(dtype), literal)


def _constant(printer: Printer, op: Constant) -> Text:
    return number(printer, op.value, op.dtype)


EXPRESSIONS: dict[type[Op], Expression] = {Constant: _constant}
