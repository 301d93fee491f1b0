"""Partitions in kernels: padding, permuted axes, nested tiles, tiles of a whole tensor, many ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cutile as ct
from tests.support.kernels import define, kernel
from tests.support.memory import BACKENDS, launch

Array = np.ndarray[Any, Any]
X = np.arange(70, dtype=np.float32).reshape(7, 10) + 1


def filled(*shape: int) -> Array:
    return np.full(shape, 77, np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("padding", "beyond"),
    [("ZERO", 0.0), ("NEG_ZERO", -0.0), ("NAN", np.nan), ("POS_INF", np.inf), ("NEG_INF", -np.inf)],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_loads_pad_with_what_was_chosen(padding: str, beyond: float, dtype: Any, backend: str) -> None:
    text = (
        "def pad(y: Mut, t: Mut, like: Mut, x: Tensor, right: Tensor):\n"
        f"    PADDING, i = ct.padding.{padding}, ct.get_tile_block_id()[0]\n"
        "    y.store(x.partition((4, 8), padding=PADDING).load((i, 1)))\n"
        "    t.store(x.load_tile((4, 8), (i, 1), padding=PADDING))\n"
        "    like.store(ct.load_tile_like(right, like, padding=PADDING))\n"
    )
    outputs = [filled(8, 8).astype(dtype) for _ in range(3)]
    x = X.astype(dtype)
    launch(kernel(text), *((y, (4, 8)) for y in outputs), x, x[:, 8:].copy(), backend=backend)
    expected = np.full((8, 8), beyond, dtype)
    expected[:7, :2] = X[:, 8:]
    for y in outputs:
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(np.signbit(y), np.signbit(expected))


def test_integers_are_padded_with_zeros_alone() -> None:
    text = "def pad(y: Mut, x: Tensor):\n    y.store(x.partition((8,), padding=ct.padding.NAN).load((0,)))\n"
    with pytest.raises(ct.KernelTypeError, match="the padding 'nan' is a float's"):
        launch(kernel(text), (np.zeros(8, np.int32), (8,)), np.zeros(8, np.int32))


@pytest.mark.parametrize("backend", BACKENDS)
def test_permuted_partitions(backend: str) -> None:
    """(batch, heads, rows, depth) = (2, 4, 16, 8), cut into tiles with the last two axes exchanged."""
    x = np.random.default_rng(0).standard_normal((2, 4, 16, 8)).astype(np.float32)
    y = filled(8, 8, 16)
    text = (
        "def permute(y: Mut, x: Tensor):\n"
        "    part = x.partition_permuted((1, 2, 4, 4), dim_map=(0, 1, 3, 2))\n"
        "    heads, column, row = ct.get_tile_block_id()\n"
        "    y.store(part.load((heads // 2, heads % 2, column, row)).reshape((2, 4, 4)))\n"
    )
    launch(kernel(text), (y, (2, 4, 4)), x, backend=backend)
    np.testing.assert_array_equal(y, x.transpose(0, 1, 3, 2).reshape(8, 8, 16))


def test_a_permutation_names_each_axis_once() -> None:
    text = "def permute(y: Mut, x: Tensor):\n    y.store(x.partition_permuted((2, 2), (0, 0)).load((0, 0)))\n"
    with pytest.raises(ct.KernelTypeError, match=r"dim_map \(0, 0\) is no order of the 2 axes"):
        launch(kernel(text), (filled(4, 4), (2, 2)), filled(4, 4))


NESTED = """
def nested(y: Mut, x: Tensor):
    part = y.partition_mut({tile})
    own = ct.get_tile_block_id()
    for a in range(ct.num_tiles(part, 0)):
        for b in range(ct.num_tiles(part, 1)):
            where = ct.convert_tile(1000 * own[0] + 100 * own[1] + 10 * a + b, y.dtype)
            part.store(part.load((a, b)) + where, (a, b))
"""


def stepwise(y: Array, outer: tuple[int, int], tile: tuple[int, int]) -> Array:
    """What nested tiles mean, element by element: an element's tile is that within its block's own tile."""
    expected = y.copy()
    for row, column in np.ndindex(*y.shape):
        block, column_block = row // outer[0], column // outer[1]
        a, b = row % outer[0] // tile[0], column % outer[1] // tile[1]
        expected[row, column] += np.float32(1000 * block + 100 * column_block + 10 * a + b)
    return expected


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("shape", "outer", "tile"),
    [
        ((8, 16), (4, 8), (2, 4)),
        ((7, 10), (3, 5), (2, 4)),  # divides nothing: the last tiles end with the block's own
        ((20, 30), (10, 10), (4, 4)),
        ((9, 9), (4, 4), (8, 3)),  # larger than the block's tile
    ],
)
def test_tiles_within_a_blocks_own_tile(
    shape: tuple[int, int], outer: tuple[int, int], tile: tuple[int, int], backend: str
) -> None:
    y = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    wanted = stepwise(y, outer, tile)
    launch(kernel(NESTED.format(tile=tile)), (y, outer), X, backend=backend)
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("shape", "outer", "block"), [((4, 8), (1, 8), 2), ((2, 3, 10), (1, 1, 10), 4), ((3, 10), (1, 10), 4)]
)
def test_rows_copied_piece_by_piece(shape: tuple[int, ...], outer: tuple[int, ...], block: int, backend: str) -> None:
    rank = len(shape)
    tile, ones = (*outer[:-1], block), "0, " * (rank - 1)
    text = (
        "def copy(y: Mut, x: Tensor):\n"
        f"    part, source = y.partition_mut({tile}), x.partition({tile})\n"
        "    own = ct.get_tile_block_id()\n"
        "    for j in range(ct.num_tiles(part, -1)):\n"
        f"        part.store(source.load((*own[:{rank - 1}], j)), ({ones}j))\n"
    )
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    y = np.zeros_like(x)
    launch(kernel(text), (y, outer), x, backend=backend)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_whole_tensor_written_by_one_block(backend: str) -> None:
    text = (
        "def copy(y: Mut, x: Tensor):\n"
        "    part, source = y.partition_full_mut((2, 4)), x.partition((2, 4))\n"
        "    for i in range(ct.num_tiles(part, 0)):\n"
        "        for j in range(ct.num_tiles(part, 1)):\n"
        "            part.store(source.load((i, j)), (i, j))\n"
        "    seven = ct.constant(7.0, (2, 4), ct.f32)\n"
        "    part.store_unchecked(seven, (-1, 0))\n"
        "    part.store_unchecked(seven, (0, 9))\n"
        "    part.store_unchecked(part.load_unchecked((0, -1)) + 5.0, (1, 1))\n"
    )
    y = filled(7, 10)
    launch(ct.entry(unsafe=True)(define(text)), (y, (7, 10)), X, backend=backend)
    wanted = X.copy()
    wanted[2:4, 4:8] = 5
    np.testing.assert_array_equal(y, wanted)


def test_a_whole_tensor_is_for_unsafe_kernels() -> None:
    text = "def f(y: Mut):\n    y.partition_full_mut((2,)).store(1.0, (0,))\n"
    with pytest.raises(ct.KernelTypeError, match="partition_full_mut"):
        launch(kernel(text), (filled(4), (2,)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_tiles_of_many_ranks(rank: int, backend: str) -> None:
    shape, tile = (2, 3, 4, 5, 6)[:rank], (1, 2, 3, 4, 5)[:rank]
    x = np.random.default_rng(rank).standard_normal(shape).astype(np.float32)
    size = int(np.prod(tile))
    counts = [-(-n // t) for n, t in zip(shape, tile, strict=True)]
    digits: list[str] = []
    rest = "i"
    for count in reversed(counts):
        digits.insert(0, f"({rest}) % {count}")
        rest = f"({rest}) // {count}"
    text = (
        "def gather(y: Mut, x: Tensor):\n"
        "    i, _, _ = ct.get_tile_block_id()\n"
        f"    y.store(x.partition({tile}).load(({', '.join(digits)},)).reshape((1, {size})))\n"
    )
    y = filled(int(np.prod(counts)), size)
    launch(kernel(text), (y, (1, size)), x, backend=backend)
    for number, index in enumerate(np.ndindex(*counts)):
        piece = x[tuple(slice(i * t, (i + 1) * t) for i, t in zip(index, tile, strict=True))]
        wanted = np.pad(piece, [(0, t - n) for t, n in zip(tile, piece.shape, strict=True)])
        np.testing.assert_array_equal(y[number], wanted.reshape(-1))


def test_a_read_only_partition_is_not_stored_to() -> None:
    text = "def f(y: Mut, x: Tensor):\n    x.partition((2,)).store(y.load(), (0,))\n"
    with pytest.raises(ct.KernelTypeError, match="store: 'x' is read only"):
        launch(kernel(text), (filled(4), (2,)), filled(4))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_blocks_own_tile_by_functions(backend: str) -> None:
    text = "def f(y: Mut):\n    ct.store_tile(y, 2.0 * ct.load_tile_mut(y) + ct.load_tile_mut(y))\n"
    y = X.copy()
    launch(kernel(text), (y, (4, 4)), backend=backend)
    np.testing.assert_array_equal(y, 3 * X)
    with pytest.raises(ct.KernelTypeError, match="store_tile: expected a Mut, got tensor"):
        launch(kernel("def f(y: Mut, x: Tensor):\n    ct.store_tile(x, y.load())\n"), (y, (4, 4)), X)


COPY = """
def copy(y: Mut, x: Tensor):
    i, j, _ = ct.get_tile_block_id()
    y.store(x.partition(y.shape).load((i, j)))
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("shape", "tile"), [((192, 134), (128, 128)), ((128, 100), (64, 64)), ((63, 63), (64, 64)), ((100, 64), (64, 64))]
)
def test_copies_of_sizes_that_the_tile_does_not_divide(
    shape: tuple[int, int], tile: tuple[int, int], backend: str
) -> None:
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    y = filled(*shape)
    launch(kernel(COPY), (y, tile), x, backend=backend)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("declared", ["Tensor", "Tensor[f32, 1000]"])
def test_a_sum_over_tiles_of_which_the_last_is_short(declared: str, backend: str) -> None:
    """1000 ones in tiles of 128: lanes 0 to 103 meet eight of them, the others seven."""
    text = (
        f"def total(y: Mut, x: {declared}):\n"
        "    part = x.partition((128,))\n"
        "    acc = ct.constant(0, (128,), f32)\n"
        "    for k in range(ct.num_tiles(part, 0)):\n"
        "        acc = acc + part.load(k)\n"
        "    y.store(acc)\n"
    )
    y = filled(128)
    launch(kernel(text, f32=ct.f32), (y, (128,)), np.ones(1000, np.float32), backend=backend)
    np.testing.assert_array_equal(y, np.where(np.arange(128) < 104, 8, 7))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("shape", "tile", "counts"),
    [((32, 1), (8, 1), (4, 1)), ((64, 128), (16, 32), (4, 4)), ((100, 65), (32, 64), (4, 2))],
)
def test_the_number_of_tiles(
    shape: tuple[int, int], tile: tuple[int, int], counts: tuple[int, int], backend: str
) -> None:
    text = (
        "def count(y: Mut, x: Tensor):\n"
        f"    part = x.partition({tile})\n"
        "    rows, columns = ct.get_index_space_shape(part)\n"
        "    same, own = ct.num_tiles(part, 0), ct.num_tiles(y, 0)\n"
        "    y.store(ct.broadcast(10 * rows + columns + 100 * same + 1000 * own, (1,)))\n"
    )
    y = np.zeros(3, np.int32)
    launch(kernel(text), (y, (1,)), np.zeros(shape, np.float32), backend=backend)
    np.testing.assert_array_equal(y, 10 * counts[0] + counts[1] + 100 * counts[0] + 3000)
