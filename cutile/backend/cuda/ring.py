"""Which loops of products run ahead of their loads: operands through a ring in shared memory, past the registers.

    for k in 0..n:                                 stage a(0), b(0); commit; stage a(1), b(1); commit
        a, b = load_tile(x, i, k), load_tile(...)  for k in 0..n:
        acc = mma(a, b, acc)                  -->      wait; stage a(k + 2), b(k + 2); commit
                                                       acc = staged_mma(acc, k)
                                                   wait for all

A tile past the tensor's edge is all zeros and reads nothing, so what is staged after the last turn does no harm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from cutile.backend.cuda.hints import slots_wanted
from cutile.backend.cuda.layout import Layout
from cutile.backend.cuda.placement import vector_width
from cutile.backend.cuda.specialised.guards import is_scalar_work
from cutile.backend.cuda.staging import HALVES, Swaps, product_bytes, step_of, usual_swaps
from cutile.backend.cuda.target import Architecture
from cutile.dtypes import f16, f32, f64, tf32
from cutile.ir.constant import Constant
from cutile.ir.control import For
from cutile.ir.core import Op, Value
from cutile.ir.types import TensorType
from cutile.ops.cast import Convert
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadTile
from cutile.ops.shape import Permute

MOST_SLOTS = 4
RESERVED = 1024
"""Bytes of shared memory that the system keeps for each block."""


@dataclass(frozen=True)
class Ring:
    """A loop that is lowered with a ring.

    Attributes:
        product: the one product in it.
        left: the load of its left operand.
        right: the load of its right operand.
        slots: of the ring.
        slot_bytes: of one slot.
        blocks: blocks per multiprocessor that the shared memory is planned for.
        swaps: whether the operands lie transposed, as they do in memory.
        turned: whether the axes of a load are those of its operand exchanged.
        passed: what happens to the operands before they are multiplied, and needs no instruction of its own: exchanges
            of axes, and conversions of both from f32 to tf32.
        rounds: whether these are among them.
    """

    product: Mma
    left: LoadTile
    right: LoadTile
    slots: int
    slot_bytes: int
    blocks: int
    swaps: Swaps
    turned: tuple[bool, bool]
    passed: tuple[Op, ...]
    rounds: bool


def plan(
    loop: For,
    definitions: Mapping[Value, Op],
    uses: Counter[Value],
    accumulator: Layout | None,
    arch: Architecture,
    most_slots: int = MOST_SLOTS,
) -> Ring | None:
    """The ring for a loop, or None where it keeps to registers: the rules are in the order of the tests below."""
    products = [op for op in loop.body.operations if isinstance(op, Mma)]
    if accumulator is None or len(products) != 1 or accumulator.rank != 2:
        return None
    (product,) = products
    if not _is_number(definitions.get(loop.start), 0) or not _is_number(definitions.get(loop.step), 1):
        return None
    (left, over_left), (right, over_right) = (_passed(each, definitions, uses) for each in (product.a, product.b))
    rounds, other = (any(isinstance(each, Convert) for each in some) for some in (over_left, over_right))
    if rounds != other:
        return None
    turned = _turned(over_left), _turned(over_right)
    if not isinstance(left, LoadTile) or not isinstance(right, LoadTile) or left is right:
        return None
    inner = {value: op for op in loop.body.operations for value in op.results}
    for load in (left, right):
        if load not in loop.body.operations or uses[load.result] != 1:
            return None
        if not all(_recomputable(each, loop, inner) for each in load.index):
            return None
    swaps = _swaps(product, left, right, turned)
    dtype, depth = product.a.tile.dtype, product.a.tile.shape[1]
    if swaps is None or depth % step_of(dtype):
        return None
    size = product_bytes(dtype, accumulator, depth, swaps)
    words = accumulator.registers * product.acc.tile.dtype.bits // 32
    most = slots_wanted(left, right, most_slots)
    for blocks in (2, 1) if words <= 64 and not _crowded(product, swaps, arch) else (1,):
        slots = min(most, (arch.shared_bytes // blocks - blocks * RESERVED) // size)
        if slots >= 2:
            return Ring(product, left, right, slots, size, blocks, swaps, turned, (*over_left, *over_right), rounds)
    return None


def index_work(value: Value, inner: Mapping[Value, Op]) -> list[Op]:
    """The operations of a loop from which an index is computed, each behind those that it reads."""
    work: list[Op] = []

    def visit(value: Value) -> None:
        op = inner.get(value)
        if op is not None and op not in work:
            for operand in op.operands:
                visit(operand)
            work.append(op)

    visit(value)
    return work


def _recomputable(value: Value, loop: For, inner: Mapping[Value, Op]) -> bool:
    """Whether an index can be computed for another iteration: from numbers that the loop does not carry."""
    work = index_work(value, inner)
    read = {value, *(operand for op in work for operand in op.operands)}
    return all(map(is_scalar_work, work)) and not read.intersection(loop.body.arguments[1:])


def _crowded(product: Mma, swaps: Swaps, arch: Architecture) -> bool:
    """Whether a product takes so many registers that two blocks of large tiles spill: as the compiler was seen to."""
    dtype = product.a.tile.dtype
    if product.acc.tile.dtype is f16:  # sums that are f32 while they grow
        return True
    if dtype is tf32:  # each thread loads its own elements of what does not lie along K
        return arch.major < 9 and swaps != (False, True)
    return dtype.kind == "storage"  # floats of 8 bits, which become f16 in registers


def _is_number(op: Op | None, value: int) -> bool:
    return isinstance(op, Constant) and op.value == value


def _passed(value: Value, definitions: Mapping[Value, Op], uses: Counter[Value]) -> tuple[Op | None, list[Op]]:
    """What makes an operand, and what it passes through: exchanges of axes and a conversion from f32 to tf32, if each
    has no other use."""
    passed: list[Op] = []
    op = definitions.get(value)
    while uses[value] == 1 and (isinstance(op, Permute) or _rounds(op)):
        passed.append(op)
        (value,) = op.operands
        op = definitions.get(value)
    return op, passed


def _rounds(op: Op | None) -> TypeGuard[Convert]:
    return isinstance(op, Convert) and op.rounding is None and (op.x.tile.dtype, op.dtype) == (f32, tf32)


def _turned(passed: Sequence[Op]) -> bool:
    return sum(isinstance(each, Permute) for each in passed) % 2 == 1


def _swaps(product: Mma, left: LoadTile, right: LoadTile, turned: tuple[bool, bool]) -> Swaps | None:
    """How the operands lie if they are copied as they are; None where a product cannot take one so."""
    axes = _copied_axis(left), _copied_axis(right)
    if axes[0] is None or axes[1] is None:
        return None
    swaps = (axes[0] == 0) != turned[0], (axes[1] == 0) != turned[1]
    dtype = product.a.tile.dtype
    if dtype in HALVES or dtype in (f64, tf32):
        return swaps
    return swaps if swaps == usual_swaps(dtype) else None


def _copied_axis(load: LoadTile) -> int | None:
    """The axis along which a tile can be copied in whole 16 bytes: read-only, contiguous and aligned; None for none."""
    tensor = load.x.type
    if not isinstance(tensor, TensorType) or tensor.unit_axis is None:
        return None
    axis = tensor.unit_axis
    return axis if vector_width(tensor, load.shape) == (axis, 16 * 8 // tensor.dtype.bits) else None
