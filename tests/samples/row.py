"""What a row is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cutile.dtypes import DTypeLike, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64

FLOATS = (f16, bf16, f32, f64)
INTS = (i8, i16, i32, i64, u8, u16, u32, u64)
NUMBERS = FLOATS + INTS
ANY = (*NUMBERS, bool_)


@dataclass(frozen=True)
class Row:
    """An expression in the tiles `x`, `y` (and `z`), and the same in NumPy.

    Attributes:
        op: the operation that the row is about.
        expression: over `x`, `y`, `z`: tiles of `shape`. Its value is stored.
        numpy: the same over arrays; computed in the dtype, or wider.
        dtypes: of the inputs.
        shape: of the inputs.
        result, result_shape: the result's dtype and shape, where they are not the inputs'.
        ulps: allowed error, in units of the last place of the result's dtype.
        domain: "any" draws special values too, "positive" and "small" do not.
    """

    op: str
    expression: str
    numpy: Callable[[Any, Any], Any]
    dtypes: tuple[DTypeLike, ...] = NUMBERS
    shape: tuple[int, ...] = (24,)
    result: DTypeLike | None = None
    result_shape: tuple[int, ...] | None = None
    ulps: float = 0.0
    domain: str = "any"

    def __str__(self) -> str:
        return f"{self.op}: {self.expression}"
