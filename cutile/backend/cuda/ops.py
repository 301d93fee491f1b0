"""Operations that only this backend's lowered IR has. Every decision about them stands in their attributes.

Lowered operations of the language keep their classes and carry further attributes: `layout`, the name of the result's
layout, `source`, that of the operand's (for `mma` the two operands'), `vector`, the axis and width of wide accesses,
`offset` and `fence`, the place in shared memory and whether it may still be in use. Names of layouts are looked up in
the function's fact `layouts`.
"""

from __future__ import annotations

from cutile.dtypes import DTypeLike, bool_, i32
from cutile.ir.control import SCALAR_BOOL
from cutile.ir.core import (
    ANY_MUT,
    ANY_TENSOR,
    ANY_TILE,
    NUMBER_TILE,
    SCALAR_INT,
    Block,
    Op,
    Value,
    attribute,
    operand,
    operands,
    region,
)
from cutile.ir.effects import Effect
from cutile.ir.types import TileType, Type


class ConvertLayout(Op, name="cuda.convert_layout"):
    """The same tile in another layout: by renaming registers (`how` is "take"), or through shared memory ("move")."""

    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class Store(Op, name="cuda.store", effect=Effect.WRITE):
    """Write a tile at a tile index; what lies past the edges is dropped."""

    x: Value = operand(ANY_MUT)
    value: Value = operand(ANY_TILE)
    index: tuple[Value, ...] = operands(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return ()


class StageTile(Op, name="cuda.stage_tile", effect=Effect.WRITE):
    """Begin to copy the tile at a tile index into slot `turn % slots` of a ring in shared memory; zeros past the edges.

    `role` says which operand of the ring's product it is: "left" or "right".
    """

    x: Value = operand(ANY_TENSOR)
    turn: Value = operand(SCALAR_INT)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    shape: tuple[int, ...] = attribute()
    role: str = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class StageCommit(Op, name="cuda.stage_commit", effect=Effect.WRITE):
    """What was begun since the last commit is one group."""

    def infer(self) -> tuple[Type, ...]:
        return ()


class StageWait(Op, name="cuda.stage_wait", effect=Effect.WRITE):
    """Wait until at most `pending` groups are under way, and for all threads: then all see what has arrived."""

    pending: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class StagedMma(Op, name="cuda.staged_mma", effect=Effect.READ):
    """`acc` plus the product of the operands in slot `turn % slots` of a ring.

    `dtype` and `other` are the operands' types, `swaps` says which of them lie transposed, `rounds` that they
    are f32 to be rounded to tf32.
    """

    acc: Value = operand(NUMBER_TILE)
    turn: Value = operand(SCALAR_INT)
    dtype: DTypeLike = attribute()
    other: DTypeLike = attribute()
    depth: int = attribute()
    swaps: tuple[bool, bool] = attribute()
    rounds: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return (self.acc.type,)


class Barrier(Op, name="cuda.barrier", effect=Effect.WRITE):
    """All threads of the block arrive, and see each other's stores."""

    def infer(self) -> tuple[Type, ...]:
        return ()


# Specialised warps: some warps load, the others multiply. What passes between them goes through a ring of slots in
# shared memory with two barriers each: `full`, on which the loads of a turn arrive, and `empty`, on which its readers
# do. Turn `t` uses slot `t % slots`, for the `t // slots`-th time, which tells the phase to wait for.


class RingStart(Op, name="cuda.ring_start", effect=Effect.WRITE):
    """Set up the barriers of the ring: `full` completes by one arrival and its bytes, `empty` by `readers` arrivals.
    Behind them may be `more`, for one arrival each. All threads of the block see them afterwards; those of its cluster,
    where there is one or `nearby` says so, behind a `ClusterStart`."""

    slots: int = attribute()
    readers: int = attribute()
    offset: int = attribute()
    cluster: int = attribute()
    more: int = attribute(0)
    nearby: bool = attribute(False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class ClusterStart(Op, name="cuda.cluster_start", effect=Effect.WRITE):
    """Wait until all blocks of the cluster have set up their barriers."""

    def infer(self) -> tuple[Type, ...]:
        return ()


class FollowOn(Op, name="cuda.follow_on", effect=Effect.WRITE):
    """Wait until the kernels ahead in the stream have ended, and let the one behind set itself up from here on.

    What stands before it may run while another kernel still writes to what this one reads.
    """

    def infer(self) -> tuple[Type, ...]:
        return ()


class Roles(Op, name="cuda.roles"):
    """The last four warps run `load`, the `groups` times four before them `compute`."""

    load: Block = region()
    compute: Block = region()
    groups: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class BulkPrefetch(Op, name="cuda.bulk_prefetch", effect=Effect.WRITE):
    """Bring the descriptor of a tensor into the copy engine's cache, ahead of the first copy."""

    x: Value = operand(ANY_TENSOR)
    map: str = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class ClusterEnd(Op, name="cuda.cluster_end", effect=Effect.WRITE):
    """Wait for the cluster's other blocks, which may still write to this one's shared memory."""

    def infer(self) -> tuple[Type, ...]:
        return ()


class Registers(Op, name="cuda.registers", effect=Effect.WRITE):
    """Give up registers, or take more, to have `count` per thread."""

    count: int = attribute()
    grow: bool = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class Elected(Op, name="cuda.elected"):
    """Whether this is the one thread of the loading warps that does their work."""

    groups: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (TileType(bool_),)


class GroupNumber(Op, name="cuda.group_number"):
    """The number of this warp group, of those that compute."""

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class FirstTile(Op, name="cuda.first_tile"):
    """The number of the first tile block that this thread block, or its cluster, works on.

    Where the `alone` groups of a block have tile blocks of their own, that of the thread's group.
    """

    cluster: int = attribute()
    alone: int = attribute(1)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class TileStep(Op, name="cuda.tile_step"):
    """From one tile block of a thread block to its next: how many thread blocks, or clusters, there are.

    Times `alone`, the groups of a block that have tile blocks of their own.
    """

    cluster: int = attribute()
    alone: int = attribute(1)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class TileIndex(Op, name="cuda.tile_index"):
    """The index along `axis` of the grid of tile block `number`, in an order that keeps neighbours together.

    Of the axes `(rows, columns)`, `group` rows at a time are gone through column by column, so that the tile blocks at
    work at one time share what they load; the third axis is the slowest. The blocks of a cluster of `cluster` work on
    neighbours along the axis `along`: what is numbered is the cluster's part of the grid.
    """

    number: Value = operand(SCALAR_INT)
    axis: int = attribute()
    rows: int = attribute()
    columns: int = attribute()
    group: int = attribute()
    cluster: int = attribute()
    along: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class Turns(Op, name="cuda.turns"):
    """How many turns the loop of products has: none where `stop` is not beyond `start`."""

    start: Value = operand(SCALAR_INT)
    stop: Value = operand(SCALAR_INT)
    step: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class Pieces(Op, name="cuda.pieces"):
    """Into how many pieces the turns of each of `tiles` tile blocks are divided: 1 where these fill the GPU.

    With `whole`, into `most` or not at all: where the launch has a thread block for each.
    """

    tiles: Value = operand(SCALAR_INT)
    start: Value = operand(SCALAR_INT)
    stop: Value = operand(SCALAR_INT)
    step: Value = operand(SCALAR_INT)
    most: int = attribute()
    least: int = attribute()
    whole: bool = attribute(False)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class Share(Op, name="cuda.share"):
    """Of unit number `unit` of the work: its tile block, which piece of it, and where the piece's turns begin and end.

    The pieces of a tile block follow each other, and so do their turns.
    """

    unit: Value = operand(SCALAR_INT)
    start: Value = operand(SCALAR_INT)
    stop: Value = operand(SCALAR_INT)
    step: Value = operand(SCALAR_INT)
    pieces: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),) * 4


class AddUp(Op, name="cuda.add_up", effect=Effect.WRITE):
    """The sums of all pieces of a tile block, and whether this thread block is the one that has them.

    Of one piece, they are its own. Else each is written to the workspace, and who comes last adds them, in their order.
    """

    x: Value = operand(NUMBER_TILE)
    tile: Value = operand(SCALAR_INT)
    piece: Value = operand(SCALAR_INT)
    pieces: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type, TileType(bool_))


class DealOut(Op, name="cuda.deal_out", effect=Effect.WRITE):
    """Send the sums of a piece to the thread blocks of its cluster, each the parts that it adds up, and wait for what
    this one is sent.

    Of `parts` parts of the columns, thread block `i` of `blocks` adds up number `i`, `i + blocks` and so on. They
    arrive at `place` in shared memory, and are counted by a barrier of their own.
    """

    x: Value = operand(NUMBER_TILE)
    parts: int = attribute()
    blocks: int = attribute()
    place: int = attribute()
    offset: int = attribute()
    limited: bool = attribute(False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class AddNearby(Op, name="cuda.add_nearby", effect=Effect.READ):
    """The columns of `x` that are part `part` of `parts`, added up over the `blocks` thread blocks of a cluster, in the
    order of the pieces: of what they have dealt out to this one."""

    x: Value = operand(NUMBER_TILE)
    part: Value = operand(SCALAR_INT)
    parts: int = attribute()
    blocks: int = attribute()
    place: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        rows, columns = self.x.tile.shape
        return (self.x.tile.with_shape((rows, columns // self.parts)),)


class FirstTurn(Op, name="cuda.first_turn"):
    """The first turn of the thread's group, where groups have tile blocks of `turns` turns each of their own."""

    turns: Value = operand(SCALAR_INT)

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32),)


class TakeOver(Op, name="cuda.take_over", effect=Effect.WRITE):
    """Wait until the group before has begun all products of its tile block, where groups have their own.

    Only then may this one wait for operands: which phase of a slot is the next is not to be known any earlier. `number`
    is the tile block's, `step` that from one of the group's to the next.
    """

    number: Value = operand(SCALAR_INT)
    step: Value = operand(SCALAR_INT)
    offset: int = attribute()
    limited: bool = attribute(False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class HandOver(Op, name="cuda.hand_over", effect=Effect.WRITE):
    """All products of this group's tile block have begun: the next group may (see `TakeOver`)."""

    offset: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class RingAcquire(Op, name="cuda.ring_acquire", effect=Effect.WRITE):
    """Wait until the slot of a turn is empty, and announce the `nbytes` that will arrive in it.

    `limited`: a wait of over two seconds ends the kernel.
    """

    turn: Value = operand(SCALAR_INT)
    slots: int = attribute()
    offset: int = attribute()
    nbytes: int = attribute()
    limited: bool = attribute(False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class BulkLoad(Op, name="cuda.bulk_load", effect=Effect.WRITE):
    """Begin to load the tile at a tile index into the slot of a turn; zeros past the edges. It arrives on `full`.

    The tile lies there as `panels` one after the other, each as wide as the swizzle along the contiguous `axis`, and
    one copy loads one panel. Where `cluster` blocks share the tile, each loads its part for all of them: some of the
    panels, or of each panel's rows, as `split` says.
    """

    x: Value = operand(ANY_TENSOR)
    turn: Value = operand(SCALAR_INT)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    shape: tuple[int, ...] = attribute()
    map: str = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class RingWait(Op, name="cuda.ring_wait", effect=Effect.WRITE):
    """Wait until what a turn loads has arrived."""

    turn: Value = operand(SCALAR_INT)
    slots: int = attribute()
    offset: int = attribute()
    limited: bool = attribute(False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class GroupMma(Op, name="cuda.group_mma", effect=Effect.READ):
    """Begin to add the product of the operands in the slot of a turn to `acc`, by warp groups (`wgmma`).

    The result may be read after a `GroupWait` alone, and the slot be given up likewise. With `promoted`, so many
    columns at a time are multiplied apart from the sums, waited for, and added in f32. `added`, where it is given, says
    whether `acc` is added to; else the product takes its place. `exchanged`: what is multiplied is the transpose of
    `acc`, so that its rows are the columns of the instructions.
    `crosswise`: the left operand lies across K, and is read by threads (`crosswise.py`).
    """

    acc: Value = operand(NUMBER_TILE)
    turn: Value = operand(SCALAR_INT)
    added: tuple[Value, ...] = operands(SCALAR_BOOL)
    left: DTypeLike = attribute()
    right: DTypeLike = attribute()
    depth: int = attribute()
    promoted: int = attribute(0)
    crosswise: bool = attribute(False)
    exchanged: bool = attribute(False)

    def infer(self) -> tuple[Type, ...]:
        return (self.acc.type,)


class OuterMma(Op, name="cuda.outer_mma", effect=Effect.READ):
    """Add the product of the operands in the slot of a turn to `acc`, by fused multiply-adds of f32.

    When it is over, a warp has read all that it needs of the slot.
    """

    acc: Value = operand(NUMBER_TILE)
    turn: Value = operand(SCALAR_INT)
    depth: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (self.acc.type,)


class GroupWait(Op, name="cuda.group_wait", effect=Effect.WRITE):
    """Wait until at most `pending` products are under way; with 0, the result may be read.

    `groups`: what a product is begun in.
    """

    acc: Value = operand(NUMBER_TILE)
    pending: int = attribute()
    groups: int = attribute(1)

    def infer(self) -> tuple[Type, ...]:
        return (self.acc.type,)


class RingRelease(Op, name="cuda.ring_release", effect=Effect.WRITE):
    """Where `condition` holds, say that the slot of a turn has been read by this warp group, to all of the cluster.

    `warps`: each of its warps says so for itself.
    """

    turn: Value = operand(SCALAR_INT)
    condition: Value = operand(SCALAR_BOOL)
    slots: int = attribute()
    offset: int = attribute()
    cluster: int = attribute()
    warps: bool = attribute(False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class Blank(Op, name="cuda.blank", effect=Effect.WRITE):
    """A tile of registers with anything in them: sums that the first product replaces."""

    dtype: DTypeLike = attribute()
    shape: tuple[int, ...] = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (TileType(self.dtype, self.shape),)


class ZeroUnless(Op, name="cuda.zero_unless", effect=Effect.WRITE):
    """The same tile where `condition` holds; zeros where it does not."""

    x: Value = operand(ANY_TILE)
    condition: Value = operand(SCALAR_BOOL)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class Opaque(Op, name="cuda.opaque", effect=Effect.WRITE):
    """The same tile, whose elements the compiler does not know: an accumulator that is not to be made anew."""

    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (self.x.type,)


class Pack(Op, name="cuda.pack", effect=Effect.WRITE):
    """A tile of 16-bit elements, two to a word, in registers of their own: a result that is put off (`trailing.py`)."""

    x: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        rows, columns = self.x.tile.shape
        return (TileType(i32, (rows, columns // 2)),)


class Part(Op, name="cuda.part"):
    """The columns of a product's sums that are part `part` of `parts`: a choice among each thread's registers."""

    x: Value = operand(ANY_TILE)
    part: int = attribute()
    parts: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        rows, columns = self.x.tile.shape
        return (self.x.tile.with_shape((rows, columns // self.parts)),)


class StorePart(Op, name="cuda.store_part", effect=Effect.WRITE):
    """Write the columns that are part `part` of `parts` of this block's own tile. Becomes a store of its own.

    `number`, where it is given, says which part it is, in place of `part`.
    """

    x: Value = operand(ANY_MUT)
    value: Value = operand(ANY_TILE)
    number: tuple[Value, ...] = operands(SCALAR_INT)
    part: int = attribute()
    parts: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return ()


class BulkStore(Op, name="cuda.bulk_store", effect=Effect.WRITE):
    """Write a tile at a tile index through shared memory; what lies past the edges is dropped.

    Each warp writes its own rows, `span` columns at a time, into `buffers` places in turn, and has the copy engine
    store them; it waits only before it writes to a place again. Of a tile that is `packed`, the value is words of two
    elements each. Places that are `apart` are the group's own parts of left operands, in slots of the ring that nothing
    is loaded to any more: the bytes from place to place, and from warp to warp.
    """

    x: Value = operand(ANY_MUT)
    value: Value = operand(ANY_TILE)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    map: str = attribute()
    packed: bool = attribute(False)
    apart: tuple[int, int] | None = attribute(None)

    def infer(self) -> tuple[Type, ...]:
        return ()


class BulkDrain(Op, name="cuda.bulk_drain", effect=Effect.WRITE):
    """Wait until the copy engine has read all that is to be stored: shared memory outlives that."""

    def infer(self) -> tuple[Type, ...]:
        return ()


class FailUnless(Op, name="cuda.fail_unless", effect=Effect.WRITE):
    """Unless the condition holds, `thread` says that the assertion failed, in which tile block, and traps."""

    condition: Value = operand(SCALAR_BOOL)
    index: tuple[Value, ...] = operands(SCALAR_INT)
    message: str = attribute()
    where: tuple[str, str, int, str] = attribute()
    thread: int = attribute(0)

    def infer(self) -> tuple[Type, ...]:
        return ()
