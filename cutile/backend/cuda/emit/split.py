"""Turns that are divided among thread blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.common.abi import WORKSPACE
from cutile.backend.cuda.emit.keywords import numbers
from cutile.backend.cuda.emit.text import Call
from cutile.backend.cuda.ops.split import AddUp, Pieces, Share

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def pieces(op: Pieces, kernel: Kernel) -> Call:
    """`pieces_of(tiles, start, stop, step)`."""
    whole = ["whole=True"] if op.whole else []
    made = kernel.bind("pieces_of", "split.pieces", *numbers(op, "most", "least"), *whole)
    return Call(made, tuple(map(kernel.use, op.operands)))


def share(op: Share, kernel: Kernel) -> Call:
    """`tile, piece, first, last = share(unit, start, stop, step, pieces)`."""
    return Call(kernel.bind("share", "split.share"), tuple(map(kernel.use, op.operands)))


def add_up(op: AddUp, kernel: Kernel) -> Call:
    """`add_up(acc, workspace, tile, piece, pieces)`."""
    made = kernel.bind("add_up", "split.add_up", kernel.dtype(op.x.tile.dtype), kernel.layout(op.attributes["layout"]))
    sums, *others = map(kernel.use, op.operands)
    return Call(made, (sums, WORKSPACE, *others))


EMITTERS = {
    Pieces: pieces,
    Share: share,
    AddUp: add_up,
}
