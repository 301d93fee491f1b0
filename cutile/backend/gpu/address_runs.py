"""How many neighbours one update of memory serves."""

from collections.abc import Mapping

from cutile.analysis.affine import run_of
from cutile.backend.gpu.layout import Layout
from cutile.ir.core import Op, Value
from cutile.ops.atomic import AtomicRmw


def updated_at_once(op: AtomicRmw, layout: Layout, definitions: Mapping[Value, Op]) -> int:
    """Elements of a thread that one update serves: floats that lie side by side.

    1 where each element has an update of its own. The kernel must not use the old elements.
    """
    dtype = op.value.tile.dtype
    if op.kind != "addf" or op.order not in ("relaxed", "release") or dtype.bits > 32:
        return 1
    run = run_of(op.pointers, dtype.bits // 8, definitions)
    return min(run[1], layout.vector(run[0])) if run is not None else 1
