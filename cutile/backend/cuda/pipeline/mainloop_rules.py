"""The rules for plans of a main loop (sm_90a).

A kernel has a main loop if its only product is in a loop that does nothing else.

    for each tile block of this thread block:           the producer's warps      |  consumer warpgroups
        acc = zeros                                     for each tile block:     |  for each tile block:
        for k in 0..n:                                    for k in 0..n:         |    for k in 0..n:
            acc = mma(x[i, k], y[k, j], acc)     -->        acquire; load x, y   |      wait; multiply; release
        z[i, j] = convert(acc)                                                   |    z[i, j] = convert(acc)

Such a loop allows more than any loop of products: its operands may lie across K, its iterations may be divided among
thread blocks, and its result may be stored under the next tile block's products. The requirements stand in the order of
their tests. The lowered IR keeps the text of the first that does not hold.

Warpgroups need not share a tile evenly: two may have tile blocks of their own (ping-pong), or three share 192 rows.

    loads:        iterations of tile 0 | of tile 1  | of tile 2  | ...      one pipeline; one warpgroup reads a stage
    warpgroup 0:  multiply 0           | write 0    | multiply 2 | ...
    warpgroup 1:                       | multiply 1 | write 1    | ...

The tile blocks' loads follow each other in the pipeline, so a warpgroup begins its tile when the other's loads are
over. The tensor cores have work during epilogues too, which counts where K is short. A thread has twice as many
accumulator registers as where warpgroups share a tile. In a thread block with one tile, one warpgroup does nothing.

Layouts count warps in powers of two. The layout of three warpgroups is that of four: the last would hold rows past the
tile's edge. Its threads are the producer's, which holds no tiles; so every tile has to have such a layout.
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
from cutile.backend.cuda.pipeline.kernel import Kernel
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
from cutile.backend.cuda.target import Architecture, Lack, Refused, asked_for, require, undivided, would_hold
from cutile.backend.gpu.layout import Layout
from cutile.backend.gpu.layout_assignment import ELEMENTWISE, is_tile
from cutile.backend.gpu.op_facts import constant_of, is_scalar_work
from cutile.backend.interface import CompileOptions
from cutile.dtypes import i32
from cutile.ir import Constant, For, Op
from cutile.ops.cast import Convert
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadMut, LoadTile, StoreMut, TensorDim
from cutile.ops.registry import family
from cutile.ops.shape import Broadcast, Permute, Reshape

CLUSTERS = (1, 2, 4, 8)
"""Thread blocks of a cluster: powers of two up to 8, the most that every device takes."""
DELAYED_WARPGROUPS = 2
"""Warpgroups that share a tile with a delayed epilogue. One warpgroup has small tiles: a thread block has a single one,
and no next one to delay its result to. Three warpgroups have no registers left."""
MAX_DELAYED_SUBTILES = 4
"""Subtiles of a delayed result. Each is stored under a product of its own, and is some hundred instructions there."""
MAX_DELAYED_SUMS = 128
"""Accumulator registers of a thread: 128, and 64 words of the delayed result, leave 32 of its 224 to the rest."""
MAX_WHOLE_ROWS = 16
"""Rows of a swapped product that one thread block of a cluster adds up alone. In two parts of 8 rows, 16 x 4096 x 4096
runs at 0.985 of the speed; in parts, 32 x 2048 x 8192 runs at 1.019."""
PINGPONG_WARPGROUPS = 2
"""Warpgroups of a ping-pong kernel: the order barriers hand the tensor cores from one to the other."""
PINGPONG_WARPS = 4
"""Warps that the author asks for (`num_worker_warps`) to have ping-pong: the warps of one tile block."""
# `stmatrix` writes 16 columns of a warp's rows to shared memory at once. In a ping-pong kernel the subtiles of the
# epilogue have no more columns, so that nothing spills.
STMATRIX_COLUMNS = NARROW_COLUMNS = 16
MAX_PINGPONG_SUMS = (192, 112, 0)
"""Accumulator registers of a thread of a ping-pong kernel, without spills: with conversions alone after the main loop;
with another epilogue, on all columns at once; with partial accumulators, for which there is no room."""
MAX_THREE_WARPGROUP_SUMS = (100, 80, 64)
"""The same of three warpgroups. The four warpgroups of the block are launched with 128 registers a thread, into which
the registers of one instruction have to fit. The epilogue has 160, since a consumer thread takes over some."""

_BY_ELEMENT = (Constant, Broadcast, Permute, Reshape, LoadTile, LoadMut, StoreMut, TensorDim)


def plan_mainloop(kernel: Kernel, arch: Architecture, options: CompileOptions) -> Plan:
    """The plan for a kernel with a main loop.

    Raises:
        Refused: the kernel has no main loop, or no plan of one fits; the text says why.
    """
    kernel.require_specialisable(arch)
    # Stages fill the shared memory of a multiprocessor, and register reallocation its registers. Thread blocks that
    # share a multiprocessor have the plan of `rules.py`.
    require(options.occupancy in (None, 1), asked_for(Lack.OCCUPANCY, options.occupancy))
    loop = _only_loop(kernel)
    instructions = instructions_of(kernel.products[0], kernel.definitions)
    by_rows = instructions.atom is None or instructions.rows % (WGMMA_ROWS * instructions.warpgroups) == 0
    require(by_rows, f"two warpgroups share the columns of a product of {instructions.rows} rows")
    return with_stages(_Rules(kernel, loop, kernel.products[0], instructions, options).plan(), kernel, arch)


def _only_loop(kernel: Kernel) -> For:
    """The loop around a kernel's only product."""
    require(len(kernel.products) == 1, f"the kernel has {len(kernel.products)} products, not one", Lack.ONE_PRODUCT)
    (product,) = kernel.products
    loops = [op for op in kernel.function.body.operations if isinstance(op, For) and product in op.body.operations]
    require(len(loops) == 1, "the product is not in a loop of the kernel's own")
    return loops[0]


@dataclass(frozen=True)
class _Rules:
    """The rules for one kernel.

    Attributes:
        kernel: the kernel.
        loop: its main loop.
        product: the product in the loop.
        instructions: the product's instructions.
        options: the author's.
    """

    kernel: Kernel
    loop: For
    product: Mma
    instructions: Instructions
    options: CompileOptions

    def plan(self) -> Plan:
        """The plan without the number of stages."""
        kernel, loop, product, instructions = self.kernel, self.loop, self.product, self.instructions
        warpgroups = instructions.warpgroups
        pingpong = self._asks_for_pingpong()
        # Consumers ask for failed assertions once, behind the loop. They must store nothing ahead of it.
        writes = kernel.guards and kernel.writes_ahead(loop)
        require(not writes, "the kernel asserts, and stores ahead of the loop", Lack.NO_ASSERTIONS)
        operands = [operand_of(value, k_axis, kernel, loop) for value, k_axis in ((product.a, 1), (product.b, 0))]
        alone = bool(kernel.guards) or kernel.stores_views or kernel.writes_ahead(loop)
        tiles, left, right = self._cluster(operands, alone=alone)
        self._require_products_alone((left, right))
        accumulator = self._accumulator(left, right)
        # `stmatrix` writes accumulators in the layout of `wgmma`.
        store = only_store_of(kernel, loop, warpgroups) if instructions.by_instruction else None
        narrow = pingpong and cut_epilogue(kernel.function, loop, NARROW_COLUMNS) is not kernel.function
        if pingpong:
            self._require_pingpong(store, tiles)
            accumulator = pingpong_accumulator((accumulator.shape[0], accumulator.shape[1]))
            computes = kernel.computes_behind(loop) and not narrow
            self._require_held("a group alone", MAX_PINGPONG_SUMS, accumulator, held_by_each_warpgroup, computes)
        promote_columns, interval = instructions.promotion(product.a.tile.shape[1], by_iterations=self._counts_in_i32)
        dot = Dot(
            *(product, left, right, accumulator),
            fresh=False,
            simt=instructions.atom is None,
            a_from_registers=instructions.a_from_registers,
            promote_columns=promote_columns,
            promote_interval=interval,
        )
        schedule = PingPong() if pingpong else division(kernel, loop, dot, warpgroups, tiles, self.options)
        if isinstance(schedule, Cooperative) and self._may_delay(tiles, store):
            schedule = replace(schedule, delayed=True)
        few_rows = kernel.transposes(loop) and product.acc.tile.shape[1] <= MAX_WHOLE_ROWS
        if isinstance(schedule, SplitK) and schedule.parts and few_rows:
            schedule = replace(schedule, parts=1)
        subtile = accumulator.shape[1]
        if subtile % STMATRIX_COLUMNS == 0:  # columns of the 16-bit result in the widest swizzle that divides its rows
            subtile = SmemLayout(NARROW_COLUMNS if narrow else subtile, 1, 2, k_major=False).span
        stores: dict[Op, TmaStore] = {}
        if store is not None:
            stores[store.op] = replace(store, box=(*store.box[:-1], subtile), layout=accumulator)
        drafted = drafted_plan(kernel, {product: dot}, Reads(), warpgroups, self.options, loop)
        # The producer walks the tile blocks and the main loop alone, and reads no numbers from memory.
        is_simple = drafted.slice.nests <= {loop, *kernel.guards} and all(map(is_scalar_work, drafted.slice.needed))
        reason = "an index or an assertion needs more than the main loop and numbers, or numbers from memory"
        require(is_simple, reason, Lack.NO_ASSERTIONS if kernel.guards else Lack.NUMBERS)
        start, stop = (constant_of(bound, kernel.definitions) for bound in loop.bounds[:2])
        return replace(
            drafted,
            runs=start is not None and stop is not None and start < stop,
            stores=stores,
            tiles=replace(tiles, schedule=schedule),
            summing=loop,
            subtile=accumulator.core[1] if dot.simt else subtile,
            narrow=narrow,
        )

    # The loop.

    @property
    def _counts_in_i32(self) -> bool:
        """Whether the loop counts in i32, as plans that compute with iterations do."""
        return self.loop.start.tile.dtype is i32

    def _require_products_alone(self, operands: Sequence[Operand]) -> None:
        """Require that the loop adds products to what it carries, and does nothing else."""
        product, body = self.product, self.loop.body
        loads = [op for operand in operands for op in (operand.load, *operand.passed)]
        for op in body.operations[:-1]:
            allowed = op in (product, *loads, *self.kernel.guards) or is_scalar_work(op)
            require(allowed, f"the loop does more than multiply: {op.name}", Lack.ONLY_SUMS)
        require(body.terminator.operands == (product.result,), "the loop carries more than the sums", Lack.ONLY_SUMS)
        require(product.acc is body.arguments[1], "what is added to is not what the loop carries")
        require(len(self.kernel.users[product.result]) == 1, "the sums are used within the loop", Lack.ONLY_SUMS)
        step = constant_of(self.loop.step, self.kernel.definitions)
        require(step is not None and step > 0, "the loop's step is no positive constant")

    # The operands and the accumulator.

    def _cluster(self, operands: Sequence[Operand], *, alone: bool) -> tuple[Tiles, Operand, Operand]:
        """The clusters and order of tile blocks, and the left and right operands.

        For an operand that a cluster shares, `shared` is the number of blocks that load a part each.

        Without the option `num_cta_in_cga` blocks share nothing. On an H200, sharing was within the noise for products
        of bf16 at 4096 to 16384 cubed, and cost 2 % at 2048.

        Args:
            operands: the left and the right operand.
            alone: whether a thread block must be in no cluster. The last block of a cluster may have no tile block, and
                runs the kernel all the same. Its assertions and its stores at any place would then have effects.
        """
        for operand in operands:
            require(not operand.steps and operand.merged == 1, "an operand's tiles do not lie side by side in a matrix")
        shape = self.product.acc.tile.shape
        rows, columns = shape[::-1] if self.kernel.transposes(self.loop) else shape
        # Of a batch of matrices, the grid's first axis counts matrices, so that tile blocks of one are neighbours.
        lead = min(1, max(operand.lead for operand in operands))
        blocks = 1 if alone else self.options.num_cta_in_cga or 1
        require(blocks in CLUSTERS, asked_for(Lack.CLUSTER, blocks, "; 1, 2, 4 or 8 share operands"))
        # The axes along which tile blocks may share. With few rows there is one row of tiles, and blocks are neighbours
        # only along the columns.
        grid = ([lead + 1] if swaps_ab(rows, columns) else [lead, lead + 1]) * (blocks > 1)
        axes = {x: block_axes((*x.index, *self.loop.bounds), self.kernel.definitions) for x in operands}
        # Operands that blocks along an axis of the grid share, since their tiles are the same along it.
        sharing = [(x, axis) for x in operands for axis in grid if axis not in axes[x] and x.smem_layout.split(blocks)]
        # The larger operand is shared; of two equal ones, the one that blocks along the later axis of the grid share.
        shared, along = max(sharing, key=lambda pair: (pair[0].smem_layout.nbytes, pair[1]), default=(None, 0))
        left, right = (replace(x, shared=blocks) if x is shared else x for x in operands)
        grouped = square_group(rows, columns, blocks if shared and along == lead else 1)
        return Tiles(blocks if shared else 1, along, rows=lead, columns=lead + 1, grouped=grouped), left, right

    def _accumulator(self, left: Operand, right: Operand) -> Layout:
        """The accumulator's layout without ping-pong: the warpgroups share a tile."""
        (rows, columns), instructions = self.product.acc.tile.shape, self.instructions
        groups = instructions.warpgroups
        if instructions.atom is None:
            by_k = (left.smem_layout.k_major, right.smem_layout.k_major)
            if (layout := simt_accumulator((rows, columns), 4 * groups, by_k)) is None:
                raise Refused(undivided(f"{rows} x {columns} sums", f"{4 * groups} warps"))
            return layout
        accumulator = group_accumulator((rows, columns), groups)
        if groups == THREE_WARPGROUPS:
            dtype, computes = self.product.a.tile.dtype, self.kernel.computes_behind(self.loop)
            # The layout for operands in registers counts warpgroups in powers of two (`accumulators.py`).
            refusal = f"three warp groups do not turn operands of {dtype} on the way in"
            require(not instructions.a_from_registers, refusal)
            self._require_held("three warp groups", MAX_THREE_WARPGROUP_SUMS, accumulator, among_three, computes)
        if instructions.a_from_registers:
            swapped = self.kernel.transposes(self.loop)
            return a_from_registers_accumulator((rows, columns), groups, left.smem_layout.size, transposed=swapped)
        return accumulator

    def _require_held(
        self, owner: str, limits: Sequence[int], accumulator: Layout, holds: Callable[[Layout], bool], computes: bool
    ) -> None:
        """Require that the warpgroups of ping-pong, or three warpgroups, hold all tiles.

        All tiles are the accumulator, and those ahead of the main loop and in the epilogue.

        Args:
            owner: the warpgroups, for the refusal.
            limits: the most accumulator registers of a thread. Three numbers: with conversions alone after the main
                loop; where the epilogue `computes`; with partial accumulators.
            accumulator: the layout of the accumulator.
            holds: whether these warpgroups hold every element of a tile of some layout.
            computes: whether more than conversions follow the main loop.
        """
        promotes, sums = self.instructions.promotes, accumulator.registers
        limit = limits[2 if promotes else int(computes)]
        beside = " beside their products" if promotes else " beside what follows the loop" if computes else ""
        require(sums <= limit, would_hold(sums, f", and has registers for {limit}{beside}", f" of {owner}"))
        around = [*self.kernel.ahead(self.loop), *self.kernel.behind(self.loop)]
        layouts = assign_layouts(self.kernel.function, accumulator.warps, ((self.product, accumulator),))
        for op in around:
            by_element = family(type(op)) in (*ELEMENTWISE, "grid") or isinstance(op, _BY_ELEMENT)
            lack = Lack.NO_ASSERTIONS if op in self.kernel.guards else Lack.ELSE
            require(by_element, f"warp groups would have to work together on {op.name}", lack)
        for value in (value for op in around for value in (*op.operands, *op.results) if is_tile(value)):
            require(holds(layouts[value]), f"a tile of {value.tile.shape} is not held by these warp groups alone")

    # The schedule.

    def _asks_for_pingpong(self) -> bool:
        """Whether the author asks for ping-pong.

        That is done by asking for the warps of one warpgroup, where two would share a tile.
        """
        warpgroups, rows = self.instructions.warpgroups, self.product.acc.tile.shape[0]
        default, by_wgmma = 4 * warpgroups, self.instructions.atom is not None
        warps = self.options.num_worker_warps or default
        pingpong = warpgroups == PINGPONG_WARPGROUPS and by_wgmma and warps == PINGPONG_WARPS
        require(pingpong or warps == default, asked_for(Lack.WARPS, warps, f", a tile of {rows} rows has {default}"))
        return pingpong

    def _require_pingpong(self, store: TmaStore | None, tiles: Tiles) -> None:
        """Require that warpgroups may have tile blocks of their own."""
        is_plain = not (self.instructions.a_from_registers or self.instructions.promotes)
        require(is_plain, "warp groups alone add up 16-bit operands as they lie")
        require(not self.kernel.guards, "warp groups alone end at no assert", Lack.NO_ASSERTIONS)
        require(store is not None, "warp groups alone write by TMA, which does not store this result")
        require(tiles.cluster == 1, "warp groups alone share no operands with another block")
        # A warpgroup skips the stages of the other one's tile block, and so has to know their number
        # (`tile_scheduler.py`).
        varying = block_axes(self.loop.bounds, self.kernel.definitions)
        require(not varying, "tile blocks of warp groups alone have as many turns each")

    def _may_delay(self, tiles: Tiles, store: TmaStore | None) -> bool:
        """Whether the result may be stored under the next tile block's products.

        It may if only conversions to the result's type and its store follow the main loop.
        """
        shared = self.instructions.warpgroups == DELAYED_WARPGROUPS and tiles.cluster == 1
        if store is None or not shared or self.instructions.promotes or not self._counts_in_i32:
            return False
        tile_type = store.op.value.tile
        epilogue = [op for op in self.kernel.behind(self.loop) if op is not store.op]
        converts = all(isinstance(op, Convert) and op.result.tile == tile_type for op in epilogue)
        subtiles = SmemLayout(store.value.tile.shape[1], WGMMA_ROWS, 2, k_major=False).count
        return converts and self.instructions.sums <= MAX_DELAYED_SUMS and subtiles <= MAX_DELAYED_SUBTILES
