"""Loops of two chained products that read variables of the loop: rotated or not, they mean the same."""

from __future__ import annotations

import numpy as np
import pytest

from cutile import bf16, f16
from cutile.backend.cuda.pipeline.rotate import rotate
from cutile.backend.reference.interpret import run_block
from cutile.ir.types import Type
from cutile.ir.verify import verify
from tests.backend.cuda.programs import written
from tests.support.programs import mut, tensor

CARRIED = """
def f(o: Mut, q: Tensor, k: Tensor, v: Tensor):
    queries, acc = q.load_tile((32, 32), (0, 0)), ct.constant(0, (32, 32), ct.f32)
    place, tile = ct.i32(0), v.load_tile((32, 32), (0, 0))
    for i in range(ct.num_tiles(k.partition((32, 32)), 0)):
        scores = ct.mma(queries, (KEYS).transpose(), ct.constant(0, (32, 32), ct.f32))
        acc = ct.mma((SCORES).astype(ct.bf16), VALUES, acc)
        place, tile = place + 2, v.load_tile((32, 32), (i + 1, 0))
    o.store(acc)
"""


TILES = (
    "v.load_tile((32, 32), (i, 0))",
    "v.load_tile((32, 32), (place, 0))",
    "v.load_tile((32, 32), (i + place, 0))",
    "tile",
)


@pytest.mark.parametrize("keys", TILES)
@pytest.mark.parametrize("values", TILES)
@pytest.mark.parametrize("scores", ["scores", "scores + ct.f32(place)", "scores * tile.astype(ct.f32)"])
def test_a_loop_whose_products_read_what_it_carries_means_the_same(keys: str, values: str, scores: str) -> None:
    """Both products leave their iteration, and what the loop carries is another's by then."""
    operand = tensor(2, bf16)
    types: dict[str, Type] = {"o": mut(32, 32), "q": operand, "k": operand, "v": operand}
    text = CARRIED.replace("KEYS", keys).replace("VALUES", values).replace("SCORES", scores)
    function = written(text, types)
    rotated = rotate(function)
    verify(rotated)
    assert (rotated is function) is (keys != TILES[0] or values != TILES[0])
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((count, 32)).astype(bf16.numpy) for count in (32, 128, 256))
    results = [np.full((32, 32), np.nan, np.float32) for _ in range(2)]
    for program, o in zip((function, rotated), results, strict=True):
        run_block(program, dict(zip(program.parameters, (o, q, k, v), strict=True)), (0, 0, 0), (1, 1, 1))
    np.testing.assert_array_equal(results[0], results[1])


ADDED = """
def f(o: Mut, q: Tensor, k: Tensor, v: Tensor):
    queries, acc = q.load_tile((32, 32), (0, 0)), ct.constant(0, (32, 32), SUMS)
    total = acc
    for i in range(ct.num_tiles(k.partition((32, 32)), 0)):
        total = total + acc
        tile = k.load_tile((32, 32), (i, 0)).astype(SUMS)
        scores = ct.mma(queries, k.load_tile((32, 32), (i, 0)).transpose(), FIRST)
        acc = ct.mma(SCORES, v.load_tile((32, 32), (i, 0)), SECOND)
    o.store((acc + total).astype(ct.f32))
"""
"""The second product takes from its iteration what the first one has, or makes."""


@pytest.mark.parametrize("second", ["acc", "tile", "tile + acc"])
@pytest.mark.parametrize("first", ["ct.constant(0, (32, 32), SUMS)", "tile"])
@pytest.mark.parametrize(
    ("sums", "scores"),
    [
        ("ct.f32", "scores.astype(ct.bf16)"),
        ("ct.f16", "scores"),
        ("ct.f16", "scores + 1"),
        ("ct.f16", "scores.transpose()"),
    ],
)
def test_what_waits_for_the_second_product_is_that_of_its_own_iteration(
    sums: str, scores: str, first: str, second: str
) -> None:
    """The first product of the next iteration, which is begun ahead, gives the same values anew."""
    dtype = bf16 if "bf16" in scores else f16
    operand = tensor(2, dtype)
    types: dict[str, Type] = {"o": mut(32, 32), "q": operand, "k": operand, "v": operand}
    text = ADDED.replace("FIRST", first).replace("SECOND", second).replace("SCORES", scores).replace("SUMS", sums)
    function = written(text, types)
    rotated = rotate(function)
    verify(rotated)
    assert rotated is not function
    random = np.random.default_rng(0)
    q, k, v = (random.integers(-1, 2, (count, 32)).astype(dtype.numpy) for count in (32, 128, 128))
    results = [np.full((32, 32), np.nan, np.float32) for _ in range(2)]
    for program, o in zip((function, rotated), results, strict=True):
        run_block(program, dict(zip(program.parameters, (o, q, k, v), strict=True)), (0, 0, 0), (1, 1, 1))
    np.testing.assert_array_equal(results[0], results[1])
