"""Stages that threads read.

Tiles that more than products need, and small tiles beside the operands of a loop.

a = load(x, k)                 the product reads it in shared memory,
total += sum(a * a)            and threads read the same stage
s = load(scale, k)             threads alone read it; loaded ahead like the operands
acc = mma(a, b, acc)
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cutile.backend.cuda.mma_layouts import group_accumulator
from cutile.backend.cuda.pipeline.kernel import Kernel, Refused
from cutile.backend.cuda.pipeline.operand import Operand, loads_of, require_tma
from cutile.backend.cuda.pipeline.plan import Dot
from cutile.backend.cuda.smem_layout import SmemLayout
from cutile.backend.cuda.tensor_map import MAX_TMA_BOX
from cutile.backend.gpu.layout import Layout
from cutile.backend.gpu.op_facts import thread_readers
from cutile.ir.control import For, While
from cutile.ir.core import Block, Op, Value
from cutile.ops.memory import LoadTile
from cutile.ops.view import LoadView

COPY_LINE_BYTES = 128
"""What copies into shared memory begin at multiples of."""


@dataclass(frozen=True)
class Reads:
    """What threads read of the stages of buffers.

    Attributes:
        operands: by load.
        users: of each load, the operations that take what is read.
        kept: what happens to operands of products on their way, and is needed by threads too.
    """

    operands: Mapping[Op, Operand] = field(default_factory=dict[Op, Operand])
    users: Mapping[Op, tuple[Op, ...]] = field(default_factory=dict[Op, tuple[Op, ...]])
    kept: frozenset[Op] = frozenset()


def reads_of(kernel: Kernel, dots: Mapping[Op, Dot], roomy: Iterable[Block]) -> Reads:
    """What threads read; tiles for them alone in `roomy` blocks."""
    of_products = [operand for dot in dots.values() for operand in dot.operands]
    passed = {op for operand in of_products for op in operand.passed}
    takers: dict[Value, list[Op]] = {}
    for op in kernel.order:
        for value in op.operands:
            takers.setdefault(value, []).append(op)
    staged = {op: {dot.op.b, *(() if dot.left is None else (dot.op.a,))} for op, dot in dots.items()}
    operands: dict[Op, Operand] = {}
    users: dict[Op, tuple[Op, ...]] = {}
    for operand in of_products:
        if readers := thread_readers(operand.load.result, takers, passed, staged):
            operands[operand.load] = operand
            users[operand.load] = tuple(readers)
    for load in _beside(kernel, of_products, roomy):
        operands[load.load] = load
        users[load.load] = tuple(takers.get(load.load.result, ()))
    kept = frozenset(op for op in passed if thread_readers(op.results[0], takers, passed, staged))
    return Reads(operands, users, kept)


def _beside(kernel: Kernel, of_products: Iterable[Operand], roomy: Iterable[Block]) -> list[Operand]:
    """Loads of tiles for threads alone, in loops that load operands of products."""
    staged = loads_of(of_products)
    looped = {block for op in kernel.order if isinstance(op, For | While) for block in op.regions}
    operands: list[Operand] = []
    for block in roomy:
        if block in looped and staged.intersection(block.operations):
            loads = [op for op in block.operations if isinstance(op, LoadTile | LoadView) and op not in staged]
            operands += [operand for op in loads if (operand := _operand(op, kernel)) is not None]
    return operands


def _operand(load: LoadTile | LoadView, kernel: Kernel) -> Operand | None:
    """How TMA brings a tile for threads.

    None where it cannot, or where the tile is a number.
    """
    try:
        tensor, shape = require_tma(load, kernel, "a tile"), load.shape
    except Refused:
        return None
    assert tensor.unit_axis is not None
    width, size = shape[tensor.unit_axis], tensor.dtype.bits // 8
    length = math.prod(shape) // width
    fits = max(shape) <= MAX_TMA_BOX * 4 and length <= MAX_TMA_BOX and tensor.dtype.bits >= 8
    if not fits or not tensor.stable or (width * size) % 32 or any(extent & (extent - 1) for extent in shape):
        return None
    smem_layout = SmemLayout(width, length, size, k_major=True)
    if smem_layout.panel_bytes % COPY_LINE_BYTES:
        return None
    return Operand(load, smem_layout, tensor.unit_axis - (len(shape) - 2))


def anchors_of(kernel: Kernel, dots: Mapping[Op, Dot], reads: Reads, warpgroups: int) -> list[tuple[Op, Layout]]:
    """The layouts of left operands that threads read or compute.

    That of a product's sums, by which a row is in the registers of the threads that have its sums.
    """
    anchors: list[tuple[Op, Layout]] = []
    for dot in dots.values():
        op = kernel.definitions.get(dot.op.a)
        read = dot.left is None or dot.left.load in reads.operands
        if op is not None and read and len(op.results) == 1 and not op.regions:
            shape = op.results[0].tile.shape
            if len(shape) == 2 and shape[0] == dot.op.acc.tile.shape[0]:
                anchors.append((op, group_accumulator((shape[0], shape[1]), warpgroups)))
    return anchors
