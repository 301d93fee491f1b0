"""Long rows: where they wait while they are reduced, and their exponentials.

A row is needed again after its reduction. Until then it waits in registers, in the shared memory of one thread block
(`held_rows.py`), or in the shared memory of a cluster's thread blocks. The fewer bytes of a row a thread block has, the
more thread blocks share a multiprocessor: some load and store while others reduce. In a cluster each thread block has a
slice:

    t = load_tile(x, i, 0) : bf16<1x65536>          cluster_arrive() {reductions = 1}
    s = reduce_sum(t)                               r = cluster_rank()
    store_mut(y, t * s)                             t = load_tile(x, i, r) : bf16<1x8192>
                                          -->       s = reduce_sum(t)
                                                    s = cluster_reduce(s) {kind = 'reduce_sum', blocks = 8}
                                                    store_view(y, t * s, i, r)

Each thread block loads its slice once. It writes its result of a reduction to the shared memory of all others. Then it
folds the results of all in the order of the thread blocks, so that all have the same bits, in each run. Each reduction
has its own place in shared memory, so that no thread block writes where another still reads. A thread block may end
after its last reduction: all writes to its memory have arrived by then.

Every thread block runs the operations that are not on the row. The first one stores their results.

A figure *of a copy* is a kernel's bandwidth as a share of that of a copy of as many bytes (`docs/benchmarks/memory`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cutile.backend.cuda.held_rows import Held, held_in, held_rows
from cutile.backend.cuda.lowering_context import LoweringContext, layouts_of
from cutile.backend.cuda.ops import (
    ClusterArrive,
    ClusterRank,
    ClusterReduce,
    ClusterTileBlockId,
    RowExp,
    RowExpSum,
    RowExpUnit,
)
from cutile.backend.cuda.smem_sizes import BARRIER_BYTES, lane_mask, warp_mask
from cutile.backend.cuda.target import FLOATS, Architecture, Lack, Refusal, asked_for
from cutile.backend.gpu.layout import Layout
from cutile.backend.gpu.layout_assignment import is_tile
from cutile.backend.gpu.op_facts import DefUse
from cutile.backend.gpu.row_axis import RowAxis, Store, reduced_in, row_axis, updates_beside
from cutile.backend.interface import CompileOptions
from cutile.dtypes import f32, f64
from cutile.ir import KEEP, Copier, Function, Op, Replacement, Rewriter, Value, rewrite
from cutile.ops.arith import Div, Max, Mul, Sub
from cutile.ops.cast import Convert
from cutile.ops.compare import Eq, Select
from cutile.ops.grid import TileBlockId
from cutile.ops.math import Exp
from cutile.ops.memory import StoreMut
from cutile.ops.reduce import Reduce, ReduceExtreme, ReduceMax, ReduceSum
from cutile.ops.shape import Broadcast, Reshape
from cutile.ops.view import StoreView
from cutile.passes.fast_math import FACT, fast_math
from cutile.passes.redundancy import dce

MIN_ELEMENTS, MIN_WIDE_ELEMENTS = 1 << 13, 1 << 14
"""Elements of all waiting tiles from which on they wait in shared memory: of a single tile of 16 bits, and of all other
tiles. On an H200, of a copy: softmax of 8192 bf16 0.96, and 0.90 in registers; of 4096 0.96 in registers."""
MIN_CHEAP_EXTENT = 1 << 12
"""Elements of a row from which on shared memory is better, if the row has 16 bits an element and computing it again is
cheap (`Held.is_cheap`). On an H200, of a copy, in shared memory and in registers: layer_norm of 4096 bf16 0.96 and
0.94, of 8192 0.94 and 0.88, of 16384 0.92 and 0.57."""
MANY_LOADS = 3
"""Number of waiting tiles from which on registers are better for rows of fewer than `MIN_WIDE_ELEMENTS`: each pass
would read all tiles anew. On an H200, of a copy, the sum of two rows and its norm as 8-bit floats, with a scale for
each row: 0.78 in shared memory and 0.97 in registers for 4096 bf16, 0.75 and 0.97 for 8192."""
SLICE_BYTES = 1 << 16
"""Bytes of a row that one thread block of a cluster holds at most: three such blocks share a multiprocessor."""
HALVED_BYTES, MAX_HALVED_BESIDE = SLICE_BYTES, 2 << 16
"""Bytes of a row that two thread blocks share although one could hold it, if computing it again is cheap; and the most
bytes beside it for that, times the passes that need the row. On an H200, of a copy: rms_norm of 32768 bf16, two passes,
64 KB beside the row, 0.96 by two thread blocks, 0.93 by one; of 65536 0.94 by two, 0.93 by four; layer_norm of 32768
without a bias, three passes, 64 KB, 0.90 by two, 0.945 by one."""
ONE_SLICE_WARPS, WARPS, LONE_WARPS = 4, 8, 16
"""Warps of a thread block. `ONE_SLICE_WARPS` where `WARPS` or `LONE_WARPS` would have the whole row in one slice
(softmax of 8192 on an H200: 0.95 of a copy by 4 warps, 0.88 by 8). `LONE_WARPS` where shared memory has room for one
thread block on a multiprocessor. `WARPS` for all others (softmax of 16384: 0.95 by 8 warps, 0.93 by 4)."""
THREAD_ELEMENTS = 32
"""Elements of a thread in a slice at most, of all waiting tiles. Rows of 32768 bf16 on an H200, of a copy: layer_norm
0.72 with 8, 0.83 with 16, 0.88 with 32, since the addresses of an access cost as much as several elements. With 32 of
each of two tiles, 80 registers are too few: softmax backward of 65536 spilled 12 bytes (0.995); with 16 of each
1.002."""
CLUSTERS = (2, 4, 8)
"""Blocks of a cluster: all GPUs with clusters have room for 8 (CUDA C++ programming guide, "Thread Block Clusters")."""
CLUSTERS_SINCE = 9
"""The first major compute capability with clusters."""
REDUCTION_BYTES = 8192
"""Bytes of shared memory that are left for the results that warps and thread blocks exchange."""
MIN_ROW_EXP_ELEMENTS = 8
"""Elements of a row from which on its exponentials are `row_exp`. Each element saves 2.5 instructions, so 8 save 20. A
row costs some: its largest element is rounded and tested, and a sum of the row is scaled."""
MAX_SPLIT = 4
"""Slices have equal extents, so their number divides the row. A number is sought below `MAX_SPLIT` times the least one:
with more slices, threads have too few elements of each (`THREAD_ELEMENTS`)."""
ROW_SUMS = "row_sums"
"""The fact of a function that lists the changes of `fast_math` to the sums of slices."""
MIN_WORD_BITS = 32
"""Bits of the narrowest word that blocks send each other (PTX ISA, "st.async")."""


@dataclass(frozen=True)
class RowPlan:
    """The cut of a row.

    Attributes:
        blocks: thread blocks of a cluster, each with an equal part of the row.
        warps: warps of a thread block.
        parts: slices of a thread block's part, one after the other.
    """

    blocks: int
    warps: int
    parts: int


@dataclass(frozen=True)
class Cut:
    """The facts of a kernel's rows for `number_tiles`.

    Attributes:
        blocks: thread blocks of a tile block; 0 where no row is reduced.
        refusal: why the kernel lacks the cluster that the author asks for; None where it lacks nothing.
    """

    blocks: int
    refusal: Refusal | None


def cut_rows(function: Function, arch: Architecture, options: CompileOptions) -> tuple[Function, CompileOptions, Cut]:
    """The function with its longest rows cut, where that is better.

    Returns:
        The function, the options for its lowering, and the cut, for `number_tiles`.
    """
    function = narrow_extremes(row_exps(function))
    row = row_axis(function)
    plan = None if row is None else plan_row(function, row, arch, options)
    blocks = int(row is not None) if plan is None else plan.blocks
    cut = Cut(blocks, _refusal(blocks, arch, options.num_cta_in_cga or 1))
    if row is None or plan is None:
        return function, options, cut
    if blocks > 1:
        function, row = cluster_rows(function, row, blocks)
    rows = held_rows(function, row, plan.parts, plan.warps)
    if "contract" in options.fast_math_parts:  # sums of slices of products
        facts = dict(rows.facts)
        rows = fast_math(rows, ("contract",), FLOATS)
        rows.facts |= facts | {ROW_SUMS: rows.facts.get(FACT, ())}
    return rows, replace(options, num_worker_warps=plan.warps), cut


def _refusal(blocks: int, arch: Architecture, requested: int) -> Refusal | None:
    """Why a kernel lacks the cluster that was asked for; None if it has it.

    Args:
        blocks: thread blocks of the kernel's cluster; 0 or 1: it has none.
        arch: the architecture.
        requested: thread blocks of the cluster that the author asks for; 1: none.
    """
    if requested in (1, blocks):
        return None
    if arch.major < CLUSTERS_SINCE:
        return asked_for(Lack.CLUSTER, requested, detail=f"{arch.name} has no clusters")
    if requested not in CLUSTERS:
        return asked_for(Lack.CLUSTER, requested, "; 1, 2, 4 or 8 share a row")
    return asked_for(Lack.CLUSTER, requested, detail="there is no row that they would share")


def plan_row(function: Function, row: RowAxis, arch: Architecture, options: CompileOptions) -> RowPlan | None:
    """The cut of a kernel's rows; None where they wait in registers.

    They do if they are short, if only one pass needs them, or if shared memory cannot take them.
    """
    held = held_in(function, row)
    if held is None or _is_short(held, row.extent):
        return None
    # With such updates, a thread block may store what another one of the cluster has yet to load.
    clusters = (1, *CLUSTERS) if arch.major >= CLUSTERS_SINCE and not updates_beside(function, row) else (1,)
    if (requested := options.num_cta_in_cga) is not None and requested in clusters:
        clusters = (requested,)
    plans = [plan for blocks in clusters if (plan := _plan_over(blocks, row, held, arch, options)) is not None]
    slice_bytes = SLICE_BYTES // (2 if _is_halved(held) else 1)
    # The smallest cluster whose parts are short enough: a larger one sends each reduction to more thread blocks. If
    # none has short parts, the largest one that has a plan, or the one that the author asks for.
    large_enough = (plan for plan in plans if held.nbytes <= plan.blocks * slice_bytes)
    return next(large_enough, plans[-1] if plans else None)


def _is_halved(held: Held) -> bool:
    """Whether two thread blocks are better for a row that one could hold."""
    little = len(held.loads) == 1 and held.passes * held.beside <= MAX_HALVED_BESIDE
    return held.is_cheap and little and held.nbytes == HALVED_BYTES


def _is_short(held: Held, extent: int) -> bool:
    """Whether a row is so short that registers are better for it."""
    if len(held.loads) >= MANY_LOADS:
        return extent < MIN_WIDE_ELEMENTS
    min_elements = MIN_ELEMENTS if held.is_narrow and len(held.loads) == 1 else MIN_WIDE_ELEMENTS
    return held.elements < min_elements and (extent < MIN_CHEAP_EXTENT or not held.is_cheap)


def _plan_over(blocks: int, row: RowAxis, held: Held, arch: Architecture, options: CompileOptions) -> RowPlan | None:
    """The cut of a row for a cluster of `blocks` thread blocks.

    None if they do not divide the row, if their shared memory cannot take it, or if no number of slices divides it.
    """
    block_bytes = arch.shared_bytes - REDUCTION_BYTES
    # Slices are whole numbers of the widest access, so that no access crosses from one to the next.
    accesses = row.extent // (blocks * held.width)
    if held.nbytes > blocks * block_bytes or row.extent % (blocks * held.width):
        return None
    elements = held.elements // (blocks * len(held.loads))  # of a thread block's part of one tile
    is_alone = 2 * held.nbytes > blocks * block_bytes  # two thread blocks do not fit on a multiprocessor
    default_warps = LONE_WARPS if is_alone else WARPS
    if elements <= 32 * default_warps * THREAD_ELEMENTS:
        default_warps = ONE_SLICE_WARPS
    warps = options.num_worker_warps or default_warps
    min_parts = -(-elements * len(held.loads) // (32 * warps * THREAD_ELEMENTS))
    parts = next((count for count in range(min_parts, MAX_SPLIT * min_parts) if accesses % count == 0), 0)
    return RowPlan(blocks, warps, parts) if parts else None


def cluster_rows(function: Function, row: RowAxis, blocks: int) -> tuple[Function, RowAxis]:
    """A copy of the function in which each thread block has a slice of the row.

    A cluster of `blocks` thread blocks has the row. The slice's own `RowAxis` is returned as well.
    """
    copier = _ClusterRows(row, blocks)
    return copier.function(function), RowAxis(row.extent // blocks, copier.axes)


def number_tiles(function: Function, cut: Cut) -> Function:
    """A lowered function with tile blocks' indices and facts for its cut.

    Where rows are reduced, the index is computed by divisions only if the grid has several axes. Grids of rows mostly
    have one axis, and a thread block cannot load its row before it has the index: divisions cost 0.02 of a copy on an
    H200. All thread blocks of a cluster have the index of the same tile block.
    """

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        if isinstance(op, TileBlockId):
            index = ClusterTileBlockId(axis=op.axis, blocks=cut.blocks, alone=True)
            return rewriter.builder.value(index, op.result.name or f"block_{op.axis}")
        return KEEP

    numbered = rewrite(function, rule) if cut.blocks else function
    if cut.blocks > 1:
        numbered.facts |= {"cluster": cut.blocks, "blocks_per_tile": cut.blocks}
    if cut.refusal:
        numbered.facts["refused"] = (("rows in a cluster", cut.refusal),)
    return numbered


class _ClusterRows(Copier):
    """The copy that `cluster_rows` makes.

    Attributes:
        axes: by tile of a slice, the axis along the row.
    """

    _rank: Value

    def __init__(self, row: RowAxis, blocks: int) -> None:
        super().__init__()
        self._row, self._blocks = row, blocks
        self._reductions = 0  # copied so far
        self.axes: dict[Value, int] = {}

    def function(self, source: Function) -> Function:
        builder = self.builder
        with builder.block(*map(self.value, source.body.arguments)) as body:
            builder.add(ClusterArrive(reductions=sum(map(self._row.reduces, source.body.operations))))
            self._rank = builder.value(ClusterRank(), "rank")
            for op in source.body.operations:
                builder.location = op.location
                self.operation(op)
        return Function(source.name, body, source.source, source.file, source.stage, dict(source.facts))

    def operation(self, op: Op) -> None:
        operands = [self.values.get(value, value) for value in op.operands]
        if self._row.reduces(op):
            assert isinstance(op, Reduce)
            self._reduce(op, operands)
        elif self._row.has(op):
            operations = self.builder.current.operations
            before = len(operations)
            copy = self._row.sliced(op, operands, self._blocks, self._rank, self.builder)
            # A slice of an `iota` is several operations, each with a tile of the row.
            tiles = [value for new_op in operations[before:] for value in new_op.results if is_tile(value)]
            self.axes.update((value, self._row.axes[op.result]) for value in tiles)
            for old, new in zip(op.results, copy.results, strict=True):
                new.name = old.name
                self.values[old] = new
        elif isinstance(op, Store):
            self._store(op, operands)
        else:
            super().operation(op)

    def _reduce(self, op: Reduce, operands: list[Value]) -> None:
        builder = self.builder
        result = builder.value(op.copy_with(operands, (), ()))
        kind = f"{op.name}_nan" if isinstance(op, ReduceExtreme) and op.nan else op.name
        reduce = ClusterReduce(x=result, kind=kind, blocks=self._blocks, number=self._reductions)
        self._reductions += 1
        self.values[op.result] = builder.value(reduce, op.result.name)

    def _store(self, op: Store, operands: list[Value]) -> None:
        """Have the first block store a tile that all blocks have.

        The other blocks store it at the tile index -1. That tile lies ahead of the tensor, where stores are dropped.
        """
        builder = self.builder
        x, value, *index = operands
        if isinstance(op, StoreMut):
            index = [builder.value(TileBlockId(axis=axis)) for axis in range(x.tensor.rank)]
        is_first = builder.value(Eq(x=self._rank, y=builder.constant(0)))
        outside = builder.constant(-1, index[0].tile.dtype)
        index[0] = builder.value(Select(condition=is_first, x=index[0], y=outside))
        # As tiles of a Mut, tiles of a `StoreMut` lie side by side (`steps`), and none ends early (`limited`).
        view = isinstance(op, StoreView)
        steps, limited, bulk = (op.steps, op.limited, op.bulk) if view else (value.tile.shape, (), True)
        builder.add(StoreView(x=x, value=value, index=tuple(index), steps=steps, limited=limited, bulk=bulk))


def lower_cluster_arrive(op: ClusterArrive, context: LoweringContext) -> None:
    """Reserve a barrier for each reduction."""
    context.counters = context.smem.reserve(op.reductions * BARRIER_BYTES)
    copy = context.add(context.copied(op))
    context.smem.share(copy, context.counters)


def lower_cluster_reduce(op: ClusterReduce, context: LoweringContext) -> None:
    """Reserve a place for the results of all blocks, whose arrival a barrier counts."""
    copy = context.copied(op)
    layout = context.layout(op.x)
    # One word for each element of each block's result. Threads that hold the same elements share one place
    # (`Layout.holders`).
    word_bytes = max(MIN_WORD_BITS, reduced_in(op.x.tile.dtype).bits) // 8
    place = context.smem.reserve(op.blocks * layout.registers * layout.holders * word_bytes)
    barrier = context.counters + op.number * BARRIER_BYTES
    context.add(copy, layout=context.layout_name(layout), counter=barrier)
    context.smem.share(copy, place)
    context.place(op.result, copy.result, layout)


LOWERINGS = ((ClusterArrive, lower_cluster_arrive), (ClusterReduce, lower_cluster_reduce))


# -- extremes -------------------------------------------------------------------------------------


def narrow_extremes(function: Function) -> Function:
    """A copy of the function whose extremes are found before elements become wider.

        m = reduce_max(convert(x))      -->      m = convert(reduce_max(x))

    Both are the same number, since the wider dtype has every number of the narrow one, in the same order. One
    instruction compares several f16 or bf16.
    """
    definitions = DefUse(function.body).definitions

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        wide = definitions.get(rewriter.original.operands[0]) if isinstance(op, ReduceExtreme) else None
        if not isinstance(wide, Convert) or not wide.x.tile.dtype.is_half or wide.dtype not in (f32, f64):
            return KEEP
        narrow = op.copy_with([rewriter.values.get(wide.x, wide.x)], (), ())
        return rewriter.builder.value(Convert(x=rewriter.builder.value(narrow), dtype=wide.dtype))

    return dce(rewrite(function, rule))


# -- exponentials of rows --------------------------------------------------------------------------

Axes = tuple[int | None, ...]
"""For each axis of a tile, the axis of the rows along which it runs; None where its elements do not follow the rows,
since they were reduced there or repeat."""


@dataclass(frozen=True)
class RowPowers:
    """Exponentials of rows, and their uses.

    Attributes:
        x: the rows, in 16 bits.
        bound: a tile of the shape of `x`, no element of which is below the element of `x` at its place.
        row_bounds: the tile that `bound` repeats: one element for each row, most often the row's largest.
        sums: those sums of the exponentials that have to be scaled (`_PowerUses._sums_to_scale`).
    """

    x: Value
    bound: Value
    row_bounds: Value
    sums: tuple[Value, ...]


def row_exps(function: Function) -> Function:
    """A copy of the function with powers of 2 for exponentials of rows.

        m = reduce_max(t)                                   m = reduce_max(t)
        e = exp(t - broadcast(m))                           e = row_exp(x, broadcast(m))
        s = reduce_sum(e)                         -->       s = reduce_sum(e)
        y = e / broadcast(s)                                y = e / broadcast(s)

    `t` is `x`, of f16 or bf16, as f32. `row_exp` computes no difference for each element. Its result differs from the
    exponential by a factor that is the same for all elements of a row (`RowExpUnit`). In a quotient by the row's sum
    the factor cancels. A sum with other uses is multiplied by the factor. Exponentials with other uses stay.
    """
    uses = _PowerUses(function.body)
    rows = {op: row for op in function.walk() if isinstance(op, Exp) and (row := uses.row(op)) is not None}
    if not rows:
        return function
    row_bounds = {total: row.row_bounds for row in rows.values() for total in row.sums}

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        source, builder = rewriter.original, rewriter.builder
        if isinstance(source, Exp) and source in rows:
            row = rows[source]
            x, bound = (rewriter.values.get(value, value) for value in (row.x, row.bound))
            return builder.value(RowExp(x=x, m=bound))
        if isinstance(source, ReduceSum) and source.result in row_bounds:
            bounds = row_bounds[source.result]
            unit = builder.value(RowExpUnit(m=rewriter.values.get(bounds, bounds)))
            shape = source.result.tile.shape
            if unit.tile.shape != shape:
                unit = builder.value(Reshape(x=unit, shape=shape))
            return builder.value(Mul(x=builder.value(op), y=unit))
        return KEEP

    return dce(rewrite(function, rule))


def power_sums(function: Function) -> Function:
    """A copy of a lowered function that adds up exponentials of rows as it makes them.

        e = row_exp(x, m)
        s = reduce_sum(e) {axis = 2}        -->      s = row_exp_sum(x, m) {axis = 2}

    This is for rows that a thread adds up alone. `row_exp` has a fast path and an exact one, and chooses between them.
    On the fast path an exponential of bf16 ends with a multiplication, which one instruction does together with the
    sum's addition. After the choice the compiler could not join the two.
    """
    users = DefUse(function.body).users
    powers = {op.result: op for op in function.walk() if isinstance(op, RowExp) and len(users[op.result]) == 1}
    layouts = layouts_of(function) if powers else {}

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        power = powers.get(rewriter.original.operands[0]) if isinstance(op, ReduceSum) else None
        if power is None or not _is_of_threads(op, layouts[op.attributes["source"]]):
            return KEEP
        x, m = (rewriter.values.get(value, value) for value in power.operands)
        total = RowExpSum(x=x, m=m, axis=op.attributes["axis"])
        total.attributes |= {name: op.attributes[name] for name in ("source", "layout")}
        return rewriter.builder.value(total, op.result.name)

    return dce(rewrite(function, rule)) if powers else function


def _is_of_threads(op: Op, source: Layout) -> bool:
    """Whether `row_exp_sum` can add up a tile of a layout.

    Each thread has to have all elements along the axis.
    """
    axis = op.attributes["axis"]
    # The sum of a tile of one axis is a number, and `row_exp_sum` gives a tile.
    if source.rank == 1 or lane_mask(source, axis) or warp_mask(source, axis):
        return False
    # A register past the tile's edge holds no element. A reduction leaves it out, `row_exp_sum` would add it.
    return not any(source.edge_axes(register) for register in range(source.registers))


class _PowerUses(DefUse):
    """The exponentials of a function, and what is made of them."""

    def row(self, op: Exp) -> RowPowers | None:
        """The rows of an exponential that `row_exps` replaces, or None."""
        difference = self.definitions.get(op.x)
        if not isinstance(difference, Sub) or op.result.tile.dtype is not f32 or len(self.users[op.x]) > 1:
            return None
        wide, repeated = self.definitions.get(difference.x), self.definitions.get(difference.y)
        if not isinstance(wide, Convert) or not wide.x.tile.dtype.is_half or not isinstance(repeated, Broadcast):
            return None
        bound, row_bounds, x = difference.y, repeated.x, wide.x
        long_enough = x.tile.size >= MIN_ROW_EXP_ELEMENTS * row_bounds.tile.size
        if not long_enough or not self._is_bound(bound, (wide.result, x)):
            return None
        sums = self._sums_to_scale(op.result, row_bounds.tile.shape)
        return None if sums is None else RowPowers(x, bound, row_bounds, sums)

    def _is_bound(self, bound: Value, rows: Sequence[Value]) -> bool:
        """Whether no element of a tile is below the row's element at its place."""
        axes = self._axes(bound, rows)
        shape = rows[0].tile.shape
        return axes is not None and all(axis in (None, at) or shape[at] == 1 for at, axis in enumerate(axes))

    def _axes(self, bound: Value, rows: Sequence[Value]) -> Axes | None:
        """The axis of the rows along which each axis of a bound runs.

        A bound is a tile of largest elements of the rows, without the axes along which these were reduced. None where
        the tile may have an element below the rows' elements.
        """
        if bound in rows:
            return tuple(range(len(bound.tile.shape)))
        op = self.definitions.get(bound)
        if isinstance(op, Max):  # at least as large as either operand: it is enough that one of them is a bound
            of_first = self._axes(op.x, rows)
            return self._axes(op.y, rows) if of_first is None else of_first
        if not isinstance(op, ReduceMax | Convert | Reshape | Broadcast):
            return None
        axes = self._axes(op.x, rows)
        if axes is None:
            return None
        if isinstance(op, ReduceMax):
            return (*axes[: op.axis], *axes[op.axis + 1 :])
        if isinstance(op, Convert):  # f16 and bf16 become f32 exactly; another dtype may round a bound down
            return axes if op.dtype is f32 else None
        return _spread(axes, op.x.tile.shape, op.shape, isinstance(op, Reshape))

    def _sums_to_scale(self, powers: Value, bounds: Sequence[int]) -> tuple[Value, ...] | None:
        """The sums of exponentials that `RowExpUnit` has to scale.

        Empty where sums only divide the exponentials, since a row's factor then cancels.

        None where the factor would be left in a result: the exponentials have other uses than sums and quotients, a sum
        divides them and has another use, or a sum adds up several rows.

        Args:
            powers: the exponentials.
            bounds: the shape of the rows' bounds.
        """
        shape, users = powers.tile.shape, self.users[powers]
        # The axes along which each place has its own row. A bound of fewer axes is one number: there is one row.
        rows = {axis for axis, extent in enumerate(bounds) if extent != 1} if len(bounds) == len(shape) else set[int]()
        quotients = {op for op in users if isinstance(op, Div) and op.x is powers and op.y is not powers}
        sums = [op for op in users if isinstance(op, ReduceSum)]
        totals = [self._whole_sum(op, tuple(range(len(shape)))) for op in sums]
        if len(sums) + len(quotients) < len(users) or any(not rows <= set(axes) for _, axes in totals):
            return None
        if not quotients:  # the factors have the shape of the bounds, and each sum takes one
            alike = all(_extents(total.tile.shape) == _extents(bounds) for total, _ in totals)
            return tuple(total for total, _ in totals) if alike else None
        uses = [use for total, axes in totals for use in self._uses_of_all(total, axes)]
        in_place = all(
            axes is not None and all(axes[row] == row for row in rows) for op, axes in uses if op in quotients
        )  # each exponential is divided by a sum of its own row
        return () if {op for op, _ in uses} == quotients and in_place else None

    def _whole_sum(self, op: ReduceSum, axes: Axes) -> tuple[Value, Axes]:
        """The sum along all axes that are summed in turn, and the axes that are left."""
        users = self.users.get(op.result, [])
        left = (*axes[: op.axis], *axes[op.axis + 1 :])
        if len(users) == 1 and isinstance(users[0], ReduceSum):
            return self._whole_sum(users[0], left)
        return op.result, left

    def _uses_of_all(self, value: Value, axes: Axes | None) -> Iterator[tuple[Op, Axes | None]]:
        """The users of a value, in any shape, each with the value's axes there."""
        for op in self.users.get(value, []):
            if isinstance(op, Reshape | Broadcast):
                spread = None if axes is None else _spread(axes, value.tile.shape, op.shape, isinstance(op, Reshape))
                yield from self._uses_of_all(op.result, spread)
            else:
                yield op, axes


def _extents(shape: Sequence[int]) -> list[int]:
    """The extents of a shape other than 1. A reshape may add and drop axes of 1."""
    return [extent for extent in shape if extent != 1]


def _spread(axes: Axes, old: Sequence[int], new: Sequence[int], reshaped: bool) -> Axes | None:
    """Axes after a broadcast or a reshape.

    None after a reshape that does more than add or drop axes of extent 1.
    """
    if not reshaped:
        if len(old) != len(new):  # a number
            return (None,) * len(new)
        return tuple(axis if old[at] == new[at] else None for at, axis in enumerate(axes))
    if _extents(old) != _extents(new):
        return None
    long_axes = iter([axis for axis, extent in zip(axes, old, strict=True) if extent != 1])
    return tuple(next(long_axes) if extent != 1 else None for extent in new)
