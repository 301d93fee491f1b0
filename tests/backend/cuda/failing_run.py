"""Kernels whose checks fail, on a GPU, in a process of their own: an exception, no hang, a device that goes on.

    python -m tests.backend.cuda.failing_run loading        # or another of CASES

It prints what it is about to do, so that a device that is lost says in which of these, and `right` last.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import CudaGraph, Device, SingleStream, Stream
from cuda_async.unsafe import async_on
from cutile import Mut, Tensor, api, bf16, f32, i32

SIZE = 512


@ct.entry
def ranged(z: Mut, x: Tensor, y: Tensor, first: i32, last: i32):
    """A product over some steps of K, which may lie outside: the producer checks them."""
    BM, BN = z.shape
    px, py = x.partition((BM, 64)), y.partition((64, BN))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(first * i, last * (i + 1) // (i + 1)):  # type: ignore[arg-type]
        acc = ct.mma(px.load((i, k)), py.load((k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))


@ct.entry
def bounded(z: Mut, x: Tensor, y: Tensor, most: f32):
    """A product whose sums the consumers check."""
    BM, BN = z.shape
    px, py = x.partition((BM, 64)), y.partition((64, BN))
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(ct.num_tiles(px, 1)):
        acc = ct.mma(px.load((i, k)), py.load((k, j)), acc)
    ct.cuda_tile_assert(ct.reduce_max(ct.reduce_max(acc, 1), 0) <= most, "a sum is too large")
    z.store(ct.convert_tile(acc, z.dtype))


@ct.entry
def unchecked(z: Mut, x: Tensor, y: Tensor, last: i32):
    """A product whose last steps may lie past both operands, where there are zeros."""
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(last):  # type: ignore[arg-type]
        acc = ct.mma(ct.load_tile(x, (BM, 64), (i, k)), ct.load_tile(y, (64, BN), (k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))


@ct.entry
def allowed(z: Mut, x: Tensor, y: Tensor, most: i32):
    """A product of steps that all lie inside, in the tile blocks that an assertion lets pass."""
    BM, BN = z.shape
    i, j, _ = ct.get_tile_block_id()
    assert i < most, "too far down"
    acc = ct.constant(0, (BM, BN), f32)
    for k in range(8):
        acc = ct.mma(ct.load_tile(x, (BM, 64), (i, k)), ct.load_tile(y, (64, BN), (k, j)), acc)
    z.store(ct.convert_tile(acc, z.dtype))


@ct.entry
def halved(y: Mut, n: i32):
    """An assertion in a kernel without products."""
    assert ct.get_tile_block_id()[0] != n, "not this one"
    y.store(y.load() / 2.0)


@ct.entry
def greeting(y: Mut):
    """A kernel that prints."""
    print("here")
    y.store(y.load() + 1.0)


def operands(dtype: Any = bf16) -> tuple[Any, Any, Any]:
    """z, x and y of ones."""
    z = api.zeros((SIZE, SIZE), dtype).sync()
    x, y = (api.ones((SIZE, SIZE), bf16).sync() for _ in range(2))
    return z, x, y


def fails(run: Callable[[], object], *said: str) -> None:
    """Check that a call raises the error of a failed assertion."""
    with pytest.raises(ct.KernelAssertionError) as caught:
        run()
    for each in said:
        assert each in str(caught.value), str(caught.value)


def about(*what: object) -> None:
    """Print the name of the next step."""
    print(*what, flush=True)


def loading(stream: Stream, dtype: Any = bf16) -> None:
    """A check of the producer."""
    for tile in ((128, 128), (128, 256), (64, 64)):
        z, x, y = operands(dtype)
        for _ in range(2):
            about("steps past the end", tile)
            fails(
                lambda: ranged(z.mut.partition(tile), x, y, 0, 9).sync_on(stream),  # noqa: B023
                "out of range",
                "px.load((i, k))",
                "= 8, ",
            )
            about("steps that are there", tile)
            fresh, x, y = operands(dtype)
            ranged(fresh.mut.partition(tile), x, y, 0, 8).sync_on(stream)
            assert (fresh.to_numpy().sync_on(stream).astype(np.float32) == SIZE).all()


def by_threads(stream: Stream) -> None:
    """A check of the producer, with results that threads store, and not TMA."""
    loading(stream, f32)


def past_the_end(stream: Stream) -> None:
    """Loads of the same steps without a check."""
    for tile in ((128, 128), (128, 256), (64, 64)):
        about("steps past the end", tile)
        z, x, y = operands()
        unchecked(z.mut.partition(tile), x, y, 9).sync_on(stream)
        assert (z.to_numpy().sync_on(stream).astype(np.float32) == SIZE).all()


def within(stream: Stream) -> None:
    """A check of the producer that fails in some tile blocks, with all loads in range: their stores are dropped."""
    for tile in ((128, 128), (128, 256), (64, 64)):
        about("tile blocks that may not", tile)
        z, x, y = operands()
        fails(lambda: allowed(z.mut.partition(tile), x, y, 2).sync_on(stream), "too far down")  # noqa: B023
        about("tile blocks that may", tile)
        fresh, x, y = operands()
        allowed(fresh.mut.partition(tile), x, y, SIZE).sync_on(stream)
        assert (fresh.to_numpy().sync_on(stream).astype(np.float32) == SIZE).all()


def computing(stream: Stream) -> None:
    """A check of the products' sums."""
    for tile in ((128, 128), (64, 64)):
        z, x, y = operands()
        fails(lambda: bounded(z.mut.partition(tile), x, y, 100.0).sync_on(stream), "a sum is too large")  # noqa: B023
        fresh, x, y = operands()
        bounded(fresh.mut.partition(tile), x, y, 1000.0).sync_on(stream)
        assert (fresh.to_numpy().sync_on(stream).astype(np.float32) == SIZE).all()


def plain(stream: Stream) -> None:
    """A check of all threads, which leave."""
    y = api.ones((4096,), f32).sync()
    fails(lambda: halved(y.mut.partition((64,)), 7).sync_on(stream), "not this one", "tile block (7, 0, 0)")
    fresh = api.ones((4096,), f32).sync()
    halved(fresh.mut.partition((64,)), 64).sync_on(stream)
    assert (fresh.to_numpy().sync_on(stream) == 0.5).all()


def printing(stream: Stream) -> None:
    """A check in a process whose kernels print: their text is written before the wait raises the error."""
    for _ in range(2):
        greeting(api.zeros((4,), f32).sync().mut.partition((4,))).sync_on(stream)
        plain(stream)


def bound(stream: Stream) -> None:
    """A launch that is repeated."""
    y = api.ones((4096,), f32).sync()
    repeated = halved(y.mut.partition((64,)), 64).bind(stream)
    repeated()
    stream.synchronize()
    repeated.set(n=3)
    repeated()
    fails(stream.synchronize, "not this one", "tile block (3, 0, 0)")
    repeated.set(n=64)
    repeated()
    stream.synchronize()


def graph(stream: Stream) -> None:
    """A launch of a graph."""
    y = api.ones((4096,), f32).sync()
    with CudaGraph.capture(stream, halved(y.mut.partition((64,)), 5)) as made:
        for _ in range(2):
            fails(lambda: made.launch().sync_on(stream), "not this one")
    plain(stream)


def unfollowed(stream: Stream) -> None:
    """A launch that nobody waits for: the next wait on its stream raises its error, once."""
    y, other = (api.ones((4096,), f32).sync() for _ in range(2))
    async_on(halved(y.mut.partition((64,)), 7), stream)
    fails(lambda: other.to_numpy().sync_on(stream), "not this one")
    plain(stream)
    async_on(halved(other.mut.partition((64,)), 9), stream)
    fails(stream.synchronize, "not this one", "tile block (9, 0, 0)")
    plain(stream)


def two_in_flight(stream: Stream) -> None:
    """Several launches in flight: each that fails raises its error, and the others succeed."""
    ys = [api.ones((4096,), f32).sync() for _ in range(4)]

    async def run() -> list[Any]:
        policy = SingleStream(stream.device)
        numbers = (1, 64, 2, 64)
        futures = [halved(y.mut.partition((64,)), n).schedule(policy) for y, n in zip(ys, numbers, strict=True)]
        return await asyncio.gather(*futures, return_exceptions=True)

    first, second, third, fourth = asyncio.run(run())
    assert "tile block (1, 0, 0)" in str(first), first
    assert "tile block (2, 0, 0)" in str(third), third
    assert not isinstance(second, BaseException), second
    assert not isinstance(fourth, BaseException), fourth
    for y in (ys[1], ys[3]):
        assert (y.to_numpy().sync_on(stream) == 0.5).all()


CASES: dict[str, Callable[[Stream], None]] = {
    "within": within,
    "past the end": past_the_end,
    "by threads": by_threads,
    "loading": loading,
    "computing": computing,
    "plain": plain,
    "printing": printing,
    "bound": bound,
    "graph": graph,
    "unfollowed": unfollowed,
    "two in flight": two_in_flight,
}


def main(case: str) -> int:
    """Run one case."""
    with Device(0) as device:
        CASES[case](device.new_stream())
        device.synchronize()
    print("right")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
