"""Warp specialisation and the tile scheduler: warps' roles and tile blocks."""

from functools import cache
from typing import Any

from cutile.backend.common.abi import GRID_NAMES
from cutile.backend.cuda.intrinsics.fragment import POINTER, frag, intrinsic
from cutile.backend.cuda.intrinsics.llvm import (
    I32,
    I64,
    LANES,
    VOID,
    WORD_BYTES,
    address,
    asm,
    block,
    call,
    cluster_rank,
    i32c,
    shuffle_from,
    thread,
)
from cutile.backend.cuda.intrinsics.pipeline import INTEGER, stage_of, wait_empty
from cutile.backend.cuda.intrinsics.wgmma import group_number
from cutile.backend.cuda.smem_layout import WARPGROUP
from cutile.dtypes import bool_

FIRST_LANE = 1
"""The mask of a shuffle in which only a warp's first lane takes part."""


@cache
def is_producer(groups: int) -> Any:
    """`f()`: whether this warp is a producer; producers follow `groups` warpgroups."""
    return intrinsic(
        "is_producer", frag(bool_, 0), [], lambda b, _: b.icmp_unsigned("==", group_number(b), i32c(groups))
    )


@cache
def warpgroup_index() -> Any:
    """`f()`: the number of this thread's warpgroup."""
    return intrinsic("warpgroup_index", INTEGER, [], lambda b, _: group_number(b))


@cache
def elected(groups: int) -> Any:
    """`f()`: whether this is the one thread that loads."""
    return intrinsic(
        "elected", frag(bool_, 0), [], lambda b, _: b.icmp_unsigned("==", thread(b), i32c(groups * WARPGROUP))
    )


@cache
def set_max_registers(count: int, grow: bool) -> Any:
    """`f()`: change this warpgroup's registers per thread to `count`."""

    def generate(b: Any, _: list[Any]) -> None:
        # All warps of a warpgroup run it. `inc` waits until others have released enough registers by `dec` (PTX ISA,
        # "setmaxnreg").
        text = f"setmaxnreg.{'inc' if grow else 'dec'}.sync.aligned.u32 {count};"
        asm(b, VOID, [], text, "~{memory}", effect=True, convergent=True)

    return intrinsic("set_max_registers", None, [], generate)


@cache
def grid_dependency_wait(most_blocks: int = 0) -> Any:
    """`f()`: wait for the kernels ahead in the stream, and let the next one start.

    All threads wait, so that none touches memory before. Without programmatic dependent launch nothing is waited for.

    Args:
        most_blocks: a grid of more thread blocks lets the next kernel start only by its own end. Another one lets it
            start even ahead of its own wait. 0: a grid of any size lets it start behind its own wait.
    """

    def generate(b: Any, _: list[Any]) -> None:
        # `wait`: the kernels ahead have ended, and what they wrote is seen. `launch_dependents`: the next kernel may
        # start once all blocks of this one are there; its own wait lasts until this one has ended (PTX ISA,
        # "griddepcontrol").
        text, operands = "griddepcontrol.wait; griddepcontrol.launch_dependents;", []
        if most_blocks:
            # The next kernel may start ahead of this one's own wait. So several kernels of a chain are set up at once:
            # that saves 0.1 us for each norm of 8 x 1024 in a graph (H200).
            text = (
                f"{{ .reg .pred small; setp.le.u32 small, $0, {most_blocks}; "
                "@small griddepcontrol.launch_dependents; griddepcontrol.wait; }"
            )
            operands = [_grid_blocks(b)]
        constraints = ",".join([*("r" for _ in operands), "~{memory}"])
        # The clobber: no access may be moved above the wait.
        asm(b, VOID, operands, text, constraints, effect=True, convergent=True)

    return intrinsic("grid_dependency_wait", None, [], generate)


def _grid_blocks(b: Any) -> Any:
    """The number of thread blocks of the grid.

    It is counted modulo 2**32. So some larger grids, too, let the next kernel start early: that is correct, only slow.
    """
    x, y, z = (call(b, f"llvm.nvvm.read.ptx.sreg.nctaid.{axis}", I32, []) for axis in "xyz")
    return b.mul(b.mul(x, y), z)


@cache
def first_tile(cluster: int, pingpong: int = 1) -> Any:
    """`f()`: the first tile block's number, for this thread block or its cluster.

    In a ping-pong kernel each of `pingpong` warpgroups has tile blocks of its own: it is the first tile block of this
    thread's warpgroup.
    """

    def generate(b: Any, _: list[Any]) -> Any:
        mine = b.udiv(block(b), i32c(cluster))
        return b.add(mine, b.mul(group_number(b), _clusters(b, cluster))) if pingpong > 1 else mine

    return intrinsic("first_tile", INTEGER, [], generate)


@cache
def tile_step(cluster: int, pingpong: int = 1) -> Any:
    """`f()`: the number of thread blocks, or of clusters, times `pingpong`."""
    return intrinsic("tile_step", INTEGER, [], lambda b, _: b.mul(_clusters(b, cluster), i32c(pingpong)))


def _clusters(b: Any, cluster: int) -> Any:
    return b.udiv(call(b, "llvm.nvvm.read.ptx.sreg.nctaid.x", I32, []), i32c(cluster))


@cache
def next_tile() -> Any:
    """`f(workspace, total)`: the number of tile blocks taken before.

    The tile blocks with which thread blocks begin are not counted. A thread block asks once for each tile block that it
    works on, the last time in vain. So there are `total` calls, and the counter wraps behind `total - 1`: it is 0 again
    when the kernel ends. The increment orders no other accesses.
    """

    def generate(b: Any, values: list[Any]) -> Any:
        place, last = b.ptrtoint(values[0], I64), b.sub(values[1], i32c(1))
        # `inc` wraps to 0 behind `last`. Relaxed: tile blocks have no order among each other (PTX ISA, "atom").
        text = "atom.relaxed.gpu.global.inc.u32 $0, [$1], $2;"
        return asm(b, I32, [place, last], text, "=r,l,r,~{memory}", effect=True)

    return intrinsic("next_tile", INTEGER, [POINTER, INTEGER], generate)


@cache
def uniform() -> Any:
    """`f(number)`: the elected thread's number, uniform for the warp.

    The elected thread is its warp's first. Without this shuffle the compiler puts each copy of TMA in a loop over the
    warp's threads, since these might have different numbers.
    """

    def generate(b: Any, values: list[Any]) -> Any:
        # Only the elected lane runs this, so the mask names no other (PTX ISA, "shfl.sync").
        operands = [i32c(FIRST_LANE), values[0], i32c(0), i32c(LANES - 1)]
        return call(b, "llvm.nvvm.shfl.sync.idx.i32", I32, operands, convergent=True)

    return intrinsic("uniform", INTEGER, [INTEGER], generate)


def _word(b: Any, counter: Any, stages: int, place: int) -> Any:
    """The shared-memory address of the number in a counter's stage."""
    return b.add(address(b, place), b.mul(stage_of(b, counter, stages), i32c(WORD_BYTES)))


@cache
def send_tile(stages: int, offset: int, place: int, limited: bool = False) -> Any:
    """`f(counter, number)`: write a number to an empty stage, and arrive on `full`."""

    def generate(b: Any, values: list[Any]) -> None:
        counter, number = values
        full = wait_empty(b, counter, stages, offset, limited)
        # The arrival releases the write to the threads that wait for the phase (PTX ISA, "mbarrier.arrive").
        text = "st.shared.b32 [$0], $1; mbarrier.arrive.shared::cta.b64 _, [$2];"
        asm(b, VOID, [_word(b, counter, stages, place), number, full], text, "r,r,r,~{memory}", effect=True)

    return intrinsic("send_tile", None, [INTEGER, INTEGER], generate)


@cache
def receive_tile(stages: int, place: int) -> Any:
    """`f(counter)`: the number in the counter's stage, uniform for the warp."""

    def generate(b: Any, values: list[Any]) -> Any:
        # In PTX, so that LLVM keeps the read behind the wait for the stage, which acquires the producer's write.
        text = "ld.shared.b32 $0, [$1];"
        number = asm(b, I32, [_word(b, values[0], stages, place)], text, "=r,r,~{memory}", effect=True)
        return shuffle_from(b, number, i32c(0))

    return intrinsic("receive_tile", INTEGER, [INTEGER], generate)


def iterations(b: Any, start: Any, stop: Any, step: Any) -> Any:
    """The length of `range(start, stop, step)`, whose step is positive."""
    runs = b.icmp_signed("<", start, stop)
    count = b.sdiv(b.add(b.sub(stop, start), b.sub(step, i32c(1))), step)
    return b.select(runs, count, i32c(0))


@cache
def trip_count() -> Any:
    """`f(start, stop, step)`: the number of iterations of a loop with a positive step.

    It is 0 if `stop` is not beyond `start`.
    """
    return intrinsic("trip_count", INTEGER, [INTEGER] * 3, lambda b, values: iterations(b, *values))


@cache
def first_iteration() -> Any:
    """`f(iterations)`: this warpgroup's first iteration, counted over all warpgroups.

    Each warpgroup before it has a tile block of `iterations`.
    """
    return intrinsic("first_iteration", INTEGER, [INTEGER], lambda b, values: b.mul(group_number(b), values[0]))


@cache
def tile_index(
    axis: int, rows: int, columns: int, group: int, cluster: int, along: int, backwards: bool = False
) -> Any:
    """`f(number, grid_x, grid_y, grid_z)`: the index along `axis` of a tile block.

    This is the rasterisation of the tile scheduler. Tiles come in groups of `group` rows along the axis `rows`. Within
    a group, all rows of one column along the axis `columns` come first, then those of the next. The third axis of the
    grid is the slowest.

    Args:
        axis: the axis of the grid whose index this is.
        rows, columns: two axes of the grid.
        group: rows in a group.
        cluster: blocks of a cluster; `number` counts clusters.
        along: the axis along which the blocks of a cluster are neighbours.
        backwards: whether the last index comes first.
    """
    (slow,) = {0, 1, 2} - {rows, columns}

    def generate(b: Any, values: list[Any]) -> Any:
        number, *grid = values
        if cluster > 1:
            grid[along] = b.udiv(b.add(grid[along], i32c(cluster - 1)), i32c(cluster))
        index = within_plane(b, number, grid)
        if backwards:
            index = b.sub(b.sub(grid[axis], i32c(1)), index)
        if cluster > 1 and axis == along:
            rank = cluster_rank(b)
            return b.add(b.mul(index, i32c(cluster)), rank)
        return index

    def within_plane(b: Any, number: Any, grid: list[Any]) -> Any:
        plane = b.mul(grid[rows], grid[columns])
        if axis == slow:
            return b.udiv(number, plane)
        in_plane = b.urem(number, plane)
        group_tiles = b.mul(grid[columns], i32c(group))
        first = b.mul(b.udiv(in_plane, group_tiles), i32c(group))
        rest = b.sub(grid[rows], first)  # rows from the group's first on: the last group may have fewer
        group_rows = b.select(b.icmp_unsigned("<", rest, i32c(group)), rest, i32c(group))
        in_group = b.urem(in_plane, group_tiles)
        if axis == rows:
            return b.add(first, b.urem(in_group, group_rows))
        return b.udiv(in_group, group_rows)

    return intrinsic(f"tile_index_{axis}", INTEGER, [INTEGER] * (1 + len(GRID_NAMES)), generate)
