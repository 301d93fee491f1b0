"""The emitter of all operations that declare their intrinsic.

Below it stand the keyword arguments that emitters of other operations share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.text import Call, Expression, quoted
from cutile.backend.cuda.ops.intrinsic import Intrinsic
from cutile.backend.cuda.ops.pipeline import BarriersType, BufferType, PipelineType, ScratchType, buffer_types
from cutile.backend.cuda.panels import Panels
from cutile.dtypes import DTypeLike
from cutile.ir.core import Op, Value
from cutile.ir.types import ResourceType

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel

DESCRIBE_THE_RESULT = ("dtype", "shape")
"""Attributes that say what a result is. A factory that wants them takes them by position."""


def emitter(intrinsic: Intrinsic) -> Callable[[Op, Kernel], Call]:
    """The emitter of the operations that become this intrinsic."""

    def emit(op: Op, kernel: Kernel) -> Call:
        facts = [text for fact in intrinsic.facts for text in _fact(fact, op, kernel)]
        keywords = [*_places(op, intrinsic, kernel), *_attributes(op, intrinsic)]
        stem = intrinsic.stem.format(**op.attributes, name=op.name) or intrinsic.factory.split(".")[1]
        function = kernel.bind(stem, intrinsic.factory, *facts, *keywords)
        return Call(function, tuple(_arguments(op, intrinsic, kernel)))

    return emit


def _fact(fact: str, op: Op, kernel: Kernel) -> Iterator[str]:
    """A fact as arguments of the factory; one for each source."""
    attributes = op.attributes
    match fact:
        case "name":
            yield quoted(op.name)
        case "dtype":
            yield kernel.dtype(_dtype(op))
        case "result":
            yield kernel.dtype(op.result.tile.dtype)
        case "count":
            yield str(kernel.count(op))
        case "layout":
            yield kernel.layout(attributes["layout"])
        case "source":
            sources: str | tuple[str, ...] = attributes["source"]
            yield from map(kernel.layout, (sources,) if isinstance(sources, str) else sources)
        case "panels":
            (buffer,) = buffer_types(op.operands)
            yield kernel.panels(Panels(*buffer.panels))
        case _ if fact.endswith("="):
            yield from numbers(op, fact.removesuffix("="))
        case _ if fact in attributes:
            yield repr(attributes[fact])
        case _:
            yield repr(offset(getattr(op, fact), kernel))


def _dtype(op: Op) -> DTypeLike:
    """An operation's dtype: its attribute, or that of its first operand's elements."""
    if "dtype" in op.attributes:
        dtype: DTypeLike = op.attributes["dtype"]
        return dtype
    first = op.operands[0].type
    return first.dtype if isinstance(first, BufferType) else op.operands[0].tile.dtype


def _places(op: Op, intrinsic: Intrinsic, kernel: Kernel) -> Iterator[str]:
    """Where the resources among the operands lie, those aside that are facts."""
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


def _attributes(op: Op, intrinsic: Intrinsic) -> Iterator[str]:
    """Attributes as keywords: those without a default, and those that differ from it."""
    other = {
        *DESCRIBE_THE_RESULT,
        *intrinsic.omit,
        *intrinsic.call,
        *(fact.removesuffix("=") for fact in intrinsic.facts),
    }
    for name, field in op.fields.items():
        if field.kind == "attribute" and name not in other:
            value = op.attributes[name]
            if field.required or value != field.default:
                yield f"{name}={value!r}"


def _arguments(op: Op, intrinsic: Intrinsic, kernel: Kernel) -> Iterator[Expression]:
    """What the function is called with."""
    if not intrinsic.call:
        yield from (kernel.use(value) for value in op.operands if not isinstance(value.type, ResourceType))
    for name in intrinsic.call:
        if name in op.attributes:
            yield str(op.attributes[name])
        elif name in op.fields:
            yield kernel.use(getattr(op, name))
        else:
            yield name


def numbers(op: Op, *names: str) -> list[str]:
    """These attributes as keywords, whatever their values."""
    return [f"{name}={op.attributes[name]!r}" for name in names]


def places(buffer: Value, kernel: Kernel) -> list[str]:
    """Where a buffer's stages are."""
    attributes = kernel.definition(buffer).attributes
    stages, stage_bytes = attributes["stages"], attributes["stage_bytes"]
    return [f"stages={stages}", f"stage_bytes={stage_bytes}", f"place={attributes['offset']}"]


def offset(resource: Value, kernel: Kernel) -> int:
    """Where a resource is in shared memory, in bytes."""
    place: int = kernel.definition(resource).attributes["offset"]
    return place
