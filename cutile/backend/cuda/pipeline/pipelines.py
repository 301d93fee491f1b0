"""The shared memory of a lowered kernel: buffers, pipelines, further barriers.

Buffers and pipelines are values of the lowered IR. Each pipeline has a counter of the stages that a role has used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cutile.backend.cuda import ops
from cutile.backend.cuda.pipeline.operand import Operand
from cutile.backend.cuda.pipeline.plan import BARRIER_BYTES
from cutile.backend.cuda.smem_layout import SmemLayout
from cutile.backend.cuda.tensor_map import TensorMap
from cutile.dtypes import bool_
from cutile.ir.core import Function, Op, Value
from cutile.ir.types import TileType
from cutile.ops.arith import Add, Sub

if TYPE_CHECKING:
    from cutile.backend.cuda.pipeline.warp_specialised import WarpSpecialised


VERDICT_STAGES = 2
"""Stores by which the producer may be ahead: while the results of one tile are stored, loads of the next go on."""
TILE_STAGES = 2
"""Numbers of tile blocks on their way: consumers may still read one while the producer sends the next."""
WARPS_PER_WARPGROUP = 4
"""Warps of a warpgroup. Each arrives by itself, when it has read a tile block's number or issued all its products."""


class Pipelines:
    """The pipelines of a plan.

    Attributes:
        values: the pipelines.
        buffers: the buffers of each pipeline.
        counters: the counter of each pipeline, in the role that is being lowered.
        flag: the word that is set when an assertion of the thread block fails; None if the kernel asserts nothing.
        tiles: the pipeline that tells consumers of the next tile block, where the producer takes tile blocks.
        numbers: the stages of `tiles`: numbers of tile blocks.
        written: the buffers that consumers write operands to, by layout.
        staging: shared memory for results on their way to TMA, and for the sums that a cluster sends.
        more_barriers: the barriers that belong to no pipeline.
    """

    staging: Value
    more_barriers: Value
    tiles: Value
    numbers: Value

    def __init__(self, walk: WarpSpecialised) -> None:
        self._walk = walk
        self.values: list[Value] = []
        self.buffers: list[list[Value]] = []
        self.counters: list[Value] = []
        self.flag: Value | None = None
        self.written: dict[SmemLayout, Value] = {}

    def reserve(self) -> None:
        """Reserve all shared memory, and start the barriers.

        The barriers lie last: buffers need a larger alignment.
        """
        plan, context = self._walk.plan, self._walk
        for number in range(len(plan.operands)):
            self.buffers.append(self._reserve_buffers(number))
        for layout, written in plan.written.items():
            stages, nbytes = plan.written_stages, layout.place_bytes
            place = context.smem.reserve(stages * nbytes)
            self.written[layout] = self._buffer(written.value.name, written.value.tile, layout, stages, nbytes, place)
        if plan.staging_bytes:
            self.staging = self._scratch(plan.staging_bytes, "staging")
        barriers: list[tuple[Op, int]] = []

        def start(op: Op, count: int, name: str) -> Value:
            barriers.append((op, count))
            return self._named(op, name)

        for number, buffers in enumerate(self.buffers):
            stages, cluster = plan.stages[number], plan.tiles.cluster
            arrivals = plan.readers(number) * cluster
            pipeline = ops.Pipeline(tuple(buffers), stages=stages, arrivals=arrivals, cluster=cluster)
            tensors = dict.fromkeys(operand.load.x.name for operand in plan.operands[number])
            self.values.append(start(pipeline, 2 * stages, "_".join(tensors) + "_pipeline"))
        if plan.more_barriers:
            more_barriers = ops.Barriers(count=plan.more_barriers, arrivals=WARPS_PER_WARPGROUP if plan.pingpong else 1)
            self.more_barriers = start(more_barriers, plan.more_barriers, "turns" if plan.pingpong else "arrived")
        if plan.verdict is not None:
            verdict = ops.Pipeline((), stages=VERDICT_STAGES, arrivals=plan.readers(plan.verdict))
            self.values.append(start(verdict, 2 * VERDICT_STAGES, "verdict"))
        if plan.tiles.order.taken:
            self.numbers = self._scratch(4 * TILE_STAGES, "tiles")
            tiles = ops.Pipeline((), stages=TILE_STAGES, arrivals=WARPS_PER_WARPGROUP * plan.warpgroups)
            self.tiles = start(tiles, 2 * TILE_STAGES, "tiles_pipeline")
        if plan.guards:
            self.flag = start(ops.Scratch(nbytes=BARRIER_BYTES), 1, "failed_flag")
        place = context.smem.reserve(sum(count for _, count in barriers) * BARRIER_BYTES)
        for op, count in barriers:
            context.smem.share(op, place)
            place += count * BARRIER_BYTES
        context.builder.add(ops.BarriersStart(tuple(op.result for op, _ in barriers), cluster=plan.clustered))

    def _reserve_buffers(self, number: int) -> list[Value]:
        """The buffers of a pipeline. A stage has a tile of each, one after the other."""
        plan, context = self._walk.plan, self._walk
        stages, nbytes = plan.stages[number], plan.stage_bytes(number)
        place = context.smem.reserve(stages * nbytes)
        buffers: list[Value] = []
        for operand in plan.operands[number]:
            tensor, tile = operand.load.x, TileType(operand.load.x.tensor.dtype, operand.load.shape)
            buffers.append(self._buffer(tensor.name, tile, operand.smem_layout, stages, nbytes, place))
            place += operand.smem_layout.place_bytes
        return buffers

    def _buffer(self, name: str, tile: TileType, layout: SmemLayout, stages: int, nbytes: int, place: int) -> Value:
        """A buffer of tiles, with `nbytes` from stage to stage."""
        buffer = ops.Buffer(dtype=tile.dtype, shape=tile.shape, smem_layout=layout.plain, stages=stages)
        buffer.attributes["stage_bytes"] = nbytes
        self._walk.smem.share(buffer, place)
        return self._named(buffer, f"{name}_buffer")

    def _scratch(self, nbytes: int, name: str) -> Value:
        """Shared memory with a place of its own."""
        scratch = ops.Scratch(nbytes=nbytes)
        self._walk.smem.share(scratch, self._walk.smem.reserve(nbytes))
        return self._named(scratch, name)

    def _named(self, op: Op, name: str) -> Value:
        self._walk.builder.add(op)
        op.result.name = name
        return op.result

    def buffer_of(self, operand: Operand) -> Value:
        """The buffer that an operand is loaded into."""
        group = self._walk.plan.groups[operand.load]
        return self.buffers[group.pipeline][[other.load for other in group.operands].index(operand.load)]

    # Acquire, wait, release. Waits that last too long may end the kernel.

    def acquire(self, number: int, counter: Value, nbytes: int) -> None:
        """Wait until a stage is empty, and expect `nbytes` bytes there."""
        walk = self._walk
        walk.builder.add(ops.PipelineAcquire(self.values[number], counter, nbytes=nbytes, limited=walk.plan.limited))

    def wait(self, number: int, counter: Value) -> None:
        """Wait until a stage is full."""
        self._walk.builder.add(ops.PipelineWait(self.values[number], counter, limited=self._walk.plan.limited))

    def release(self, number: int, counter: Value, when: Value | None = None) -> None:
        """Release a stage, if `when` holds."""
        builder = self._walk.builder
        always = builder.constant(True, bool_) if when is None else when
        builder.add(ops.PipelineRelease(self.values[number], counter, always, warps=number in self._walk.plan.by_warps))

    def release_before(self, number: int, counter: Value, when: Value) -> None:
        """Release the stage before that of a counter, if `when` holds.

        Callers have waited for the products that read it.
        """
        builder = self._walk.builder
        self.release(number, builder.value(Sub(x=counter, y=builder.constant(1))), when)

    def next_stage(self, number: int) -> Value:
        """Count one stage on, and return the counter from before."""
        builder, counter = self._walk.builder, self.counters[number]
        builder.location = None
        self.counters[number] = builder.value(Add(x=counter, y=builder.constant(1)), "counter")
        return counter

    def set_counters(self, numbers: Sequence[int], counters: Sequence[Value]) -> None:
        """Set the counters of some pipelines."""
        for number, counter in zip(numbers, counters, strict=True):
            counter.name = "counter"
            self.counters[number] = counter


class TensorMaps:
    """The names of tensor maps, by tensor and form, in the order of their first use."""

    def __init__(self) -> None:
        self._names: dict[tuple[Value, TensorMap], str] = {}

    def name(self, tensor: Value, form: TensorMap) -> str:
        """The name of the kernel's parameter with a tensor map."""
        key = (tensor, form)
        if key not in self._names:
            count = sum(other is tensor for other, _ in self._names)
            self._names[key] = f"{tensor.name}_map" + (f"_{count}" if count else "")
        return self._names[key]

    def facts(self, source: Function) -> tuple[Any, ...]:
        """The facts of each map: its name, its tensor's position, its form."""
        return tuple((name, source.parameters.index(value), *form) for (value, form), name in self._names.items())
