"""Lowered pipelines run by NumPy: they compute the kernel's results, and faults are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cutile.backend.cuda.model.layouts import check_layouts
from cutile.backend.cuda.model.protocol import ProtocolError
from cutile.backend.cuda.ops.pipeline import PipelineType
from cutile.backend.reference.interpret import run_block
from cutile.dtypes import DTypeLike, bf16, f8e4m3fn, f32, i32
from cutile.errors import IRError
from cutile.ir.constant import Constant
from cutile.ir.core import Function, Value
from cutile.ir.types import MutType, TensorType, Type
from tests.backend.cuda.executed import execute
from tests.backend.cuda.programs import lowered, written
from tests.backend.cuda.test_pipelines import NESTED, STEADY, TWO_LOOPS, WEIGHED, attention_program, products
from tests.support.programs import mut, scalar, tensor

Array = np.ndarray[Any, Any]

SHARED = """
def shared(z: Mut, x: Tensor, y: Tensor, u: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (64, 96), f32)
    for k in range(n):
        acc = ct.mma(ct.load_tile(x, (64, 64), (i, k)), ct.load_tile(y, (64, 96), (k, j)), acc)
    for k in range(n):
        acc = ct.mma(ct.load_tile(x, (64, 64), (i, k)), ct.load_tile(u, (96, 64), (j, k)).transpose(), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""
"""Tiles of two shapes with one layout in shared memory, both contiguous along K, share a buffer."""
AGAIN = """
def again(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (64, 64), f32)
    for k in range(n):
        s = ct.mma(ct.load_tile(x, (64, 64), (i, 0)), ct.load_tile(y, (64, 64), (0, j)), ct.constant(0, (64, 64), f32))
        s = ct.convert_tile(ct.min_tile(ct.max_tile(s, -2), 2), x.dtype)
        acc = ct.mma(s, ct.load_tile(y, (64, 64), (1, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""
"""Two chained products in a loop that loads nothing itself."""
CROSSED = """
def crossed(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    one, two = ct.constant(0, (64, 64), f32), ct.constant(0, (64, 64), f32)
    if n > 0:
        a, b = ct.load_tile(x, (64, 64), (i, 0)), ct.load_tile(x, (64, 64), (i, 1))
        c, d = ct.load_tile(y, (64, 64), (0, j)), ct.load_tile(y, (64, 64), (1, j))
        one = ct.mma(a, c, one)
        two = ct.mma(b, d, two)
        one = ct.mma(a, d, one)
    z.store(ct.convert_tile(one - two, z.dtype))
"""
"""A product that shares an operand with one product, and the other with another."""
INTERLEAVED = """
def interleaved(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (64, 64), f32)
    for k in range(n):
        a, b = ct.load_tile(x, (64, 64), (i, 2 * k)), ct.load_tile(x, (64, 64), (i, 2 * k + 1))
        d, c = ct.load_tile(y, (64, 64), (2 * k + 1, j)), ct.load_tile(y, (64, 64), (2 * k, j))
        acc = acc + ct.mma(a, c, ct.constant(0, (64, 64), f32)) * 2.0
        acc = acc + ct.mma(b, d, ct.constant(0, (64, 64), f32)) * 3.0
        for k1 in range(n):
            acc = acc + 1.0
    z.store(ct.convert_tile(acc, z.dtype))
"""
"""Steps of K whose loads begin in one order and end in another, beside a loop that no load is moved across."""
KEPT = """
def kept(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    acc = zeros = ct.constant(0, (64, 64), f32)
    for k in range(n):
        one = ct.mma(ct.load_tile(x, (64, 64), (i, k)), ct.load_tile(y, (64, 64), (k, j)), zeros)
        two = ct.mma(ct.load_tile(x, (64, 64), (i, k + 1)), ct.load_tile(y, (64, 64), (k + 1, j)), one)
        acc = acc + one * 3.0 + two
    z.store(ct.convert_tile(acc, z.dtype))
"""
"""A product that adds to sums which are read behind it, too."""
BEFORE = """
def before(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    one, two = ct.constant(0, (64, 64), f32), ct.constant(0, (64, 64), f32)
    if n > 0:
        a, b = ct.load_tile(x, (64, 64), (i, 0)), ct.load_tile(x, (64, 64), (i, 1))
        one = ct.mma(a, ct.load_tile(y, (64, 64), (0, j)), one)
        for k in range(n):
            two = ct.mma(b, ct.load_tile(y, (64, 64), (1, j)), two)
    z.store(ct.convert_tile(one - two, z.dtype))
"""
"""A product under way ahead of a loop of others."""
DOWN = """
def down(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    one, two = ct.constant(0, (64, 64), f32), ct.constant(0, (64, 64), f32)
    for k in range(n - 1, -1, -1):
        a = ct.load_tile(x, (64, 64), (i, k))
        one = ct.mma(a, ct.load_tile(y, (64, 64), (k, j)), one)
        two = ct.mma(a, ct.load_tile(y, (64, 64), (k + 1, j)), two)
    z.store(ct.convert_tile(one - two, z.dtype))
"""
BRANCH = """
def branch(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (64, 64), f32)
    for k in range(n):
        if (k + i) % 2 == 1:
            acc = ct.mma(ct.load_tile(x, (64, 64), (i, k)), ct.load_tile(y, (64, 64), (k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""
"""Products under a branch: an iteration without any may stand first, last, or between two."""
OTHERWISE = """
def otherwise(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    one, two, k = ct.constant(0, (64, 64), f32), ct.constant(0, (64, 64), f32), n - 1
    while k >= 0:
        if k % 3 == 1:
            pass
        else:
            a = ct.load_tile(x, (64, 64), (i, k))
            one = ct.mma(a, ct.load_tile(y, (64, 64), (k, j)), one)
            two = ct.mma(a, ct.load_tile(y, (64, 64), (k + 1, j)), two)
        k -= 1
    z.store(ct.convert_tile(one - two, z.dtype))
"""
"""Two products in the other block of a branch, in a loop that counts by itself."""
COUNTED = """
def counted(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    acc, k = ct.constant(0, (64, 64), f32), 0
    while k < n:
        acc = ct.mma(ct.load_tile(x, (64, 64), (i, k)), ct.load_tile(y, (64, 64), (k, j)), acc)
        k += 1
    z.store(ct.convert_tile(acc, z.dtype))
"""
WIDE = """
def wide(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (64, 512), f32)
    for k in range(n):
        s = ct.mma(ct.load_tile(x, (64, 64), (i, k)), ct.load_tile(y, (64, 64), (k, j)), ct.constant(0, (64, 64), f32))
        s = ct.convert_tile(ct.min_tile(ct.max_tile(s, -2), 2), x.dtype)
        acc = ct.mma(s, ct.load_tile(y, (64, 512), (k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""
"""More columns than an instruction has: each warpgroup has half, and half of a left operand that both read."""
STARTED = """
def started(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    count, acc = ct.constant(0, (64, 64), f32), ct.constant(0, (64, 64), f32)
    for k in range(n):
        count = count + 1
        s = ct.mma(ct.load_tile(x, (64, 64), (i, k)), ct.load_tile(y, (64, 64), (k, j)), ct.constant(0, (64, 64), f32))
        s = ct.convert_tile(ct.min_tile(ct.max_tile(s, -2), 2), x.dtype)
        acc = ct.mma(s, ct.load_tile(y, (64, 64), (k, j)), acc)
    z.store(ct.convert_tile(acc + count, z.dtype))
"""
"""The first iteration stands ahead of the loop, and its counters are constants."""

PLAIN = """
def plain(z: Mut, x: Tensor, y: Tensor, n: i32):
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, z.shape, f32)
    for k in range(n):
        acc = ct.mma(ct.load_tile(x, (z.shape[0], 64), (i, k)), ct.load_tile(y, (64, z.shape[1]), (k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))
"""


PROGRAMS = (NESTED, STEADY, WEIGHED, DOWN, AGAIN, BEFORE, CROSSED, BRANCH, OTHERWISE, COUNTED)


def whole(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(bf16.numpy)


def compare(function: Function, out: tuple[int, ...], arguments: list[Any], grid: tuple[int, int, int]) -> None:
    """Run a kernel by walking its tile IR, and lowered to pipelines."""
    kind = function.parameters[0].type
    assert isinstance(kind, MutType)
    expected, result = (np.full(out, 7, kind.dtype.numpy) for _ in range(2))
    values: dict[Value, Any] = dict(zip(function.parameters, [expected, *arguments], strict=True))
    for index in np.ndindex(grid):
        with np.errstate(all="ignore"):  # of no key, nothing is divided by nothing
            run_block(function, dict(values), (index[0], index[1], index[2]), grid)
    lowered_function = lowered(function)
    check_layouts(lowered_function)
    for blocks, seed in ((1, 0), (3, 1)):
        result[...] = 7
        execute(lowered_function, [result, *arguments], grid, blocks, seed)
        np.testing.assert_array_equal(result.astype(np.float32), expected.astype(np.float32))


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize(
    ("tile", "dtype"), [((64, 64), bf16), ((128, 64), bf16), ((24, 128), bf16), ((64, 64), f32), ((64, 64), f8e4m3fn)]
)
def test_plain_products_are_what_the_kernel_means(tile: tuple[int, int], dtype: DTypeLike, count: int) -> None:
    """Also of few rows, whose operands change places, and with a delayed epilogue."""
    right = TensorType(dtype, (None, None), (1, None), 16) if dtype is f8e4m3fn else tensor(2, dtype)
    types: dict[str, Type] = {"z": mut(*tile, dtype=bf16), "x": tensor(2, dtype), "y": right, "n": scalar(i32)}
    x, y = (whole(*shape, seed=seed).astype(dtype.numpy) for seed, shape in enumerate(((150, 300), (300, 140))))
    compare(written(PLAIN, types), (150, 140), [x, y, np.int32(count)], (150 // tile[0] + 1, 140 // tile[1] + 1, 1))


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize(
    "text",
    [*PROGRAMS, INTERLEAVED, KEPT],
    ids=lambda each: each.split("(")[0][5:],
)
def test_pipelines_compute_what_the_kernel_means(text: str, count: int) -> None:
    arguments = [whole(100, 200), whole(300, 100, seed=1), np.int32(count)]
    compare(products(text, 64, 64), (100, 100), arguments, (2, 2, 1))


def test_loops_one_after_the_other_share_a_pipeline() -> None:
    arguments = [whole(100, 200), whole(200, 100, seed=1), whole(100, 150, seed=2), whole(150, 100, seed=3)]
    compare(products(TWO_LOOPS, 64, 64), (100, 100), arguments, (2, 2, 1))


def test_warpgroups_share_the_columns_of_a_wide_result() -> None:
    arguments = [whole(64, 150), whole(150, 600, seed=1), np.int32(3)]
    types: dict[str, Type] = {"z": mut(64, 512), "x": tensor(2, bf16), "y": tensor(2, bf16), "n": scalar(i32)}
    compare(written(WIDE, types), (64, 600), arguments, (1, 2, 1))


def test_attention_is_rotated_and_right() -> None:
    arguments = [whole(1, 100, 64), whole(1, 200, 64, seed=1), whole(1, 200, 64, seed=2), np.float32(0.25)]
    compare(attention_program(64, 64, 64), (1, 100, 64), arguments, (1, 2, 1))


def test_a_tile_is_loaded_by_its_own_extents_where_it_shares_a_buffer() -> None:
    across = TensorType(bf16, (None, None), (1, None), 16)
    types: dict[str, Type] = {"z": mut(64, 96, dtype=bf16), "x": tensor(2, bf16), "y": across, "u": tensor(2, bf16)}
    function = written(SHARED, {**types, "n": scalar(i32)})
    arguments = [whole(64, 320), whole(200, 320, seed=1).T, whole(200, 320, seed=2), np.int32(5)]
    compare(function, (64, 200), arguments, (1, 3, 1))


def test_what_is_folded_lies_as_before() -> None:
    function = products(STARTED, 64, 64)
    compare(function, (64, 100), [whole(64, 320), whole(320, 100, seed=1), np.int32(5)], (1, 2, 1))
    broken = lowered(function)
    del next(op for op in broken.walk() if isinstance(op, Constant) and op.shape).attributes["layout"]
    with pytest.raises(IRError, match="a constant of which nobody says how it lies"):
        check_layouts(broken)


def test_a_kernel_whose_warps_wait_for_ever_ends() -> None:
    function = lowered(products(STEADY, 64, 64))
    arguments = [whole(64, 64), whole(64, 64), whole(64, 64), np.int32(1)]
    for op in function.walk():
        if op.name == "cuda.pipeline":
            op.results[0].type = PipelineType(1, 2, 1)  # one warpgroup releases, two are waited for
    with pytest.raises(ProtocolError, match="deadlock"):
        execute(function, arguments, (1, 3, 1))
