"""The state of a lowering: lowered values, names of layouts, shared memory."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from cutile.analysis.structure import written_views
from cutile.backend.cuda.exchange import exchange_of, sectors
from cutile.backend.cuda.mma_layouts import assign_layouts
from cutile.backend.cuda.ops import Barrier, ConvertLayout, HeldPlace, StoreSubtile
from cutile.backend.cuda.smem_sizes import move_bytes
from cutile.backend.cuda.target import Architecture
from cutile.backend.gpu.layout import Layout, axis_first, blocked, register_map
from cutile.backend.gpu.layout_assignment import is_tile, vector_width
from cutile.backend.gpu.op_facts import DefUse
from cutile.backend.gpu.smem_allocator import SmemAllocator
from cutile.ir import Block, Builder, Function, MutType, Op, TensorType, Value
from cutile.ops.debug import Assert, Print
from cutile.ops.grid import TileBlockId
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadMut, LoadTile, StoreMut
from cutile.ops.pointer import TensorAddress
from cutile.ops.view import LoadView, StoreView

# An access that touches so many times the sectors that its elements fill is made in a layout of wide accesses instead,
# and the tile is exchanged between the two layouts.
SCATTERED = 2
EXCHANGE_SHARE = 3
"""Such an exchange may take a third of a block's shared memory."""


class LoweringContext(ABC):
    """One walk over a function. A subclass says how an operation is lowered.

    Attributes:
        function: the function that is lowered.
        early: whether the kernel may begin before the one ahead of it in the stream has ended.
        products: whether the kernel has products, whose operands go through shared memory in ways of their own.
        unsafe: whether raw pointers may access the memory of the kernel's tensors.
        lowered: the lowered value of each value of the function.
        layouts: the layouts of the function's tiles.
        shared_tensors: tensors of which one thread may load elements that another has stored.
        exposed: tensors whose address the kernel takes.
        aliased: tensors that may be written through an address or a view of the same memory.
        loops: the number of loops around the operation that is being lowered.
        block_ids: the tile block's index, by axis.
    """

    early = False

    def __init__(
        self, function: Function, warps: int, arch: Architecture, accumulators: Sequence[tuple[Op, Layout]] = ()
    ) -> None:
        self.function = function
        self.layouts = assign_layouts(function, warps, accumulators)
        self.warps = warps
        self.arch = arch
        self.products = any(isinstance(op, Mma) for op in function.walk())
        self.unsafe = bool(function.facts.get("unsafe", False))
        self.exposed = {op.x for op in function.walk() if isinstance(op, TensorAddress)}
        # No store can change a tensor that nothing writes, even if the kernel takes its address.
        self.aliased = {tensor for tensor in self.exposed if not self.is_constant(tensor)} | written_views(function)
        self.shared_tensors = self.find_shared_tensors(function) | self.aliased
        self.chains = DefUse(function.body)
        self.definitions, self.users = self.chains.definitions, self.chains.users
        self.builder = Builder(Block())
        self.lowered: dict[Value, Value] = {}
        self._layout_names: dict[Layout, str] = {}
        self.smem = SmemAllocator()
        self.held: dict[int, HeldPlace] = {}
        """The rows that are held in shared memory (`held_rows.py`), by their numbers."""
        self.counters = 0
        """The shared-memory offset of the barriers that count the results of a cluster's blocks."""
        self.loops: int = 0
        self.block_ids: dict[int, Value] = {}
        self.failures: list[tuple[str, tuple[Any, ...], tuple[str, ...], tuple[str, ...]]] = []
        """For each assertion, its message, its place in the source, and the names of the numbers that it reports."""

    def facts(self, *, threads: int, min_blocks: int, **more: Any) -> dict[str, Any]:
        """The facts of the whole kernel."""
        return {
            "warps": self.warps,
            "threads": threads,
            "min_blocks": min_blocks,
            "shared_bytes": self.smem.bytes,
            # By the rules of ownership, no other argument of the launch shares memory that the kernel writes. Raw
            # addresses may.
            "noalias": not (self.unsafe or self.exposed),
            "speaks": any(isinstance(op, Print) for op in self.function.walk()),
            **({"failures": tuple(self.failures)} if self.failures else {}),
            **more,
            "layouts": tuple((name, _plain(layout)) for layout, name in self._layout_names.items()),
        }

    @abstractmethod
    def operation(self, op: Op) -> None:
        """Lower one operation."""

    @property
    def on_failure(self) -> tuple[int, *tuple[Value, ...]]:
        """The thread that reports a failure, and the flag that it sets.

        There is a flag if threads go on after a failure.
        """
        return (0,)

    def allowed_index(self, index: tuple[Value, ...]) -> tuple[Value, ...]:
        """The index of a store, outside of any tensor if the store is to be dropped."""
        return index

    def operations(self, operations: Iterable[Op]) -> None:
        """Lower some operations."""
        for op in operations:
            self.operation(op)

    # Values and layouts.

    def layout(self, value: Value) -> Layout:
        """The layout of a tile, or that of a number, which every thread has."""
        return self.layouts[value] if is_tile(value) else blocked((), self.warps)

    def find_shared_tensors(self, function: Function) -> set[Value]:
        """Tensors of which a thread may load or overwrite elements that another stored.

        They are accessed several times, in several layouts or in several grids of tiles. Or they are stored and loaded
        where several threads hold an element. Two tiles of one grid are the same, or have no element in common.
        """
        layouts: dict[Value, set[Layout]] = {}
        # By tensor, the steps and shapes of its tiles; None stands for a tile block's own tile. Tiles that overlap have
        # steps other than their shape, and so count as two grids.
        grids: dict[Value, set[tuple[int, ...] | None]] = {}
        loaded, stored = set[Value](), Counter[Value]()
        for op in function.walk():
            if not isinstance(op, LoadTile | LoadMut | LoadView | StoreMut | StoreView):
                continue
            tensor, stores = op.operands[0], isinstance(op, StoreMut | StoreView)
            tile = op.value if isinstance(op, StoreMut | StoreView) else op.result
            steps = op.steps if isinstance(op, LoadView | StoreView) else None
            layouts.setdefault(tensor, set()).add(self.access_layout(tensor.tensor, tile, steps))
            stored[tensor] += stores
            loaded.update(() if stores else (tensor,))
            grids.setdefault(tensor, set()).update({None} if steps is None else {tuple(steps), tile.tile.shape})
        changing = {tensor for tensor, used in layouts.items() if len(used) > 1 or len(grids[tensor]) > 1}
        held_twice = {tensor for tensor, used in layouts.items() if any(x.free_lanes or x.free_warps for x in used)}
        stored_tensors = {tensor for tensor, count in stored.items() if count > 0}
        stored_again = {tensor for tensor, count in stored.items() if count > 1}
        return (loaded & stored_tensors & (changing | held_twice)) | (stored_again & changing)

    def copy(self, value: Value) -> Value:
        """A new value of the same type and name, as the lowered value."""
        new_value = Value(value.type, value.name)
        self.lowered[value] = new_value
        return new_value

    def layout_name(self, layout: Layout) -> str:
        """The layout's name in the function's facts."""
        if layout not in self._layout_names:
            stem = "tile_" + "x".join(map(str, layout.shape))
            count = sum(name == stem or name.startswith(stem + "_") for name in self._layout_names.values())
            self._layout_names[layout] = f"{stem}_{count}" if count else stem
        return self._layout_names[layout]

    def add(self, op: Op, **attributes: Any) -> Op:
        op.attributes.update(attributes)
        return self.builder.add(op)

    def name_of(self, tile: Value) -> str:
        """The name of a tile's layout."""
        return self.layout_name(self.layouts[tile])

    def converted(self, value: Value, source: Layout, target: Layout) -> Value:
        """A lowered value in another layout."""
        if source == target:
            return value
        op, names = ConvertLayout(x=value), self.names(source, target)
        if register_map(source, target) is not None:
            return self.add(op, **names, how="take").result
        dense = move_bytes(value.tile.dtype, source)
        size = dense if self.products else exchange_of(value.tile.dtype, source, target).nbytes
        # A swizzle pads rows whose number of chunks is no power of two. A large tile may fit only without a swizzle.
        if self.products or size > max(dense, self.arch.shared_bytes // EXCHANGE_SHARE):
            return self.in_shared(op, dense, **names, how="move").result
        return self.in_shared(op, size, **names, how="swizzle").result

    # Accesses to memory.

    def access_layout(self, tensor: TensorType, value: Value, steps: Sequence[int] | None = None) -> Layout:
        """The layout in which a tile is loaded or stored.

        It is the tile's own, or one with so much wider accesses that they are worth an exchange between the two.
        """
        own = self.layout(value)
        axis, width = vector_width(tensor, own.shape, steps) or (tensor.unit_axis, 1)
        if axis is None or self.products:
            return own
        size = tensor.dtype.bits // 8
        touched, least = sectors(own, axis, min(width, own.vector(axis)), size)
        if touched < SCATTERED * least or own.free_warps or own.free_lanes:
            return own
        wide = blocked(own.shape, self.warps, width, axis_first(own.rank, axis))
        room = self.arch.shared_bytes // EXCHANGE_SHARE
        return wide if exchange_of(tensor.dtype, own, wide).nbytes <= room else own

    def access(self, tensor: TensorType, layout: Layout, steps: Sequence[int] | None = None) -> dict[str, Any]:
        """Layout and width of a memory access, by tiles at multiples of `steps`."""
        widest, vector = vector_width(tensor, layout.shape, steps), None
        if widest is not None:
            axis, width = widest[0], min(widest[1], layout.vector(widest[0]))
            vector = (axis, width) if width > 1 else None
        # Kernels of products have no registers to spare, and wide accesses at a tensor's edge take some.
        return {"layout": self.layout_name(layout), "vector": vector, "wide_edges": bool(vector) and not self.products}

    def is_constant(self, tensor: Value) -> bool:
        """Whether nothing writes to a tensor while the kernel runs.

        Then loads may go through caches that do not see stores. A kernel that may begin before the one ahead of it has
        ended (`early`) has no such tensors: the one ahead may still write them.
        """
        kind = tensor.type
        return isinstance(kind, TensorType) and kind.stable and not self.unsafe and not self.early

    def meet_before(self, tensor: Value) -> None:
        """Add a barrier ahead of an access, if other threads may access its elements."""
        if tensor in self.shared_tensors:
            self.builder.add(Barrier())

    # Operations.

    def add_in(self, op: Op, layout: Layout) -> Value:
        """Add an operation whose result lies in a layout."""
        return self.add(op, layout=self.layout_name(layout)).result

    def names(self, source: Layout, layout: Layout) -> dict[str, str]:
        """The names of an operand's layout and of the result's."""
        return {"source": self.layout_name(source), "layout": self.layout_name(layout)}

    def in_shared(self, op: Op, size: int, **attributes: Any) -> Op:
        """Add an operation that uses `size` bytes of shared memory."""
        self.add(op, **attributes)
        self.smem.use(op, size, looped=self.loops > 0)
        return op

    def copied(self, op: Op, regions: Sequence[Block] = ()) -> Op:
        """A copy of an operation that takes the lowered values."""
        return op.copy_with([self.lowered[value] for value in op.operands], regions, ())

    def map(self, op: Op, new_op: Op) -> None:
        """Take the results of `new_op` as the lowered values of the results of `op`."""
        # Not strict: a loop that loads ahead has further results after those of the source (`multistage.py`).
        for old, new in zip(op.results, new_op.results, strict=False):
            new.name = old.name
            self.lowered[old] = new

    def finish(self, op: Op, new_op: Op) -> None:
        """Add an operation in place of another one."""
        self.add(new_op)
        self.map(op, new_op)

    def place(self, old: Value, new: Value, natural: Layout) -> None:
        """Take a result, converted to the layout of `old`, as the lowered value of `old`.

        `natural` is the layout in which it was computed.
        """
        new.name = old.name
        if is_tile(old) and natural != self.layouts[old]:
            new.name = ""
            new = self.converted(new, natural, self.layouts[old])
            new.name = old.name
        self.lowered[old] = new

    # Blocks and operations.

    def make_block_ids(self, index: Callable[[int], Op], beside: Iterable[int] = ()) -> None:
        """Add the tile block's index along the axes that the kernel needs.

        Axes in `beside` are added too. Where the kernel reads the index along an axis, the value has the user's name.
        """
        operations = list(self.function.walk())
        indices = {op.axis: op for op in reversed(operations) if isinstance(op, TileBlockId)}
        own = [op.operands[0].mut.rank for op in operations if isinstance(op, LoadMut | StoreMut | StoreSubtile)]
        asserts = [3 for op in operations if isinstance(op, Assert)]  # an assertion reports all three axes
        for axis in sorted({*indices, *range(max(own + asserts, default=0)), *beside}):
            op = indices.get(axis)
            self.builder.location = op.location if op else None
            self.block_ids[axis] = self.builder.value(index(axis), op.result.name if op else f"block_{axis}")
        self.builder.location = None

    def own_index(self, mut: MutType) -> tuple[Value, ...]:
        """The index of this block's own tile."""
        return tuple(self.block_ids[axis] for axis in range(mut.rank))

    def block(self, block: Block) -> Block:
        with self.builder.block(*(self.copy(value) for value in block.arguments)) as new_block:
            for op in block.operations:
                self.operation(op)
        return new_block


def _plain(layout: Layout) -> tuple[Any, ...]:
    """A layout as nested tuples, which IR prints and parses."""
    return (layout.shape, layout.register, layout.lane, layout.warp, layout.repeat)


def layouts_of(function: Function) -> dict[str, Layout]:
    """The layouts that a lowered function's attributes name."""
    return {name: Layout(*fields) for name, fields in function.facts["layouts"]}
