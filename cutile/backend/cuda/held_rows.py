"""Rows in shared memory, of which a thread holds a few elements at a time.

    t = load_tile(x, i, 0) : bf16<1x65536>          hold_row(x, i, 0) {row = 0, parts = 8}
    m = reduce_max(t)                               for c in range(8):
    y = exp(t - m)                        -->           t = held_slice(c) : bf16<1x8192>
    store_mut(z, y)                                     total = max(total, t)
                                                    m = reduce_max(total)
                                                    for c in range(8):
                                                        t = held_slice(c) : bf16<1x8192>
                                                        store_view(z, exp(t - m), i, c)

A pass over a row ends at a reduction, and the next pass needs the row again. Registers would hold it in f32 until then,
and spill if a thread has too few. Shared memory holds it as it was loaded: each pass reads it again, and repeats the
operations between the load and its uses. A row that only one pass needs is loaded by that pass, and is not held.

A reduction first folds slices, element by element. Threads and warps exchange the result once, after the last slice.

A figure *of a copy* is a kernel's bandwidth as a share of that of a copy of as many bytes (`docs/benchmarks/memory`).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cutile.backend.cuda.lowering_context import LoweringContext
from cutile.backend.cuda.ops import (
    HeldPlace,
    HeldSlice,
    HoldRow,
    RowExp,
    SliceWait,
    StageCommit,
    StageRead,
    StageTile,
)
from cutile.backend.cuda.smem_sizes import BARRIER_BYTES, move_bytes
from cutile.backend.gpu.layout import Layout, axis_first, blocked, extended
from cutile.backend.gpu.layout_assignment import vector_width
from cutile.backend.gpu.row_axis import Load, RowAxis, Store, reduced_in
from cutile.dtypes import DTypeLike
from cutile.ir import Copier, For, Function, Op, Value
from cutile.ops.arith import Add, Max, Min, Mul
from cutile.ops.cast import Convert
from cutile.ops.grid import TileBlockId
from cutile.ops.memory import LoadMut
from cutile.ops.reduce import Reduce, ReduceExtreme, ReduceMax, ReduceMin, ReduceProd, ReduceSum
from cutile.ops.registry import family
from cutile.ops.view import LoadView

MIN_COPY_BYTES = 4
"""Bytes of the narrowest copy (PTX ISA, `cp.async`)."""
NARROW_BITS = 16
"""Bits of an element that is cheap to hold: half as many as of the f32 that is computed from it."""
BULK_SINCE = 9
"""The first major compute capability with copies of any length by one thread (PTX ISA, `cp.async.bulk`)."""
BULK_BYTES = 16
"""The addresses and the length of such a copy are multiples of so many bytes."""
MAX_BULK_BESIDE = 1 << 16
"""Bytes that single passes of a thread block load beside the held row, such as weights, up to which bulk copies load
the row. Bulk copies hold up the loads of other thread blocks. On an H200, of a copy of 2**29 elements of bf16:
layer_norm by sums of 65536, with 128 KB of weights, 0.83 by bulk copies and 0.94 by `cp.async`; rms_norm of 65536, with
64 KB, 0.950 and 0.944."""
FOLDS: dict[type[Reduce], type[Add | Mul | Max | Min]] = {
    ReduceSum: Add, ReduceProd: Mul, ReduceMax: Max, ReduceMin: Min,
}  # fmt: skip
"""The operation that folds two elements, by reduction."""


@dataclass(frozen=True)
class Held:
    """The tiles of a kernel's row that wait in shared memory.

    Attributes:
        loads: the loads that several passes need.
        nbytes: bytes of their tiles.
        elements: elements of their tiles.
        is_narrow: whether elements have 16 bits or fewer.
        is_cheap: whether they are narrow, and no pass repeats operations on them that take many instructions.
        width: elements of the widest access to the row; slices are whole multiples of it.
        beside: bytes of the row's other loads, each of which one pass needs.
        passes: the number of passes that need the row.
    """

    loads: tuple[Load, ...]
    nbytes: int
    elements: int
    is_narrow: bool
    is_cheap: bool
    width: int
    beside: int
    passes: int


def held_in(function: Function, row: RowAxis) -> Held | None:
    """The tiles of a row that can wait in shared memory.

    None where there are none, or one of them cannot be copied there.
    """
    passes = _Passes(function, row)
    loads = tuple(load for load in passes.loads if len(passes.users(load)) > 1)
    # A tile that only one pass needs is loaded by that pass. An earlier pass may then have stored the block's own tile.
    late = [load for load in passes.loads if isinstance(load, LoadMut) and load not in loads]
    if not loads or late or any(_copies(load, row) is None for load in loads):
        return None
    tiles = [load.result.tile for load in loads]
    repeated = [op for op in function.body.operations if _takes_long(op) and len(passes.users(op)) > 1]
    accesses = [op for op in function.body.operations if isinstance(op, Load | Store) and row.has(op)]
    values = [op.value if isinstance(op, Store) else op.result for op in accesses]
    widths = [vector_width(op.operands[0].tensor, x.tile.shape) for op, x in zip(accesses, values, strict=True)]
    is_narrow = all(tile.dtype.bits <= NARROW_BITS for tile in tiles)
    return Held(
        loads,
        sum(map(_nbytes, loads)),
        sum(tile.size for tile in tiles),
        is_narrow,
        is_narrow and not repeated,
        max(width[1] for width in widths if width is not None),
        sum(_nbytes(load) for load in passes.loads if load not in loads),
        max(len(passes.users(load)) for load in loads),
    )


def held_rows(function: Function, row: RowAxis, parts: int, warps: int) -> Function:
    """A copy of the function that goes over its row slice by slice.

    Args:
        function: the function.
        row: its row.
        parts: the number of slices.
        warps: warps of the thread block.
    """
    return _HeldRows(function, row, parts, warps).function(function)


def _takes_long(op: Op) -> bool:
    """Whether an operation takes many instructions for each element."""
    return family(type(op)) == "math" or isinstance(op, RowExp)


def _copies(load: Load, row: RowAxis) -> tuple[int, int] | None:
    """Axis and width of the copies of a load.

    None where `cp.async` cannot copy it: no axis has a stride of 1, accesses are narrower than a copy, or elements past
    the edges are not zeros.
    """
    tensor = load.operands[0].tensor
    vector = vector_width(tensor, row.shape(load.result, 1))
    padded = isinstance(load, LoadView) and load.padding not in ("zero", "none")
    if vector is None or padded or vector[1] * tensor.dtype.bits // 8 < MIN_COPY_BYTES:
        return None
    return vector


def _nbytes(load: Load) -> int:
    """Bytes of a loaded tile."""
    tile = load.result.tile
    return tile.size * tile.dtype.bits // 8


class _Passes:
    """The passes over the row, and which of them need an operation.

    An operation's pass is the number of reductions that have to be done, one after the other, ahead of it.

    Attributes:
        number: by operation, the first pass that can run it.
        ends: by pass, the reductions and stores that it is for.
        work: by pass, all operations on the row that it needs, in order.
        loads: the loads of the row.
    """

    def __init__(self, function: Function, row: RowAxis) -> None:
        operations = function.body.operations
        self._row = row
        self._definitions = {value: op for op in operations for value in op.results}
        self.number: dict[Op, int] = {}
        ready: dict[Value, int] = {}  # the first pass that has a value
        for op in operations:
            self.number[op] = max((ready.get(value, 0) for value in op.operands), default=0)
            ready.update((value, self.number[op] + row.reduces(op)) for value in op.results)
        count = 1 + max(self.number.values(), default=0)
        self.ends: list[list[Op]] = [[] for _ in range(count)]
        for op in operations:
            if row.reduces(op) or (isinstance(op, Store) and op.value in row.axes):
                self.ends[self.number[op]].append(op)
        order = {op: position for position, op in enumerate(operations)}
        self.work = [sorted(self._needed(ends), key=order.__getitem__) for ends in self.ends]
        self.loads = [op for op in operations if isinstance(op, Load) and op.result in row.axes]

    def users(self, op: Op) -> list[int]:
        """The passes that need an operation."""
        return [number for number, work in enumerate(self.work) if op in work]

    def _needed(self, ends: Sequence[Op]) -> set[Op]:
        """The ends of a pass, and the operations on the row whose results they need.

        Reductions of earlier passes are not among them: their results are no tiles of the row.
        """
        needed: set[Op] = set()
        pending = list(ends)
        while pending:
            op = pending.pop()
            if op not in needed:
                needed.add(op)
                sources = (self._definitions[value] for value in op.operands if value in self._row.axes)
                pending += (source for source in sources if not self._row.reduces(source))
        return needed


class _HeldRows(Copier):
    """The copy that `held_rows` makes.

    Operations that are not on the row are copied once, ahead of the first pass that can run them.
    """

    def __init__(self, function: Function, row: RowAxis, parts: int, warps: int) -> None:
        super().__init__()
        self._row, self._parts, self._warps = row, parts, warps
        self._passes = _Passes(function, row)
        held = held_in(function, row)
        self._loads = () if held is None else held.loads
        self._held: dict[Op, int] = {load: number for number, load in enumerate(self._loads)}  # of a held row
        self._held_by_result = {load.result: load for load in self._loads}
        self._in_registers: dict[Value, Value] = {}
        """Tiles of the last slice that the pass before has left in registers, by the source's values."""

    def function(self, source: Function) -> Function:
        rest = [op for op in source.body.operations if not self._row.has(op)]
        with self.builder.block(*map(self.value, source.body.arguments)) as body:
            for number, ends in enumerate(self._passes.ends):
                for op in rest:
                    if self._passes.number[op] == number:
                        self.operation(op)
                for load in self._loads:
                    if self._passes.number[load] == number:
                        self._hold(load)
                if ends:
                    self._pass(number)
        return Function(source.name, body, source.source, source.file, source.stage, dict(source.facts))

    def _hold(self, load: Load) -> None:
        builder = self.builder
        builder.location = load.location
        axis, shape = self._row.axes[load.result], self._row.shape(load.result, self._parts)
        if isinstance(load, LoadMut):
            index = tuple(builder.value(TileBlockId(axis=i)) for i in range(len(shape)))
        else:
            index = tuple(self.values.get(value, value) for value in load.index)
        x = self.values[load.operands[0]]
        row = self._held[load]
        beside = sum(_nbytes(other) for other in self._passes.loads if other not in self._held)
        bulk = beside <= MAX_BULK_BESIDE and (isinstance(load, LoadMut) or load.bulk)  # not with `tma=DISABLED`
        # Slices that are read all at once (`_extreme`) arrive sooner by one copy than by several: softmax of 65536 bf16
        # 0.92 and 0.90 of a copy on an H200.
        first = self._passes.ends[self._passes.users(load)[0]]
        copies = 1 if all(self._is_whole_extreme(op) for op in first) else self._parts
        builder.add(
            HoldRow(
                x=x,
                index=index,
                row=row,
                shape=shape,
                axis=axis,
                parts=self._parts,
                bulk_copies=copies if bulk else 0,
            )
        )

    def _pass(self, number: int) -> None:
        """Append the loop over the slices of the row, and its reductions.

        Tiles of the last slice may stay in registers for the next pass, which then begins with them. That slice stands
        outside of the loop in both passes: after it in the first one, ahead of it in the second.
        """
        builder, parts = self.builder, self._parts
        ends = self._passes.ends[number]
        reductions = [op for op in ends if isinstance(op, Reduce)]
        builder.location = ends[0].location
        if all(self._is_whole_extreme(op) for op in ends):
            for op in reductions:
                self._extreme(op, number)
            return
        # The tiles that the pass before has left, and the operations whose results this pass leaves.
        computed, shared = self._in_registers, self._shared_work(number)
        self._in_registers = {}
        last = builder.constant(parts - 1)
        totals: list[Value] = []
        for op in reductions:
            dtype = _folded_in(op)
            totals.append(builder.constant(_identity(op, dtype), dtype, self._row.shape(op.x, parts)))
        if computed:
            totals = self._folds(number, last, totals, computed)
        looped = parts - bool(computed or shared)  # slices in the loop
        carried = [Value(total.type) for total in totals]
        start, stop, step = builder.constant(0), builder.constant(looped), builder.constant(1)
        part = Value(start.type, "part")
        with builder.block(part, *carried) as body:
            builder.yield_(*self._folds(number, part, carried, {}))
        builder.location = ends[0].location
        loop = For(start=start, stop=stop, step=step, carried=tuple(totals), body=body)
        totals = list(builder.add(loop).results)
        if shared and not computed:  # a pass that begins with the last slice has none to leave
            totals = self._folds(number, last, totals, {}, shared)
        for op, total in zip(reductions, totals, strict=True):
            builder.location = op.location
            result = builder.value(op.copy_with([total], (), ()))
            if result.tile.dtype is not op.result.tile.dtype:
                result = builder.value(Convert(x=result, dtype=op.result.tile.dtype))
            result.name = op.result.name
            self.values[op.result] = result

    def _shared_work(self, number: int) -> set[Op]:
        """The operations of a pass that take long, and that the next pass needs as well.

        Their results for one slice stay in registers from pass to pass.
        """
        if number + 1 == len(self._passes.work) or self._parts == 1:
            return set()
        if any(load.result.tile.dtype.bits > NARROW_BITS for load in self._loads):
            return set()  # slices of f32 take twice the registers
        common = set(self._passes.work[number]) & set(self._passes.work[number + 1])
        return {op for op in common if _takes_long(op) and not self._row.reduces(op)}

    def _folds(
        self,
        number: int,
        part: Value,
        totals: Sequence[Value],
        computed: Mapping[Value, Value],
        shared: Collection[Op] = (),
    ) -> list[Value]:
        """Append a pass over one slice; return the reductions with this slice in them.

        Args:
            number: the number of the pass.
            part: the number of the slice.
            totals: the reductions of the slices before.
            computed: tiles of this slice that the pass before has computed.
            shared: the operations whose results the next pass needs.
        """
        outside = dict(self.values)  # tiles of a slice are no values of the next one
        reductions = [op for op in self._passes.ends[number] if isinstance(op, Reduce)]
        for op in self._passes.work[number]:
            self.builder.location = op.location
            if op.results and op.result in computed:
                self.values[op.result] = computed[op.result]
            elif op not in reductions:
                self._slice(op, part, number)
        folded: list[Value] = []
        for op, total in zip(reductions, totals, strict=True):
            self.builder.location = op.location
            folded.append(self._folded(op, total, _folded_in(op)))
        self._in_registers = {op.result: self.values[op.result] for op in shared}
        self.values = outside
        return folded

    def _is_whole_extreme(self, end: Op) -> bool:
        """Whether an end is an extreme of a held row that is read as one slice.

        `_extreme` adds it. The row is of f16 or bf16: one instruction then compares several elements. Each thread has
        to have the same elements of the whole row as of the slices that it copied.
        """
        load = self._held_by_result.get(end.x) if isinstance(end, ReduceExtreme) else None
        if load is None or not end.operands[0].tile.dtype.is_half:
            return False
        tensor, whole = load.operands[0], self._row.shape(load.result, 1)
        slices = _slice_layout(tensor, self._row.shape(load.result, self._parts), self._warps)[0]
        # Each thread reads what it has copied: no barrier stands between the two.
        return extended(slices, whole) == _slice_layout(tensor, whole, self._warps)[0]

    def _arrives(self, load: Op, number: int) -> bool:
        """Whether a pass is the first that reads a held row, and so waits for its slices."""
        return self._passes.users(load)[0] == number

    def _extreme(self, op: Reduce, number: int) -> None:
        """Append an extreme of the whole row, which is read as one slice.

        No loop is needed: elements are folded as they are read, and none of them waits in a register.
        """
        builder = self.builder
        load = self._held_by_result[op.x]
        x = self.values[load.operands[0]]
        held = HeldSlice(
            x=x,
            part=builder.constant(0),
            row=self._held[load],
            shape=self._row.shape(op.x, 1),
            arriving=self._arrives(load, number),
        )
        row = builder.value(held, op.x.name)
        self.values[op.result] = builder.value(op.copy_with([row], (), ()), op.result.name)

    def _slice(self, op: Op, part: Value, number: int) -> None:
        """Append an operation for one slice."""
        operands = [self.values.get(value, value) for value in op.operands]
        if op in self._held:
            shape = self._row.shape(op.results[0], self._parts)
            arriving = self._arrives(op, number)
            held = HeldSlice(x=operands[0], part=part, row=self._held[op], shape=shape, arriving=arriving)
            copy = self.builder.add(held)
        else:
            copy = self._row.sliced(op, operands, self._parts, part, self.builder)
        for old, new in zip(op.results, copy.results, strict=True):
            new.name = old.name
            self.values[old] = new

    def _folded(self, op: Reduce, total: Value, dtype: DTypeLike) -> Value:
        """The totals of a reduction, folded with this slice element by element."""
        x = self.values[op.x]
        if x.tile.dtype is not dtype:
            x = self.builder.value(Convert(x=x, dtype=dtype))
        kind = FOLDS[type(op)]
        more = {"nan": op.nan} if isinstance(op, ReduceExtreme) else {}
        return self.builder.value(kind(x=total, y=x, **more))


def _folded_in(op: Reduce) -> DTypeLike:
    """The dtype in which elements are folded: exact extremes in their own."""
    dtype = op.x.tile.dtype
    return dtype if isinstance(op, ReduceExtreme) else reduced_in(dtype)


def _identity(op: Reduce, dtype: DTypeLike) -> float | int:
    """The identity of a reduction.

    For an extreme of floats it is NaN, which any number replaces. If the extreme keeps NaNs, it is an infinity.
    """
    if isinstance(op, ReduceSum | ReduceProd):
        return int(isinstance(op, ReduceProd))
    if dtype.is_float:
        extreme = float("inf" if isinstance(op, ReduceMin) else "-inf")
        return extreme if isinstance(op, ReduceExtreme) and op.nan else float("nan")
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    high = (1 << (dtype.bits - dtype.is_signed)) - 1
    return low if isinstance(op, ReduceMax) else high


# Lowering.


def _slice_layout(x: Value, shape: tuple[int, ...], warps: int) -> tuple[Layout, tuple[int, int], tuple[int, ...]]:
    """How a slice of `x` lies in shared memory.

    Returns:
        The layout, which says which thread copies an element and later reads it; axis and width of its accesses; the
        slice's strides in shared memory, in elements.
    """
    vector = vector_width(x.tensor, shape)
    assert vector is not None, f"{x} is not copied to shared memory"
    axis, width = vector
    order = axis_first(len(shape), axis)
    strides, extent = dict.fromkeys(range(len(shape)), 0), 1
    for other in order:
        if other == axis or shape[other] > 1:
            strides[other] = extent
        extent *= shape[other]
    return blocked(shape, warps, width, order), vector, tuple(strides.values())


def lower_hold_row(op: HoldRow, context: LoweringContext) -> None:
    """Begin to copy a row, slice by slice: by bulk copies, or by `cp.async`.

    The bytes of each bulk copy are counted at a barrier of its own. With `cp.async`, each slice is a group of copies.
    Each thread waits for its own copies, which no other thread reads (`intrinsics/stage.py`).
    """
    builder, tensor = context.builder, op.x.tensor
    layout, vector, strides = _slice_layout(op.x, op.shape, context.warps)
    nbytes = move_bytes(tensor.dtype, layout)
    place = context.smem.reserve(op.parts * nbytes)
    index = [context.lowered[value] for value in op.index]
    if op.bulk_copies and context.arch.major >= BULK_SINCE and _is_contiguous(op, vector, context.warps):
        shape = _whole(op.shape, op.axis, op.parts)
        whole, _, strides = _slice_layout(op.x, shape, context.warps)
        copy = StageTile(
            *(context.lowered[op.x], builder.constant(0), tuple(index)),
            shape=shape,
            strides=strides,
            stage=(0, op.parts, nbytes),
            held=True,
            copies=op.bulk_copies,
        )
        barriers = context.smem.reserve(op.bulk_copies * BARRIER_BYTES)
        context.held[op.row] = HeldPlace(op.shape, op.parts, place, nbytes, barriers, bulk_copies=op.bulk_copies)
        context.add(copy, layout=context.layout_name(whole), vector=vector, counter=barriers)
        context.smem.share(copy, place)
        return
    first = builder.value(Mul(x=index[op.axis], y=builder.constant(op.parts)))
    start, stop, step = builder.constant(0), builder.constant(op.parts), builder.constant(1)
    part = Value(start.type, "part")
    with builder.block(part) as body:
        index[op.axis] = builder.value(Add(x=first, y=part))
        copy = StageTile(
            *(context.lowered[op.x], part, tuple(index)),
            shape=op.shape,
            strides=strides,
            stage=(0, op.parts, nbytes),
            held=True,
        )
        context.add(copy, layout=context.layout_name(layout), vector=vector)
        context.smem.share(copy, place)
        builder.add(StageCommit())
        builder.yield_()
    builder.add(For(start=start, stop=stop, step=step, carried=(), body=body))
    context.held[op.row] = HeldPlace(op.shape, op.parts, place, nbytes, group=_groups(context))


def _whole(shape: Sequence[int], axis: int, parts: int) -> tuple[int, ...]:
    """The shape of `parts` slices, one after the other."""
    return (*shape[:axis], parts * shape[axis], *shape[axis + 1 :])


def _is_contiguous(op: HoldRow, vector: tuple[int, int], warps: int) -> bool:
    """Whether one bulk copy can bring a row.

    The row has to be contiguous, in whole pieces of 16 bytes. Each thread has to have the same elements of the row as
    of its slices: at the tensor's edge, threads copy what they will read.
    """
    axis, width = vector
    if axis != op.axis or math.prod(op.shape) > op.shape[axis] or width * op.x.tensor.dtype.bits // 8 < BULK_BYTES:
        return False
    whole = _whole(op.shape, axis, op.parts)
    return extended(_slice_layout(op.x, op.shape, warps)[0], whole) == _slice_layout(op.x, whole, warps)[0]


def lower_held_slice(op: HeldSlice, context: LoweringContext) -> None:
    """A slice, read by the threads that copied it."""
    held = context.held[op.row]
    if op.arriving:
        _wait(op, held, context)
    layout, vector, strides = _slice_layout(op.x, op.shape, context.warps)
    tile = StageRead(
        context.lowered[op.part],
        dtype=op.x.tensor.dtype,
        shape=op.shape,
        strides=strides,
        stage=(0, held.parts, held.nbytes),
        own=True,
        of=op.x.name,
    )
    context.add(tile, layout=context.layout_name(layout), vector=vector)
    context.smem.share(tile, held.start)
    context.place(op.result, tile.result, layout)


def _groups(context: LoweringContext) -> int:
    """Groups of `cp.async` that were begun for rows so far. Each slice is one."""
    return sum(held.parts for held in context.held.values() if held.barriers is None)


def _wait(op: HeldSlice, held: HeldPlace, context: LoweringContext) -> None:
    """Wait for a slice; for all of them, if the whole row is read."""
    builder, part = context.builder, context.lowered[op.part]
    whole = op.shape != held.shape
    if held.barriers is None:
        # By slice, the number of groups that were begun after its own: these may be under way (`cp.async.wait_group`).
        later = tuple(_groups(context) - held.group - 1 - number for number in range(held.parts))
        # Groups end in the order in which they are begun, so the last one stands for all.
        builder.add(SliceWait(part=builder.constant(held.parts - 1) if whole else part, later=later, bulk=False))
        return
    for copy in [builder.constant(number) for number in range(held.bulk_copies)] if whole else [part]:
        context.add(SliceWait(part=copy, later=(), bulk=True), counter=held.barriers)


LOWERINGS = ((HoldRow, lower_hold_row), (HeldSlice, lower_held_slice))
