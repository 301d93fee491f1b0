"""Random small kernels as text: element-wise expressions, reductions, loops, branches.

Float kernels are kept tame: every loop damps, functions of large values are bounded by tanh, comparisons are made only
on values as loaded, which no backend rounds. What remains differs between backends by rounding alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from cutile.dtypes import DTypeLike, f32, f64, i32, i64, u8


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


_FLOAT_LEAVES = ("t", "u", "y", "a", "0.5", "2", "-1.25")
_INT_LEAVES = ("t", "u", "y", "a", "3", "7", "1")
_RAW = ("t", "u", "y")
_FLOAT_BINARY = ("({} + {})", "({} - {})", "({} * {}) * 0.25", "min({}, {})", "max({}, {})")
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
)
_FLOAT_UNARY = ("(-{})", "abs({})", "ct.tanh({})", "ct.exp(ct.tanh({}))", "ct.sqrt(abs({}))", "ct.cos(ct.tanh({}))")
_INT_UNARY = ("(-{})", "(~{})", "({} >> 2)", "({} << 1)")
_REDUCE = ("sum", "max", "min")


@st.composite
def expressions(draw: st.DrawFn, is_float: bool, names: tuple[str, ...], depth: int) -> str:
    """An expression that is a tile: it begins with one."""
    leaves = (_FLOAT_LEAVES if is_float else _INT_LEAVES) + names
    if depth == 0:
        return draw(st.sampled_from(_RAW + names))
    tile = draw(expressions(is_float, names, depth - 1))
    kind = draw(st.sampled_from(("binary", "binary", "unary", "select", "reduce", "leaf")))
    if kind == "binary":
        other = draw(st.one_of(st.sampled_from(leaves), expressions(is_float, names, depth - 1)))
        form = draw(st.sampled_from(_FLOAT_BINARY if is_float else _INT_BINARY))
        return form.format(*draw(st.permutations((tile, other))))
    if kind == "unary":
        return draw(st.sampled_from(_FLOAT_UNARY if is_float else _INT_UNARY)).format(tile)
    if kind == "select":
        left, right = draw(st.sampled_from(_RAW)), draw(st.sampled_from((*_RAW, "0", "1")))
        order = draw(st.sampled_from(("<", "<=", ">", ">=", "==", "!=")))
        return f"ct.select({left} {order} {right}, {tile}, {draw(expressions(is_float, names, depth - 1))})"
    if kind == "reduce":
        axis = draw(st.sampled_from((0, 1)))
        name = draw(st.sampled_from(_REDUCE))
        shape = "(1, -1)" if axis == 0 else "(-1, 1)"
        scale = " * 0.125" if is_float and name == "sum" else ""
        return f"(ct.reduce_{name}({tile}, {axis}).reshape({shape}).broadcast(t.shape){scale})"
    return tile


@st.composite
def kernels(draw: st.DrawFn) -> RandomKernel:
    """A kernel with up to four statements."""
    dtype = draw(st.sampled_from((f32, f64, i32, i64, u8)))
    is_float = dtype.kind == "float"
    lines = [
        "t = ct.load_tile_like(x, out)",
        "u = z.partition(out.shape).load((ct.get_tile_block_id()[0], 0))",
        "y = out.load()",
    ]
    names: tuple[str, ...] = ()
    for position in range(draw(st.integers(1, 3))):
        name = f"v{position}"
        value = draw(expressions(is_float, names, draw(st.integers(1, 3))))
        damp = "ct.tanh({})" if is_float else "({})"
        step = draw(expressions(is_float, (*names, name), 1))
        kind = draw(st.sampled_from(("plain", "plain", "for", "load loop", "while", "if", "if else")))
        lines.append(f"{name} = {value}")
        if kind == "for":
            lines += ["for i in range(n):", f"    {name} = {damp.format(step)}"]
        elif kind == "load loop":
            load = "z.partition(out.shape).load((ct.get_tile_block_id()[0], i))"
            lines += [
                "for i in range(ct.num_tiles(z.partition(out.shape), 1)):",
                f"    {name} = {damp.format(f'{name} + {load}')}",
            ]
        elif kind == "while":
            lines += [f"c{position} = 0", f"while c{position} < n:", f"    {name} = {damp.format(step)}"]
            lines += [f"    c{position} += 2"]
        elif kind.startswith("if"):
            lines += [f"if n > {draw(st.integers(0, 4))}:", f"    {name} = {damp.format(step)}"]
            if kind == "if else":
                lines += ["else:", f"    {name} = -{name}"]
        names = (*names, name)
    lines.append(f"out.store({draw(expressions(is_float, names, 2))})")
    scalar = dtype.name
    text = f"def k(out: Mut, x: Tensor, z: Tensor, a: {scalar}, n: i32):\n" + "".join(f"    {line}\n" for line in lines)
    tile = draw(st.sampled_from(((4, 8), (1, 16), (16, 1), (8, 8), (3, 5), (2, 33), (1, 1), (32, 32))))
    shape = (draw(st.integers(1, 40)), draw(st.integers(1, 40)))
    return RandomKernel(text, dtype, tile, shape, draw(st.integers(0, 2**31)))
