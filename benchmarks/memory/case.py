# pyright: basic, reportAttributeAccessIssue=false, reportArgumentType=false
# (torch ships no types that it needs)
"""A case of `benchmarks.memory`: operands, launches, expected results, and torch's call for the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cuda_async import DeviceOp
from cutile import DType, Tensor, bf16

Kind = type[DType]
Ops = Callable[[Sequence[Tensor], Sequence[Tensor]], Iterable[DeviceOp[Any]]]
"""The operations; each is made when the one before it has run, because it may read that one's result."""
Exact = Callable[..., Any]
"""The results in float64, or in int64: from a namespace (torch or NumPy) and the inputs in those types.

One of them, or a tuple of one for each output.
"""

MANY = 1 << 27
"""Elements of a matrix whose number of rows is not given."""


@dataclass(frozen=True)
class Array:
    """An operand.

    Attributes:
        shape, dtype: of the whole.
        drawn: floats are standard normal; "positive" ones lie between 1 and 2; integers below `below`.
        stride: elements from row to row, where it is more than a row has.
    """

    shape: tuple[int, ...]
    dtype: Kind = bf16
    drawn: Literal["normal", "positive"] = "normal"
    below: int = 0
    stride: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.bits // 8


@dataclass(frozen=True)
class Case:
    """One line of the table.

    Attributes:
        name: what is computed, and of what size.
        outs, ins: the operands. Outputs are poisoned, but for those that are added to, which are zeros.
        ops: the launches, in order, given outputs (with `scratch` behind them) and inputs.
        exact: what is right.
        torch: torch's call, given torch and the inputs; None where no graph takes it.
        goal: what is to be reached, of a copy or of reading.
        reads: compared with reading.
        scratch: operands between launches; not counted as bytes.
        moved: bytes, where they are not those of all operands.
        adds: outputs are added to.
        many: launches in a graph, one after the other.
        error: what is allowed of the norm; one for each output, or one for all.
    """

    name: str
    outs: tuple[Array, ...]
    ins: tuple[Array, ...]
    ops: Ops
    exact: Exact
    torch: Callable[..., Any] | None
    goal: float
    reads: bool = False
    scratch: tuple[Array, ...] = ()
    moved: int = 0
    adds: bool = False
    many: int = 1
    error: float | tuple[float, ...] = 4e-3

    @property
    def errors(self) -> tuple[float, ...]:
        """The allowed error of each output."""
        return self.error if isinstance(self.error, tuple) else (self.error,) * len(self.outs)

    @property
    def nbytes(self) -> int:
        """Bytes that have to be read and written once."""
        return self.moved or sum(each.nbytes for each in (*self.outs, *self.ins))


def times(rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns; by default as many rows as give `MANY` elements."""
    return rows or MANY // columns, columns


def suffix(rows: int, tile: int = 0) -> str:
    """The part of a case's name for a given number of rows, and for tiles that are wider than the rows."""
    return (f", {rows} rows" if rows else "") + (f" in tiles of {tile}" if tile else "")
