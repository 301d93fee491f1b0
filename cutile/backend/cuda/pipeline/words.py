"""Left operands as they are kept until their product.

32-bit words of two elements.

An element of 16 bits in a variable of a loop would have a register of its own.
"""

from __future__ import annotations

from cutile.backend.cuda.layout import Layout, group_accumulator
from cutile.backend.cuda.layout_assignment import carried_groups
from cutile.backend.cuda.lowering_context import LoweringContext
from cutile.backend.cuda.ops import PackPairs
from cutile.backend.cuda.pipeline.plan import Plan
from cutile.dtypes import i32
from cutile.ir.control import For
from cutile.ir.core import Function, Value
from cutile.ir.types import TileType


def in_words(function: Function, plan: Plan) -> dict[Value, int]:
    """The values that are kept in words.

    Left operands that only products and loops take.

    Those that a loop makes one variable of have the same number: their words are in the same registers.
    """
    lefts = [dot.op.a for dot in plan.dots.values() if dot.in_registers]
    carried = [group for op in function.walk() for group in carried_groups(op)]
    words: dict[Value, int] = {}
    for number, value in enumerate(lefts):
        chain = {value}
        size = 0
        while size != len(chain):
            size = len(chain)
            chain.update(*(group for group in carried if chain.intersection(group)))
        takers = [op for op in function.walk() if chain.intersection(op.operands)]
        products = {op for op, dot in plan.dots.items() if dot.in_registers and dot.op.a in chain}
        if all(op in products or op.terminates or isinstance(op, For) for op in takers):
            words.update(dict.fromkeys(chain, number))
    return words


def words_like(value: Value) -> Value:
    """A value of the words of another."""
    rows, columns = value.tile.shape
    return Value(TileType(i32, (rows, columns // 2)), value.name)


def layout_of_words(value: Value, warpgroups: int) -> Layout:
    """Where the words of a value are."""
    rows, columns = value.tile.shape
    return group_accumulator((rows, columns // 2), warpgroups)


def packed(context: LoweringContext, value: Value, lowered: Value, warpgroups: int) -> Value:
    """The words of a value."""
    words = context.add_in(PackPairs(x=lowered), layout_of_words(value, warpgroups))
    words.name = lowered.name
    return words
