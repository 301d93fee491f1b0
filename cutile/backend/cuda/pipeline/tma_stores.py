"""Results that TMA stores, by way of shared memory: which, and how they are cut."""

import math
from collections.abc import Mapping, Sequence

from cutile.backend.cuda.mma_layouts import group_accumulator
from cutile.backend.cuda.ops import AddTile
from cutile.backend.cuda.pipeline.kernel import Kernel
from cutile.backend.cuda.pipeline.plan import WARP_ROWS, Dot, TmaStore
from cutile.backend.cuda.smem_layout import WGMMA_ROWS, SmemLayout
from cutile.backend.cuda.tensor_map import MAX_TMA_AXES
from cutile.backend.gpu.layout import Layout
from cutile.backend.gpu.layout_assignment import LayoutAssignment
from cutile.dtypes import bf16, f16, f32
from cutile.ir.control import For
from cutile.ir.core import Op, Value
from cutile.ops.memory import LoadMut, LoadTile, StoreMut
from cutile.ops.shape import Cat, Reshape
from cutile.ops.view import LoadView, StoreView

STORE_BUFFERS = 2
"""Places of a warp by way of which it stores: it writes one while TMA reads the other."""
ADDED_BYTES = 128
"""Of a row that a warp adds at a time: the widest swizzle."""

Stored = StoreMut | StoreView | AddTile
"""What TMA may do."""


def tma_stores_of(
    kernel: Kernel, dots: Mapping[Op, Dot], layouts: LayoutAssignment, warpgroups: int
) -> dict[Op, TmaStore]:
    """The stores that TMA can do.

    Of 16-bit rows of a tile like a product's sums, to a tensor that is not read; and additions of whole sums.

    They go by way of the same places, so that all are like the first.
    """
    sums = {dot.op.result: dot.accumulator for dot in dots.values()}
    joined = [op.result for op in kernel.order if isinstance(op, Cat) and len(op.result.tile.shape) == 2]
    lie = {value: group_accumulator((value.tile.shape[0], value.tile.shape[1]), warpgroups) for value in joined}
    # Of columns that each thread has of its own.
    sums |= {value: layout for value, layout in lie.items() if layouts[value] == layout}
    stores: dict[Op, TmaStore] = {}
    for op in kernel.order:
        if not isinstance(op, Stored) or _is_unfit(kernel, op):
            continue
        store = None if isinstance(op, AddTile) else _transposed_store(op, layouts, warpgroups)
        store = store or _store_of_rows(kernel, op, sums, warpgroups)
        # Additions wait for all places by themselves, and have no part in the order of a tile's places.
        alike = (other.smem_layout for other in stores.values() if store is not None and other.adds == store.adds)
        if store is not None and all(other == store.smem_layout for other in alike):
            stores[op] = store
    return stores


def only_store_of(kernel: Kernel, loop: For, warpgroups: int) -> TmaStore | None:
    """The one store of a kernel's own tile that TMA does in the accumulators' layout.

    Behind its main loop; None else.
    """
    stores = [op for op in kernel.order if isinstance(op, StoreMut)]
    if len(stores) != 1 or stores[0] not in kernel.function.body.operations or _is_unfit(kernel, stores[0]):
        return None
    sums = loop.results[0]
    rows, columns = sums.tile.shape
    store = _store_of_rows(kernel, stores[0], {sums: group_accumulator((rows, columns), warpgroups)}, warpgroups)
    return None if store is None or store.passed else store


def _is_unfit(kernel: Kernel, op: Stored) -> bool:
    """Whether a kernel reads the tensor that it stores to, or stores a part of a tile."""
    loads = (load for load in kernel.order if isinstance(load, LoadMut | LoadTile | LoadView))
    partly = isinstance(op, StoreView) and (op.steps != op.value.tile.shape or bool(op.limited))
    return partly or any(load.operands[0] is op.x for load in loads)


def _store_of_rows(kernel: Kernel, op: Stored, sums: Mapping[Value, Layout], warpgroups: int) -> TmaStore | None:
    """How TMA stores a matrix whose rows lie as those of sums do, or adds sums.

    None where it cannot.
    """
    tensor, shape, adds = op.x.tensor, op.value.tile.shape, isinstance(op, AddTile)
    shapes = {layout.shape for layout in sums.values()}
    dtypes = (f32,) if adds else (f16, bf16)
    if tensor.dtype not in dtypes or tensor.alignment != 16 or not 2 <= tensor.rank <= MAX_TMA_AXES:
        return None
    lead, columns = shape[:-1], shape[-1]
    value, passed = op.value, list[Op]()
    reshape = kernel.definitions.get(value)
    if len(shape) > 2 or shape not in shapes:
        if not isinstance(reshape, Reshape) or kernel.uses[value] > 1:
            return None
        passed.append(reshape)
        value = reshape.x
    if value.tile.shape not in shapes or value.tile.shape[1] != columns or columns % 16:
        return None
    rows = box_of_rows(lead)
    layout = sums.get(value) if adds else group_accumulator((value.tile.shape[0], columns), warpgroups)
    if tensor.unit_axis != tensor.rank - 1 or rows is None or layout is None:
        return None
    own = columns >> sum(bool(basis[1]) for basis in layout.warp)  # columns of a warpgroup
    part = SmemLayout(own, 1, tensor.dtype.bits // 8, k_major=False)
    if adds and part.swizzle != ADDED_BYTES:
        return None
    return TmaStore(op, value, (*rows, part.span), tuple(passed), layout, STORE_BUFFERS)


def _transposed_store(op: StoreMut | StoreView, layouts: LayoutAssignment, warpgroups: int) -> TmaStore | None:
    """How TMA stores a matrix whose columns lie as the rows of sums do.

    None where they do not.
    """
    tensor, shape = op.x.tensor, op.value.tile.shape
    if tensor.dtype not in (f16, bf16) or tensor.alignment != 16 or len(shape) != 2 or tensor.unit_axis != 1:
        return None
    rows, columns = shape
    if columns % WGMMA_ROWS or rows % 8:
        return None
    layout = group_accumulator((columns, rows), warpgroups).permute((1, 0))
    if layouts[op.value] != layout:
        return None
    together = next(span for span in (64, 32, 16, 8) if rows % span == 0)
    return TmaStore(op, op.value, (together, WARP_ROWS), (), layout, STORE_BUFFERS, transposed=True)


def box_of_rows(extents: Sequence[int]) -> tuple[int, ...] | None:
    """The box that 16 rows, from a multiple of 16 on, are of a tile of these extents.

    None where they are none.
    """
    left, box = WARP_ROWS, list[int]()
    for extent in reversed(extents):
        if extent % left and left % extent:
            return None
        box.append(min(left, extent))
        left //= box[-1]
    return tuple(reversed(box)) if math.prod(box) == WARP_ROWS else None
