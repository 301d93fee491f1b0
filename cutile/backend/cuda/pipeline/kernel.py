"""A kernel that is being planned, and the requirements of warp-specialised plans.

If a requirement does not hold, the kernel has no such plan. The lowered IR keeps the requirement's text as the reason.
"""

from functools import cached_property

from cutile.analysis.structure import why_linear
from cutile.backend.cuda.target import Architecture, Lack, require
from cutile.backend.gpu.layout_assignment import is_tile
from cutile.backend.gpu.op_facts import DefUse, only_asserts
from cutile.ir.core import Effect, Function, Op
from cutile.ops.cast import Convert
from cutile.ops.matmul import Mma
from cutile.ops.shape import Permute
from cutile.ops.view import StoreView


class Kernel(DefUse):
    """A kernel before it is lowered."""

    def __init__(self, function: Function) -> None:
        super().__init__(function.body)
        self.function = function

    @cached_property
    def products(self) -> list[Mma]:
        """Its products, in order."""
        return [op for op in self.order if isinstance(op, Mma)]

    @cached_property
    def guards(self) -> frozenset[Op]:
        """Its assertions, and the branches around nothing else.

        The producer makes them, and not the consumers. It has the numbers anyway. A failed assertion is a call, and
        code with a call waits for each product before it begins the next (the linker's remark C7510).
        """
        return frozenset(op for op in self.order if only_asserts(op))

    @cached_property
    def stores_views(self) -> bool:
        """Whether it stores tiles at indices that it computes, and not its own tile alone."""
        return any(isinstance(op, StoreView) for op in self.order)

    def ahead(self, loop: Op) -> list[Op]:
        """The operations ahead of a loop in the kernel's body.

        Assertions are not among them: the producer makes them.
        """
        operations = self.function.body.operations
        return [op for op in operations[: operations.index(loop)] if op not in self.guards]

    def writes_ahead(self, loop: Op) -> bool:
        """Whether the kernel writes ahead of a loop in its body.

        If several thread blocks shared a tile block, each would write.
        """
        return any(op.effect > Effect.READ for op in self.ahead(loop))

    def behind(self, loop: Op) -> list[Op]:
        """The operations that follow a loop: its epilogue.

        The loop stands in the kernel's body, and not in another loop or branch.
        """
        return self.function.body.operations[self.function.body.operations.index(loop) + 1 :]

    def transposes(self, loop: Op) -> bool:
        """Whether rows of a loop's accumulator are columns of the result.

        That is so after a swap of A and B (`swap_ab.py`).
        """
        return any(isinstance(op, Permute) and op.x in loop.results for op in self.behind(loop))

    def computes_behind(self, loop: Op) -> bool:
        """Whether more than conversions of tiles follow a loop."""
        tiles = [op for op in self.behind(loop) if op.results and is_tile(op.result)]
        return not all(isinstance(op, Convert | Permute) for op in tiles)  # a transposed tile is the same registers

    def require_specialisable(self, arch: Architecture) -> None:
        """Require what every warp-specialised plan needs, whatever the kernel multiplies.

        Raises:
            Refused: a requirement does not hold.
        """
        require(arch.name == "sm_90a", f"{arch.name} has no warp group products (sm_90a has)", Lack.ARCHITECTURE)
        # A persistent thread block takes many tile blocks, in the order of the tile scheduler.
        require(not (why := why_linear(self.function)), f"tile blocks keep their order: {why}", Lack.ANY_ORDER)
        # The producer loads ahead of the consumers' stores. Only in unsafe kernels may both access the same memory.
        safe = not (self.stores_views and self.function.facts.get("unsafe", False))
        require(safe, "what is stored by address may be what is loaded ahead", Lack.NO_ADDRESSES)
