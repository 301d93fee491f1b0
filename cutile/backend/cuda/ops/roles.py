"""Specialised warps: who does what, and the tile blocks and turns of each."""

from __future__ import annotations

from cutile.backend.common.abi import GRID_NAMES, WORKSPACE
from cutile.backend.cuda.ops.intrinsic import Intrinsic
from cutile.backend.cuda.ops.pipeline import A_PIPELINE, SCRATCH
from cutile.dtypes import bool_, i32
from cutile.ir.core import SCALAR_INT, Block, Effect, Op, Value, attribute, operand, region
from cutile.ir.types import TileType, Type


class Roles(Op, name="cuda.roles"):
    """The last four warps run `load`, the `groups` times four before them `compute`."""

    load: Block = region()
    compute: Block = region()
    groups: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class GridDependencyWait(Op, name="cuda.grid_dependency_wait", effect=Effect.WRITE):
    """Wait for the kernels ahead in the stream, and let the next one start.

    From here on it may set itself up.

    What stands before it may run while another kernel still writes to what this one reads.
    """

    intrinsic = Intrinsic("roles.grid_dependency_wait")

    def infer(self) -> tuple[Type, ...]:
        return ()


class SetMaxRegisters(Op, name="cuda.set_max_registers", effect=Effect.WRITE):
    """Give up registers, or take more, to have `count` per thread."""

    intrinsic = Intrinsic("roles.set_max_registers")
    count: int = attribute()
    grow: bool = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class Elected(Op, name="cuda.elected"):
    """Whether this is the one thread of the loading warps that does their work."""

    intrinsic = Intrinsic("roles.elected", facts=("groups",))
    groups: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (TileType(bool_),)


class WarpgroupIndex(Op, name="cuda.warpgroup_index"):
    """The number of this warp group, of those that compute."""

    intrinsic = Intrinsic("roles.warpgroup_index")

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class FirstTile(Op, name="cuda.first_tile"):
    """The number of the first tile block of this thread block or cluster.

    Where the `alone` groups of a block have tile blocks of their own, that of the thread's group.
    """

    intrinsic = Intrinsic("roles.first_tile", facts=("cluster",))
    cluster: int = attribute()
    alone: int = attribute(default=1)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class TileStep(Op, name="cuda.tile_step"):
    """From one tile block of a thread block to its next.

    How many thread blocks, or clusters, there are.

    Times `alone`, the groups of a block that have tile blocks of their own.
    """

    intrinsic = Intrinsic("roles.tile_step", facts=("cluster",))
    cluster: int = attribute()
    alone: int = attribute(default=1)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class NextTile(Op, name="cuda.next_tile", effect=Effect.WRITE):
    """Take the next tile block.

    How many have been taken before, but for those that thread blocks begin with.

    Thread blocks begin with one of their own number each, and count the others in the workspace. When all have found
    that there is none left of `total`, the count is 0 again.
    """

    intrinsic = Intrinsic("roles.next_tile", call=(WORKSPACE, "total"))
    total: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class Uniform(Op, name="cuda.uniform"):
    """The producer's number, in a register that the warp shares.

    What TMA is told must be in one.
    """

    intrinsic = Intrinsic("roles.uniform")
    x: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class SendTile(Op, name="cuda.send_tile", effect=Effect.WRITE):
    """Wait until a stage is empty, and pass a tile block's number to the consumers.

    In its word of `through`.

    `limited`: a wait of over two seconds ends the kernel.
    """

    intrinsic = Intrinsic("roles.send_tile")
    pipeline: Value = operand(A_PIPELINE)
    through: Value = operand(SCRATCH)
    counter: Value = operand(SCALAR_INT)
    number: Value = operand(SCALAR_INT)
    limited: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class ReceiveTile(Op, name="cuda.receive_tile", effect=Effect.WRITE):
    """The number of a tile block that the producer sent, in a full stage."""

    intrinsic = Intrinsic("roles.receive_tile", pipeline=("stages",))
    pipeline: Value = operand(A_PIPELINE)
    through: Value = operand(SCRATCH)
    counter: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class TileIndex(Op, name="cuda.tile_index"):
    """Tile block `number`'s index along `axis`, in an order that keeps neighbours.

    It keeps neighbours together.

    Of the axes `(rows, columns)`, `group` rows at a time are gone through column by column, so that the tile blocks at
    work at one time share what they load; the third axis is the slowest. The blocks of a cluster of `cluster` work on
    neighbours along the axis `along`: what is numbered is the cluster's part of the grid. `backwards`: along `axis`
    the last tile block comes first.
    """

    intrinsic = Intrinsic("roles.tile_index", facts=("axis",), stem="tile_index_{axis}", call=("number", *GRID_NAMES))
    number: Value = operand(SCALAR_INT)
    axis: int = attribute()
    rows: int = attribute()
    columns: int = attribute()
    group: int = attribute()
    cluster: int = attribute()
    along: int = attribute()
    backwards: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class TripCount(Op, name="cuda.trip_count"):
    """How many turns the loop of products has.

    None where `stop` is not beyond `start`.
    """

    intrinsic = Intrinsic("roles.trip_count")
    start: Value = operand(SCALAR_INT)
    stop: Value = operand(SCALAR_INT)
    step: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class FirstIteration(Op, name="cuda.first_iteration"):
    """The first iteration of the thread's group, in ping-pong.

    Groups have tile blocks of `turns` iterations each of their own.
    """

    intrinsic = Intrinsic("roles.first_iteration")
    turns: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)
