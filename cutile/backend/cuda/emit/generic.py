"""The emitter of declared intrinsics, with this backend's resources.

Other emitters share its keyword arguments for buffers, barriers and their offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from cutile.backend.cuda.ops.pipeline import BarriersType, BufferType, PipelineType, ScratchType, buffer_types
from cutile.backend.cuda.smem_layout import SmemLayout
from cutile.backend.gpu.emitter import Call, Intrinsic, Resources, declared_emitter
from cutile.dtypes import DTypeLike
from cutile.ir.core import Op, Value

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def emitter(intrinsic: Intrinsic) -> Callable[[Op, Kernel], Call]:
    """The emitter of the operations that become this intrinsic."""
    return declared_emitter(intrinsic, _RESOURCES)


def _fact(fact: str, op: Op, kernel: Kernel) -> Iterator[str]:
    """A fact of this backend as an argument: a layout in shared memory, or an offset."""
    if fact == "smem_layout":
        (buffer,) = buffer_types(op.operands)
        yield kernel.smem_layout(SmemLayout(*buffer.smem_layout))
    else:
        yield repr(offset(getattr(op, fact), kernel))


def _dtype(op: Op) -> DTypeLike:
    """An operation's dtype: its attribute, or the dtype of its first operand."""
    if "dtype" in op.attributes:
        dtype: DTypeLike = op.attributes["dtype"]
        return dtype
    first = op.operands[0].type
    return first.dtype if isinstance(first, BufferType) else op.operands[0].tile.dtype


def _places(op: Op, intrinsic: Intrinsic, kernel: Kernel) -> Iterator[str]:
    """Keyword arguments of the resources among the operands, except those in `facts`."""
    by_position = [getattr(op, fact) for fact in intrinsic.facts if fact in op.fields and fact not in op.attributes]
    for value in op.operands:
        if value in by_position:
            continue
        if isinstance(value.type, BufferType):
            yield from places(value, kernel)
        elif isinstance(value.type, PipelineType):
            attributes = kernel.definition(value).attributes
            yield from (f"{name}={attributes[name]}" for name in intrinsic.pipeline)
        elif isinstance(value.type, BarriersType):
            yield f"offset={offset(value, kernel)}"
        elif isinstance(value.type, ScratchType):
            yield f"place={offset(value, kernel)}"


def places(buffer: Value, kernel: Kernel) -> list[str]:
    """Keyword arguments of a buffer: its stages, their distance and first byte."""
    attributes = kernel.definition(buffer).attributes
    stages, stage_bytes = attributes["stages"], attributes["stage_bytes"]
    return [f"stages={stages}", f"stage_bytes={stage_bytes}", f"place={attributes['offset']}"]


def offset(resource: Value, kernel: Kernel) -> int:
    """A resource's offset in shared memory, in bytes."""
    place: int = kernel.definition(resource).attributes["offset"]
    return place


_RESOURCES = Resources(_fact, _places, _dtype)
