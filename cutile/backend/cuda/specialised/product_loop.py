"""The loop of products in a kernel: that it does nothing but multiply, and which numbers its loads need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from cutile.backend.cuda.specialised.guards import is_scalar_work
from cutile.backend.cuda.specialised.operand import Operand
from cutile.backend.cuda.specialised.reads import reads
from cutile.backend.cuda.specialised.refusal import require
from cutile.ir.constant import Constant
from cutile.ir.control import For
from cutile.ir.core import Function, Op, Value
from cutile.ir.types import TileType
from cutile.ops.matmul import Mma


def loop_of_products(function: Function) -> tuple[For, Mma]:
    """The one product of a kernel, and the loop that it is in.

    Raises:
        Refused: there are more products, or it is in no loop of the kernel's own.
    """
    products = [op for op in function.walk() if isinstance(op, Mma)]
    require(len(products) == 1, f"the kernel has {len(products)} products, not one")
    (product,) = products
    loops = [op for op in function.body.operations if isinstance(op, For) and product in op.body.operations]
    require(len(loops) == 1, "the product is not in a loop of the kernel's own")
    return loops[0], product


def require_products_alone(
    loop: For,
    product: Mma,
    operands: Sequence[Operand],
    asserts: Collection[Op],
    definitions: Mapping[Value, Op],
    uses: Counter[Value],
) -> None:
    """That the loop adds products to what it carries, and nothing else.

    Raises:
        Refused: it does not.
    """
    known = (product, *(op for each in operands for op in (each.load, *each.passed)), *asserts)
    for op in loop.body.operations[:-1]:
        require(op in known or is_scalar_work(op), f"the loop does more than multiply: {op.name}")
    require(loop.body.terminator.operands == (product.result,), "the loop carries more than the sums")
    require(product.acc is loop.body.arguments[1], "what is added to is not what the loop carries")
    require(uses[product.result] == 1, "the sums are used within the loop")
    step = definitions.get(loop.step)
    require(isinstance(step, Constant) and step.value > 0, "the loop's step is no positive constant")


def needed_to_load(
    loop: For, operands: Sequence[Operand], asserts: Iterable[Op], definitions: Mapping[Value, Op]
) -> frozenset[Op]:
    """The operations that make the numbers of the loads, of the loop's bounds and of the assertions.

    Raises:
        Refused: one of them does more than compute with numbers.
    """
    wanted = [loop.start, loop.stop, loop.step, *(number for each in operands for number in each.load.index)]
    needed = _scalar_slice(wanted, "an index of a load", definitions, loop)
    for op in asserts:
        needed |= _scalar_slice(reads(op), "an assertion", definitions, loop)
    return frozenset(needed)


def _scalar_slice(wanted: Sequence[Value], of: str, definitions: Mapping[Value, Op], loop: For) -> set[Op]:
    """The operations that make the wanted numbers."""
    needed: set[Op] = set()
    pending = list(wanted)
    while pending:
        value = pending.pop()
        op = definitions.get(value)
        if op is None:
            require(value not in loop.body.arguments[1:], f"{of} depends on the sums")
            continue
        if op in needed:
            continue
        require(is_scalar_work(op), f"{of} depends on more than numbers: {op.name}")
        needed.add(op)
        pending += [each for each in op.operands if isinstance(each.type, TileType)]
    return needed
