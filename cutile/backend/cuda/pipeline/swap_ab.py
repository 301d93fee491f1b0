"""Swap of A and B: z = x y is made as z^T = y^T x^T.

    for k in a..b:                               for k in a..b:
        w = f(load(weights, k, j))       -->         w = f(load(weights, k, j))
        acc = mma(load(x, i, k), w, acc)             acc' = mma(w^T, load(x, i, k)^T, acc')
    z = acc                                      z = acc'^T

It helps in three cases:

- Tiles of few rows: an instruction has 64 rows and 8 to 256 columns. With a tile of 16 rows it would multiply 48 rows
  more, and TMA would fill as many rows of the left operand with zeros.
- A computed right operand: `wgmma` takes only the left one from registers.
- A right operand across K, of a type that `wgmma` takes only along K: threads can transpose only the left one.

A transposition moves nothing. Of a tile in registers, it is the same registers under other coordinates. Of a buffer, it
is another way to read it. Only the result is stored by columns.
"""

from collections.abc import Mapping, Sequence

from cutile.backend.cuda.pipeline.operand import is_loaded, lies_across
from cutile.backend.cuda.smem_layout import WGMMA_ROWS
from cutile.backend.cuda.wgmma_instructions import atom_of
from cutile.backend.gpu.op_facts import DefUse, constant_of, summing_chain
from cutile.ir import Copier, For, Function, Op, TileType, Value
from cutile.ops.matmul import Mma
from cutile.ops.shape import Permute

MAX_SWAPPED_ROWS = 256
"""Rows of a product to be swapped: the columns of one `wgmma`, at most."""


def swaps_ab(rows: int, columns: int) -> bool:
    """Whether a tile's columns are a multiple of 64, and its rows are not.

    Example:
        >>> swaps_ab(16, 128), swaps_ab(64, 128), swaps_ab(16, 80)
        (True, False, False)
    """
    return rows % WGMMA_ROWS != 0 and columns % WGMMA_ROWS == 0


Chains = Mapping[int, Sequence[Mma]]
"""Products that add up in one variable of a loop, by its position among the variables that the loop carries."""


def swap(function: Function) -> Function:
    """A copy of `function` with swapped products; itself where none is swapped."""
    definitions = DefUse(function.body).definitions
    loops = [op for op in function.walk() if isinstance(op, For)]
    chains = {op: loop_chains for op in loops if (loop_chains := _chains(op, definitions))}
    return _Swapped(chains, definitions).function(function) if chains else function


def _chains(loop: For, definitions: Mapping[Value, Op]) -> Chains:
    """The chains of a loop to be swapped."""
    body, chains = loop.body, dict[int, Sequence[Mma]]()
    users = DefUse(body).users
    for place, argument in enumerate(body.arguments[1:]):
        products = summing_chain(argument, users)
        ends = bool(products) and users[products[-1].result] == [body.terminator]
        yielded = ends and body.terminator.operands[place] is products[-1].result
        if yielded and all(_swaps(op, definitions) for op in products):
            chains[place] = products
    return chains


def _swaps(op: Mma, definitions: Mapping[Value, Op]) -> bool:
    """Whether it helps to swap a product, and its left operand may be the right one."""
    atom = atom_of(op.a.tile.dtype, op.b.tile.dtype, op.acc.tile.dtype)
    if len(op.acc.tile.shape) != 2 or atom is None or not is_loaded(op.a, definitions):
        return False
    rows, columns = op.acc.tile.shape
    if rows > MAX_SWAPPED_ROWS or columns % WGMMA_ROWS:
        return False
    if not is_loaded(op.b, definitions):
        return op.a.tile.dtype.is_half and rows % 8 == 0
    across = [not atom.any_major and lies_across(*x, definitions) for x in ((op.a, 1), (op.b, 0))]
    return across == [False, True] or swaps_ab(rows, columns)


class _Swapped(Copier):
    """The copy with chains swapped."""

    def __init__(self, chains: Mapping[For, Chains], definitions: Mapping[Value, Op]) -> None:
        super().__init__()
        self._chains = chains
        self._definitions = definitions
        self._products = {op for loop_chains in chains.values() for chain in loop_chains.values() for op in chain}

    def operation(self, op: Op) -> None:
        """Append the copy of an operation."""
        if isinstance(op, For) and op in self._chains:
            self._loop(op, self._chains[op])
        elif isinstance(op, Mma) and op in self._products:
            self.builder.location = op.location
            left, right = self._transposed(self.values[op.b]), self._transposed(self.values[op.a])
            product = self.builder.add(op.copy_with([left, right, self.values[op.acc]], (), ()))
            product.result.name = op.result.name
            self.values[op.result] = product.result
        else:
            super().operation(op)

    def _transposed(self, value: Value) -> Value:
        return self.builder.value(Permute(x=value, axes=(1, 0)))

    def _loop(self, op: For, chains: Chains) -> None:
        builder, body = self.builder, op.body
        builder.location = op.location
        carried = [self.values[value] for value in op.carried]
        arguments = [self.value(argument) for argument in body.arguments]
        for place in chains:
            old, initial = body.arguments[1 + place], constant_of(op.carried[place], self._definitions)
            rows, columns = old.tile.shape
            start = None if initial is None else builder.constant(initial, old.tile.dtype, (columns, rows))
            carried[place] = start or self._transposed(carried[place])
            arguments[1 + place] = self.values[old] = Value(TileType(old.tile.dtype, (columns, rows)), old.name)
        with builder.block(*arguments) as copy:
            for nested in body.operations:
                self.operation(nested)
        builder.location = op.location
        start, stop, step = (self.values[value] for value in op.bounds)
        new_loop = builder.add(For(start=start, stop=stop, step=step, carried=tuple(carried), body=copy))
        for place, (old, new) in enumerate(zip(op.results, new_loop.results, strict=True)):
            new.name = old.name
            self.values[old] = self._transposed(new) if place in chains else new
