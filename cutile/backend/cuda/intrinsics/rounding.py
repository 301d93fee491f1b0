"""Arithmetic with another rounding, and flushing to zero, by PTX instructions."""

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import elementwise
from cutile.backend.cuda.intrinsics.llvm import asm, float_type
from cutile.dtypes import DTypeLike, f64

MODES = {
    "nearest_even": "rn",
    "positive_inf": "rp",
    "negative_inf": "rm",
    "zero": "rz",
    "approx": "approx",
    "full": "full",
}
"""The suffix in PTX of each rounding, or of a fast form."""
OPERANDS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "sqrt": 1, "tanh": 1}
"""How many operands each operation takes."""


@cache
def rounded(name: str, mode: str, ftz: bool, dtype: DTypeLike, n: int) -> Any:
    """`f(x, ...)`: the operation `name` rounded by `mode`.

    `mode` is of `MODES`. `ftz` flushes subnormal numbers of f32 to zero.
    """
    count = OPERANDS[name]
    kind, letter = ("f64", "d") if dtype is f64 else ("f32", "f")
    instruction = f"{name}.{MODES[mode]}{'.ftz' * ftz}.{kind}"
    operands = ", ".join(f"${i}" for i in range(count + 1))
    constraints = ",".join([f"={letter}", *[letter] * count])

    def one(b: Any, *elements: Any) -> Any:
        # LLVM's arithmetic rounds to nearest even; PTX names the rounding (PTX ISA, "Rounding Modifiers"), or the fast
        # form (PTX ISA, "div", "sqrt", "tanh").
        return asm(b, float_type(dtype), elements, f"{instruction} {operands};", constraints)

    return elementwise(f"{name}_{MODES[mode]}", (dtype,) * count, dtype, n, one)
