"""Assertions in a kernel of specialised warps.

The producer makes them, and results are dropped where one fails.

    assert(e < count)     the producer tells the launch's report, sets a flag, and goes on, since others wait for it
    z.store(t)            the producer arrives at the verdict; consumers wait for it and read the flag

The verdict is a pipeline without buffers: by its barriers consumers know of all assertions that stand before a store.
A kernel with a main loop needs none: the producer makes all assertions ahead of its loads, and the first stage tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutile.backend.cuda.ops import Failed
from cutile.ir.core import Value
from cutile.ops.compare import Select

if TYPE_CHECKING:
    from cutile.backend.cuda.pipeline.warp_specialised import WarpSpecialised


@dataclass
class Verdict:
    """What tells consumers whether an assertion has failed.

    A flag in shared memory, set where one fails.

    Attributes:
        failed: whether that was so at the store that is being lowered; None elsewhere.
    """

    walk: WarpSpecialised
    failed: Value | None = None

    def give(self) -> None:
        """The producer's part of a store: all assertions before it were made."""
        number = self.walk.plan.verdict
        if number is None:
            return
        counter = self.walk.pipelines.next_stage(number)
        self.walk.pipelines.acquire(number, counter, nbytes=0)

    def take(self) -> None:
        """The consumers' part."""
        number = self.walk.plan.verdict
        if number is None:
            return
        counter = self.walk.pipelines.next_stage(number)
        self.walk.pipelines.wait(number, counter)
        self.read()
        self.walk.pipelines.release(number, counter)

    def read(self) -> None:
        """Read the flag, which the producer has set by now if it ever does."""
        if self.walk.pipelines.flag is not None:
            self.failed = self.walk.builder.value(Failed(self.walk.pipelines.flag), "failed")

    def forget(self) -> None:
        """What follows is no store, or another one.

        Only behind a main loop does an answer last.
        """
        if self.walk.plan.verdict is not None:
            self.failed = None

    def allowed(self, index: tuple[Value, ...]) -> tuple[Value, ...]:
        """The index of what is stored.

        One before any tensor's begin where an assertion failed.
        """
        if self.failed is None:
            return index
        first, *others = index
        dtype, builder = first.tile.dtype, self.walk.builder
        nowhere = builder.constant(-1 if dtype.is_signed else 2**dtype.bits - 1, dtype)
        return (builder.value(Select(condition=self.failed, x=nowhere, y=first)), *others)
