"""Padding: which elements lie inside, on every backend; and a warning where those outside change a result."""

from __future__ import annotations

import itertools
import re
import warnings
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile import PaddingWarning, api, f16, f32, i32
from tests.support.devices import EVERYWHERE, on
from tests.support.kernels import kernel

INSIDE = """
def inside(z: Mut, w: Mut, v: Mut, x: Tensor):
    i, j, _ = ct.get_tile_block_id()
    z.store(x.partition((4, 8)).inside((i, j)).astype(i32) + 2 * z.inside().astype(i32))
    w.store(x.partition_permuted((8, 4), (1, 0)).inside((i, j)).astype(i32))
    nested = v.partition_mut((3, 8))  # the second reaches into the next block's tile
    for k in range(ct.num_tiles(nested, 0)):
        nested.store(nested.inside((k, 0)).astype(i32) + nested.load((k, 0)), (k, 0))
"""
WINDOWS = """
def windows(z: Mut, x: Tensor):
    view, i = ct.make_strided_view(x, (4,), (3,)), ct.get_tile_block_id()[0]
    z.store(ct.select(view.inside(i), view.load(i), -1.0).reshape((1, 4)))
"""
inside, windows = kernel(INSIDE), kernel(WINDOWS)


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_what_lies_inside_is_known(backend: str) -> None:
    """Stored at an edge, a tile is clipped: so what lies within the first tensor is seen in one that is larger."""
    with on(backend):
        x = api.zeros((7, 11), f16).sync()
        z, w, v = (api.zeros(shape, i32).sync() for shape in ((8, 16), (16, 8), (8, 16)))
        inside(z.mut.partition((4, 8)), w.mut.partition((8, 4)), v.mut.partition((4, 8)), x).sync()
        expected = np.zeros((8, 16), np.int32)
        expected[:7, :11] = 1
        np.testing.assert_array_equal(z.numpy(), expected + 2)
        np.testing.assert_array_equal(w.numpy(), expected.T)
        np.testing.assert_array_equal(v.numpy(), 1)

        rows = windows(api.zeros((3, 4)).partition((1, 4)), api.arange(8, f32).sync()).first().unpartition().sync()
        assert rows.numpy().tolist() == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, -1, -1]]


def test_an_index_of_no_tile_is_refused() -> None:
    beyond = kernel("def beyond(y: Mut, x: Tensor):\n    y.store(x.partition((4,)).inside(9).astype(y.dtype))\n")
    with pytest.raises(ct.LaunchError, match="'x' has 2 tiles of 4 along axis 0"):
        beyond(api.zeros((4,)).sync().mut.partition((4,)), api.zeros((8,)).sync()).sync()


NORM = """
def norm(y: Mut, x: Tensor):
    part, row = x.partition(y.shape), (ct.get_tile_block_id()[0], 0)
    n = ct.get_tensor_shape(x)[1]
    d = part.load(row) - (ct.reduce_sum(part.load(row), 1) / n)[:, None]
    {mask}
    y.store(d * ct.rsqrt(ct.reduce_sum(d * d, 1) / n + 1e-5)[:, None])
"""


def test_a_layer_norm_with_a_tile_wider_than_the_row() -> None:
    x = api.randn(3.0, 1.0, (5, 10), 1, f32).sync()
    a = x.numpy().astype(np.float64)
    expected = (a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + 1e-5)
    wrong, right = kernel(NORM.format(mask="")), kernel(NORM.format(mask="d = ct.select(part.inside(row), d, 0.0)"))

    def run(norm: Any, **interpreted: bool) -> Any:
        op = norm(api.zeros((5, 10)).partition((2, 16)), x)
        return (op.interpret(**interpreted) if interpreted else op).first().unpartition().sync().numpy()

    assert np.abs(run(wrong) - expected).max() > 1
    np.testing.assert_allclose(run(right), expected, atol=1e-5)
    with pytest.warns(PaddingWarning) as caught:
        run(wrong, check=True)
    assert len(caught) == 1  # of three tile blocks
    words = str(caught[0].message)
    assert re.match(r"reduce_sum: padding counts: 12 elements past the edge of 'x' .* are not 0 any more", words)
    assert "    y.store(d * ct.rsqrt(ct.reduce_sum(d * d, 1) / n + 1e-5)[:, None])\n" in words
    assert "ct.select(part.inside(index), tile, 0)" in words
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(right, check=True)
        run(wrong, check=False)


COUNTS: dict[str, tuple[str, str]] = {
    "a maximum of negative numbers": ("ct.reduce_max(-t, 0).broadcast((8,))", "not -inf any more"),
    "a minimum of zeros": ("ct.reduce_min(t, 0).broadcast((8,))", "result is 0.0, and without them 1.0"),
    "a product": ("ct.reduce_prod(t, 0).broadcast((8,))", "not 1 any more"),
    "a function": ("ct.reduce(t + 1.0, 0, 0.0, lambda a, b: a + b).broadcast((8,))", "reduce: padding"),
    "a scan from the end": (
        "ct.scan(t + 1.0, 0, ct.reverse.REVERSE, 0.0, lambda a, b: a + b)", "scan: padding counts"
    ),
    "a matrix product": (
        "ct.mma(ct.exp(t).reshape((1, 8)), ct.constant(1.0, (8, 8), f32), ct.constant(0.0, (1, 8), f32)).reshape((8,))",
        "mma: padding",
    ),
    "of other shapes": ("ct.reduce_sum(ct.cat(t.reshape((2, 4)), u, 0).transpose() * 2.0 + 1.0, 1)[:, None]"
                        ".reshape((4,))[None, :].broadcast((2, 4)).reshape((8,))", "reduce_sum: padding"),
    "a part": ("ct.reduce_sum(ct.extract(t + 1.0, (1,), (4,)), 0).broadcast((8,))", "reduce_sum: padding"),
    "beside constants": (
        "ct.reduce_sum(ct.select(ct.iota(8) > 2, t + 1.0, ct.constant(1.0, (8,), f32)), 0).broadcast((8,))", "padding"
    ),
    "chosen": ("ct.reduce_sum(ct.select(t > 2.0, t, ct.constant(1.0, (8,), f32)), 0).broadcast((8,))", "padding"),
}  # fmt: skip
MEANS = {
    "a mean": "ct.mean(t).broadcast((8,))",
    "a mean by hand": "(ct.reduce_sum(t, 0) / t.shape[0]).broadcast((8,))",
    "a mean of means": "(ct.reduce_sum(ct.reduce_sum(u, 1).astype(f16), 0) / 8).astype(f32).broadcast((8,))",
}
COUNTS.update({name: (call, "'x' are among the 8 that this mean counts") for name, call in MEANS.items()})
COUNTS_NOT = {
    "a sum": "ct.reduce_sum(t, 0).broadcast((8,))",
    "a maximum of numbers above": "ct.reduce_max(t, 0).broadcast((8,))",
    "masked by a product": "ct.reduce_sum((t + 1.0) * part.inside(0).astype(f32), 0).broadcast((8,))",
    "a scan from the begin": "ct.scan_sum(t + 1.0, 0)",
    "a product of rows": (
        "ct.extract(ct.mma(ct.exp(t).reshape((8, 1)), ct.constant(1.0, (1, 8), f32), ct.constant(0.0, (8, 8), f32)),"
        " (0, 0), (8, 1)).reshape((8,))"
    ),
    "along an axis without padding": "ct.reduce_sum(t.reshape((8, 1)) + 1.0, 1)",
    "a mean of elements": "(ct.reduce_sum(t, 0) / x.shape[0]).broadcast((8,))",
    "a mean of masked elements": "ct.mean(ct.select(part.inside(0), t, 2.0)).broadcast((8,))",
    "a mean along an axis without padding": "ct.mean(t.reshape((8, 1)), 1)",
    "no reduction": "ct.exp(t)",
    "a part without padding": "ct.reduce_sum(ct.extract(t + 1.0, (0,), (4,)), 0).broadcast((8,))",
    "rows of padding and constants": (
        "ct.reduce_sum(ct.select(ct.iota(4)[None, :] == 1, t.reshape((8, 1)) + 1.0, 0.0), 1)"
    ),
    "a scan of such rows": (
        "ct.reduce_sum(ct.cumsum(ct.select(ct.iota(4)[None, :] == 1, t.reshape((8, 1)) + 1.0, 0.0), 1), 1)"
    ),
}


def folded(call: str) -> None:
    text = "def k(y: Mut, x: Tensor):\n    part = x.partition((8,))\n    t = part.load(0)\n    u = t.reshape((2, 4))\n"
    k = kernel(f"{text}    y.store({call})\n")
    k(api.zeros((5,)).partition((8,)), api.from_numpy(np.arange(1, 6, dtype=np.float32)).sync()).interpret().sync()


@pytest.mark.parametrize("name", COUNTS)
def test_padding_that_changes_a_result_is_found(name: str) -> None:
    call, words = COUNTS[name]
    with pytest.warns(PaddingWarning, match=re.escape(words)):
        folded(call)


@pytest.mark.parametrize("name", COUNTS_NOT)
def test_padding_that_changes_nothing_is_left_alone(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folded(COUNTS_NOT[name])


SUMS_COUNT = {
    "a mean over tiles": "u = u + (t - 1.0)",
    "squares of deviations over tiles": "u = u + (t - mean) * (t - mean)",
    "Welford's means": "u = u + (t - u) / (k + 1)",
    "products with a number": "u = u + (t + 1.0) * 2.0",
    "other tensors' elements": "u = u + (t + other)",
}
SUMS_COUNT_NOT = {
    "sums over tiles": "u = u + t",
    "differences": "u = u - t",
    "sums of squares": "u += t * t",
    "sums that fade": "u = 0.5 * u + t",
    "sums in another type": "u = (u.astype(ct.f64) + t.astype(ct.f64)).astype(f32)",
    "sums of masked deviations": "u += ct.select(part.inside(k), t - mean, 0.0)",
    "sums of absolute values in two axes": "u = (u.reshape((2, 4)) + abs(t).reshape((2, 4))).reshape((8,))",
}


def added_up(step: str) -> None:
    """Fold tiles of 8 into one, and then its elements; the last tile has 5."""
    text = (
        "def k(y: Mut, x: Tensor, z: Tensor):\n    part, u = x.partition((8,)), ct.constant(0, (8,), f32)\n"
        "    mean, other = ct.reduce_sum(part.load(0)) / 8, z.load_tile((8,), (0,))\n"
        f"    for k in range(ct.num_tiles(part, 0)):\n        t = part.load(k)\n        {step}\n"
        "    y.store(ct.reduce_sum(u, keepdims=True))\n"
    )
    x = np.random.default_rng(0).standard_normal(21, np.float32)
    kernel(text)(api.zeros((1,)).partition((1,)), x, np.ones(8, np.float32)).interpret().sync()


@pytest.mark.parametrize("name", SUMS_COUNT)
def test_padding_that_changes_a_sum_of_a_loop_is_found(name: str) -> None:
    with pytest.warns(PaddingWarning, match="reduce_sum: padding counts"):
        added_up(SUMS_COUNT[name])


@pytest.mark.parametrize("name", SUMS_COUNT_NOT)
def test_padding_that_leaves_the_sums_of_a_loop_is_left_alone(name: str) -> None:
    """The places to which the last tile adds padding hold elements of the tiles before."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        added_up(SUMS_COUNT_NOT[name])


def test_the_largest_of_a_loop_may_stand_where_the_last_tile_has_padding() -> None:
    text = (
        "def k(y: Mut, x: Tensor):\n    part = x.partition((8,), padding=ct.padding.NEG_INF)\n"
        "    u = ct.constant(-f32.inf, (8,), f32)\n"
        "    for k in range(ct.num_tiles(part, 0)):\n        u = max(u, part.load(k))\n"
        "    y.store(ct.reduce_max(u, keepdims=True))\n"
    )
    x = np.zeros(13, np.float32)
    x[7] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel(text)(api.zeros((1,)).partition((1,)), x).interpret().sync()


@pytest.mark.parametrize(("rows", "warned"), [("ct.select(inside, ct.exp(t), 0.0)", False), ("ct.exp(t)", True)])
def test_rows_past_the_edge_that_a_mask_has_made_zeros_are_no_terms_of_a_product(rows: str, warned: bool) -> None:
    text = (
        "def k(y: Mut, x: Tensor, z: Tensor):\n    t = x.load_tile((4, 8), (0, 0))\n"
        "    inside = ct.iota((8,))[None, :] + 0 * ct.iota((4,))[:, None] < x.shape[1]\n"
        f"    y.store(ct.mma({rows}, z.load_tile((8, 8), (0, 0)) + 1.0, ct.constant(0, (4, 8), f32)))\n"
    )
    x, z = np.ones((3, 5), np.float32), np.ones((8, 8), np.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel(text)(api.zeros((3, 8)).partition((4, 8)), x, z).interpret().sync()
    assert [warning.category for warning in caught] == [PaddingWarning] * warned


LAYOUTS = """
def layouts(z: Mut, u: Mut, v: Mut, x: Tensor, y: Tensor, *, M: Const, K: Const, N: Const):
    a = x.load_tile((M, K), (0, 0)) if M else x.load_tile((K, z.shape[0]), (0, 0)).transpose()
    b = y.load_tile((K, N), (0, 0)) if N else y.load_tile((z.shape[1], K), (0, 0)).transpose()
    z.store(ct.mma(a, b, ct.constant(0, z.shape, z.dtype)))
    u.store(ct.reduce_sum(a, 1) + ct.extract(ct.cumsum(a, 1), (0, 0), (*u.shape, 1)).reshape(u.shape))
    v.store(ct.reduce_sum(b, 0) + ct.extract(ct.cumsum(b, 0), (0, 0), (1, *v.shape)).reshape(v.shape))
"""


@pytest.mark.parametrize("extents", list(itertools.product((32, 27), (48, 41), (16, 9))))
@pytest.mark.parametrize("by_columns", list(itertools.product((False, True), repeat=2)))
def test_zeros_change_nothing_whatever_the_layout(extents: tuple[int, ...], by_columns: tuple[bool, bool]) -> None:
    """The second run rounds as the first one does: its operands lie in memory in the same order."""
    m, k, n = extents
    rng = np.random.default_rng(m * k * n)
    a, b = (rng.standard_normal(shape, np.float32) for shape in ((m, k), (k, n)))
    x, y = (np.ascontiguousarray(each.T) if turned else each for each, turned in zip((a, b), by_columns, strict=True))
    outputs = (api.zeros(shape).partition(tile) for shape, tile in (((m, n), (32, 16)), ((m,), (32,)), ((n,), (16,))))
    sizes = {"M": 0 if by_columns[0] else 32, "K": 48, "N": 0 if by_columns[1] else 16}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = kernel(LAYOUTS)(*outputs, x, y, **sizes).interpret().sync()
    np.testing.assert_allclose(out.z.unpartition().numpy(), a.astype(np.float64) @ b, atol=1e-4)
