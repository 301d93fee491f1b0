"""Matrix products: the lowering of an `mma`, and of a loop around one.

A loop that only accumulates `acc = mma(x.load((i, k)), y.load((k, j)), acc)` becomes one BLAS call over the whole
depth, if the BLAS can read the tensors' memory. Else panels are converted to scratch memory, and the BLAS multiplies
these. Any other `mma` copies its operands to scratch memory, where the BLAS (floats) or a plain loop (integers)
multiplies them.
"""

from dataclasses import dataclass

from cutile.backend.cpu.lowering.loop_nests import Nests, Root, Target
from cutile.backend.cpu.lowering.lower import Lowering
from cutile.backend.cpu.lowering.scope import Scope
from cutile.backend.cpu.lowering.tile_expr import Cast, Extent, Loaded, Node, Number, Product, Scalar, TensorAxis
from cutile.backend.cpu.stage import Gemm, Read, Write
from cutile.conversion import holds
from cutile.dtypes import DTypeLike, f32
from cutile.ir import Constant, For, Value
from cutile.ops.arith import Add, FloorDiv, Mul
from cutile.ops.cast import Convert
from cutile.ops.compare import Eq, Ge
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadTile

MAX_BLAS_INT = 2**31 - 1
"""The largest extent or step that BLAS takes."""
PANEL = 192
"""Depth of a panel that is converted at once: two panels and the accumulator stay in the L2 cache."""


def wide_dtype(dtype: DTypeLike) -> DTypeLike:
    """The dtype in which products of an accumulator's dtype are computed."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


def lower_mma(lowering: Lowering, op: Mma) -> None:
    """One `mma` outside of any recognised loop."""
    acc = lowering.node(op.acc)
    wide = wide_dtype(op.acc.tile.dtype)
    a = _pack(lowering, lowering.node(op.a), wide)
    b = _pack(lowering, lowering.node(op.b), wide)
    only_use = lowering.uses.counts.get(op.acc, 0) == 1 and op.acc in lowering.uses.arguments
    if isinstance(acc, Product) and acc.buffer is not None and acc.dtype is wide and only_use:
        total = acc  # a loop carries it, and nothing else reads it: accumulate in place
        lowering.flush()
    else:
        total = _pack(lowering, acc, wide)
        lowering.flush()
    product = Product(wide, lowering.extents(op.result), op.result.name)
    product.buffer = total.buffer
    lowering.scope.builder.location = op.location
    _multiply(lowering, a, b, product)
    lowering.scope.forget()
    dtype = op.result.tile.dtype
    lowering.nodes[op.result] = product if wide is dtype else Cast(product, dtype)


def _pack(lowering: Lowering, node: Node, dtype: DTypeLike) -> Product:
    """A tile copied to scratch memory of its own."""
    source = node if node.dtype is dtype else Cast(node, dtype)
    product = Product(dtype, node.extents, f"{node.name}_tile" if node.name else "")
    product.buffer = lowering.allocate(product)
    return lowering.keep(source, product=product)


def _multiply(lowering: Lowering, a: Product, b: Product, c: Product) -> None:
    """`c += a @ b` of packed tiles, for each index of a batch if there is one."""
    scope = lowering.scope
    if len(c.extents) == 2:
        _multiply_at(lowering, a, b, c, [scope.index(0)] * 3)
        return
    with scope.loop(c.extents[0].stop(scope), "batch") as loop:
        begins = [scope.times(loop.index, _step(scope, product, 0)) for product in (a, b, c)]
        _multiply_at(lowering, a, b, c, begins)


def _step(scope: Scope, product: Product, axis: int) -> Value:
    """Elements between neighbours along an axis in a packed tile's memory."""
    assert product.buffer is not None
    return product.buffer.step(scope, axis)


def _multiply_at(lowering: Lowering, a: Product, b: Product, c: Product, begins: list[Value]) -> None:
    """One product of packed tiles; `begins` has the offsets of a, b and c."""
    scope = lowering.scope
    assert a.buffer is not None
    assert b.buffer is not None
    assert c.buffer is not None
    rows, cols = (extent.stop(scope) for extent in c.extents[-2:])
    depth = a.extents[-1].stop(scope)
    steps = [_step(scope, product, len(product.extents) - 2) for product in (a, b, c)]
    if c.dtype.is_float:
        scope.builder.add(
            Gemm(
                rows, cols, depth,
                a.buffer.memory, begins[0], steps[0],
                b.buffer.memory, begins[1], steps[1],
                c.buffer.memory, begins[2], steps[2],
                a_transposed=False, b_transposed=False, beta=1.0,
            )
        )  # fmt: skip
        return
    with scope.loop(rows, "row") as outer, scope.loop(depth, "step") as middle:
        place = scope.plus(begins[0], scope.plus(scope.times(outer.index, steps[0]), middle.index))
        factor = scope.add(Read(a.buffer.memory, place), a.name)
        with scope.loop(cols, "column") as inner:
            from_row = scope.plus(begins[1], scope.plus(scope.times(middle.index, steps[1]), inner.index))
            from_b = scope.add(Read(b.buffer.memory, from_row))
            to = scope.plus(begins[2], scope.plus(scope.times(outer.index, steps[2]), inner.index))
            total = scope.add(Add(scope.add(Read(c.buffer.memory, to)), scope.add(Mul(factor, from_b))))
            scope.builder.add(Write(c.buffer.memory, to, total))


@dataclass
class ProductLoop:
    """A loop that is one matrix product: `acc + sum over k of a[i, k] @ b[k, j]`."""

    op: For
    mma: Mma
    a: LoadTile
    b: LoadTile


def match(op: For, lowering: Lowering) -> ProductLoop | str:
    """The product that a loop is, or why it is no product."""
    mmas = [each for each in op.body.walk() if isinstance(each, Mma)]
    if len(mmas) != 1 or mmas[0] not in op.body.operations:
        return f"{len(mmas)} products in the loop" if mmas else ""  # a loop without products needs no reason
    (mma,) = mmas
    if len(mma.acc.tile.shape) != 2:
        return "it is a batch of products"
    made_by = {value: each for each in op.body.operations for value in each.results}
    if len(op.carried) != 1 or mma.acc is not op.body.arguments[1] or op.body.terminator.operands[0] is not mma.result:
        return "the loop carries more than the product"
    if mma.acc.tile.dtype is not wide_dtype(mma.acc.tile.dtype) or not mma.acc.tile.dtype.is_float:
        return f"BLAS has no accumulator of {mma.acc.tile.dtype}"
    loads: list[LoadTile] = []
    for operand in (mma.a, mma.b):
        source = made_by.get(operand)
        # An exact conversion may be dropped: panels convert to the accumulator's dtype, with the same result.
        while isinstance(source, Convert) and holds(source.dtype, source.x.tile.dtype):
            source = made_by.get(source.x)
        if not isinstance(source, LoadTile):
            return "an operand is computed, not loaded"
        loads.append(source)
    a, b = loads
    for each in op.body.operations:
        if each not in (a, b, mma, op.body.terminator) and not isinstance(each, Convert | Constant):
            return f"the loop also has {each.name}"
    step = lowering.made_by.get(op.step)
    if not isinstance(step, Constant) or step.value != 1:
        return "the loop's step is not 1"
    if a.index[1] is not op.induction or b.index[0] is not op.induction:
        return "an operand's index along the depth is not the loop variable"
    outer = {op.induction, *made_by}
    if a.index[0] in outer or b.index[1] in outer:
        return "the loop variable also moves across the result"
    if a.x in lowering.written or b.x in lowering.written:
        return "an operand is written by the kernel"
    return ProductLoop(op, mma, a, b)


def lower_product_loop(lowering: Lowering, op: For) -> bool:
    """Lower a loop as one product; returns whether it is one.

    `plans` gets a line that says so, or `refused_plans` one that says why not.
    """
    plan = match(op, lowering)
    if isinstance(plan, str):
        if plan:
            lowering.refused_plans.append(f"loop in line {_line(op)}: one product per step, since {plan}")
        return False
    lowering.plans.append(f"loop in line {_line(op)}: one product over the whole depth")
    _lower_product(lowering, plan)
    return True


def _line(op: For) -> int:
    return op.location.line if op.location is not None else 0


def _lower_product(lowering: Lowering, loop: ProductLoop) -> None:
    """Lower a loop to one BLAS call on the tensors, or to panels where it cannot run.

    Where the tensors' extents and strides decide that, both are written, and a condition.
    """
    scope = lowering.scope
    init = lowering.node(loop.op.carried[0])
    lowering.flush()
    wide = loop.mma.acc.tile.dtype
    start, stop = (scope.as_index(lowering.concrete(value)) for value in (loop.op.start, loop.op.stop))
    lowering.nodes[loop.op.induction] = Scalar(start)
    made_by = lowering.made_by.get(loop.op.start)
    if isinstance(made_by, Constant) and made_by.value >= 0:
        lowering.counters.add(loop.op.induction)
    scope.builder.location = loop.a.location
    lowering.operation(loop.a)
    scope.builder.location = loop.b.location
    lowering.operation(loop.b)
    a, b = lowering.node(loop.a.result), lowering.node(loop.b.result)
    assert isinstance(a, Loaded)
    assert isinstance(b, Loaded)
    scope.builder.location = loop.mma.location
    # The depth over all iterations, and how much of it each tensor has.
    tile_depth = loop.a.shape[1]
    depth = scope.times(scope.minus(stop, start), scope.index(tile_depth))
    depth = scope.larger(scope.index(0), depth, "depth")
    rest_a = scope.larger(scope.index(0), scope.minus(a.axes[1].size, a.axes[1].start))
    rest_b = scope.larger(scope.index(0), scope.minus(b.axes[0].size, b.axes[0].start))
    depth_a = scope.smaller(depth, rest_a, f"{a.name}_depth")
    depth_b = scope.smaller(depth, rest_b, f"{b.name}_depth")
    result = loop.op.results[0]
    total = Product(wide, lowering.extents(result), result.name or loop.mma.acc.name)
    total.buffer = lowering.allocate(total)  # named after the accumulator, if the result has no name
    total.name = result.name
    lowering.nodes[result] = total
    direct = _direct(lowering, a, b, total, depth_a, depth_b)
    if direct is None:
        _fill(lowering, init, total, loop.mma)
        _panels(lowering, a, b, total, scope.larger(depth_a, depth_b), rare=False)
        scope.forget()
        return
    condition, call, zero_call = direct
    from_zero = isinstance(init, Number) and init.value == 0
    with scope.block() as then:
        if not from_zero:
            _fill(lowering, init, total, loop.mma)
        scope.builder.location = loop.mma.location
        scope.builder.add(zero_call if from_zero else call)
        scope.builder.yield_()
    with scope.block() as orelse:
        _fill(lowering, init, total, loop.mma)
        _panels(lowering, a, b, total, scope.larger(depth_a, depth_b), rare=True)
        scope.builder.yield_()
    scope.builder.location = loop.mma.location
    scope.branch(condition, then, orelse)
    scope.forget()


def _fill(lowering: Lowering, init: Node, total: Product, mma: Mma) -> None:
    """Write the accumulator's first value into memory."""
    root = Root(total.extents, [Target(init, product=total)], location=mma.location)
    Nests(lowering.scope, lowering.allocate, lowering.strip).write([root])


def _direct(
    lowering: Lowering, a: Loaded, b: Loaded, c: Product, depth_a: Value, depth_b: Value
) -> tuple[Value, Gemm, Gemm] | None:
    """One BLAS call on the tensors' own memory; None where no such call is possible.

    Returns:
        The condition under which it may run, the call that adds to `c`, and the call that overwrites `c`.
    """
    if not a.dtype is b.dtype is c.dtype:
        return None  # the BLAS has one type for all three
    units = [_unit_axis(lowering, tile) for tile in (a, b)]
    if units[0] is None or units[1] is None:
        return None
    scope = lowering.scope
    rows, cols = (extent.stop(scope) for extent in c.extents)
    bits = a.covers(scope, [rows, depth_a]) + b.covers(scope, [depth_b, cols])
    # Both must end at the same depth: a shorter one would go on with zeros, which are not in memory.
    bits.append(scope.add(Eq(depth_a, depth_b)))
    steps: list[Value] = []
    for tile, unit, extents in ((a, units[0], (rows, depth_a)), (b, units[1], (depth_b, cols))):
        step = tile.axes[1 - unit].stride
        steps.append(step)
        # The BLAS refuses a step between rows that is below their length.
        bits.append(scope.add(Ge(step, scope.larger(scope.index(1), extents[unit]))))
        bits += _fits(scope, step)
    bits += _fits(scope, depth_a)
    condition = scope.all_of(list(dict.fromkeys(bits)))
    assert condition is not None
    condition.name = "direct"
    assert c.buffer is not None
    arguments = (
        rows, cols, depth_a, a.tensor, a.base, steps[0], b.tensor, b.base, steps[1],
        c.buffer.memory, scope.index(0), c.buffer.step(scope, 0),
    )  # fmt: skip
    flags = {"a_transposed": units[0] == 0, "b_transposed": units[1] == 0}
    return condition, Gemm(*arguments, **flags, beta=1.0), Gemm(*arguments, **flags, beta=0.0)


def _fits(scope: Scope, number: Value) -> list[Value]:
    """A list of one bit: whether a number fits the BLAS's integers of 32 bits.

    An empty list where it certainly does.
    """
    known = scope.known(number)
    if known is not None and known <= MAX_BLAS_INT:
        return []
    return [scope.shared((">=", MAX_BLAS_INT, number), Ge(scope.index(MAX_BLAS_INT), number))]


def _unit_axis(lowering: Lowering, tile: Loaded) -> int | None:
    """The axis along which the tile's elements are neighbours in memory, if known."""
    # The last axis first: a matrix that is stored row by row needs no transposition.
    units = [axis for axis in (1, 0) if lowering.scope.known(tile.axes[axis].stride) == 1]
    return units[0] if units else None


def _panels(lowering: Lowering, a: Loaded, b: Loaded, total: Product, depth: Value, rare: bool) -> None:
    """Add the product to `total`, panel by panel of the depth.

    The panels of `a` and `b` are converted to scratch memory, with zeros past the edges. `rare` is that of `Nests`.
    """
    scope = lowering.scope
    panel = scope.index(PANEL)
    raised = scope.plus(depth, scope.index(PANEL - 1))
    count = scope.add(FloorDiv(raised, panel), "panels")
    with scope.loop(count, "panel") as loop:
        begin = scope.times(loop.index, panel, "begin")
        here = Extent(PANEL, scope.smaller(panel, scope.minus(depth, begin), "steps"))
        packed: list[Product] = []
        roots: list[Root] = []
        for tile, axis in ((a, 1), (b, 0)):
            extents = [total.extents[0], here] if axis == 1 else [here, total.extents[1]]
            moved = _moved(scope, tile, axis, begin, extents)
            source = moved if moved.dtype is total.dtype else Cast(moved, total.dtype)
            product = Product(total.dtype, extents, f"{tile.name}_panel")
            product.buffer = lowering.allocate(product)
            packed.append(product)
            roots.append(Root(tuple(extents), [Target(source, product=product)], location=scope.builder.location))
        Nests(scope, lowering.allocate, lowering.strip, rare).write(roots)
        _multiply(lowering, packed[0], packed[1], total)


def _moved(scope: Scope, tile: Loaded, axis: int, by: Value, extents: list[Extent]) -> Loaded:
    """A tile that starts `by` elements later along an axis."""
    axes = list(tile.axes)
    old = axes[axis]
    axes[axis] = TensorAxis(scope.plus(old.start, by), old.size, old.stride, False, old.may_be_negative)
    base = scope.plus(tile.base, scope.times(by, old.stride), f"{tile.name}_at")
    return Loaded(tile.tensor, axes, base, extents)
