"""Random kernels around a product: what its loop counts in, what follows it, how it is stored, and what is asked for.

    python -m tests.properties.around --device cuda --count 300       # a wrong one is shrunk and printed

The products themselves are `products.py`'s. Here operands are small whole numbers, whose sums are exact in whatever
order they are added up, so that a result is what the reference backend makes of the same kernel, to the last bit.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st

from cuda_async import Device
from cutile import CompileOptions, KernelOp, Tensor, api, bf16, f8e4m3fn, f16, f32, f64, i8, i16, i32, i64, u8, u32
from cutile.dtypes import DTypeLike
from cutile.errors import KernelTypeError
from cutile.ir.types import MutType, TensorType, TileType, Type
from cutile.launch.target import use_backend
from tests.properties.products import searched
from tests.support.kernels import kernel

Array = np.ndarray[Any, Any]
Tile = tuple[int, int, int]

KERNEL = """
def around(z: Mut, w: Mut, x: Tensor, y: Tensor, bias: Tensor, residual: Tensor, n: {counts}):
    BM, BN, BK = {tile}
    part_x, part_y = x.partition((BM, BK)), y.partition((BK, BN))
    i, j, _ = ct.get_tile_block_id()
{first}{before}    acc = {start}
{product}{behind}{after}{last}"""
LOOPED = """    for k in {bounds}:
{within}        acc = ct.mma({left}, {right}, acc)
"""
ONCE = """    k = 0
    left, right = {left}, {right}
{within}    acc = ct.mma(left, right, acc)
"""
ASSERTION = "assert i < {most}, '{name}'\n"
PLACES = ("first", "within", "behind", "between", "last")
"""Where assertions stand: ahead of everything, beside the product, behind its sums, between two stores, at the end."""
LOADS = ("part_x.load((i, k))", "part_y.load((k, j))")
ZEROS = "ct.constant(0, (BM, BN), ct.{sums})"
LOADED = "ct.convert_tile(ct.load_tile(residual, (BM, BN), (i, j)), ct.{sums})"
STORED = "    z.store(ct.convert_tile(acc, z.dtype))\n"
ROW = "ct.convert_tile(ct.load_tile(bias, (1, BN), (0, j)), acc.dtype)"
LARGEST = "ct.reduce_max(acc, 1).reshape((BM, 1))"
ENDINGS = {
    "stored": STORED,
    "bias": f"    acc = acc + {ROW}\n{STORED}",
    "residual": f"    acc = acc + {LOADED.replace('{sums}', 'f32').replace('ct.f32', 'acc.dtype')}\n{STORED}",
    "asked": f"    if n > 3:\n        acc = acc + acc\n{STORED}",
    "loop": f"    for _ in range(n):\n        acc = acc - 1\n{STORED}",
    "rows": f"    acc = acc - {LARGEST}\n{STORED}",
    "columns": f"    acc = acc - ct.reduce_max(acc, 0).reshape((1, BN))\n{STORED}",
    "number": f"    acc = acc - ct.reduce_max(ct.reduce_max(acc, 1), 0)\n{STORED}",
    "scanned": f"    acc = ct.scan_sum(acc, 1)\n{STORED}",
    "extracted": f"    acc = acc - ct.extract(acc, (0, 0), (BM, 1))\n{STORED}",
    "again": f"    for k in range(ct.num_tiles(part_x, 1)):\n        acc = ct.mma(LEFT, RIGHT, acc)\n{STORED}",
    "added": f"    acc = acc + ct.convert_tile(z.load(), acc.dtype)\n{STORED}",
    "rounded twice": "    z.store(ct.convert_tile(ct.convert_tile(acc, ct.f16), z.dtype))\n",
    "stored twice": f"{STORED}    z.store(ct.convert_tile(acc + acc, z.dtype))\n",
    "two results": f"    w.store(ct.convert_tile({LARGEST}, w.dtype))\n{STORED}",
    "two results, this first": f"{STORED}    w.store(ct.convert_tile({LARGEST}, w.dtype))\n",
    "sums of rows": "    w.store(ct.convert_tile(ct.reduce_sum(acc, 1).reshape((BM, 1)), w.dtype))\n",
    "sums of columns": "    w.store(ct.convert_tile(ct.reduce_sum(acc, 0).reshape((1, BN)), w.dtype))\n",
}
"""What follows the loop, by what is special about it."""
BEFORE = {
    "nothing": "",
    "stored": "    w.store(ct.constant(1, w.shape, w.dtype))\n",
    "asked": "    c = 0\n    if n > 3:\n        c = i * 2 - j\n",
    "counted": "    c = 0\n    for k in range(ct.num_tiles(part_x, 1)):\n        "
    "if k < 3:\n            c = c + i * k + j\n",
    "rows": "    c = ct.constant(0, (BM, 1), ct.i32)\n    for k in range(ct.num_tiles(part_x, 1)):\n        "
    "c = c + ct.reduce_sum(ct.convert_tile(part_x.load((i, k)), ct.i32), 1).reshape((BM, 1))\n",
}
"""What stands before the loop. What it makes of the tile block's index, in regions of its own, is added to the sums."""
IN_MEMORY: tuple[DTypeLike, ...] = (i8, u8, i16, f16, bf16, f8e4m3fn, f32, f64)
"""What operands may be stored as, whatever their products are of."""
BOUNDS = ("range(n)", "range(ct.num_tiles(part_x, 1))", "range(0, n, 2)", "range(1, n)")
TILES = tuple(product((8, 16, 64, 128, 192, 256), (16, 32, 64, 96, 128, 160, 192, 256), (32, 64, 128)))


@dataclass(frozen=True)
class Around:
    """A kernel, and a launch of it.

    Attributes:
        operands, out, sums: the dtypes of the operands, of the result, and of what products add up to.
        stored: the dtypes of the operands in memory; of others than `operands` each tile is converted.
        tile: rows, columns, depth.
        ending: what follows the loop, of `ENDINGS`.
        counts: the dtype of the number of turns.
        bounds: of the loop.
        loaded: whether the sums begin with the residual, and not as zeros.
        before: what stands before the loop, of `BEFORE`.
        across: whether the left and the right operand are stored by columns.
        tiles: of the result, along both axes.
        cut: by how many elements the result is smaller than these.
        turns: of the loop, where it has all.
        cluster, pieces, warps: what is asked for, if anything is.
        looped: whether the product stands in a loop. Else it is of one step of K, and its loads stand ahead of it.
        stores: of the result; each but the last is of other numbers.
        asserts: the places of assertions, of `PLACES`.
        most: rows of tile blocks for which the assertions hold.
        residual: the dtype of what is added, or what the sums begin with.
        seed: of the elements.
    """

    operands: DTypeLike
    stored: tuple[DTypeLike, DTypeLike]
    out: DTypeLike
    tile: Tile
    ending: str
    counts: DTypeLike
    bounds: str
    loaded: bool
    before: str
    across: tuple[bool, bool]
    tiles: tuple[int, int]
    cut: tuple[int, int]
    turns: int
    cluster: int
    pieces: int | None
    warps: int | None
    residual: DTypeLike
    seed: int
    looped: bool = True
    stores: int = 1
    asserts: tuple[str, ...] = ()
    most: int = 1000

    @property
    def sums(self) -> DTypeLike:
        """What products add up to."""
        return i32 if self.operands is i8 else f64 if self.operands is f64 else f32

    @property
    def text(self) -> str:
        """The kernel."""
        before = BEFORE[self.before]
        after = ("    acc = acc + ct.convert_tile(c, acc.dtype)\n" if " c = " in before else "") + ENDINGS[self.ending]
        left, right = (
            text if stored is self.operands else f"ct.convert_tile({text}, ct.{self.operands})"
            for text, stored in zip(LOADS, self.stored, strict=True)
        )
        after = after.replace("LEFT", left).replace("RIGHT", right)
        asserted = {
            place: "    " + ASSERTION.format(most=self.most, name=place) if place in self.asserts else ""
            for place in PLACES
        }
        more = [STORED.replace("(acc,", f"(acc + {number},") for number in range(1, self.stores)]
        after = after.replace(STORED, "".join([*more[:1], asserted["between"], *more[1:], STORED]))
        if self.looped and asserted["within"]:
            asserted["within"] = "    " + asserted["within"]
        product = (LOOPED if self.looped else ONCE).format(
            bounds=self.bounds, within=asserted["within"], left=left, right=right
        )
        given = {"counts": self.counts, "tile": self.tile, "before": before, "after": after, **asserted}
        start = (LOADED if self.loaded else ZEROS).format(sums=self.sums)
        return KERNEL.format(**given, start=start, product=product)

    @property
    def options(self) -> CompileOptions:
        """What is asked for."""
        return CompileOptions(num_cta_in_cga=self.cluster, num_pieces=self.pieces, num_worker_warps=self.warps)

    @property
    def beside(self) -> tuple[int, int]:
        """The tiles of the second result."""
        return (1, self.tile[1]) if self.ending == "sums of columns" else (self.tile[0], 1)

    @property
    def types(self) -> dict[str, Type]:
        """Of the kernel's parameters, where rows begin at multiples of 16 bytes."""

        def tensor(dtype: DTypeLike, across: bool = False) -> TensorType:
            return TensorType(dtype, (None, None), (1, None) if across else (None, 1), 16)

        return {
            "z": MutType(tensor(self.out), self.tile[:2]),
            "w": MutType(tensor(f32), self.beside),
            "x": tensor(self.stored[0], self.across[0]),
            "y": tensor(self.stored[1], self.across[1]),
            "bias": tensor(bf16),
            "residual": tensor(self.residual),
            "n": TileType(self.counts),
        }

    def run(self) -> list[Array]:
        """Both results, on the default device."""
        op = self._op()
        return [each.unpartition().to_numpy().sync() for each in op.sync()[:2]]

    def arrays(self) -> list[Array]:
        """The arguments but for the last one, the number of turns."""
        random = np.random.default_rng(self.seed)
        rows, columns, depth = self.tile
        m, n = (max(1, each * t - cut) for each, t, cut in zip(self.tile, self.tiles, self.cut, strict=False))
        across, along = -(-m // rows), -(-n // columns)  # tiles that are left of what is cut
        beside = (across, n) if self.ending == "sums of columns" else (m, along)

        def whole(dtype: DTypeLike, shape: tuple[int, int], across: bool = False) -> Array:
            values = (random.integers(-2, 3, shape) + 2 * (dtype.kind == "uint")).astype(dtype.numpy)
            return np.ascontiguousarray(values.T).T if across else values

        return [
            whole(self.out, (m, n)),
            whole(f32, beside),
            whole(self.stored[0], (m, depth * self.turns), self.across[0]),
            whole(self.stored[1], (depth * self.turns, n), self.across[1]),
            whole(bf16, (1, n)),
            whole(self.residual, (m, n)),
        ]

    def _op(self) -> KernelOp:
        def tensor(array: Array, across: bool = False) -> Tensor:
            on_device = api.from_numpy(array.T if across else array).sync()
            return on_device.T if across else on_device

        z, w, x, y, bias, residual = self.arrays()
        return kernel(self.text)(
            tensor(z).partition(self.tile[:2]),
            tensor(w).partition(self.beside),
            tensor(x, self.across[0]),
            tensor(y, self.across[1]),
            tensor(bias),
            tensor(residual),
            self.turns,
        ).compile_options(self.options)


def kernels(most: int = 3) -> st.SearchStrategy[Around]:
    """Kernels of results of up to so many tiles along each axis."""
    rare = st.sampled_from([False, False, False, True])
    tiles = st.integers(1, most)
    cut = st.sampled_from([0, 0, 8, 16, 40, 5])
    products: tuple[DTypeLike, ...] = (bf16, f16, bf16, f32, f32, f64, f8e4m3fn, i8)
    operands = st.sampled_from(products)
    other: st.SearchStrategy[DTypeLike | None] = st.sampled_from((None,) * len(IN_MEMORY) + IN_MEMORY)

    def stored(operands: DTypeLike) -> st.SearchStrategy[tuple[DTypeLike, tuple[DTypeLike, DTypeLike]]]:
        def own(drawn: DTypeLike | None) -> DTypeLike:
            return operands if drawn is None else drawn

        return st.tuples(st.just(operands), st.tuples(other.map(own), other.map(own)))

    def drawn(dtypes: tuple[DTypeLike, tuple[DTypeLike, DTypeLike]], *rest: Any) -> Around:
        return Around(*dtypes, *rest)

    return st.builds(
        drawn,
        operands.flatmap(stored),
        st.sampled_from([bf16, f16, f32, i32]),
        st.sampled_from(TILES),
        st.one_of(st.just("stored"), st.sampled_from(tuple(ENDINGS))),
        st.sampled_from([i32, i32, i32, i64, u32]),
        st.sampled_from(BOUNDS),
        rare,
        st.one_of(st.just("nothing"), st.just("nothing"), st.sampled_from(tuple(BEFORE))),
        st.tuples(rare, rare),
        st.tuples(tiles, tiles),
        st.tuples(cut, cut),
        st.sampled_from([1, 2, 3, 5, 9, 17, 40]),
        st.sampled_from([1, 1, 1, 2, 4]),
        st.sampled_from([None, None, 1, 2, 4, 5, 16]),
        st.sampled_from([None, None, None, 4, 8]),
        st.sampled_from([bf16, f32]),
        st.integers(0, 2**32 - 1),
        st.sampled_from([True, True, False]),
        st.sampled_from([1, 1, 2, 3, 4]),
        st.lists(st.sampled_from(PLACES), unique=True, max_size=3).map(tuple),
    )


def check(case: Around) -> None:
    """Compare a kernel's results with the reference's, if its tiles are not too large.

    Raises:
        AssertionError: they differ.
    """
    with Device.host(), use_backend("reference"):
        wanted = case.run()
    with may_be_too_large():
        for name, found, result in zip("zw", case.run(), wanted, strict=True):
            assert np.array_equal(found, result), f"{name} of {case.text}\n{case}"


@contextmanager
def may_be_too_large() -> Generator[None]:
    """Tiles may need more registers or shared memory than there are, which is refused."""
    try:
        yield
    except KernelTypeError as error:
        if not re.search("a thread would hold|shared memory", str(error)):
            raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Search on a device."""
    parser = argparse.ArgumentParser(prog="python -m tests.properties.around", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1")
    parser.add_argument("--count", type=int, default=100, help="how many kernels (default 100)")
    parser.add_argument("--most", type=int, default=3, help="the most tiles along an axis (default 3)")
    parser.add_argument("--seed", type=int, help="draws the same ones again")
    parser.add_argument("--limit", type=float, default=float("inf"), help="check no more after this many seconds")
    options = parser.parse_args(arguments)
    with Device.parse(options.device):
        checked = searched(kernels(options.most), check, options.count, options.seed, options.limit)
    print(f"{checked} kernels are right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
