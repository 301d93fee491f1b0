"""Pieces of a tile block's turns whose thread blocks are one cluster: their sums meet in its shared memory.

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
from cutile.backend.cuda.ops import AddNearby
from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.specialised.epilogue import in_parts
from cutile.backend.cuda.specialised.split import MOST_NEARBY, cluster_bytes, parts_of, registers_of
from cutile.ir.control import For
from cutile.ir.core import Block, Function

MOST_BYTES = 96 * 1024
"""What a thread block may be sent: it takes room from the ring."""


def parts_nearby(kernel: Kernel, loop: For, sums: Layout, pieces: int) -> int:
    """Into how many parts a cluster of so many pieces cuts the columns of a tile; 0 where pieces are no cluster.

    Args:
        kernel, loop: the kernel and its main loop.
        sums: the layout of what they add up to.
        pieces: of its turns.
    """
    if not 2 <= pieces <= MOST_NEARBY:
        return 0
    columns, least = sums.shape[1], sums.core[1]
    count = parts_of(columns, least, pieces)
    lies = columns % (least * count) == 0 and registers_of(sums, count) is not None
    if not lies or loop_beside(kernel.function, loop, count) is None:
        count = 1
    return count if cluster_bytes(sums, count, pieces) <= MOST_BYTES else 0


def loop_beside(function: Function, loop: For, parts: int) -> For | None:
    """A loop over the parts of what follows the loop of products, where that can be cut so, and is."""
    return in_parts(function, loop, parts) if parts > 1 else None


def beside(function: Function, loop: For) -> Function:
    """The function with such a loop at its end."""
    body = Block(function.parameters, [*function.body.operations, loop])
    return Function(function.name, body, function.source, function.file, function.stage, dict(function.facts))


def loop_of_parts(function: Function) -> For | None:
    """The loop that `beside` put there."""
    last = function.body.operations[-1]
    if isinstance(last, For) and any(isinstance(op, AddNearby) for op in last.body.operations):
        return last
    return None
