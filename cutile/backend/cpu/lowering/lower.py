"""`Lowering`: the state of lowering one kernel; operations without nested blocks."""

from collections import Counter
from collections.abc import Sequence

from cutile.backend.cpu.lowering.accesses import (
    is_access,
    load_view,
    lower_access,
    lower_assert,
    lower_print,
    store_view,
)
from cutile.backend.cpu.lowering.blocking import Axes, AxisClass, unit_reshape
from cutile.backend.cpu.lowering.loop_nests import Nests, Root, Target, accumulator, start_number
from cutile.backend.cpu.lowering.scope import Scope
from cutile.backend.cpu.lowering.strength_reduction import truncation
from cutile.backend.cpu.lowering.tile_expr import (
    Accumulated,
    Buffer,
    Cast,
    Counting,
    Element,
    Extent,
    Gathered,
    Joined,
    Loaded,
    Node,
    Number,
    Part,
    Permuted,
    Product,
    Remapped,
    Repeated,
    Reshaped,
    Scalar,
    Squeezed,
    Taken,
    TensorAxis,
)
from cutile.backend.cpu.lowering.use_counts import Aliases, Uses, is_lazy
from cutile.backend.cpu.stage import INDEX, Gather, GridSize, Scratch, Size, Stride, TensorAt
from cutile.dtypes import DTypeLike, i32
from cutile.errors import IRError
from cutile.ir import Block, Builder, Constant, Function, Op, TileType, Value
from cutile.ops.arith import FloorDiv, Mod
from cutile.ops.atomic import AtomicCas, AtomicRmw
from cutile.ops.cast import Convert
from cutile.ops.create import Iota
from cutile.ops.debug import Assert, Print
from cutile.ops.grid import NumTileBlocks, TileBlockId
from cutile.ops.memory import LoadMut, LoadTile, StoreMut, TensorDim
from cutile.ops.pointer import LoadPointer, StorePointer, TensorAddress, TensorStride
from cutile.ops.reduce import Reduce, ReduceExtreme
from cutile.ops.shape import Broadcast, Cat, Extract, Permute, Reshape
from cutile.ops.sort import TakeAlongAxis
from cutile.ops.view import LoadView, StoreView, TensorView

JOIN_NAMES = ("join_x", "join_y", "join_z")
RANGE_NAMES = ("first", "last")


class Lowering:
    """The state of lowering one function.

    Attributes:
        function: the function before lowering.
        scope: where operations go.
        axes: what may be done with each tile axis.
        nodes: each value of the tile IR as a node.
        passed: memory for the results of a branch that ends a side of an outer branch. It is the memory of the outer
            branch's results, so that they need no copy.
        counters: loop variables that are never negative.
        written: the tensors that the kernel stores tiles to.
        stored: stores that the loops of the stored value have done already.
        accesses: how many loads and stores a tensor has.
        plans, refused_plans: for the dump, a line for each loop around an mma: it is one product, or why it is not.
        aliases: the tensors that share memory with others.
        pending: roots whose loops are not written yet.
        uses: the uses of values in the block that is being lowered.
        made_by: the operation behind each value of the tile IR.
        scratch: the operations that allocate scratch memory; they go to the function's beginning.
        range: the first tile block to run, and the one behind the last.
        body: the lowered function's body.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.axes = Axes(function)
        self.nodes: dict[Value, Node] = {}
        self.passed: dict[Value, Product] = {}
        self.counters: set[Value] = set()
        self.stored: set[Op] = set()
        self.accesses = Counter(
            op.operands[0]
            for op in function.walk()
            if isinstance(op, StoreMut | StoreView | LoadMut | LoadView | LoadTile)
        )
        self.written = {op.x for op in function.walk() if isinstance(op, StoreMut | StoreView)}
        self.plans: list[str] = []
        self.refused_plans: list[str] = []
        self.aliases = Aliases(function)
        self.pending: list[Root] = []
        self.uses = Uses(function.body, self.aliases)
        self.made_by: dict[Value, Op] = {value: op for op in function.walk() for value in op.results}
        self.scratch: list[Op] = []
        self._counts: dict[AxisClass, Extent] = {}
        self._limits: dict[tuple[Value, int], Value] = {}
        self._strides: dict[tuple[Value, int], Value] = {}
        self._muts: dict[Value, tuple[tuple[TensorAxis, ...], Value]] = {}
        self._parameters = {value: Value(value.type, value.name) for value in function.parameters}
        self._views: dict[Value, tuple[list[Value], list[Value]]] = {}
        self._joined = {name: Value(INDEX, name) for name in JOIN_NAMES}
        self.range = [Value(INDEX, name) for name in RANGE_NAMES]
        self._grid: list[Value] = []
        self._block: list[Value] = []
        self.body = Block([*self._parameters.values(), *self._joined.values(), *self.range])
        self.scope = Scope(Builder(self.body))
        self.scope.exposed |= {self._parameters[x] for x in self.aliases.exposed if x in self._parameters}
        for value, parameter in self._parameters.items():
            if isinstance(parameter.type, TileType):
                self.nodes[value] = Scalar(parameter)

    def open_block(self, block: Value, blocks: Sequence[Value]) -> None:
        """Compute the index of the tile block from its number.

        The last axis of the grid varies fastest. `blocks` is the result of `open_grid`.
        """
        scope = self.scope
        inner = scope.times(blocks[1], blocks[2])
        self._block = [
            scope.add(FloorDiv(block, inner), "block_x"),
            scope.add(Mod(scope.add(FloorDiv(block, blocks[2])), blocks[1]), "block_y"),
            scope.add(Mod(block, blocks[2]), "block_z"),
        ]

    def block_index(self) -> tuple[Value, Value, Value]:
        """The index in the grid of the tile block, or of the first of joined ones."""
        x, y, z = (self.scope.times(each, self._span(1, axis)) for axis, each in enumerate(self._block))
        return x, y, z

    def open_grid(self) -> list[Value]:
        """Read the grid's extents; return the joined blocks along each of its axes."""
        scope = self.scope
        self._grid = [scope.add(GridSize(axis=axis)) for axis in range(3)]
        return [self._joined_count(self._grid[axis], axis) for axis in range(3)]

    def _joined_count(self, count: Value, axis: int) -> Value:
        """The number of joined blocks along an axis of `count` tile blocks."""
        if self.axes.max_joined_along[axis] == 1:
            return count
        scope, join = self.scope, self._joined[JOIN_NAMES[axis]]
        raised = scope.minus(scope.plus(count, join), scope.index(1))  # for a quotient that is rounded up
        return scope.add(FloorDiv(raised, join), f"blocks_{'xyz'[axis]}")

    # -- tensors ------------------------------------------------------------------------------------------------

    def parameter(self, value: Value) -> Value:
        """The lowered function's parameter, or the tensor at a computed address."""
        return self._parameters[value]

    def size(self, tensor: Value, axis: int) -> Value:
        """A tensor's extent, as an index."""
        known = tensor.tensor.shape[axis]
        if known is not None:
            return self.scope.index(known)
        if tensor in self._views:
            return self._views[tensor][0][axis]
        return self.scope.shared(("size", tensor, axis), Size(self.parameter(tensor), axis=axis))

    def stride(self, tensor: Value, axis: int) -> Value:
        """A tensor's stride, in elements."""
        known = tensor.tensor.strides[axis]
        if known is not None:
            return self.scope.index(known)
        if tensor in self._views:
            return self._views[tensor][1][axis]
        return self.scope.shared(
            ("stride", tensor, axis), Stride(self.parameter(tensor), axis=axis), f"{tensor.name}_stride_{axis}"
        )

    def tile_start(self, extent: int, axis: int, name: str) -> Value:
        """The first element of this block's own tile along an axis of the grid.

        `extent` is that of a single tile block's tile.
        """
        return self.scope.times(self._block[axis], self._span(extent, axis), name)

    def _span(self, extent: int, axis: int) -> Value:
        """The elements of a full joined block along an axis of the grid."""
        scope = self.scope
        if self.axes.max_joined_along[axis] == 1:
            return scope.index(extent)
        return scope.times(scope.index(extent), self._joined[JOIN_NAMES[axis]], f"span_{'xyz'[axis]}")

    def _open_view(self, op: TensorView) -> None:
        """Make a tensor at an address, with extents and strides like a parameter's."""
        scope = self.scope
        address = scope.as_index(self.concrete(op.address))
        self._parameters[op.result] = scope.add(TensorAt(address, dtype=op.dtype), op.result.name or "view")
        extents, steps = (
            [scope.as_index(self.concrete(each)) if isinstance(each, Value) else scope.index(each) for each in numbers]
            for numbers in (op.extents, op.steps)
        )
        self._views[op.result] = (extents, steps)
        if op.result in self.aliases.views:
            scope.views.add(self._parameters[op.result])

    def loaded(
        self, tensor: Value, axes: Sequence[TensorAxis], extents: Sequence[Extent], padding: float = 0
    ) -> Loaded:
        """A tile of a tensor."""
        scope = self.scope
        base = scope.index(0)
        for axis in axes:
            base = scope.plus(base, scope.times(axis.start, axis.stride))
        base.name = base.name or f"{tensor.name}_at"
        return Loaded(self.parameter(tensor), axes, base, extents, padding)

    def own_tile(self, mut: Value) -> tuple[tuple[TensorAxis, ...], Value]:
        """This block's own tile of a `Mut`: its axes and the offset of its first element."""
        if mut not in self._muts:
            axes: list[TensorAxis] = []
            for axis, extent in enumerate(mut.mut.tile):
                begin = self.tile_start(extent, axis, f"{mut.name}_start_{axis}")
                axes.append(TensorAxis(begin, self.size(mut, axis), self.stride(mut, axis), False, False))
            self._muts[mut] = (tuple(axes), self.loaded(mut, axes, [Extent(1)] * len(axes)).base)
        return self._muts[mut]

    def limit(self, mut: Value, axis: int) -> Value:
        """How many elements of this block's own tile are in the tensor, along an axis."""
        key = (mut, axis)
        if key not in self._limits:
            scope = self.scope
            axes, _ = self.own_tile(mut)
            rest = scope.minus(axes[axis].size, axes[axis].start)
            # An exact grid is the partition's, as a launch checks: the tile ends at the tensor's edge alone. Any other
            # grid is a prefix of the partition's, and joined blocks also end with the grid.
            span = self._span if mut.mut.exact else self._span_in_grid
            whole = span(mut.mut.tile[axis], axis)
            self._limits[key] = scope.smaller(whole, rest, f"{mut.name}_count_{axis}")
        return self._limits[key]

    def _span_in_grid(self, extent: int, axis: int) -> Value:
        """The elements of this joined block along an axis of the grid.

        The last joined block ends with the grid, and may have fewer tile blocks than the others.
        """
        scope = self.scope
        if self.axes.max_joined_along[axis] == 1:
            return scope.index(extent)
        join = self._joined[JOIN_NAMES[axis]]
        left = scope.minus(self._grid[axis], scope.times(self._block[axis], join))
        return scope.times(scope.smaller(join, left), scope.index(extent))

    # -- extents ------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Compute the ends of all loops at the top of the tile block.

        Every loop can use them there.
        """
        for op in self.function.walk():
            if isinstance(op, StoreMut | LoadMut):
                self.own_tile(op.x)
                for axis in range(op.x.mut.rank):
                    self.limit(op.x, axis)
        for op in self.function.walk():
            for value in (*op.results, *(v for block in op.regions for v in block.arguments)):
                if isinstance(value.type, TileType):
                    self.extents(value)

    def extents(self, value: Value) -> tuple[Extent, ...]:
        """How far each axis of a tile value goes."""
        return tuple(self._extent(value, axis) for axis in range(len(value.tile.shape)))

    def _extent(self, value: Value, axis: int) -> Extent:
        facts = self.axes.of(value, axis)
        if facts not in self._counts:
            self._counts[facts] = self._make_extent(facts)
        return self._counts[facts]

    def _make_extent(self, facts: AxisClass) -> Extent:
        """How far the loops over the axes of a class go.

        They end at the edge of the tensors that tiles are stored to, or else with the joined tiles.
        """
        scope = self.scope
        grid_axis = next(iter(facts.blocks), 3)  # 3: no axis of the grid
        joined = not facts.opaque and not facts.uneven and len(facts.blocks) == 1
        factor = self.axes.max_joined_along[grid_axis] if joined and grid_axis < 3 else 1
        if facts.opaque or (facts.extent == 1 and factor == 1):
            return Extent(facts.extent)
        capacity = facts.extent * factor
        if not facts.stores:
            span = self._span_in_grid(facts.extent, grid_axis) if factor > 1 else None
            return Extent(capacity, span, factor, grid_axis)
        count: Value | None = None
        for mut, axis in facts.stores:
            limit = self.limit(mut, axis)
            count = limit if count is None else scope.larger(count, limit, "count")
        return Extent(capacity, count, factor, grid_axis)

    # -- roots --------------------------------------------------------------------------------------------------

    def allocate(self, product: Product) -> Buffer:
        """Scratch memory for a product."""
        size = Buffer.size_of(product.extents[product.keep_from :], self.axes.max_joined)
        builder = Builder(Block())
        memory = builder.value(Scratch(dtype=product.dtype, size=size), product.name or "tile")
        self.scratch.extend(builder.current.operations)
        return Buffer(memory, product.extents, product.keep_from, self.axes.max_joined)

    def strip(self, dtype: DTypeLike, size: int, name: str) -> Value:
        """Scratch memory for `size` elements in the format that tensors have."""
        builder = Builder(Block())
        memory = builder.value(Scratch(dtype=dtype, size=size, stored=True), f"{name or 'tile'}_strip")
        self.scratch.extend(builder.current.operations)
        return memory

    def flush(self) -> None:
        """Write the loops of all pending roots."""
        roots, self.pending = self.pending, []
        # If every operation that pulls a product is among these roots, the product has no other users. It may then need
        # memory for fewer axes, or fit a register.
        keys = {root.key for root in roots if root.key is not None}
        readers: dict[Node, set[Root]] = {}
        for root in roots:
            for leaf, _ in root.reads():
                readers.setdefault(leaf, set()).add(root)
        for root in roots:
            value = root.key.results[0] if root.key is not None and root.key.results else None
            # {None}: the users of another block's value are not known.
            if value is not None and self.uses.pulled_by.get(value, {None}) <= keys:
                root.users = set[Root]().union(*(readers.get(product, set()) for product in root.products()))
        Nests(self.scope, self.allocate, self.strip).write(roots)

    def keep(self, node: Node, key: Op | None = None, product: Product | None = None) -> Product:
        """Have a tile computed into scratch memory once pending roots are written."""
        product = product or Product(node.dtype, node.extents, node.name)
        location = key.location if key is not None else self.scope.builder.location
        self.pending.append(Root(node.extents, [Target(node, product=product)], location=location, key=key))
        return product

    def node(self, value: Value) -> Node:
        """The node of a value."""
        return self.nodes[value]

    def concrete(self, value: Value) -> Value:
        """A scalar as a value that has been computed."""
        node = self.nodes[value]
        if not isinstance(node, Scalar):
            if self.pending:
                self.flush()
            constant = node.value if isinstance(node, Number) else None
            node = Scalar(node.at(self.scope, ()))
            node.value.name = node.value.name or value.name
            if isinstance(constant, int):
                self.scope.note(node.value, constant)
            # A constant is not kept as a node: a block beside this one could not use the value, and writes its own.
            if constant is not None:
                return node.value
            self.nodes[value] = node
        return node.value

    # -- operations ---------------------------------------------------------------------------------------------

    def operation(self, op: Op) -> None:
        """An operation without nested blocks, other than mma."""
        self.scope.builder.location = op.location
        match op:
            case StoreMut():
                if op not in self.stored:
                    self._store(op)
            case StoreView():
                store_view(self, op)
            case TensorView():
                self._open_view(op)
            case Reduce():
                self.nodes[op.result] = self._reduce(op)
            case Print():
                lower_print(self, op)
            case Assert():
                lower_assert(self, op)
            case LoadPointer() | StorePointer() | AtomicRmw() | AtomicCas() if is_access(op):
                lower_access(self, op)
            case _ if len(op.results) == 1:
                node = self._lazy(op)
                if op.result in self.uses.kept:
                    node = self.keep(node, op)
                    node.name = op.result.name
                self.nodes[op.result] = node
            case _:
                raise IRError(f"the cpu backend does not know the operation {op.name!r}")

    def _lazy(self, op: Op) -> Node:
        """The node of an operation without loops of its own, or of a launch's fact."""
        extents = self.extents(op.result)
        match op:
            case Constant():
                return Number(op.value, op.dtype, extents)
            case Iota():
                return Counting(op.dtype, extents, op.result.name)
            case LoadTile():
                return self._load(op, extents)
            case LoadMut():
                return self._load_own(op, extents)
            case LoadView():
                return load_view(self, op, extents)
            case Gather():
                return Gathered(self.parameter(op.x), self.node(op.at), self.node(op.inside), op.padding, extents)
            case Broadcast():
                return Repeated(self.node(op.x), extents)
            case Permute():
                return Permuted(self.node(op.x), op.axes)
            case Cat():
                return Joined(self.node(op.x), self.node(op.y), op.axis, extents)
            case Extract():
                return self._extract(op, extents)
            case TakeAlongAxis():
                return Taken(self.node(op.x), self.node(op.places), op.axis, extents)
            case Reshape():
                return self._reshape(op, extents)
            case TileBlockId() | NumTileBlocks() | TensorAddress() | TensorStride() | TensorDim():
                return Scalar(self._launch_fact(op))
            case _ if is_lazy(op):
                return self._element(op, extents)
            case _:
                raise IRError(f"the cpu backend does not know the operation {op.name!r}")

    def _launch_fact(self, op: TileBlockId | NumTileBlocks | TensorAddress | TensorStride | TensorDim) -> Value:
        """A number of the grid or of a tensor: index, extent, stride or address."""
        match op:
            case TileBlockId():
                return self.scope.cast(self._block[op.axis], i32)
            case NumTileBlocks():
                return self.scope.cast(self._grid[op.axis], i32)
            case TensorAddress():
                return self.scope.add(TensorAddress(self.parameter(op.x)), op.result.name)
            case TensorStride():
                return self.stride(op.x, op.axis)
            case TensorDim():
                size = self.scope.cast(self.size(op.x, op.axis), i32)
                size.name = size.name or f"{op.x.name}_size_{op.axis}"
                return size

    def _element(self, op: Op, extents: Sequence[Extent]) -> Node:
        operands = [self.node(value) for value in op.operands]
        ready = [node.value for node in operands if isinstance(node, Scalar)]
        if op.result.tile.is_scalar and len(ready) == len(operands):
            return Scalar(self.scope.add(op.copy_with(ready, (), ()), op.result.name))
        return Element(truncation(op, self.made_by) if isinstance(op, Convert) else op, operands, extents)

    def _load(self, op: LoadTile, extents: Sequence[Extent]) -> Node:
        tiles = enumerate(zip(op.index, op.shape, strict=True))
        return self.loaded(op.x, [self.tile_axis(op.x, axis, tile) for axis, tile in tiles], extents)

    def tile_axis(self, tensor: Value, axis: int, tile: tuple[Value, int]) -> TensorAxis:
        """One axis of a tile, where tiles lie side by side in the tensor.

        `tile` is the tile's index along the axis, in tiles, and its extent.
        """
        index, extent = tile
        source = self.made_by.get(index)
        if isinstance(source, TileBlockId):
            begin = self.tile_start(extent, source.axis, f"{tensor.name}_start_{axis}")
        else:
            position = self.scope.as_index(self.concrete(index))
            # An index is clamped to 32 bits, so that its product with the extent does not wrap. A tensor's extents have
            # 32 bits: an index beyond that lies outside of every tensor, and so does the bound that takes its place.
            if index.tile.dtype.bits == 64:
                position = self.scope.smaller(position, self.scope.index(2**31 - 1))
                position = self.scope.larger(position, self.scope.index(-(2**31)))
            begin = self.scope.times(position, self.scope.index(extent), f"{tensor.name}_start_{axis}")
        negative = not isinstance(source, TileBlockId) and index not in self.counters
        known = self.scope.known(begin)
        negative = negative and (known is None or known < 0)
        return TensorAxis(begin, self.size(tensor, axis), self.stride(tensor, axis), False, negative)

    def _load_own(self, op: LoadMut, extents: Sequence[Extent]) -> Node:
        axes, base = self.own_tile(op.x)
        covered = [
            TensorAxis(a.start, a.size, a.stride, extent.count is self.limit(op.x, axis), False)
            for axis, (a, extent) in enumerate(zip(axes, extents, strict=True))
        ]
        return Loaded(self.parameter(op.x), covered, base, extents)

    def _extract(self, op: Extract, extents: Sequence[Extent]) -> Node:
        """A part of a tile; its index is clamped to the parts that the tile has."""
        scope = self.scope
        starts: list[Value] = []
        for index, have, part in zip(op.index, op.x.tile.shape, op.shape, strict=True):
            at = scope.as_index(self.concrete(index)) if have > part else scope.index(0)
            at = scope.smaller(scope.larger(at, scope.index(0)), scope.index(have // part - 1))
            starts.append(scope.times(at, scope.index(part)))
        return Part(self.node(op.x), starts, extents)

    def _reshape(self, op: Reshape, extents: Sequence[Extent]) -> Node:
        x = self.node(op.x)
        pairs = unit_reshape(op.x.tile.shape, op.shape)
        if pairs is None:
            return Reshaped(x, op.shape)
        to_of = dict(pairs)
        return Remapped(x, [to_of.get(axis) for axis in range(len(op.x.tile.shape))], extents)

    def target_of(self, op: StoreMut, value: Value) -> Loaded:
        """The part of the block's own tile that a store of `value` writes.

        It ends at the tensor's edge.
        """
        return self._target(op, self.extents(value))

    def _target(self, op: StoreMut, have: Sequence[Extent]) -> Loaded:
        axes, base = self.own_tile(op.x)
        extents = [
            extent if extent.is_unit or extent.count is limit else Extent(extent.capacity, limit)
            for axis, extent in enumerate(have)
            for limit in [self.limit(op.x, axis)]
        ]
        return Loaded(self.parameter(op.x), axes, base, extents)

    def _store(self, op: StoreMut) -> None:
        node = self.node(op.value)
        tile = self._target(op, node.extents)
        self.pending.append(Root(tile.extents, [Target(node, tile=tile)], location=op.location, key=op))

    def _reduce(self, op: Reduce) -> Node:
        """Lower a reduction: to a register along the innermost axis, else in memory."""
        x = self.node(op.x)
        if x.extents[op.axis].is_unit:
            return Squeezed(x, op.axis)
        extents = self.extents(op.result)
        looped = [axis for axis, extent in enumerate(x.extents) if not extent.is_unit]
        dtype = op.result.tile.dtype
        kind = f"{op.name}_or_nan" if isinstance(op, ReduceExtreme) and op.nan else op.name
        if looped[-1] == op.axis:
            product = Product(dtype, extents, op.result.name or op.name)
            target = Target(x, product=product)
            self.pending.append(Root(x.extents, [target], kind, op.axis, op.location, op))
            return product
        # Not the innermost axis: accumulate whole rows in memory, so that the inner loop runs along the rows.
        wide = accumulator(dtype)
        product = Product(wide, extents, op.result.name or op.name)
        product.buffer = self.allocate(product)
        start = Number(start_number(kind, dtype), wide, extents)
        step = Accumulated(product, x, kind, op.axis)
        self.pending.append(Root(extents, [Target(start, product=product)], location=op.location))
        self.pending.append(Root(x.extents, [Target(step, product=product)], "", op.axis, op.location))
        return product if wide is dtype else Cast(product, dtype)
