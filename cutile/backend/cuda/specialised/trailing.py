"""A tile's result that is written while the products of the next one run.

    for tile in first..all by step:                    result = nothing
        acc = products of the tile               -->   for tile in first..all by step:
        store(convert(acc))                                for turn: begin its product; store a piece of result
                                                           if this tile is the last: store(convert(acc))
                                                           else: result = packed(convert(acc))

Rounded to 16 bits, a result takes half the registers that its sums took. So it waits there: the next tile's products
begin as soon as the sums are rounded, and one piece after the other goes through shared memory to the copy engine,
each under one of the first products, which the tensor cores need nobody for. Ahead of a loop with too few turns all of
it is written, and the last tile's result at once.
"""

from __future__ import annotations

from cutile.ir.control import For
from cutile.ir.core import Function
from cutile.ops.cast import Convert
from cutile.ops.memory import StoreMut

FIRST = 1
"""The turn under whose product the first piece is written: with another before it under way, a group that is late with
the next leaves the tensor cores no gap."""
GROUPS = 2
"""Warp groups that share a tile: one has small tiles, of which a thread block has one; three have no registers left."""
MOST_PIECES = 4
"""Of a result: each is some hundred instructions under a product."""
MOST_SUMS = 128
"""Of a thread: with half as many words of the result before they leave 32 of its registers to the rest."""


def may_trail(function: Function, loop: For, store: StoreMut, sums: int, pieces: int) -> bool:
    """Whether a result can wait in registers: nothing but conversions and its store follow the loop of products.

    Args:
        function, loop, store: the kernel, its loop of products, the store that the copy engine does.
        sums: of a thread.
        pieces: in which the result goes through shared memory.
    """
    operations = function.body.operations
    after = operations[operations.index(loop) + 1 :]
    plain = all(op is store or (isinstance(op, Convert) and op.result.tile == store.value.tile) for op in after)
    return plain and sums <= MOST_SUMS and pieces <= MOST_PIECES
