"""Barriers of pipelines, and tiles that TMA loads and stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.common.abi import GRID_NAMES
from cutile.backend.cuda.emit.generic import offset, places
from cutile.backend.cuda.ops.memory import TmaLoad, TmaStore
from cutile.backend.cuda.ops.pipeline import BarriersStart, BarriersType, PipelineType, ReadBuffer, buffer_types
from cutile.backend.cuda.smem_layout import SmemLayout
from cutile.backend.gpu.emitter import Call, numbers

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


BARRIER_BYTES = 8
"""Bytes of an mbarrier object."""


def barriers_start(op: BarriersStart, kernel: Kernel) -> Call:
    """`start()`."""
    counted: list[tuple[int, int, int]] = []
    for value in op.of:
        first, type_ = offset(value, kernel), value.type
        if isinstance(type_, PipelineType):  # `full` completes by one arrival, of the producer, and its bytes
            behind = first + BARRIER_BYTES * type_.stages
            counted += [(first, type_.stages, 1), (behind, type_.stages, type_.arrivals)]
        elif isinstance(type_, BarriersType):
            counted.append((first, type_.count, type_.arrivals))
    more = ["cluster=True"] if op.cluster else []
    more += [f"flag={offset(op.flag, kernel)}"] if op.flag is not None else []
    return Call(kernel.bind("start", "pipeline.start", *map(str, counted), *more), ())


def bulk_load(op: TmaLoad, kernel: Kernel) -> Call:
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


def bulk_store(op: TmaStore, kernel: Kernel) -> Call:
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


def read_stage(op: ReadBuffer, kernel: Kernel) -> Call:
    """`read_x(counter)`; of a single element, `read_x(counter, k)`."""
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
    BarriersStart: barriers_start,
    TmaLoad: bulk_load,
    TmaStore: bulk_store,
    ReadBuffer: read_stage,
}
