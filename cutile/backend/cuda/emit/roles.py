"""Specialised warps: the ring's barriers, bulk copies, products by warp groups, and who does what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.common.abi import GRID_NAMES, WORKSPACE
from cutile.backend.cuda import ops
from cutile.backend.cuda.emit.text import Call
from cutile.backend.cuda.panels import Panels

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel
    from cutile.ir.core import Op


def _numbers(op: Op, *names: str) -> list[str]:
    return [f"{each}={op.attributes[each]!r}" for each in names]


def _fed(op: Op, kernel: Kernel) -> Call:
    """Where a product's operands are, in the file."""
    panels = (kernel.panels(Panels(*each)) for each in op.attributes["panels"])
    return kernel.fed(*panels, *_numbers(op, "depth", "slots", "slot_bytes", "place"))


def _limit(op: Op) -> list[str]:
    return ["limited=True"] if op.attributes["limited"] else []


def _alone(groups: int) -> list[str]:
    return [f"alone={groups}"] if groups > 1 else []


def prefetch(op: ops.BulkPrefetch, kernel: Kernel) -> Call:
    """`prefetch(x_map)`."""
    return Call(kernel.bind("prefetch", "bulk.prefetch"), (op.map,))


def ring_start(op: ops.RingStart, kernel: Kernel) -> Call:
    """`start()`."""
    more = [f"more={op.more}"] if op.more else []
    more += ["nearby=True"] if op.nearby else []
    return Call(kernel.bind("start", "ring.start", *_numbers(op, "slots", "readers", "offset", "cluster"), *more), ())


def cluster_start(op: ops.ClusterStart, kernel: Kernel) -> Call:
    """`join()`."""
    return Call(kernel.bind("join", "ring.join"), ())


def follow_on(op: ops.FollowOn, kernel: Kernel) -> Call:
    """`follow_on()`."""
    return Call(kernel.bind("follow_on", "roles.follow_on"), ())


def cluster_end(op: ops.ClusterEnd, kernel: Kernel) -> Call:
    """`leave()`."""
    return Call(kernel.bind("leave", "ring.leave"), ())


def registers(op: ops.Registers, kernel: Kernel) -> Call:
    """`take_registers()`, or `give_registers()`."""
    name = "take_registers" if op.grow else "give_registers"
    return Call(kernel.bind(name, "roles.registers", *_numbers(op, "count", "grow")), ())


def elected(op: ops.Elected, kernel: Kernel) -> Call:
    """`elected()`."""
    return Call(kernel.bind("elected", "roles.elected", str(op.groups)), ())


def group_number(op: ops.GroupNumber, kernel: Kernel) -> Call:
    """`own_group()`."""
    return Call(kernel.bind("own_group", "roles.own_group"), ())


def first_tile(op: ops.FirstTile, kernel: Kernel) -> Call:
    """`first_tile()`."""
    name = "first_own_tile" if op.alone > 1 else "first_tile"
    return Call(kernel.bind(name, "roles.first_tile", str(op.cluster), *_alone(op.alone)), ())


def tile_step(op: ops.TileStep, kernel: Kernel) -> Call:
    """`tile_step()`."""
    name = "own_tile_step" if op.alone > 1 else "tile_step"
    return Call(kernel.bind(name, "roles.tile_step", str(op.cluster), *_alone(op.alone)), ())


def turns(op: ops.Turns, kernel: Kernel) -> Call:
    """`turns(start, stop, step)`."""
    return Call(kernel.bind("turns", "roles.turns"), tuple(map(kernel.use, op.operands)))


def first_turn(op: ops.FirstTurn, kernel: Kernel) -> Call:
    """`first_turn(turns)`."""
    return Call(kernel.bind("first_turn", "roles.first_turn"), (kernel.use(op.turns),))


def tile_index(op: ops.TileIndex, kernel: Kernel) -> Call:
    """`tile_index_0(tile, grid_x, grid_y, grid_z)`."""
    made = kernel.bind(
        f"tile_index_{op.axis}",
        "roles.tile_index",
        str(op.axis),
        *_numbers(op, "rows", "columns", "group", "cluster", "along"),
    )
    return Call(made, (kernel.use(op.number), *GRID_NAMES))


def pieces(op: ops.Pieces, kernel: Kernel) -> Call:
    """`pieces_of(tiles, start, stop, step)`."""
    whole = ["whole=True"] if op.whole else []
    made = kernel.bind("pieces_of", "split.pieces", *_numbers(op, "most", "least"), *whole)
    return Call(made, tuple(map(kernel.use, op.operands)))


def share(op: ops.Share, kernel: Kernel) -> Call:
    """`tile, piece, first, last = share(unit, start, stop, step, pieces)`."""
    return Call(kernel.bind("share", "split.share"), tuple(map(kernel.use, op.operands)))


def add_up(op: ops.AddUp, kernel: Kernel) -> Call:
    """`add_up(acc, workspace, tile, piece, pieces)`."""
    made = kernel.bind("add_up", "split.add_up", kernel.dtype(op.x.tile.dtype), kernel.layout(op.attributes["layout"]))
    sums, *numbers = map(kernel.use, op.operands)
    return Call(made, (sums, WORKSPACE, *numbers))


def deal_out(op: ops.DealOut, kernel: Kernel) -> Call:
    """`deal_out(acc)`."""
    made = kernel.bind(
        "deal_out",
        "nearby.deal_out",
        kernel.dtype(op.x.tile.dtype),
        kernel.layout(op.attributes["layout"]),
        str(op.parts),
        str(op.blocks),
        *_numbers(op, "place", "offset"),
        *_limit(op),
    )
    return Call(made, (kernel.use(op.x),))


def add_nearby(op: ops.AddNearby, kernel: Kernel) -> Call:
    """`add_nearby(part)`."""
    made = kernel.bind(
        "add_nearby",
        "nearby.add",
        kernel.dtype(op.x.tile.dtype),
        kernel.layout(op.attributes["source"]),
        *_numbers(op, "parts", "blocks", "place"),
    )
    return Call(made, (kernel.use(op.part),))


def take_over(op: ops.TakeOver, kernel: Kernel) -> Call:
    """`take_over(tile, step)`."""
    made = kernel.bind("take_over", "ring.take_over", *_numbers(op, "offset"), *_limit(op))
    return Call(made, (kernel.use(op.number), kernel.use(op.step)))


def hand_over(op: ops.HandOver, kernel: Kernel) -> Call:
    """`hand_over()`."""
    return Call(kernel.bind("hand_over", "ring.hand_over", *_numbers(op, "offset")), ())


def acquire(op: ops.RingAcquire, kernel: Kernel) -> Call:
    """`acquire(turn)`."""
    made = kernel.bind("acquire", "ring.acquire", *_numbers(op, "slots", "offset", "nbytes"), *_limit(op))
    return Call(made, (kernel.use(op.turn),))


def bulk_load(op: ops.BulkLoad, kernel: Kernel) -> Call:
    """`load_x(x_map, i, k, turn)`."""
    made = kernel.bind(
        f"load_{op.x.name}",
        "bulk.load",
        kernel.panels(Panels(*op.attributes["panels"])),
        *_numbers(op, "shape", "axis", "slots", "slot_bytes", "place", "offset", "cluster"),
    )
    return Call(made, (op.map, *map(kernel.use, op.index), kernel.use(op.turn)))


def wait(op: ops.RingWait, kernel: Kernel) -> Call:
    """`wait(turn)`."""
    return Call(kernel.bind("wait", "ring.wait", *_numbers(op, "slots", "offset"), *_limit(op)), (kernel.use(op.turn),))


def multiply(op: ops.GroupMma, kernel: Kernel) -> Call:
    """`multiply(acc, turn)`."""
    made = kernel.bind(
        "multiply",
        "crosswise.multiply" if op.crosswise else "group.multiply",
        kernel.dtype(op.left),
        kernel.dtype(op.right),
        kernel.dtype(op.acc.tile.dtype),
        kernel.layout(op.attributes["layout"]),
        _fed(op, kernel),
        *([f"promoted={op.promoted}"] if op.promoted else []),
        *(["replaces=True"] if op.added else []),
        *(["exchanged=True"] if op.exchanged else []),
    )
    return Call(made, (kernel.use(op.acc), kernel.use(op.turn), *map(kernel.use, op.added)))


def outer(op: ops.OuterMma, kernel: Kernel) -> Call:
    """`multiply(acc, turn)`."""
    made = kernel.bind(
        "multiply",
        "outer.multiply",
        kernel.layout(op.attributes["layout"]),
        _fed(op, kernel),
    )
    return Call(made, (kernel.use(op.acc), kernel.use(op.turn)))


def group_wait(op: ops.GroupWait, kernel: Kernel) -> Call:
    """`finished(acc)`: all products are; `finished_but_1(acc)`: one may be under way."""
    name = f"finished_but_{op.pending}" if op.pending else "finished"
    groups = str(op.pending * op.groups)
    made = kernel.bind(name, "group.wait", kernel.dtype(op.acc.tile.dtype), str(kernel.count(op)), groups)
    return Call(made, (kernel.use(op.acc),))


def release(op: ops.RingRelease, kernel: Kernel) -> Call:
    """`release(turn, condition)`."""
    warps = ["warps=True"] if op.warps else []
    made = kernel.bind("release", "ring.release", *_numbers(op, "slots", "offset", "cluster"), *warps)
    return Call(made, (kernel.use(op.turn), kernel.use(op.condition)))


def blank(op: ops.Blank, kernel: Kernel) -> Call:
    """`blank()`."""
    return Call(kernel.bind("blank", "group.blank", kernel.dtype(op.dtype), str(kernel.count(op))), ())


def zero_unless(op: ops.ZeroUnless, kernel: Kernel) -> Call:
    """`zero_unless(x, condition)`."""
    made = kernel.bind("zero_unless", "group.zero_unless", kernel.dtype(op.x.tile.dtype), str(kernel.count(op)))
    return Call(made, (kernel.use(op.x), kernel.use(op.condition)))


def opaque(op: ops.Opaque, kernel: Kernel) -> Call:
    """`opaque(x)`."""
    made = kernel.bind("opaque", "group.opaque", kernel.dtype(op.x.tile.dtype), str(kernel.count(op)))
    return Call(made, (kernel.use(op.x),))


def bulk_store(op: ops.BulkStore, kernel: Kernel) -> Call:
    """`store_z(tile, z_map, i, j)`."""
    made = kernel.bind(
        f"store_{op.x.name}",
        "bulk.store",
        kernel.dtype(op.x.mut.dtype),
        kernel.layout(op.attributes["layout"]),
        *_numbers(op, "span", "buffers", "place", "first", "begins"),
        *(["packed=True"] if op.packed else []),
        *(_numbers(op, "apart") if op.apart else []),
    )
    return Call(made, (kernel.use(op.value), op.map, *map(kernel.use, op.index)))


def part(op: ops.Part, kernel: Kernel) -> Call:
    """`part_1(acc)`."""
    facts = op.attributes
    layouts = kernel.layout(facts["source"]), kernel.layout(facts["layout"])
    made = kernel.bind(f"part_{op.part}", "group.part", kernel.dtype(op.x.tile.dtype), *layouts, str(op.part))
    return Call(made, (kernel.use(op.x),))


def pack(op: ops.Pack, kernel: Kernel) -> Call:
    """`pack(z)`."""
    made = kernel.bind("pack", "bulk.pack_pairs", kernel.dtype(op.x.tile.dtype), str(kernel.count(op)))
    return Call(made, (kernel.use(op.x),))


def drain(op: ops.BulkDrain, kernel: Kernel) -> Call:
    """`drain()`."""
    return Call(kernel.bind("drain", "bulk.drain"), ())


EMITTERS = {
    ops.BulkPrefetch: prefetch,
    ops.RingStart: ring_start,
    ops.ClusterStart: cluster_start,
    ops.FollowOn: follow_on,
    ops.Registers: registers,
    ops.ClusterEnd: cluster_end,
    ops.Elected: elected,
    ops.GroupNumber: group_number,
    ops.FirstTile: first_tile,
    ops.TileStep: tile_step,
    ops.Turns: turns,
    ops.FirstTurn: first_turn,
    ops.TileIndex: tile_index,
    ops.Pieces: pieces,
    ops.Share: share,
    ops.AddUp: add_up,
    ops.DealOut: deal_out,
    ops.AddNearby: add_nearby,
    ops.TakeOver: take_over,
    ops.HandOver: hand_over,
    ops.RingAcquire: acquire,
    ops.BulkLoad: bulk_load,
    ops.RingWait: wait,
    ops.GroupMma: multiply,
    ops.OuterMma: outer,
    ops.GroupWait: group_wait,
    ops.RingRelease: release,
    ops.Blank: blank,
    ops.ZeroUnless: zero_unless,
    ops.Opaque: opaque,
    ops.BulkStore: bulk_store,
    ops.Pack: pack,
    ops.Part: part,
    ops.BulkDrain: drain,
}
