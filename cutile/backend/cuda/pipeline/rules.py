"""The rules for warp-specialised plans of any number of products and loops.

The requirements stand in the order of their tests. The lowered IR keeps the text of the first that does not hold.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from cutile.backend.cuda.budget import SPARE_REGISTERS, registers
from cutile.backend.cuda.mma_layouts import across_accumulator, assign_layouts, group_accumulator
from cutile.backend.cuda.pipeline.accumulators import among_three
from cutile.backend.cuda.pipeline.epilogue import tma_stores_of
from cutile.backend.cuda.pipeline.instructions import MAX_PROMOTE_DEPTH, Instructions, instructions_of
from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.pipeline.operand import Operand, is_loaded, operand_of
from cutile.backend.cuda.pipeline.plan import Dot, Plan, Written
from cutile.backend.cuda.pipeline.reads import Reads, anchors_of, reads_of
from cutile.backend.cuda.pipeline.schedule import Cooperative, Order, Schedule, Tiles, order_of
from cutile.backend.cuda.pipeline.slice import producer_slice
from cutile.backend.cuda.pipeline.split_k import division, summing_loop
from cutile.backend.cuda.pipeline.stages import groups_of, with_stages
from cutile.backend.cuda.smem_layout import WARPGROUP, WGMMA_ROWS, SmemLayout, smem_layout_fits
from cutile.backend.cuda.target import Architecture, Lack, Refused, asked_for, require, undivided, would_hold
from cutile.backend.gpu.layout import Layout, round_up
from cutile.backend.gpu.layout_assignment import LayoutAssignment, is_tile
from cutile.backend.gpu.op_facts import constant_of, reads
from cutile.backend.interface import CompileOptions
from cutile.ir import Block, For, Op, TileType, Value
from cutile.ops.debug import Assert
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadTile, StoreMut
from cutile.ops.shape import Permute
from cutile.ops.view import LoadView, StoreView

GROUP_ROWS = 12
"""Rows of tile blocks in a group of the rasterisation: 132 multiprocessors then work on about 12 x 11 tiles."""
GROUP_ROWS_LONGEST_FIRST = 32
"""The same where the longest tile blocks of a group come first. Larger groups are fewer, and so are the places where
long tile blocks follow short ones. With 128 heads of causal attention, 32 are 1.01 to 1.10 times as fast as 12
(`docs/benchmarks/loops`)."""
MAX_SUMS_AND_OPERANDS = {1: 176, 2: 208, 3: 128}
"""Registers of a consumer thread that accumulators and left operands may fill, by the number of consumer warpgroups.
The rest of its 255, 232 or 160 registers (`plan.REGISTERS`) is for addresses, and for the values that are computed from
accumulators."""
QUAD_BITS = 8
"""Bits of an element of which a lane has four columns side by side in a left operand. Of an accumulator it has two (PTX
ISA, "Register Fragments")."""
MAX_SUMS_OF_ONE_MMA = {1: 128, 2: 128, 3: 96}
"""Accumulator registers of one product, by the number of consumer warpgroups. The widest `wgmma`, of 64 x 256 sums of
f32, has 128 in each of its 128 threads. With three warpgroups, ptxas counts 128 registers for each of 512 threads,
whatever `setmaxnreg` adds: it refuses an instruction with 104 accumulator registers ("Insufficient registers",
C7602)."""


def plan(kernel: Kernel, arch: Architecture, options: CompileOptions) -> Plan:
    """The plan for a kernel's products.

    Raises:
        Refused: no plan fits the kernel; the text says why.
    """
    kernel.require_specialisable(arch)
    require((options.num_cta_in_cga or 1) == 1, asked_for(Lack.CLUSTER, options.num_cta_in_cga))
    all_instructions = {op: instructions_of(op, kernel.definitions) for op in kernel.products}
    warpgroups = _warpgroups(all_instructions)
    warps = options.num_worker_warps
    require(warps in (None, 4 * warpgroups), asked_for(Lack.WARPS, warps, f", the tiles have {4 * warpgroups}"))
    dots: dict[Op, Dot] = {op: _dot(kernel, op, all_instructions[op], warpgroups) for op in all_instructions}
    blocks = list(dict.fromkeys(kernel.home.values()))
    _interleave(kernel, dots, warpgroups)
    _reuse_dead_accumulators(kernel, dots)
    with_room = [block for block in blocks if _held(block, dots, warpgroups) <= MAX_SUMS_AND_OPERANDS[warpgroups]]
    by_threads = reads_of(kernel, dots, with_room)
    for load, operand in by_threads.operands.items():
        name = load.operands[0].name
        require(not operand.rounded, f"threads read tiles of {name}, which TMA rounds to tf32 for products alone")
    anchors = anchors_of(kernel, dots, by_threads, warpgroups)
    layouts = _require_layouts(kernel, dots.values(), by_threads, anchors, warpgroups)
    # Thread blocks that share a multiprocessor reallocate no registers (`Plan.registers`): the producer's threads have
    # as many as the consumers'.
    occupancy = options.occupancy or 1
    equal_share = registers(arch, WARPGROUP * (warpgroups + 1), occupancy) - SPARE_REGISTERS
    room = equal_share if occupancy > 1 else MAX_SUMS_AND_OPERANDS[warpgroups]
    _require_room(blocks, dots, warpgroups, room)
    drafted = drafted_plan(kernel, dots, by_threads, warpgroups, options, None)
    order = order_of(drafted.slice.nests, kernel.definitions)
    # In a group of the rasterisation, rows vary fastest. So the axis along which loops grow is that of the columns: the
    # longest tile blocks then come first. Loops that grow along another axis, or along several, leave axis 0 the rows.
    rows, columns = (1, 0) if order.backwards == (0,) else (0, 1)
    group_rows = GROUP_ROWS_LONGEST_FIRST if order.backwards else GROUP_ROWS
    tiles = Tiles(rows=rows, columns=columns, grouped=group_rows, order=order)
    loop = summing_loop(kernel, drafted.slice.nests)
    if isinstance(loop, For):
        why = "the kernel asserts" if kernel.guards else "a store's index is computed" if kernel.stores_views else ""
        loop = why or (loop if order == Order() else "tile blocks have loops of different lengths")
    if isinstance(loop, str):
        schedule: Schedule = Cooperative(loop)
    else:
        schedule = division(kernel, loop, dots[kernel.products[0]], warpgroups, tiles, options)
    if isinstance(schedule, Cooperative):
        require((options.num_pieces or 1) == 1, asked_for(Lack.PIECES, options.num_pieces, "", schedule.undivided))
    scheduled = replace(
        drafted,
        occupancy=occupancy,
        reads=by_threads.operands,
        kept=by_threads.kept,
        stores=tma_stores_of(kernel, dots, layouts, warpgroups),
        anchors=tuple(anchors),
        tiles=replace(tiles, schedule=schedule),
        summing=loop if isinstance(loop, For) else None,
    )
    return with_stages(scheduled, kernel, arch)


def drafted_plan(
    kernel: Kernel, dots: Mapping[Op, Dot], reads: Reads, warpgroups: int, options: CompileOptions, mainloop: For | None
) -> Plan:
    """A plan with pipelines and the producer's slice, without stages and schedule."""
    groups, buffers = groups_of(kernel, dots, reads)
    # Ahead of a store, consumers ask the producer for failed assertions: both roles have to reach the store. With a
    # main loop, the full stages imply that assertions were tested (`Plan.verdict`).
    stores = [op for op in kernel.order if kernel.guards and mainloop is None and isinstance(op, StoreMut | StoreView)]
    indices = [value for group in groups.values() for operand in group.operands for value in operand.index]
    asserted = [value for op in kernel.guards if isinstance(op, Assert) for value in op.operands]
    slice_ = producer_slice(kernel, [*indices, *asserted], (*groups, *kernel.guards, *stores))
    return Plan(warpgroups, dots, groups, (), buffers, slice_, kernel.guards, options.limit_waits, mainloop=mainloop)


def _warpgroups(all_instructions: Mapping[Mma, Instructions]) -> int:
    """The number of warpgroups that share every product."""
    require(bool(all_instructions), "the kernel has no product")
    for op, form in all_instructions.items():
        dtype = op.a.tile.dtype
        require(form.atom is not None, f"there is no warpgroup product of {dtype} by {op.b.tile.dtype}", Lack.TF32)
        require(form.by_instruction, f"an operand of {dtype} lies across K", Lack.K_MAJOR)
    count = max(form.warpgroups for form in all_instructions.values())
    for op in all_instructions:
        rows, _ = op.acc.tile.shape
        require(_layout_of(op.acc, count) is not None, undivided(f"{rows} rows", f"{count} warpgroups"))
    return count


def _layout_of(value: Value, warpgroups: int, neighbours: int = 2) -> Layout | None:
    """The layout of an accumulator or left operand; None if it cannot be shared.

    Warpgroups share the rows. Two share the columns of 64 rows, in whole panels of shared memory. A half is a power of
    two, as layouts are, and has no more than the 256 columns of an instruction.
    """
    rows, columns = value.tile.shape
    if rows % (WGMMA_ROWS * warpgroups) == 0:
        return group_accumulator((rows, columns), warpgroups, neighbours)
    whole = rows == WGMMA_ROWS and warpgroups == 2 and columns in (64, 128, 256, 512)
    return across_accumulator((rows, columns), warpgroups) if whole else None


def _dot(kernel: Kernel, op: Mma, instructions: Instructions, warpgroups: int) -> Dot:
    """The plan of one product.

    Args:
        kernel: the kernel. Several of its products may read one load.
        op: the product.
        instructions: its instructions.
        warpgroups: the warpgroups that share every product.
    """
    dtype, definitions = op.a.tile.dtype, kernel.definitions
    right = operand_of(op.b, 0, kernel)
    left = written = None
    halved = op.acc.tile.shape[0] % (WGMMA_ROWS * warpgroups) != 0
    try:
        left = operand_of(op.a, 1, kernel)
    except Refused:  # TMA cannot load it: only a computed operand remains
        computed, fits_registers = definitions.get(op.a), dtype.is_half or dtype.bits == QUAD_BITS
        if isinstance(computed, LoadTile | LoadView) or (is_loaded(op.a, definitions) and not fits_registers):
            raise
        require(fits_registers, f"a left operand of {dtype} is computed", Lack.LOADS_IN_LOOP)
        if dtype.is_half and isinstance(computed, Permute) and _from_sums(computed.x, definitions):
            written = _written(computed.x, (computed,))
        elif dtype.is_half and halved and _from_sums(op.a, definitions):
            written = _written(op.a)
        require(written is not None or not halved, "warpgroups have no rows of a left operand in common")
    fresh = constant_of(op.acc, definitions) == 0
    # Sums that begin at zero with each product are added up in f32 by the kernel itself. So they need no partial
    # accumulators, which this plan does not have.
    adds_in_f32 = fresh and op.a.tile.shape[1] <= MAX_PROMOTE_DEPTH
    require(not instructions.promotes or adds_in_f32, f"sums of {dtype} are added up in f32 on the way")
    accumulator = _layout_of(op.acc, warpgroups)
    assert accumulator is not None  # `_warpgroups` has required it
    return Dot(op, left, right, accumulator, fresh, written=written)


def _interleave(kernel: Kernel, dots: dict[Op, Dot], warpgroups: int) -> None:
    """Give sums that become left operands of 8 bits the layout of such operands.

    Then no element moves between lanes. For that, the even rows of the right operand, which are the columns of the
    sums, lie ahead of the odd ones in shared memory (`SmemLayout.interleaved`).
    """
    lefts = [dot.op for dot in dots.values() if dot.in_registers]
    if all(op.a.tile.dtype.bits != QUAD_BITS for op in lefts):
        return
    layouts = assign_layouts(kernel.function, round_up(4 * warpgroups), [(op, dots[op].accumulator) for op in dots])
    for op in lefts:
        bits = {other.a.tile.dtype.bits for other in lefts if layouts.agree(other.a, op.a)}
        summed = [dot for dot in dots.values() if layouts.agree(dot.op.result, op.a)]
        if bits == {QUAD_BITS} and all(_may_interleave(dot.right, kernel) for dot in summed):
            for dot in summed:
                right = replace(dot.right, smem_layout=replace(dot.right.smem_layout, interleaved=True))
                dots[dot.op] = replace(dot, accumulator=_layout_of(dot.op.acc, warpgroups, 4), right=right)
            dots[op] = replace(dots[op], neighbours=4)


def _may_interleave(operand: Operand, kernel: Kernel) -> bool:
    """Whether a right operand's rows may be interleaved.

    It is K-major, of one matrix, and nothing but this product reads it.
    """
    alone = all(len(kernel.users[value]) == 1 for op in (operand.load, *operand.passed) for value in op.results)
    return alone and operand.smem_layout.k_major and operand.merged == 1


def _reuse_dead_accumulators(kernel: Kernel, dots: dict[Op, Dot]) -> None:
    """Let accumulators that begin at zero take over registers of dead accumulators.

    Of several dead accumulators, the one that began last gives its registers. Left to itself, the linker gives each
    product registers of its own, and spills others.
    """
    sums: dict[Dot, Value] = {}  # by the product that begins an accumulator, its value after further products
    for dot in list(dots.values()):
        sums = {first: dot.op.result if value is dot.op.acc else value for first, value in sums.items()}
        operations = kernel.home[dot.op].operations
        ahead = set(operations[: operations.index(dot.op)])
        alike = [other for other in sums if other.accumulator == dot.accumulator]
        dead = [other for other in alike if ahead.issuperset((other.op, *kernel.users[sums[other]]))]
        if dot.fresh and dead:
            dots[dot.op] = replace(dot, over=sums.pop(dead[-1]))
        sums |= {dot: dot.op.result} if dot.fresh else {}


def _from_sums(value: Value, definitions: Mapping[Value, Op]) -> bool:
    """Whether a tile is computed from a product's sums, or from a loop's variables.

    The layout of such a tile is fixed. A tile that is computed from loads alone takes the layout of its readers.
    """
    pending, seen = [value], set[Value]()
    while pending:
        value = pending.pop()
        if value in seen or not is_tile(value):
            continue
        seen.add(value)
        op = definitions.get(value)
        if op is None or isinstance(op, Mma) or op.regions:
            return True
        pending += [operand for operand in op.operands if isinstance(operand.type, TileType)]
    return False


def _written(value: Value, passed: tuple[Op, ...] = ()) -> Written:
    """A computed left operand that goes through shared memory.

    Its rows are in registers of several warpgroups: it is a transposed tile (`passed`), or warpgroups share its
    columns.
    """
    rows, columns = value.tile.shape
    size = value.tile.dtype.bits // 8
    require(smem_layout_fits(columns, rows, size), f"the computed tile {(rows, columns)} does not lie in whole panels")
    return Written(value, SmemLayout(columns, rows, size, k_major=not passed), passed)


def _require_layouts(
    kernel: Kernel, dots: Collection[Dot], by_threads: Reads, anchors: Sequence[tuple[Op, Layout]], warpgroups: int
) -> LayoutAssignment:
    """The layouts of all tiles, if products find their operands in them.

    `wgmma` takes left operands from registers in an accumulator's layout.
    """
    accumulators = [(dot.op, dot.accumulator) for dot in dots]
    layouts = assign_layouts(kernel.function, round_up(4 * warpgroups), [*accumulators, *anchors])
    for dot in dots:
        if dot.left is None:
            value = dot.op.a if dot.written is None else dot.written.value
            layout = _layout_of(value, warpgroups, dot.neighbours)
            require(layout is not None, undivided(f"{value.tile.shape[0]} rows of a left operand", "warpgroups"))
            require(layouts[value] == layout, "the left operand is computed in another layout than sums have")
        require(layouts[dot.op.result] == dot.accumulator, "the sums are used in another layout")
    if warpgroups == 3:
        # Loads into shared memory, and the operations between them and products: no thread has their tiles.
        staged = {op for dot in dots for operand in dot.operands for op in (operand.load, *operand.passed)}
        staged = staged - by_threads.operands.keys() - by_threads.kept
        tiles = [value for op in kernel.order if op not in staged for value in op.results if is_tile(value)]
        require(all(among_three(layouts[value]) for value in tiles), "three warpgroups do not hold every tile alone")
    return layouts


def _require_room(blocks: Iterable[Block], dots: Mapping[Op, Dot], warpgroups: int, room: int) -> None:
    """Require that a block's accumulators and left operands fit in `room` registers."""
    for block in blocks:
        held = _held(block, dots, warpgroups)
        require(held <= room, would_hold(held, f" and operands, and has room for {room}"))
        largest = max((dots[op].accumulator.registers for op in block.operations if op in dots), default=0)
        most = MAX_SUMS_OF_ONE_MMA[warpgroups]
        require(largest <= most, would_hold(largest, f" of one product, and {most} at most compile"))


def _held(block: Block, dots: Mapping[Op, Dot], warpgroups: int) -> int:
    """Registers of a thread that a block's accumulators and left operands fill."""
    here = [dots[op] for op in block.operations if op in dots]
    bits = max((dot.op.a.tile.size * dot.op.a.tile.dtype.bits for dot in here if dot.left is None), default=0)
    return _most_sums(block, here) + bits // (32 * WARPGROUP * warpgroups)


def _most_sums(block: Block, dots: Sequence[Dot]) -> int:
    """The most registers of sums, and of tiles from them, that a thread holds at once.

    Tiles of fewer than 32 bits are left out. A loop's accumulator is live in the whole body. Any other is live from its
    product to its last use. The search for its uses ends at an addition to the accumulator of a loop.
    """
    places = {op: place for place, op in enumerate(block.operations)}
    results = {dot.op.result for dot in dots}
    held: list[tuple[int, int, int]] = []
    summed: set[Value] = set()
    for dot in dots:
        if dot.op.acc in results:  # it adds to the registers of another product, which are counted there
            continue
        begin, end = places[dot.op], places[dot.op]
        values = {dot.op.result}
        for op, place in places.items():
            if values.intersection(reads(op)):
                end = place
                if not summed.intersection(reads(op)):
                    values.update(value for value in op.results if not op.regions and _is_as_wide(value, dot.op.result))
        # The terminator yields it, or the product adds to a value that the loop carries.
        if block.operations[end].terminates or dot.op.acc in block.arguments:
            begin, end = 0, len(places)
            summed |= values
        held.append((begin, end, dot.accumulator.registers))
    return max((sum(count for begin, end, count in held if begin <= at <= end) for at in places.values()), default=0)


def _is_as_wide(value: Value, sums: Value) -> bool:
    """Whether a value takes as many registers as an accumulator."""
    return isinstance(value.type, TileType) and value.tile.size == sums.tile.size and value.tile.dtype.bits >= 32
