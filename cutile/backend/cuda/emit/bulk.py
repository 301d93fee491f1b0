"""Specialised warps: what the copy engine loads and stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.keywords import numbers, offset, places
from cutile.backend.cuda.emit.text import Call
from cutile.backend.cuda.ops.bulk import BulkDrain, BulkLoad, BulkPrefetch, BulkStore, Pack
from cutile.backend.cuda.ops.pipeline import BufferType
from cutile.backend.cuda.panels import Panels

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def prefetch(op: BulkPrefetch, kernel: Kernel) -> Call:
    """`prefetch(x_map)`."""
    return Call(kernel.bind("prefetch", "bulk.prefetch"), (op.map,))


def bulk_load(op: BulkLoad, kernel: Kernel) -> Call:
    """`load_x(x_map, i, k, counter)`."""
    buffer = op.buffer.type
    assert isinstance(buffer, BufferType)
    made = kernel.bind(
        f"load_{op.x.name}",
        "bulk.load",
        kernel.panels(Panels(*buffer.panels)),
        f"shape={op.shape or buffer.shape}",
        *numbers(op, "axis"),
        *places(op.buffer, kernel),
        f"offset={offset(op.pipeline, kernel)}",
        *numbers(op, "cluster"),
        *([f"steps={op.steps}"] if op.steps else []),
    )
    return Call(made, (op.map, *map(kernel.use, op.index), kernel.use(op.counter)))


def bulk_store(op: BulkStore, kernel: Kernel) -> Call:
    """`store_z(tile, z_map, i, j)`."""
    if op.transposed:
        made = kernel.bind(
            f"store_{op.x.name}",
            "bulk.store_transposed",
            kernel.dtype(op.x.tensor.dtype),
            kernel.layout(op.attributes["layout"]),
            *numbers(op, "span", "buffers"),
            f"place={offset(op.through, kernel)}",
            *(["dropped=True"] if op.dropped else []),
        )
        return Call(made, (kernel.use(op.value), op.map, *map(kernel.use, op.index)))
    stage_bytes = kernel.definition(op.through).attributes.get("stage_bytes", 0)
    made = kernel.bind(
        f"store_{op.x.name}",
        "bulk.store",
        kernel.dtype(op.x.tensor.dtype),
        kernel.layout(op.attributes["layout"]),
        *numbers(op, "span", "buffers"),
        f"place={offset(op.through, kernel)}",
        *numbers(op, "first", "begins"),
        *(["packed=True"] if op.packed else []),
        *(["dropped=True"] if op.dropped else []),
        *([f"apart={(stage_bytes, op.warp_bytes)}"] if op.warp_bytes else []),
        *([f"shape={op.shape}"] if op.shape else []),
    )
    return Call(made, (kernel.use(op.value), op.map, *map(kernel.use, op.index)))


def pack(op: Pack, kernel: Kernel) -> Call:
    """`pack(z)`."""
    made = kernel.bind("pack", "bulk.pack_pairs", kernel.dtype(op.x.tile.dtype), str(kernel.count(op)))
    return Call(made, (kernel.use(op.x),))


def drain(op: BulkDrain, kernel: Kernel) -> Call:
    """`drain()`."""
    return Call(kernel.bind("drain", "bulk.drain"), ())


EMITTERS = {
    BulkPrefetch: prefetch,
    BulkLoad: bulk_load,
    BulkStore: bulk_store,
    Pack: pack,
    BulkDrain: drain,
}
