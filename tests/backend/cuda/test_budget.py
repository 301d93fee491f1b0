"""Tiles that do not fit are refused before anything is compiled, with the numbers and the nearest product that fits."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cutile.backend.interface import Target
from cutile.dtypes import DTypeLike, bf16, f16, f32
from cutile.errors import KernelTypeError
from tests.backend.cuda.programs import AMPERE, HOPPER, compiled, gemm_program, lowered, saxpy_program, written
from tests.support.programs import mut, tensor

# Of the 164 KiB of shared memory of a multiprocessor of sm_80, each thread block has a share, less the KiB that CUDA
# keeps of each.
TOO_MUCH: list[tuple[Target, DTypeLike, tuple[int, int], int, dict[str, Any], str, tuple[int, int, int]]] = [
    (AMPERE, bf16, (256, 256), 64, {}, "256 registers of the product's sums; of its 255 registers on sm_80, 216",
     (128, 256, 64)),
    (HOPPER, f32, (256, 256), 32, {}, "256 registers of the product's sums; of its 255 registers", (128, 256, 32)),
    (AMPERE, f16, (128, 256), 64, {"occupancy": 2},
     "156672 bytes of shared memory; a block on sm_80 has 82944 where 2 share a multiprocessor", (128, 128, 64)),
    (AMPERE, f32, (128, 128), 32, {"occupancy": 3},
     "70656 bytes of shared memory; a block on sm_80 has 54954 where 3 share a multiprocessor", (64, 128, 16)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "dtype", "tile", "depth", "options", "message", "nearest"),
    TOO_MUCH,
    ids=["registers-sm_80", "registers-sm_90a", "occupancy-2", "occupancy-3"],
)
def test_what_does_not_fit_is_refused_with_the_nearest_that_does(
    target: Target,
    dtype: DTypeLike,
    tile: tuple[int, int],
    depth: int,
    options: dict[str, Any],
    message: str,
    nearest: tuple[int, int, int],
) -> None:
    with pytest.raises(KernelTypeError) as caught:
        lowered(gemm_program(dtype, tile, depth), target, **options)
    text = str(caught.value)
    assert message in text
    assert "acc = ct.mma(" in text  # the line
    recommendation = re.search(r"nearest that fits is a product of (\d+) x (\d+) x (\d+), in place of", text)
    assert recommendation is not None
    assert tuple(map(int, recommendation.groups())) == nearest
    facts = compiled(gemm_program(dtype, nearest[:2], nearest[2]), target.arch, **options).facts
    assert facts["spills"] == 0


def test_a_kernel_without_products_has_a_remedy_too() -> None:
    text = (
        "def f(y: Mut, x: Tensor):\n"
        "    y.store(ct.load_tile(x, (512, 512), (0, 0)).transpose() + ct.load_tile(x, (512, 512), (1, 0)))\n"
    )
    with pytest.raises(KernelTypeError, match=r"bytes of shared memory; a block on sm_90a has 232448\nUse a smaller"):
        lowered(written(text, {"y": mut(512, 512), "x": tensor(2)}))


def test_an_occupancy_that_fits_is_kept() -> None:
    assert lowered(saxpy_program(4096), occupancy=8).facts["min_blocks"] == 8


def test_what_fits_is_not_refused() -> None:
    for dtype, tile, depth in (
        (bf16, (192, 256), 32), (f32, (128, 128), 128), (bf16, (128, 128), 256), (bf16, (128, 256), 256),
    ):  # fmt: skip
        lowered(gemm_program(dtype, tile, depth), AMPERE)


@pytest.mark.parametrize("body", ["y.store(y.load() * 2.0)", "y.store(ct.constant(0, y.shape, f32))"])
def test_a_tile_of_millions_of_elements_is_refused_at_once(body: str) -> None:
    """Refused, since compiling it would take minutes and spill."""
    text = f"def f(y: Mut):\n    {body}\n"
    for size in (1 << 20, 1 << 22):
        words = rf"\({size},\) has {size // 512} elements for each of 512 threads on sm_90a"
        with pytest.raises(KernelTypeError, match=words) as caught:
            lowered(written(text, {"y": mut(size)}))
        assert "Use tiles of at most 524288 elements, and of 32768 for speed" in str(caught.value)
        assert body in str(caught.value)  # the line
    assert lowered(written(text, {"y": mut(1 << 19)})).facts["threads"] == 512
    # More warps hold more elements.
    assert lowered(written(text, {"y": mut(1 << 20)}), num_worker_warps=32).facts["threads"] == 1024
