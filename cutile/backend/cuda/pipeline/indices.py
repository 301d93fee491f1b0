"""The index of the tile block, and where in a kernel it is worked out.

Which place of the grid a number stands for takes a few divisions: some 300 cycles, which the tensor cores would be idle
for between two tiles. Consumers need the place only for what follows the main loop, so they find it while its first
product is under way.
"""

from __future__ import annotations

from collections.abc import Sequence

from cutile.backend.cuda.lowering_context import LoweringContext
from cutile.backend.cuda.op_facts import inside, is_scalar_work, reads
from cutile.backend.cuda.ops import StoreSubtile, TileIndex
from cutile.backend.cuda.pipeline.plan import Plan
from cutile.dtypes import i32
from cutile.ir.core import Function, Op, Value
from cutile.ir.types import TileType
from cutile.ops.grid import TileBlockId
from cutile.ops.memory import LoadMut, StoreMut


class Indices:
    """The indices of a tile block, by the user's names.

    Attributes:
        late: what is found under the main loop's first product: numbers made from the index; None where the kernel
            needs them earlier.
    """

    def __init__(self, context: LoweringContext, plan: Plan) -> None:
        source = context.function
        self._context = context
        self._tiles = plan.tiles
        self._asked = {op.axis: op for op in reversed(list(source.walk())) if isinstance(op, TileBlockId)}
        stored = [op.x.mut.rank for op in source.walk() if isinstance(op, StoreMut | StoreSubtile | LoadMut)]
        asserted = [3] * bool(plan.guards)  # with the whole index
        beside = [plan.tiles.along] * (plan.tiles.cluster > 1)  # the last of a cluster may be beyond the grid
        self._axes = sorted({*self._asked, *range(max(stored + asserted, default=0)), *beside})
        self.late = _late(source, plan)

    def add(self, number: Value) -> None:
        """Find the index of the tile block with that number."""
        context, tiles = self._context, self._tiles
        context.block_ids = {}
        for axis in self._axes:
            context.builder.location = self._asked[axis].location if axis in self._asked else None
            index = TileIndex(
                number=number,
                axis=axis,
                rows=tiles.rows,
                columns=tiles.columns,
                group=tiles.grouped,
                cluster=tiles.cluster,
                along=tiles.along,
                backwards=axis in tiles.order.backwards,
            )
            context.block_ids[axis] = context.builder.value(index, self._name(axis))
        context.builder.location = None

    def _name(self, axis: int) -> str:
        return self._asked[axis].result.name if axis in self._asked else f"block_{axis}"

    # Numbers made from the index: under the first product, where nothing waits for them.

    def late_values(self) -> list[Value]:
        """Values like those that are found late."""
        if self.late is None:
            return []
        indices = [Value(TileType(i32), self._name(axis)) for axis in self._axes]
        return [*indices, *(Value(value.type, value.name) for value in self._numbers())]

    def _numbers(self) -> list[Value]:
        late = self.late or []
        return [value for op in late for value in op.results if not isinstance(op, TileBlockId)]

    def found(self, is_known: Value, values: Sequence[Value], number: Value) -> tuple[Value, ...]:
        """`values` where they are known.

        Else they are worked out, of the tile block with that number.
        """
        if self.late is None or not values:
            return ()
        context, builder = self._context, self._context.builder

        def find() -> Sequence[Value]:
            self.add(number)
            context.operations(self.late or ())
            builder.location = None
            return (*context.block_ids.values(), *(context.lowered[value] for value in self._numbers()))

        results = builder.branch(is_known, lambda: values, find)
        for result, value in zip(results, values, strict=True):
            result.name = value.name
        return results

    def settle(self, values: Sequence[Value]) -> None:
        """From here on, the numbers are these."""
        if self.late is None or not values:
            return
        context = self._context
        context.block_ids = dict(zip(self._axes, values, strict=False))
        context.lowered.update(zip(self._numbers(), values[len(self._axes) :], strict=True))
        for op in self.late:
            if isinstance(op, TileBlockId):
                context.lowered[op.result] = context.block_ids[op.axis]


def _late(source: Function, plan: Plan) -> list[Op] | None:
    """What stands before the main loop, and can wait until it is over.

    Numbers made from the tile block's index.

    None where something else before it, or the loop itself, needs them; or where no first product goes on by itself.
    """
    loop = plan.mainloop
    if loop is None or plan.dot.promote_interval or plan.dot.simt:
        return None
    operations = source.body.operations
    late: list[Op] = []
    values: set[Value] = set()
    for op in operations[: operations.index(loop)]:
        if op in plan.guards:
            continue
        if isinstance(op, TileBlockId) or any(value in values for value in reads(op)):
            if not is_scalar_work(op):
                return None
            late.append(op)
            values.update(op.results)
        elif any(isinstance(nested, LoadMut | StoreMut) for nested in (op, *inside(op))):  # of this block's own tile
            return None
    return None if any(value in values for value in loop.operands) else late
