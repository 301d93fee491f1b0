"""What an emitter works with.

The printer it asks for operands, and an expression with its precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from cutile.conversion import NEAREST_EVEN, NEGATIVE_INF, POSITIVE_INF, ZERO
from cutile.dtypes import STORAGE_DTYPES, DTypeLike
from cutile.ir.core import Block, Op, Value

ATOM, UNARY, PRODUCT, SUM, SHIFT, AND, XOR, OR, COMPARE, NOT, CHOICE = range(11)
"""How tightly an expression binds, tightest first."""


EVERY_INTRINSIC = frozenset((
    "absolute", "add_downward", "add_to_zero", "add_upward", "address_of", "atan2", "atomic_add", "atomic_addf",
    "atomic_addf_bf16", "atomic_addf_f16", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or",
    "atomic_umax", "atomic_umin", "atomic_xchg", "atomic_xor", "bf16_bits", "bf16_round", "bf16_value", "bool_",
    "ceil", "choose", "cos", "cosh", "div_ceil", "div_ceil_unsigned", "div_downward", "div_to_zero",
    "div_trunc", "div_upward", "elements_at", "exp", "exp2", "f16_bits", "f16_round", "f16_value", "f32", "f64",
    "floor", "floor_div", "floor_div_float", "floor_div_unsigned", "flush", "fma", "fma_downward", "fma_odd",
    "fma_to_zero", "fma_upward", "gemm", "i16", "i32", "i64", "i8", "inf", "larger", "load_at",
    "load_at_acquire", "log", "log2", "maximum", "maximum_or_nan", "maximum_unsigned", "minimum",
    "minimum_or_nan", "minimum_unsigned", "mod", "mod_float", "mod_unsigned", "mul_downward", "mul_hi",
    "mul_hi_unsigned", "mul_to_zero", "mul_upward", "nan", "notify", "power", "product_step", "remainder",
    "rsqrt", "shift_left", "shift_right", "shift_right_unsigned", "sin", "sinh", "smaller", "sqrt",
    "sqrt_downward", "sqrt_to_zero", "sqrt_upward", "store_at", "store_at_release", "sub_downward",
    "sub_to_zero", "sub_upward", "sum_step", "tan", "tanh", "to_odd", "trip_count",
    "trip_count_unsigned", "u16", "u32", "u64", "u8",
))  # fmt: skip
"""The names that generated code may import: what `intrinsics/__init__.py` lists, without importing Numba to know it."""

DIRECTIONS = {NEAREST_EVEN: "", POSITIVE_INF: "_upward", NEGATIVE_INF: "_downward", ZERO: "_to_zero"}
"""How the names of conversions end, by their rounding."""


def _conversions() -> Iterator[str]:
    for dtype in STORAGE_DTYPES:
        if dtype.format is not None:
            yield f"{dtype.name}_value"
            yield from (f"{dtype.name}_bits{suffix}" for suffix in DIRECTIONS.values())
    for suffix in filter(None, DIRECTIONS.values()):
        yield from (f"f16_round{suffix}", f"bf16_round{suffix}")
        yield from (f"f32{suffix}", f"f64{suffix}", f"f64{suffix}_unsigned")
    for bits in (8, 16, 32, 64):
        yield from (f"saturated_i{bits}", f"saturated_u{bits}", f"as_i{bits}", f"as_u{bits}")
    yield from ("as_f32", "as_f64", "nearest", "truncated", "whole_to_odd", "whole_to_odd_unsigned")


EVERY_CONVERSION = frozenset(_conversions())
"""The conversions that generated code may import: the keys of `CONVERSIONS` in `intrinsics/cast.py`."""


@dataclass(frozen=True)
class Text:
    """An expression."""

    text: str
    binds: int = ATOM

    def within(self, binds: int) -> str:
        """The text, in parentheses where it binds more loosely than `binds`."""
        return self.text if self.binds <= binds else f"({self.text})"


class Printer(Protocol):
    """What `module.py` offers to the emitters of the families."""

    def operand(self, value: Value) -> Text:
        """The expression of an operand: its name, or in place what computes it."""
        ...

    def name(self, value: Value) -> str:
        """The variable of a value."""
        ...

    @property
    def count(self) -> int:
        """How many lines there are."""
        ...

    def constant(self, value: Value) -> float | None:
        """The number, where a value is a constant."""
        ...

    def alias(self, value: Value, name: str) -> None:
        """Let a value be a variable that there is already."""
        ...

    def known(self, name: str) -> str:
        """The variable of one of the kernel's own plain parameters."""
        ...

    def use(self, *names: str) -> str:
        """Note that the file needs these intrinsics; returns the first name."""
        ...

    def line(self, text: str, op: Op | None = None) -> None:
        """Write a statement."""
        ...

    def indented(self) -> Any:
        """A `with` block one level deeper."""
        ...

    def block(self, block: Block) -> None:
        """Write the operations of a nested block, without its terminator."""
        ...

    def parameter(self, name: str, kind: str) -> str:
        """A parameter beside the kernel's own, such as the address of a BLAS function."""
        ...

    def site(self, kind: str, facts: Any) -> int:
        """The number of a print or an assertion among the file's, whose facts go with it."""
        ...


Expression = Callable[[Printer, Any], Text]
"""Writes an operation with one result as an expression."""

Statement = Callable[[Printer, Any], None]
"""Writes an operation as statements."""


def call(printer: Printer, function: str, *arguments: Text | str) -> Text:
    """A call of an intrinsic."""
    texts = [argument if isinstance(argument, str) else argument.text for argument in arguments]
    return Text(f"{printer.use(function)}({', '.join(texts)})")


def is_small_float(dtype: DTypeLike) -> bool:
    """Whether values of the dtype are held as f32."""
    return dtype.kind == "float" and dtype.bits == 16


def held(dtype: DTypeLike) -> str:
    """The machine type of a value.

    Small floats are f32, and floats that are only stored are their bits.
    """
    if dtype.kind == "storage":
        return f"u{dtype.bits}"
    return "f32" if is_small_float(dtype) else "u8" if dtype.kind == "bool" else dtype.name


def in_memory(dtype: DTypeLike) -> str:
    """The machine type of an element of a tensor."""
    return f"u{dtype.bits}" if is_small_float(dtype) else held(dtype)


def rounded(printer: Printer, text: Text, dtype: DTypeLike) -> Text:
    """A freshly computed value brought back to its dtype.

    16-bit floats are rounded, small integers wrap.
    """
    if is_small_float(dtype):
        return call(printer, f"{dtype.name}_round", text)
    if dtype.kind in ("int", "uint") and dtype.bits < 64:
        return call(printer, dtype.name, text)
    return text


def narrowed(printer: Printer, text: Text, dtype: DTypeLike) -> Text:
    """An f64 as a 16-bit float.

    F16 rounded once, as NumPy does it; bf16 by way of f32, as ml_dtypes does.
    """
    return rounded(printer, call(printer, "to_odd" if dtype.name == "f16" else "f32", text), dtype)


def infix(left: Text, operator: str, right: Text, binds: int) -> Text:
    """A binary operator that groups to the left."""
    return Text(f"{left.within(binds)} {operator} {right.within(binds - 1)}", binds)
