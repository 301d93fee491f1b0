"""Facts of operations, for plans.

Among them are the values that operations read, the operations in their regions, whether they compute with scalars only,
and the number of elements that one update of memory serves.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from cutile.analysis.affine import run_of
from cutile.backend.gpu.layout import Layout
from cutile.dtypes import f32, tf32
from cutile.ir import Block, Constant, If, Op, TensorType, TileType, Value, Yield
from cutile.ops.atomic import AtomicRmw
from cutile.ops.cast import Convert
from cutile.ops.debug import Assert
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadTile, TensorDim
from cutile.ops.pointer import LoadPointer, TensorAddress, TensorStride
from cutile.ops.registry import family
from cutile.ops.shape import Reshape

# Families whose operations count as index arithmetic in plans, if their results are scalars.
_SCALAR_FAMILIES = ("arith", "compare", "cast", "constant", "grid")


class DefUse:
    """The def-use chains of a block and of all blocks in it.

    Each property is computed once, when it is first needed.

    Attributes:
        block: the block.
    """

    def __init__(self, block: Block) -> None:
        self.block = block

    @cached_property
    def order(self) -> dict[Op, int]:
        """The position of each operation in the order of the program."""
        return {op: place for place, op in enumerate(self.block.walk())}

    @cached_property
    def definitions(self) -> dict[Value, Op]:
        """The operation that makes each value."""
        return {value: op for op in self.order for value in op.results}

    @cached_property
    def users(self) -> Mapping[Value, Sequence[Op]]:
        """The operations that read each value, in order.

        There are none for a value that nobody reads. An operation that reads a value twice is there twice.
        """
        users: defaultdict[Value, list[Op]] = defaultdict(list)
        for op in self.order:
            for value in op.operands:
                users[value].append(op)
        return users

    @cached_property
    def home(self) -> dict[Op, Block]:
        """The block that each operation stands in."""
        blocks = [self.block, *(nested for op in self.order for nested in op.regions)]
        return {op: block for block in blocks for op in block.operations}

    @cached_property
    def parents(self) -> dict[Op, tuple[Op, ...]]:
        """The loops and branches around each operation, the outermost first."""
        parents: dict[Op, tuple[Op, ...]] = dict.fromkeys(self.block.operations, ())
        for op in self.order:
            for nested in op.regions:
                parents.update(dict.fromkeys(nested.operations, (*parents[op], op)))
        return parents


def inside(op: Op) -> list[Op]:
    """The operations in an operation's regions."""
    return [nested for block in op.regions for nested in block.walk()]


def reads(op: Op) -> list[Value]:
    """The values that an operation, or one in its regions, reads.

    Values that are defined in its regions are among them.
    """
    return [value for nested in (op, *inside(op)) for value in nested.operands]


def work_of(values: Iterable[Value], definitions: Mapping[Value, Op]) -> set[Op]:
    """The operations from which values are computed, if `definitions` has them."""
    work: set[Op] = set()
    pending = list(values)
    while pending:
        op = definitions.get(pending.pop())
        if op is not None and op not in work:
            work.add(op)
            pending += reads(op)
    return work


def summing_chain(value: Value, users: Mapping[Value, Sequence[Op]]) -> list[Mma]:
    """The products that add to a value, one after the other.

    Each is the only reader of the sums before.
    """
    chain: list[Mma] = []
    while len(users[value]) == 1 and isinstance(op := users[value][0], Mma) and op.acc is value:
        chain.append(op)
        value = op.result
    return chain


def source_of(
    value: Value, definitions: Mapping[Value, Op], passes: Callable[[Op], bool]
) -> tuple[Op | None, list[Op]]:
    """The operation that computes a tile, and those that only forward it.

    Args:
        value: the tile.
        definitions: the operation that defines each value.
        passes: whether an operation only forwards its first operand, as a change of shape does.

    Returns:
        The operation, and the forwarding ones from `value` back to it.
    """
    passed: list[Op] = []
    op = definitions.get(value)
    while op is not None and passes(op):
        passed.append(op)
        op = definitions.get(op.operands[0])
    return op, passed


def thread_readers(
    value: Value, users: Mapping[Value, Sequence[Op]], passed: Container[Op], staged: Mapping[Op, Container[Value]]
) -> list[Op]:
    """The operations that need a loaded tile in registers.

    Args:
        value: the tile.
        users: the operations that read each value.
        passed: operations without an instruction, such as a transposition: the users of their results read the tile.
        staged: for each product, the operands that it reads from shared memory, as they were copied there.
    """
    readers: list[Op] = []
    for op in users.get(value, ()):
        if op in passed:
            readers += thread_readers(op.results[0], users, passed, staged)
        elif value not in staged.get(op, ()):
            readers.append(op)
    return readers


def constant_of(value: Value, definitions: Mapping[Value, Op]) -> Any:
    """The number that every element of a value is; None if that is not known."""
    op = definitions.get(value)
    return op.value if isinstance(op, Constant) else None


def rounds_to_tf32(op: Op) -> bool:
    """Whether an operation converts f32 to tf32 with the default rounding."""
    return isinstance(op, Convert) and op.rounding is None and (op.x.tile.dtype, op.dtype) == (f32, tf32)


def is_number(value: Value) -> bool:
    """Whether a value is a scalar: a tile without axes."""
    return isinstance(value.type, TileType) and value.type.is_scalar


def is_scalar_work(op: Op) -> bool:
    """Whether an operation is index arithmetic: scalars in, scalars out."""
    return (isinstance(op, TensorDim) or family(type(op)) in _SCALAR_FAMILIES) and all(map(is_number, op.results))


def makes_numbers(op: Op) -> bool:
    """Whether an operation computes scalars, or reads a scalar that cannot change.

    Nobody writes to the memory that it reads while the kernel runs.
    """
    if isinstance(op, LoadTile):
        tensor = op.x.type
        return isinstance(tensor, TensorType) and tensor.stable and op.result.tile.size == 1
    if isinstance(op, TensorAddress | TensorStride):
        return isinstance(op.x.type, TensorType) and op.x.type.stable
    if isinstance(op, LoadPointer):
        return op.constant and is_number(op.result)
    if isinstance(op, Reshape):
        return op.x.tile.size == 1
    return is_scalar_work(op)


def only_asserts(op: Op) -> bool:
    """Whether an operation is an assertion, or a branch with assertions alone.

    The branch may compute the scalars that they test.
    """
    if isinstance(op, If) and not op.results:
        nested = [*op.then.operations, *op.orelse.operations]
        return any(map(only_asserts, nested)) and all(
            isinstance(inner, Yield) or is_scalar_work(inner) or only_asserts(inner) for inner in nested
        )
    return isinstance(op, Assert)


def updated_at_once(op: AtomicRmw, layout: Layout, definitions: Mapping[Value, Op]) -> int:
    """Elements of a thread that one update serves: floats that lie side by side.

    It is 1 if each element needs an update of its own. The kernel must not use the old elements.
    """
    dtype = op.value.tile.dtype
    if op.kind != "addf" or op.order not in ("relaxed", "release") or dtype.bits > 32:
        return 1
    run = run_of(op.pointers, dtype.bits // 8, definitions)
    return min(run[1], layout.vector(run[0])) if run is not None else 1
