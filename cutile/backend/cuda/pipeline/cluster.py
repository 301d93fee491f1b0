"""Which thread blocks share what they load.

Those of a cluster, which are neighbours in the grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cutile.backend.cuda.op_facts import work_of
from cutile.backend.cuda.pipeline.kernel import require
from cutile.backend.cuda.pipeline.operand import Operand
from cutile.backend.interface import CompileOptions
from cutile.ir.core import Op, Value
from cutile.ops.grid import TileBlockId

CLUSTERS = (1, 2, 4, 8)
"""Blocks that a cluster may have, where all kinds of device of an architecture are to take it."""


def block_axes(values: Sequence[Value], definitions: Mapping[Value, Op]) -> frozenset[int]:
    """The axes of the grid along which these numbers differ from block to block."""
    return frozenset(op.axis for op in work_of(values, definitions) if isinstance(op, TileBlockId))


def cluster_of(
    left: Operand,
    right: Operand,
    axes: Mapping[Operand, frozenset[int]],
    options: CompileOptions,
    swap_ab: bool,
    few: bool,
) -> tuple[int, int, Operand, Operand]:
    """A cluster's blocks, the axis of their neighbourhood, and the shared operand.

    The larger operand is shared, or the one of few rows, since then no other block needs the same columns.

    Where nothing is asked for, blocks share nothing: on an H200 it made no difference that could be told from noise at
    4096 to 16384 cubed, and cost 2 % at 2048. Blocks that are neighbours along the rows of the grid need the same right
    operand, in the same order, unless which tiles those are depends on the row too: as where every row has a matrix of
    its own.

    Args:
        left, right: the operands.
        axes: of the grid, along which an operand's tiles, or their number, differ.
        options: what is asked for.
        swapped: whether `left` is what the kernel calls the right operand.
        few: whether the tile has fewer rows than an instruction.

    Raises:
        Refused: no cluster has so many blocks.
    """
    right_is_larger = few or right.panels.nbytes > left.panels.nbytes
    larger, along = (right, int(swap_ab)) if right_is_larger else (left, int(not swap_ab))
    blocks = options.num_cta_in_cga or 1
    require(blocks in CLUSTERS, f"{blocks} blocks to a cluster are asked for; 1, 2, 4 or 8 share operands")
    if blocks == 1 or larger.panels.split(blocks) is None or along in axes[larger]:
        return 1, 0, left, right
    shared = replace(larger, shared=blocks)
    return (blocks, along, left, shared) if right_is_larger else (blocks, along, shared, right)
