"""Matrix products, and the stages that feed them.

Stages are filled by `cp.async`, or by TMA in pipelines. TMA also stores results.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cutile.backend.common.abi import GRID_NAMES
from cutile.backend.cuda.emit.generic import offset, places
from cutile.backend.cuda.emit.memory import arguments, view
from cutile.backend.cuda.ops import (
    Dot,
    DotWait,
    SimtMma,
    SliceWait,
    StagedMma,
    StagePut,
    StageRead,
    StageTile,
    WriteOperand,
)
from cutile.backend.cuda.ops.memory import TmaLoad, TmaStore
from cutile.backend.cuda.ops.pipeline import BarriersStart, BarriersType, PipelineType, ReadBuffer, buffer_types
from cutile.backend.cuda.smem_layout import SmemLayout
from cutile.backend.cuda.smem_sizes import BARRIER_BYTES
from cutile.backend.gpu.emitter import Call, numbers
from cutile.dtypes import DTypeLike, f64
from cutile.ir.core import Value
from cutile.ops import matmul

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def _capability(dtype: DTypeLike, kernel: Kernel) -> tuple[str, ...]:
    """The keyword argument `capability`, if the instructions for a dtype depend on it.

    The factories' default is 8.0, the oldest.
    """
    varies = not dtype.computes or dtype is f64
    return (f"capability={kernel.capability}",) if varies and kernel.capability > (8, 0) else ()


def mma(op: matmul.Mma, kernel: Kernel) -> Call:
    """`mma(a, b, acc)`."""
    facts = op.attributes
    left, right = facts["source"]
    function = kernel.bind(
        "mma",
        "matmul.mma",
        kernel.dtype(op.a.tile.dtype),
        kernel.dtype(op.b.tile.dtype),
        kernel.dtype(op.acc.tile.dtype),
        kernel.layout(left),
        kernel.layout(right),
        kernel.layout(facts["layout"]),
        f"offset={facts['offset']}",
        f"fence={facts['fence']}",
        *_capability(op.a.tile.dtype, kernel),
    )
    return Call(function, tuple(map(kernel.use, op.operands)))


def _place(facts: dict[str, Any], stage: tuple[int, int, int]) -> tuple[str, ...]:
    """Keyword arguments of the stages: their number, size and first offset, in bytes."""
    first, stages, stage_bytes = stage
    return f"stages={stages}", f"stage_bytes={stage_bytes}", f"offset={facts['offset'] + first}"


def stage_tile(op: StageTile, kernel: Kernel) -> Call:
    """`stage_x(x, x_extent_0, i, k, k)`: the last argument is the iteration.

    The call for a row that one thread copies (`op.copies`) has no such argument.
    """
    facts = op.attributes
    axis, width = facts["vector"]
    if op.copies:
        first, parts, stage_bytes = op.stage
        function = kernel.bind(
            f"stage_{op.x.name or 'view'}",
            "stage.stage_row",
            view(op.x.tensor, kernel),
            kernel.layout(facts["layout"]),
            f"axis={axis}",
            f"width={width}",
            f"strides={op.strides!r}",
            f"parts={op.copies}",
            f"nbytes={parts * stage_bytes // op.copies}",
            f"offset={facts['offset'] + first}",
            f"counter={facts['counter']}",
        )
        return Call(function, tuple(arguments(op.x, op.index, kernel)))
    function = kernel.bind(
        f"stage_{op.x.name or 'view'}",
        "stage.stage_tile",
        view(op.x.tensor, kernel),
        kernel.layout(facts["layout"]),
        f"axis={axis}",
        f"width={width}",
        f"strides={op.strides!r}",
        *_place(facts, op.stage),
        *((f"steps={op.steps!r}",) if op.steps and op.steps != op.shape else ()),
        *((f"limited={op.limited!r}",) if op.limited else ()),
    )
    return Call(function, (*arguments(op.x, op.index, kernel), kernel.use(op.iteration)))


def slice_wait(op: SliceWait, kernel: Kernel) -> Call:
    """`wait_slice(part)`."""
    if op.bulk:
        function = kernel.bind("wait_slice", "stage.wait_bulk_slice", f"counter={op.attributes['counter']}")
    else:
        function = kernel.bind("wait_slice", "stage.wait_slice", f"later={op.later!r}")
    return Call(function, (kernel.use(op.part),))


def stage_read(op: StageRead, kernel: Kernel) -> Call:
    """`read_stage(k)`."""
    facts = op.attributes
    layout = kernel.layout(facts["layout"])
    function = kernel.bind(
        "read_stage",
        "stage.stage_read",
        kernel.dtype(op.dtype),
        layout,
        f"axis={facts['vector'][0]}",
        f"strides={op.strides!r}",
        *_place(facts, op.stage),
    )
    return Call(function, (kernel.use(op.iteration),))


def stage_put(op: StagePut, kernel: Kernel) -> Call:
    """`put(tile, k)`."""
    facts = op.attributes
    function = kernel.bind(
        "put",
        "matmul.stage_put",
        kernel.dtype(op.dtype),
        kernel.dtype(op.other),
        kernel.layout(facts["source"]),
        kernel.layout(facts["accumulator"]),
        f"right={op.right}",
        f"depth={op.value.tile.shape[0 if op.right else 1]}",
        f"swaps={op.swaps}",
        *_place(facts, op.stage),
    )
    return Call(function, (kernel.use(op.value), kernel.use(op.iteration)))


def _moved(stage: tuple[int, int, int], offset: int) -> tuple[int, int, int]:
    """The same stages, with the first byte counted from an offset in shared memory."""
    return (stage[0] + offset, *stage[1:])


def staged_mma(op: StagedMma, kernel: Kernel) -> Call:
    """`mma(acc, k)`."""
    facts = op.attributes
    function = kernel.bind(
        "mma",
        "matmul.staged_mma",
        kernel.dtype(op.dtype),
        kernel.dtype(op.other),
        kernel.dtype(op.acc.tile.dtype),
        kernel.layout(facts["layout"]),
        f"depth={op.depth}",
        f"left={_moved(op.left, facts['offset'])}",
        f"right={_moved(op.right, facts['offset'])}",
        f"swaps={op.swaps}",
        *(("rounds=True",) if op.rounds else ()),
        *_capability(op.dtype, kernel),
    )
    return Call(function, (kernel.use(op.acc), kernel.use(op.iteration)))


# Products by warpgroups, whose operands are tiles in buffers, or in registers.


def _stages(buffer: Value, k_major: bool, kernel: Kernel) -> Call:
    """A buffer as an operand; the product says along which axis K is."""
    (kind,) = buffer_types([buffer])
    smem_layout = replace(SmemLayout(*kind.smem_layout), k_major=k_major)
    return kernel.place(kernel.smem_layout(smem_layout), *places(buffer, kernel))


def dot(op: Dot, kernel: Kernel) -> Call:
    """`begin_dot(counter, left, acc)`.

    It is `begin_dot(counter, acc)` if one counter serves both operands.
    """
    left = kernel.layout(op.attributes["source"]) if op.from_registers else _stages(op.left, op.left_k_major, kernel)
    together = op.left_counter is op.counter
    left_argument = [] if together else [op.left if op.left_counter is None else op.left_counter]
    how = ("replaces", "promote_columns", "left_first", "right_first")
    if not op.a_from_registers:  # `wgmma_rs.multiply` has neither: one counter serves both operands, and sums exist
        how = ("fresh", "together", *how)
    facts = {**op.attributes, "together": together}
    function = kernel.bind(
        "begin_dot",
        "wgmma_rs.multiply" if op.a_from_registers else "dot.dot",
        kernel.dtype(op.left_dtype),
        kernel.dtype(op.right_dtype),
        kernel.dtype(op.acc_dtype),
        kernel.layout(op.attributes["layout"]),
        left,
        _stages(op.right, op.right_k_major, kernel),
        f"depth={op.depth}",
        *(f"{name}={facts[name]}" for name in how if facts.get(name)),
    )
    return Call(function, tuple(map(kernel.use, (op.counter, *left_argument, *op.sums))))


def write_operand(op: WriteOperand, kernel: Kernel) -> Call:
    """`write_operand(words, counter)`."""
    (kind,) = buffer_types([op.buffer])
    at = _stages(op.buffer, SmemLayout(*kind.smem_layout).k_major, kernel)
    function = kernel.bind("write_operand", "buffer.write", kernel.layout(op.attributes["layout"]), at)
    return Call(function, (kernel.use(op.words), kernel.use(op.counter)))


def dot_wait(op: DotWait, kernel: Kernel) -> Call:
    """`finished(acc)`, or `finished_but_1(acc)`.

    In the latter this product is finished, but one that began later may be under way.
    """
    name = f"finished_but_{op.pending}" if op.pending else "finished"
    how = [f"words={value.tile.size // int(kernel.facts['computing'])}" for value in op.left]
    how += ["goes_on=True"] if op.goes_on else []
    pending = str(op.pending * op.groups)
    function = kernel.bind(name, "dot.wait", kernel.dtype(op.acc.tile.dtype), str(kernel.count(op)), pending, *how)
    return Call(function, tuple(map(kernel.use, op.operands)))


def simt_mma(op: SimtMma, kernel: Kernel) -> Call:
    """`multiply(acc, counter)`."""
    buffers = (op.left, op.right)
    function = kernel.bind(
        "multiply",
        "simt.multiply",
        kernel.layout(op.attributes["layout"]),
        *(
            _stages(buffer, SmemLayout(*kind.smem_layout).k_major, kernel)
            for buffer, kind in zip(buffers, buffer_types(buffers), strict=True)
        ),
        f"depth={op.depth}",
    )
    return Call(function, (kernel.use(op.acc), kernel.use(op.counter)))


# Barriers of pipelines, and tiles that TMA loads and stores.


def barriers_start(op: BarriersStart, kernel: Kernel) -> Call:
    """`start()`."""
    groups: list[tuple[int, int, int]] = []  # the first barrier's offset, the number of barriers, a phase's arrivals
    for value in op.of:
        first, type_ = offset(value, kernel), value.type
        if isinstance(type_, PipelineType):  # a phase of `full` takes the producer's one arrival, and the bytes
            behind = first + BARRIER_BYTES * type_.stages
            groups += [(first, type_.stages, 1), (behind, type_.stages, type_.arrivals)]
        elif isinstance(type_, BarriersType):
            groups.append((first, type_.count, type_.arrivals))
    options = ["cluster=True"] if op.cluster else []
    options += [f"flag={offset(op.flag, kernel)}"] if op.flag is not None else []
    return Call(kernel.bind("start", "pipeline.start", *map(str, groups), *options), ())


def tma_load(op: TmaLoad, kernel: Kernel) -> Call:
    """`load_x(x_map, i, k, counter)`; with a hint, `load_x(..., counter, grid_y)`."""
    (buffer,) = buffer_types([op.buffer])
    function = kernel.bind(
        f"load_{op.x.name}",
        "tma.load",
        kernel.smem_layout(SmemLayout(*buffer.smem_layout)),
        f"shape={op.shape or buffer.shape}",
        *numbers(op, "axis"),
        *places(op.buffer, kernel),
        f"offset={offset(op.pipeline, kernel)}",
        *numbers(op, "cluster"),
        *([f"steps={op.steps}"] if op.steps else []),
        *([f"shared={len(op.shared_along)}"] if op.shared_along is not None else []),
    )
    counts = [GRID_NAMES[axis] for axis in op.shared_along or ()]
    return Call(function, (op.map, *map(kernel.use, op.index), kernel.use(op.counter), *counts))


def tma_store(op: TmaStore, kernel: Kernel) -> Call:
    """`store_z(tile, z_map, i, j)`, or `add_to_z`.

    An addition in two parts is `write_z(tile)` and `begin_z(z_map, i, j)`.
    """
    tile = [kernel.dtype(op.x.tensor.dtype), kernel.layout(op.attributes["layout"])]
    how = [*numbers(op, "span", "buffers"), f"place={offset(op.through, kernel)}"]
    dropped = ["dropped=True"] if op.dropped else []
    if op.adds:
        factory, tile, how = "tma.add", tile[1:], [*how, *([f"shape={op.shape}"] if op.shape else [])]
        how += [f"part={op.part!r}"] if op.part else []
    elif op.transposed:
        factory, how = "tma.store_transposed", [*how, *dropped]
    else:
        factory = "tma.store"
        how += [
            *numbers(op, "first", "begins"),
            *(["packed=True"] if op.packed else []),
            *dropped,
            *([f"shape={op.shape}"] if op.shape else []),
        ]
    function = kernel.bind(f"{op.part or ('add_to' if op.adds else 'store')}_{op.x.name}", factory, *tile, *how)
    value = () if op.part == "begin" else (kernel.use(op.value),)
    return Call(function, value if op.part == "write" else (*value, op.map, *map(kernel.use, op.index)))


def read_buffer(op: ReadBuffer, kernel: Kernel) -> Call:
    """`read_x(counter)`; for a tile of a single element, `read_x(counter, k)`."""
    (buffer,) = buffer_types([op.buffer])
    function = kernel.bind(
        f"read_{op.buffer.name.removesuffix('_buffer')}",
        "buffer.read",
        kernel.dtype(buffer.dtype),
        kernel.layout(op.attributes["layout"]),
        kernel.smem_layout(SmemLayout(*buffer.smem_layout)),
        *numbers(op, "axis"),
        *places(op.buffer, kernel),
        *(["number=True"] if op.place else []),
    )
    return Call(function, (kernel.use(op.counter), *map(kernel.use, op.place)))


EMITTERS = {
    matmul.Mma: mma,
    StageTile: stage_tile,
    SliceWait: slice_wait,
    StageRead: stage_read,
    StagePut: stage_put,
    StagedMma: staged_mma,
    Dot: dot,
    DotWait: dot_wait,
    WriteOperand: write_operand,
    SimtMma: simt_mma,
    BarriersStart: barriers_start,
    TmaLoad: tma_load,
    TmaStore: tma_store,
    ReadBuffer: read_buffer,
}
