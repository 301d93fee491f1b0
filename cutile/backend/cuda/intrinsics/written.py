"""Operands of products by warpgroups that threads write to shared memory (`wgmma`, sm_90a)."""

from __future__ import annotations

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.dot import stage_address
from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic, unpack
from cutile.backend.cuda.intrinsics.group import group_number
from cutile.backend.cuda.intrinsics.llvm import VOID, asm, i32c, thread
from cutile.backend.cuda.layout import Layout
from cutile.backend.cuda.panels import ROWS, Place
from cutile.dtypes import i32

PIECE = 16
"""Bytes that the swizzle keeps together."""


@cache
def write(layout: Layout, place: Place) -> Any:
    """`f(words)`: write 32-bit words of two neighbouring elements to panels; wgmma sees them behind a barrier.

    Lanes that differ in their row by less than 8 hold one 16-byte piece of it each, which the swizzle spreads over all
    banks.

    Args:
        layout: of the elements: a `group_accumulator`, of which two neighbouring registers make a word.
        place: where the operand lies; its rows are those of the tile.
    """
    panels = place.panels
    count = layout.registers // 2
    pieces = panels.swizzle // PIECE

    def generate(b: Any, values: list[Any]) -> None:
        words = unpack(b, values[0], count)
        number = thread(b)
        lane, warp = b.and_(number, i32c(31)), b.and_(b.lshr(number, i32c(5)), i32c(3))
        line = b.lshr(lane, i32c(2))
        row = b.add(b.add(b.mul(group_number(b), i32c(ROWS)), b.mul(warp, i32c(16))), line)
        base = b.add(stage_address(b, place, i32c(0)), b.mul(row, i32c(panels.swizzle)))
        # A narrower swizzle permutes fewer pieces, by higher bits of the row's number (PTX ISA, "Swizzling modes").
        turn = b.and_(b.lshr(line, i32c(3 - pieces.bit_length() + 1)), i32c(pieces - 1))
        # Of 16 bytes, which are 8 columns, each of four lanes has a word.
        within = b.shl(b.and_(lane, i32c(3)), i32c(2))
        at: dict[int, Any] = {}
        for word, (down, across) in zip(words, layout.offsets[::2], strict=True):
            panel, rest = divmod(across, panels.span)
            piece = rest * panels.size // PIECE
            if piece not in at:
                at[piece] = b.add(base, b.or_(b.shl(b.xor(turn, i32c(piece)), i32c(4)), within))
            where = b.add(at[piece], i32c(panel * panels.panel_bytes + down * panels.swizzle))
            asm(b, VOID, [where, word], "st.shared.b32 [$0], $1;", "r,r,~{memory}", effect=True)
        # What threads write, the tensor cores see behind this fence (PTX ISA, "Async proxy").
        asm(b, VOID, [], "fence.proxy.async.shared::cta;", "~{memory}", effect=True)

    return intrinsic("write_operand", None, [frag(i32, count)], generate)
