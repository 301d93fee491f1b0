"""What a kernel asserts of its numbers, told apart from what it computes.

    if n > 0:                                     the checks of a loop's indices, moved to before it
        assert(0 <= n - 1 and n - 1 < count)

In a kernel of specialised warps the loading thread does this: it has the numbers anyway, and a call, which a failed
assertion is, would make the others wait for each product before they begin the next (the linker's remark C7510).
"""

from __future__ import annotations

from cutile.backend.cuda.specialised.reads import inside
from cutile.ir.control import For, If, Yield
from cutile.ir.core import Function, Op
from cutile.ir.types import TileType
from cutile.ops.debug import Assert
from cutile.ops.memory import TensorDim
from cutile.ops.registry import family

_SCALAR_FAMILIES = ("arith", "compare", "cast", "constant", "grid")


def is_scalar_work(op: Op) -> bool:
    """Whether an operation only computes with numbers."""
    known = isinstance(op, TensorDim) or family(type(op)) in _SCALAR_FAMILIES
    return known and all(isinstance(each.type, TileType) and each.type.is_scalar for each in op.results)


def only_asserts(op: Op) -> bool:
    """Whether an operation is an assertion, or a condition under which there is nothing but assertions of numbers."""
    if isinstance(op, If) and not op.results:
        nested = [each for block in (op.then, op.orelse) for each in block.operations]
        return any(map(only_asserts, nested)) and all(
            isinstance(each, Yield) or is_scalar_work(each) or only_asserts(each) for each in nested
        )
    return isinstance(op, Assert)


def guards(function: Function, loop: For) -> list[Op] | None:
    """The assertions of a kernel, each with the conditions around it, that stand in its body or in `loop`'s.

    None where one is elsewhere: in another loop, or under a condition under which tiles are computed.
    """
    found = [op for block in (function.body, loop.body) for op in block.operations if only_asserts(op)]
    asserting = {each for op in found for each in (op, *inside(op))}
    return found if all(op in asserting for op in function.walk() if isinstance(op, Assert)) else None
