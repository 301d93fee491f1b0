"""Tile IR to this target's IR: every layout, conversion, access width and place in shared memory decided. Pure.

    %y_tile = load_mut(%y) : f32<1024>
    %t = add(%y_tile, %x_tile) : f32<1024>
    store_mut(%y, %t)
-->
    %i = tile_block_id() {axis = 0} : i32
    %y_tile = load_tile(%y, %i) {shape = [1024], layout = 'tile', vector = [0, 4], ...} : f32<1024>
    %t = add(%y_tile, %x_tile) {layout = 'tile'} : f32<1024>
    cuda.store(%y, %t, %i) {layout = 'tile', vector = [0, 4]}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cutile.backend.cuda.budget import SPARE, check_budget, registers, shared_room
from cutile.backend.cuda.failures import subjects
from cutile.backend.cuda.flatten import flatten
from cutile.backend.cuda.layout import Layout, blocked
from cutile.backend.cuda.layout_assignment import (
    MOST_WARPS,
    broadcast_source,
    choose_warps,
    is_tile,
    same_but_ones,
    vector_width,
)
from cutile.backend.cuda.lowering_context import layouts_of
from cutile.backend.cuda.multistage import RunAhead
from cutile.backend.cuda.ops import Barrier, FailUnless, StagedMma, StageTile, Store
from cutile.backend.cuda.pointer_access import Access, hands_on, is_native, waits_after, waits_before
from cutile.backend.cuda.smem_sizes import (
    HALVES,
    fold_bytes,
    move_bytes,
    product_bytes,
    reduce_bytes,
    scan_bytes,
    step_of,
)
from cutile.backend.cuda.split_k_step import Key, can_halve, halved, key_of, operand_words
from cutile.backend.cuda.target import Architecture, architecture
from cutile.backend.interface import CompileOptions, Target
from cutile.dtypes import bf16
from cutile.errors import KernelTypeError
from cutile.ir.control import For, If, While, Yield
from cutile.ir.core import Function, Op, Value
from cutile.ir.types import TensorType
from cutile.ops.atomic import AtomicCas, AtomicRmw
from cutile.ops.debug import Assert, Print
from cutile.ops.grid import TileBlockId
from cutile.ops.matmul import Mma
from cutile.ops.memory import LoadMut, LoadTile, StoreMut
from cutile.ops.pointer import LoadPointer, StorePointer
from cutile.ops.reduce import Folding, Reduce, Scan
from cutile.ops.shape import Broadcast, Cat, Extract, Permute, Reshape
from cutile.ops.view import LoadView, StoreView
from cutile.passes.lower_scaled_mma import lower_scaled_mma

CROWDED = 176
"""Registers of a thread for sums and operands beyond which products get more warps: where there were more, compilers
were seen to spill (16 x 128 x 64 of bf16 by one warp: 208)."""
WIDE_SUMS = 64
"""Registers of a thread for the sums of all products, of which half as many warps have twice as many each."""
SHARED_BLOCK_REGISTERS = {9: 96}
"""Registers that a product's accumulator and operands may fill where two blocks share a multiprocessor, by major
compute capability: of the 128 that each thread then has, what compilers leave without spilling. 80 elsewhere."""


def lower(function: Function, target: Target, options: CompileOptions) -> Function:
    """The function with every decision for `target` in it.

    Raises:
        KernelTypeError: its tiles need more shared memory or registers than there are; names the nearest that fit.
    """
    arch = architecture(target.arch)
    function = flatten(lower_scaled_mma(function, bf16))
    warps = choose_warps(function)
    if options.num_worker_warps is not None:
        warps = 1 << (min(options.num_worker_warps, arch.max_threads // 32).bit_length() - 1)
    room = shared_room(arch, options.occupancy or 1)
    first, made = _within(room, function, warps, arch)
    while options.num_worker_warps is None and warps < MOST_WARPS and _filled(made) > CROWDED:
        warps *= 2
        first, made = _within(room, function, warps, arch)
    if options.num_worker_warps is None and _reads_much(made, warps):
        halves = _within(room, function, warps // 2, arch)
        if halves[1].facts["min_blocks"] > 1:
            first, made = halves
    while deep := _too_deep(made, arch, options.occupancy or 1):
        function = halved(function, deep)
        first, made = _within(room, function, warps, arch)
    try:
        check_budget(function, made, layouts_of(made), arch, options.occupancy or 0)
    except KernelTypeError:  # nothing fits: what the best of them lacks is what the user can do something about
        check_budget(function, first, layouts_of(first), arch, options.occupancy or 0)
        raise
    hoped = made.facts["min_blocks"]
    if hoped > 1 and made.facts["shared_bytes"] > shared_room(arch, hoped):
        hoped = 0  # what is beside the rings takes the room for another block
    made.facts["min_blocks"] = options.occupancy or hoped or _occupancy(made, arch)
    return made


def _reads_much(function: Function, warps: int) -> bool:
    """Whether the warps of a block would better be half as many: each then has sums of 64 x 64, for which it reads a
    third less of the operands from shared memory (measured on an H200, bf16, 128 x 128 x 64: 344 TFLOP/s for 320).

    Sums then leave no room for another tile of their extent, such as a residual.
    """
    layouts = layouts_of(function)
    products = [op for op in function.walk() if isinstance(op, StagedMma)]
    results = {op.result for op in products}
    sums = [layouts[op.attributes["layout"]] for op in products if op.acc not in results]
    staged = all(op.dtype in HALVES for op in products) and not any(isinstance(op, Mma) for op in function.walk())
    beside = [op.result.tile.size for op in function.walk() if isinstance(op, LoadTile | LoadView)]
    wide = sum(each.registers for each in sums) == WIDE_SUMS
    return warps == MOST_WARPS and staged and wide and max(beside, default=0) < products[0].acc.tile.size


def _filled(function: Function) -> int:
    """Registers of a thread that the sums of all products fill together with the operands of the largest."""
    layouts = layouts_of(function)
    definitions = {value: op for op in function.walk() for value in op.results}
    products = [op for op in function.walk() if isinstance(op, Mma)]
    operands = max((operand_words(op, layouts, definitions) for op in products), default=0)
    return operands + sum(layouts[op.attributes["layout"]].registers for op in products)


def _within(room: int, function: Function, warps: int, arch: Architecture) -> tuple[Function, Function]:
    """The lowered function, and the same with as many stages of its loads as leave room for what else is in shared
    memory; without any where not even two do."""
    first = made = Lowering(function, warps, arch).run()
    while made.facts["shared_bytes"] > room:
        rings = [op.stage[1] for op in made.walk() if isinstance(op, StageTile)]
        if not rings:
            break
        made = Lowering(function, warps, arch, most_slots=max(rings) - 1).run()
    return first, made


def _occupancy(function: Function, arch: Architecture) -> int:
    """Blocks per multiprocessor to ask of the compiler; 0 leaves it free.

    While one block of a product waits for its operands, another multiplies (measured on an H200, bf16, 128 x 128 x 64:
    287 TFLOP/s with two blocks, 189 with one). Both must fit: half the registers, half the shared memory.
    """
    layouts = layouts_of(function)
    products = [op for op in function.walk() if isinstance(op, Mma)]
    threads, shared = function.facts["threads"], function.facts["shared_bytes"]

    def words(value: Value, layout: str) -> int:
        bits = value.tile.dtype.bits
        return layouts[layout].registers * (32 if bits == 8 else bits) // 32  # bytes are turned one by one

    filled = [
        max(words(op.result, op.attributes["layout"]), layouts[op.attributes["layout"]].registers)  # sums of f16 in f32
        + sum(words(x, name) for x, name in zip((op.a, op.b), op.attributes["source"], strict=True))
        for op in products
    ]
    fits = 2 * shared <= arch.shared_bytes and 2 * threads * 128 <= arch.registers
    return 2 if filled and fits and max(filled) <= SHARED_BLOCK_REGISTERS.get(arch.major, 80) else 0


def _too_deep(function: Function, arch: Architecture, blocks: int) -> set[Key]:
    """The products whose operands do not fit into registers beside their sums, but would in steps of less depth."""
    layouts = layouts_of(function)
    definitions = {value: op for op in function.walk() for value in op.results}
    most = registers(arch, function.facts["threads"], blocks) - SPARE
    found: set[Key] = set()
    for op in function.walk():
        if isinstance(op, Mma) and can_halve(op, definitions):
            sums = layouts[op.attributes["layout"]].registers
            words = operand_words(op, layouts, definitions)
            least = words * step_of(op.a.tile.dtype) // op.a.tile.shape[1]
            if sums + least <= most < sums + words:
                found.add(key_of(op))
    return found


class Lowering(RunAhead):
    """What becomes of each operation."""

    def operation(self, op: Op) -> None:
        self.builder.location = op.location
        if self._taken_ahead(op):
            return
        if isinstance(op, TileBlockId):
            self.lowered[op.result] = self.block_ids[op.axis]
        elif isinstance(op, LoadTile | LoadMut):
            self.load(op)
        elif isinstance(op, StoreMut):
            self._store(op)
        elif isinstance(op, LoadView | StoreView):
            self._view_access(op)
        elif isinstance(op, Reduce):
            self._reduce(op)
        elif isinstance(op, Folding):
            self._fold(op)
        elif isinstance(op, Cat | Extract):
            self._put_together(op)
        elif isinstance(op, Mma):
            self._mma(op)
        elif isinstance(op, Broadcast | Reshape | Permute):
            self._reshaped(op)
        elif isinstance(op, LoadPointer | StorePointer | AtomicRmw | AtomicCas):
            self._access_by_address(op)
        elif isinstance(op, Print):
            self._print(op)
        elif isinstance(op, Assert):
            self._assert(op)
        else:
            self._plain_operation(op)

    def _plain_operation(self, op: Op) -> None:
        """Control flow, and operations that work register by register."""
        if isinstance(op, For) and (ring := self._ring(op)) is not None:
            self._run_ahead(op, ring)
            return
        looping = isinstance(op, For | While)
        self.loops += looping
        regions = [self.block(nested) for nested in op.regions]
        self.loops -= looping
        self.builder.location = op.location
        made = op.copy_with([self.lowered[value] for value in op.operands], regions, ())
        tiles = [value for value in op.results if is_tile(value)]
        if tiles and not isinstance(op, For | While | If):
            made.attributes["layout"] = self.layout_name(self.placement[tiles[0]])
        elif not isinstance(op, For | While | If | Yield) and any(map(is_tile, op.operands)):
            raise AssertionError(f"{op.name} has no lowering on cuda")
        self._finish(op, made)

    def _assert(self, op: Assert) -> None:
        index = tuple(self.block_ids[axis] for axis in range(3))
        names, values = subjects(op.condition, self._definitions)
        site = len(self._failures)
        self._failures.append((op.message, tuple(op.where), names))
        thread, *flag = self._on_failure
        made = FailUnless(
            self.lowered[op.condition],
            (*index, *(self.lowered[each] for each in values), *flag),
            message=op.message,
            where=op.where,
            site=site,
            thread=thread,
            leaves=not flag,
        )
        self.builder.add(made)

    @property
    def _on_failure(self) -> tuple[int, *tuple[Value, ...]]:
        """Which thread says what failed; and the flag that it sets, where not all threads leave at once."""
        return (0,)

    def allowed_index(self, index: tuple[Value, ...]) -> tuple[Value, ...]:
        """The index of what is stored; one outside of any tensor where nothing is to be stored any more."""
        return index

    def access(self, tensor: TensorType, layout: Layout, steps: Sequence[int] | None = None) -> dict[str, Any]:
        """The layout and the width of an access to memory, by tiles that begin at multiples of `steps`."""
        widest = vector_width(tensor, layout.shape, steps)
        vector = None
        if widest is not None:
            axis, width = widest
            width = min(width, layout.vector(axis))
            vector = (axis, width) if width > 1 else None
        return {"layout": self.layout_name(layout), "vector": vector}

    def _constant(self, tensor: Value) -> bool:
        """Whether nothing writes to a tensor from the kernel's begin on, so that loads may go past what sees stores.

        A kernel that begins before the one ahead of it has ended (`_early`) may find it being written.
        """
        kind = tensor.type
        return isinstance(kind, TensorType) and kind.stable and not self._unsafe and not self.early

    def load(self, op: LoadTile | LoadMut) -> None:
        self.load_in(op, self.layout(op.result))

    def load_in(self, op: LoadTile | LoadMut, layout: Layout) -> None:
        """Load a tile in a layout."""
        x = self.lowered[op.operands[0]]
        if isinstance(op, LoadTile):
            index, shape = tuple(self.lowered[value] for value in op.index), op.shape
        else:
            index, shape = self.own_index(op.x.mut), op.x.mut.tile
        if op.operands[0] in self._shared_tensors:
            self.builder.add(Barrier())
        constant = self._constant(op.operands[0])
        made = LoadTile(x=x, index=index, shape=shape)
        self.add(made, **self.access(x.tensor, layout), constant=constant)
        made.result.name = op.result.name
        self.lowered[op.result] = made.result

    def _store(self, op: StoreMut) -> None:
        value = self.lowered[op.value]
        if op.x in self._shared_tensors:
            self.builder.add(Barrier())
        layout = self.layout(op.value)
        made = Store(x=self.lowered[op.x], value=value, index=self.allowed_index(self.own_index(op.x.mut)))
        self.add(made, **self.access(op.x.tensor, layout))

    def _view_access(self, op: LoadView | StoreView) -> None:
        """A tile at any step."""
        if op.x in self._shared_tensors:
            self.builder.add(Barrier())
        tile = op.result if isinstance(op, LoadView) else op.value
        operands = [self.lowered[value] for value in op.operands]
        if isinstance(op, StoreView):
            operands[2:] = self.allowed_index(tuple(operands[2:]))
        made = op.copy_with(operands, (), ())
        made.attributes.update(self.access(op.x.tensor, self.layout(tile), op.steps))
        if isinstance(op, LoadView):
            made.attributes["constant"] = self._constant(op.x)
        self._finish(op, made)

    def _access_by_address(self, op: Access) -> None:
        if waits_before(op):
            self.builder.add(Barrier())
        pointers = op.operands[0]
        layout = self.placement[pointers] if is_tile(pointers) else None
        made = op.copy_with([self.lowered[value] for value in op.operands], (), ())
        if layout is not None:
            made.attributes["lanes"] = self.layout_name(layout)
            if op.results:
                made.attributes["layout"] = self.layout_name(layout)
        if isinstance(made, LoadPointer) and self.early:
            made.attributes["constant"] = False  # see `_constant`
        used = bool(op.results) and self._uses[op.results[0]] > 0
        if isinstance(op, AtomicRmw):
            made.attributes["used"] = used
            made.attributes["native"] = is_native(op.kind, op.value.tile.dtype, self._arch)
        if hands_on(op, layout, used):
            dtype = op.results[0].tile.dtype
            size = move_bytes(dtype, layout) if layout is not None else dtype.bits // 8
            self.in_shared(made, size, exchange=True)
        else:
            self.add(made)
        for old, new in zip(op.results, made.results, strict=True):
            new.name = old.name
            self.lowered[old] = new
        if waits_after(op):
            self.builder.add(Barrier())

    def _print(self, op: Print) -> None:
        made = op.copy_with([self.lowered[value] for value in op.values], (), ())
        layouts = [self.placement[value] if is_tile(value) else None for value in op.values]
        sizes = [move_bytes(v.tile.dtype, each) for v, each in zip(op.values, layouts, strict=True) if each is not None]
        names = tuple(None if each is None else self.layout_name(each) for each in layouts)
        self.in_shared(made, max(sizes, default=0), sources=names)

    def _reduce(self, op: Reduce) -> None:
        source = self.placement[op.x]
        made = op.copy_with([self.lowered[op.x]], (), ())
        names = {"source": self.layout_name(source)}
        natural = source.collapse(op.axis).drop(op.axis)
        if source.rank > 1:
            names["layout"] = self.layout_name(natural)
        self.in_shared(made, reduce_bytes(op.x.tile.dtype, source, op.axis), **names)
        self.place(op.result, made.result, natural)

    def _fold(self, op: Folding) -> None:
        source = self.placement[op.tiles[0]]
        body = self.block(op.body)
        made = op.copy_with([self.lowered[value] for value in op.tiles], [body], ())
        dtypes = [value.tile.dtype for value in op.tiles]
        if isinstance(op, Scan):
            natural, size = source, scan_bytes(dtypes, source)
        else:
            natural, size = source.collapse(op.axis).drop(op.axis), fold_bytes(dtypes, source, op.axis)
        names = {"source": self.layout_name(source)}
        if natural.rank:
            names["layout"] = self.layout_name(natural)
        self.in_shared(made, size, **names)
        for old, new in zip(op.results, made.results, strict=True):
            self.place(old, new, natural)

    def _put_together(self, op: Cat | Extract) -> None:
        """Tiles side by side, or a part of one: through shared memory."""
        made = op.copy_with([self.lowered[value] for value in op.operands], (), ())
        layout = self.layout_name(self.placement[op.result])
        if isinstance(op, Cat):
            source: Any = tuple(self.layout_name(self.placement[value]) for value in (op.x, op.y))
            size = op.result.tile.size * op.result.tile.dtype.bits // 8
        else:
            source = self.layout_name(self.placement[op.x])
            size = move_bytes(op.x.tile.dtype, self.placement[op.x])
        self.in_shared(made, size, source=source, layout=layout)
        self.place(op.result, made.result, self.placement[op.result])

    def _mma(self, op: Mma) -> None:
        accumulator = self.placement.accumulator(op)
        left, right = self.placement[op.a], self.placement[op.b]
        acc = self.converted(self.lowered[op.acc], self.placement[op.acc], accumulator)
        made = op.copy_with([self.lowered[op.a], self.lowered[op.b], acc], (), ())
        size = product_bytes(op.a.tile.dtype, accumulator, op.a.tile.shape[-1])
        names = (self.layout_name(left), self.layout_name(right))
        self.in_shared(made, size, source=names, layout=self.layout_name(accumulator))
        self.place(op.result, made.result, accumulator)

    def _reshaped(self, op: Broadcast | Reshape | Permute) -> None:
        if not is_tile(op.x):
            made = op.copy_with([self.lowered[op.x]], (), ())
            made.attributes["how"] = "splat" if is_tile(op.result) else "keep"
            if is_tile(op.result):
                made.attributes["layout"] = self.layout_name(self.placement[op.result])
            self._finish(op, made)
            return
        source = self.placement[op.x]
        if not is_tile(op.result):  # every thread needs the one element
            everywhere = blocked(source.shape, self._warps)
            value = self.converted(self.lowered[op.x], source, everywhere)
            made = op.copy_with([value], (), ())
            made.attributes.update(how="first", source=self.layout_name(everywhere))
            self._finish(op, made)
            return
        target = self.placement[op.result]
        if isinstance(op, Broadcast):
            wanted = broadcast_source(op, target)
            made = op.copy_with([self.converted(self.lowered[op.x], source, wanted)], (), ())
            made.attributes.update(how="repeat", source=self.layout_name(wanted), layout=self.layout_name(target))
            self._finish(op, made)
            return
        if isinstance(op, Permute):
            natural: Layout | None = source.permute(op.axes)
        else:
            natural = same_but_ones(source, target.shape)
        made = op.copy_with([self.lowered[op.x]], (), ())
        names = {"source": self.layout_name(source), "layout": self.layout_name(natural or target)}
        if natural is not None:
            self.add(made, **names, how="keep")
        else:
            self.in_shared(made, move_bytes(op.x.tile.dtype, source), **names, how="move")
        self.place(op.result, made.result, natural or target)
