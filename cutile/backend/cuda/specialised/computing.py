"""Lowering to specialised warps: what those do that compute."""

from __future__ import annotations

from collections.abc import Sequence

from cutile.backend.cuda.ops import Failed, TakeOver
from cutile.backend.cuda.specialised.multiplying import Multiplying
from cutile.ir.control import If
from cutile.ir.core import Op, Value
from cutile.ops.compare import Lt, Select
from cutile.ops.grid import NumTileBlocks


class Computing(Multiplying):
    """The walk of the computing warps: over everything."""

    def _compute_tile(self) -> None:
        """Everything. Where the tile block is, is worked out under the first product, unless the loop needs it."""
        if self._plan.alone:
            assert self._number is not None
            assert self._step is not None
            self._builder.add(TakeOver(self._number, self._step, self._further, limited=self._plan.limited))
        if self._put_off is None:
            self._tile_indices()
        elsewhere = self._hoisted.union(self._put_off or (), self._plan.asserts)
        operations = self._function.body.operations
        after = operations.index(self._plan.loop) + 1
        operations = [op for op in operations if op is not self._parts]
        for op in operations[:after]:
            if op not in elsewhere:
                self._operation(op)
        if self._flag is not None:
            self._builder.location = None
            self._failed = self._builder.value(Failed(self._flag), "failed")
        self._store_tile([op for op in operations[after:] if op not in elsewhere])
        self._failed = None

    def _allowed(self, index: tuple[Value, ...]) -> tuple[Value, ...]:
        """Nowhere, once an assertion failed: what lies before a tensor's begin is not stored."""
        if self._failed is None:
            return index
        first, *others = index
        dtype = first.tile.dtype
        nowhere = self._builder.constant(-1 if dtype.kind == "int" else 2**dtype.bits - 1, dtype)
        return (self._builder.value(Select(condition=self._failed, x=nowhere, y=first)), *others)

    def _store_tile(self, operations: Sequence[Op]) -> None:
        """What follows the loop. The last block of a cluster may have no tile block: the tile there is not its own,
        where the tensor has one, since a launch may cover a part of it."""
        plan, builder = self._plan, self._builder
        if plan.cluster == 1:
            self._finish_tile(operations)
            return
        builder.location = None
        count = builder.value(NumTileBlocks(axis=plan.along))
        exists = builder.value(Lt(x=self._block_ids[plan.along], y=count))
        with builder.block() as then:
            self._finish_tile(operations)
            builder.location = None
            builder.yield_()
        with builder.block() as orelse:
            builder.yield_()
        builder.add(If(condition=exists, then=then, orelse=orelse))
