"""Mapped partitions: which block stores which tile, in which order; shared streams, parts, owned axes; prefixes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile import api
from tests.support.devices import on
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, cases_on_backends

Array = np.ndarray[Any, Any]
MISSING = -333.25  # of what nothing wrote


def tensor(array: Array) -> Any:
    return api.from_numpy(array).sync()


compiled = functools.cache(kernel)
"""A kernel of text, made once: grids and extents are no reason to compile anew."""


def pattern(*shape: int) -> Array:
    i = np.arange(math.prod(shape))
    return (((i % 13) - 6) * 0.5 + (i % 7) * 0.25).astype(np.float32).reshape(shape)


def poisoned(*shape: int) -> Any:
    return api.full(MISSING, shape, ct.f32).sync()


def schedule(counts: tuple[int, ...], groups: tuple[int, ...]) -> dict[tuple[int, ...], int]:
    """The position of each tile: the formulas, tile by tile."""
    counts = (1,) * (2 - len(counts)) + counts
    groups = (1,) * (2 - len(groups)) + groups
    rows, columns = counts[-2:]
    gm, gn = groups[-2:]
    positions: dict[tuple[int, ...], int] = {}
    for number, leading in enumerate(np.ndindex(*counts[:-2])):
        for t in range(rows * columns):
            band = gm * columns
            g = t // band
            first = g * gm
            size = min(rows - first, gm)
            r = t - g * band
            if (gm, gn) == (1, 1):
                m, n = t // columns, t % columns
            elif gn == 1:
                m, n = first + r % size, r // size
            else:
                capacity = size * gn
                group = r // capacity
                q = r % capacity
                m, n = first + q % size, group * gn + q // size
            positions[(*leading, m, n)] = number * rows * columns + t
    return positions


ORDER = """
def order(z: ct.MappedPartitionMut):
    block, blocks = ct.get_tile_block_id()[0], ct.get_num_tile_blocks()[0]
    turn = 0
    for index in z.iter_indices():
        z.store(ct.convert_tile(block + turn * blocks, z.dtype), index)
        turn = turn + 1
"""


@pytest.mark.parametrize(
    ("counts", "group", "blocks", "backend"),
    cases_on_backends(
        [
            *(((7,), (1,), blocks) for blocks in (1, 3, 4)),
            *(
                (counts, group, blocks)
                for counts in ((4, 4), (3, 5))
                for group in ((1, 1), (2, 1), (2, 2), (3, 2))
                for blocks in (1, 5, math.prod(counts))
            ),
            ((2, 3, 2), (1, 1, 1), 4),
            ((2, 3, 2), (1, 2, 1), 4),
            ((2, 3, 4), (1, 2, 3), 5),
        ],
        lambda counts, group, blocks: blocks in (4, 5),
    ),
)
def test_the_schedule_is_exact(counts: tuple[int, ...], group: tuple[int, ...], blocks: int, backend: str) -> None:
    with on(backend):
        z = poisoned(*counts)
        compiled(ORDER)(z.mut.partition((1,) * len(counts)).map(group, blocks)).sync()
        got = z.to_numpy().sync()
    expected = np.full((1,) * (2 - len(counts)) + counts, MISSING, np.float32)
    for index, position in schedule(counts, group).items():
        expected[index] = position
    np.testing.assert_array_equal(got, expected.reshape(counts))


DOUBLE = """
def double(z: ct.MappedPartitionMut, x: Tensor):
    part = x.partition(z.shape)
    for index in z.iter_indices():
        z.store(2.0 * part.load_pipelined(index, {latency}), index)
"""


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]] = [
    ((64,), (16,), (1,), 2),
    ((40, 48), (16, 32), (2, 1), 3),  # tiles that reach over the edges
    ((4, 8, 16), (1, 4, 8), (1, 1, 1), 4),
    ((4, 8, 16), (1, 4, 8), (1, 2, 1), 4),
]


@pytest.mark.parametrize(
    ("shape", "tile", "group", "blocks", "latency", "backend"),
    cases_on_backends(
        ((*case, latency) for case in SHAPES for latency in (1, 2, 4, 8)),
        lambda shape, tile, group, blocks, latency: latency == 2,
    ),
)
def test_values(
    shape: tuple[int, ...], tile: tuple[int, ...], group: tuple[int, ...], blocks: int, latency: int, backend: str
) -> None:
    x = pattern(*shape)
    with on(backend):
        out = compiled(DOUBLE.format(latency=latency))(poisoned(*shape).partition(tile).map(group, blocks), tensor(x))
        z = out.sync().z
        assert isinstance(z, ct.Partition)  # the plain partition comes back
        np.testing.assert_array_equal(z.unpartition().to_numpy().sync(), 2 * x)


SHARED = """
def shared(out: ct.MappedPartitionMut, twice: ct.MappedPartitionMut, x: Tensor):
    part = x.partition(out.shape)
    for index in out.iter_indices_with(twice):
        tile = part.load_index(index)
        out.store(tile, index)
        twice.store(tile + tile, index)
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("group", [(1, 1), (2, 1)])
def test_two_outputs_share_a_stream(group: tuple[int, int], backend: str) -> None:
    x = pattern(64, 48)
    with on(backend):
        out, twice = (poisoned(64, 48) for _ in range(2))
        mapped = [each.mut.partition((16, 16)).map(group, 4) for each in (out, twice)]
        compiled(SHARED)(*mapped, tensor(x)).sync()
        np.testing.assert_array_equal(out.to_numpy().sync(), x)
        np.testing.assert_array_equal(twice.to_numpy().sync(), 2 * x)


def test_outputs_that_share_a_stream_agree() -> None:
    x = tensor(pattern(64, 48))

    def launch(shape: tuple[int, int], group: tuple[int, int], blocks: int) -> None:
        out, twice = poisoned(64, 48), poisoned(*shape)
        first = out.partition((16, 16)).map((1, 1), 4)
        compiled(SHARED)(first, twice.partition((16, 16)).map(group, blocks), x).sync()

    with pytest.raises(ct.LaunchError, match=r"'out' has \(4, 1, 1\) tile blocks, 'twice' has \(8, 1, 1\)"):
        launch((64, 48), (1, 1), 8)
    with pytest.raises(ct.KernelTypeError, match=r"'out' has the map \(1, 1\), 'twice' the map \(2, 1\)"):
        launch((64, 48), (2, 1), 4)
    with pytest.raises(ct.LaunchError, match="along axis 0 the number of tiles of 'out' less that of 'twice' is 2"):
        launch((32, 48), (1, 1), 4)


WITHIN = """
def part(z: ct.MappedPartitionMut, x: Tensor, first: i32, count: i32):
    source = x.partition(z.shape)
    for index in z.iter_indices_within([{ranges}]):
        z.store(source.load(index), index)
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("ranges", "rows"),
    [
        ("(first, count), (0, -1)", slice(16, 48)),
        ("(1, 2), (0, -1)", slice(16, 48)),
        ("(2, -1), (0, 2)", slice(32, 64)),
        ("(first, 0), (0, -1)", slice(0, 0)),
        ("(4, -1), (0, -1)", slice(0, 0)),
    ],
)
def test_a_part_of_the_tiles(ranges: str, rows: slice, backend: str) -> None:
    x = pattern(64, 32)
    expected = np.full_like(x, MISSING)
    expected[rows] = x[rows]
    with on(backend):
        z = poisoned(64, 32)
        compiled(WITHIN.format(ranges=ranges))(z.mut.partition((16, 16)).map((2, 1), 3), tensor(x), 1, 2).sync()
        np.testing.assert_array_equal(z.to_numpy().sync(), expected)


@pytest.mark.parametrize(("first", "count"), [(1, -1), (-1, 2), (3, 2), (5, 0)])
def test_a_part_outside_of_the_tiles_is_refused(first: int, count: int) -> None:
    z = poisoned(64, 32).partition((16, 16)).map((1, 1), 3)
    op = compiled(WITHIN.format(ranges="(first, count), (0, -1)"))(z, tensor(pattern(64, 32)), first, count)
    with pytest.raises(ct.LaunchError, match="iter_indices_within: along axis 0 of 'z', the"):
        op.sync()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_a_cache_at_a_position(backend: str) -> None:
    """(heads, rows, depth) = (2, 8, 16): two new rows from row 3 on."""
    text = (
        "def update(cache: ct.MappedPartitionMut, new: Tensor, position: i32, count: i32):\n"
        "    rows = new.partition(cache.shape)\n"
        "    for index in cache.iter_indices_within([(0, -1), (position, count), (0, -1)]):\n"
        "        head, row, _ = index.coords()\n"
        "        cache.store(rows.load((head, row - position, 0)), index)\n"
    )
    new = pattern(2, 2, 16)
    expected = np.full((2, 8, 16), MISSING, np.float32)
    expected[:, 3:5] = new
    with on(backend):
        cache = poisoned(2, 8, 16)
        compiled(text)(cache.mut.partition((1, 1, 16)).map((1, 1, 1), 3), tensor(new), 3, 2).sync()
        np.testing.assert_array_equal(cache.to_numpy().sync(), expected)


OWNS = """
def rows(z: ct.MappedPartitionMut, x: Tensor):
    part = x.partition(z.shape)
    for index in z.iter_indices():
        row, columns = index.components()
        for column in columns:
            z.store(part.load((row, column)) + 1.0, (row, column))
        z.store(part.load((row, 0)), (row, 0))
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_owned_axis_belongs_to_the_item(backend: str) -> None:
    x = pattern(40, 50)
    expected = x + 1
    expected[:, :16] = x[:, :16]
    with on(backend):
        z = poisoned(40, 50)
        compiled(OWNS)(z.mut.partition((8, 16)).map((1, ct.OWNED), 2), tensor(x)).sync()
        np.testing.assert_array_equal(z.to_numpy().sync(), expected)


COMPUTES = """
def number(z: ct.MappedPartitionMut):
    for index in z.iter_indices():
        row, columns = index.components()
        for column in columns:
            below = 0 * row
            for i in range(row):
                below += i
            sign = -1 if row == 0 and column > 0 else 1
            found = sign * (row + 10 * column).astype(ct.i32) + below - (-column) + max(row, column)
            z.store(ct.broadcast(found, z.shape), (row, column))
            print(f"{row} {column}")
"""


@pytest.mark.parametrize("backend", [*BACKENDS, "interpret"])
def test_a_component_is_an_integer(backend: str) -> None:
    row, column = np.indices((4, 3))
    sign = np.where((row == 0) & (column > 0), -1, 1)
    expected = sign * (row + 10 * column) + row * (row - 1) // 2 + column + np.maximum(row, column)
    with on("reference" if backend == "interpret" else backend):
        z = api.zeros((4, 3), ct.i32).sync()
        op = compiled(COMPUTES)(z.mut.partition((1, 1)).map((1, ct.OWNED), 2))
        (op.interpret() if backend == "interpret" else op).sync()
        np.testing.assert_array_equal(z.to_numpy().sync(), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_components_are_indices_of_elements_too(backend: str) -> None:
    text = (
        "def pick(z: ct.MappedPartitionMut, x: Tensor):\n"
        "    for index in z.iter_indices():\n"
        "        row, columns = index.components()\n"
        "        for column in columns:\n"
        "            z.store(ct.gather(x, (row, ct.iota((4,)) + column)).reshape((1, 4)), (row, column))\n"
    )
    x = pattern(3, 8)
    with on(backend):
        z = poisoned(3, 8)
        compiled(text)(z.mut.partition((1, 4)).map((1, ct.OWNED), 2), tensor(x)).sync()
        np.testing.assert_array_equal(z.to_numpy().sync(), np.concatenate([x[:, 0:4], x[:, 1:5]], axis=1))


def test_a_tile_past_an_owned_axis_is_refused_at_the_launch() -> None:
    text = (
        "def rows(z: ct.MappedPartitionMut):\n"
        "    for index in z.iter_indices():\n"
        "        row, _ = index.components()\n"
        "        z.store(1.0, (row, 4))\n"
    )
    z = poisoned(40, 50).partition((8, 16)).map((1, ct.OWNED), 2)
    with pytest.raises(ct.LaunchError, match="the owned axis 1 of 'z' is 4; it must be at least 0 and below 4"):
        compiled(text)(z).sync()


@pytest.mark.parametrize(
    ("body", "group", "message"),
    [
        ("z.store(1.0, (0, 0))", (1, 1), "takes the indices that its own stream mints, got int 0"),
        (
            "z.store(1.0, w_index)",
            (1, 1),
            "its own stream mints, got component along axis 0 of an index of 'w'",
        ),
        ("z.store(1.0, (index.components()[1], index.components()[0]))", (1, 1), "stands in the place of axis 0"),
        ("z.store(1.0, (index.components()[0], 0))", (1, 1), "its own stream mints, got int 0"),
        ("z.store(1.0, index)", (1, 0), "axis 1 is OWNED"),
        ("z.store(1.0)", (1, 1), ".store: missing a required argument: 'index'"),
    ],
)
def test_a_foreign_index_is_refused(body: str, group: tuple[int, int], message: str) -> None:
    text = (
        "def f(z: ct.MappedPartitionMut, w: ct.MappedPartitionMut):\n"
        "    for w_index in w.iter_indices():\n"
        "        w.store(0.0, w_index)\n"
        "        for index in z.iter_indices():\n"
        f"            {body}\n"
    )
    z, w = (poisoned(32, 32).partition((16, 16)) for _ in range(2))
    op = compiled(text)(z.map(group, 2), w.map((1, 1), 2))
    with pytest.raises(ct.KernelTypeError, match=message):
        op.sync()


@pytest.mark.parametrize(
    ("group", "blocks", "message"),
    [
        ((1,), 1, "give one extent for each axis"),
        ((0, 0, 0), 1, "streams no axis"),
        ((2, 1, 1), 1, "only the last two axes can be grouped"),
        ((1, 1, 1), 0, "at least 1, got 0"),
        ((1, 1, 1), 9, "9 tile blocks for 8 streamed tiles"),
        ((1, 1, 0), 5, "5 tile blocks for 4 streamed tiles"),
    ],
)
def test_maps_that_do_not_fit(group: tuple[int, ...], blocks: int, message: str) -> None:
    with pytest.raises(ct.LaunchError, match=message):
        poisoned(4, 4, 4).partition((2, 2, 2)).map(group, blocks)


@pytest.mark.parametrize("group", [None, "ab", 1.5])
def test_a_map_that_is_no_shape(group: Any) -> None:
    with pytest.raises(ct.ArgumentTypeError, match="map: expected an extent or a sequence of extents"):
        poisoned(4, 4).partition((2, 2)).map(group, 2)


def test_what_is_mapped_goes_where_a_mapped_partition_is_taken() -> None:
    z = poisoned(32)
    with pytest.raises(ct.ArgumentTypeError, match=r"map it: z.partition\(\(16,\)\).map\(\(1,\), num"):
        compiled(ORDER)(z.mut.partition((16,)))
    plain = compiled("def plain(z: Mut):\n    z.store(1.0)\n")
    with pytest.raises(ct.ArgumentTypeError, match="is a mapped partition, and the kernel takes a plain one"):
        plain(z.mut.partition((16,)).map((1,), 2))
    assert float(plain(z.partition((16,))).first().unpartition().to_numpy().sync()[0]) == 1.0  # nothing holds it


GEMM = """
def gemm(z: ct.MappedPartitionMut, x: Tensor, y: Tensor):
    part_x, part_y = x.partition((16, 8)), y.partition((8, 16))
    for index in z.iter_indices():
        i, j = index.coords()
        acc = ct.constant(0, (16, 16), ct.f32)
        for k in range(ct.num_tiles(part_x, 1)):
            acc = ct.mma(part_x.load((i, k)), part_y.load((k, j)), acc)
        z.store(acc, index)
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_persistent_product(backend: str) -> None:
    r, c = np.indices((64, 32))
    x = (((r % 7) - 3) * 0.25 + (c % 5) * 0.125).astype(np.float32)
    r, c = np.indices((32, 64))
    y = (((r % 3) + 1) * 0.2 - (c % 11) * 0.05).astype(np.float32)
    with on(backend):
        z = api.zeros((64, 64), ct.f32).sync()
        op = compiled(GEMM)(z.mut.partition((16, 16)).map((4, 1), 4), tensor(x), tensor(y))
        assert "check_tile" not in op.render("passes")  # all of them are the launch's
        op.sync()
        np.testing.assert_allclose(z.to_numpy().sync(), x @ y, atol=1e-3)


def test_streams_run_as_plain_python() -> None:
    x = pattern(40, 50)
    expected = x + 1
    expected[:, :16] = x[:, :16]
    with on("reference"):
        z = poisoned(40, 50)
        compiled(OWNS)(z.mut.partition((8, 16)).map((1, ct.OWNED), 2), tensor(x)).interpret().sync()
        np.testing.assert_array_equal(z.to_numpy().sync(), expected)
        z = poisoned(40, 50)
        ranges = "(first, count), (0, -1)"
        mapped = z.mut.partition((8, 16)).map((2, 1), 3)
        compiled(WITHIN.format(ranges=ranges))(mapped, tensor(x), 1, 2).interpret().sync()
        np.testing.assert_array_equal(z.to_numpy().sync()[8:24], x[8:24])


# Prefixes


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_launch_covers_the_first_tiles_alone(backend: str) -> None:
    seven = compiled("def seven(y: Mut):\n    y.store(7.0)\n")
    with on(backend):
        y = seven(api.zeros((40, 8), ct.f32).sync().partition_prefix((16, 8))).grid((2,)).first().unpartition().sync()
        got = y.to_numpy().sync()
    np.testing.assert_array_equal(got[:32], 7)
    np.testing.assert_array_equal(got[32:], 0)


def test_the_grid_of_a_prefix() -> None:
    seven = compiled("def seven(y: Mut):\n    y.store(7.0)\n")
    y = api.zeros((40, 8), ct.f32).sync()
    with pytest.raises(ct.LaunchError, match=r"exceeds the partial-coverage partition grid .* of 'y' on axis 0"):
        seven(y.mut.partition_prefix((16, 8))).grid((4,))
    with pytest.raises(ct.LaunchError, match="grid required: 'y' is a partial-coverage partition"):
        seven(y.mut.partition_prefix((16, 8))).sync()
    with pytest.raises(ct.LaunchError, match="does not match"):
        seven(y.mut.partition((16, 8))).grid((2,))


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_of_a_prefix_are_not_joined_past_its_end(backend: str) -> None:
    """On the CPU, neighbouring tile blocks run as one."""
    add = compiled("def add(y: Mut, x: Tensor):\n    y.store(y.load() + ct.load_tile_like(x, y))\n")
    with on(backend):
        y = api.zeros((4096,), ct.f32).sync()
        add(y.mut.partition_prefix((8,)), api.ones((4096,), ct.f32).sync()).grid((300,)).sync()
        got = y.to_numpy().sync()
    np.testing.assert_array_equal(got, np.arange(4096) < 2400)


def test_a_stream_of_more_tiles_than_32_bits_count_is_refused() -> None:
    partition = api.meta((2**20, 2**11), ct.u8).partition((1, 1))
    with pytest.raises(ct.LaunchError, match="2147483648 streamed tiles are more than the 2147483647"):
        partition.map((4, 2), 8)
    assert partition.map((4, 0), 8).blocks == 8


PREFIXES: dict[str, Callable[[Any], Any]] = {
    "partition_prefix": lambda y: y.mut.partition_prefix((2, 2)).map((1, 1), 3),
    "prefix": lambda y: y.mut.partition((2, 2)).prefix().map((1, 1), 3),
    "owned": lambda y: y.partition_prefix((2, 2)).map((1, 1), 3),
    "after map": lambda y: compiled(ORDER)(later_a_prefix(y.mut.partition((2, 2)))),
}


@pytest.mark.parametrize("mapped", PREFIXES.values(), ids=PREFIXES)
def test_the_prefix_of_a_partition_is_not_shared_among_blocks(mapped: Callable[[Any], Any]) -> None:
    """`map` dropped the prefix: the launch wrote all tiles."""
    y = poisoned(8, 8)
    with pytest.raises(ct.LaunchError, match=r"^(order: .*)?map: expected a whole partition, got a prefix; .*\[:n\]"):
        mapped(y)
    first = y[:4].mut.partition((2, 2)).map((1, 1), 3)  # the remedy
    compiled(ORDER)(first).sync()
    assert (y.numpy()[4:] == MISSING).all()
    assert (y.numpy()[:4] != MISSING).all()


def later_a_prefix(partition: Any) -> Any:
    mapped = partition.map((1, 1), 3)
    partition.prefix()
    return mapped
