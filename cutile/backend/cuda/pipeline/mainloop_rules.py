"""Which kernels have a main loop (sm_90a).

All that such a kernel multiplies is one product, in a loop that does nothing else.

    for each tile block of this thread block:           the producer's warps      |  consumer warpgroups
        acc = zeros                                     for each tile block:     |  for each tile block:
        for k in 0..n:                                    for k in 0..n:         |    for k in 0..n:
            acc = mma(x[i, k], y[k, j], acc)     -->        acquire; load x, y   |      wait; multiply; release
        z[i, j] = convert(acc)                                                   |    z[i, j] = convert(acc)

What is special about such a loop is used: its operands may change places or lie across K, its iterations may be divided
among thread blocks, and a result may be stored under the next products.
The requirements are in the order of the tests; the first that does not hold is the answer.

Warpgroups need not share a tile evenly: two may have tile blocks of their own (ping-pong), or three share 192 rows.

    loads:        iterations of tile 0 | of tile 1  | of tile 2  | ...      one pipeline, whose stages one of them reads
    warpgroup 0:  multiply 0           | write 0    | multiply 2 | ...
    warpgroup 1:                       | multiply 1 | write 1    | ...

The pipeline says whose turn it is: a warpgroup begins its tile when its operands arrive, which is when the other's are
loaded. So the tensor cores have work at the end of a tile too, which counts where K is short. A thread has the sums of
a whole tile's rows, twice as many as where warpgroups share a tile. Not where a block has one tile: then half of it
does nothing.

Layouts count warps in powers of two. That of three warpgroups is that of four, of which the last would hold rows past
the tile's edge: so nothing is lost where its threads do something else, as long as every tile keeps to such a layout.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cutile.backend.cuda.mma_layouts import assign_layouts, group_accumulator
from cutile.backend.cuda.pipeline.accumulators import (
    THREE_WARPGROUPS,
    a_from_registers_accumulator,
    among_three,
    held_by_each_warpgroup,
    pingpong_accumulator,
    simt_accumulator,
)
from cutile.backend.cuda.pipeline.epilogue import only_store_of
from cutile.backend.cuda.pipeline.instructions import Instructions, instructions_of
from cutile.backend.cuda.pipeline.kernel import Kernel, Refused, require
from cutile.backend.cuda.pipeline.operand import Operand, operand_of
from cutile.backend.cuda.pipeline.plan import Dot, Plan, TmaStore
from cutile.backend.cuda.pipeline.reads import Reads
from cutile.backend.cuda.pipeline.rules import drafted_plan
from cutile.backend.cuda.pipeline.schedule import Cooperative, PingPong, SplitK, Tiles, block_axes, square_group
from cutile.backend.cuda.pipeline.split_k import division
from cutile.backend.cuda.pipeline.stages import with_stages
from cutile.backend.cuda.pipeline.subtiles import cut_epilogue
from cutile.backend.cuda.pipeline.swap_ab import swaps_ab
from cutile.backend.cuda.smem_layout import WGMMA_ROWS, SmemLayout
from cutile.backend.cuda.target import Architecture
from cutile.backend.gpu.layout import Layout
from cutile.backend.gpu.layout_assignment import ELEMENTWISE, is_tile
from cutile.backend.gpu.op_facts import constant_of, is_scalar_work
from cutile.backend.interface import CompileOptions
from cutile.dtypes import i32
from cutile.ir import Constant, For, Op, Value
from cutile.ops.cast import Convert
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadMut, LoadTile, StoreMut, TensorDim
from cutile.ops.registry import family
from cutile.ops.shape import Broadcast, Permute, Reshape

CLUSTERS = (1, 2, 4, 8)
"""Blocks that a cluster may have, where all kinds of device of an architecture are to take it."""
DELAYED_WARPGROUPS = 2
"""Warpgroups that share a tile whose result waits: one has small tiles, of which a thread block has one; three have no
registers left."""
MAX_DELAYED_PIECES = 4
"""Of a result that waits: each is some hundred instructions under a product."""
MAX_DELAYED_SUMS = 128
"""Of a thread: with half as many words of the result before they leave 32 of its registers to the rest."""
MAX_WHOLE_ROWS = 16
"""Rows of a result that one thread block of a cluster does whole: 16 x 4096 x 4096 is at 0.985 in two parts of 8 rows,
32 x 2048 x 8192 at 1.019 in parts."""
PINGPONG_WARPGROUPS = 2
"""Warpgroups that have tile blocks of their own."""
PINGPONG_WARPS = 4
"""That such a tile block has."""
NARROW_COLUMNS = 16
"""Columns for which what else follows the main loop is done at a time there, so that nothing spills."""
MAX_PINGPONG_SUMS = (192, 112, 0)
"""Sums of a thread for which there are registers: with what a conversion needs, nothing spills; where more than a
conversion follows the main loop, done for all columns at a time; where products are added up apart from the sums."""
MAX_THREE_WARPGROUP_SUMS = (100, 80, 64)
"""The same. Four groups of threads begin with 128 registers each, and one instruction's must fit into these; what
follows has the 160 that a thread then takes over."""

_KNOWN = (Constant, Broadcast, Permute, Reshape, LoadTile, LoadMut, StoreMut, TensorDim)


def plan_mainloop(kernel: Kernel, arch: Architecture, options: CompileOptions) -> Plan:
    """The plan for a kernel with a main loop.

    Raises:
        Refused: it has none.
    """
    kernel.require_specialisable(arch)
    blocks = options.occupancy
    require(blocks in (None, 1), f"{blocks} blocks to a multiprocessor are asked for")
    loop = _only_loop(kernel)
    how = instructions_of(kernel.products[0], kernel.definitions)
    by_rows = how.atom is None or how.rows % (WGMMA_ROWS * how.warpgroups) == 0
    require(by_rows, f"two warpgroups share the columns of a product of {how.rows} rows")
    return with_stages(_Rules(kernel, loop, kernel.products[0], how, options).plan(), kernel, arch)


def _only_loop(kernel: Kernel) -> For:
    """The loop that the one product of a kernel is in."""
    require(len(kernel.products) == 1, f"the kernel has {len(kernel.products)} products, not one")
    (product,) = kernel.products
    loops = [op for op in kernel.function.body.operations if isinstance(op, For) and product in op.body.operations]
    require(len(loops) == 1, "the product is not in a loop of the kernel's own")
    return loops[0]


@dataclass(frozen=True)
class _Rules:
    """What the rules know.

    A kernel, its main loop, the product there, and its instructions.
    """

    kernel: Kernel
    loop: For
    product: Mma
    how: Instructions
    options: CompileOptions

    def plan(self) -> Plan:
        """The plan, but for its stages."""
        kernel, loop, product, how = self.kernel, self.loop, self.product, self.how
        pingpong = self._asks_for_pingpong()
        operands = [operand_of(value, axis, kernel, loop) for value, axis in ((product.a, 1), (product.b, 0))]
        tiles, left, right = self._clustered(operands, alone=bool(kernel.guards) or kernel.stores_views)
        self._require_products_alone((left, right))
        accumulator = self._accumulator(left, right)
        store = only_store_of(kernel, loop, how.warpgroups) if how.by_instruction else None
        narrow = pingpong and cut_epilogue(kernel.function, loop, NARROW_COLUMNS) is not kernel.function
        if pingpong:
            self._require_pingpong(store, tiles)
            accumulator = pingpong_accumulator((accumulator.shape[0], accumulator.shape[1]))
            more = kernel.computes_behind(loop) and not narrow
            self._require_held("a group alone", MAX_PINGPONG_SUMS, accumulator, held_by_each_warpgroup, more)
        columns, interval = how.promotion(product.a.tile.shape[1], by_iterations=self._counts_in_i32)
        dot = Dot(
            *(product, left, right, accumulator),
            fresh=False,
            simt=how.atom is None,
            a_from_registers=how.a_from_registers,
            promote_columns=columns,
            promote_interval=interval,
        )
        schedule = PingPong() if pingpong else division(kernel, loop, dot, how.warpgroups, tiles, self.options)
        if isinstance(schedule, Cooperative) and self._may_delay(tiles, store):
            schedule = replace(schedule, delayed=True)
        if (
            isinstance(schedule, SplitK)
            and schedule.parts
            and self.kernel.transposes(self.loop)
            and self.product.acc.tile.shape[1] <= MAX_WHOLE_ROWS
        ):
            schedule = replace(schedule, parts=1)
        columns = accumulator.shape[1]
        if columns % NARROW_COLUMNS == 0:
            columns = SmemLayout(NARROW_COLUMNS if narrow else columns, 1, 2, k_major=False).span
        stores: dict[Op, TmaStore] = {}
        if store is not None:
            stores[store.op] = replace(store, box=(*store.box[:-1], columns), layout=accumulator)
        drafted = drafted_plan(kernel, {product: dot}, Reads(), how.warpgroups, self.options, loop)
        plain = drafted.slice.nests <= {loop, *kernel.guards} and all(map(is_scalar_work, drafted.slice.needed))
        require(plain, "an index or an assertion needs more than the main loop and numbers, or numbers from memory")
        return replace(
            drafted,
            stores=stores,
            tiles=replace(tiles, schedule=schedule),
            summing=loop,
            subtile=accumulator.core[1] if dot.simt else columns,
            narrow=narrow,
        )

    # The loop.

    @property
    def _bounds(self) -> tuple[Value, Value, Value]:
        return (self.loop.start, self.loop.stop, self.loop.step)

    @property
    def _counts_in_i32(self) -> bool:
        """Numbers that plans make of iterations are i32, and may be less than none."""
        return self.loop.start.tile.dtype is i32

    def _require_products_alone(self, operands: Sequence[Operand]) -> None:
        """That the loop adds products to what it carries, and nothing else."""
        product, body = self.product, self.loop.body
        ours = (product, *(op for operand in operands for op in (operand.load, *operand.passed)), *self.kernel.guards)
        for op in body.operations[:-1]:
            require(op in ours or is_scalar_work(op), f"the loop does more than multiply: {op.name}")
        require(body.terminator.operands == (product.result,), "the loop carries more than the sums")
        require(product.acc is body.arguments[1], "what is added to is not what the loop carries")
        require(self.kernel.uses[product.result] == 1, "the sums are used within the loop")
        step = constant_of(self.loop.step, self.kernel.definitions)
        require(step is not None and step > 0, "the loop's step is no positive constant")

    # The operands and the sums.

    def _clustered(self, operands: Sequence[Operand], *, alone: bool) -> tuple[Tiles, Operand, Operand]:
        """The order of tile blocks, and the operands as they are multiplied.

        A kernel that is `alone` shares with no others of a cluster. Where nothing is asked for, blocks share nothing:
        on an H200 it made no difference that could be told from noise for products of bf16 at 4096 to 16384 cubed, and
        cost 2 % at 2048.

        A cluster's last block may have no tile block: what it does for one beyond the grid must have no effect.
        """
        for operand in operands:
            require(not operand.steps and operand.merged == 1, "an operand's tiles do not lie side by side in a matrix")
        shape = self.product.acc.tile.shape
        rows, columns = shape[::-1] if self.kernel.transposes(self.loop) else shape
        left, right = operands
        lead = min(1, max(left.lead, right.lead))  # tile blocks of one matrix are neighbours
        blocks = 1 if alone else self.options.num_cta_in_cga or 1
        require(blocks in CLUSTERS, f"{blocks} blocks to a cluster are asked for; 1, 2, 4 or 8 share operands")
        # Of few rows there is one tile: no other block needs the same columns.
        grid = ([lead + 1] if swaps_ab(rows, columns) else [lead, lead + 1]) * (blocks > 1)
        axes = {one: block_axes((*one.index, *self._bounds), self.kernel.definitions) for one in (left, right)}
        fitting = [(one, at) for one in axes for at in grid if at not in axes[one] and one.smem_layout.split(blocks)]
        # The larger one is shared; of two that are as large, the one that is along the columns.
        shared, along = max(fitting, key=lambda pair: (pair[0].smem_layout.nbytes, pair[1]), default=(None, 0))
        left, right = (replace(one, shared=blocks) if one is shared else one for one in (left, right))
        grouped = square_group(rows, columns, blocks if shared and along == 0 else 1)
        return Tiles(blocks if shared else 1, along, rows=lead, columns=lead + 1, grouped=grouped), left, right

    def _accumulator(self, left: Operand, right: Operand) -> Layout:
        """Where the sums are, if the warpgroups share a tile."""
        (rows, columns), how, groups = self.product.acc.tile.shape, self.how, self.how.warpgroups
        if how.atom is None:
            layout = simt_accumulator(
                (rows, columns), 4 * groups, (left.smem_layout.k_major, right.smem_layout.k_major)
            )
            if layout is None:
                raise Refused(f"{rows} x {columns} sums do not divide among {4 * groups} warps")
            return layout
        usual = group_accumulator((rows, columns), groups)
        if groups == THREE_WARPGROUPS:
            dtype, more = self.product.a.tile.dtype, self.kernel.computes_behind(self.loop)
            require(not how.a_from_registers, f"three warp groups do not turn operands of {dtype} on the way in")
            self._require_held("three warp groups", MAX_THREE_WARPGROUP_SUMS, usual, among_three, more)
        if how.a_from_registers:
            return a_from_registers_accumulator(
                (rows, columns), groups, left.smem_layout.size, transposed=self.kernel.transposes(self.loop)
            )
        return usual

    def _require_held(
        self, whose: str, most: tuple[int, int, int], accumulator: Layout, holds: Callable[[Layout], bool], more: bool
    ) -> None:
        """Check that uneven warpgroups hold the sums, and what follows the main loop.

        They are uneven where they do not share a tile in equal parts.

        Args:
            whose: the warpgroups.
            most: sums of a thread, alone, where `more` follows the main loop, where products add up apart from them.
            accumulator: their layout.
            holds: whether these warpgroups hold every element of a tile.
            more: whether more than conversions follow the main loop.
        """
        apart, sums = self.how.promotes, accumulator.registers
        room = most[2 if apart else int(more)]
        beside = " beside their products" if apart else " beside what follows the loop" if more else ""
        require(sums <= room, f"a thread of {whose} would hold {sums} sums, and has registers for {room}{beside}")
        after = self.kernel.behind(self.loop)
        layouts = assign_layouts(self.kernel.function, accumulator.warps, ((self.product, accumulator),))
        for op in after:
            by_element = family(type(op)) in (*ELEMENTWISE, "grid") or isinstance(op, _KNOWN)
            require(by_element, f"warp groups would have to work together on {op.name}")
        for value in (value for op in after for value in (*op.operands, *op.results) if is_tile(value)):
            fits = holds(layouts[value])
            require(fits, f"a tile of {value.tile.shape} is not held by these warp groups alone")

    # The schedule.

    def _asks_for_pingpong(self) -> bool:
        """Whether the author asks for as many warps as ping-pong warpgroups have."""
        how, rows = self.how, self.product.acc.tile.shape[0]
        usual = 4 * how.warpgroups
        warps = self.options.num_worker_warps or usual
        pingpong = how.warpgroups == PINGPONG_WARPGROUPS and how.atom is not None and warps == PINGPONG_WARPS
        fits = pingpong or warps == usual
        require(fits, f"{warps} worker warps are asked for, a tile of {rows} rows has {usual}")
        return pingpong

    def _require_pingpong(self, store: TmaStore | None, tiles: Tiles) -> None:
        """That warpgroups may have tile blocks of their own."""
        plain = not (self.how.a_from_registers or self.how.promotes)
        require(plain, "warp groups alone add up 16-bit operands as they lie")
        require(not self.kernel.guards, "warp groups alone end at no assert")
        require(store is not None, "warp groups alone write by TMA, which does not store this result")
        require(tiles.cluster == 1, "warp groups alone share no operands with another block")
        moving = block_axes(self._bounds, self.kernel.definitions)
        require(not moving, "tile blocks of warp groups alone have as many turns each")

    def _may_delay(self, tiles: Tiles, store: TmaStore | None) -> bool:
        """Whether a result is stored under the next tile block's products.

        It waits in registers. It can if nothing but conversions and its store follow the main loop.
        """
        shared = self.how.warpgroups == DELAYED_WARPGROUPS and tiles.cluster == 1
        if store is None or not shared or self.how.promotes or not self._counts_in_i32:
            return False
        kind = store.op.value.tile
        behind = [op for op in self.kernel.behind(self.loop) if op is not store.op]
        plain = all(isinstance(op, Convert) and op.result.tile == kind for op in behind)
        pieces = SmemLayout(store.value.tile.shape[1], WGMMA_ROWS, 2, k_major=False).count
        return plain and self.how.sums <= MAX_DELAYED_SUMS and pieces <= MAX_DELAYED_PIECES
