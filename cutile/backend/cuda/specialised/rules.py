"""Which kernels are lowered to specialised warps: some load by the copy engine, the others multiply (sm_90a).

    for each tile block of this thread block:           the last four warps      |  the groups of four before them
        acc = zeros                                     for each tile block:     |  for each tile block:
        for k in 0..n:                                    for k in 0..n:         |    for k in 0..n:
            acc = mma(x[i, k], y[k, j], acc)     -->        acquire; load x, y   |      wait; multiply; release
        z[i, j] = convert(acc)                                                   |    z[i, j] = convert(acc)

The loading warps run what the loads' indices and the loop's bounds need, and no more. They run ahead by the ring's
slots, also into the next tile block while the others still write the last one. The rules are in the order of the
tests in `plan`; the first that does not hold is the answer, and stands in the lowered IR.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from cutile.analysis.block_order import why_linear
from cutile.backend.cuda.hints import slots_wanted
from cutile.backend.cuda.layout import Layout, group_accumulator
from cutile.backend.cuda.panels import ALIGNMENT, ROWS, Panels
from cutile.backend.cuda.pipeline.delayed import WARPGROUPS, may_delay
from cutile.backend.cuda.pipeline.plan import WARP_ROWS, Dot, Group, Plan, Tiles, TmaStore, square
from cutile.backend.cuda.pipeline.slice import Slice, parents_of, producer_slice
from cutile.backend.cuda.specialised.cluster import block_axes, cluster_of
from cutile.backend.cuda.specialised.crosswise import crosswise_accumulator
from cutile.backend.cuda.specialised.exchange import exchanged, sums_of
from cutile.backend.cuda.specialised.guards import guards, is_scalar_work
from cutile.backend.cuda.specialised.instructions import Instructions, instructions_of
from cutile.backend.cuda.specialised.nearby import parts_nearby
from cutile.backend.cuda.specialised.operand import Operand, operand_of
from cutile.backend.cuda.specialised.outer import outer_groups
from cutile.backend.cuda.specialised.product_loop import loop_of_products, require_products_alone
from cutile.backend.cuda.specialised.reads import reads
from cutile.backend.cuda.specialised.refusal import Refused, require
from cutile.backend.cuda.specialised.split import MOST_PIECES, why_too_many, why_whole
from cutile.backend.cuda.specialised.warpgroups import (
    NARROW,
    PINGPONG,
    PINGPONG_WARPS,
    TALL,
    THREE,
    goes_narrow,
    own_accumulator,
    why_not_pingpong,
    why_not_three,
)
from cutile.backend.cuda.target import Architecture
from cutile.backend.interface import CompileOptions
from cutile.dtypes import bf16, f16, i32
from cutile.ir.constant import Constant
from cutile.ir.control import For
from cutile.ir.core import Function, Op
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadMut, LoadTile, StoreMut
from cutile.ops.view import StoreView

MOST_SLOTS = 8
GOOD_SLOTS = 4
"""Slots of a ring for which a store makes do with fewer places."""
MOST_BUFFERS = 4
"""Places per warp for pieces of a tile on their way to memory."""


def plan(function: Function, arch: Architecture, options: CompileOptions) -> Plan | str:
    """The plan for a kernel, or the reason why there is none."""
    try:
        return _plan(function, arch, options)
    except Refused as reason:
        return str(reason)


def _plan(function: Function, arch: Architecture, options: CompileOptions) -> Plan:
    require((arch.major, arch.suffix) == (9, "a"), f"{arch.name} has no warp group products (sm_90a has)")
    loop, product = loop_of_products(function)
    definitions = {value: op for op in function.walk() for value in op.results}
    how = instructions_of(product, definitions)
    rows, columns = product.acc.tile.shape
    groups, swapped = how.groups, how.swapped
    require(not (why := why_linear(function)), f"tile blocks keep their order: {why}")
    stores_views = any(isinstance(op, StoreView) for op in function.walk())
    unsafe = bool(function.facts.get("unsafe", False))
    require(not (unsafe and stores_views), "what is stored by address may be what is loaded ahead")
    wanted_warps = options.num_worker_warps or 4 * groups
    solo = groups == PINGPONG and how.form is not None and wanted_warps == PINGPONG_WARPS
    fits = solo or wanted_warps == 4 * groups
    require(fits, f"{wanted_warps} worker warps are asked for, a tile of {rows} rows has {4 * groups}")
    require(options.occupancy in (None, 1), f"{options.occupancy} blocks to a multiprocessor are asked for")
    uses = Counter(value for op in function.walk() for value in op.operands)
    left = operand_of(product.a, 1, loop.body.operations, definitions, uses)
    right = operand_of(product.b, 0, loop.body.operations, definitions, uses)
    for operand in (left, right):
        require(not operand.steps and operand.merged == 1, "an operand's tiles do not lie side by side in a matrix")
    if swapped:
        left, right = right, left
    bounds = (loop.start, loop.stop, loop.step)
    moving = bool(block_axes(bounds, definitions))
    axes = {each: block_axes((*each.index, *bounds), definitions) for each in (left, right)}
    asserts = guards(function, loop)
    if asserts is None:
        raise Refused("it asserts under conditions or in loops that the loading warps do not follow")
    # A cluster's last block may have no tile block: what it does for one beyond the grid must have no effect.
    by_itself = bool(asserts) or stores_views
    hints = replace(options, num_cta_in_cga=1) if by_itself else options
    cluster, along, left, right = cluster_of(left, right, axes, hints, swapped, exchanged(rows, columns))
    require_products_alone(loop, product, (left, right), asserts, definitions, uses)
    asserted = [value for op in asserts for value in reads(op)]
    parents = dict(parents_of(function.body, ()))
    slice_ = producer_slice([*left.index, *right.index, *asserted], [left.load], parents, definitions)
    others = slice_.nests.difference((loop, *asserts))
    plain = not others and all(map(is_scalar_work, slice_.needed))
    require(plain, "an index of a load depends on more than numbers, or on numbers from memory")
    accumulator = _accumulator(function, loop, product, how, left, right)
    pieces = min(options.num_pieces or 1, MOST_PIECES)
    counts = loop.start.tile.dtype  # numbers that plans make of turns are i32, and may be less than none
    whole_for = why_whole(definitions.get(loop.carried[0]), moving, cluster, groups)
    whole_for = whole_for or why_too_many(function, loop, accumulator, how.crosswise)
    if not whole_for and counts is not i32:
        whole_for = f"the loop counts in {counts}, and pieces in i32"
    store = _bulk_store(function, (rows, columns)) if how.by_instruction else None
    if solo:
        _require_alone(how, asserts, store, cluster, moving)
        accumulator = own_accumulator((rows, columns))
        require(not (why := why_not_pingpong(function, loop, product, accumulator)), why)
        whole_for = "warp groups have tile blocks of their own"
    divisible = not whole_for
    if divisible and pieces < 2:
        whole_for = "CompileOptions(num_pieces=1) says so" if options.num_pieces else "nobody asks this kernel for it"
    parts = 0 if whole_for else parts_nearby(function, loop, accumulator, pieces)
    trails = (
        (store is not None and groups == WARPGROUPS and cluster == 1 and counts is i32)
        and not (solo or how.form is None or how.apart or not whole_for)
        and may_delay(function, loop, store, how.sums, _staged(columns).count)
    )
    promoted, together = how.promoted(product.a.tile.shape[1], by_turns=counts is i32)
    zeros = definitions.get(loop.carried[0])
    dot = Dot(
        product,
        left,
        right,
        accumulator,
        fresh=isinstance(zeros, Constant) and zeros.value == 0,
        by_fma=how.form is None,
        swapped=swapped,
        crosswise=how.crosswise,
        promoted=promoted,
        interval=together,
    )
    lead = min(1, max(left.lead, right.lead))  # tile blocks of one matrix are neighbours
    tiles = Tiles(
        cluster=cluster,
        along=along,
        rows=lead,
        columns=lead + 1,
        grouped=square(rows, columns, cluster if along == 0 else 1),
        pingpong=solo,
        pieces=pieces,
        parts=parts,
        whole=whole_for,
        divisible=divisible,
    )
    narrow = solo and goes_narrow(function, loop)
    span = Panels(NARROW if narrow else columns, 1, 2, k_major=False).span
    subtile = 0 if swapped else span if columns % 16 == 0 else columns  # swapped, columns are dealt to warps
    loads: list[Op] = [left.load, right.load]
    order = {op: place for place, op in enumerate(loop.body.operations)}
    group = Group(
        (left, right), 0, within=True, first=min(loads, key=order.__getitem__), last=max(loads, key=order.__getitem__)
    )
    box = (WARP_ROWS, span)
    stores: dict[Op, TmaStore] = {}
    if store is not None:
        stores[store] = TmaStore(store, store.value, box, (), accumulator, 0, delayed=trails)
    dots: dict[Op, Dot] = {}
    dots[product] = dot
    first = Plan(
        warpgroups=groups,
        dots=dots,
        groups=dict.fromkeys(loads, group),
        stages=(0,),
        operands=((left, right),),
        slice=Slice(slice_.needed, frozenset[Op]([loop]), {loop: ()}),
        guards=frozenset(asserts),
        limited=options.limit_waits,
        stores=stores,
        tiles=tiles,
        mainloop=loop,
        subtile=accumulator.core[1] if dot.by_fma else subtile,
        narrow=narrow,
    )
    return _with_room(first, arch)


def _accumulator(
    function: Function, loop: For, product: Mma, how: Instructions, left: Operand, right: Operand
) -> Layout:
    """Where the sums are, if the groups share a tile."""
    rows, columns = product.acc.tile.shape
    groups = how.groups
    if how.form is None:
        found = outer_groups((rows, columns), 4 * groups, (left.panels.k_major, right.panels.k_major))
        if found is None:
            raise Refused(f"{rows} x {columns} sums do not divide among {4 * groups} warps")
        return found
    usual = sums_of(rows, columns, groups) if how.swapped else group_accumulator((rows, columns), groups)
    if groups == THREE:
        dtype = product.a.tile.dtype
        require(not how.swapped, f"{TALL} columns of few rows do not divide among 2 warp groups")
        require(not how.crosswise, f"three warp groups do not turn operands of {dtype} on the way in")
        require(not (why := why_not_three(function, loop, product, usual, apart=how.apart)), why)
    if how.crosswise:
        return crosswise_accumulator((rows, columns), groups, left.panels.size, exchanged=how.swapped)
    return usual


def _require_alone(
    how: Instructions, asserts: Collection[Op], store: StoreMut | None, cluster: int, moving: bool
) -> None:
    """That warp groups may have tile blocks of their own."""
    plain = not (how.swapped or how.crosswise or how.apart)
    require(plain, "warp groups alone add up 16-bit operands as they lie")
    require(not asserts, "warp groups alone end at no assert")
    require(store is not None, "warp groups alone write by the copy engine, which does not store this result")
    require(cluster == 1, "warp groups alone share no operands with another block")
    require(not moving, "tile blocks of warp groups alone have as many turns each")


def _staged(columns: int) -> Panels:
    """How a warp group's rows of a result lie on their way to memory."""
    return Panels(columns, ROWS, 2, k_major=False)


def _with_room(plan: Plan, arch: Architecture) -> Plan:
    """The plan with stages of its pipeline, and places of each warp for what is stored: as many as shared memory
    takes."""
    dot, store = plan.dot, plan.store
    rows, columns = dot.op.acc.tile.shape
    together = 1 if plan.tiles.pingpong else plan.warpgroups
    pieces = rows // (ROWS * together) * columns // store.span if store else 0
    most = slots_wanted((operand.latency for operand in dot.operands), MOST_SLOTS)
    for buffers in range(min(pieces, MOST_BUFFERS), 0, -1) if store else [0]:
        stores: dict[Op, TmaStore] = {op: replace(each, buffers=buffers) for op, each in plan.stores.items()}
        fitted = replace(plan, stores=stores)
        stages = min(most, (arch.shared_bytes - ALIGNMENT - fitted.staging_bytes) // plan.stage_bytes(0))
        if stages >= min(GOOD_SLOTS, most) or (buffers <= 1 and stages >= 2):
            return replace(fitted, stages=(stages,))
    raise Refused(f"two slots of {plan.stage_bytes(0)} bytes do not fit into shared memory")


def _bulk_store(function: Function, tile: tuple[int, ...]) -> StoreMut | None:
    """The one store that the copy engine can do: of 16-bit rows, of a tile like the sums', whose rows each warp has
    sixteen of, to a tensor that the kernel does not read."""
    stores = [op for op in function.walk() if isinstance(op, StoreMut)]
    if len(stores) != 1 or stores[0] not in function.body.operations:
        return None
    (store,) = stores
    mut = store.x.mut
    read = any(isinstance(op, LoadMut | LoadTile) and op.operands[0] is store.x for op in function.walk())
    rows = mut.tensor.rank == 2 and mut.tensor.unit_axis == 1 and mut.tensor.alignment == 16
    fits = rows and mut.dtype in (f16, bf16) and mut.tile == tile and mut.tile[1] % 16 == 0
    return store if fits and not read else None
