"""Stages that threads read.

They hold operands that threads need as well, and small tiles beside the operands of a loop.

    a = load(x, k)                 the product reads it in shared memory,
    total += sum(a * a)            and threads read the same stage
    s = load(scale, k)             only threads read it: it arrives with the operands of
    acc += mma(a, b, 0) * s        the product whose sums it is combined with
    t = load(offset, k)            an operand is computed from it: it arrives ahead of that product
    sums = mma(c + t, b, sums)
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cutile.backend.cuda.mma_layouts import group_accumulator
from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.pipeline.operand import Operand, loads_of, require_tma
from cutile.backend.cuda.pipeline.plan import Dot
from cutile.backend.cuda.smem_layout import SmemLayout
from cutile.backend.cuda.target import Refused
from cutile.backend.cuda.tensor_map import MAX_TMA_BOX
from cutile.backend.gpu.layout import Layout, round_up
from cutile.backend.gpu.op_facts import reads, thread_readers, work_of
from cutile.ir import Block, For, Op, Value, While
from cutile.ops.memory import LoadTile
from cutile.ops.view import LoadView

COPY_LINE_BYTES = 128
"""Alignment of a TMA copy's bytes in shared memory (PTX ISA, "cp.async.bulk.tensor")."""
NUMBER_BYTES = 32
"""Bytes that are loaded for a single number: a sector, the least that memory moves."""


@dataclass(frozen=True)
class Reads:
    """The stages that threads read.

    Attributes:
        operands: the loads, each with its layout in shared memory.
        users: by load, the operations that take the tile from registers.
        kept: operations between a load and a product whose results threads read too.
    """

    operands: Mapping[Op, Operand] = field(default_factory=dict[Op, Operand])
    users: Mapping[Op, Sequence[Op]] = field(default_factory=dict[Op, Sequence[Op]])
    kept: frozenset[Op] = frozenset()


def reads_of(kernel: Kernel, dots: Mapping[Op, Dot], roomy: Iterable[Block]) -> Reads:
    """The stages that threads read.

    Tiles for threads alone are among them only in `roomy` blocks, whose registers hold them.
    """
    of_products = [operand for dot in dots.values() for operand in dot.operands]
    passed = {op for operand in of_products for op in operand.passed}
    staged = {op: {dot.op.b, *(() if dot.left is None else (dot.op.a,))} for op, dot in dots.items()}

    def readers(value: Value) -> Sequence[Op]:
        return thread_readers(value, kernel.users, passed, staged)

    operands: dict[Op, Operand] = {of.load: of for of in of_products if readers(of.load.result)}
    loaded = loads_of(of_products)
    looped = {block for op in kernel.order if isinstance(op, For | While) for block in op.regions}
    for block in (block for block in roomy if block in looped and not loaded.isdisjoint(block.operations)):
        alone = [op for op in block.operations if isinstance(op, LoadTile | LoadView) and op not in loaded]
        operands |= {op: of for op in alone if (of := _operand(op, kernel, _product_beside(op, block, kernel, dots)))}
    users = {load: readers(load.results[0]) for load in operands}
    return Reads(operands, users, frozenset(op for op in passed if readers(op.results[0])))


def _product_beside(load: Op, block: Block, kernel: Kernel, dots: Mapping[Op, Dot]) -> Op | None:
    """The product of a block with whose sums threads combine a tile.

    None where anything else needs the tile: a product, a load, an assertion, the next iteration. None also where the
    block has loops or branches, whose loads might stand between those of the product and this one.
    """
    definitions = {value: op for op in block.operations for value in op.results}
    derived, product = set(load.results), None
    for op in (op for op in block.operations if op.regions or not derived.isdisjoint(reads(op))):
        if op in dots or op in kernel.guards or op.regions or op.terminates or isinstance(op, LoadTile | LoadView):
            return None
        # The search ends at operations that depend on sums, too: their results are more than the loaded tile's values.
        products = sorted(work_of(op.operands, definitions).intersection(dots), key=kernel.order.__getitem__)
        product = product or (products[-1] if products else None)
        derived.update(() if products else op.results)
    return product


def _operand(load: LoadTile | LoadView, kernel: Kernel, product: Op | None) -> Operand | None:
    """A tile that TMA loads for threads alone; None where TMA cannot load it.

    TMA loads a single number only if it is combined with the sums of a `product`. The number's neighbours come with it.
    """
    try:
        tensor, shape = require_tma(load, kernel, "a tile"), load.shape
    except Refused:
        return None
    assert tensor.unit_axis is not None
    size, count = tensor.dtype.bits // 8, math.prod(shape)
    number = count == 1 and product is not None and isinstance(load, LoadTile)
    width, length = NUMBER_BYTES // size if number else shape[tensor.unit_axis], count // shape[tensor.unit_axis]
    smem_layout = SmemLayout(width, length, size, k_major=True)
    fits = max(shape) <= MAX_TMA_BOX * 4 and length <= MAX_TMA_BOX and tensor.dtype.bits >= 8
    whole = (width * size) % 32 == 0 and (smem_layout.count == 1 or smem_layout.panel_bytes % COPY_LINE_BYTES == 0)
    # Layouts count in powers of two: a thread's places past the tile's edge are read with the rest.
    if not (fits and whole and tensor.stable) or size * math.prod(map(round_up, shape)) > smem_layout.place_bytes:
        return None
    return Operand(load, smem_layout, tensor.unit_axis - (len(shape) - 2), beside=product)


def anchors_of(kernel: Kernel, dots: Mapping[Op, Dot], reads: Reads, warpgroups: int) -> list[tuple[Op, Layout]]:
    """The layouts of left operands that threads read or compute.

    They are accumulators' layouts: the same threads then have a row of the operand and the row of its sums.
    """
    anchors: list[tuple[Op, Layout]] = []
    for dot in dots.values():
        op = kernel.definitions.get(dot.op.a)
        read = dot.left is None or dot.left.load in reads.operands
        shape = (dot.op.acc.tile.shape[0], dot.op.a.tile.shape[-1])
        if op is not None and read and len(op.results) == 1 and not op.regions and dot.op.a.tile.shape == shape:
            anchors.append((op, group_accumulator(shape, warpgroups, dot.neighbours)))
    return anchors
