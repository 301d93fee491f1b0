"""Results that TMA stores, by way of shared memory: which, and how they are cut."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from cutile.backend.cuda.layout import group_accumulator
from cutile.backend.cuda.panels import ROWS, Panels
from cutile.backend.cuda.pipeline.plan import WARP_ROWS, Dot, TmaStore
from cutile.backend.cuda.placement import Placement
from cutile.backend.cuda.tensor_map import MOST_AXES
from cutile.dtypes import bf16, f16
from cutile.ir.core import Function, Op, Value
from cutile.ops.memory import LoadMut, LoadTile, StoreMut
from cutile.ops.shape import Reshape
from cutile.ops.view import LoadView, StoreView

BUFFERS = 2
"""Places of a warp by way of which it stores: it writes one while TMA reads the other."""


def tma_stores_of(
    function: Function, dots: Mapping[Op, Dot], placement: Placement, warpgroups: int
) -> dict[Op, TmaStore]:
    """The stores that TMA can do: of 16-bit rows of a tile like a product's sums, to a tensor that is not read.

    They go by way of the same places, so that all are like the first.
    """
    loads = [op for op in function.walk() if isinstance(op, LoadMut | LoadTile | LoadView)]
    read = {op.operands[0] for op in loads}
    definitions = {value: op for op in function.walk() for value in op.results}
    uses = Counter(value for op in function.walk() for value in op.operands)
    shapes = {dot.accumulator.shape for dot in dots.values()}
    found: dict[Op, TmaStore] = {}
    for op in function.walk():
        if not isinstance(op, StoreMut | StoreView) or op.x in read:
            continue
        store = _transposed_store(op, placement, warpgroups) or _store(op, shapes, warpgroups, definitions, uses)
        if store is not None and all(other.panels == store.panels for other in found.values()):
            found[op] = store
    return found


def _store(
    op: StoreMut | StoreView,
    shapes: set[tuple[int, ...]],
    warpgroups: int,
    definitions: Mapping[Value, Op],
    uses: Counter[Value],
) -> TmaStore | None:
    """How TMA does a store; None where it cannot."""
    tensor, shape = op.x.tensor, op.value.tile.shape
    if isinstance(op, StoreView) and (op.steps != shape or op.limited):
        return None
    if tensor.dtype not in (f16, bf16) or tensor.alignment != 16 or not 2 <= tensor.rank <= MOST_AXES:
        return None
    value, passed = op.value, list[Op]()
    reshape = definitions.get(value)
    if len(shape) > 2 or shape not in shapes:
        if not isinstance(reshape, Reshape) or uses[value] > 1:
            return None
        passed.append(reshape)
        value = reshape.x
    if value.tile.shape not in shapes or value.tile.shape[1] != shape[-1] or shape[-1] % 16:
        return None
    rows = box_of_rows(shape[:-1])
    if tensor.unit_axis != tensor.rank - 1 or rows is None:
        return None
    span = Panels(shape[-1], 1, 2, k_major=False).span
    layout = group_accumulator((value.tile.shape[0], shape[-1]), warpgroups)
    return TmaStore(op, value, (*rows, span), tuple(passed), layout, BUFFERS)


def _transposed_store(op: StoreMut | StoreView, placement: Placement, warpgroups: int) -> TmaStore | None:
    """How TMA stores a matrix whose columns lie as the rows of sums do; None where they do not."""
    tensor, shape = op.x.tensor, op.value.tile.shape
    if isinstance(op, StoreView) and (op.steps != shape or op.limited):
        return None
    if tensor.dtype not in (f16, bf16) or tensor.alignment != 16 or len(shape) != 2 or tensor.unit_axis != 1:
        return None
    rows, columns = shape
    if columns % ROWS or rows % 8:
        return None
    layout = group_accumulator((columns, rows), warpgroups).permute((1, 0))
    if placement[op.value] != layout:
        return None
    together = next(span for span in (64, 32, 16, 8) if rows % span == 0)
    return TmaStore(op, op.value, (together, WARP_ROWS), (), layout, BUFFERS, transposed=True)


def box_of_rows(extents: Sequence[int]) -> tuple[int, ...] | None:
    """The box that 16 rows, from a multiple of 16 on, are of a tile of these extents; None where they are none."""
    left, box = WARP_ROWS, list[int]()
    for extent in reversed(extents):
        if extent % left and left % extent:
            return None
        box.append(min(left, extent))
        left //= box[-1]
    return tuple(reversed(box)) if math.prod(box) == WARP_ROWS else None
