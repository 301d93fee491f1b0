"""`interleaved`: kernels that load operands of few tensors, and multiply them in another order and in other blocks.

    t_1 = ct.load_tile(x0, (128, 64), (i, 2))                        held over the loop, which loads of the same tensors
    t_2 = ct.load_tile(x1, (64, 128), (1, j))
    p_3 = ct.mma(ct.load_tile(x0, (128, 64), (i, 0)), t_2, ct.constant(0, (128, 128), ct.f32))
    for k in range(m):
        acc_0 = ct.mma(ct.load_tile(x0, (128, 64), (i, k)), ct.load_tile(x1, (64, 128), (k, j)), acc_0)
    acc_0 = ct.mma(t_1, t_2, acc_0)
    acc_0 = acc_0 + p_3 * -3

Statements, and numbers that make every sum exact, are those of `loops`. There a statement loads what it multiplies.
Here a load is a statement of its own, and so is the use of a product's sums. Each may stand in any block from which
what it needs is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from cutile.dtypes import DTypeLike, bf16, f8e4m3fn, f16, f32, i8, tf32
from tests.properties.generator.kernel import RandomKernel
from tests.properties.generator.loops import MANY, Loops, Operand, Place, Sums, kernel_of

ROWS = (128, 64, 128, 64, 128, 64, 128, 256, 192, 32)
COLUMNS = (64, 64, 32, 128, 64, 64, 128, 96, 192)
DEPTHS = (64, 64, 32, 64, 128, 64, 256, 16)
DTYPES: tuple[DTypeLike, ...] = (*(bf16, f16, bf16, f16, f8e4m3fn, tf32, i8) * 3, f32)
FLOATS: tuple[DTypeLike, ...] = (bf16, f16, bf16, f16, f8e4m3fn, tf32)
"""What else is multiplied in a kernel of floats."""
SCALES = (1, 2, -3)
Key = tuple[DTypeLike, tuple[int, int], int]
"""The dtype of an operand, its shape as a product takes it, and its axis along which products add up."""


@dataclass(frozen=True)
class Loaded:
    """A tile that has a name.

    Attributes:
        name: of the variable.
        dtype: of the product.
        shape: as a product takes it.
        k_axis: its axis along which products add up.
    """

    name: str
    dtype: DTypeLike
    shape: tuple[int, int]
    k_axis: int


@dataclass
class Interleaved(Loops):
    """A kernel as it is drawn.

    Attributes:
        kinds: a dtype and a depth for each kind of product.
        known: the operands so far.
        seen: tiles that a statement may take.
        unused: those of them that none has taken yet.
        fresh: sums of products that begin at zero, which are to be added to others.
    """

    kinds: Sequence[tuple[DTypeLike, int]] = ()
    known: dict[Key, list[Operand]] = field(default_factory=dict[Key, list[Operand]])
    seen: list[Loaded] = field(default_factory=list[Loaded])
    unused: list[Loaded] = field(default_factory=list[Loaded])
    fresh: list[Sums] = field(default_factory=list[Sums])

    def operand(self, shape: tuple[int, int], index: tuple[str, str], k_axis: int) -> Operand:
        """A tile of one of two tensors at most for each shape, dtype and axis."""
        operands = self.known.setdefault((self.dtype, shape, k_axis), [])
        if not operands or (len(operands) == 1 and self.rarely()):
            operands.append(super().operand(shape, index, k_axis))
            return operands[-1]
        operand = self.pick(operands)
        return replace(operand, at=(index[1], index[0]) if operand.turned else index)

    def load(self, shape: tuple[int, int], index: tuple[str, str], k_axis: int, place: Place) -> str:
        """A tile that is there already, or a load."""
        fitting = [each for each in self.seen if (each.dtype, each.shape, each.k_axis) == (self.dtype, shape, k_axis)]
        if fitting and "@" not in index and self.rarely(2 + place.deep):
            unused = [tile for tile in fitting if tile in self.unused]
            tile = self.pick(unused if unused and not self.rarely() else fitting)
            self.unused = [each for each in self.unused if each is not tile]
            return tile.name
        return super().load(shape, index, k_axis, place)

    def loaded(self, operand: Operand, place: Place) -> str:
        """The load of an operand; in a form that checks its index, where that is within the tensor."""
        return super().loaded(operand, replace(place, inside=place.inside and not {"1", "2"}.intersection(operand.at)))

    def along_k(self, place: Place) -> str:
        """An index along K; it may lie past the edge, where elements are zero."""
        return super().along_k(place) if place.k is not None and not self.rarely() else self.pick(("0", "1", "2"))

    # Statements.

    def hold(self, place: Place) -> list[str]:
        """A load whose use comes later."""
        return self.held(self.rarely(2), self.along_k(place), place)

    def pair(self, place: Place) -> list[str]:
        """Loads of both operands, in either order."""
        along, left_first = self.along_k(place), self.rarely(2)
        return [*self.held(left_first, along, place), *self.held(not left_first, along, place)]

    def held(self, left: bool, along: str, place: Place) -> list[str]:
        """The load of a left or right operand at a place along K."""
        columns = self.pick(self.sums).columns
        shape, index, k_axis = ((self.depth, columns), (along, "j"), 0)
        if left:
            shape, index, k_axis = ((self.rows, self.depth), ("i", along), 1)
        tile = Loaded(self.name("t"), self.dtype, shape, k_axis)
        self.seen.append(tile)
        self.unused.append(tile)
        return [f"{tile.name} = {self.loaded(self.operand(shape, index, k_axis), replace(place, inside=False))}"]

    def over(self, place: Place) -> list[str]:
        """Loads of both operands, a loop, and their product."""
        lines = self.pair(place)
        self.left -= 1  # it is kept for behind the loop
        lines += self.loop(place)
        self.left += 1
        left, right = sorted(self.seen[-2:], key=lambda tile: -tile.k_axis)
        self.unused = [tile for tile in self.unused if tile is not left and tile is not right]
        acc = self.pick([acc for acc in self.sums if acc.columns == right.shape[1]])
        self.dtype = left.dtype
        return [*lines, f"{acc.name} = {self.mma(left.name, right.name, acc.name)}"]

    def begin(self, place: Place) -> list[str]:
        """A product that begins at zero."""
        sums = Sums(self.name("p"), self.pick(self.sums).columns)
        left = self.loaded_left(self.depth, place)
        product = self.mma(left, self.right(self.depth, sums.columns, place), self.zeros(sums.columns))
        self.fresh.append(sums)
        return [f"{sums.name} = {product}"]

    def end(self, place: Place) -> list[str]:
        """The use of a product that began at zero: it is added, or multiplied."""
        if not self.fresh:
            return self.begin(place)
        sums = self.pick(self.fresh)
        self.fresh = [each for each in self.fresh if each is not sums]
        return self.added_to(sums, place)

    def added_to(self, sums: Sums, place: Place) -> list[str]:
        """Sums, added to others with as many columns, or multiplied."""
        if self.left > 0 and self.dtype in (bf16, f16) and self.rarely(6):
            acc = self.pick(self.sums)
            left = self.brought_back(sums.name, sums.columns)
            return [f"{acc.name} = {self.mma(left, self.right(sums.columns, acc.columns, place), acc.name)}"]
        acc = self.pick([acc for acc in self.sums if acc.columns == sums.columns])
        return [f"{acc.name} = {acc.name} + {sums.name} * {self.pick(SCALES)}"]

    def used(self, tile: Loaded, place: Place) -> list[str]:
        """A product of a tile that none has taken."""
        self.dtype, self.depth = tile.dtype, tile.shape[tile.k_axis]
        acc = self.pick([acc for acc in self.sums if tile.k_axis == 1 or acc.columns == tile.shape[1]])
        left = tile.name if tile.k_axis == 1 else self.loaded_left(self.depth, place)
        right = tile.name if tile.k_axis == 0 else self.right(self.depth, acc.columns, place)
        if self.rarely(2):
            return [f"{acc.name} = {self.mma(left, right, acc.name)}"]
        self.fresh.append(Sums(self.name("p"), acc.columns))
        return [f"{self.fresh[-1].name} = {self.mma(left, right, self.zeros(acc.columns))}"]

    def block(self, place: Place) -> list[str]:
        """Statements in any order, and the uses that are left."""
        seen, unused, fresh = [*self.seen], [*self.unused], [*self.fresh]
        lines: list[str] = []
        for _ in range(self.pick((2, 3, 4, 5) if place.deep == 0 else (1, 2, 3))):
            if self.left > 0:
                lines += self.statement(place)
        while own := [tile for tile in self.unused if tile not in unused]:
            tile = self.pick(own)
            self.unused = [each for each in self.unused if each is not tile]
            if not self.rarely(6):
                lines += self.used(tile, place)
        while own := [sums for sums in self.fresh if sums not in fresh]:
            sums = self.pick(own)
            self.fresh = [each for each in self.fresh if each is not sums]
            lines += self.added_to(sums, place)
        # What an inner block has taken stays to be used, too: the block may not run.
        self.seen, self.unused, self.fresh = seen, unused, fresh
        return lines or self.touch(place)

    def statement(self, place: Place) -> list[str]:
        """A load, a product, a use, or a statement of `loops`."""
        self.dtype, self.depth = self.pick(self.kinds)
        own: list[Callable[[Place], list[str]]] = [self.hold, self.pair, self.begin, self.begin, self.end, self.add]
        own += [self.steps] if self.left > 1 else []
        deeper = [self.loop, self.over, self.branch] if place.deep < 2 else []
        return self.pick((*own, *deeper, super().statement))(place)


@st.composite
def interleaved(draw: st.DrawFn) -> RandomKernel:
    """A kernel of products whose operands and sums are used in any order."""
    d = Interleaved(draw, bf16, 0, 0, False, (1, 1), 1, False)
    d.dtype, d.turns, many = d.pick(DTYPES), d.pick((1, 2, 3, 5)), d.rarely(8)
    d.batched, d.tiles, d.left = d.rarely(6), (d.pick((1, 2)), d.pick((1, 2))), d.pick((3, 5, 7))
    d.rows, columns, depths = d.pick(ROWS), COLUMNS, DEPTHS
    if many:
        d.rows, d.tiles, columns, depths = min(d.rows, 64), (MANY, 1), (64,), (64, 32)
    others = (d.dtype,) if d.dtype is i8 else (d.dtype, *FLOATS)
    dtypes = (d.dtype, *([d.pick(others)] if d.rarely() else []))
    d.kinds = [(dtype, max(d.pick(depths), 32 if dtype.bits == 8 else 16)) for dtype in dtypes]
    stream = None
    if not d.batched and d.rarely(8):
        stream = ((d.pick((1, 2)), d.pick((1, 2))), min(d.pick((1, 2, 3)), d.tiles[0] * d.tiles[1]))
    widths = [d.pick(columns)]
    if stream is None and d.rarely(2):
        widths.append(d.pick((widths[0], widths[0], *columns)))
    d.sums = [Sums(f"acc_{number}", width) for number, width in enumerate(widths)]
    lines = d.block(Place())
    return kernel_of(d, lines, stream if d.added is None else None)  # what is added to memory has a grid of its own
