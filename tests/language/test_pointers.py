"""Raw pointers, gather and scatter: launched on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile import Mut, Ptr, Tensor, api, f32, i32, i64
from cutile.dtypes import DTYPES, STORAGE_DTYPES, DTypeLike
from cutile.errors import ArgumentError, ArgumentTypeError, KernelTypeError, LaunchError
from cutile.host.tensor import Tensor as HostTensor
from tests.support.devices import on
from tests.support.draw import draw
from tests.support.kernels import define
from tests.support.memory import BACKENDS


def back(tensor: HostTensor) -> Any:
    return tensor.to_numpy().sync()


@ct.entry(unsafe=True)
def scale(p: Ptr[f32], a: f32, n: i32):
    """A grid-stride loop, as one writes it for threads."""
    stride = 128 * ct.get_num_tile_blocks()[0]
    for start in range(128 * ct.get_tile_block_id()[0], n, stride):  # pyright: ignore[reportArgumentType]
        lanes = start + ct.iota((128,))
        places = ct.broadcast_ptr(ct.reshape_ptr(ct.pointer_to_tile(p), (1,)), (128,)).offset_tile(lanes)
        inside = lanes < n
        value, token = ct.load_ptr_tko(places, mask=inside, pad=0.0)
        ct.store_ptr_tko(places, value * a, mask=inside, token=token, latency=ct.Latency(2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_scale_by_pointer(backend: str) -> None:
    with on(backend):
        x = api.arange(1024, f32).sync()
        scale(x.device_pointer(), 3.0, 1000).grid((4,)).sync()
        wanted = np.arange(1024) * np.where(np.arange(1024) < 1000, 3, 1)
        np.testing.assert_array_equal(back(x), wanted)


@ct.entry(unsafe=True)
def add(z: Ptr[f32], x: Ptr[f32], y: Ptr[f32]):
    i = ct.get_tile_block_id()[0]
    ct.addptr(z, i).store(x.offset(i).load() + ct.tile_to_pointer(y.offset(i)).load())


@pytest.mark.parametrize("backend", BACKENDS)
def test_scalars_by_pointer_and_bound_launches(backend: str) -> None:
    with on(backend):
        x, y, z = (api.arange(32, f32).sync() for _ in range(3))
        stream = x.storage.device.new_stream()
        bound = add(*(each.device_pointer() for each in (z, x, y))).grid((32, 1, 1)).bind(stream)
        bound()
        bound.set(x=z.device_pointer())
        bound()
        stream.synchronize()
        np.testing.assert_array_equal(back(z), np.arange(32) * 3)


@ct.entry(unsafe=True)
def swap(p: Ptr, n: i32):
    """Reverse memory in place: what one thread wrote another reads, in the order that tokens give."""
    lanes = ct.iota((64,))
    low, token = ct.load_ptr_tko(p.offset(lanes), mask=lanes < n)
    token = ct.store_ptr_tko(p.offset(n - 1 - lanes), low, mask=lanes < n, token=token)
    high, _ = ct.load_ptr_tko(p.offset(lanes), mask=lanes < n, token=token)
    ct.store_ptr_tko(p.offset(lanes + 64), high, mask=lanes < n, token=token)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_in_the_order_of_tokens(dtype: DTypeLike, backend: str) -> None:
    values = draw(dtype, (128,), "any", 5)
    with on(backend):
        x = api.from_numpy(values).sync()
        swap(x.device_pointer(), 50).grid(1).sync()
        expected = values.copy()
        expected[:50] = values[:50][::-1]
        expected[64:114] = expected[:50]
        np.testing.assert_array_equal(back(x).view(np.uint8), expected.view(np.uint8))


@ct.entry(unsafe=True)
def chase(y: Mut, table: Ptr[i64], n: i32):
    """A pointer that a loop carries, and a branch chooses; addresses kept in memory."""
    place = table
    for _ in range(n):  # pyright: ignore[reportArgumentType]
        address = place.load()
        place = ct.int_to_ptr(address, i64)
        if n > 100:
            place = place.offset(1)
    y.store(ct.broadcast(ct.ptr_to_int(place) - ct.ptr_to_int(ct.ptr_to_ptr(table, f32)), y.shape))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_chain_of_pointers(backend: str) -> None:
    with on(backend):
        table = api.zeros((16,), i64).sync()
        start = int(table.device_pointer())
        order = [5, 9, 1, 12]
        links = np.zeros(16, np.int64)
        for here, there in zip([0, *order], order, strict=False):
            links[here] = start + 8 * there
        api.memcpy(table.mut, api.from_numpy(links).sync()).sync()
        out = chase(api.zeros((2,), i64).partition((2,)), int(table.device_pointer()), 4).first().unpartition().sync()
        np.testing.assert_array_equal(back(out), [8 * 12] * 2)


@ct.entry
def gather_rows(y: Mut, x: Tensor, rows: Tensor):
    i, j, _ = ct.get_tile_block_id()
    view = ct.make_gather_scatter_view(x, y.shape, axis=0)
    chosen = ct.load_tile(rows, (y.shape[0],), (i,))
    tile, token = ct.load_gather_scatter_view_tko(view, (chosen, j), token=ct.new_token_unordered())
    ct.set_tensor_token(y, token)
    y.store(tile)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_are_gathered_from_a_transposed_tensor(backend: str) -> None:
    x = np.random.default_rng(3).integers(-99, 99, (20, 37)).astype(np.int32)
    rows = np.random.default_rng(4).integers(-3, 40, 24).astype(np.int32)  # also some that are not there
    with on(backend):
        source = api.from_numpy(x).sync().transpose()
        out = gather_rows(api.zeros((24, 20), i32).partition((8, 16)), source, api.from_numpy(rows).sync()).first()
        inside = (rows >= 0) & (rows < 37)
        wanted = np.where(inside[:, None], x.T[np.clip(rows, 0, 36)], 0)
        np.testing.assert_array_equal(back(out.unpartition().sync()), wanted)


@ct.entry
def permute(y: Mut, x: Tensor, order: Tensor):
    n = y.shape[0]
    lane = ct.get_tile_block_id()[0] * n + ct.iota((n,))
    ct.scatter(y, ct.load_tile_like(order, y), ct.load_tile_like(x, y), mask=lane < x.shape[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_scatter_is_the_inverse_of_gather(backend: str) -> None:
    rng = np.random.default_rng(5)
    order, x = rng.permutation(1000).astype(np.int32), rng.standard_normal(1000)
    with on(backend):
        given = [api.from_numpy(each).sync() for each in (x, order)]
        out = permute(api.zeros((1000,), "f64").partition((64,)), *given).first().unpartition().sync()
        np.testing.assert_array_equal(back(out)[order], x)


@ct.entry
def cross(y: Mut):
    """Own tile by its threads, then by address, then its own again: all in program order."""
    n = y.shape[0]
    y.store(ct.convert_tile(ct.iota((n,)), f32))
    turned = ct.gather(y, n - 1 - ct.iota((n,)))
    ct.scatter(y, ct.iota((n,)), turned * 2.0)
    y.store(y.load() + 1.0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tile_and_its_addresses_are_in_program_order(backend: str) -> None:
    with on(backend):
        out = cross(api.zeros((500,)).partition((500,))).first().unpartition().sync()
        np.testing.assert_array_equal(back(out), 2.0 * np.arange(500)[::-1] + 1)


@ct.entry(unsafe=True)
def around(y: Mut, p: Ptr[f32], n: i32, m: i32):
    """Elements of a view of an address; pointers moved by operators."""
    view = ct.make_tensor_view(p, (n, m), (m, 1))  # pyright: ignore[reportArgumentType]
    rows, columns = ct.iota((y.shape[0],)).reshape((-1, 1)), ct.iota((y.shape[1],))
    turned = ct.gather(view, (n - 1 - rows, columns))
    end = p + n * m
    y.store(turned + (end - m + columns).load())


@pytest.mark.parametrize("backend", BACKENDS)
def test_elements_of_a_view_of_an_address(backend: str) -> None:
    values = np.random.default_rng(8).integers(-50, 50, (5, 4)).astype(np.float32)
    with on(backend):
        x = api.from_numpy(values).sync()
        out = around(api.zeros((5, 4)).partition((5, 4)), x.device_pointer(), 5, 4).first().unpartition().sync()
        np.testing.assert_array_equal(back(out), values[::-1] + values[-1])


def test_raw_pointers_are_interpreted() -> None:
    x = api.arange(16, f32).sync()
    half = define("def k(p: ct.Ptr[f32]):\n    q = p + ct.iota((8,))\n    q.store(q.load() * 0.5)\n    p.store(9.0)\n")
    ct.entry(unsafe=True)(half)(x.device_pointer()).grid(1).interpret().sync()
    expected = np.arange(16.0)
    expected[:8] /= 2
    expected[0] = 9
    np.testing.assert_array_equal(back(x), expected)


def test_pointers_need_an_unsafe_entry() -> None:
    with pytest.raises(KernelTypeError, match=r"'p' is a raw pointer(.|\n)*unsafe=True"):
        ct.entry(define("def k(p: ct.Ptr[f32]):\n    p.store(1.0)\n"))
    kernel = ct.entry(define("def k(y: Mut):\n    y.store(ct.int_to_ptr(0, ct.f32).load())\n"))
    with pytest.raises(KernelTypeError, match=r"int_to_ptr can reach any memory(.|\n)*unsafe=True"):
        kernel(api.zeros((4,)).sync().partition((4,))).sync()


def test_what_is_no_pointer_is_refused() -> None:
    x: Any = api.zeros((4,)).sync()
    with pytest.raises(ArgumentTypeError, match=r"'p' must be a pointer, got Tensor; pass its pointer"):
        scale(x, 1.0, 4)
    with pytest.raises(ArgumentTypeError, match="'p' must be a pointer to f32, got one to i32"):
        scale(api.zeros((4,), i32).sync().device_pointer(), 1.0, 4)
    with pytest.raises(ArgumentError, match="'p' must be an address, got -1"):
        scale(-1, 1.0, 4)
    with pytest.raises(ArgumentTypeError, match="'p' does not know what it leads to"):
        swap(int(x.device_pointer()), 4)
    with pytest.raises(LaunchError, match="launch grid required"):
        scale(x.device_pointer(), 1.0, 4).sync()


def test_a_pointers_dtype_decides_the_code() -> None:
    kernel = ct.entry(unsafe=True)(define("def k(p: ct.Ptr, n: i32):\n    p.store(ct.convert_tile(n, p.dtype))\n"))
    tensors = [api.zeros((1,), dtype).sync() for dtype in (f32, i64, "f16")]
    for tensor in tensors:
        kernel(tensor.device_pointer(), 7).grid(1).sync()
        assert back(tensor)[0] == 7
    generic = define("def k(p: 'ct.Ptr[E]', *, E: DType):\n    p.store(ct.constant(3, (), E))\n")
    ct.entry(unsafe=True)(generic)(tensors[1].device_pointer()).grid(1).sync()
    ct.entry(unsafe=True)(generic)(int(tensors[0].device_pointer()), E="f32").grid(1).sync()
    assert back(tensors[1])[0] == back(tensors[0])[0] == 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [each for each in STORAGE_DTYPES if each.bits == 8], ids=str)
def test_elements_that_are_only_stored_move_as_bits(dtype: DTypeLike, backend: str) -> None:
    text = "def k(y: Mut, x: Tensor):\n    ct.scatter(y, ct.iota((24,)), ct.gather(x, 23 - ct.iota((24,))))\n"
    bits = np.random.default_rng(12).integers(0, 100, 24 * dtype.bits // 8).astype(np.uint8)
    with on(backend):
        x = api.from_numpy(bits.view(dtype.numpy), dtype).sync()
        out = ct.entry(define(text))(api.empty((24,), dtype).partition((24,)), x).first().unpartition().sync()
        np.testing.assert_array_equal(back(out).view(np.uint8), bits.view(dtype.numpy)[::-1].copy().view(np.uint8))
