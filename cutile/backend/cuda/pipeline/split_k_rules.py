"""Products whose tile blocks are too few to fill a GPU.

The turns of each are divided among several thread blocks.

    for unit in first..tiles * pieces by step:
        tile, piece = unit // pieces, unit % pieces
        acc = zeros; for k in the piece's share of the loop: acc = mma(...)
        acc, mine = add_up(acc, tile, piece, pieces)
        if mine: ... the rest of the kernel

How many pieces there are is found at the launch, by the kernel itself, from the number of tile blocks, of thread blocks
and of turns: a kernel that is asked to (`CompileOptions(num_pieces=16)`) serves small and large products, and where
tile blocks are enough there is one piece, and nothing to add up. Kernels that are not asked pay nothing: on an H200,
asking took 0.2 of the 3.5 us of a product of 512 cubed. Of these it is the launches with few tile blocks that take a
kernel which is asked: see `split_k_launches.py`.

Where up to eight pieces are asked for, their thread blocks are a cluster, and read each other's sums, which meet in its
shared memory (below).
Of more, each thread block writes its sums to a workspace and counts itself; the one that comes last adds all of them,
in the order of the pieces whoever it is, so that results do not depend on timing. Nobody waits for anybody, so that it
does not matter which thread blocks run at one time.

Where the pieces' thread blocks are one cluster:

    acc = zeros; for k in the piece's share of the loop: acc = mma(...)
    if pieces > 1:
        deal_out(acc)                               to each thread block the columns that it adds up; wait for mine
        for part in piece..parts by pieces:
            sums = add_nearby(part)                 of all pieces, in their order
            z[i, j * parts + part] = convert(sums)
    else:
        z[i, j] = convert(acc)

Each thread block adds up some columns, and does for these what follows the loop of products. A register of a thread is
the same element of the tile in all of them, so threads send what they hold as it is, straight from their registers
(`st.async`), and read what they will hold. What arrives is counted in bytes by a barrier of the receiver: there is no
meeting of all and no fence, and no memory but the result's is written. A cluster is as large as there may be pieces, so
that a launch has all of them or none: it has them where it has just as many thread blocks as there are pieces in all,
each of which does one.

What does not work column by column is done whole, by the thread block of the first piece: it is sent everything.
"""

from __future__ import annotations

from cutile.backend.cuda.layout import Layout
from cutile.backend.cuda.ops import ReducePartials
from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.pipeline.split_k_sums import cluster_bytes, parts_of, registers_of
from cutile.backend.cuda.pipeline.subtiles import epilogue_of_part
from cutile.ir.constant import Constant
from cutile.ir.control import For
from cutile.ir.core import Block, Function, Op

MAX_PIECES = 16
"""Of a tile block: the last thread block reads the sums of all."""
MAX_CLUSTER_PIECES = 8
"""Pieces up to which their thread blocks are a cluster, which every kind of device takes."""
MAX_SUMS_BESIDE_MORE = 64
"""Sums of a thread up to which it adds those of other pieces where it holds more than sums."""
MIN_WORKSPACE_ITERATIONS = 16
"""Of a piece: what writing and adding up sums costs, in turns that would take longer."""
MIN_CLUSTER_ITERATIONS = 3
"""The same where thread blocks are a cluster, which adds up sooner: of fewer, most is the first turn's way there."""
MAX_CLUSTER_SUMS_BYTES = 96 * 1024
"""What a thread block may be sent: it takes room from the ring."""


def why_undivided(initial: Op | None, moving_bounds: bool, cluster: int, groups: int) -> str:
    """Why a product cannot be divided; empty where it can.

    Args:
        initial: what makes the sums' first value.
        moving_bounds: whether the loop's bounds differ from tile block to tile block.
        cluster: thread blocks that load together.
        groups: warp groups that multiply.
    """
    if groups & (groups - 1):
        return f"{groups} warp groups share the sums"
    if not isinstance(initial, Constant) or initial.value != 0:
        return "the sums do not begin as zeros"
    if moving_bounds:
        return "the loop's bounds differ from tile block to tile block"
    if cluster > 1:
        return "the thread blocks of a cluster load together"
    return ""


def why_no_registers(kernel: Kernel, loop: For, sums: Layout, a_from_registers: bool) -> str:
    """Why a thread has no registers to add up the sums of other pieces.

    Empty where it has.

    Args:
        kernel: whose sums they are.
        loop: of products.
        sums: their layout.
        a_from_registers: whether threads hold an operand beside them.
    """
    more = kernel.computes_behind(loop)
    if sums.registers <= MAX_SUMS_BESIDE_MORE or not (more or a_from_registers):
        return ""
    more_held = "an operand" if a_from_registers else "what follows the loop"
    return f"a thread holds {sums.registers} sums, and has registers for {MAX_SUMS_BESIDE_MORE} beside {more_held}"


def cluster_parts(kernel: Kernel, loop: For, sums: Layout, pieces: int) -> int:
    """Into how many parts a cluster of so many pieces cuts the columns of a tile.

    0 where pieces are no cluster.

    Args:
        kernel, loop: the kernel and its main loop.
        sums: the layout of what they add up to.
        pieces: of its turns.
    """
    if not 2 <= pieces <= MAX_CLUSTER_PIECES:
        return 0
    columns, least = sums.shape[1], sums.core[1]
    count = parts_of(columns, least, pieces)
    lies = columns % (least * count) == 0 and registers_of(sums, count) is not None
    if not lies or parts_loop(kernel.function, loop, count) is None:
        count = 1
    return count if cluster_bytes(sums, count, pieces) <= MAX_CLUSTER_SUMS_BYTES else 0


def parts_loop(function: Function, loop: For, parts: int) -> For | None:
    """A loop over the subtiles of the epilogue, if it can be and is cut so."""
    return epilogue_of_part(function, loop, parts) if parts > 1 else None


def with_parts_loop(function: Function, loop: For) -> Function:
    """The function with such a loop at its end."""
    body = Block(function.parameters, [*function.body.operations, loop])
    return Function(function.name, body, function.source, function.file, function.stage, dict(function.facts))


def find_parts_loop(function: Function) -> For | None:
    """The loop that `with_parts_loop` put there."""
    last = function.body.operations[-1]
    if isinstance(last, For) and any(isinstance(op, ReducePartials) for op in last.body.operations):
        return last
    return None
