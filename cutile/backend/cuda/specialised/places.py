"""A specialised kernel's shared memory and barriers, as values, and the maps by which its tensors are copied."""

from __future__ import annotations

from collections.abc import Sequence

from cutile.backend.cuda.layout import Layout, round_up
from cutile.backend.cuda.lower import Lowering
from cutile.backend.cuda.ops import Barriers, BarriersStart, Buffer, Pipeline, Scratch
from cutile.backend.cuda.specialised.alone import WARPS
from cutile.backend.cuda.specialised.operand import Operand
from cutile.backend.cuda.specialised.record import BARRIER_BYTES, Specialised
from cutile.backend.cuda.target import Architecture
from cutile.backend.interface import TensorMap
from cutile.ir.core import Function, Op, Value


class Places(Lowering):
    """The memory and the names that the loading and the computing warps share."""

    _early = True

    def __init__(
        self, function: Function, plan: Specialised, arch: Architecture, accumulators: Sequence[tuple[Op, Layout]]
    ) -> None:
        super().__init__(function, round_up(4 * plan.groups), arch, accumulators)
        self._plan = plan
        self._warps = 4 * plan.groups
        self._maps: dict[tuple[Value, TensorMap], str] = {}
        self._buffers: tuple[Value, Value] | None = None
        self._barriers_of: Value | None = None
        self._extra: Value | None = None
        self._staging_of: Value | None = None
        self._flag: Value | None = None
        """Whether an assertion of this thread block failed, in shared memory; None if it asserts nothing."""
        self._failed: Value | None = None

    def _reserve(self) -> None:
        """The buffers of both operands, their pipeline, what results are stored through, and further barriers."""
        plan, builder, arena = self._plan, self._builder, self._arena
        place = arena.reserve(plan.slots * plan.slot_bytes)
        left = self._reserve_buffer(plan.left, place)
        right = self._reserve_buffer(plan.right, place + plan.left.panels.place_bytes)
        self._buffers = left, right
        # A tile is stored whole, or in parts of what other thread blocks have sent: the two share a place.
        staged = self._warps * plan.store_panels.nbytes if plan.store is not None else 0
        if nbytes := max(plan.buffers * staged, plan.nearby_bytes):
            scratch = builder.add(Scratch(nbytes=nbytes))
            scratch.result.name = "staging"
            arena.share(scratch, arena.reserve(nbytes))
            self._staging_of = scratch.result
        arrivals = plan.readers * plan.cluster
        pipeline = builder.add(Pipeline(self._buffers, stages=plan.slots, arrivals=arrivals, cluster=plan.cluster))
        pipeline.result.name = "pipeline"
        barriers = 2 * plan.slots + plan.more_barriers
        where = arena.reserve((barriers + bool(plan.asserts)) * BARRIER_BYTES)
        arena.share(pipeline, where)
        self._barriers_of = pipeline.result
        if plan.more_barriers:
            extra = builder.add(Barriers(count=plan.more_barriers, arrivals=WARPS if plan.alone else 1))
            extra.result.name = "turns" if plan.alone else "arrived"
            arena.share(extra, where + 2 * plan.slots * BARRIER_BYTES)
            self._extra = extra.result
        if plan.asserts:
            flag = builder.add(Scratch(nbytes=BARRIER_BYTES))
            flag.result.name = "failed_flag"
            arena.share(flag, where + barriers * BARRIER_BYTES)
            self._flag = flag.result
        started = [value for value in (self._pipeline, self._extra, self._flag) if value is not None]
        builder.add(BarriersStart(tuple(started), cluster=plan.cluster > 1 or plan.parts > 0))

    def _reserve_buffer(self, operand: Operand, place: int) -> Value:
        load, panels = operand.load, operand.panels
        buffer = Buffer(dtype=load.x.tensor.dtype, shape=load.shape, panels=panels.plain, stages=self._plan.slots)
        self._add(buffer, stage_bytes=self._plan.slot_bytes)
        buffer.result.name = f"{load.x.name}_buffer"
        self._arena.share(buffer, place)
        return buffer.result

    @property
    def _left(self) -> Value:
        """The buffer of the left operand."""
        assert self._buffers is not None
        return self._buffers[0]

    @property
    def _right(self) -> Value:
        """The buffer of the right operand."""
        assert self._buffers is not None
        return self._buffers[1]

    @property
    def _pipeline(self) -> Value:
        """The barriers of both buffers."""
        assert self._barriers_of is not None
        return self._barriers_of

    @property
    def _further(self) -> Value:
        """The barriers besides the pipeline's."""
        assert self._extra is not None
        return self._extra

    @property
    def _staging(self) -> Value:
        """What results are stored through, and sums of a cluster are sent to."""
        assert self._staging_of is not None
        return self._staging_of

    def _map_name(self, tensor: Value, form: TensorMap) -> str:
        """The name of the parameter with a tensor's map."""
        key = (tensor, form)
        if key not in self._maps:
            taken = sum(each[0] is tensor for each in self._maps)
            self._maps[key] = f"{tensor.name}_map" + (f"_{taken}" if taken else "")
        return self._maps[key]
