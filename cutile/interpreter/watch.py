"""Checks for faults that a GPU does not report.

They are races, reads of unwritten elements, accesses outside a tensor, and false identities.

Blocks run one after the other here, but nothing orders them on a device. So it is a race when two blocks use the same
element and one of them writes it, whatever their order here. It is none if both accesses are atomic, or if the second
block has acquired what the first one released. For each element and each kind of access, the last block and line are
remembered.

To find the elements of an access, the operation runs a second time: a load from a tensor of element numbers, or a store
of ones to a tensor of zeros. The elements of an access by address are looked up.

An identity of a fold must change no element: one target begins with it, another pads with it, a third never uses it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from cutile.backend.interface import Grid
from cutile.backend.reference.interpret import Walker, apply
from cutile.conversion import element
from cutile.errors import IdentityError, Location, OutOfBoundsError, RaceError, UninitialisedReadError
from cutile.interpreter.padding import Padding, Replaced
from cutile.ir import Effect, MutType, Op, TensorType, TileType, Value
from cutile.ops.atomic import AtomicCas, AtomicRmw
from cutile.ops.bound import CheckIndex, CheckTile
from cutile.ops.pointer import LoadPointer, StorePointer
from cutile.ops.reduce import Folding

# -- the last accesses of each element ------------------------------------------------------------
#
# Memory belongs to a tensor (`Elements`), or lies outside of all tensors (`RawMemory`). Both number elements from 0.

Array = np.ndarray[Any, Any]


class AccessKind(NamedTuple):
    """The kind of an access to an element.

    Attributes:
        writes: whether it writes.
        strong: whether its ordering is not WEAK; atomic updates are strong.
    """

    writes: bool
    strong: bool


NOBODY, SEVERAL = 0, -1  # in place of a block's number
ACCESS_KINDS = tuple(AccessKind(writes, strong) for strong in (False, True) for writes in (False, True))


class History(ABC):
    """The last access of each kind to each element.

    Attributes:
        blocks: by kind, for each element the number (from 1) of the block that made it; `NOBODY`; or `SEVERAL` blocks.
        places: by kind, for each element the line that made it, as an index into `Watch._places`.
    """

    def __init__(self, size: int) -> None:
        self.blocks: dict[AccessKind, Array] = {kind: np.zeros(size, np.int32) for kind in ACCESS_KINDS}
        self.places: dict[AccessKind, Array] = {kind: np.zeros(size, np.int32) for kind in ACCESS_KINDS}

    @abstractmethod
    def name(self, element: int, verb: str) -> str:
        """The element and its access as words: `'x' is read at (3,)`."""

    def remember(self, touched: Array, kind: AccessKind, block: int, place: int) -> None:
        """Note an access by a block."""
        blocks = self.blocks[kind]
        before = blocks[touched]
        blocks[touched] = np.where((before == NOBODY) | (before == block), block, SEVERAL)
        self.places[kind][touched] = place


class Elements(History):
    """The accesses of a tensor's elements.

    Args:
        tensor: the name of the tensor.
        array: the elements.
        written: one bool per element: whether it was ever written.
    """

    def __init__(self, tensor: str, array: Array, written: Array) -> None:
        super().__init__(array.size)
        self.tensor = tensor
        self.array = array
        self.written = written
        self._addresses: Array | None = None
        self._order: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self.array.shape

    def index(self, element: int) -> tuple[int, ...]:
        """The index of an element in the tensor."""
        return tuple(int(each) for each in np.unravel_index(element, self.shape))

    def name(self, element: int, verb: str) -> str:
        return f"{self.tensor!r} is {verb} at {self.index(element)}"

    def addresses_of(self, touched: Array) -> Array:
        """The addresses of elements."""
        return addresses(self.array)[touched]

    def at(self, where: Array) -> Array:
        """The elements that hold the bytes at these addresses; -1 for others."""
        if not self.array.size:
            return np.full(where.shape, -1, np.int64)
        if self._addresses is None or self._order is None:
            places = addresses(self.array)
            self._order = np.argsort(places, kind="stable")
            self._addresses = places[self._order]
        position = np.searchsorted(self._addresses, where, side="right") - 1
        nearest = np.maximum(position, 0)
        inside = (position >= 0) & (where < self._addresses[nearest] + self.array.itemsize)
        return np.where(inside, self._order[nearest], -1)


class RawMemory(History):
    """Memory outside of all tensors, reached by raw addresses; each is an element."""

    def __init__(self) -> None:
        super().__init__(0)
        self._numbers: dict[int, int] = {}
        self._addresses: list[int] = []

    def at(self, addresses: Sequence[int]) -> Array:
        """The numbers of the addresses; a new address gets the next number."""
        for address in addresses:
            if self._numbers.setdefault(address, len(self._addresses)) == len(self._addresses):
                self._addresses.append(address)
        missing = len(self._addresses) - self.blocks[ACCESS_KINDS[0]].size
        if missing > 0:
            # Twice as many as there are addresses, so that new addresses one by one take linear time.
            room = np.zeros(missing + len(self._addresses), np.int32)
            for table in (self.blocks, self.places):
                table.update({kind: np.append(table[kind], room) for kind in ACCESS_KINDS})
        return np.array([self._numbers[address] for address in addresses], np.int64)

    def name(self, element: int, verb: str) -> str:
        return f"the memory at {self._addresses[element]:#x} is {verb}"


def addresses(array: Array) -> Array:
    """The address of each element, in row-major order."""
    place = np.full((), array.__array_interface__["data"][0], np.int64)
    for extent, stride in zip(array.shape, array.strides, strict=True):
        place = place[..., None] + np.arange(extent, dtype=np.int64) * stride
    return place.ravel()


ByAddress = LoadPointer | StorePointer | AtomicRmw | AtomicCas

_VERBS = dict(zip(ACCESS_KINDS, ("read", "written", "read in an order", "written atomically"), strict=True))


class Watch:
    """Watches the memory of one launch.

    Args:
        arrays: the tensors, by the names of their parameters.
        written: by name, for tensors with elements that were never written: one bool per element, true for written
            ones. Writes update it.
    """

    def __init__(self, arrays: Mapping[str, Array], written: Mapping[str, Array]) -> None:
        self._places: list[Location | None] = []
        self._block = 1
        self._index: Grid = (0, 0, 0)
        self._blocks: list[Grid] = [(0, 0, 0)]  # by number, which begins with 1: the first entry is none
        self._elements = {
            name: Elements(name, array, written[name] if name in written else np.ones(array.size, np.bool_))
            for name, array in arrays.items()
            if array.ndim
        }
        self._raw_memory = RawMemory()
        self._outside: tuple[str, Array] | None = None
        """The tensor of the load that is about to run, and the mask of its padding."""
        self.padding = Padding()
        self._before: dict[int, int] = {}
        """By the number of another block: the last of its places that is ordered before this block's next access."""
        self._released: dict[int, dict[int, int]] = {}
        """By address: the entries that an acquire of the word there adds to `_before`."""

    def enter(self, index: Grid) -> None:
        """Begin the tile block at `index`."""
        self._index = index
        self._blocks.append(index)
        self._block = len(self._blocks) - 1
        self._before = {}
        self.padding.enter()

    def reach(
        self,
        tensor: str,
        shape: tuple[int, ...],
        index: Sequence[Array],
        mask: Array | None,
        what: str,
        *,
        every: bool,
        place: Location | None = None,
    ) -> None:
        """Check the indices of an access of single elements, one array for each axis.

        Raises:
            OutOfBoundsError: with `every`, an index is outside of the tensor; else, all of them are.
        """
        lanes = np.broadcast_shapes(*(each.shape for each in index), () if mask is None else mask.shape)
        places = [np.broadcast_to(each, lanes).astype(np.int64) for each in index]
        active = np.ones(lanes, np.bool_) if mask is None else np.broadcast_to(mask, lanes)
        inside = np.ones(lanes, np.bool_)
        for each, extent in zip(places, shape, strict=True):
            inside &= (each >= 0) & (each < extent)
        outside = active & ~inside
        if not outside.any() or (not every and (active & inside).any()):
            return
        first = tuple(int(each[outside][0]) for each in places)
        remedy = (
            "Mask what is not meant: mask=index < extent (and >= 0), or interpret(check=False) if it is to be dropped."
            if every
            else "Compare the index with the extent, or interpret(check=False) if reading padding is meant."
        )
        raise OutOfBoundsError(
            f"{what} of {tensor!r}, of shape {shape}, is at {first}, which is outside of it (tile block {self._index})",
            place,
            remedy,
        )

    def before(self, op: Op, walker: Walker) -> None:
        """Check an operation that is about to run.

        Raises:
            RaceError, UninitialisedReadError, OutOfBoundsError, IdentityError: with the places.
        """
        if isinstance(op, Folding):
            check_identity(op, walker)
        if op.effect_of is Effect.NONE or isinstance(op, CheckTile | CheckIndex):
            return  # a check touches no memory
        if isinstance(op, ByAddress):
            self._by_address(op, walker)
            return
        tensors = [each for each in op.operands if isinstance(each.type, TensorType | MutType)]
        for tensor in tensors:
            if op.effect_of in (Effect.READ, Effect.WRITE):
                self._access(op, tensor, walker)

    def after(self, op: Op, walker: Walker) -> None:
        """Look at an operation that has run.

        Warns:
            PaddingWarning: elements past a tensor's edge change the result of a reduction.
        """
        if op.effect_of is Effect.READ and self._outside is not None:
            self.padding.loaded(op, *self._outside)
        self._outside = None
        self.padding.after(op, walker)

    def _access(self, op: Op, tensor: Value, walker: Walker) -> None:
        array = walker.values[tensor]
        elements = self._elements.get(tensor.name)
        is_parameter = elements is not None and elements.array is array
        if elements is None or not is_parameter:  # a tensor that the kernel made of an address
            elements = Elements(tensor.name, array, np.ones(array.size, np.bool_))
        writes = op.effect_of is Effect.WRITE
        if writes:
            touched = _stored(op, tensor, elements, walker)
        else:
            touched, outside = _loaded(op, tensor, elements, walker)
            self._outside = tensor.name, outside
        if not touched.size:
            index: Any = getattr(op, "index", ())
            numbers = tuple(int(walker.values[each]) for each in index) if hasattr(index, "__len__") else ()
            at = f", at the tile index {numbers}" if numbers else ""
            raise OutOfBoundsError(
                f"this access of {tensor.name!r}, of shape {elements.shape}{at}, lies outside of it altogether "
                f"(tile block {self._index})",
                op.location,
                "Compare the index with ct.num_tiles, or interpret(check=False) if reading padding is meant.",
            )
        if is_parameter:
            self._touch(op, elements, touched, AccessKind(writes, strong=False), reads=not writes)
        else:
            where = elements.addresses_of(touched)
            self._touch_addresses(op, where, array.itemsize, AccessKind(writes, strong=False), reads=not writes)

    # -- accesses by address ----------------------------------------------------------------------

    def _by_address(self, op: ByAddress, walker: Walker) -> None:
        values = walker.values
        size = (op.pad if isinstance(op, LoadPointer) else op.value).tile.dtype.bits // 8
        where = np.asarray(values[op.pointers], np.uint64)[values[op.mask]].astype(np.int64).ravel()
        strong = op.order != "weak" and op.scope != "tile_block"  # the scope of one tile block orders no two blocks
        updates = isinstance(op, AtomicRmw | AtomicCas)
        if strong and op.order in ("acquire", "acq_rel"):
            for address in where.tolist():
                self._acquire(address)
        reads = isinstance(op, LoadPointer | AtomicCas) or (isinstance(op, AtomicRmw) and op.kind != "xchg")
        kind = AccessKind(not isinstance(op, LoadPointer), strong)
        self._touch_addresses(op, where, size, kind, reads=reads)
        if strong and not isinstance(op, LoadPointer):
            releases = op.order in ("release", "acq_rel")
            for address in where.tolist():
                self._release(address, releases=releases, keeps=updates)

    def _acquire(self, address: int) -> None:
        for block, place in self._released.get(address, {}).items():
            self._before[block] = max(place, self._before.get(block, -1))

    def _release(self, address: int, *, releases: bool, keeps: bool) -> None:
        """Note a strong write to the word at an address.

        Args:
            address: the address.
            releases: whether it is a release. An acquire of the word then orders this block's accesses so far.
            keeps: whether it is an update, which continues the release sequences of other blocks' writes to the word.
        """
        entries = dict(self._released.get(address, {})) if keeps else {}
        if releases:
            own_entries = {**self._before, self._block: len(self._places) - 1}
            for block, place in own_entries.items():
                entries[block] = max(place, entries.get(block, -1))
            self._places.append(None)  # so that the next access is at a later place, even if on the same line
        self._released[address] = entries

    def _touch_addresses(self, op: Op, where: Array, size: int, kind: AccessKind, *, reads: bool) -> None:
        """Check an access of `size` bytes at each address.

        At an address inside of a tensor it is an access of the tensor's elements.
        """
        for elements in self._elements.values():
            if not where.size:
                return
            step = min(size, elements.array.itemsize)
            parts = [elements.at(where + offset) for offset in range(0, size, step)]
            inside = np.concatenate(parts)
            inside = np.unique(inside[inside >= 0])
            if inside.size:
                self._touch(op, elements, inside, kind, reads=reads)
                where = where[parts[0] < 0]
        if where.size:
            self._touch(op, self._raw_memory, np.unique(self._raw_memory.at(where.tolist())), kind, reads=False)

    # -- faults of an access ----------------------------------------------------------------------

    def _touch(self, op: Op, history: History, touched: Array, kind: AccessKind, *, reads: bool) -> None:
        if reads and isinstance(history, Elements) and not history.written[touched].all():
            first = int(touched[~history.written[touched]][0])
            raise UninitialisedReadError(
                f"{history.name(first, 'read')}, which nothing has written (tile block {self._index})",
                op.location,
                "Fill the tensor first (api.zeros), or store before loading.",
            )
        for other in ACCESS_KINDS:
            if (kind.writes or other.writes) and not (kind.strong and other.strong):
                self._race(op, history, touched, kind, other)
        if not self._places or self._places[-1] != op.location:
            self._places.append(op.location)
        history.remember(touched, kind, self._block, len(self._places) - 1)
        if kind.writes and isinstance(history, Elements):
            history.written[touched] = True

    def _race(self, op: Op, history: History, touched: Array, kind: AccessKind, other: AccessKind) -> None:
        blocks, places = history.blocks[other][touched], history.places[other][touched]
        others = (blocks != NOBODY) & (blocks != self._block)
        if self._before and others.any():
            for block in np.unique(blocks[others]).tolist():
                others &= (blocks != block) | ~self._comes_after(block, places)
        if others.any():
            position = int(np.flatnonzero(others)[0])
            self._refuse(op, history, int(touched[position]), kind, other, int(blocks[position]), int(places[position]))

    def _comes_after(self, block: int, places: Array) -> Array:
        """Whether accesses of a block at these places are ordered before this block's.

        For `SEVERAL`, unknown blocks, the answer is whether all blocks that ran before this one are ordered before it.
        """
        if block == SEVERAL:
            return np.full(places.shape, all(each in self._before for each in range(1, self._block)))
        return places <= self._before.get(block, -1)

    def _refuse(
        self, op: Op, history: History, element: int, kind: AccessKind, other: AccessKind, block: int, place: int
    ) -> NoReturn:
        by = "another tile block" if block == SEVERAL else f"tile block {self._blocks[block]}"
        location, verb = self._places[place], _VERBS[other]
        source_line = f"\n{location.show()}" if location is not None else ""
        raise RaceError(
            f"{history.name(element, _VERBS[kind])} by tile block {self._index}, "
            f"and was {verb} by {by}; nothing orders the two on a device.\n"
            f"It was {verb} here:{source_line}\nand is {_VERBS[kind]} here:",
            op.location,
            "Let each element be written by one block, use atomics for all of its accesses, or split the work into two "
            "launches.",
        )


def _loaded(op: Op, tensor: Value, elements: Elements, walker: Walker) -> tuple[Array, Array]:
    """The elements that a load reads, and the mask of its tile's padding.

    The elements are numbered from 1 here, so that padding by 0 is no element's number.
    """
    numbers = np.arange(1, elements.written.size + 1, dtype=np.float64).reshape(elements.shape)
    (numbers_loaded, *_) = walker.with_values(Replaced(walker.values, {tensor: numbers})).operation(op)
    taken = np.asarray(numbers_loaded, np.float64)
    inside = np.isfinite(taken) & (taken >= 1)
    return taken[inside].ravel().astype(np.int64) - 1, ~inside


def _stored(op: Op, tensor: Value, elements: Elements, walker: Walker) -> Array:
    """The elements that a store writes."""
    marks = np.zeros(elements.shape, np.float64)
    ones = {
        value: np.ones(value.type.shape, np.float64)
        for name, _, value in op.operand_fields()
        if name == "value" and isinstance(value.type, TileType)
    }
    walker.with_values(Replaced(walker.values, {tensor: marks, **ones})).operation(op)
    return np.flatnonzero(marks)


_MAX_ROUNDING = 1e-2
"""Tolerance for functions that round, relative to the largest element. A false identity is mostly off by more."""


def check_identity(op: Folding, walker: Walker) -> None:
    """Check a fold that is about to run on the elements that it has.

    Raises:
        IdentityError: with an element that the identity changes.
    """
    elements = [np.asarray(walker.values[tile]) for tile in op.tiles]
    pairs = zip(op.tiles, op.identities, strict=True)
    identities = [np.full(tile.tile.shape, element(identity, tile.tile.dtype)) for tile, identity in pairs]
    for left, right in ((identities, elements), (elements, identities)):
        for number, (got, expected) in enumerate(zip(apply(op.body, [*left, *right]), elements, strict=True)):
            differs = ~_alike(got, expected)
            if differs.any():
                index = tuple(axis[0] for axis in np.nonzero(differs))
                _refuse(op, number, identities_first=left is identities, element=expected[index], result=got[index])


def _alike(got: Array, expected: Array) -> Array:
    if expected.dtype.kind in "biu":
        return np.asarray(got == expected)
    x, y = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    largest = np.max(np.abs(y), where=np.isfinite(y), initial=0)
    return np.isclose(x, y, rtol=0, atol=_MAX_ROUNDING * largest, equal_nan=True)


def _refuse(op: Folding, number: int, *, identities_first: bool, element: Any, result: Any) -> None:
    identity = op.identities[0] if len(op.identities) == 1 else op.identities
    order = "(identity, element)" if identities_first else "(element, identity)"
    which = "" if len(op.identities) == 1 else f" of tile {number}"
    raise IdentityError(
        f"{op.name}: {identity!r} is no identity of the function: of the element {element}{which}, "
        f"function{order} makes {result}",
        op.location,
        "Give the number that changes nothing: 0 for a sum, 1 for a product, -f32.inf for a maximum.",
    )
