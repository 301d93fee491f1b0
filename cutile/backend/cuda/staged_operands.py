"""Products of a loop that read operands from stages, as they were copied.

Operations between such a load and its product need no instruction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from cutile.backend.cuda.smem_sizes import Stage, Swaps, stages, step_of, usual_swaps
from cutile.backend.cuda.target import Architecture
from cutile.backend.gpu.layout_assignment import vector_width
from cutile.backend.gpu.op_facts import rounds_to_tf32, source_of, thread_readers
from cutile.dtypes import f16, f64, tf32
from cutile.ir.core import Op, Value
from cutile.ops.cast import Convert
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadTile
from cutile.ops.shape import Permute, Reshape
from cutile.ops.view import LoadView

if TYPE_CHECKING:
    from cutile.backend.cuda.multistage_rules import Loop

Load = LoadTile | LoadView
COPY_BYTES = 16
"""Bytes of the widest copy (PTX ISA, `cp.async`), in which operands are copied."""


@dataclass(frozen=True)
class Side:
    """An operand of a product that reads its operands from stages.

    Attributes:
        value: the operand.
        stage: its layout in a stage.
        load: the load that fills the stage; None where the operand is written there from registers.
        axes: the load's axes that are the operand's two.
        passed: operations between the load and the product: transpositions, reshapes that drop axes of one element, a
            conversion from f32 to tf32.
        outside: whether it is written to the stage from registers once, ahead of the loop.
        place: of an operand that is written from registers, the bytes from the end of the loads' stages to its stage.
        copies: of an operand that is written from registers, the number of its stages.
    """

    value: Value
    stage: Stage
    load: Load | None = None
    axes: tuple[int, int] = (0, 1)
    passed: tuple[Op, ...] = ()
    outside: bool = False
    place: int = 0
    copies: int = 1

    @property
    def written(self) -> bool:
        """Whether it is written to the stage from registers in each iteration."""
        return self.load is None and not self.outside

    @property
    def rounds(self) -> bool:
        """Whether the operand is of f32, and rounded to tf32 as it is read."""
        return any(isinstance(op, Convert) for op in self.passed)


Sides = tuple[Side, Side]


@dataclass
class Products:
    """The products of a loop that read stages.

    Attributes:
        sides: the products, each with its two operands.
        users: the operations of the loop that read a value.
    """

    sides: dict[Mma, Sides]
    users: Mapping[Value, Sequence[Op]]

    @cached_property
    def passed(self) -> frozenset[Op]:
        """The operations between loads and these products whose results nobody else needs."""
        return frozenset(op for op in self._between if not self.is_read(op.results[0]))

    @cached_property
    def _between(self) -> set[Op]:
        return {op for side in self._loaded() for op in side.passed}

    @cached_property
    def _staged(self) -> dict[Op, set[Value]]:
        """The values that each product reads only from stages."""
        written = {op: {side.value for side in pair if side.load is None} for op, pair in self.sides.items()}
        return {op: {op.a, op.b} - written[op] - {op.acc} for op in self.sides}

    def _loaded(self) -> Iterator[Side]:
        return (side for pair in self.sides.values() for side in pair if side.load is not None)

    def side_of(self, load: Load) -> Side | None:
        """The operand that a load brings to a stage, or None."""
        return next((side for side in self._loaded() if side.load is load), None)

    def only(self, loads: Collection[Load]) -> Products:
        """The products that read one of these loads.

        Their other operands are written to stages from registers.
        """
        sides: dict[Mma, Sides] = {}
        for op, pair in self.sides.items():
            left, right = (
                side if side.load is None or side.load in loads else Side(side.value, side.stage) for side in pair
            )
            if left.load or right.load:
                sides[op] = (left, right)
        return Products(sides, self.users)

    def is_read(self, value: Value) -> bool:
        """Whether a value is needed in registers, and not in stages alone."""
        return bool(thread_readers(value, self.users, self._between, self._staged))


def products_of(loop: Loop, loads: Collection[Load]) -> Products:
    """The products of a loop that can read an operand as it was copied.

    Args:
        loop: the loop.
        loads: the loads that may be begun ahead.
    """
    inner, own = loop.inside.definitions, loop.op.body.arguments
    sides: dict[Mma, Sides] = {}
    layouts: dict[Load, tuple[Stage, tuple[int, int]]] = {}  # the first product that reads a load decides how it lies
    for op in loop.operations:
        if not isinstance(op, Mma) or len(op.acc.tile.shape) != 2 or op.a.tile.shape[1] % step_of(op.a.tile.dtype):
            continue
        dtype, usual = op.a.tile.dtype, usual_swaps(op.a.tile.dtype)
        operands = [_loaded_operand(value, inner, loads) for value in (op.a, op.b)]
        # Products of these dtypes read an operand whichever axis is contiguous, others only the usual one.
        either_axis = dtype.is_half or dtype in (f64, tf32)
        operands = [
            operand if operand and (either_axis or operand.swap == swap) else None
            for operand, swap in zip(operands, usual, strict=True)
        ]
        left, right = (operand.swap if operand else swap for operand, swap in zip(operands, usual, strict=True))
        accumulator, depth = loop.layouts.accumulator(op), op.a.tile.shape[1]
        both = stages(dtype, accumulator, depth, right=op.b.tile.dtype, swaps=(left, right))
        pair: list[Side] = []
        for value, operand, placed in zip((op.a, op.b), operands, both, strict=True):
            stage = replace(placed, offset=0)
            if operand and layouts.setdefault(operand.load, (stage, operand.axes)) == (stage, operand.axes):
                pair.append(Side(value, stage, operand.load, operand.axes, operand.passed))
            else:
                pair.append(Side(value, stage, outside=value not in inner and value not in own))
        if any(side.load for side in pair):
            sides[op] = (pair[0], pair[1])
    return Products(sides, loop.inside.users)


class _LoadedOperand(NamedTuple):
    """The load of an operand; see `Side`. With `swap` the operand lies transposed."""

    load: Load
    axes: tuple[int, int]
    passed: tuple[Op, ...]
    swap: bool


def _loaded_operand(value: Value, inner: Mapping[Value, Op], loads: Collection[Load]) -> _LoadedOperand | None:
    """The load of an operand, if it is copied 16 bytes at a time."""
    op, passed = source_of(value, inner, lambda op: isinstance(op, Permute | Reshape) or rounds_to_tf32(op))
    passed.reverse()
    if not isinstance(op, LoadTile | LoadView) or op not in loads:
        return None
    axes, tensor = _axes(op, passed), op.x.tensor
    width = vector_width(tensor, op.shape, op.steps if isinstance(op, LoadView) else None)
    if axes is None or width is None or width[0] not in axes or width[1] * tensor.dtype.bits != COPY_BYTES * 8:
        return None
    return _LoadedOperand(op, axes, tuple(passed), width[0] == axes[0])


def _axes(load: Load, passed: Iterable[Op]) -> tuple[int, int] | None:
    """The load's axes that are the operand's two.

    None where a reshape does more than drop axes of one element.
    """
    axes = list(range(len(load.shape)))
    for op in passed:
        if isinstance(op, Permute):
            axes = [axes[axis] for axis in op.axes]
        elif isinstance(op, Reshape):
            others = [axis for axis in axes if load.shape[axis] != 1]
            ones = [axis for axis in axes if load.shape[axis] == 1]
            extents = [extent for extent in op.shape if extent != 1]
            # An axis of one element has to be one of the load's: a new one is no axis of the stage.
            if [load.shape[axis] for axis in others] != extents or len(op.shape) - len(extents) > len(ones):
                return None
            axes = [(ones if extent == 1 else others).pop(0) for extent in op.shape]
    return (axes[0], axes[1]) if len(axes) == 2 else None


def is_crowded(product: Mma, swaps: Swaps, arch: Architecture) -> bool:
    """Whether large tiles of such products were seen to spill with two blocks an SM."""
    dtype = product.a.tile.dtype
    if product.acc.tile.dtype is f16:  # its sums are added up in f32
        return True
    if dtype is tf32:  # threads load an operand across K element by element
        return arch.major < 9 and swaps != (False, True)
    return dtype.kind == "storage"  # floats of 8 bits, which become f16 in registers
