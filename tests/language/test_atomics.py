"""Atomic updates: every kind, dtype and backend against NumPy's `ufunc.at`; many tile blocks on few elements."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile import Mut, Tensor, api, f32, i32
from cutile.dtypes import BY_NAME, DTypeLike, bf16, f16, f64, i64, u32, u64
from cutile.errors import KernelTypeError
from tests.support.devices import on
from tests.support.draw import draw
from tests.support.kernels import define, kernel
from tests.support.memory import BACKENDS, cases_on_backends

INTS: dict[str, Any] = {
    "ADD": np.add, "AND": np.bitwise_and, "OR": np.bitwise_or, "XOR": np.bitwise_xor, "MAX": np.maximum,
    "MIN": np.minimum, "UMAX": np.maximum, "UMIN": np.minimum,
}  # fmt: skip

RMW = """
def k(old: Mut, p: ct.Ptr, x: Tensor, index: Tensor):
    lanes = ct.load_tile_like(index, old)
    places = p.offset(lanes)
    x_tile = ct.load_tile_like(x, old)
    before, _ = ct.atomic_rmw_tko(places, x_tile, ct.atomic.{mode}, ct.ordering.{order}, mask=lanes >= 0)
    old.store(before)
"""


def updated(mode: str, dtype: DTypeLike, index: Any, x: Any, start: Any, backend: str, order: str = "RELAXED") -> Any:
    """What is in memory afterwards, and what each lane found."""
    atomic = ct.entry(unsafe=True)(define(RMW.format(mode=mode, order=order)))
    with on(backend):
        memory = api.from_numpy(start).sync()
        given = [api.from_numpy(each).sync() for each in (x, index)]
        old = api.zeros(index.shape, dtype).partition((96,))
        out = atomic(old, memory.device_pointer(), *given).sync()
        return memory.to_numpy().sync(), out[0].unpartition().to_numpy().sync()


@pytest.mark.parametrize(
    ("dtype", "backend"), cases_on_backends([(i32,), (i64,), (u32,), (u64,)], lambda dtype: dtype in (i32, u64))
)
def test_integer_updates(dtype: DTypeLike, backend: str) -> None:
    rng = np.random.default_rng(1)
    index = rng.integers(-1, 5, 288).astype(np.int32)
    x, start = draw(dtype, (288,), "any", 2), draw(dtype, (5,), "any", 3)
    for position, (mode, function) in enumerate(INTS.items()):
        orders = ("RELAXED", "ACQUIRE", "RELEASE", "ACQ_REL")
        memory, old = updated(mode, dtype, index, x, start, backend, orders[position % 4])
        kind = {"M": f"i{dtype.bits // 8}", "U": f"u{dtype.bits // 8}"}.get(mode[0], dtype.numpy)
        wanted = start.copy()
        function.at(wanted.view(kind), index[index >= 0], x[index >= 0].view(kind))
        np.testing.assert_array_equal(memory, wanted, err_msg=mode)
        assert not old[index < 0].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64], ids=str)
def test_float_sums(dtype: DTypeLike, backend: str) -> None:
    """Small whole numbers: sums are exact in any order."""
    rng = np.random.default_rng(2)
    index = rng.integers(-1, 6, 192).astype(np.int32)
    x = rng.integers(-2, 3, 192).astype(dtype.numpy)
    memory, _ = updated("ADDF", dtype, index, x, np.zeros(6, dtype.numpy), backend)
    wanted = [x[index == each].astype(np.float64).sum() for each in range(6)]
    np.testing.assert_array_equal(memory.astype(np.float64), wanted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [i32, i64, u32, u64, f32, f64], ids=str)
def test_exchanges_lose_nothing(dtype: DTypeLike, backend: str) -> None:
    """Everything that was put in comes out, or stays: a multiset of bits."""
    x, start = draw(dtype, (288,), "any", 4), draw(dtype, (1,), "any", 5)
    bits = f"u{dtype.bits // 8}"
    memory, old = updated("XCHG", dtype, np.zeros(288, np.int32), x, start, backend)
    left = np.sort(np.r_[memory, old].view(bits))
    np.testing.assert_array_equal(left, np.sort(np.r_[start, x].view(bits)))


TICKETS = """
def k(taken: Mut, x: Tensor):
    i = ct.get_tile_block_id()[0]
    spot = ct.atomic_cas(taken, ct.load_tile(x, (32,), (i,)), {empty}, ct.convert_tile(i + 1, taken.dtype))
    total = ct.reduce_sum(ct.convert_tile(spot == {empty}, ct.i32), 0)
    ct.atomic_add(taken, taken_size, ct.convert_tile(total, taken.dtype))
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["i32", "i64", "u32", "u64", "f32", "f64"])
def test_each_place_is_taken_once(dtype: str, backend: str) -> None:
    tickets = kernel(TICKETS.format(empty=0).replace("taken_size", "40"))
    wishes = np.random.default_rng(6).integers(0, 40, 16 * 32).astype(np.int32)
    with on(backend):
        taken = api.zeros((41,), BY_NAME[dtype]).partition((41,))
        out = tickets(taken, api.from_numpy(wishes).sync()).grid((1,)).first().unpartition().sync().to_numpy().sync()
        first = np.unique(wishes[:32])
        assert out[40] == len(first)  # one block: every wished place is found empty once
        assert (out[first] == 1).all()


CAS = """
def k(old: Mut, p: ct.Ptr, expected: Tensor, value: Tensor):
    lanes = ct.iota((8,))
    e, v = ct.load_tile_like(expected, old), ct.load_tile_like(value, old)
    found, _ = ct.atomic_cas_tko(p.offset(lanes), e, v, ct.ordering.ACQ_REL, ct.scope.DEVICE, lanes < 7)
    old.store(found)
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [i32, i64, u32, u64, f32, f64], ids=str)
def test_a_comparison_is_of_bits(dtype: DTypeLike, backend: str) -> None:
    """-0 is not 0, a NaN is itself; where a lane is masked off nothing happens."""
    start = np.array([1, 2, 0, 3, 5, 6, 7, 8], dtype.numpy)
    expected = start.copy()
    expected[1] = 9
    if dtype.kind == "float":
        expected[2], start[3], expected[3] = -0.0, np.nan, np.nan
    value = np.arange(10, 18).astype(dtype.numpy)
    bits = f"u{dtype.bits // 8}"
    swapped = (start.view(bits) == expected.view(bits)) & (np.arange(8) < 7)
    with on(backend):
        memory, *given = (api.from_numpy(each).sync() for each in (start, expected, value))
        old = api.full(77, (8,), dtype).sync().partition((8,))
        out = ct.entry(unsafe=True)(define(CAS))(old, memory.device_pointer(), *given).first().unpartition().sync()
        np.testing.assert_array_equal(memory.to_numpy().sync(), np.where(swapped, value, start))
        np.testing.assert_array_equal(out.to_numpy().sync()[:7], start[:7])


@ct.entry
def everyone(y: Mut, n: i32):
    """Every tile block adds to the same tile, and to the same scalar."""
    ct.atomic_red_view_tko(y, ct.constant(1.0, y.shape, f32), (0, 0), ct.atomic.ADDF)
    ct.atomic_add(y, (n, 0), 0.5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_blocks_add_to_one_tile(backend: str) -> None:
    with on(backend):
        out = everyone(api.zeros((512, 16)).partition((16, 16)), 100).first().unpartition().sync()
        expected = np.zeros((512, 16))
        expected[:16] = 32
        expected[100, 0] = 16
        np.testing.assert_array_equal(out.to_numpy().sync(), expected)


@ct.entry(unsafe=True)
def columns(y: Mut, x: Tensor):
    """Tiles of another shape than the partition's, clipped at the edges."""
    part = y.partition_full_mut((8, 3))
    i = ct.get_tile_block_id()[0]
    ct.atomic_red_view_tko(part, ct.load_tile(x, (8, 3), (i, i)), (i, i), ct.atomic.ADDF)
    ct.atomic_red_view_tko(part, ct.constant(1.0, (8, 3), f32), (1, 2), ct.atomic.ADDF)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tiles_of_the_whole_tensor_are_updated(backend: str) -> None:
    x = np.arange(20 * 7, dtype=np.float32).reshape(20, 7)
    with on(backend):
        out = columns(api.zeros((20, 7)).partition((7, 7)), api.from_numpy(x).sync()).first().unpartition().sync()
        expected = np.zeros((20, 7))
        for i in range(3):
            expected[8 * i : 8 * i + 8, 3 * i : 3 * i + 3] += x[8 * i : 8 * i + 8, 3 * i : 3 * i + 3]
        expected[8:16, 6:] += 3
        np.testing.assert_array_equal(out.to_numpy().sync(), expected)


HISTOGRAM = """
def k(counts: Mut, x: Tensor, n: i32):
    values = ct.load_tile(x, (256,), (ct.get_tile_block_id()[0],))
    ct.atomic_add(counts, values, 1, mask=ct.get_tile_block_id()[0] * 256 + ct.iota((256,)) < n)
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_histogram_over_threads(backend: str) -> None:
    x = np.random.default_rng(7).integers(0, 60, 9000).astype(np.int32)  # some past the last bin
    with on(backend):
        counts = api.zeros((50,), i32).partition((1,))
        out = kernel(HISTOGRAM)(counts, api.from_numpy(x).sync(), 9000).first().unpartition().sync()
        np.testing.assert_array_equal(out.to_numpy().sync(), np.bincount(x, minlength=60)[:50])


SIGNAL = """
def k(y: Mut, flag: ct.Ptr[ct.i32], data: ct.Ptr[ct.i32]):
    i = ct.get_tile_block_id()[0]
    lanes = ct.iota((64,))
    if i == 0:
        token = ct.store_ptr_tko(data.offset(lanes), lanes + 7)
        ct.store_ptr_tko(flag, 1, ct.ordering.RELEASE, ct.scope.DEVICE, token=token)
    seen, token = ct.load_ptr_tko(flag, ct.ordering.ACQUIRE, ct.scope.DEVICE)
    if seen == 1:
        found, _ = ct.load_ptr_tko(data.offset(lanes), token=token)
        y.store(found)
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_released_is_acquired(backend: str) -> None:
    """No block waits for another; one that sees the flag sees the data."""
    signal = ct.entry(unsafe=True)(define(SIGNAL))
    with on(backend):
        memory = api.zeros((65,), i32).sync()
        flag, data = memory.device_pointer(), memory.slice(range(1, 65)).device_pointer()
        out = signal(api.zeros((64 * 40,), i32).partition((64,)), flag, data).sync()[0].unpartition().to_numpy().sync()
        rows = out.reshape(40, 64)
        assert (rows[0] == np.arange(64) + 7).all()
        assert all((row == 0).all() or (row == np.arange(64) + 7).all() for row in rows)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("ct.atomic_add(y, 0, 1.0, ordering=ct.ordering.WEAK)", "an atomic update is never WEAK"),
        ("ct.atomic_and(y, 0, 1.0)", "atomic and of f32: there is none"),
        ("ct.atomic_add(x, 0, 1.0)", "'x' is read-only"),
        ("ct.atomic_add(y, (0, 0), 1.0)", "'y' has 1 axes, got 2 indices"),
        ("ct.atomic_cas(y, 0.5, 1.0, 2.0)", "expected integers, got float 0.5"),
        ("ct.atomic_red_view_tko(y, 1.0, 0, ct.atomic.ADDF, ct.ordering.ACQ_REL)", "it is RELAXED"),
        ("ct.atomic_red_view_tko(y.partition_mut((2,)), 1.0, 0, ct.atomic.ADDF)", "got nested partition"),
    ],
)
def test_what_cannot_be_updated_is_refused(body: str, message: str) -> None:
    reading = kernel(f"def k(y: Mut, x: Tensor):\n    {body}\n")
    x = api.zeros((4,)).sync()
    with pytest.raises(KernelTypeError, match=message):
        reading(api.zeros((4,)).sync().partition((4,)), x).sync()


FRIENDLY: dict[str, Any] = {
    "atomic_add": np.add, "atomic_and": np.bitwise_and, "atomic_or": np.bitwise_or, "atomic_xor": np.bitwise_xor,
    "atomic_max": np.maximum, "atomic_min": np.minimum, "atomic_sub": np.subtract,
}  # fmt: skip

BY_INDEX = """
def k(y: Mut, old: Mut, x: Tensor, rows: Tensor, columns: Tensor):
    r, c = ct.load_tile(rows, (64,), (0,)), ct.load_tile(columns, (64,), (0,))
    value = ct.load_tile(x, (64,), (0,))
    old.store(ct.{name}(y, (r, c), value, mask=value != 3, ordering=ct.ordering.ACQ_REL, scope=ct.scope.SYSTEM))
"""


def by_index(name: str, dtype: DTypeLike, start: Any, x: Any, rows: Any, columns: Any, backend: str) -> Any:
    with on(backend):
        given = [api.from_numpy(each).sync() for each in (x, rows, columns)]
        y = api.from_numpy(start).sync().partition(start.shape)
        out = kernel(BY_INDEX.format(name=name))(y, api.zeros((64,), dtype).partition((64,)), *given).sync()
        return [each.unpartition().to_numpy().sync() for each in (out.y, out.old)]


@pytest.mark.parametrize(
    ("name", "dtype", "backend"),
    cases_on_backends(product(FRIENDLY, (i32, i64, u32, u64)), lambda name, dtype: dtype in (i64, u32)),
)
def test_updates_by_index(name: str, dtype: DTypeLike, backend: str) -> None:
    """Signed or unsigned as the dtype is; indices outside of the tensor do nothing."""
    rng = np.random.default_rng(9)
    rows, columns = (rng.integers(-1, extent + 1, 64).astype(np.int32) for extent in (3, 4))
    x, start = draw(dtype, (64,), "any", 10), draw(dtype, (3, 4), "any", 11)
    x[5:9] = 3
    sums, old = by_index(name, dtype, start, x, rows, columns, backend)
    inside = (rows >= 0) & (rows < 3) & (columns >= 0) & (columns < 4) & (x != 3)
    wanted = start.copy()
    FRIENDLY[name].at(wanted, (rows[inside], columns[inside]), x[inside])
    np.testing.assert_array_equal(sums, wanted)
    assert not old[~inside].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_exchange_by_index_gives_what_was_there(backend: str) -> None:
    rows, columns = np.repeat(np.arange(8, dtype=np.int32), 8), np.tile(np.arange(8, dtype=np.int32), 8)
    x, start = np.arange(64, dtype=np.float32), -np.arange(64, dtype=np.float32).reshape(8, 8)
    found, old = by_index("atomic_xchg", f32, start, x, rows, columns, backend)
    kept = np.arange(64) != 3
    np.testing.assert_array_equal(found.ravel(), np.where(kept, x, start.ravel()))
    np.testing.assert_array_equal(old, np.where(kept, start.ravel(), 0))


ROWS = """
def rows(y: ct.SharedMut, x: Tensor, index: Tensor, *, R: int = 16, N: int = 32):
    i = ct.get_tile_block_id()[0]
    chosen = ct.load_tile(index, (R,), (i,))
    ct.atomic_add(y, (chosen[:, None], ct.iota((N,))[None, :]), ct.load_tile(x, (R, N), (i, 0)))
"""


@pytest.mark.parametrize("backend", ["reference", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("columns", [32, 29])
@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
def test_rows_that_are_added_at_once(dtype: DTypeLike, columns: int, backend: str) -> None:
    """Rows of 32 elements beside one another; of 29, whose ends are added one by one, and begin anywhere."""
    rng = np.random.default_rng(7)
    x, index = rng.integers(-2, 3, (320, columns)), rng.integers(-2, 42, 320).astype(np.int32)
    with on(backend):
        y = api.ones((40, columns), dtype).sync()
        given = api.from_numpy(x.astype(dtype.numpy)).sync(), api.from_numpy(index).sync()
        y = ct.entry(define(ROWS))(y, *given, grid=20).first().sync().numpy()
    expected = np.ones((40, columns))
    inside = (index >= 0) & (index < 40)
    np.add.at(expected, index[inside], x[inside])
    np.testing.assert_array_equal(y.astype(np.float64), expected)
