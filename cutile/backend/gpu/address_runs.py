"""Which lanes of an access by address lie side by side in memory.

    index = rows[:, None], iota((64,))[None, :]         # the addresses of gather(x, index):
    address(x) + 2 * (index[0] * stride + index[1])     # neighbours along axis 1, at multiples of 16 bytes

One access then serves several of them. What is asked of an address is by how much it grows along an axis, and which
power of two divides it where it begins. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cutile.backend.gpu.layout import Layout
from cutile.ir.constant import Constant
from cutile.ir.core import Op, Value
from cutile.ops.arith import Add, Mul, Sub
from cutile.ops.atomic import AtomicRmw
from cutile.ops.cast import Convert
from cutile.ops.create import Iota
from cutile.ops.pointer import TensorAddress, TensorStride
from cutile.ops.shape import Broadcast, Reshape

ACCESS_BYTES = 16
"""The widest access of one thread."""
LEAST_BYTES = 4
"""The narrowest access that serves several elements."""


@dataclass(frozen=True)
class Growth:
    """How a tile of whole numbers grows along an axis.

    Attributes:
        step: from element to element.
        divisor: a power of two that divides the first one, at most `ACCESS_BYTES`.
    """

    step: int
    divisor: int


def run_of(pointers: Value, size: int, definitions: Mapping[Value, Op]) -> tuple[int, int] | None:
    """The axis along which addresses lie side by side, and how many in one access.

    None where it is one by one.

    Args:
        pointers: a tile of addresses.
        size: bytes of an element.
        definitions: the operation behind each value.
    """
    shape = pointers.tile.shape
    for axis in reversed(range(len(shape))):
        growth = _growth(pointers, axis, definitions)
        if growth is None or growth.step != size or shape[axis] == 1:
            continue
        width = growth.divisor // size
        while width > 1 and shape[axis] % width:
            width //= 2
        return (axis, width) if width > 1 and width * size >= LEAST_BYTES else None
    return None


def updated_at_once(op: AtomicRmw, layout: Layout, definitions: Mapping[Value, Op]) -> int:
    """Elements of a thread that one update serves: floats that lie side by side.

    It is 1 where each has its own. Nobody may ask for the old elements.
    """
    dtype = op.value.tile.dtype
    if op.kind != "addf" or op.order not in ("relaxed", "release") or dtype.bits > 32:
        return 1
    run = run_of(op.pointers, dtype.bits // 8, definitions)
    return min(run[1], layout.vector(run[0])) if run is not None else 1


def _lowest_bit(number: int) -> int:
    """The power of two that divides a number, at most `ACCESS_BYTES`."""
    return min(number & -number, ACCESS_BYTES) if number else ACCESS_BYTES


def _growth(value: Value, axis: int, definitions: Mapping[Value, Op]) -> Growth | None:
    """How a value grows along an axis; None where it is not known."""
    op = definitions.get(value)
    shape = value.tile.shape
    if isinstance(op, Constant):
        return Growth(0, _lowest_bit(int(op.value)))
    if isinstance(op, Iota):
        return Growth(1, ACCESS_BYTES)
    if isinstance(op, Convert) and value.tile.dtype.kind in ("int", "uint") and op.x.tile.dtype.kind in ("int", "uint"):
        return _growth(op.x, axis, definitions) if value.tile.dtype.bits >= op.x.tile.dtype.bits else None
    if isinstance(op, Broadcast):
        if op.x.tile.is_scalar:
            return _growth(op.x, 0, definitions)
        inner = _growth(op.x, axis, definitions)
        return Growth(0, inner.divisor if inner else 1) if op.x.tile.shape[axis] == 1 else inner
    if isinstance(op, Reshape) and not op.x.tile.is_scalar:
        wide = [at for at, extent in enumerate(shape) if extent != 1]
        source = [at for at, extent in enumerate(op.x.tile.shape) if extent != 1]
        same = [shape[at] for at in wide] == [op.x.tile.shape[at] for at in source]
        if same and axis in wide:
            return _growth(op.x, source[wide.index(axis)], definitions)
    if isinstance(op, Add | Sub):
        return _sum(op, axis, definitions)
    if isinstance(op, Mul):
        return _product(op, axis, definitions)
    if isinstance(op, TensorAddress):
        return Growth(0, _lowest_bit(op.x.tensor.alignment))
    if isinstance(op, TensorStride):
        tensor = op.x.tensor
        known = tensor.strides[op.axis]
        return Growth(0, _lowest_bit(tensor.alignment * 8 // tensor.dtype.bits if known is None else known))
    return Growth(0, 1) if value.tile.is_scalar or shape[axis] == 1 else None


def _sum(op: Add | Sub, axis: int, definitions: Mapping[Value, Op]) -> Growth | None:
    x, y = (_growth(each, axis, definitions) for each in (op.x, op.y))
    if x is None or y is None:
        return None
    return Growth(x.step - y.step if isinstance(op, Sub) else x.step + y.step, min(x.divisor, y.divisor))


def _product(op: Mul, axis: int, definitions: Mapping[Value, Op]) -> Growth | None:
    x, y = (_growth(each, axis, definitions) for each in (op.x, op.y))
    if x is None or y is None:
        return None
    divisor = min(x.divisor * y.divisor, ACCESS_BYTES)
    if not x.step and not y.step:
        return Growth(0, divisor)
    for growing, other in ((x, op.y), (y, op.x)):
        factor = _number(other, definitions)
        if factor is not None:
            return Growth(growing.step * factor, divisor)
    return None


def _number(value: Value, definitions: Mapping[Value, Op]) -> int | None:
    """The constant that all elements of a tile are."""
    op = definitions.get(value)
    if isinstance(op, Broadcast):
        return _number(op.x, definitions)
    return int(op.value) if isinstance(op, Constant) else None
