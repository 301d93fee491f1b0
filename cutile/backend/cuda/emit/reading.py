"""Tiles that threads read from the buffers of pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutile.backend.cuda.emit.keywords import numbers, places
from cutile.backend.cuda.emit.text import Call
from cutile.backend.cuda.ops.pipeline import buffer_types
from cutile.backend.cuda.ops.reading import ReadStage
from cutile.backend.cuda.panels import Panels

if TYPE_CHECKING:
    from cutile.backend.cuda.emit.kernel import Kernel


def read_stage(op: ReadStage, kernel: Kernel) -> Call:
    """`read_x(counter)`."""
    (kind,) = buffer_types([op.buffer])
    read = kernel.bind(
        f"read_{op.buffer.name.removesuffix('_buffer')}",
        "reading.read",
        kernel.dtype(kind.dtype),
        kernel.layout(op.attributes["layout"]),
        kernel.panels(Panels(*kind.panels)),
        *numbers(op, "axis"),
        *places(op.buffer, kernel),
    )
    return Call(read, (kernel.use(op.counter),))


EMITTERS = {ReadStage: read_stage}
