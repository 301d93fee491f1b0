"""Products in two steps of half the depth, if operands exceed the registers.

Beside their sums.

    a, b = load_tile(x, i, k), load_tile(y, k, j)      a, b = load_tile(x, i, 2 k), load_tile(y, 2 k, j)
    acc = mma(a, b, acc)                          -->  acc = mma(a, b, acc)
                                                       a, b = load_tile(x, i, 2 k + 1), load_tile(y, 2 k + 1, j)
                                                       acc = mma(a, b, acc)

Tiles of half the extent lie at twice the index, so nothing else changes. This is for operands that pass through
registers: what goes through stages of copies does not wait there.
"""

from __future__ import annotations

from collections.abc import Mapping

from cutile.backend.cuda.smem_sizes import step_of
from cutile.backend.gpu.layout import Layout
from cutile.backend.gpu.op_facts import source_of
from cutile.ir.builder import Builder
from cutile.ir.core import Function, Op, Value
from cutile.ir.rewriter import KEEP, Replacement, Rewriter, rewrite
from cutile.ir.types import TensorType
from cutile.ops.arith import Add, Mul
from cutile.ops.cast import Convert
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadTile
from cutile.ops.shape import Permute
from cutile.passes.dce import dce

Key = tuple[object, ...]
"""A product by its place and its shape."""


def key_of(op: Mma) -> Key:
    """What a product and its lowered form have in common."""
    return op.location, op.a.tile.shape, op.acc.tile.shape


def operand_words(op: Mma, layouts: Mapping[str, Layout], definitions: Mapping[Value, Op]) -> int:
    """Registers of a thread for a lowered product's operands.

    One each for what is loaded alone, and for bytes, which are turned one by one.
    """

    def words(value: Value, layout: str) -> int:
        bits = value.tile.dtype.bits
        load, _ = source_of(value, definitions, lambda op: isinstance(op, Permute | Convert))
        alone = isinstance(load, LoadTile) and load.attributes.get("vector") is None
        return -(-layouts[layout].registers * (32 if bits == 8 or (alone and bits < 32) else bits) // 32)

    return sum(words(value, name) for value, name in zip((op.a, op.b), op.attributes["source"], strict=True))


def can_split_step(op: Mma, definitions: Mapping[Value, Op]) -> bool:
    """Whether a product's operands are loaded for it alone, in whole steps.

    From tensors that stay as they are.
    """
    whole = op.a.tile.shape[-1] % (2 * step_of(op.a.tile.dtype)) == 0
    return whole and len(op.acc.tile.shape) == 2 and all(_chain(value, definitions) for value in (op.a, op.b))


def with_half_steps(function: Function, products: set[Key]) -> Function:
    """The function with these products in two steps each.

    They are of those that `can_split_step`.
    """
    definitions: dict[Value, Op] = {}

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        definitions.update((value, op) for value in op.results)
        # Of a loop that was unrolled, products stand in one place: their operands may be made in other ways.
        if not isinstance(op, Mma) or key_of(op) not in products or not can_split_step(op, definitions):
            return KEEP
        chains = [_chain(value, definitions) for value in (op.a, op.b)]
        acc = op.acc
        for half in range(2):
            left, right = (
                _half(chain, axis, half, rewriter.builder) for chain, axis in zip(chains, (1, 0), strict=True)
            )
            rewriter.builder.location = op.location
            acc = rewriter.builder.value(Mma(a=left, b=right, acc=acc, use_fast_acc=op.use_fast_acc))
        return acc

    return dce(rewrite(function, rule))


def _chain(value: Value, definitions: Mapping[Value, Op]) -> list[Op]:
    """The load of an operand and what the tile passes through, in order.

    Empty where that is something else.
    """
    op, passed = source_of(value, definitions, lambda op: isinstance(op, Permute | Convert))
    stable = isinstance(op, LoadTile) and isinstance(op.x.type, TensorType) and op.x.type.stable
    return [op, *reversed(passed)] if op is not None and stable else []


def _half(chain: list[Op], axis: int, half: int, builder: Builder) -> Value:
    """The operand of one step.

    The tile cut along `axis` of the operand, which may be another of the load.
    """
    load, *passed = chain
    assert isinstance(load, LoadTile)
    for op in reversed(passed):
        axis = op.axes[axis] if isinstance(op, Permute) else axis
    builder.location = load.location
    twice = builder.value(Mul(x=load.index[axis], y=builder.constant(2)))
    at = builder.value(Add(x=twice, y=builder.constant(half)))
    index = tuple(at if a == axis else start for a, start in enumerate(load.index))
    shape = tuple(extent // 2 if a == axis else extent for a, extent in enumerate(load.shape))
    value = builder.value(LoadTile(x=load.x, index=index, shape=shape), load.result.name)
    for op in passed:
        builder.location = op.location
        value = builder.add(op.copy_with([value], (), ()), op.results[0].name).result
    return value
