"""Stream compaction: stores of a tile's selected elements side by side.

They pass through shared memory.

    %places = scan(%ones, add)                      # of the mask: the number of selected elements up to each
    %index = sub(add(broadcast(%before), %places), 1)
    store_pointer(address(%y) + %index * size, %value, %mask & inside)
-->
    cuda.compact(%value, %mask)                     # where the scan was
    cuda.store_compacted(%base, %first, %limit)

A thread holds neighbours of the tile. Each of its stores would write a part of a sector, and its next store another
part of the same sector. So the selected elements are put together in shared memory first; then neighbouring lanes store
neighbours.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cutile.backend.cuda.lowering_context import LoweringContext
from cutile.backend.cuda.ops.memory import Barrier, Compact, StoreCompacted
from cutile.backend.gpu.layout import LANE_BITS, Layout
from cutile.backend.gpu.layout_assignment import is_tile
from cutile.dtypes import DTypeLike, bool_, i32, i64
from cutile.ir import Constant, Op, Value, Yield
from cutile.ops.arith import Add, And, Mul, Sub
from cutile.ops.cast import Convert
from cutile.ops.compare import Ge, Lt
from cutile.ops.pointer import StorePointer
from cutile.ops.reduce import Scan
from cutile.ops.shape import Broadcast

MAX_BYTES = 1 << 16
"""Bytes of a tile in shared memory at most: a multiprocessor then still holds three thread blocks."""

MAX_TERMS = 64
"""Terms of an index that are looked at. A chain of `n` sums `a = a + (a + b)` has as many as 2 to the power of `n`."""

LANES = 1 << LANE_BITS
Definitions = Mapping[Value, Op]


@dataclass(frozen=True)
class Compaction:
    """A store that puts the selected elements side by side, in their order.

    Attributes:
        base: the address of element 0.
        scalars: scalars that are added to `places` and `constant` for an element's index.
        constant: the constant part of the index.
        limit: the first index past the tensor's elements.
        places: for each element, the number of selected elements up to it, itself included.
        mask: whether each element is selected.
    """

    base: Value
    scalars: tuple[Value, ...]
    constant: int
    limit: Value
    places: Value
    mask: Value


def compaction_of(op: StorePointer, definitions: Definitions) -> Compaction | None:
    """The compaction that a store makes; None where none is recognised."""
    size = op.value.tile.dtype.bits // 8
    if op.order != "weak" or len(op.value.tile.shape) != 1 or op.value.tile.size * size > MAX_BYTES or not size:
        return None
    address = definitions.get(op.pointers)
    if not isinstance(address, Add):
        return None
    for base, offset in ((address.x, address.y), (address.y, address.x)):
        start, index = _scalar(base, definitions), _scaled(offset, size, definitions)
        if start is not None and index is not None:
            return _of_index(op, start, index, definitions)
    return None


def _of_index(op: StorePointer, base: Value, index: Value, definitions: Definitions) -> Compaction | None:
    """The compaction of a store to `base` at an index of each element, or None."""
    scalars: list[Value] = []
    places: list[Value] = []
    constant = 0
    for sign, term in _terms(index, definitions):
        definition = definitions.get(term)
        scalar = _scalar(term, definitions)
        if isinstance(definition, Constant):
            constant += sign * int(definition.value)
        elif scalar is not None and sign > 0:
            scalars.append(scalar)
        elif isinstance(definition, Scan) and sign > 0:
            places.append(term)
        else:
            return None
    if len(places) != 1 or index.tile.dtype not in (i32, i64) or places[0].tile.dtype is not index.tile.dtype:
        return None
    mask = _counted(places[0], definitions)
    limit = None if mask is None else _limit(op.mask, mask, index, definitions)
    if mask is None or limit is None:
        return None
    return Compaction(base, tuple(scalars), constant, limit, places[0], mask)


def _scalar(tile: Value, definitions: Definitions) -> Value | None:
    """The scalar that a tile repeats, or None."""
    op = definitions.get(tile)
    return op.x if isinstance(op, Broadcast) and not is_tile(op.x) else None


def _scaled(tile: Value, size: int, definitions: Definitions) -> Value | None:
    """The index, before its conversion, of a tile of indices times `size`.

    None for any other tile. The product may be converted, too.
    """
    tile = _unconverted(tile, definitions)  # addresses are u64
    if size > 1:
        product = definitions.get(tile)
        if not isinstance(product, Mul):
            return None
        factor = definitions.get(product.y)
        if not isinstance(factor, Constant) or factor.value != size:
            return None
        tile = product.x
    return _unconverted(tile, definitions)


def _terms(tile: Value, definitions: Definitions) -> list[tuple[int, Value]]:
    """The terms of a sum with their signs; none of a sum of more than `MAX_TERMS`."""
    terms: list[tuple[int, Value]] = []
    pending = [(1, tile)]
    while pending and len(terms) <= MAX_TERMS:
        sign, value = pending.pop()
        op = definitions.get(value)
        if isinstance(op, Add | Sub):
            pending += [(sign if isinstance(op, Add) else -sign, op.y), (sign, op.x)]
        else:
            terms.append((sign, value))
    return terms if len(terms) <= MAX_TERMS else []


def _counted(places: Value, definitions: Definitions) -> Value | None:
    """The mask whose selected elements a running sum counts; None for any other scan."""
    scan = definitions.get(places)
    if not isinstance(scan, Scan) or len(scan.tiles) != 1 or scan.reverse or tuple(scan.identities) != (0,):
        return None
    ones = definitions.get(scan.tiles[0])
    if len(scan.body.operations) != 2:  # fewer: a function that returns one of its arguments
        return None
    add, end = scan.body.operations
    if not isinstance(add, Add) or not isinstance(end, Yield) or set(add.operands) != set(scan.body.arguments):
        return None
    return ones.x if isinstance(ones, Convert) and ones.x.tile.dtype is bool_ else None


def _limit(mask: Value, counted: Value, index: Value, definitions: Definitions) -> Value | None:
    """The extent below which selected elements are stored.

    None where the mask has further conditions.
    """
    parts = set(conjuncts(mask, definitions))
    own = set(conjuncts(counted, definitions))
    limits: list[Value] = []
    above_zero = False
    if not own <= parts:
        return None
    for part in parts - own:
        test = definitions.get(part)
        if not isinstance(test, Lt | Ge) or _unconverted(test.x, definitions) is not index:
            return None
        other, scalar = definitions.get(test.y), _scalar(test.y, definitions)
        if isinstance(test, Ge) and isinstance(other, Constant) and other.value == 0:
            above_zero = True
        elif isinstance(test, Lt) and scalar is not None and scalar.tile.dtype is i64:  # as `StoreCompacted` takes it
            limits.append(scalar)
        else:
            return None
    return limits[0] if above_zero and len(limits) == 1 else None


def _unconverted(tile: Value, definitions: Definitions) -> Value:
    """The operand of the conversion that makes a tile; the tile itself if none does."""
    op = definitions.get(tile)
    return op.x if isinstance(op, Convert) else tile


def conjuncts(mask: Value, definitions: Definitions) -> Iterator[Value]:
    """The terms of a conjunction, each once.

    A value that was seen is skipped: a chain of `n` masks `a = a & (a & b)` has as many paths as 2 to the power of `n`.
    """
    pending, seen = [mask], {mask}
    while pending:
        value = pending.pop()
        op = definitions.get(value)
        if not isinstance(op, And):
            yield value
            continue
        parts = [part for part in dict.fromkeys((op.y, op.x)) if part not in seen]
        pending += parts
        seen.update(parts)


class Compactions:
    """Lowers the stores of one kernel that compact.

    Elements are put together right after the scan that counts them, if they are computed ahead of it. Then no thread
    holds them while it waits for the totals of the thread blocks before.

    Args:
        context: the lowering of the kernel.
    """

    def __init__(self, context: LoweringContext) -> None:
        self._context = context
        stores = _compactions(context.function.body.operations, context.definitions)
        self._known = {op: facts for op, facts in stores if _in_order(context.layouts[op.value])}
        self._early: dict[Value, list[StorePointer]] = {}
        for op, (compaction, early) in self._known.items():
            if early:
                self._early.setdefault(compaction.places, []).append(op)
        self._offsets: dict[StorePointer, int] = {}  # in shared memory, in bytes

    def lowered(self, op: Op) -> None:
        """Put elements together after a lowered operation, if it counts them."""
        for store in self._early.get(op.results[0], ()) if isinstance(op, Scan) else ():
            self._compact(store)

    def lower(self, op: Op) -> bool:
        """Lower an operation, if it is a store that compacts; return whether it is."""
        if not isinstance(op, StorePointer) or op not in self._known:
            return False
        if op.ordered:  # all threads first have to make their earlier accesses
            self._context.builder.add(Barrier())
        if op not in self._offsets:
            self._compact(op)
        compaction, context = self._known[op][0], self._context
        # In the index's own dtype, so that it wraps as the user's does. Places count from 1.
        first = context.builder.constant(compaction.constant + 1, compaction.places.tile.dtype)
        for scalar in compaction.scalars:
            first = context.builder.value(Add(x=first, y=context.lowered[scalar]))
        store = StoreCompacted(
            base=context.lowered[compaction.base],
            first=first,
            limit=context.lowered[compaction.limit],
            dtype=op.value.tile.dtype,
            extent=op.value.tile.size,
        )
        context.add(store, threads=context.warps * 32, counts=_counts(context.layouts[op.value]))
        context.smem.share(store, self._offsets[op])
        return True

    def _compact(self, op: StorePointer) -> None:
        compaction, context = self._known[op][0], self._context
        layout = context.layouts[op.value]
        tiles = [
            context.converted(context.lowered[tile], context.layouts[tile], layout)
            for tile in (op.value, compaction.mask)
        ]
        # After the elements lie the counts and their total, words of 4 bytes.
        size = room(op.value.tile.dtype, op.value.tile.size) + 4 * (_counts(layout) + 1)
        self._offsets[op] = context.smem.reserve(size)
        compact = Compact(value=tiles[0], mask=tiles[1])
        # The memory is this store's own, so only its previous run in a loop may still read it.
        context.add(compact, lanes=context.layout_name(layout), fence=context.loops > 0)
        context.smem.share(compact, self._offsets[op])


def _in_order(layout: Layout) -> bool:
    """Whether elements lie vector by vector, lane by lane, warp by warp.

    The second vectors of all warps follow the first vectors of all warps, and so on.

    False if several threads hold an element, as in a tile smaller than one vector of each thread: with 256 threads,
    2048 elements of f16, in vectors of 8, may be in order, but 1024 are not. Also False if the layout reaches past the
    tile's end: `Compact` would count the registers there.
    """
    vector, threads = layout.vector(0), layout.threads
    offsets = [(register % vector) + register // vector * vector * threads for register in range(layout.registers)]
    lanes = [vector << bit for bit in range(LANE_BITS)]
    warps = [vector * LANES << bit for bit in range(len(layout.warp))]
    bases = [basis[0] for basis in (*layout.lane, *layout.warp)]
    in_order = [offset[0] for offset in layout.offsets] == offsets and bases == [*lanes, *warps]
    return in_order and layout.cover == layout.shape


def _counts(layout: Layout) -> int:
    """Counts of a thread block: one for each warp and each vector of a lane."""
    return layout.registers // layout.vector(0) * layout.warps


def room(dtype: DTypeLike, extent: int) -> int:
    """Bytes of shared memory of a tile whose selected elements are put side by side.

    A multiple of 16.
    """
    return -(-extent * dtype.bits // 8 // 16) * 16


def _compactions(
    operations: Sequence[Op], definitions: Definitions
) -> Iterator[tuple[StorePointer, tuple[Compaction, bool]]]:
    """The stores that compact, each with its compaction.

    With each is also whether its elements are computed ahead of the scan that counts them.
    """
    positions = {op: position for position, op in enumerate(operations)}
    for op in operations:
        for region in op.regions:
            yield from _compactions(region.operations, definitions)
        if isinstance(op, StorePointer) and (compaction := compaction_of(op, definitions)):
            scan = positions.get(definitions[compaction.places])
            # A value that this block does not define is computed ahead of all its operations: -1.
            makers = [definitions.get(tile) for tile in (op.value, compaction.mask)]
            needed = [-1 if maker is None else positions.get(maker, -1) for maker in makers]
            yield op, (compaction, scan is not None and max(needed) < scan)
