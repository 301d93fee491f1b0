"""Products of f32 by fused multiply-adds (SIMT), of operands that TMA loaded.

Each thread reads 16 bytes at a time. If the operand is contiguous along K, these are four steps of one row (or column);
else they are four neighbours in one step. The places that a thread reads differ by constants, except that the swizzle
permutes pieces of 16 bytes. So a thread needs as many addresses of a stage as a row has pieces.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.arith import fused
from cutile.backend.cuda.intrinsics.fragment import Coordinates, frag, intrinsic, pack, unpack
from cutile.backend.cuda.intrinsics.llvm import F32, I32, PIECE_BYTES, PIECE_SHIFT, ROW_SHIFT, SHARED, i32c, ir, shared
from cutile.backend.cuda.intrinsics.pipeline import INTEGER, stage_of
from cutile.backend.cuda.smem_layout import BufferStages, SmemLayout
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import f32

VECTOR = 4
"""Elements of one read."""
COLUMN_GROUP = 8
"""Columns of a thread that are multiplied by all its rows before the next columns."""


class _Operand:
    """One operand in a stage, as a thread reads it.

    Args:
        b: the builder.
        smem_layout: how the operand lies in shared memory.
        layout: of the sums.
        axis: the axis of the sums that the operand shares: 0 for the left one, 1 for the right one.
        stage: the operand's offset in shared memory, in bytes.
    """

    def __init__(self, b: Any, smem_layout: SmemLayout, layout: Layout, axis: int, stage: Any) -> None:
        self._b, self._smem_layout = b, smem_layout
        mine = Coordinates(b, layout).thread_part(axis)
        row, span = smem_layout.swizzle, smem_layout.span
        if smem_layout.k_major:
            place = b.mul(mine, i32c(row))
            place = b.xor(place, self._permuted(place))
        else:
            panel = b.mul(b.udiv(mine, i32c(span)), i32c(smem_layout.panel_bytes))
            place = b.add(panel, b.mul(b.urem(mine, i32c(span)), i32c(smem_layout.size)))
        # Stages begin at multiples of the swizzle's period, so it may be applied to the place alone.
        self._base = b.add(b.ptrtoint(shared(b, stage), I32), place)
        self._starts: dict[int, Any] = {}

    @property
    def by_k(self) -> bool:
        """Whether a read holds neighbours along K."""
        return self._smem_layout.k_major

    def _mask(self) -> int:
        return self._smem_layout.swizzle // PIECE_BYTES - 1

    def _permuted(self, place: Any) -> Any:
        """The bits of a place in a panel that the swizzle flips."""
        # Bits from `ROW_SHIFT` on flip those from `PIECE_SHIFT` on (PTX ISA, "Swizzling Modes").
        return self._b.and_(self._b.lshr(place, i32c(ROW_SHIFT - PIECE_SHIFT)), i32c(self._mask() << PIECE_SHIFT))

    def _start(self, piece: int) -> Any:
        """The address of the thread's pieces with this number, without the constant part."""
        if piece not in self._starts:
            self._starts[piece] = self._b.xor(self._base, i32c(piece << PIECE_SHIFT)) if piece else self._base
        return self._starts[piece]

    def read(self, mn: int, k: int) -> list[Any]:
        """Four neighbours along the axis that is contiguous in memory.

        The first is at depth `k` and at row (or column) `mn`, counted from the thread's first.
        """
        b, smem_layout = self._b, self._smem_layout
        along, across = (k, mn) if smem_layout.k_major else (mn, k)
        panel, rest = divmod(along, smem_layout.span)
        # The number of the piece in its row, after the swizzle: the XOR with the number of the 128 bytes.
        piece = rest * smem_layout.size // PIECE_BYTES ^ across * smem_layout.swizzle >> ROW_SHIFT & self._mask()
        place = b.add(self._start(piece), i32c(panel * smem_layout.panel_bytes + across * smem_layout.swizzle))
        kind = ir.VectorType(F32, VECTOR)
        vector = b.load(b.inttoptr(place, ir.PointerType(kind, SHARED)))
        vector.align = PIECE_BYTES
        return [b.extract_element(vector, i32c(i)) for i in range(VECTOR)]


@cache
def multiply(layout: Layout, left: BufferStages, right: BufferStages, depth: int) -> Any:
    """`f(acc, counter)`: `acc` plus the product of the operands in a counter's stage.

    Args:
        layout: of the sums: an `outer_groups`.
        left, right: where the operands' stages are; one counter names the stage of both.
        depth: elements along K.
    """
    registers = {offset: register for register, offset in enumerate(layout.offsets)}
    rows = sorted({offset[0] for offset in layout.offsets})
    columns = sorted({offset[1] for offset in layout.offsets})

    def generate(b: Any, values: list[Any]) -> Any:
        sums = unpack(b, values[0], layout.registers)
        stage = b.add(i32c(left.place), b.mul(stage_of(b, values[1], left.stages), i32c(left.stage_bytes)))
        x = _Operand(b, left.smem_layout, layout, 0, stage)
        y = _Operand(b, right.smem_layout, layout, 1, b.add(stage, i32c(right.place - left.place)))
        reads = _Reads(x, y)
        for k in range(0, depth, VECTOR):
            for r, c, step in _order(rows, columns):
                at = registers[r, c]
                sums[at] = fused(b, f32, reads.left(r, k + step), reads.right(c, k + step), sums[at])
        return pack(b, sums, layout.registers)

    kind = frag(f32, layout.registers)
    return intrinsic("multiply", kind, [kind, INTEGER], generate)


class _Reads:
    """Elements of both operands, each read ahead of its first use."""

    def __init__(self, x: _Operand, y: _Operand) -> None:
        self._x, self._y = x, y
        self._elements: dict[tuple[str, int, int], Any] = {}

    def _get(self, side: str, operand: _Operand, mn: int, k: int) -> Any:
        if (side, mn, k) not in self._elements:
            along, rest = (k, mn) if operand.by_k else (mn, k)
            first = along - along % VECTOR
            elements = operand.read(*((rest, first) if operand.by_k else (first, rest)))
            for i, element in enumerate(elements):
                key = (rest, first + i) if operand.by_k else (first + i, rest)
                self._elements[(side, *key)] = element
        return self._elements[side, mn, k]

    def left(self, row: int, k: int) -> Any:
        return self._get("left", self._x, row, k)

    def right(self, column: int, k: int) -> Any:
        return self._get("right", self._y, column, k)


def _order(rows: list[int], columns: list[int]) -> Iterator[tuple[int, int, int]]:
    """The (row, column, step) of four steps, to and fro along a few columns at a time.

    Neighbouring multiply-adds share an operand, which need not be read from its register again.
    """
    for step in range(VECTOR):
        for first in range(0, len(columns), COLUMN_GROUP):
            group = columns[first : first + COLUMN_GROUP]
            for number, row in enumerate(rows):
                yield from ((row, column, step) for column in (group if number % 2 == 0 else group[::-1]))
