"""Assertions in a kernel of specialised warps.

The producer makes them, and results are dropped where one fails.

    assert(e < count)     the producer tells the launch's report, sets a flag, and goes on, since others wait for it
    z.store(t)            the producer arrives at the verdict; consumers wait for it and read the flag

The verdict is a pipeline without buffers: by its barriers consumers know of all assertions that stand before a store.
A kernel with a main loop needs none: the producer makes all assertions ahead of its loads, and the first stage tells.
"""

from __future__ import annotations

from collections.abc import Iterable

from cutile.backend.cuda.lowering_context import LoweringContext
from cutile.backend.cuda.op_facts import only_asserts
from cutile.backend.cuda.ops import Failed, PipelineAcquire, PipelineRelease, PipelineWait
from cutile.backend.cuda.pipeline.pipelines import Pipelines
from cutile.backend.cuda.pipeline.plan import Plan
from cutile.dtypes import bool_
from cutile.ir.core import Op, Value
from cutile.ops.compare import Select
from cutile.ops.debug import Assert


def guards_of(operations: Iterable[Op]) -> tuple[frozenset[Op], list[Value]]:
    """A kernel's assertions, the branches around nothing else, and their numbers."""
    guards = frozenset(op for op in operations if only_asserts(op))
    return guards, [value for op in guards if isinstance(op, Assert) for value in op.operands]


class Verdict:
    """What tells consumers whether an assertion has failed.

    A flag in shared memory, set where one fails.

    Attributes:
        failed: whether that was so at the store that is being lowered; None elsewhere.
    """

    def __init__(self, context: LoweringContext, plan: Plan, pipelines: Pipelines) -> None:
        self._context = context
        self._plan = plan
        self._pipelines = pipelines
        self.failed: Value | None = None

    def give(self) -> None:
        """The producer's part of a store: all assertions before it were made."""
        number = self._plan.verdict
        if number is None:
            return
        counter = self._pipelines.next_stage(number)
        acquire = PipelineAcquire(self._pipelines.values[number], counter, nbytes=0, limited=self._plan.limited)
        self._context.builder.add(acquire)

    def take(self) -> None:
        """The consumers' part."""
        builder, number = self._context.builder, self._plan.verdict
        if number is None:
            return
        counter = self._pipelines.next_stage(number)
        pipeline = self._pipelines.values[number]
        builder.add(PipelineWait(pipeline, counter, limited=self._plan.limited))
        self.read()
        builder.add(PipelineRelease(pipeline, counter, builder.constant(True, bool_), warps=True))

    def read(self) -> None:
        """Read the flag, which the producer has set by now if it ever does."""
        if self._pipelines.flag is not None:
            self.failed = self._context.builder.value(Failed(self._pipelines.flag), "failed")

    def forget(self) -> None:
        """What follows is no store, or another one.

        Only behind a main loop does an answer last.
        """
        if self._plan.verdict is not None:
            self.failed = None

    def allowed(self, index: tuple[Value, ...]) -> tuple[Value, ...]:
        """The index of what is stored.

        One before any tensor's begin where an assertion failed.
        """
        if self.failed is None:
            return index
        first, *others = index
        dtype, builder = first.tile.dtype, self._context.builder
        nowhere = builder.constant(-1 if dtype.kind == "int" else 2**dtype.bits - 1, dtype)
        return (builder.value(Select(condition=self.failed, x=nowhere, y=first)), *others)
