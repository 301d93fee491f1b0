"""The epilogue in subtiles of some columns, each of which takes few registers.

    out = convert(max(acc + bias, 0) + residual)        for each 64 columns:
    z.store(out)                                  -->       part = part(acc, columns)
                                                            out = convert(max(part + bias[columns], 0) + residual[...])
                                                            store_part(z, out, columns)

The loads of one subtile are used before the next subtile begins. Only operations that work column by column can be cut.
With any other operation the kernel stays as it is. A subtile of any tile but the accumulator is called a piece here.
"""

from collections.abc import Sequence
from itertools import pairwise

from cutile.backend.cuda.ops import ReducePartials, StoreSubtile, Subtile
from cutile.backend.gpu.layout_assignment import ELEMENTWISE, is_tile
from cutile.backend.gpu.op_facts import DefUse
from cutile.dtypes import i32
from cutile.ir import Block, Builder, Constant, Effect, For, Function, Op, TensorType, TileType, Value
from cutile.ops.arith import Add, Mul
from cutile.ops.cast import Convert
from cutile.ops.debug import Assert
from cutile.ops.memory import LoadMut, LoadTile, StoreMut
from cutile.ops.registry import family
from cutile.ops.shape import Broadcast, Permute, Reshape


class _CannotCut(Exception):
    """An operation does not work column by column."""


def cut_epilogue(function: Function, loop: For, width: int, *, ahead: bool = False) -> Function:
    """The function with its epilogue in subtiles of `width` columns.

    It is `function` itself where the epilogue cannot be cut, or holds nothing beside the accumulator.

    Args:
        function: the kernel.
        loop: its main loop.
        width: columns of a subtile.
        ahead: whether the loads of a subtile begin before the previous subtile is computed. Then threads wait only for
            the loads of the first one. It takes registers.
    """
    operations = function.body.operations
    place = operations.index(loop)
    after = operations[place + 1 :]
    held = [op for op in after if op.results and not op.results[0].tile.is_scalar and not isinstance(op, Convert)]
    sums = loop.results[0]
    columns = sums.tile.shape[1]
    if not held or not isinstance(after[-1], StoreMut) or columns % width or width == columns:
        return function
    builder = Builder(Block())
    try:
        _Cut(function, sums, after, builder).run(columns // width, ahead=ahead)
    except _CannotCut:
        return function
    return with_operations(function, [*operations[: place + 1], *builder.current.operations])


def with_operations(function: Function, operations: Sequence[Op]) -> Function:
    """The function with these operations in place of its own."""
    body = Block(function.parameters, operations)
    return Function(function.name, body, function.source, function.file, function.stage, dict(function.facts))


def epilogue_of_part(function: Function, loop: For, count: int) -> For | None:
    """A loop over `count` subtiles of columns that does the epilogue for each.

    `ReducePartials` stands for the sums of a subtile. None where the epilogue does not work column by column.

    The scalars of the epilogue are not in the loop: they are computed ahead of it. The lowering replaces the loop's
    bounds by those of a thread block, and `ReducePartials` by the sums that the thread block has.
    """
    operations = function.body.operations
    after = operations[operations.index(loop) + 1 :]
    for axis in (-1, -2):  # -2: the columns of the sums are the rows of a result that is transposed
        builder = Builder(Block())
        ends = [builder.constant(bound) for bound in (0, count, 1)]
        part = Value(TileType(i32), "part")
        try:
            with builder.block(part) as body:
                _Cut(function, loop.results[0], after, builder, axis).one(count, part)
                builder.yield_()
        except _CannotCut:
            continue
        return For(start=ends[0], stop=ends[1], step=ends[2], carried=(), body=body)
    return None


class _Cut:
    """Makes the pieces, from the stores backwards.

    Each operation asks for the pieces of its operands.
    """

    def __init__(self, function: Function, sums: Value, after: Sequence[Op], builder: Builder, axis: int = -1) -> None:
        self._sums = sums
        self._axis = axis  # the axis of a stored tile along which its pieces follow each other; negative
        self._after = after
        self._builder = builder
        self._definitions = DefUse(function.body).definitions
        self._whole: dict[Value, Value] = {}
        self._pieces: dict[tuple[Value, int], Value] = {}
        self._number: int | Value = 0  # of the piece that is being made; a value in a loop over pieces
        self._count = 1

    def run(self, count: int, *, ahead: bool) -> None:
        """Write `count` pieces."""
        self._count = count
        stores = self._stores()
        for op in self._after:
            if isinstance(op, Assert) or (op.results and op.results[0].tile.is_scalar):
                self._builder.current.operations.append(op)  # numbers are the same for all pieces
        begins: list[int] = []
        operations = self._builder.current.operations
        for number in range(count):
            begins.append(len(operations))
            self._number = number
            self._pieces.clear()
            self._store(stores)
        if ahead:
            pieces = [operations[begin:end] for begin, end in pairwise((*begins, len(operations)))]
            operations[begins[0] :] = _loading_ahead(pieces)

    def one(self, count: int, number: Value) -> None:
        """Write one of `count` pieces: the one whose number is the value `number`."""
        self._count, self._number = count, number
        self._store(self._stores())

    def _stores(self) -> list[StoreMut]:
        """The stores of the epilogue.

        Raises:
            _CannotCut: another operation has an effect, or an operation needs a whole tile.
        """
        stores = [op for op in self._after if isinstance(op, StoreMut)]
        stored = {op.x for op in stores}
        # The 0 stands for an axis that a tile of one axis does not have.
        extents = [(0, *op.value.tile.shape)[self._axis] for op in stores]
        if not all(extent and extent % self._count == 0 for extent in extents):
            raise _CannotCut
        for op in self._after:
            if any(value.tile.is_scalar for value in op.results) and any(map(is_tile, op.operands)):
                raise _CannotCut
            if op.regions or (isinstance(op, LoadTile | LoadMut) and op.operands[0] in stored):
                raise _CannotCut
            if op.effect > Effect.READ and not isinstance(op, StoreMut | Assert):
                raise _CannotCut
        return stores

    def _store(self, stores: Sequence[StoreMut]) -> None:
        for op in stores:
            axis = len(op.value.tile.shape) + self._axis
            value = self._piece(op.value, axis)
            self._builder.location = op.location
            part, number = (self._number, ()) if isinstance(self._number, int) else (0, (self._number,))
            self._builder.add(StoreSubtile(x=op.x, value=value, number=number, part=part, parts=self._count, axis=axis))

    def _piece(self, value: Value, axis: int) -> Value:
        """The piece of a tile whose columns run along `axis`."""
        key = (value, axis)
        if key not in self._pieces:
            piece = self._make(value, axis)
            piece.name = piece.name or value.name
            self._pieces[key] = piece
        return self._pieces[key]

    def _make(self, value: Value, axis: int) -> Value:
        op, builder = self._definitions.get(value), self._builder
        shape = tuple(extent // self._count if a == axis else extent for a, extent in enumerate(value.tile.shape))
        if value is self._sums:
            if axis != len(value.tile.shape) - 1:
                raise _CannotCut
            if isinstance(self._number, int):
                return builder.value(Subtile(x=value, part=self._number, parts=self._count))
            return builder.value(ReducePartials(value, self._number, (), parts=self._count, blocks=0))
        if op is None or op.regions or len(op.results) != 1:
            raise _CannotCut
        location = op.location
        if isinstance(op, Constant):
            piece: Op = Constant(value=op.value, dtype=op.dtype, shape=shape)
        elif family(type(op)) in ELEMENTWISE:
            operands = [x if x.tile.is_scalar else self._piece(x, axis) for x in op.operands]
            piece = op.copy_with(operands, (), ())
        elif isinstance(op, Broadcast):
            piece = Broadcast(x=self._broadcast_from(op.x, axis), shape=shape)
        elif isinstance(op, Permute):
            piece = Permute(x=self._piece(op.x, op.axes[axis]), axes=op.axes)
        elif isinstance(op, Reshape):
            piece = Reshape(x=self._piece(op.x, _same_axis(op, axis)), shape=shape)
        elif isinstance(op, LoadTile) and isinstance(op.x.type, TensorType):
            piece = LoadTile(x=op.x, index=self._index(op.index, axis), shape=shape)
        else:
            raise _CannotCut
        builder.location = location
        return builder.value(piece)

    def _broadcast_from(self, x: Value, axis: int) -> Value:
        if x.tile.is_scalar:
            return x
        return self._piece(x, axis) if x.tile.shape[axis] != 1 else self._unbroken(x)

    def _unbroken(self, value: Value) -> Value:
        """A tile that all pieces need whole, as a column to be broadcast; made once."""
        if value not in self._whole:
            op = self._definitions.get(value)
            if op is None or op.regions or isinstance(op, LoadMut) or value is self._sums:
                raise _CannotCut
            if op not in self._after:
                return value
            tiles = [operand for operand in op.operands if not isinstance(operand.type, TensorType)]
            copies = {operand: self._unbroken(operand) for operand in tiles if not operand.tile.is_scalar}
            self._builder.location = op.location
            copy = op.copy_with([copies.get(operand, operand) for operand in op.operands], (), ())
            self._whole[value] = self._builder.value(copy)
        return self._whole[value]

    def _index(self, index: tuple[Value, ...], axis: int) -> tuple[Value, ...]:
        """The tile index of a piece. It counts in tiles of the piece's shape."""
        builder, dtype = self._builder, index[axis].tile.dtype
        number = self._number
        if isinstance(number, Value) and number.tile.dtype is not dtype:
            raise _CannotCut
        first = builder.value(Mul(x=index[axis], y=builder.constant(self._count, dtype)))
        number = builder.constant(number, dtype) if isinstance(number, int) else number
        moved = builder.value(Add(x=first, y=number))
        return tuple(moved if a == axis else start for a, start in enumerate(index))


def _loading_ahead(pieces: Sequence[Sequence[Op]]) -> list[Op]:
    """The operations of subtiles, with the loads of each ahead of the previous one."""

    def loads(piece: Sequence[Op]) -> list[Op]:
        return [op for op in piece if op.results and (isinstance(op, LoadTile) or op.results[0].tile.is_scalar)]

    operations: list[Op] = []
    for piece, following in zip(pieces, [*pieces[1:], ()], strict=True):
        early = loads(piece)
        operations += [*(early if piece is pieces[0] else ()), *loads(following)]
        operations += [op for op in piece if op not in early]
    return operations


def _same_axis(op: Reshape, axis: int) -> int:
    """The axis of a reshape's operand that is `axis` of its result.

    Raises:
        _CannotCut: the operand and the result differ in more than axes of 1.
    """
    source = [a for a, extent in enumerate(op.x.tile.shape) if extent != 1]
    target = [a for a, extent in enumerate(op.shape) if extent != 1]
    same = [op.x.tile.shape[a] for a in source] == [op.shape[a] for a in target]
    if not same or axis not in target:
        raise _CannotCut
    return source[target.index(axis)]
