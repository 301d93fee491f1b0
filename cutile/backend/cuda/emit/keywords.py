"""Keyword arguments of a call, from an operation's attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.ops.pipeline import buffer_types
from cutile.backend.cuda.panels import Panels

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel
    from cutile.backend.cuda.emit.text import Call
    from cutile.backend.cuda.ops import GroupMma, OuterMma
    from cutile.ir.core import Op, Value


def numbers(op: Op, *names: str) -> list[str]:
    """These attributes, by their names."""
    return [f"{each}={op.attributes[each]!r}" for each in names]


def limit(op: Op) -> list[str]:
    """That waits end, where they do."""
    return ["limited=True"] if op.attributes["limited"] else []


def fed(op: GroupMma | OuterMma, kernel: Kernel) -> Call:
    """Where a product's operands are, in the file: the right one behind the left one, in the stages of one pipeline."""
    panels = (kernel.panels(Panels(*each.panels)) for each in buffer_types((op.left, op.right)))
    return kernel.fed(*panels, *numbers(op, "depth"), *places(op.left, kernel))


def places(buffer: Value, kernel: Kernel) -> list[str]:
    """Where a buffer's stages are."""
    op = kernel.definition(buffer)
    return [
        f"stages={op.attributes['stages']}",
        f"stage_bytes={op.attributes['stage_bytes']}",
        f"place={offset(buffer, kernel)}",
    ]


def barriers(pipeline: Value, kernel: Kernel) -> list[str]:
    """Where a pipeline's barriers are."""
    return [f"stages={kernel.definition(pipeline).attributes['stages']}", f"offset={offset(pipeline, kernel)}"]


def offset(resource: Value, kernel: Kernel) -> int:
    """Where a resource is in shared memory, in bytes."""
    where: int = kernel.definition(resource).attributes["offset"]
    return where
