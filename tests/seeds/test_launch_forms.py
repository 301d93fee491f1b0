"""The ways to hand arguments to a kernel, and to compose launches: results are the same for all of them."""

from __future__ import annotations

from typing import Any

import pytest

from cuda_async import Device, DeviceOp, ExecutionContext, Stream, with_context, zip
from cutile import LaunchError, api, f32, f64
from tests.seeds.kernels import add, gemm, saxpy


def result(op: DeviceOp[Any], stream: Stream) -> list[float]:
    return op.first().unpartition().to_host_vec().sync_on(stream).tolist()


def test_an_explicit_grid_equals_the_inferred_one(device: Device, stream: Stream) -> None:
    x = api.ones((16,), f32).sync_on(stream)
    inferred = add(api.zeros((16,), f32).partition((2,)), x, x)
    explicit = add(api.zeros((16,), f32).partition((2,)), x, x).grid((8, 1, 1))
    constant = add(api.zeros((16,), f32).partition((2,)), x, x).const_grid(8)
    assert result(inferred, stream) == result(explicit, stream) == result(constant, stream) == [2] * 16
    y = api.zeros((16,), f32).sync_on(stream)
    with pytest.raises(LaunchError, match="grid"):
        add(y.partition((2,)), x, x).grid((4, 1, 1))
    assert y.shape == (16,)


def test_a_tensor_is_read_twice_by_one_launch_and_by_many(device: Device, stream: Stream) -> None:
    x = api.arange(32, f32).sync_on(stream)
    for _ in range(3):
        assert result(add(api.zeros((32,), f32).partition((8,)), x, x), stream) == [2.0 * n for n in range(32)]


def test_lazy_arguments_and_a_relaunch_in_then(device: Device, stream: Stream) -> None:
    def again(out: Any) -> DeviceOp[Any]:
        return add(out.z, out.x, out.y)

    op = add(api.zeros((32,), f32).partition((2,)), api.arange(32, f32), api.ones((32,), f32)).then(again)
    assert result(op, stream) == [n + 1.0 for n in range(32)]


def test_zip_and_the_context(device: Device, stream: Stream) -> None:
    used: list[Stream] = []

    def build(context: ExecutionContext) -> DeviceOp[Any]:
        used.append(context.stream)
        arguments = zip(api.zeros((32,), f32).partition((8,)), api.ones((32,), f32), api.ones((32,), f32))
        return arguments.then(lambda each: add(*each))

    assert result(with_context(build), stream) == [2] * 32
    assert used == [stream]


@pytest.mark.parametrize("dtype", [f32, f64])
def test_saxpy_of_any_shape_is_exact(device: Device, stream: Stream, dtype: Any) -> None:
    for tile in ((2, 2), (2, 4), (4, 8), (3, 5)):
        x = api.arange(32, dtype).reshape((4, 8)).sync_on(stream)
        y = x.dup().sync_on(stream)
        if dtype is f32:
            assert result(saxpy(y.partition(tile), 2.0, x), stream) == [3.0 * n for n in range(32)]
        else:
            assert result(add(y.dup().partition(tile), x, y), stream) == [2.0 * n for n in range(32)]


@pytest.mark.parametrize("n", [1000, 129, 127, 251])
def test_sizes_that_the_tile_does_not_divide(device: Device, stream: Stream, n: int) -> None:
    ones = api.ones((n,), f32).sync_on(stream)
    assert result(add(api.zeros((n,), f32).partition((128,)), ones, ones), stream) == [2] * n


def test_products_of_ones_count_the_inner_extent(device: Device, stream: Stream) -> None:
    for m, n, k, tile in ((64, 64, 16, (16, 16)), (100, 100, 64, (16, 16)), (16, 16, 128, (16, 16))):
        x, y = api.ones((m, k), f32).sync_on(stream), api.ones((k, n), f32).sync_on(stream)
        assert set(result(gemm(api.zeros((m, n), f32).partition(tile), x, y, BK=8), stream)) == {float(k)}


def test_slices_as_inputs(device: Device, stream: Stream) -> None:
    x = api.arange(1024, f32).sync_on(stream)
    ones = api.ones((256,), f32).sync_on(stream)
    out = add(api.zeros((256,), f32).partition((64,)), x.slice(range(256, 512)), ones)
    assert result(out, stream) == [float(n) for n in range(257, 513)]
    twice = x.slice(range(200, 900)).slice(range(56, 312))
    assert result(add(api.zeros((256,), f32).partition((64,)), twice, twice), stream) == [
        2.0 * n for n in range(256, 512)
    ]
    odd = x.slice(range(1, 300))
    assert result(add(api.zeros((299,), f32).partition((128,)), odd, odd), stream) == [2.0 * n for n in range(1, 300)]
