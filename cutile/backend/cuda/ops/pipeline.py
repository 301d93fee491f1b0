"""Shared memory, and the barriers by which warps hand it to each other, as values.

    %x_buffer = cuda.buffer() {dtype = !f16, shape = [128, 64], smem_layout = [...], stages = 4} : buffer<...>
    %y_buffer = cuda.buffer() {...} : buffer<...>
    %pipeline = cuda.pipeline(%x_buffer, %y_buffer) {stages = 4, arrivals = 2} : pipeline<...>
    cuda.barriers_start(%pipeline)

A pipeline has two barriers for each stage: the bytes of a copy arrive on `full`, and consumers arrive on `empty`. A
stage counter `t` names stage `t % stages`, and the phase `t // stages` to wait for (PTX ISA, "Phase of the mbarrier
object"). The attribute `offset` is a resource's place in shared memory, in bytes. A buffer's attribute `stage_bytes` is
the distance from stage to stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cutile.backend.gpu.emitter import Intrinsic
from cutile.dtypes import DTypeLike
from cutile.errors import IRError
from cutile.ir.control import SCALAR_BOOL
from cutile.ir.core import SCALAR_INT, Constraint, Effect, Op, Value, attribute, operand, operands
from cutile.ir.types import ResourceType, TileType, Type

__all__ = (
    "Barriers",
    "BarriersStart",
    "Buffer",
    "ClusterEnd",
    "ClusterStart",
    "OrderBarrierArrive",
    "OrderBarrierWait",
    "Pipeline",
    "PipelineAcquire",
    "PipelineRelease",
    "PipelineWait",
    "ReadBuffer",
    "Scratch",
    "BufferType",
    "PipelineType",
    "BarriersType",
    "ScratchType",
    "buffer_types",
)


@dataclass(frozen=True)
class BufferType(ResourceType, head="buffer"):
    """Places in shared memory for a tile, one for each stage.

    Attributes:
        dtype: of its elements.
        shape: of the tile, in the tensor's order of axes.
        smem_layout: the tile's layout in shared memory: the fields of `smem_layout.SmemLayout`.
        stages: number of places.
    """

    dtype: DTypeLike
    shape: tuple[int, ...]
    smem_layout: tuple[int, int, int, bool, bool]
    stages: int


@dataclass(frozen=True)
class PipelineType(ResourceType, head="pipeline"):
    """The barriers of the stages of some buffers.

    Attributes:
        stages: number of stages of each buffer.
        arrivals: number of arrivals that complete a phase of `empty`.
        cluster: number of thread blocks whose consumers release a stage together.
    """

    stages: int
    arrivals: int
    cluster: int


@dataclass(frozen=True)
class BarriersType(ResourceType, head="barriers"):
    """Barriers that are not a pipeline's, such as the order barrier of ping-pong.

    Attributes:
        count: number of barriers.
        arrivals: number of arrivals that complete a phase of each.
    """

    count: int
    arrivals: int


@dataclass(frozen=True)
class ScratchType(ResourceType, head="scratch"):
    """Shared memory for any use: each operation that takes it has a use for it.

    Attributes:
        nbytes: its size.
    """

    nbytes: int


A_BUFFER = Constraint("a buffer", lambda t: isinstance(t, BufferType))
A_PIPELINE = Constraint("a pipeline", lambda t: isinstance(t, PipelineType))
BARRIERS = Constraint("barriers", lambda t: isinstance(t, BarriersType))
SCRATCH = Constraint("scratch memory", lambda t: isinstance(t, ScratchType))
STARTED = Constraint(
    "a pipeline, barriers or scratch memory", lambda t: isinstance(t, PipelineType | BarriersType | ScratchType)
)
PLACE = Constraint("a buffer or scratch memory", lambda t: isinstance(t, BufferType | ScratchType))


# All operations that reserve memory have an effect: else passes would merge two resources with equal attributes.
class Buffer(Op, name="cuda.buffer", effect=Effect.WRITE):
    """Reserve a buffer."""

    dtype: DTypeLike = attribute()
    shape: tuple[int, ...] = attribute()
    smem_layout: tuple[int, int, int, bool, bool] = attribute()
    stages: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (BufferType(self.dtype, self.shape, self.smem_layout, self.stages),)


class Pipeline(Op, name="cuda.pipeline", effect=Effect.WRITE):
    """Reserve the barriers of buffers whose stages are filled and released together."""

    buffers: tuple[Value, ...] = operands(A_BUFFER)
    stages: int = attribute()
    arrivals: int = attribute()
    cluster: int = attribute(default=1)

    def infer(self) -> tuple[Type, ...]:
        return (PipelineType(self.stages, self.arrivals, self.cluster),)


class Barriers(Op, name="cuda.barriers", effect=Effect.WRITE):
    """Reserve barriers that are not a pipeline's."""

    count: int = attribute()
    arrivals: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (BarriersType(self.count, self.arrivals),)


class Scratch(Op, name="cuda.scratch", effect=Effect.WRITE):
    """Reserve shared memory."""

    nbytes: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        return (ScratchType(self.nbytes),)


RESOURCES = (Buffer, Pipeline, Barriers, Scratch)
"""Operations that reserve shared memory, and do nothing when the kernel runs."""


class BarriersStart(Op, name="cuda.barriers_start", effect=Effect.WRITE):
    """Set up barriers, of pipelines and others; clear a flag in scratch memory.

    Behind this operation all threads of the block see the barriers. In a `cluster`, threads see them behind a
    `ClusterStart`.
    """

    of: tuple[Value, ...] = operands(STARTED)
    cluster: bool = attribute(default=False)

    @property
    def flag(self) -> Value | None:
        """The word that is cleared; None if there is none."""
        return next((value for value in self.of if isinstance(value.type, ScratchType)), None)

    def infer(self) -> tuple[Type, ...]:
        return ()


class ClusterStart(Op, name="cuda.cluster_start", effect=Effect.WRITE):
    """Wait until all blocks of the cluster have set up their barriers."""

    intrinsic = Intrinsic("pipeline.cluster_wait")

    def infer(self) -> tuple[Type, ...]:
        return ()


class ClusterEnd(Op, name="cuda.cluster_end", effect=Effect.WRITE):
    """Wait for the cluster's other blocks, which may still write to this block."""

    intrinsic = Intrinsic("pipeline.cluster_sync")

    def infer(self) -> tuple[Type, ...]:
        return ()


class PipelineAcquire(Op, name="cuda.pipeline_acquire", effect=Effect.WRITE):
    """Wait until a stage is empty, and announce the `nbytes` that will arrive in it.

    `limited`: a wait of over two seconds ends the kernel.
    """

    intrinsic = Intrinsic("pipeline.acquire")
    pipeline: Value = operand(A_PIPELINE)
    counter: Value = operand(SCALAR_INT)
    nbytes: int = attribute()
    limited: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class PipelineWait(Op, name="cuda.pipeline_wait", effect=Effect.WRITE):
    """Wait until the bytes of a stage have arrived."""

    intrinsic = Intrinsic("pipeline.wait")
    pipeline: Value = operand(A_PIPELINE)
    counter: Value = operand(SCALAR_INT)
    limited: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class PipelineRelease(Op, name="cuda.pipeline_release", effect=Effect.WRITE):
    """Arrive on a stage's `empty`: this warpgroup has read it, if `condition` holds.

    It arrives in all blocks of the pipeline's cluster. `warps`: each warp arrives for itself.
    """

    intrinsic = Intrinsic("pipeline.release", pipeline=("stages", "offset", "cluster"))
    pipeline: Value = operand(A_PIPELINE)
    counter: Value = operand(SCALAR_INT)
    condition: Value = operand(SCALAR_BOOL)
    warps: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class OrderBarrierWait(Op, name="cuda.order_barrier_wait", effect=Effect.WRITE):
    """Wait until the other warpgroup has begun all products of its tile block.

    It is for ping-pong kernels, whose warpgroups have tile blocks of their own. This warpgroup may wait for its stages
    only behind it: before, a parity would not tell their phases from earlier ones. `number` is the tile block's number,
    `step` the distance to the warpgroup's next tile block.
    """

    intrinsic = Intrinsic("pipeline.order_wait")
    number: Value = operand(SCALAR_INT)
    step: Value = operand(SCALAR_INT)
    barriers: Value = operand(BARRIERS)
    limited: bool = attribute(default=False)

    def infer(self) -> tuple[Type, ...]:
        return ()


class OrderBarrierArrive(Op, name="cuda.order_barrier_arrive", effect=Effect.WRITE):
    """Let the other warpgroup begin: all products of this one's tile block have begun.

    Every warp arrives: a late warp could otherwise miss a full phase of the barrier. See `OrderBarrierWait`.
    """

    intrinsic = Intrinsic("pipeline.order_arrive")
    barriers: Value = operand(BARRIERS)

    def infer(self) -> tuple[Type, ...]:
        return ()


class ReadBuffer(Op, name="cuda.read_buffer", effect=Effect.WRITE):
    """The tile in a stage of a buffer, in registers.

    Each thread reads its own elements, so each warp releases the stage for itself. `axis` is the contiguous one. If the
    tile is a single element, `place` has its index along that axis: the stage has the aligned group around the element.
    """

    buffer: Value = operand(A_BUFFER)
    counter: Value = operand(SCALAR_INT)
    place: tuple[Value, ...] = operands(SCALAR_INT)
    axis: int = attribute()

    def infer(self) -> tuple[Type, ...]:
        kind = self.buffer.type
        if not isinstance(kind, BufferType):
            raise IRError(f"{self.name}: expected a buffer, got {kind}")
        return (TileType(kind.dtype, kind.shape),)


def buffer_types(values: Sequence[Value]) -> tuple[BufferType, ...]:
    """The types of those values that are buffers."""
    return tuple(value.type for value in values if isinstance(value.type, BufferType))
