"""A kernel that is being planned.

What is known of its values, and what all plans of specialised warps require of it.

A requirement that does not hold is the reason why a kernel has no plan; it stands in the lowered IR.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from cutile.analysis.structure import why_linear
from cutile.backend.cuda.target import Architecture
from cutile.backend.gpu.layout_assignment import is_tile
from cutile.backend.gpu.op_facts import blocks_of, only_asserts, parents_of
from cutile.ir.core import Block, Function, Op, Value
from cutile.ops.cast import Convert
from cutile.ops.matmul import Mma
from cutile.ops.shape import Permute
from cutile.ops.view import StoreView


class Refused(Exception):
    """A requirement does not hold; the text is the reason."""


def require(holds: bool, reason: str) -> None:
    """A requirement.

    Raises:
        Refused: it does not hold.
    """
    if not holds:
        raise Refused(reason)


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel before it is lowered.

    What rules ask about its operations is found once.
    """

    function: Function

    @cached_property
    def products(self) -> list[Mma]:
        """Its products, in order."""
        return [op for op in self.order if isinstance(op, Mma)]

    @cached_property
    def definitions(self) -> dict[Value, Op]:
        """The operation that makes a value."""
        return {value: op for op in self.order for value in op.results}

    @cached_property
    def uses(self) -> Counter[Value]:
        """How often a value is read."""
        return Counter(value for op in self.order for value in op.operands)

    @cached_property
    def parents(self) -> dict[Op, tuple[Op, ...]]:
        """The loops and branches around an operation."""
        return dict(parents_of(self.function.body))

    @cached_property
    def home(self) -> dict[Op, Block]:
        """The block that an operation stands in."""
        return {op: block for block in blocks_of(self.function.body) for op in block.operations}

    @cached_property
    def order(self) -> dict[Op, int]:
        """The place of an operation in the order of the program."""
        return {op: place for place, op in enumerate(self.function.walk())}

    @cached_property
    def guards(self) -> frozenset[Op]:
        """Its assertions, and the branches around nothing else.

        In place of consumers the producer makes them: it has the numbers anyway, and a call, which a failed assertion
        is, would make consumers wait for each product before they begin the next (the linker's remark C7510).
        """
        return frozenset(op for op in self.order if only_asserts(op))

    @cached_property
    def stores_views(self) -> bool:
        """Whether it stores tiles at any place of a tensor."""
        return any(isinstance(op, StoreView) for op in self.order)

    def behind(self, loop: Op) -> list[Op]:
        """What follows a loop of the kernel's own: its epilogue."""
        operations = self.function.body.operations
        return operations[operations.index(loop) + 1 :]

    def transposes(self, loop: Op) -> bool:
        """Whether rows of a loop's sums are columns of the result.

        Its operands have changed places then.
        """
        return any(isinstance(op, Permute) and op.x in loop.results for op in self.behind(loop))

    def computes_behind(self, loop: Op) -> bool:
        """Whether more than conversions of tiles follow a loop."""
        kept = (Convert, Permute)  # a transposed tile is the same registers
        return any(op.results and is_tile(op.result) and not isinstance(op, kept) for op in self.behind(loop))

    def require_specialisable(self, arch: Architecture) -> None:
        """What producer warps ask of a kernel, whatever it multiplies.

        Raises:
            Refused: it does not hold.
        """
        require((arch.major, arch.suffix) == (9, "a"), f"{arch.name} has no warp group products (sm_90a has)")
        require(not (why := why_linear(self.function)), f"tile blocks keep their order: {why}")
        unsafe = bool(self.function.facts.get("unsafe", False))
        require(not (unsafe and self.stores_views), "what is stored by address may be what is loaded ahead")
