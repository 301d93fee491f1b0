"""Random matrix products: shapes, layouts, dtypes, tiles, and what follows, each compared with float64.

    python -m tests.properties.products --device cuda --count 300     # minutes; a wrong one is shrunk and printed
    compute-sanitizer --tool racecheck python3 -m tests.properties.products --device cuda --count 8 --most 200

Shapes divide nothing, operands lie by rows or by columns, in the middle of larger arrays, on 16-byte boundaries or off
them: what a kernel may assume of each is another, and so is the code that it gets.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as fixed
from hypothesis import strategies as st

from cuda_async import Device
from cutile import CompileOptions, Tensor, api, bf16, f8e4m3fn, f8e5m2, f16, f32, f64, i8, i16, i32, tf32, u8
from cutile.dtypes import DTypeLike
from kernels.example import TOLERANCE
from kernels.gemm import matmul
from kernels.gemm_fused import ACTIVATIONS, Activation
from kernels.gemm_variants import integer_matmul, tf32_matmul
from tests.support.kernels import kernel

Case = TypeVar("Case")
RESULTS: dict[DTypeLike, Any] = {f8e4m3fn: bf16, tf32: f32, i8: i32}
PLAIN: dict[DTypeLike, Any] = {tf32: tf32_matmul, i8: integer_matmul}
"""Products that nothing follows."""
ALLOWED: dict[DTypeLike, float] = {**TOLERANCE, f8e4m3fn: TOLERANCE[bf16], tf32: 2e-3, i8: 0.0}

CONVERTED = """
def converted(z: Mut, x: Tensor, y: Tensor):
    BM, BN, BK = {tile}
    part_x, part_y = x.partition((BM, BK)), y.partition((BK, BN))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), ct.{sums})
    for k in range(ct.num_tiles(part_x, 1)):
        a, b = part_x.load((i, k)), part_y.load((k, j))
        acc = ct.mma(ct.convert_tile(a, ct.{dtype}), ct.convert_tile(b, ct.{dtype}), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""
"""A product whose operands are stored as other dtypes than it is of, and than one another."""
STORED: tuple[DTypeLike, ...] = (i8, u8, i16, f8e4m3fn, f8e5m2, f16, bf16, f32, f64)

Lies = Literal["whole", "wide", "odd", "apart", "backwards"]
"""How rows lie: one behind the other; in wider rows that begin at multiples of 16 bytes; or anywhere; with a row
between; the last one first."""

TILES = ((128, 256, 64), (128, 192, 64), (128, 128, 64), (128, 96, 64), (64, 256, 64), (64, 128, 64), (64, 64, 64))
TILES_OF_FEW_ROWS = ((16, 64, 64), (8, 64, 128), (1, 64, 64), (20, 128, 64), (48, 256, 64), (96, 128, 64))
TURNED = ((192, 128, 64), (96, 64, 64), (256, 64, 64), (64, 96, 64), (16, 128, 64))
"""Beside these: tiles for operands of which one lies across K, and 8 bits or tf32; depths are those of 16 bits."""
TILES_OF_WARPS = ((128, 128, 32), (64, 64, 32), (96, 80, 48), (32, 32, 16), (16, 16, 16))


@dataclass(frozen=True)
class Layout:
    """How an operand lies in memory."""

    turned: bool
    lies: Lies


@dataclass(frozen=True)
class Random:
    """A product."""

    m: int
    n: int
    k: int
    dtype: DTypeLike
    x: Layout
    y: Layout
    tile: tuple[int, int, int] | None
    bias: bool
    residual: bool
    activation: Activation
    pieces: int | None
    seed: int
    cluster: int = 1
    stored: tuple[DTypeLike | None, DTypeLike | None] = (None, None)
    """The operands' dtypes in memory, where they are others; nothing follows such a product."""

    @property
    def converts(self) -> bool:
        """Whether an operand is stored as another dtype than the product's."""
        return self.dtype is not tf32 and any(each not in (None, self.dtype) for each in self.stored)


def products(most: int) -> st.SearchStrategy[Random]:
    """Products with rows and columns up to `most`."""
    extent = st.one_of(st.integers(1, most), st.sampled_from([1, 64, 128, 192, 256]).filter(lambda n: n <= most))
    # so deep that the turns of few tile blocks are divided
    depth = st.one_of(extent, extent, st.sampled_from([2048, 2568, 4104]))
    layout = st.builds(Layout, st.booleans(), st.sampled_from(["whole", "wide", "odd", "apart", "backwards"]))
    stored: st.SearchStrategy[DTypeLike | None] = st.sampled_from((None,) * len(STORED) + STORED)
    plain = st.sampled_from([True, False, False])  # what follows is rarer than nothing
    return st.builds(
        Random,
        extent,
        extent,
        depth,
        st.sampled_from([bf16, f16, f32, f8e4m3fn, tf32, i8]),
        layout,
        layout,
        st.one_of(st.none(), *map(st.sampled_from, (TILES, TILES_OF_FEW_ROWS, TILES_OF_WARPS))),
        plain,
        plain,
        st.one_of(st.just("none"), st.sampled_from(tuple(ACTIVATIONS))),
        st.sampled_from([None, None, 1, 2, 4, 8, 16]),
        st.integers(0, 2**32 - 1),
        st.sampled_from([1, 1, 1, 2, 4]),
        st.one_of(st.just((None, None)), st.tuples(stored, stored)),
    )


def operand(values: np.ndarray[Any, Any], layout: Layout, random: np.random.Generator) -> Tensor:
    """A tensor of these values that lies so; around it is noise, that must not be read as part of it."""
    stored = np.ascontiguousarray(values.T if layout.turned else values)
    if layout.lies == "backwards":
        stored = stored[::-1]
    rows, columns = stored.shape
    per_line = 16 // stored.dtype.itemsize
    fill = -columns % per_line
    margins = {"wide": (1, per_line, fill), "odd": (1, 3, 2), "apart": (1, 0, fill)}
    above, left, right = margins.get(layout.lies, (0, 0, 0))
    step = 2 if layout.lies == "apart" else 1
    scale = 100 if stored.dtype.itemsize == 1 else 1e3
    noise = np.clip(random.standard_normal((step * rows + 2 * above, left + columns + right)), -1, 1) * scale
    around = noise.astype(stored.dtype)
    here = (slice(above, above + step * rows, step), slice(left, left + columns))
    around[here] = stored
    tensor = api.from_numpy(around).sync()
    view = tensor if layout.lies == "whole" else tensor[::-1] if layout.lies == "backwards" else tensor[here]
    return view.transpose() if layout.turned else view


def check(case: Random) -> None:
    """Compute a product on the default device and compare it with float64.

    Raises:
        AssertionError: it is wrong.
    """
    random = np.random.default_rng(case.seed)
    dtype: Any = (f32 if case.dtype is tf32 else case.dtype).numpy
    made_of = RESULTS.get(case.dtype, case.dtype)

    def draw(*shape: int) -> np.ndarray[Any, Any]:
        if case.dtype is i8:
            return random.integers(-128, 128, shape).astype(dtype)
        return random.standard_normal(shape).astype(np.float32).astype(dtype)

    x, y = draw(case.m, case.k), draw(case.k, case.n)
    bias, residual = draw(case.n).astype(made_of.numpy), draw(case.m, case.n).astype(made_of.numpy)
    tile = fitting(case)
    if case.converts:
        x, y = (_stored(each, other or case.dtype) for each, other in zip((x, y), case.stored, strict=True))
    poison = -77 if case.dtype is i8 else np.nan
    options: Any = {
        "out": api.from_numpy(np.full((case.m, case.n), poison, made_of.numpy)).sync(),
        "tile": None if tile is None else tile[:2],
        "depth": None if tile is None else tile[2],
    }
    operands = operand(x, case.x, random), operand(y, case.y, random)
    is_plain = case.dtype in PLAIN
    if case.converts:
        is_plain, tile = True, tile or (64, 64, 64)
        sums = "i32" if case.dtype is i8 else "f32"
        text = CONVERTED.format(tile=tile, sums=sums, dtype=case.dtype)
        product = kernel(text)(options["out"].partition(tile[:2]), *operands).first().unpartition()
        x, y = x.astype(dtype), y.astype(dtype)
    elif is_plain:
        product = PLAIN[case.dtype](*operands, **options)
    else:
        product = matmul(
            *operands,
            **options,
            bias=api.from_numpy(bias).sync() if case.bias else None,
            residual=api.from_numpy(residual).sync() if case.residual else None,
            activation=case.activation,
            options=CompileOptions(num_cta_in_cga=case.cluster, num_pieces=case.pieces),
        )
    result = product.sync().to_numpy().sync()
    wide = [each.astype(np.float64) for each in (x, y, bias, residual)]
    wanted = wide[0] @ wide[1]
    largest = np.abs(wanted).max()
    if not is_plain:
        wanted += case.bias * wide[2]
        largest = np.abs(wanted).max()  # an activation hardly adds to an error, but may leave nothing of the number
        wanted = _activated(case.activation, wanted) + case.residual * wide[3]
    error = np.abs(result - wanted).max() / max(largest, np.abs(wanted).max())
    assert error <= 2 * ALLOWED[case.dtype], f"error {error:.2e}"


def _stored(values: np.ndarray[Any, Any], dtype: DTypeLike) -> np.ndarray[Any, Any]:
    """Values in another dtype, small enough for every one to hold about what they are."""
    small = values // 2 if values.dtype == np.int8 else values
    return (np.abs(small) if dtype is u8 else small).astype(dtype.numpy)


def fitting(case: Random) -> tuple[int, int, int] | None:
    """The tile, of the same bytes along K whatever the dtype; a smaller one for what needs more registers."""
    if case.tile is None:
        return None
    rows, columns, depth = case.tile
    if case.dtype.bits == 8 and case.tile not in TILES_OF_WARPS:
        depth *= 2
    elif case.dtype is tf32:
        depth //= 2
    roomy = case.dtype in (bf16, f16, i8) and not case.residual
    return (rows, columns, depth) if roomy or rows * columns <= 128 * 128 else (64, 64, 32)


def _activated(name: str, t: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if name == "relu":
        return np.maximum(t, 0)
    if name == "gelu":
        return 0.5 * t * (1 + np.tanh(np.sqrt(2 / np.pi) * (t + 0.044715 * t**3)))
    return t / (1 + np.exp(-t)) if name == "silu" else t


def search(count: int, most: int, seed: int | None = None, limit: float = float("inf")) -> int:
    """Draw and check so many products; return how many were checked. A wrong one is shrunk to a small one, and raised.

    Args:
        count: of products.
        most: rows and columns of the largest.
        seed: draws the same ones again.
        limit: after so many seconds no more are checked.

    Raises:
        AssertionError: a product was wrong.
    """
    return searched(products(most), lambda case: check(case), count, seed, limit)


def searched(
    cases: st.SearchStrategy[Case],
    right: Callable[[Case], None],
    count: int,
    seed: int | None = None,
    limit: float = float("inf"),
) -> int:
    """Draw so many cases and check that each is right; return how many were, within `limit` seconds."""
    checks = (HealthCheck.too_slow, HealthCheck.data_too_large)
    phases = (Phase.generate, Phase.shrink)
    limits = settings(max_examples=count, deadline=None, phases=phases, suppress_health_check=checks, database=None)
    end = time.monotonic() + limit
    checked = 0

    @given(cases)
    def drawn(case: Case) -> None:
        nonlocal checked
        if time.monotonic() < end:
            right(case)
            checked += 1

    limits(drawn if seed is None else fixed(seed)(drawn))()
    return checked


def main(arguments: Sequence[str] | None = None) -> int:
    """Search on a device."""
    parser = argparse.ArgumentParser(prog="python -m tests.properties.products", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1")
    parser.add_argument("--count", type=int, default=100, help="how many products (default 100)")
    parser.add_argument("--most", type=int, default=700, help="the largest extent (default 700)")
    parser.add_argument("--seed", type=int, help="draws the same ones again")
    parser.add_argument("--limit", type=float, default=float("inf"), help="check no more after this many seconds")
    options = parser.parse_args(arguments)
    with Device.parse(options.device):
        checked = search(options.count, options.most, options.seed, options.limit)
    print(f"{checked} products are right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
