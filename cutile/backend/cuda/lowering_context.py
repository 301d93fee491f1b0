"""A lowered function in the making: its values, the names of its layouts, what it needs of shared memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from cutile.backend.cuda.layout import Layout, blocked, register_map
from cutile.backend.cuda.layout_assignment import Placement, is_tile
from cutile.backend.cuda.multistage_rules import MOST_SLOTS, Ring
from cutile.backend.cuda.ops import ConvertLayout
from cutile.backend.cuda.smem_allocator import Arena
from cutile.backend.cuda.smem_sizes import move_bytes
from cutile.backend.cuda.target import Architecture
from cutile.ir.builder import Builder
from cutile.ir.core import Block, Function, Op, Value
from cutile.ir.types import MutType
from cutile.ops.debug import Assert, Print
from cutile.ops.grid import TileBlockId
from cutile.ops.memory import LoadMut, LoadTile, StoreMut
from cutile.ops.pointer import TensorAddress
from cutile.ops.view import LoadView, StoreView


class Draft(ABC):
    """One walk over a function. `lowered` leads from its values to the lowered ones. What becomes of an operation, a
    subclass says.
    """

    def __init__(
        self,
        function: Function,
        warps: int,
        arch: Architecture,
        accumulators: Sequence[tuple[Op, Layout]] = (),
        most_slots: int = MOST_SLOTS,
    ) -> None:
        self._function = function
        self.placement = Placement(function, warps, accumulators)
        self._arch = arch
        self._unsafe = bool(function.facts.get("unsafe", False))
        self._exposed = {op.x for op in function.walk() if isinstance(op, TensorAddress)}
        self._shared_tensors = self._find_shared_tensors(function) | self._exposed
        self._uses = Counter(value for op in function.walk() for value in op.operands)
        self._definitions = {value: op for op in function.walk() for value in op.results}
        self._rings: list[Ring] = []
        self._most_slots = most_slots
        self._warps = warps
        self.builder = Builder(Block())
        self.lowered: dict[Value, Value] = {}
        self._layouts: dict[Layout, str] = {}
        self.arena = Arena()
        self.loops: int = 0
        self.block_ids: dict[int, Value] = {}
        self._failures: list[tuple[str, tuple[Any, ...], tuple[str, ...]]] = []
        """Of each assertion its message, its place, and the names of the numbers that it tells."""

    def run(self) -> Function:
        """The lowered function."""
        source = self._function
        with self.builder.block(*(self.copy(value) for value in source.parameters)) as body:
            self._make_block_ids()
            for op in source.body.operations:
                self.operation(op)
        made = Function(source.name, body, source.source, source.file, "cuda")
        self.arena.place()
        blocks = max((ring.blocks for ring in self._rings), default=0)
        made.facts = self._facts(threads=self._warps * 32, min_blocks=blocks)
        return made

    def _facts(self, *, threads: int, min_blocks: int, **more: Any) -> dict[str, Any]:
        """What was decided about the whole kernel."""
        return {
            "warps": self._warps,
            "threads": threads,
            "min_blocks": min_blocks,
            "shared_bytes": self.arena.bytes,
            # arguments are lent: what a kernel writes, nothing else in the launch touches; but for raw addresses
            "noalias": not (self._unsafe or self._exposed),
            "speaks": any(isinstance(op, Print) for op in self._function.walk()),
            **({"failures": tuple(self._failures)} if self._failures else {}),
            **more,
            "layouts": tuple((name, _plain(layout)) for layout, name in self._layouts.items()),
        }

    @abstractmethod
    def operation(self, op: Op) -> None:
        """Lower one operation."""

    def operations(self, operations: Iterable[Op]) -> None:
        """Lower some operations."""
        for op in operations:
            self.operation(op)

    # Values and layouts.

    def layout(self, value: Value) -> Layout:
        return self.placement[value] if is_tile(value) else blocked((), self._warps)

    def _find_shared_tensors(self, function: Function) -> set[Value]:
        """The tensors of which one thread may load what another has stored, or store over it: accessed more than once,
        in more than one layout or at more than one place, or loaded where several threads hold an element."""
        layouts: dict[Value, set[Layout]] = {}
        loaded: set[Value] = set()
        stored: Counter[Value] = Counter()
        moved: set[Value] = set()
        for op in function.walk():
            if isinstance(op, LoadTile | LoadMut | LoadView):
                loaded.add(op.operands[0])
                layouts.setdefault(op.operands[0], set()).add(self.layout(op.result))
            elif isinstance(op, StoreMut | StoreView):
                stored[op.x] += 1
                layouts.setdefault(op.x, set()).add(self.layout(op.value))
            if isinstance(op, LoadView | StoreView):  # tiles at other places: elements change threads
                moved.add(op.x)
        changing = {tensor for tensor, ways in layouts.items() if tensor in moved or len(ways) > 1}
        held_twice = {
            tensor for tensor, ways in layouts.items() if any(each.free_lanes or each.free_warps for each in ways)
        }
        again = {tensor for tensor, count in stored.items() if count > 1}
        return (loaded & stored.keys() & (changing | held_twice)) | (again & changing)

    def copy(self, value: Value) -> Value:
        made = Value(value.type, value.name)
        self.lowered[value] = made
        return made

    def layout_name(self, layout: Layout) -> str:
        """The layout's name in the function's facts."""
        if layout not in self._layouts:
            stem = "tile_" + "x".join(map(str, layout.shape))
            taken = sum(name == stem or name.startswith(stem + "_") for name in self._layouts.values())
            self._layouts[layout] = f"{stem}_{taken}" if taken else stem
        return self._layouts[layout]

    def add(self, op: Op, **attributes: Any) -> Op:
        op.attributes.update(attributes)
        return self.builder.add(op)

    def converted(self, value: Value, source: Layout, target: Layout) -> Value:
        """A lowered value in another layout."""
        if source == target:
            return value
        op = ConvertLayout(x=value)
        names = {"source": self.layout_name(source), "layout": self.layout_name(target)}
        if register_map(source, target) is not None:
            return self.add(op, **names, how="take").result
        return self.in_shared(op, move_bytes(value.tile.dtype, source), **names, how="move").result

    def in_shared(self, op: Op, size: int, **attributes: Any) -> Op:
        """Add an operation that uses `size` bytes of shared memory."""
        self.add(op, **attributes)
        self.arena.use(op, size, looped=self.loops > 0)
        return op

    def _finish(self, op: Op, made: Op) -> None:
        self.add(made)
        for old, new in zip(op.results, made.results, strict=True):
            new.name = old.name
            self.lowered[old] = new

    def place(self, old: Value, new: Value, natural: Layout) -> None:
        """Map a result that came in its natural layout to one in its group's."""
        new.name = old.name
        if is_tile(old) and natural != self.placement[old]:
            new.name = ""
            new = self.converted(new, natural, self.placement[old])
            new.name = old.name
        self.lowered[old] = new

    # Blocks and operations.

    def _make_block_ids(self) -> None:
        """This block's index, once, at the top: by the user's names where the kernel asks for it."""
        asserts = any(isinstance(op, Assert) for op in self._function.walk())
        asked = {op.axis: op for op in reversed(list(self._function.walk())) if isinstance(op, TileBlockId)}
        own = [op.operands[0].mut.rank for op in self._function.walk() if isinstance(op, LoadMut | StoreMut)]
        for axis in sorted(asked.keys() | set(range(3 if asserts else max(own, default=0)))):
            op = asked.get(axis)
            self.builder.location = op.location if op else None
            made = self.builder.value(TileBlockId(axis=axis), op.result.name if op else f"block_{axis}")
            self.block_ids[axis] = made
        self.builder.location = None

    def own_index(self, mut: MutType) -> tuple[Value, ...]:
        """The index of this block's own tile."""
        return tuple(self.block_ids[axis] for axis in range(mut.rank))

    def block(self, block: Block) -> Block:
        with self.builder.block(*(self.copy(value) for value in block.arguments)) as made:
            for op in block.operations:
                self.operation(op)
        return made


def _plain(layout: Layout) -> tuple[Any, ...]:
    """A layout as nested tuples, which IR prints and parses."""
    return (layout.shape, layout.register, layout.lane, layout.warp, layout.repeat)


def layouts_of(function: Function) -> dict[str, Layout]:
    """The layouts that a lowered function's attributes name."""
    return {name: Layout(*fields) for name, fields in function.facts["layouts"]}
