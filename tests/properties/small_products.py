"""Small matrix products, one or two for each way in which the CUDA backend makes them: what `sanitize.py` looks at.

    python -m tests.properties.small_products --device cuda      # runs and checks all
    python -m tests.properties.small_products --list

They are small because the tools that watch every access slow kernels down a hundredfold, and odd because mistakes are
at edges. Each says which plan it is meant to have on sm_90a, so that none is watched in place of another.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import cutile as ct
from cuda_async import Device
from cutile import CompileOptions, Const, Mut, Tensor, api, bf16, f8e4m3fn, f16, f32, f64, i8, i32
from cutile.dtypes import DTypeLike
from kernels.example import TOLERANCE, relative_error
from kernels.gemm import gemm
from kernels.gemm_fused import gemm_fused
from kernels.gemm_variants import gemm_batched, gemm_integers, gemm_tf32
from tests.properties.planned import PIPELINES, PLAIN, RING
from tests.properties.products import Layout, operand

Array = np.ndarray[Any, Any]
ROWS, COLUMNS, ODD = Layout(False, "whole"), Layout(True, "whole"), Layout(False, "odd")
WIDE, WIDE_COLUMNS = Layout(False, "wide"), Layout(True, "wide")


@ct.entry
def gemm_centred(z: Mut, x: Tensor, y: Tensor, *, BK: Const = 64):
    """z = x @ y less the largest element of each of a tile's columns: what follows goes between the warps."""
    BM, BN = z.shape
    part_x, part_y = x.partition((BM, BK)), y.partition((BK, BN))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.num_tiles(part_x, 1)):
        acc = ct.mma(part_x.load((i, k)), part_y.load((k, j)), acc)
    z.store(ct.convert_tile(acc - ct.reduce_max(acc, 0).reshape((1, BN)), z.dtype))


@ct.entry
def gemm_below(z: Mut, x: Tensor, y: Tensor, *, BK: Const = 64):
    """z = x @ y less the largest element of each of a tile's rows: what follows needs whole rows, which a warp has."""
    BM, BN = z.shape
    part_x, part_y = x.partition((BM, BK)), y.partition((BK, BN))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.num_tiles(part_x, 1)):
        acc = ct.mma(part_x.load((i, k)), part_y.load((k, j)), acc)
    z.store(ct.convert_tile(acc - ct.reduce_max(acc, 1).reshape((BM, 1)), z.dtype))


@ct.entry
def gemm_asserted(z: Mut, x: Tensor, y: Tensor, most: i32, *, BK: Const = 64):
    """z = x @ y of no more than so many turns, which the kernel itself asserts."""
    BM, BN = z.shape
    part_x, part_y = x.partition((BM, BK)), y.partition((BK, BN))
    i, j, _ = ct.get_tile_block_id()
    turns = ct.num_tiles(part_x, 1)
    assert turns + i <= most, "more turns than there may be"
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(turns):
        acc = ct.mma(part_x.load((i, k)), part_y.load((k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))


@ct.entry
def gemm_two_loops(z: Mut, x: Tensor, y: Tensor, *, BK: Const = 64):
    """z = x @ y by two loops, of which the second stands in a branch."""
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    count = ct.num_tiles(x.partition((BM, BK)), 1)
    for k in range(count // 2):
        acc = ct.mma(ct.load_tile(x, (BM, BK), (i, k)), ct.load_tile(y, (BK, BN), (k, j)), acc)
    if count > 0:
        for k in range(count // 2, count):
            acc = ct.mma(ct.load_tile(x, (BM, BK), (i, k)), ct.load_tile(y, (BK, BN), (k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))


@ct.entry
def gemm_chained(z: Mut, x: Tensor, y: Tensor, *, BK: Const = 16):
    """z = (x @ y) @ y^T for a y of 64 x 64: what one product made is the left operand of the other."""
    BM, BN = z.shape
    i, _, _ = ct.get_tile_block_id()
    rows = ct.load_tile(x, (BM, BN), (i, 0))
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.ceil_div(y.shape[1], BK)):
        part = ct.load_tile(y, (BN, BK), (0, k))
        made = ct.mma(rows, part, ct.constant(0, (BM, BK), f32))
        acc = ct.mma(ct.convert_tile(made, x.dtype), ct.load_tile(y, (BN, BK), (0, k)).transpose(), acc)
    z.store(ct.convert_tile(acc, z.dtype))


@ct.entry
def gemm_f64(z: Mut, x: Tensor, y: Tensor, *, BK: Const = 16):
    """z = x @ y in f64."""
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f64)
    for k in range(ct.num_tiles(x.partition((BM, BK)), 1)):
        acc = ct.mma(ct.load_tile(x, (BM, BK), (i, k)), ct.load_tile(y, (BK, BN), (k, j)), acc)
    z.store(acc)


@dataclass(frozen=True)
class Small:
    """A product.

    Attributes:
        name: what is special about it.
        shape: (m, n, k); with a batch before them, a product for each.
        tile: rows, columns, depth.
        dtype: of the operands.
        out: of the result.
        x, y: how the operands lie in memory.
        plan: what it is meant to have on sm_90a.
        cluster: thread blocks that share what they load.
        pieces: thread blocks that share a tile block's turns; None leaves it to the launch.
        warps: that a tile block has, where that is not left to the plan.
        make: the launch, from the partition of the result and the operands.
        wanted: the result from operands in float64, where it is not their product.
    """

    name: str
    shape: tuple[int, ...]
    tile: tuple[int, int, int]
    dtype: DTypeLike = bf16
    out: DTypeLike | None = None
    x: Layout = ROWS
    y: Layout = ROWS
    plan: str = PIPELINES
    cluster: int = 1
    pieces: int | None = 1
    warps: int | None = None
    make: Callable[..., ct.KernelOp] = gemm
    wanted: Callable[[Array, Array], Array] = np.matmul

    def run(self, seed: int = 0) -> None:
        """Compute it on the default device and compare it with float64.

        Raises:
            AssertionError: it is wrong.
        """
        x, y = self._operands(np.random.default_rng(seed))
        result = self._op(x, y).sync()[0].unpartition().to_numpy().sync()
        wanted = self.wanted(x.astype(np.float64), y.astype(np.float64))
        error = relative_error(result, wanted)
        out = self.out or self.dtype
        allowed = 0.0 if out is i32 else 2e-3 if self.make is gemm_tf32 else 2 * TOLERANCE[out]
        assert error <= allowed, f"{self.name}: error {error:.2e}, {allowed:.2e} allowed"

    def lowered(self, arch: str) -> str:
        """What the CUDA backend makes of it, as text; needs no GPU."""
        op = self._op(*self._operands(np.random.default_rng(0)))
        text = op.render("lowered", arch)
        op.discard()
        return text

    def _operands(self, random: np.random.Generator) -> tuple[Array, Array]:
        *batch, m, n, k = self.shape
        return self._draw(random, *batch, m, k), self._draw(random, *batch, k, n)

    def _op(self, x: Array, y: Array) -> ct.KernelOp:
        random = np.random.default_rng(1)
        *batch, m, n, _ = self.shape
        out = self.out or self.dtype
        poison = np.full((*batch, m, n), -1 if out is i32 else np.nan).astype(out.numpy)
        on_device = [
            api.from_numpy(each).sync() if batch else operand(each, layout, random)
            for each, layout in ((x, self.x), (y, self.y))
        ]
        rows, columns, depth = self.tile
        z = api.from_numpy(poison).sync().partition((*[1] * len(batch), rows, columns))
        options = CompileOptions(num_cta_in_cga=self.cluster, num_pieces=self.pieces, num_worker_warps=self.warps)
        return self.make(z, *on_device, BK=depth).compile_options(options)

    def _draw(self, random: np.random.Generator, *shape: int) -> Array:
        if self.dtype is i8:
            return random.integers(-128, 128, shape).astype(np.int8)
        return random.standard_normal(shape).astype(self.dtype.numpy)


def _fused(z: Any, x: ct.Tensor, y: ct.Tensor, *, BK: int) -> ct.KernelOp:
    """With a bias of ones, relu, and a residual of twos."""
    shape = z.tensor_shape
    bias, residual = api.ones(shape[1:], bf16).sync(), api.full(2, shape, bf16).sync()
    return gemm_fused(z, x, y, bias, residual, BK=BK, BIAS=1, RESIDUAL=1, ACTIVATION=1)


def _fast(z: Any, x: ct.Tensor, y: ct.Tensor, *, BK: int) -> ct.KernelOp:
    """With all sums left to the tensor cores."""
    return gemm_fused(z, x, y, y, y, BK=BK, BIAS=0, RESIDUAL=0, FAST_ACC=1)


def _with_one_and_two(x: Array, y: Array) -> Array:
    """The meaning of that."""
    return np.maximum(x @ y + 1, 0) + 2


def _asserted(z: Any, x: ct.Tensor, y: ct.Tensor, *, BK: int) -> ct.KernelOp:
    return gemm_asserted(z, x, y, 10, BK=BK)


def _centred(tall: int) -> Callable[[Array, Array], Array]:
    """The meaning of `gemm_centred` for tiles so tall."""

    def meaning(x: Array, y: Array) -> Array:
        z = x @ y
        for row in range(0, z.shape[0], tall):
            part = z[row : row + tall]
            # Rows of the tile past the edge are zeros, and take part.
            floor = 0.0 if part.shape[0] < tall else -np.inf
            z[row : row + tall] = part - np.maximum(part.max(axis=0, keepdims=True), floor)
        return z

    return meaning


def _below(x: Array, y: Array) -> Array:
    """The meaning of `gemm_below` for whole tiles of 64 columns."""
    z = x @ y
    tiles = z.reshape(*z.shape[:-1], -1, 64)
    return (tiles - tiles.max(axis=-1, keepdims=True)).reshape(z.shape)


def _chained(x: Array, y: Array) -> Array:
    """The meaning of `gemm_chained`."""
    return x @ y @ y.T


CASES = (
    Small("bf16", (256, 512, 256), (128, 256, 64)),
    Small("f16, edges", (200, 300, 136), (128, 128, 64), f16, x=WIDE, y=WIDE),
    Small("both transposed", (136, 264, 200), (128, 256, 64), f16, x=COLUMNS, y=COLUMNS),
    Small("right by columns, wide rows", (129, 250, 72), (128, 192, 64), x=WIDE, y=WIDE_COLUMNS),
    Small("one warp group", (100, 200, 100), (64, 128, 64), x=WIDE, y=WIDE),
    Small("a tile of 208 columns", (130, 400, 96), (128, 208, 32)),
    Small("less than a tile", (3, 8, 16), (128, 256, 64)),
    Small("more tiles than multiprocessors", (832, 896, 192), (64, 64, 64), f16),
    Small("cluster, shared right", (300, 520, 320), (128, 256, 64), cluster=2),
    Small("cluster, shared left", (300, 304, 320), (256, 128, 64), cluster=2),
    Small("cluster, right by columns", (640, 264, 136), (128, 256, 64), y=COLUMNS, cluster=2),
    Small("cluster, more tiles", (2100, 1104, 64), (128, 64, 64), cluster=2),
    Small("cluster of four, shared left", (72, 328, 320), (64, 64, 64), cluster=4),
    Small("cluster of eight, shared left", (136, 520, 136), (128, 64, 64), cluster=8),
    Small("divided", (64, 128, 4096), (64, 64, 64), pieces=16),
    Small("divided, edges", (136, 72, 2568), (128, 64, 64), f16, pieces=16),
    Small("divided, few rows", (7, 136, 4104), (16, 64, 64), y=COLUMNS, pieces=16),
    Small("pieces of a cluster", (128, 128, 2048), (64, 128, 64), pieces=4),
    Small("pieces of a cluster, edges", (136, 200, 4104), (128, 128, 64), f16, pieces=8),
    Small("pieces of a cluster, few rows", (7, 136, 4104), (16, 64, 64), y=COLUMNS, pieces=8),
    Small("pieces of a cluster, parts by turns", (64, 136, 2568), (64, 64, 64), pieces=5),
    Small("pieces of a cluster, more tiles", (2100, 1104, 1024), (128, 64, 64), pieces=2),
    Small(
        "pieces of a cluster, fused", (128, 136, 2568), (64, 128, 64), pieces=4, make=_fused, wanted=_with_one_and_two
    ),
    Small(
        "pieces of a cluster, whole", (128, 72, 2048), (128, 64, 64), pieces=2, make=gemm_centred, wanted=_centred(128)
    ),
    Small("pieces of a cluster, whole rows", (192, 128, 2048), (64, 64, 64), pieces=4, make=gemm_below, wanted=_below),
    Small("groups alone", (520, 400, 136), (128, 192, 64), warps=4),
    Small("groups alone, one turn, more tiles", (2100, 1208, 64), (128, 64, 64), warps=4),
    Small("divided by the launch", (64, 200, 5000), (64, 64, 64), pieces=None),
    Small("divided by the launch, edges", (136, 200, 2568), (128, 128, 64), f16, pieces=None),
    Small("divided by the launch, few rows", (7, 1032, 4104), (16, 64, 64), y=COLUMNS, pieces=None),
    Small("divided by the launch, one tile", (61, 63, 40000), (64, 64, 64), x=WIDE, y=WIDE, pieces=None),
    Small("fused", (200, 304, 128), (128, 256, 64), make=_fused, wanted=_with_one_and_two),
    Small("exchange between warps", (300, 200, 64), (128, 128, 64), make=gemm_centred, wanted=_centred(128)),
    Small("exchange, more tiles", (1600, 1704, 64), (128, 128, 64), f16, make=gemm_centred, wanted=_centred(128)),
    Small("asserted", (256, 256, 192), (128, 128, 64), make=_asserted),
    Small("stored by threads", (200, 136, 128), (128, 128, 64), out=f32),
    Small("tf32, along K", (200, 264, 100), (128, 128, 32), f32, y=COLUMNS, make=gemm_tf32),
    Small("tf32, right across K", (130, 72, 96), (64, 64, 32), f32, make=gemm_tf32),
    Small("fp8, along K", (200, 264, 272), (128, 256, 128), f8e4m3fn, bf16, y=COLUMNS),
    Small("fp8, many steps", (200, 264, 1296), (128, 192, 128), f8e4m3fn, bf16, x=WIDE, y=COLUMNS),
    Small("fp8, many steps, right across K", (264, 208, 1312), (192, 128, 128), f8e4m3fn, bf16),
    Small("fp8, fast sums", (200, 264, 1296), (128, 256, 128), f8e4m3fn, bf16, x=WIDE, y=COLUMNS, make=_fast),
    Small("fp8, right across K", (70, 96, 144), (64, 64, 64), f8e4m3fn, bf16),
    Small("int8, along K", (200, 264, 272), (128, 256, 128), i8, i32, y=COLUMNS, make=gemm_integers),
    Small("int8, right across K", (70, 96, 144), (64, 64, 64), i8, i32, make=gemm_integers),
    Small("int8, left across K", (96, 70, 144), (64, 64, 64), i8, i32, x=COLUMNS, y=COLUMNS, make=gemm_integers),
    Small("tf32, left across K", (264, 200, 96), (128, 64, 32), f32, x=COLUMNS, y=COLUMNS, make=gemm_tf32),
    Small("int8, both across K", (96, 64, 144), (64, 64, 64), i8, i32, x=COLUMNS, make=gemm_integers, plan=PLAIN),
    Small("unaligned", (77, 100, 33), (64, 64, 32), plan=PLAIN),
    Small("unaligned, in wider rows", (77, 100, 133), (128, 128, 64), f16, x=ODD, y=ODD, plan=PLAIN),
    Small("rows that are no 64", (200, 176, 96), (96, 80, 48), plan=RING),
    Small("few rows", (5, 264, 512), (16, 64, 64)),
    Small("few rows, by columns", (24, 520, 200), (32, 128, 64), f16, x=COLUMNS, y=COLUMNS),
    Small("few rows, more tiles", (40, 9000, 64), (16, 128, 64)),
    Small("few rows, unaligned", (5, 100, 77), (16, 64, 64), plan=PLAIN),
    Small("f32", (100, 130, 70), (64, 64, 32), f32, plan=PLAIN),
    Small("f32, wide", (256, 256, 64), (128, 128, 32), f32),
    Small("f32, stored as bf16", (200, 264, 72), (128, 128, 32), f32, bf16),
    Small("f64", (70, 72, 40), (64, 64, 16), f64, make=gemm_f64, plan=RING),
    Small("two loops", (300, 520, 328), (128, 256, 64), make=gemm_two_loops, plan=PIPELINES),
    Small("two loops, more tiles", (2100, 1104, 136), (64, 64, 64), f16, x=WIDE, make=gemm_two_loops, plan=PIPELINES),
    Small("chained", (300, 64, 64), (128, 64, 16), make=gemm_chained, wanted=_chained, plan=PIPELINES),
    Small("chained, more tiles", (9000, 64, 64), (64, 64, 32), f16, make=gemm_chained, wanted=_chained, plan=PIPELINES),
    Small("batched", (3, 70, 96, 80), (64, 64, 32), make=gemm_batched),
)
"""Every plan, and what it can meet."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and check products; print each."""
    parser = argparse.ArgumentParser(prog="python -m tests.properties.small_products", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1")
    parser.add_argument("--only", default="", help="those whose name has this in it")
    parser.add_argument("--list", action="store_true", help="print the names")
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if options.only in case.name]
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    with Device.parse(options.device):
        for case in cases:
            case.run()
            print(f"right: {case.name}", flush=True)
    print(f"{len(cases)} products are right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
