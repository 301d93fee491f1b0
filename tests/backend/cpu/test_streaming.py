"""Streaming stores: which launches take them, their alignment, and that results are the same bits."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import Device
from cutile import Mut, Tensor, api, bf16, f32, i8
from cutile.backend.cpu import streaming
from cutile.backend.cpu.build import assembly
from cutile.backend.cpu.streaming import StreamingVariants, mark_streaming
from cutile.ir import Type
from tests.backend.cpu.programs import source
from tests.support.programs import mut, tensor

STREAMING = ct.CompileOptions(streaming_stores=True)
ON_X86 = platform.machine().lower() in ("x86_64", "amd64")


@ct.entry
def scaled(y: Mut, x: Tensor, a: f32) -> None:
    y.store(ct.convert_tile(ct.load_tile_like(x, y).astype(f32) * a, y.dtype))


@ct.entry
def turned(y: Mut, x: Tensor) -> None:
    i, j, _ = ct.get_tile_block_id()
    m, n = y.shape
    y.store(ct.permute(x.partition((n, m)).load((j, i)), (1, 0)))


@pytest.mark.parametrize("dtype", [f32, bf16, i8, ct.f64])
@pytest.mark.parametrize("shape", [(3, 4096), (5, 4099), (1, 64), (7, 1000)])
def test_results_are_the_same_bits(dtype: Any, shape: tuple[int, int]) -> None:
    """Where rows begin at multiples of a line, and where they do not."""
    rng = np.random.default_rng(1)
    x = api.from_numpy((rng.standard_normal(shape) * 40).astype(dtype.numpy)).sync()
    results: list[Any] = []
    for options in (ct.CompileOptions(streaming_stores=False), STREAMING):
        y = api.full(77, shape, dtype).sync()
        scaled(y.partition((1, 1024)), x, 0.5).compile_options(options).sync()
        results.append(y.to_numpy().sync())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("offset", [0, 1, 16])
def test_results_that_begin_anywhere_are_the_same_bits(offset: int) -> None:
    whole = api.zeros((4, 8192), f32).sync()
    x = api.from_numpy(np.random.default_rng(2).standard_normal((4, 4096), np.float32)).sync()
    part = whole[:, offset : offset + 4096]
    scaled(part.mut.partition((2, 2048)), x, 3.0).compile_options(STREAMING).sync()
    values = whole.to_numpy().sync()
    np.testing.assert_array_equal(values[:, offset : offset + 4096], x.to_numpy().sync() * np.float32(3))
    assert not values[:, :offset].any()
    assert not values[:, offset + 4096 :].any()


def test_transposes_are_the_same_bits() -> None:
    x = api.from_numpy(np.arange(130 * 200, dtype=np.float32).reshape(130, 200)).sync()
    y = api.zeros((200, 130), f32).sync()
    turned(y.partition((64, 64)), x).compile_options(STREAMING).sync()
    np.testing.assert_array_equal(y.to_numpy().sync(), x.to_numpy().sync().T)


HALVES = """
def halves(y: Mut, z: Mut, x: Tensor):
    t = ct.load_tile_like(x, y)
    y.store(t * 0.5)
    z.store(z.load() + t)
"""


@pytest.mark.parametrize(("tile", "streamed"), [((1, 1024), (0,)), ((2, 16), (0,)), ((1, 1000), ())])
def test_results_alone_are_streamed_in_whole_lines(tile: tuple[int, int], streamed: tuple[int, ...]) -> None:
    """Not tensors that are read too, whose lines are in the cache; nor tiles that begin within a line."""
    types: dict[str, Type] = {"y": mut(*tile), "z": mut(*tile), "x": tensor(2)}
    facts = source(HALVES, types, STREAMING).facts
    assert tuple(argument for argument, *_ in facts["results"]) == streamed
    assert facts["streaming"]
    assert source(HALVES, types, ct.CompileOptions(streaming_stores=False)).facts["results"] == ()


@pytest.mark.skipif(not ON_X86, reason="looks for instructions of x86")
def test_stores_of_results_are_non_temporal() -> None:
    types: dict[str, Type] = {"y": mut(1, 1024), "z": mut(1, 1024), "x": tensor(2)}
    texts = [assembly(source(HALVES, types, options)) for options in (STREAMING, ct.CompileOptions())]
    assert ["movnt" in text for text in texts] == [True, False]
    assert "mfence" in texts[0] or "lock" in texts[0]  # before another thread is told of the end


def test_large_launches_take_streaming_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "last_cache_bytes", lambda: 4096 * 8)
    choices: list[tuple[int, Any]] = []
    choose = StreamingVariants.choose

    def noting(self: StreamingVariants, blocks: int, count: int) -> Any:
        choices.append((count, choose(self, blocks, count)))
        return choices[-1][1]

    monkeypatch.setattr(StreamingVariants, "choose", noting)

    @ct.entry
    def doubled(y: Mut, x: Tensor) -> None:
        y.store(ct.load_tile_like(x, y) * 2.0)

    with Device.host():
        for rows in (1, 2):
            x, y = api.ones((rows, 4096), f32).sync(), api.zeros((rows, 4096), f32).sync()
            doubled(y.partition((1, 4096)), x).sync()
            assert (y.to_numpy().sync() == 2).all()
    assert dict(choices) == {4096 * 4: (), 4096 * 8: (("streaming_stores", True),)}


def test_only_whole_aligned_vectors_of_the_streaming_function_are_marked() -> None:
    text = """define void @cutile_loops(ptr %0) {
  store <16 x float> %v, ptr %0, align 64, !noalias !3
}
define void @cutile_streaming(ptr %0) {
  store <16 x float> %v, ptr %0, align 64, !noalias !3
  store <16 x i8> %v, ptr %0, align 16
  store <8 x i8> %v, ptr %0, align 8
  store <16 x float> %v, ptr %0, align 32
  store <32 x double> %v, ptr %0, align 64
  store float %s, ptr %0, align 64
}"""
    marked = [line.strip() for line in mark_streaming(text).splitlines() if "nontemporal" in line]
    assert marked == [
        "store <16 x float> %v, ptr %0, align 64, !nontemporal !777777, !noalias !3",
        "store <16 x i8> %v, ptr %0, align 16, !nontemporal !777777",
        "store <32 x double> %v, ptr %0, align 64, !nontemporal !777777",
    ]
