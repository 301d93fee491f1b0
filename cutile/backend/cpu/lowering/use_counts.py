"""Use counts: the loops that pull a value, and the values worth scratch memory.

A value that several loops pull is computed again in each. That is right for cheap values (a load, an addition), and
wrong for an `exp` or a division: such a value goes to scratch memory once.
"""

from collections.abc import Collection, Sequence

from cutile.analysis.structure import written_views
from cutile.backend.cpu.lowering.blocking import ELEMENTWISE
from cutile.backend.cpu.stage import Gather
from cutile.ir import Block, Constant, Effect, Function, Op, Value
from cutile.ops.create import Iota
from cutile.ops.memory import LoadMut, LoadTile, StoreMut
from cutile.ops.pointer import LoadPointer, TensorAddress, TensorStride
from cutile.ops.registry import family
from cutile.ops.shape import Broadcast, Cat, Extract, Permute, Reshape
from cutile.ops.sort import TakeAlongAxis
from cutile.ops.view import LoadView, StoreView

LOADS = LoadMut | LoadTile | LoadView

SHAPES = Broadcast | Permute | Reshape | Cat | Extract | TakeAlongAxis
KEEP_FROM = 8  # additions; a value of this cost or more is kept in memory, and not computed again
COSTS = {  # in additions, by the name of an operation or of its family
    "math": 16, "rounding": 16, "floor": 1, "ceil": 1, "round": 1, "trunc": 1, "sqrt": 8,
    "div": 8, "floor_div": 16, "mod": 16, "div_trunc": 16, "div_ceil": 16, "rem": 16,
}  # fmt: skip


def is_lazy(op: Op) -> bool:
    """Whether an operation has no loop of its own: other loops pull its elements."""
    if isinstance(op, LoadPointer):
        return op.constant
    without_loops = Constant | Iota | Gather | TensorAddress | TensorStride | LOADS | SHAPES
    return isinstance(op, without_loops) or family(type(op)) in ELEMENTWISE


def _cost(op: Op) -> int:
    """The cost of one element without its operands, in additions."""
    if isinstance(op, LoadPointer | Gather):
        return KEEP_FROM
    if family(type(op)) not in ELEMENTWISE:
        return 0
    return COSTS.get(op.name, COSTS.get(family(type(op)), 1))


class Aliases:
    """The tensors of a kernel that share memory with others.

    Attributes:
        exposed: the tensors that the kernel also reaches by address.
        views: the tensors at addresses whose elements the kernel may write (`written_views`).
    """

    def __init__(self, function: Function) -> None:
        self.exposed = frozenset(op.x for op in function.walk() if isinstance(op, TensorAddress))
        self.views = written_views(function)

    def written_by(self, op: Op) -> Collection[Value]:
        """The tensors that an operation, or one in its regions, may write."""
        if isinstance(op, StoreMut | StoreView):
            if op.x in self.views:
                return self.exposed | self.views
            return self.views | {op.x} if op.x in self.exposed else {op.x}
        if not op.regions and op.effect is Effect.OUTSIDE:
            return self.exposed | self.views
        return {x for block in op.regions for inner in block.operations for x in self.written_by(inner)}


class Uses:
    """The uses of the values of one block.

    An operation pulls a value if its loops compute the value's elements, directly or through lazy operations.

    Args:
        block: the block.
        aliases: the tensors of the kernel that share memory.

    Attributes:
        pulled_by: for each value of the block, the operations of the block whose loops pull it.
        kept: values that go to scratch memory although their operation is lazy.
        arguments: the block's own arguments.
        counts: for each value, how often it is an operand, here and in nested blocks.
    """

    def __init__(self, block: Block, aliases: Aliases) -> None:
        self._operations = block.operations
        self.arguments = set(block.arguments)
        self._position = {op: at for at, op in enumerate(block.operations)}
        self.kept: set[Value] = set()
        self.pulled_by: dict[Value, set[Op]] = {}
        self.counts: dict[Value, int] = {}
        self._users: dict[Value, list[Op]] = {}
        for op in block.operations:
            for value in _operands(op):
                self._users.setdefault(value, []).append(op)
                self.counts[value] = self.counts.get(value, 0) + 1
        self._ways: dict[Value, frozenset[Op | None]] = {}
        self._stores = [(at, x) for at, op in enumerate(block.operations) for x in aliases.written_by(op)]
        for op in reversed(block.operations):
            for value in op.results:
                self.pulled_by[value] = self._pullers(value)
                self._ways[value] = self._ways_on(value)
        costs: dict[Value, int] = {}
        for op in block.operations:
            for value in op.results:
                if is_lazy(op):
                    costs[value] = _cost(op) + sum(costs.get(x, 0) for x in op.operands if x not in self.kept)
                    if self._must_keep(op, value, costs[value]):
                        self.kept.add(value)
                        costs[value] = 0

    def only_store_of(self, value: Value) -> StoreMut | None:
        """The store of a value that has no other use; None if there is no such store."""
        users = self._users.get(value, [])
        return users[0] if len(users) == 1 and self.counts[value] == 1 and isinstance(users[0], StoreMut) else None

    def _pullers(self, value: Value) -> set[Op]:
        pullers: set[Op] = set()
        for user in self._users.get(value, ()):
            if is_lazy(user):
                for result in user.results:
                    pullers |= self.pulled_by[result]
            else:
                pullers.add(user)
        return pullers

    def _ways_on(self, value: Value) -> frozenset[Op | None]:
        """The operations through which a value's elements are pulled at other indices.

        None stands for a loop that pulls the value at its own index. Two entries show that each element is pulled at
        two indices: the search ends there.
        """
        ways: set[Op | None] = set()
        for user in self._users.get(value, ()):
            if not is_lazy(user):
                ways.add(None)
            elif isinstance(user, SHAPES):
                ways.add(user)
            for result in user.results if is_lazy(user) else ():
                beyond = self._ways[result]
                if not isinstance(user, SHAPES) or len(beyond) > 1:
                    ways |= beyond
            if len(ways) > 1:
                break
        return frozenset(ways)

    def _must_keep(self, op: Op, value: Value, cost: int) -> bool:
        """Whether a lazy operation's value goes to scratch memory.

        `cost` is that of an element with all that it is computed from.
        """
        if value.tile.is_scalar and not isinstance(op, LOADS):
            return False
        pullers = self.pulled_by[value]
        if isinstance(op, LOADS) and self._is_overtaken(op, pullers):
            return True
        into_loops = any(puller.regions for puller in pullers)
        if into_loops and not isinstance(op, Constant | Iota | LOADS):
            return cost > 0
        if cost < KEEP_FROM:
            return False
        if len(self._ways[value]) > 1 and not isinstance(op, SHAPES):
            return True  # a value that is pulled at two indices is computed twice, with everything in its chain
        if len(pullers) < 2:
            return False
        # Of a chain of values that the same loops pull, only the last is kept.
        return not any(is_lazy(user) and self.pulled_by[user.results[0]] == pullers for user in self._users[value])

    def _is_overtaken(self, op: LOADS, pullers: set[Op]) -> bool:
        """Whether the tensor is written between the load and a loop that pulls it."""
        here = self._position[op]
        written = [at for at, x in self._stores if x is op.x and at > here]
        if not written:
            return False
        first = written[0]
        at_store = self._operations[first]
        for puller in pullers:
            at = self._position[puller]
            if at > first or (at == first and at_store.regions):
                return True
        # The store itself may pull the element that it overwrites, and no other.
        same_place = isinstance(op, LoadMut | LoadTile) and isinstance(at_store, StoreMut) and at_store.x is op.x
        return at_store in pullers and not (same_place and self._is_aligned(op.result, at_store))

    def _is_aligned(self, value: Value, store: Op) -> bool:
        """Whether every way from the load to the store keeps the element's index."""
        # Each value once, however many ways lead to it: `t = t * (1.5 - t)` doubles their number in every statement.
        seen = {value}
        waiting = [value]
        while waiting:
            for user in self._users.get(waiting.pop(), ()):
                if user is store:
                    continue
                if isinstance(user, SHAPES):
                    return False
                if is_lazy(user) and store in self.pulled_by[user.result] and user.result not in seen:
                    seen.add(user.result)
                    waiting.append(user.result)
        return True


def _operands(op: Op) -> Sequence[Value]:
    """The values that an operation uses, nested blocks included."""
    values = list(op.operands)
    for block in op.regions:
        for inner in block.operations:
            values.extend(_operands(inner))
    return values
