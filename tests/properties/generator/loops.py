"""`loops`: kernels of one to four matrix products in loops, branches and nests, exact on every backend.

    acc_0 = ct.constant(0, (128, 64), ct.f32)                    the first product's left operand stays the same,
    t_1 = ct.load_tile(x0, (128, 64), (i, 0))                    the second one's is computed from its sums
    for k in range(n):
        s_2 = ct.mma(t_1, ct.load_tile(x1, (64, 96), (0, k)), ct.constant(0, (128, 96), ct.f32))
        acc_0 = ct.mma(ct.convert_tile(ct.select(s_2 > 0, ...), ct.bf16), ct.load_tile(x2, (96, 64), (k, j)), acc_0)

Elements are whole numbers from -2 to 2, and what a product takes of another one's sums is brought back to such numbers.
Every sum is then exact, in whatever order it is added up: results are compared to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from hypothesis import strategies as st

from cutile.dtypes import DTypeLike, bf16, f8e4m3fn, f16, f32, i8, i32, tf32
from tests.properties.generator.arguments import Input, Layout, Output, Scalar
from tests.properties.generator.kernel import RandomKernel

T = TypeVar("T")
OPERANDS: tuple[DTypeLike, ...] = (*(bf16, f16) * 5, tf32, f8e4m3fn, i8, f32)
"""What products are of. f32 is exact; tf32 is f32 in memory."""
ALONG_K = (tf32, f8e4m3fn, i8)
"""Those whose operands the tensor cores want to be contiguous along K."""
ROWS = (128, 64, 192, 256, 128, 64, 128, 64, 192, 32)
COLUMNS = (64, 128, 96, 192, 64, 128, 256, 32)
DEPTHS = (64, 32, 128, 16)
CUTS = (0, 0, 8, 16, 40, 5)
"""By how many elements an extent is less than whole tiles."""
MANY = 150
"""More tile blocks than an H200 has multiprocessors: some thread blocks take two."""
MAX_PRODUCTS = 4
NUMBERS = ("n > 1", "n > 3", "m > 0", "i % 2 == 0", "i + j > 1")
"""Conditions, of numbers that a launch or a tile block knows; with `k`, that an iteration knows."""


@dataclass(frozen=True)
class Sums:
    """A tile that products are added up in."""

    name: str
    columns: int


@dataclass(frozen=True)
class Operand:
    """A tile of a tensor in memory.

    Attributes:
        tensor: the argument's name.
        dtype: of the product.
        tile: its shape in memory.
        at: its index in memory.
        turned: whether it is transposed once it is loaded.
    """

    tensor: str
    dtype: DTypeLike
    tile: tuple[int, int]
    at: tuple[str, str]
    turned: bool


@dataclass(frozen=True)
class Place:
    """Where a statement stands.

    Attributes:
        k: the index of the loop around; None outside of loops.
        inside: whether tensors have a tile of that index.
        deep: loops and branches around.
        counter: a variable of the loop around that counts its iterations; None without one.
    """

    k: str | None = None
    inside: bool = False
    deep: int = 0
    counter: str | None = None


@dataclass
class Loops:
    """A kernel as it is drawn.

    Attributes:
        draw: Hypothesis's.
        dtype: of the products' operands.
        rows, depth: of the tiles that are multiplied.
        batched: whether tensors have a leading axis, and tiles one element along it.
        tiles: of the result, along rows and columns.
        turns: tiles of the tensors along K.
        apart: whether rows of tensors may begin anywhere.
        tensors: the arguments that are read.
        sums: what products are added up in.
        added: what products are added to in memory, by any tile block; None for nothing.
        counted: what each tile block counts one up of, ahead of its products; None for nothing.
        most: the largest element of a row that all tile blocks read ahead of their products; empty for none.
        left: products that may still be drawn.
        names: of variables so far.
    """

    draw: st.DrawFn
    dtype: DTypeLike
    rows: int
    depth: int
    batched: bool
    tiles: tuple[int, int]
    turns: int
    apart: bool
    tensors: list[Input] = field(default_factory=list[Input])
    sums: list[Sums] = field(default_factory=list[Sums])
    added: Output | None = None
    counted: Output | None = None
    most: str = ""
    left: int = MAX_PRODUCTS
    names: int = 0

    def pick(self, choices: Sequence[T]) -> T:
        """One of these."""
        return self.draw(st.sampled_from(choices))

    def rarely(self, of: int = 4) -> bool:
        """True once in so many times."""
        return self.draw(st.integers(0, of - 1)) == of - 1

    def name(self, stem: str) -> str:
        """A variable that is new."""
        self.names += 1
        return f"{stem}_{self.names}"

    @property
    def stored(self) -> DTypeLike:
        """What operands are in memory."""
        return f32 if self.dtype is tf32 else self.dtype

    @property
    def total(self) -> DTypeLike:
        """What products add up to."""
        return i32 if self.dtype is i8 else f32

    def zeros(self, columns: int) -> str:
        """Sums of nothing."""
        return f"ct.constant(0, ({self.rows}, {columns}), ct.{self.total})"

    def mma(self, left: str, right: str, sums: str) -> str:
        """A product."""
        self.left -= 1
        fast = ", use_fast_acc=True" if self.dtype is f8e4m3fn and not self.rarely() else ""
        return f"ct.mma({left}, {right}, {sums}{fast})"

    # Operands.

    def load(self, shape: tuple[int, int], index: tuple[str, str], k_axis: int, place: Place) -> str:
        """A tile of a tensor, of one that is there already or of a new one."""
        return self.loaded(self.operand(shape, index, k_axis), place)

    def operand(self, shape: tuple[int, int], index: tuple[str, str], k_axis: int) -> Operand:
        """A tile of a tensor that is there already, or of a new one.

        `k_axis` is the tile's axis along which products add up, and along which tensors have `turns` tiles.
        """
        counts = [self.tiles[1 - k_axis]] * 2
        counts[k_axis] = self.turns
        turned = k_axis == 0 and not self.rarely(8) if self.dtype in ALONG_K else self.rarely()
        tile, at = ((shape[1], shape[0]), (index[1], index[0])) if turned else (shape, index)
        layout: Layout = self.pick(("rows", "rows", "rows", "inner"))
        if self.dtype in ALONG_K and turned != (k_axis == 0):
            layout = "columns"
        elif self.apart and self.rarely():
            layout = self.pick(("columns", "odd", "step"))
        extents = [
            max(t * (c - 1) + 1, t * c - self.pick(CUTS))
            for t, c in zip(tile, counts[::-1] if turned else counts, strict=True)
        ]
        if layout in ("rows", "columns") and not (self.apart and self.rarely()):  # rows begin at multiples of 16 bytes
            contiguous, vector = int(layout == "rows"), 128 // self.stored.bits
            extents[contiguous] = -(-extents[contiguous] // vector) * vector
        shape_in_memory = (*((2,) if self.batched else ()), *extents)
        known = [each for each in self.tensors if each.shape == shape_in_memory and each.dtype == self.stored]
        if known and not self.rarely(2):
            tensor = known[0]
        else:
            tensor = Input(f"x{len(self.tensors)}", self.stored, shape_in_memory, layout, small=True)
            self.tensors.append(tensor)
        return Operand(tensor.name, self.dtype, tile, at, turned)

    def loaded(self, operand: Operand, place: Place) -> str:
        """The load of an operand."""
        tile, at = operand.tile, operand.at
        whole = f"(1, {tile[0]}, {tile[1]}), (h, {at[0]}, {at[1]})" if self.batched else f"{tile}, ({at[0]}, {at[1]})"
        if place.inside and "+" not in whole and self.rarely():
            cut, where = whole.rsplit(", (", 1)
            hint = self.pick(("", ", 1", ", 2", ", 4", ", 8"))
            text = f"{operand.tensor}.partition({cut}).load{'_pipelined' if hint else ''}(({where}{hint})"
        else:
            text = f"ct.load_tile({operand.tensor}, {whole})"
        if self.batched:
            text = f"{text}.reshape({tile})"
        if operand.dtype is tf32:
            text = f"ct.convert_tile({text}, ct.tf32)"
        return f"{text}.transpose()" if operand.turned else text

    def loaded_left(self, depth: int, place: Place) -> str:
        """A left operand from memory: of the iteration's own place along K, or of one that stays the same."""
        return self.load((self.rows, depth), ("i", self.along_k(place)), 1, place)

    def right(self, depth: int, columns: int, place: Place) -> str:
        """A right operand."""
        return self.load((depth, columns), (self.along_k(place), self.pick(("j", "j", "j", "0"))), 0, place)

    def along_k(self, place: Place) -> str:
        """An index along K."""
        if place.k is None:
            return "0"
        counted = (place.counter,) * 4 if place.counter is not None else ()
        return self.pick((place.k, place.k, place.k, place.k, f"{place.k} + 1", "0", *counted))

    def brought_back(self, sums: str, columns: int) -> str:
        """What is computed of sums: whole numbers from -2 to 2, in the dtype of operands."""
        least = f"ct.min_tile(ct.max_tile({sums}, -2), 2)"
        form = self.pick((
            least,
            f"ct.select({sums} > 1, ct.constant(1, {sums}.shape, ct.{self.total}), {self.zeros(columns)})",
            f"ct.max_tile({sums} - ct.reduce_max({sums}, 1).reshape(({self.rows}, 1)), -2)",
            f"ct.select(ct.iota(({columns},)).reshape((1, {columns})) < 17 * n, {least}, {self.zeros(columns)})",
            f"ct.max_tile({sums} - ct.reduce_max({sums}, 0).reshape((1, {columns})), -2)",
            f"ct.min_tile(abs({sums}), 2)",
        ))  # fmt: skip
        made = form if self.dtype is not tf32 else f"ct.convert_tile({form}, ct.f32)"
        return f"ct.convert_tile({made}, ct.{self.dtype})"

    # Statements. Each returns lines; what it adds products to is one of `sums`.

    def add(self, place: Place) -> list[str]:
        """A product of two tiles from memory."""
        acc = self.pick(self.sums)
        left = self.loaded_left(self.depth, place)
        return [f"{acc.name} = {self.mma(left, self.right(self.depth, acc.columns, place), acc.name)}"]

    def share(self, place: Place) -> list[str]:
        """Two products of one left operand."""
        name = self.name("a")
        lines = [f"{name} = {self.loaded_left(self.depth, place)}"]
        for acc in (self.sums[0], self.sums[-1]):
            right = self.right(self.depth, acc.columns, place)
            lines.append(f"{acc.name} = {self.mma(name, right, acc.name)}")
        return lines

    def chain(self, place: Place) -> list[str]:
        """A product of what another one's sums become; what was added up before may fade, row by row."""
        acc, between = self.pick(self.sums), self.pick((64, 32, 128, 16))
        name, begin, before = self.name("s"), self.zeros(between), acc.name
        lines: list[str] = []
        if between == acc.columns and self.rarely(3):  # both products begin with one tile, and the sums are added here
            other, begin = self.sums[-1], f"t{name}"
            lines.append(f"{begin} = ct.convert_tile({self.loaded_left(between, place)}, ct.{self.total})")
            if other is not acc and other.columns == acc.columns:
                lines.append(f"{other.name} = {other.name} + {acc.name}")
            before = begin
        product = self.mma(self.loaded_left(self.depth, place), self.right(self.depth, between, place), begin)
        lines.append(f"{name} = {product}")
        if before == acc.name and self.rarely(3):
            fade = f"ct.reduce_max({name}, 1).reshape(({self.rows}, 1)) > {self.pick((0, 3, 20))}"
            row, less = f"({self.rows}, 1), ct.{self.total}", self.pick((-1, 0))
            lines.append(f"f{name} = ct.select({fade}, ct.constant({less}, {row}), ct.constant(1, {row}))")
            before = f"{acc.name} * f{name}"
        left = self.brought_back(name, between)
        return [*lines, f"{acc.name} = {self.mma(left, self.right(between, acc.columns, place), before)}"]

    def from_sums(self, place: Place) -> list[str]:
        """A product of what other sums are by now."""
        source, acc = self.sums[0], self.sums[-1]
        left = self.brought_back(source.name, source.columns)
        return [f"{acc.name} = {self.mma(left, self.right(source.columns, acc.columns, place), acc.name)}"]

    def computed(self, place: Place) -> list[str]:
        """A product of a left operand that is loaded and computed with."""
        acc, name = self.pick(self.sums), self.name("c")
        least = f"ct.max_tile(ct.convert_tile({name}, ct.{self.total}), -1)"
        left = f"ct.convert_tile({least}, ct.{self.dtype})"
        return [
            f"{name} = {self.loaded_left(self.depth, place)}",
            f"{acc.name} = {self.mma(left, self.right(self.depth, acc.columns, place), acc.name)}",
        ]

    def beside(self, place: Place) -> list[str]:
        """A product whose sums are added afterwards."""
        acc, name = self.pick(self.sums), self.name("s")
        left = self.loaded_left(self.depth, place)
        return [
            f"{name} = {self.mma(left, self.right(self.depth, acc.columns, place), self.zeros(acc.columns))}",
            f"{acc.name} = {acc.name} {self.pick(('+', '-'))} {name}",
        ]

    def rows_beside(self, place: Place) -> list[str]:
        """A product, and the sums of its left operand's rows."""
        acc, name = self.pick(self.sums), self.name("r")
        left = self.loaded_left(self.depth, place)
        row = f"ct.reduce_sum(ct.convert_tile({name}, ct.{self.total}), 1).reshape(({self.rows}, 1))"
        return [
            f"{name} = {left}",
            f"{acc.name} = {self.mma(name, self.right(self.depth, acc.columns, place), acc.name)}",
            f"{acc.name} = {acc.name} + {row}",
        ]

    def steady(self, place: Place) -> list[str]:
        """A loop of products with a left operand that was loaded ahead of it."""
        name, k = self.name("t"), f"k{place.deep}"
        inner = Place(k, False, place.deep + 1)
        lines = [f"{name} = {self.loaded_left(self.depth, place)}", f"for {k} in range({self.pick(('n', 'm', '2'))}):"]
        acc = self.pick(self.sums)
        return [*lines, f"    {acc.name} = {self.mma(name, self.right(self.depth, acc.columns, inner), acc.name)}"]

    def to_memory(self, place: Place) -> list[str]:
        """A loop of products that are added to memory, as they come; others may multiply the same rows."""
        rows, columns = self.rows, self.pick((64, 64, 128))
        (count, across), k, sums, right = self.tiles, f"k{place.deep}", self.name("g"), self.name("b")
        if self.added is None:
            shape, tile = (count * self.turns * rows, across * columns), (self.turns * rows, columns)
            self.added = Output("g", f32, shape, small=True, tile=tile)
        columns = self.added.tile[1]
        inner = Place(k, self.pick((True, True, False)), place.deep + 1)
        left, product = self.name("t"), self.name("p")
        load = self.load((self.depth, columns), (k, "j"), 0, inner)
        body = [f"{right} = {load}", f"{product} = {self.mma(left, right, self.zeros(columns))}"]
        same = [acc for acc in self.sums if acc.columns == columns]
        if self.left and same and self.rarely(2):
            body.append(f"{same[0].name} = {self.mma(left, right, same[0].name)}")
        where = k
        if self.rarely(6):
            self.tensors.append(Input(self.name("at"), i32, (64,), small=True))
            where = f"ct.gather({self.tensors[-1].name}, {k})"
        body.append(f"ct.atomic_red_view_tko({sums}, {product}, ({where}, j), ct.atomic.ADDF)")
        return [
            f"{left} = {self.loaded_left(self.depth, place)}",
            f"{sums} = g.partition_full_mut(({rows}, {columns}))",
            f"for {k} in range(n):",
            *(f"    {line}" for line in body),
        ]

    def steps(self, place: Place) -> list[str]:
        """Products of steps of K one after the other, whose sums are scaled and added beside the next one's product.

        Their operands may be loaded ahead of all of them, in any order.
        """
        acc, count = self.pick(self.sums), min(self.left, self.pick((2, 2, 3)))
        anywhere = replace(place, inside=False)  # the last step may lie past the edge
        left = self.load((self.rows, self.depth), ("i", "@"), 1, anywhere)
        right = self.load((self.depth, acc.columns), ("@", self.pick(("j", "j", "0"))), 0, anywhere)
        lines: list[str] = []
        scaled, loads, early = "", list[str](), self.rarely(2)
        for step in range(count):
            at = str(step) if place.k is None else f"{place.k} + {step}" if step else place.k
            operands = [left.replace("@", at), right.replace("@", at)]
            if early:
                names = [self.name("a"), self.name("b")]
                loads += [f"{name} = {text}" for name, text in zip(names, operands, strict=True)]
                operands = names
            name = self.name("p")
            lines += [
                f"{name} = {self.mma(operands[0], operands[1], self.zeros(acc.columns))}",
                *([scaled] if scaled else []),
            ]
            scaled = f"{acc.name} = {acc.name} + {name} * {self.pick((1, 2, -3))}"
        ahead: list[str] = []
        while loads:
            ahead.append(self.pick(loads))
            loads.remove(ahead[-1])
        return [*ahead, *lines, scaled]

    def ahead(self) -> list[str]:
        """What is done ahead of all products, with other tiles than theirs."""
        lines: list[str] = []
        if self.rarely(6):
            lead = ((2,), (1,)) if self.batched else ((), ())
            self.counted = Output("c", f32, (*lead[0], *self.tiles), small=True, tile=(*lead[1], 1, 1))
            lines.append("c.store(c.load() + 1)")
        if self.rarely(6):
            self.tensors.append(Input("r", f32, (1024,), small=True))
            self.most, length = "most", self.pick((1024, 64, 512))
            lines.append(f"most = ct.reduce_max(ct.load_tile(r, ({length},), (0,)), 0)")
        return lines

    def touch(self, place: Place) -> list[str]:
        """Something else that happens to sums."""
        acc = self.pick(self.sums)
        row = f"ct.reduce_max({acc.name}, 1).reshape(({self.rows}, 1))"
        step = self.pick(("{0} + 1", "-{0}", "ct.max_tile({0}, -9)", f"ct.min_tile({{0}}, {row} - 1)"))
        return [f"{acc.name} = {step.format(acc.name)}"]

    def loop(self, place: Place) -> list[str]:
        """A loop."""
        k = f"k{place.deep}" if place.deep else "k"
        inside = ("n", "n", "n", "1, n", "0, n, 2", "n // 2, n", "n - 1, -1, -1")
        unsigned, wide = ("ct.u32(m), ct.u32(n)", "ct.u32(n)"), ("ct.i64(n)", "ct.i64(m), ct.i64(n)")
        outside = ("m", "i % 3", "i % 3, n", "m, n", "2", "j, i % 3 + 1", *unsigned, *wide)
        bounds = self.pick((*inside, *outside))
        counter = self.name("q") if self.rarely(3) else None
        lines = self.block(Place(k, bounds in inside, place.deep + 1, counter))
        begin = [] if counter is None else [f"{counter} = ct.i32(0)"]
        lines += [] if counter is None else [f"{counter} = {counter} + 1"]
        return [*begin, f"for {k} in range({bounds}):", *(f"    {line}" for line in lines)]

    def branch(self, place: Place) -> list[str]:
        """A branch."""
        conditions = NUMBERS if place.k is None else (f"{place.k} > 0", f"{place.k} % 2 == 0", *NUMBERS)
        inner = replace(place, deep=place.deep + 1)
        lines = [f"if {self.pick(conditions)}:", *(f"    {line}" for line in self.block(inner))]
        if self.left and self.rarely():
            lines += ["else:", *(f"    {line}" for line in self.block(inner))]
        return lines

    def block(self, place: Place) -> list[str]:
        """One statement with products, and others as there are left."""
        lines: list[str] = []
        for first in (True, False, False):
            if self.left > 0 and (first or self.rarely(3)):
                lines += self.statement(place)
        return lines or self.touch(place)

    def statement(self, place: Place) -> list[str]:
        """A statement with a product."""
        simple: list[Callable[[Place], list[str]]] = [self.add, self.add, self.beside]
        if self.left > 1:
            simple += [self.share, self.share, self.steps]
        if self.left > 1 and (self.dtype in (bf16, f16) or self.rarely()):
            simple += [self.chain, self.chain, self.chain, self.chain, self.from_sums, self.from_sums]
        simple += [self.steady, self.steady, self.touch, self.computed, self.rows_beside]
        if self.dtype in (bf16, f16) and not self.batched:
            simple += [self.to_memory]
        deeper = [self.loop, self.branch] if place.deep < 3 else []
        return self.pick((*simple, *deeper))(place)


@st.composite
def loops(draw: st.DrawFn, operands: Sequence[DTypeLike] = OPERANDS) -> RandomKernel:
    """A kernel of one to three loops or branches of products, of one of some dtypes."""

    def pick(choices: Sequence[T]) -> T:
        return draw(st.sampled_from(choices))

    batched, turns, many = pick((False, False, True)), pick((1, 2, 3, 5)), pick((False,) * 7 + (True,))
    columns = COLUMNS
    tiles, apart = (pick((1, 2, 3)), pick((1, 2))), pick((False,) * 9 + (True,))
    d = Loops(draw, pick(operands), pick(ROWS), pick(DEPTHS), batched, (MANY, 1) if many else tiles, turns, apart)
    if many:
        d.rows, d.depth, columns = min(d.rows, 64), min(d.depth, 64), (64,)
    if d.dtype in (f8e4m3fn, i8):
        d.depth = max(d.depth, 32)
    names = ("acc_0", "acc_1")[: pick((1, 2))]
    d.sums = [Sums(name, pick(columns)) for name in names]
    lines = d.ahead()
    for number in range(3):
        if d.left > 0 and (number == 0 or d.rarely(3)):
            safe = (d.loop, d.loop, d.loop, d.loop, d.loop, d.branch, d.branch, d.steady, d.steady, d.add, d.steps)
            memory = (d.to_memory,) if d.dtype in (bf16, f16) and not batched else ()
            lines += pick((*safe, *memory))(Place())
    return kernel_of(d, lines)


def kernel_of(d: Loops, lines: Sequence[str], stream: tuple[tuple[int, int], int] | None = None) -> RandomKernel:
    """The kernel of these statements, between sums of nothing and their stores.

    With `stream`, the map and the number of blocks, the kernel has a persistent loop over tiles of its only result.
    """
    # A result may be stored more than once, with an assertion anywhere: consumers ask for failures ahead of each store.
    stores = [line for line in _stores(d, stream is not None) for _ in range(d.pick((1, 1, 1, 2, 3)))]
    parts = [[f"{acc.name} = {d.zeros(acc.columns)}" for acc in d.sums], [*lines], *([line] for line in stores)]
    if d.rarely():
        parts.insert(d.pick(range(len(parts) + 1)), ["assert i + m < 1000, 'never'"])
    body = [line for block in parts for line in block]
    outputs = [_output(d, name, columns) for name, columns in _results(d)]
    if stream is not None:
        (group, blocks), (result,) = stream, outputs
        body = ["for index in z.iter_indices():", *(f"    {line}" for line in ("i, j = index.coords()", *body))]
        outputs = [replace(result, map=group, blocks=blocks)]
    else:
        body = ["h, i, j = ct.get_tile_block_id()" if d.batched else "i, j, _ = ct.get_tile_block_id()", *body]
    numbers = (Scalar("n", i32, d.turns), Scalar("m", i32, d.pick((0, 1, 2, 4))))
    warps = {64: 4, 192: 12}.get(d.rows, 8) if d.rarely(8) else d.pick((None,) * 15 + (4,))
    outputs += [each for each in (d.counted, d.added) if each is not None]
    arguments, seed = (*outputs, *d.tensors, *numbers), d.draw(st.integers(0, 2**31))
    text = "".join(f"    {line}\n" for line in body)
    return RandomKernel(text, arguments, seed, unsafe=d.added is not None, warps=warps, exact=True)


def _results(d: Loops) -> list[tuple[str, int]]:
    """The outputs, with the columns of each: a tile of each sums, or for the second of one element a row."""
    return [("z", d.sums[0].columns), *([("w", d.sums[1].columns)] if len(d.sums) > 1 else [])]


def _stores(d: Loops, stream: bool) -> list[str]:
    """Each of the sums, stored as it is or with the other one's largest in each row."""
    lines: list[str] = []
    for (name, columns), acc in zip(_results(d), d.sums, strict=True):
        value = acc.name
        if d.rarely():
            value = f"{value} + ct.reduce_max({d.sums[-1].name}, 1).reshape(({d.rows}, 1))"
        if not stream and d.rarely(6):
            value = f"{value} + ct.convert_tile(ct.num_tiles({name}, {d.batched + d.pick((0, 1))}), ct.{d.total})"
        if d.most:
            value = f"{value} + ct.convert_tile({d.most}, ct.{d.total})"
        value = f"ct.convert_tile({value}, {name}.dtype)"
        tile = f"{value}.reshape((1, {d.rows}, {columns}))" if d.batched else value
        lines.append(f"{name}.store({tile}{', index' if stream else ''})")
    return lines


def _output(d: Loops, name: str, columns: int) -> Output:
    """A result of as many tiles as the grid has, or a little less than that."""
    dtype = i32 if d.total is i32 else d.pick((bf16, f16, f32, i32))
    extents = [max(t * (c - 1) + 1, t * c - d.pick(CUTS)) for t, c in zip((d.rows, columns), d.tiles, strict=True)]
    if not d.rarely():
        extents[1] = -(-extents[1] // 8) * 8
    lead = ((2,), (1,)) if d.batched else ((), ())
    layout: Layout = d.pick(("rows", "rows", "rows", "inner", "odd", "columns"))
    return Output(name, dtype, (*lead[0], *extents), layout, small=True, tile=(*lead[1], d.rows, columns))
