"""Begin the next iteration's first product ahead of this iteration's second one.

    for k in a..b:                           if a < b:
        s = mma(q, key[k])                       p, acc = softmax(mma(q, key[a]), acc)
        p, acc = softmax(s, acc)                 for k in a + 1..b:
        acc = mma(p, value[k], acc)     -->          s = mma(q, key[k])
                                                     acc = mma(p, value[k - 1], acc)
                                                     p, acc = softmax(s, acc)
                                                 acc = mma(p, value[b - 1], acc)

If a product's left operand is computed from another product's sums, the tensor cores are idle during the computation.
In a rotated loop, the second product of an iteration and the first one of the next iteration are under way together.
The computation follows both (FlashAttention-3, Shah et al. 2024, section 3.2).

With operands of 8 bits, this iteration's second product is begun ahead of the next one's first product. That is 1.02
times as fast; with 16 bits it would be 0.96 to 0.99 times (`docs/benchmarks/loops/attention.md`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from cutile.backend.gpu.op_facts import work_of
from cutile.ir import Constant, Copier, Effect, For, Function, Op, Value
from cutile.ops.arith import Add, Sub
from cutile.ops.compare import Lt
from cutile.ops.matmul import Mma
from cutile.passes.redundancy import movable


@dataclass(frozen=True)
class _Cut:
    """Where a loop's body is cut in two.

    Attributes:
        ahead: the first product and the operations that compute its operands, which run for the next iteration.
        behind: the second product and the operations that compute its right operand.
        product: the second product.
        carried: the position of its result among the loop's carried values.
    """

    ahead: frozenset[Op]
    behind: frozenset[Op]
    product: Mma
    carried: int


def rotate(function: Function) -> Function:
    """A copy of `function` with its loops of two chained products rotated.

    It is `function` itself where no loop is rotated.
    """
    ones = {op.result for op in function.walk() if isinstance(op, Constant) and op.value == 1}
    cuts = {op: cut for op in function.walk() if isinstance(op, For) and op.step in ones and (cut := _cut(op))}
    return _Rotated(cuts).function(function) if cuts else function


def _cut(loop: For) -> _Cut | None:
    """The cut of a loop; None where it is not two chained products."""
    operations = loop.body.operations[:-1]
    products = [op for op in operations if isinstance(op, Mma)]
    if len(products) != 2 or any(op.regions for op in operations):
        return None
    if any(op.effect is not Effect.NONE and not movable(op) for op in operations):
        return None
    first, second = products
    definitions = {value: op for op in operations for value in op.results}
    ahead, behind = work_of([*first.operands], definitions), work_of([second.b], definitions)
    # Both products move to another iteration, in which the variables that the loop carries have other values. So
    # neither may read them. Only the accumulator and the left operand of the second product may: they are kept for it.
    read = {*first.operands, second.b, *(value for op in (*ahead, *behind) for value in op.operands)}
    if first not in work_of([second.a], definitions) or read & {*loop.body.arguments[1:]}:
        return None
    if first in behind or second in ahead:
        return None
    yields = loop.body.terminator.operands
    if yields.count(second.result) != 1 or any(second.result in op.operands for op in operations):
        return None
    place = yields.index(second.result)
    return _Cut(frozenset((*ahead, first)), frozenset((*behind, second)), second, place)


class _Rotated(Copier):
    """The copy with loops rotated."""

    def __init__(self, cuts: Mapping[For, _Cut]) -> None:
        super().__init__()
        self._cuts = cuts

    def operation(self, op: Op) -> None:
        """Append the copy of an operation."""
        if isinstance(op, For) and op in self._cuts:
            self._rotated(op, self._cuts[op])
        else:
            super().operation(op)

    def _copies(self, loop: For, operations: Collection[Op]) -> None:
        """Append copies of some operations of a loop's body, in the order of the body."""
        for op in loop.body.operations:
            if op in operations:
                self.operation(op)

    def _rotated(self, loop: For, cut: _Cut) -> None:
        builder, values = self.builder, self.values
        initial = [values[value] for value in loop.carried]
        builder.location = loop.location
        runs = builder.value(Lt(x=values[loop.start], y=values[loop.stop]))
        results = builder.branch(runs, lambda: self._iterations(loop, cut, initial), lambda: initial)
        for old, new in zip(loop.results, results, strict=True):
            new.name = old.name
            self.values[old] = new

    def _iterations(self, loop: For, cut: _Cut, initial: Sequence[Value]) -> Sequence[Value]:
        """Append the rotated loop; return its results.

        The first iteration stands ahead of it, up to the second product. The last second product stands after it.
        """
        builder, body = self.builder, loop.body
        start, stop, step = (self.values[value] for value in loop.bounds)
        index, *arguments = body.arguments
        places = [at for at in range(len(arguments)) if at != cut.carried]
        yields = [body.terminator.operands[at] for at in places]
        definitions = {value: op for op in body.operations for value in op.results}
        between = work_of([cut.product.a, cut.product.acc, *yields], definitions)
        inner = between - cut.ahead - frozenset((cut.product,))
        # The second product's accumulator waits with its left operand, unless it is from outside of the loop.
        varies = cut.product.acc in definitions or cut.product.acc in body.arguments
        waiting = [cut.product.a, *([cut.product.acc] if varies else [])]
        self.values.update(zip(arguments, initial, strict=True))
        self.values[index] = start
        self._copies(loop, cut.ahead | inner)
        builder.location = loop.location
        carried = tuple(self.values[value] for value in (*waiting, *yields))
        variables = (index, *waiting, *(arguments[at] for at in places))
        with builder.block(*map(self.value, variables)) as iteration:
            waited = {value: self.values[value] for value in waiting}
            halves = cut.product.a.tile.dtype.is_half
            self._copies(loop, cut.ahead if halves else ())
            self._behind(loop, cut, builder.value(Sub(x=self.values[index], y=step)), waited)
            self._copies(loop, () if halves else cut.ahead)
            self.values[arguments[cut.carried]] = self.values[cut.product.result]
            self._copies(loop, inner)
            builder.location = loop.location
            builder.yield_(*(self.values[value] for value in (*waiting, *yields)))
        rest = builder.add(For(builder.value(Add(x=start, y=step)), stop, step, carried, iteration))
        last = builder.value(Sub(x=stop, y=builder.constant(1, stop.tile.dtype)))
        self._behind(loop, cut, last, dict(zip(waiting, rest.results, strict=False)))
        results = dict(zip(places, rest.results[len(waiting) :], strict=True))
        results[cut.carried] = self.values[cut.product.result]
        builder.location = loop.location
        return [results[at] for at in range(len(arguments))]

    def _behind(self, loop: For, cut: _Cut, index: Value, waited: Mapping[Value, Value]) -> None:
        """Append the second product of the iteration with an index.

        `waited` has the values that were kept for the product. The first product may have given them anew, for the next
        iteration. Other values stay those of this iteration.
        """
        now = dict(self.values)
        self.values |= {loop.induction: index, **waited}
        self._copies(loop, cut.behind)
        self.values = now | {cut.product.result: self.values[cut.product.result]}
