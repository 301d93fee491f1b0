"""Random kernels as text: whole programs over the language, to be run by every backend and compared.

An expression is drawn for a dtype and a shape: operators, functions, conversions from other dtypes, reductions, changes
of shape, products, helpers. Statements carry tiles through loops and branches, with `break` and `continue`.

Integers wrap and agree exactly. Float kernels are kept tame, so that what backends may round differently stays small:
loops damp, functions of large values are bounded by tanh, and comparisons are made only on values as loaded, which no
backend rounds. The tolerance that remains is the dtype's.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from cutile.dtypes import DTypeLike, bf16, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64

Shape = tuple[int, ...]


@dataclass(frozen=True)
class RandomKernel:
    """A kernel `k(out, x, z, a, n)` and the shape of its problem."""

    text: str
    dtype: DTypeLike
    tile: tuple[int, int]
    shape: tuple[int, int]
    seed: int

    def __str__(self) -> str:
        return f"# {self.dtype}, shape {self.shape}, tile {self.tile}, seed {self.seed}\n{self.text}"


FLOATS = (f32, f64, f16, bf16)
INTEGERS = (i32, i64, u8, i8, i16, u16, u32, u64)
TILES = ((4, 8), (1, 16), (16, 1), (8, 8), (3, 5), (2, 33), (1, 1), (32, 32), (6, 4), (16, 16))
HELPERS = """
def twice(t, by=2):
    if by > 2:
        return t + t + t
    return t + t


def larger(s, t):
    return max(s, t), min(s, t)


"""

_FLOAT_BINARY = ("({} + {})", "({} - {})", "({} * {} * 0.25)", "min({}, {})", "max({}, {})", "larger({}, {})[0]")
_INT_BINARY = (
    "({} + {})",
    "({} - {})",
    "({} * {})",
    "({} // {})",
    "({} % {})",
    "({} & {})",
    "({} | {})",
    "({} ^ {})",
    "min({}, {})",
    "max({}, {})",
    "larger({}, {})[1]",
    "ct.divi({}, {})",
    "ct.remi({}, {})",
    "ct.ceil_div({}, {})",
    "ct.mulhii({}, {})",
)
_FLOAT_UNARY = (
    "(-{})",
    "abs({})",
    "ct.tanh({})",
    "ct.exp(ct.tanh({}))",
    "ct.sqrt(abs({}))",
    "ct.cos(ct.tanh({}))",
    "ct.sin(ct.tanh({}))",
    "ct.exp2(ct.tanh({}))",
    "ct.log(abs({}) + 1)",
    "ct.rsqrt(abs({}) + 1)",
    "twice({})",
    "(twice({}, by=3) * 0.5)",
)
_INT_UNARY = ("(-{})", "(~{})", "({} >> 2)", "({} << 1)", "twice({})", "twice({}, by=3)")
_REDUCE = ("sum", "max", "min")


class _Drawer:
    """Draws the text of one kernel."""

    def __init__(self, draw: st.DrawFn, dtype: DTypeLike, tile: tuple[int, int]) -> None:
        self.draw = draw
        self.dtype = dtype
        self.tile = tile
        self.is_float = dtype.kind == "float"
        self.raw = ("t", "u", "y")
        self.names: tuple[str, ...] = ()

    def pick(self, choices: tuple[str, ...]) -> str:
        """One of these."""
        return self.draw(st.sampled_from(choices))

    def leaf(self) -> str:
        """A tile, or a number beside a tile."""
        numbers = ("a", "0.5", "2", "-1.25") if self.is_float else ("a", "3", "7", "1")
        return self.pick((*self.raw, *numbers, *self.names))

    def tile_leaf(self) -> str:
        """A tile."""
        return self.pick((*self.raw, *self.names))

    def condition(self) -> str:
        """A tile of bools, on which every backend agrees."""
        left, right = self.pick(self.raw), self.pick((*self.raw, "0", "1"))
        order = self.pick(("<", "<=", ">", ">=", "==", "!="))
        made = f"({left} {order} {right})"
        form = self.pick(("{}", "{}", "(~{})", "({} & (t > 0))", "({} | (u != y))", "({} ^ (y < 1))"))
        return form.format(made)

    def scalar_condition(self) -> str:
        """A scalar bool."""
        return self.pick((
            f"n > {self.draw(st.integers(0, 5))}",
            "n % 2 == 0",
            "n < 4 and n > 1",
            "not n == 3",
            "ct.get_tile_block_id()[0] % 2 == 0",
            "1 < n <= 3",
        ))  # fmt: skip

    def expression(self, depth: int) -> str:
        """A tile of the kernel's dtype and shape."""
        if depth <= 0:
            return self.tile_leaf()
        kind = self.pick((
            "binary", "binary", "unary", "select", "reduce", "leaf", "shape", "convert", "choice", "iota", "product",
            "fold", "scan", "part",
        ))  # fmt: skip
        tile = self.expression(depth - 1)
        return getattr(self, f"_{kind}")(tile, depth)

    def _leaf(self, tile: str, depth: int) -> str:
        return tile

    def _binary(self, tile: str, depth: int) -> str:
        other = self.leaf() if self.draw(st.booleans()) else self.expression(depth - 1)
        form = self.pick(_FLOAT_BINARY if self.is_float else _INT_BINARY)
        return form.format(*self.draw(st.permutations((tile, other))))

    def _unary(self, tile: str, depth: int) -> str:
        form = self.pick(_FLOAT_UNARY if self.is_float else _INT_UNARY)
        return "(t ^ 1)" if self.dtype.kind == "uint" and form == "(-{})" else form.format(tile)

    def _select(self, tile: str, depth: int) -> str:
        return f"ct.select({self.condition()}, {tile}, {self.expression(depth - 1)})"

    def _choice(self, tile: str, depth: int) -> str:
        return f"({tile} if {self.scalar_condition()} else {self.expression(depth - 1)})"

    def _reduce(self, tile: str, depth: int) -> str:
        axis = self.draw(st.sampled_from((0, 1)))
        name = self.pick(_REDUCE)
        shape = "(1, -1)" if axis == 0 else "(-1, 1)"
        scale = " * 0.125" if self.is_float and name == "sum" else ""
        return f"(ct.reduce_{name}({tile}, {axis}).reshape({shape}).broadcast(t.shape){scale})"

    def _fold(self, tile: str, depth: int) -> str:
        """A reduction by a function of scalars, broadcast again; the places of extremes of what was loaded."""
        axis = self.draw(st.sampled_from((0, 1)))
        shape = "(1, -1)" if axis == 0 else "(-1, 1)"
        if self.draw(st.booleans()):
            low = "float('-inf')" if self.is_float else "0" if self.dtype.kind == "uint" else "-128"
            first = "lambda p, q: p if p[0] >= q[0] else q"
            places = f"ct.iota({self.tile[axis]}).reshape({'(-1, 1)' if axis == 0 else '(1, -1)'}).broadcast(t.shape)"
            made = f"ct.reduce(({self.pick(self.raw)}, {places}), {axis}, ({low}, 0), {first})[1].astype(t.dtype)"
        elif self.is_float:
            made = f"ct.reduce({tile}, {axis}, 0.0, lambda p, q: p + q)"
        else:
            made = f"ct.reduce({tile}, {axis}, 0, lambda p, q: {self.pick(('p + q', 'p ^ q', 'p | q'))})"
        return f"({tile} + {made}.reshape({shape}){' * 0.125' if self.is_float else ''})"

    def _scan(self, tile: str, depth: int) -> str:
        axis = self.draw(st.sampled_from((0, 1)))
        order = self.pick(("ct.reverse.FORWARD", "ct.reverse.REVERSE"))
        if self.draw(st.booleans()):
            return f"(ct.scan_sum({tile}, {axis}, {order}){' * 0.03125' if self.is_float else ''})"
        low = "float('-inf')" if self.is_float else "0" if self.dtype.kind == "uint" else "-128"
        return f"ct.scan({self.pick(self.raw)}, {axis}, {order}, {low}, lambda p, q: max(p, q))"

    def _part(self, tile: str, depth: int) -> str:
        """A part of two tiles side by side, at a place that is known now or when the kernel runs."""
        axis = self.draw(st.sampled_from((0, 1)))
        at = self.pick(("0", "1", "n % 2", "n"))
        index = f"({at}, 0)" if axis == 0 else f"(0, {at})"
        return f"ct.extract(ct.cat({tile}, {self.expression(depth - 1)}, {axis}), {index}, t.shape)"

    def _shape(self, tile: str, depth: int) -> str:
        rows, columns = self.tile
        forms = ["ct.permute({}.transpose(), (1, 0))", f"{{}}.reshape(({rows * columns},)).reshape(t.shape)"]
        if columns % 2 == 0:
            half = columns // 2
            forms.append(f"ct.permute({{}}.reshape(({rows}, 2, {half})), (0, 2, 1)).reshape(t.shape)")
        if rows == columns:
            forms.append("{}.transpose()")
        return self.pick(tuple(forms)).format(tile)

    def _convert(self, tile: str, depth: int) -> str:
        raw = self.pick(self.raw)
        if self.is_float:
            through = self.pick(("i32", "i16", "f64", "f32"))
            return f"(({tile} + ct.convert_tile(ct.convert_tile({raw}, ct.{through}), t.dtype)) * 0.5)"
        through = self.pick(("i8", "u16", "i64", "u32", "f64"))
        if through == "f64":  # holds what was loaded exactly
            return f"({tile} + ct.convert_tile(ct.convert_tile({raw}, ct.f64), t.dtype))"
        return f"({tile} ^ ct.convert_tile(ct.convert_tile({tile}, ct.{through}), t.dtype))"

    def _iota(self, tile: str, depth: int) -> str:
        columns = f"ct.convert_tile(ct.iota({self.tile[1]}), t.dtype).reshape((1, -1))"
        return f"({tile} + {columns}{' * 0.125' if self.is_float else ''})"

    def _product(self, tile: str, depth: int) -> str:
        accumulator = {"f32": "f32", "f64": "f64", "f16": "f32", "bf16": "f32", "i8": "i32", "u8": "i32"}.get(
            self.dtype.name
        )
        if accumulator is None or self.tile[0] % 16 or self.tile[1] % 16:
            return tile
        other = self.pick(self.raw)
        acc = f"ct.constant(0, ({self.tile[0]}, {self.tile[0]}), ct.{accumulator})"
        made = f"ct.convert_tile(ct.mma({self.pick(self.raw)}, {other}.transpose(), {acc}), t.dtype)"
        if self.tile[0] != self.tile[1]:
            made = f"ct.reduce_max({made}, 1).reshape((-1, 1))"
        return f"({tile} + {made}{' * 0.03125' if self.is_float else ''})"

    # Statements.

    def damped(self, text: str) -> str:
        """A value that a loop may carry around."""
        return f"ct.tanh({text})" if self.is_float else f"({text})"

    def statement(self, position: int) -> list[str]:
        """A new variable, and what happens to it."""
        name = f"v{position}"
        lines = [f"{name} = {self.expression(self.draw(st.integers(1, 3)))}"]
        self.names = (*self.names, name)
        step = self.damped(self.expression(1))
        kind = self.pick((
            "plain", "plain", "for", "load_loop", "while", "if", "if_else", "nested", "jump", "swap", "unrolled",
            "augmented",
        ))  # fmt: skip
        return lines + getattr(self, f"_make_{kind}")(name, step, position)

    def _make_plain(self, name: str, step: str, position: int) -> list[str]:
        return []

    def _make_augmented(self, name: str, step: str, position: int) -> list[str]:
        return [f"{name} {self.pick(('+=', '-='))} {step}"]

    def _make_for(self, name: str, step: str, position: int) -> list[str]:
        bounds = self.pick(("n", "1, n", "n, 0, -1", "0, n, 2", "0, 4, n", "3"))
        return [f"for i in range({bounds}):", f"    {name} = {step}"]

    def _make_load_loop(self, name: str, step: str, position: int) -> list[str]:
        load = "z.partition(out.shape).load((ct.get_tile_block_id()[0], i))"
        tiles = "ct.num_tiles(z.partition(out.shape), 1)"
        return [f"for i in range({tiles}):", f"    {name} = {self.damped(f'{name} + {load}')}"]

    def _make_while(self, name: str, step: str, position: int) -> list[str]:
        return [f"c{position} = 0", f"while c{position} < n:", f"    {name} = {step}", f"    c{position} += 2"]

    def _make_if(self, name: str, step: str, position: int) -> list[str]:
        return [f"if {self.scalar_condition()}:", f"    {name} = {step}"]

    def _make_if_else(self, name: str, step: str, position: int) -> list[str]:
        negative = f"{name} ^ 1" if self.dtype.kind == "uint" else f"-{name}"
        return [
            f"if {self.scalar_condition()}:", f"    {name} = {step}",
            f"elif {self.scalar_condition()}:", f"    {name} = {self.tile_leaf()}",
            "else:", f"    {name} = {negative}",
        ]  # fmt: skip

    def _make_nested(self, name: str, step: str, position: int) -> list[str]:
        return [
            "for i in range(2):",
            f"    for j in range(i, {self.pick(('n', '2'))}):",
            f"        if {self.scalar_condition()}:",
            f"            {name} = {step}",
            f"    {name} = {self.damped(f'{name} + t')}",
        ]

    def _make_jump(self, name: str, step: str, position: int) -> list[str]:
        jump = self.pick(("break", "continue"))
        at = self.pick(("i == 1", "i + 1 == n", "n > 3", self.scalar_condition()))
        before = self.pick((f"    {name} = {step}", "    pass"))
        return [
            f"for i in range({self.pick(('n', '4'))}):",
            before, f"    if {at}:", f"        {jump}", f"    {name} = {self.damped(f'{name} + u')}",
        ]  # fmt: skip

    def _make_swap(self, name: str, step: str, position: int) -> list[str]:
        return [f"s{position} = {step}", f"{name}, s{position} = s{position}, {name}"]

    def _make_unrolled(self, name: str, step: str, position: int) -> list[str]:
        return ["for i in ct.static_range(2):", "    if i == 1:", f"        {name} = {step}"]


@st.composite
def kernels(draw: st.DrawFn) -> RandomKernel:
    """A kernel with up to four statements."""
    dtype = draw(st.sampled_from((*FLOATS, *INTEGERS)))
    tile = draw(st.sampled_from(TILES))
    drawer = _Drawer(draw, dtype, tile)
    lines = [
        "t = ct.load_tile_like(x, out)",
        "u = z.partition(out.shape).load((ct.get_tile_block_id()[0], 0))",
        "y = out.load()",
    ]
    for position in range(draw(st.integers(1, 3))):
        lines += drawer.statement(position)
    lines.append(f"out.store({drawer.expression(2)})")
    body = "".join(f"    {line}\n" for line in lines)
    text = f"{HELPERS}def k(out: Mut, x: Tensor, z: Tensor, a: {dtype.name}, n: i32):\n{body}"
    shape = (draw(st.integers(1, 40)), draw(st.integers(1, 40)))
    return RandomKernel(text, dtype, tile, shape, draw(st.integers(0, 2**31)))
