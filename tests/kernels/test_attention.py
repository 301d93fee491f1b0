"""Attention with heads that share keys, windows, and keys in pages: right by the reference, beside NumPy in float64.

For the CPU a kernel of attention takes 2 to 5 s to compile; test_kernels.py has it done for its cases.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from cutile import api, bf16, f16, use_backend
from cutile.dtypes import DTypeLike
from kernels.attention import attend, attention_of, tile_of
from kernels.decode import decode_of_pages

Array = np.ndarray


@pytest.fixture(autouse=True)
def _by_reference() -> Iterator[None]:
    with use_backend("reference"):
        yield


def drawn(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float16)


def error(found: Array, exact: Array) -> float:
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


# Of bf16 capped scores need no top; a window of 20 and one of 40 have tiles with two ends, and with one.
@pytest.mark.parametrize(("dtype", "window", "allowed"), [(f16, 40, 1e-3), (bf16, 20, 6e-3)], ids=str)
def test_a_causal_window_of_capped_scores_of_shared_heads(dtype: DTypeLike, window: int, allowed: float) -> None:
    q, k, v = (each.astype(dtype.numpy) for each in (drawn(2, 50, 32), drawn(1, 90, 32), drawn(1, 91, 32)[:, 1:]))
    tensors = [api.from_numpy(np.ascontiguousarray(each)).sync() for each in (q, k, v)]
    result = attend(*tensors, causal=True, window=window, capped=2, tile=(16, 16)).sync().to_numpy().sync()
    exact = attention_of(*(each.astype(np.float64) for each in (q, k, v)), causal=True, window=window, capped=2)
    assert error(result.astype(np.float64), exact) < allowed


def test_heads_and_windows_that_do_not_fit_are_refused() -> None:
    three, two = (api.zeros((heads, 4, 16), f16).sync() for heads in (3, 2))
    with pytest.raises(ValueError, match="3 heads of q do not divide among 2 of k and v"):
        attend(three, two, two)
    with pytest.raises(ValueError, match="pass causal=True"):
        attend(two, two, two, window=3)


def test_tiles_are_chosen_by_width_and_rows() -> None:
    cases = ((64, 4096), (64, 256), (128, 4096), (256, 4096))
    assert tile_of(64, 256, causal=False) == (192, 128)
    assert [tile_of(*each, causal=True) for each in cases] == [
        (192, 128),
        (128, 128),
        (128, 128),
        (128, 64),
    ]


def test_keys_in_pages() -> None:
    """Of sequences of different lengths; of the shortest one most parts are empty."""
    counts = np.array([5, 100, 64], np.int32)
    pages = np.random.default_rng(0).permutation(30)[:21].reshape(3, 7).astype(np.int32)
    q, k, v = drawn(6, 4, 32), drawn(30, 2, 16, 32), drawn(30, 2, 16, 33)[..., 1:]
    tensors = [api.from_numpy(np.ascontiguousarray(each)).sync() for each in (q, k, v, pages, counts)]
    result = decode_of_pages(*tensors, parts=5).sync().to_numpy().sync()
    for number, head in np.ndindex(3, 2):
        keys, values = (
            each[pages[number], head].reshape(1, -1, 32)[:, : counts[number]].astype(np.float64) for each in (k, v)
        )
        row = 2 * number + head
        exact = attention_of(q[row : row + 1].astype(np.float64), keys, values, causal=False)
        assert error(result[row : row + 1], exact) < 1e-3
