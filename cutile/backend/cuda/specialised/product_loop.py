"""The main loop of a kernel: that it does nothing but multiply."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from cutile.backend.cuda.specialised.guards import is_scalar_work
from cutile.backend.cuda.specialised.operand import Operand
from cutile.backend.cuda.specialised.refusal import require
from cutile.ir.constant import Constant
from cutile.ir.control import For
from cutile.ir.core import Function, Op, Value
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
