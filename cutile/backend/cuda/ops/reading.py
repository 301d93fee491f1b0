"""Tiles that threads read from the buffers of pipelines."""

from __future__ import annotations

from cutile.backend.cuda.ops.pipeline import A_BUFFER, BufferType
from cutile.errors import IRError
from cutile.ir.core import SCALAR_INT, Effect, Op, Value, attribute, operand
from cutile.ir.types import TileType, Type


class ReadStage(Op, name="cuda.read_stage", effect=Effect.WRITE):
    """The tile in a stage of a buffer, in registers. `axis` is the one that is contiguous there.

    Each thread reads what it has of the tile, so that each warp releases the stage for itself.
    """

    buffer: Value = operand(A_BUFFER)
    counter: Value = operand(SCALAR_INT)
    axis: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        kind = self.buffer.type
        if not isinstance(kind, BufferType):
            raise IRError(f"read_stage: expected a buffer, got {kind}")
        return (TileType(kind.dtype, kind.shape),)
