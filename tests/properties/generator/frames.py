"""Frames: what a tile block does with its tiles. Within one, the same statements are drawn whatever the frame is.

A frame says which tile is computed (`at`), how it is read and written, and how the launch is cut into blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from cutile.dtypes import bf16, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from tests.properties.generator import loads, numbers, shapes, values, writes
from tests.properties.generator.arguments import LAYOUTS, Input, Output, Scalar
from tests.properties.generator.drawer import Drawer
from tests.properties.generator.kernel import RandomKernel
from tests.properties.generator.statements import CONTROL, statement

FLOATS = (f32, f64, f16, bf16)
INTEGERS = (i32, i64, u8, i8, i16, u16, u32, u64)
TILES = (
    (4, 8), (1, 16), (16, 1), (8, 8), (3, 5), (2, 33), (1, 1), (32, 32), (6, 4), (16, 16), (16, 32), (64, 64), (64, 32),
    (8,), (1,), (7,), (64,), (200,), (2, 3, 4), (1, 8, 4), (2, 1, 5), (1, 16, 16), (1, 2, 2, 3), (2, 1, 1, 1, 4),
)  # fmt: skip
PRODUCTS = ((16, 16), (32, 32), (64, 64), (64, 32), (16, 64), (32, 16), (128, 64), (64, 128))
MULTIPLIED = (f16, bf16, f32, f64, i8, u8)
"""Of kernels that multiply matrices in a loop: one in eight."""
STATEMENTS = (1, 1, 1, 2, 2, 3)
"""How many: short kernels compile sooner, so that more of them are compared."""
GRID_AXES = 3
"""Of a launch: partitions of more axes tell their own index."""
MOST = 2**13
"""Elements of the result; more take time and show nothing else."""

EXPRESSIONS = {
    "leaf": values.leaf, "binary": values.binary, "binary again": values.binary, "unary": values.unary,
    "select": values.select, "convert": values.convert, "choice": values.choice, "iota": values.iota,
    "product": values.product, "reduce": shapes.reduce, "fold": shapes.fold, "scan": shapes.scan, "part": shapes.part,
    "axes": shapes.axes, "reading": shapes.reading, "running": shapes.running, "moved": shapes.moved,
    "random": values.random, "tests": values.tests,
    "order": shapes.order, "overflow": values.overflow, "shape": shapes.shape,
    "memory": loads.memory, "memory again": loads.memory,
}  # fmt: skip


@dataclass(frozen=True)
class Frame:
    """How a block comes to its tiles.

    Attributes:
        out: the result.
        head: lines before the statements, and around them; the last one's indentation is theirs.
        t: how the first tile of x is read.
        store, load: of the tile that is computed.
        alone: see `Drawer`.
        unsafe: whether it uses what unsafe kernels alone may.
        launched: the grid to be given to the launch.
    """

    out: Output
    grid: tuple[int, int, int]
    head: tuple[str, ...]
    t: str = "x.partition(out.shape).load(at)"
    store: str = "out.store({})"
    load: str = "out.load()"
    alone: bool = False
    unsafe: bool = False
    launched: tuple[int, ...] = ()


def _grid(counts: tuple[int, ...]) -> tuple[int, int, int]:
    x, y = (*counts, 1)[:2]
    return x, y, math.prod(counts[2:])


def own(draw: st.DrawFn, out: Output, counts: tuple[int, ...]) -> Frame:
    """One tile per block."""
    head = f"at = ct.get_tile_block_id()[:{len(counts)}]" if len(counts) <= GRID_AXES else "at = out.index"
    return Frame(out, _grid(counts), (head,), "ct.load_tile_like(x, out)", alone=True)


def prefix(draw: st.DrawFn, out: Output, counts: tuple[int, ...]) -> Frame:
    """One tile per block, and not all of the tiles."""
    blocks = tuple(draw(st.integers(1, each)) for each in counts)
    out = Output(out.name, out.dtype, out.shape, out.layout, out.whole, tile=out.tile, prefix=True)
    head = f"at = ct.get_tile_block_id()[:{len(counts)}]"
    return Frame(out, _grid(blocks), (head,), alone=True, launched=blocks)


def mapped(draw: st.DrawFn, out: Output, counts: tuple[int, ...]) -> Frame:
    """A stream of tiles per block."""
    rank = len(counts)
    groups = tuple(1 if k < rank - 2 else draw(st.integers(1, 3)) for k in range(rank))
    owned = rank == 2 and draw(st.booleans())
    if owned:
        groups = (1, 0)
    streamed = counts[0] if owned else math.prod(counts)
    blocks = draw(st.integers(1, min(streamed, 5)))
    out = Output(out.name, out.dtype, out.shape, out.layout, out.whole, tile=out.tile, map=groups, blocks=blocks)
    if owned:
        head = (
            "for index in out.iter_indices():",
            "    row, columns = index.components()",
            "    for column in columns:",
            "        at = (row, column)",
        )
        return Frame(out, _grid((blocks,)), head, store="out.store({}, at)", load="out.load(at)")
    part = ", ".join(draw(st.sampled_from(("(0, -1)", "(0, 1)", "(1, -1)"))) for _ in counts)
    stream = draw(st.sampled_from(("iter_indices()", f"iter_indices_within([{part}])")))
    head = (f"for index in out.{stream}:", "    at = index.coords()")
    return Frame(out, _grid((blocks,)), head, store="out.store({}, index)", load="out.load(index)")


def nested(draw: st.DrawFn, out: Output, counts: tuple[int, ...]) -> Frame:
    """Small tiles within the block's own, which they need not divide."""
    tile = out.tile
    outer = tuple(min(e, draw(st.integers(t, 3 * t))) for e, t in zip(out.shape, tile, strict=True))
    blocks = tuple(-(-e // o) for e, o in zip(out.shape, outer, strict=True))
    out = Output(out.name, out.dtype, out.shape, out.layout, out.whole, tile=outer)
    lines = [f"part = out.partition_mut({tile})", f"block = ct.get_tile_block_id()[:{len(tile)}]"]
    for k in range(len(tile)):
        lines.append("    " * k + f"for at_{k} in range(ct.num_tiles(part, {k})):")
    inner = "".join(f"at_{k}, " for k in range(len(tile)))
    places = "".join(f"block[{k}] * {-(-o // t)} + at_{k}, " for k, (o, t) in enumerate(zip(outer, tile, strict=True)))
    lines.append("    " * len(tile) + f"at = ({places})")
    t = f"x.load_tile({tile}, at)"
    return Frame(out, _grid(blocks), tuple(lines), t, f"part.store({{}}, ({inner}))", f"part.load(({inner}))")


def whole(draw: st.DrawFn, out: Output, counts: tuple[int, ...]) -> Frame:
    """Tiles of the whole tensor, from the last to the first."""
    at = "".join(f"ct.get_num_tile_blocks()[{k}] - 1 - ct.get_tile_block_id()[{k}], " for k in range(len(counts)))
    head = (f"part = out.partition_full_mut({out.tile})", f"at = ({at})")
    return Frame(out, _grid(counts), head, store="part.store({}, at)", load="part.load(at)", unsafe=True)


NUMBERS = (numbers.computed, numbers.carried, numbers.far)
"""Statements that assert what no backend can tell from another."""

FRAMES: tuple[Callable[[st.DrawFn, Output, tuple[int, ...]], Frame], ...] = (
    own, own, own, own, prefix, mapped, mapped, nested, whole,
)  # fmt: skip


@st.composite
def kernels(draw: st.DrawFn) -> RandomKernel:
    """A kernel with up to three statements."""
    multiplies = draw(st.integers(0, 7)) == 7
    dtype = draw(st.sampled_from(MULTIPLIED if multiplies else (*FLOATS, *INTEGERS)))
    tile = draw(st.sampled_from(PRODUCTS if multiplies else TILES))
    counts = [draw(st.integers(1, 4 if k < 2 else 2)) for k in range(len(tile))]
    while math.prod(counts) * math.prod(tile) > MOST:
        counts[counts.index(max(counts))] -= 1
    shape = tuple(c * e - draw(st.integers(0, e - 1)) for c, e in zip(counts, tile, strict=True))
    layouts = st.sampled_from(LAYOUTS)
    out = Output("out", dtype, shape, draw(layouts), tile=tile)
    frame = draw(st.sampled_from(FRAMES if len(tile) <= GRID_AXES else (own,)))(draw, out, tuple(counts))
    x = Input("x", dtype, shape, draw(layouts))
    other = draw(st.booleans())
    z = Input("z", dtype, tuple(draw(st.integers(1, 2 * e)) for e in shape) if other else shape, draw(layouts))
    d = Drawer(
        draw, dtype, tile, frame.grid, x, z, frame.store, frame.load, frame.alone,
        unsafe_allowed=frame.unsafe or draw(st.integers(0, 3)) == 3, unsafe=frame.unsafe, kinds=dict(EXPRESSIONS),
    )  # fmt: skip
    u = f"z.partition({tile})"
    lines = [
        f"t = {frame.t}",
        f"u = {u}.load({loads.named(d, u)})",
        f"y = {frame.load}",
    ]
    for position in range(draw(st.sampled_from(STATEMENTS))):
        names = (
            (writes.product_loop,)
            if multiplies and not position
            else (*CONTROL, *NUMBERS, *writes.MEMORY, *writes.MEMORY)
        )
        lines += statement(d, position, names)
    lines.append(frame.store.format(d.expression(d.number(1, 2))))
    inner = " " * (4 + len(frame.head[-1]) - len(frame.head[-1].lstrip()))
    body = "".join(f"    {line}\n" for line in frame.head) + "".join(f"{inner}{line}\n" for line in lines)
    a = Scalar("a", dtype, 0.75 if d.is_float else 5)
    arguments = (frame.out, x, z, a, Scalar("n", i32, 3), *d.extra.values())
    return RandomKernel(body, arguments, draw(st.integers(0, 2**31)), frame.launched, d.unsafe)
