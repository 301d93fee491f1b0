"""Loops of products, as they are written anew ahead of the lowering.

Loops that do nothing else are made one loop (`flatten`). Products whose operands exceed the registers beside their sums
are made two steps of half the depth (`with_half_steps`):

    a, b = load_tile(x, i, k), load_tile(y, k, j)      a, b = load_tile(x, i, 2 k), load_tile(y, 2 k, j)
    acc = mma(a, b, acc)                          -->  acc = mma(a, b, acc)
                                                       a, b = load_tile(x, i, 2 k + 1), load_tile(y, 2 k + 1, j)
                                                       acc = mma(a, b, acc)

Tiles of half the extent lie at twice the index, so nothing else changes. This is for operands that pass through
registers: what goes through stages of copies does not wait there.
"""

from collections.abc import Mapping

from cutile.backend.cuda.smem_sizes import step_of
from cutile.backend.gpu.op_facts import inside, is_scalar_work, source_of
from cutile.ir.builder import KEEP, Builder, Copier, Replacement, Rewriter, rewrite
from cutile.ir.constant import Constant
from cutile.ir.control import For, While
from cutile.ir.core import Function, Op, Value
from cutile.ir.types import TensorType
from cutile.ops.arith import Add, FloorDiv, Max, Mul, Sub
from cutile.ops.cast import Convert
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadTile
from cutile.ops.shape import Permute
from cutile.passes.redundancy import dce

Key = tuple[object, ...]
"""A product by its place and its shape."""


def key_of(op: Mma) -> Key:
    """What a product and its lowered form have in common."""
    return op.location, op.a.tile.shape, op.acc.tile.shape


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


def flatten(function: Function) -> Function:
    """A copy of the function in which perfect nests of main loops are single loops.

        for t in range(a, b):                           for u in range((b - a) * n):
            for k in range(c, d):                           t, k = a + u // n, c + u % n      (n = d - c)
                acc = mma(load(t, k), load(k), acc)  -->    acc = mma(load(t, k), load(k), acc)

    The loads of the next outer iteration are then begun while the last products of this one run.
    """
    ones: set[Value] = set()

    def rule(op: Op, rewriter: Rewriter) -> Replacement:
        if isinstance(op, Constant) and op.value == 1:
            ones.add(op.result)
        inner = _only_loop(op, ones) if isinstance(op, For) else None
        return KEEP if inner is None or not isinstance(op, For) else _as_one(op, inner, rewriter.builder)

    return rewrite(function, rule)


def _only_loop(outer: For, ones: set[Value]) -> For | None:
    """The loop of products that is all that a loop does, but for numbers.

    None where there is more, or none.
    """
    *work, end = outer.body.operations
    loops = [op for op in work if isinstance(op, For)]
    if len(loops) != 1 or not all(is_scalar_work(op) for op in work if op not in loops):
        return None
    (inner,) = loops
    nested = inside(inner)
    if not any(isinstance(op, Mma) for op in nested) or any(isinstance(op, For | While) for op in nested):
        return None
    own = {*outer.body.arguments, *(value for op in work for value in op.results)}
    steps = all(loop.step in ones for loop in (outer, inner))
    carries = inner.carried == outer.body.arguments[1:] and end.operands == inner.results
    bounds = own.isdisjoint((inner.start, inner.stop)) and outer.start.type == inner.start.type
    return inner if steps and carries and bounds else None


def _as_one(outer: For, inner: For, builder: Builder) -> list[Value]:
    """One loop for two."""
    dtype = outer.induction.tile.dtype
    builder.location = outer.location
    zero = builder.constant(0, dtype)
    count = builder.value(Max(x=builder.value(Sub(x=inner.stop, y=inner.start)), y=zero))
    rows = builder.value(Max(x=builder.value(Sub(x=outer.stop, y=outer.start)), y=zero))
    whole = builder.value(Mul(x=rows, y=count))
    divisor = builder.value(Max(x=count, y=builder.constant(1, dtype)))  # an empty loop divides by nothing
    arguments = [Value(value.type, value.name) for value in outer.body.arguments]
    with builder.block(*arguments) as body:
        turn = arguments[0]
        row = builder.value(FloorDiv(x=turn, y=divisor))
        column = builder.value(Sub(x=turn, y=builder.value(Mul(x=row, y=divisor))))
        named = {
            outer.induction: builder.value(Add(x=outer.start, y=row), outer.induction.name),
            inner.induction: builder.value(Add(x=inner.start, y=column), inner.induction.name),
        }
        named |= dict(zip(inner.body.arguments[1:], arguments[1:], strict=True))
        copier = Copier(builder, named)
        for op in (*outer.body.operations, *inner.body.operations):
            if op is not inner and op is not outer.body.terminator:
                copier.operation(op)
    loop = builder.add(For(start=zero, stop=whole, step=outer.step, carried=outer.carried, body=body))
    return list(loop.results)
