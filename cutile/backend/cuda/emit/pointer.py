"""Elements by address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.text import Call, quoted
from cutile.ir.core import Op
from cutile.ops import pointer

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def layout(op: Op, kernel: Kernel) -> str:
    """The layout of an access's lanes in the file; None for a scalar."""
    name = op.attributes.get("lanes")
    return kernel.layout(name) if name else "None"


def exchange(op: Op) -> str:
    """Where what an access found is handed on; None where every thread has what it needs."""
    if not op.attributes.get("exchange"):
        return "None"
    return repr((op.attributes["offset"], op.attributes["fence"]))


def load(op: pointer.LoadPointer, kernel: Kernel) -> Call:
    """`load_at(addresses, mask, pad)`."""
    made = kernel.bind(
        "load_at",
        "pointer.load",
        kernel.dtype(op.pad.tile.dtype),
        layout(op, kernel),
        quoted(op.order),
        quoted(op.scope),
        f"constant={op.constant}",
        f"exchange={exchange(op)}",
    )
    return Call(made, tuple(map(kernel.use, op.operands)))


def store(op: pointer.StorePointer, kernel: Kernel) -> Call:
    """`store_at(addresses, value, mask)`."""
    dtype = kernel.dtype(op.value.tile.dtype)
    made = kernel.bind("store_at", "pointer.store", dtype, layout(op, kernel), quoted(op.order), quoted(op.scope))
    return Call(made, tuple(map(kernel.use, op.operands)))


def address(op: pointer.TensorAddress, kernel: Kernel) -> Call:
    """`address_of(x)`."""
    return Call(kernel.bind("address_of", "pointer.address"), (kernel.use(op.x),))


def stride(op: pointer.TensorStride, kernel: Kernel) -> str:
    """`x_stride_0`: a parameter."""
    known = op.x.tensor.strides[op.axis]
    return kernel.part(op.x, "stride", op.axis) if known is None else str(known)


EMITTERS = {
    pointer.LoadPointer: load,
    pointer.StorePointer: store,
    pointer.TensorAddress: address,
    pointer.TensorStride: stride,
}
