"""Who does what in a block of specialised warps, and which tile blocks come to it."""

from __future__ import annotations

from functools import cache
from typing import Any

from cutile.backend.cuda.intrinsics.fragment import frag, intrinsic
from cutile.backend.cuda.intrinsics.group import group_number
from cutile.backend.cuda.intrinsics.llvm import I32, VOID, asm, block, call, i32c, thread
from cutile.backend.cuda.intrinsics.ring import INTEGER
from cutile.backend.cuda.panels import GROUP
from cutile.dtypes import bool_


@cache
def loads(groups: int) -> Any:
    """`f()`: whether this warp is one of those that load, behind `groups` warp groups that compute."""
    return intrinsic("loads", frag(bool_, 0), [], lambda b, _: b.icmp_unsigned("==", group_number(b), i32c(groups)))


@cache
def elected(groups: int) -> Any:
    """`f()`: whether this is the one thread that loads."""
    return intrinsic("elected", frag(bool_, 0), [], lambda b, _: b.icmp_unsigned("==", thread(b), i32c(groups * GROUP)))


@cache
def registers(count: int, grow: bool) -> Any:
    """`f()`: have `count` registers per thread from here on."""
    text = f"setmaxnreg.{'inc' if grow else 'dec'}.sync.aligned.u32 {count};"

    def generate(b: Any, _: list[Any]) -> None:
        asm(b, VOID, [], text, "~{memory}", effect=True, convergent=True)

    return intrinsic("registers", None, [], generate)


@cache
def first_tile() -> Any:
    """`f()`: the number of this thread block's first tile block."""
    return intrinsic("first_tile", INTEGER, [], lambda b, _: block(b))


@cache
def tile_step() -> Any:
    """`f()`: the number of thread blocks."""
    return intrinsic("tile_step", INTEGER, [], lambda b, _: call(b, "llvm.nvvm.read.ptx.sreg.nctaid.x", I32, []))


@cache
def tile_index(axis: int, rows: int, columns: int, group: int) -> Any:
    """`f(number, grid_x, grid_y, grid_z)`: the index along `axis` of a tile block.

    `group` tiles along the axis `rows` are gone through for each step along `columns`; the third axis is the slowest.
    """
    (slow,) = {0, 1, 2} - {rows, columns}

    def generate(b: Any, values: list[Any]) -> Any:
        number, *grid = values
        plane = b.mul(grid[rows], grid[columns])
        if axis == slow:
            return b.udiv(number, plane)
        rest = b.urem(number, plane)
        full = b.mul(grid[columns], i32c(group))
        first = b.mul(b.udiv(rest, full), i32c(group))
        left = b.sub(grid[rows], first)
        tall = b.select(b.icmp_unsigned("<", left, i32c(group)), left, i32c(group))
        within = b.urem(rest, full)
        if axis == rows:
            return b.add(first, b.urem(within, tall))
        return b.udiv(within, tall)

    return intrinsic(f"tile_index_{axis}", INTEGER, [INTEGER] * 4, generate)
