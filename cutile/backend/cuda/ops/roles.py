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

    Programmatic dependent launch. Code ahead of it may run while another kernel still writes what this one reads.
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
    """The number of this warpgroup of the consumers."""

    intrinsic = Intrinsic("roles.warpgroup_index")

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class FirstTile(Op, name="cuda.first_tile"):
    """The number of the first tile block of this thread block, or its cluster.

    Of a ping-pong kernel, whose `alone` warpgroups have tile blocks of their own, that of the thread's warpgroup.
    """

    intrinsic = Intrinsic("roles.first_tile", facts=("cluster",))
    cluster: int = attribute()
    alone: int = attribute(default=1)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class TileStep(Op, name="cuda.tile_step"):
    """The step from one tile block to the next: the thread blocks, or clusters.

    Times `alone`, the warpgroups of a block that have tile blocks of their own.
    """

    intrinsic = Intrinsic("roles.tile_step", facts=("cluster",))
    cluster: int = attribute()
    alone: int = attribute(default=1)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class NextTile(Op, name="cuda.next_tile", effect=Effect.WRITE):
    """Take the next tile block: the number of those taken before.

    Thread blocks begin with a tile block of their own number, and count the others in the workspace. The count is 0
    again when all have found that none is left of `total`.
    """

    intrinsic = Intrinsic("roles.next_tile", call=(WORKSPACE, "total"))
    total: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class Uniform(Op, name="cuda.uniform"):
    """The producer's number in a uniform register, as TMA's operands must be."""

    intrinsic = Intrinsic("roles.uniform")
    x: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class SendTile(Op, name="cuda.send_tile", effect=Effect.WRITE):
    """Wait for an empty stage, and send the number of a tile block to consumers.

    It lies in the stage's word of `through`. `limited`: a wait of over two seconds ends the kernel.
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
    """The number of a tile block that the producer sent, in a stage that arrived."""

    intrinsic = Intrinsic("roles.receive_tile", pipeline=("stages",))
    pipeline: Value = operand(A_PIPELINE)
    through: Value = operand(SCRATCH)
    counter: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class TileIndex(Op, name="cuda.tile_index"):
    """The index along `axis` of tile block `number`, in rasterised order.

    Neighbours are at work together, and share what they load. `backwards`: along `axis` the last tile block comes
    first.

    Attributes:
        rows, columns: two axes of the grid; the third is the slowest.
        group: rows that are gone through column by column.
        cluster: blocks of a cluster, which are neighbours along the axis `along`; `number` counts clusters.
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
    """The iterations of a main loop; none if `stop` is not beyond `start`."""

    intrinsic = Intrinsic("roles.trip_count")
    start: Value = operand(SCALAR_INT)
    stop: Value = operand(SCALAR_INT)
    step: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class FirstIteration(Op, name="cuda.first_iteration"):
    """The first iteration of the thread's warpgroup, counted over warpgroups.

    For ping-pong kernels: each warpgroup has a tile block of `turns` iterations.
    """

    intrinsic = Intrinsic("roles.first_iteration")
    turns: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)
