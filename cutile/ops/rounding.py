# pyright: reportGeneralTypeIssues=false
# Pyright reports operands without a default behind attributes with one. `Op.__init_subclass__` puts operands first.
"""Arithmetic rounded other than to nearest even, or with f32 flushed to zero.

The directed roundings are exact: the result is the neighbour of the exact result on the side that the mode names.
"approx" and "full" ask for speed instead: any result within the stated bound will do. For these the NumPy meaning is
the result rounded to nearest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from cutile.errors import KernelTypeError
from cutile.ir import Accuracy, Constraint, Op, TileType, Type, Value, attribute, operand
from cutile.ops import elementwise
from cutile.ops.elementwise import require_same

F32_F64 = Constraint("a tile of f32 or f64", lambda t: isinstance(t, TileType) and t.dtype.name in ("f32", "f64"))
NEAREST = "nearest_even"
DIRECTED = ("positive_inf", "negative_inf", "zero")
FAST_ACCURACY = Accuracy(f32=2.0, note="that is for APPROX and FULL, every other rounding is exact")
F32 = Constraint("a tile of f32", lambda t: isinstance(t, TileType) and t.dtype.name == "f32")


class Rounded(Op):
    """Tiles of one type in, the same type out.

    Attributes:
        rounding: a value of `cutile.rounding`.
        ftz: whether subnormal f32 operands and results become zeros of their sign.
    """

    function: ClassVar[Callable[..., Any]]
    """NumPy's function, which rounds to nearest."""
    exact_name: ClassVar[str]
    """The name without rounding: of `elementwise.COMPARE`, and of the backends' functions."""
    exactly: ClassVar[tuple[str, ...]] = (NEAREST, *DIRECTED)
    """The roundings whose results are correct to the last bit."""
    fast: ClassVar[tuple[str, ...]] = ()
    """The roundings, of f32 alone, whose results lie within `accuracy`."""
    rounding: str = attribute(default=NEAREST)
    ftz: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        names = [name for name, field in self.fields.items() if field.kind == "operand"]
        result = require_same(self.name, **dict(zip(names, self.operands, strict=True)))
        if self.rounding not in (*self.exactly, *self.fast):
            raise KernelTypeError(
                f"{self.name.removeprefix('rounded_')}: there is no rounding {self.rounding!r}",
                remedy="APPROX is for division, square roots and tanh, FULL for division, of f32.",
            )
        if result.dtype.name != "f32" and (self.ftz or self.rounding in self.fast):
            what = "ftz" if self.ftz else f"rounding {self.rounding!r}"
            raise KernelTypeError(
                f"{self.name.removeprefix('rounded_')}: {what} is for f32, the tiles are {result.dtype}",
                remedy="Leave it out.",
            )
        return (result,)

    def reference(self, *operands: Any) -> Any:
        arguments = [elementwise.flush(operand) for operand in operands] if self.ftz else list(operands)
        with np.errstate(all="ignore"):
            near = np.asarray(type(self).function(*arguments))
            # The result to nearest is one of the two neighbours of the exact one. `directed` picks the other if needed.
            if self.rounding in DIRECTED:
                near = elementwise.directed(self.exact_name, self.rounding, near, *arguments)
        return elementwise.flush(near) if self.ftz else near


class RoundedBinary(Rounded):
    """Two tiles in."""

    x: Value = operand(F32_F64)
    y: Value = operand(F32_F64)


class RoundedAdd(RoundedBinary, name="rounded_add", spelled=("addf",)):
    """`x + y`, rounded as `rounding` says."""

    function = staticmethod(np.add)
    exact_name = "add"


class RoundedSub(RoundedBinary, name="rounded_sub", spelled=("subf",)):
    """`x - y`, rounded as `rounding` says."""

    function = staticmethod(np.subtract)
    exact_name = "sub"


class RoundedMul(RoundedBinary, name="rounded_mul", spelled=("mulf",)):
    """`x * y`, rounded as `rounding` says."""

    function = staticmethod(np.multiply)
    exact_name = "mul"


class RoundedDiv(RoundedBinary, name="rounded_div", spelled=("divf", "true_div"), accuracy=FAST_ACCURACY):
    """`x / y`, rounded as `rounding` says.

    "approx" keeps its bound for a divisor whose magnitude is between 2**-126 and 2**126. For any other divisor the
    quotient may be zero, or NaN for an infinite dividend. "full" keeps its bound everywhere.
    """

    function = staticmethod(np.divide)
    exact_name = "div"
    fast = ("approx", "full")


class RoundedFma(Rounded, name="rounded_fma", spelled=("fma",)):
    """`x * y + z` rounded once, as `rounding` says."""

    x: Value = operand(F32_F64)
    y: Value = operand(F32_F64)
    z: Value = operand(F32_F64)
    function = staticmethod(elementwise.fused)
    exact_name = "fma"


class RoundedSqrt(Rounded, name="rounded_sqrt", spelled=("sqrt",), accuracy=FAST_ACCURACY):
    """The square root, rounded as `rounding` says."""

    x: Value = operand(F32_F64)
    function = staticmethod(np.sqrt)
    exact_name = "sqrt"
    fast = ("approx",)


class RoundedTanh(
    Rounded,
    name="rounded_tanh",
    spelled=("tanh",),
    accuracy=Accuracy(f32=2.0, note="8192 ulp for APPROX on a GPU: 2**-11 of the result"),
):
    """The hyperbolic tangent, by one instruction of a GPU."""

    x: Value = operand(F32)
    function = staticmethod(np.tanh)
    exact_name = "tanh"
    exactly = ()
    fast = ("approx",)
