"""`scan_blocks` and the scans of whole arrays: exact on every backend, and the same bits in each run."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cuda_async import UnrunOperationWarning
from cutile import Mut, SharedMut, Tensor, api, bf16, f32, i32, i64, u32, u64
from cutile.errors import ArgumentError, ArgumentTypeError, KernelAssertionError, KernelTypeError
from cutile.host import kernels
from tests.support.devices import EVERYWHERE, on


def composed(f: Any, g: Any) -> Any:
    """Of functions x -> m * x + c, as halves of a word: f first. It does not commute."""
    m, c = (f >> 16) * (g >> 16), (g >> 16) * (f & 0xFFFF) + (g & 0xFFFF)
    return (m << 16) | (c & 0xFFFF)


def either(a: Any, b: Any) -> Any:
    return a | b


@dataclass
class Adds:
    """A function that is no key of a dict."""

    by: int = 0

    def __call__(self, a: Any, b: Any) -> Any:
        return a + b + self.by


def compositions(x: Any) -> Any:
    """What `composed` makes of an array, one by one."""
    results = [int(x[0])]
    for word in x[1:]:
        results.append(composed(results[-1], int(word)) & 0xFFFFFFFF)
    return np.array(results, np.uint32)


@ct.entry
def running(y: Mut, x: Tensor, state: SharedMut):
    t = ct.load_tile_like(x, y)
    before = ct.scan_blocks(state, ct.reduce(t, 0, 1 << 16, composed), 1 << 16, composed)
    y.store(composed(before, ct.scan(t, 0, ct.reverse.FORWARD, 1 << 16, composed)))


@ct.entry
def totals(y: Mut, x: Tensor, state: SharedMut):
    t = ct.load_tile_like(x, y)
    y.store(ct.scan_blocks(state, t.reshape(()), 0, operator.add).reshape(y.shape))


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_totals_of_small_groups_are_in_order(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of 3 blocks, so that 4 groups wait for one another; the last one has 2."""
    monkeypatch.setattr("cutile.block_scan.LANES", 4)
    x = np.random.default_rng(1).integers(0, 2**32, 44, dtype=np.uint32) | np.uint32(1 << 16)
    with on(backend):
        y, state = api.zeros((44,), u32).partition((4,)), api.zeros((22,), u64)
        y = running(y, api.from_numpy(x), state).first().unpartition().sync().numpy()
    np.testing.assert_array_equal(y, compositions(x))


@pytest.mark.parametrize("backend", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [u32, i64], ids=str)
def test_many_blocks_side_by_side(dtype: Any, backend: str) -> None:
    """Several groups of 255 blocks, and totals of one and of two words."""
    x = np.random.default_rng(2).integers(0, 2**31, 5000).astype(dtype.numpy) * (3 if dtype is u32 else 2**31 + 1)
    with on(backend):
        y, state = api.zeros((5000,), dtype).partition((1,)), api.zeros((20000,), u64)
        y = totals(y, api.from_numpy(x), state).first().unpartition().sync().numpy()
    np.testing.assert_array_equal(y[1:], np.cumsum(x, dtype=dtype.numpy)[:-1])
    assert y[0] == 0


@pytest.mark.parametrize("shape", [(2, 3, 4), (24, 1, 1)])
def test_blocks_are_in_the_order_of_their_indices(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(3).integers(-9, 9, shape).astype(np.int32)
    with on("reference"):
        y, state = api.zeros(shape, i32).partition((1, 1, 1)), api.zeros((48,), u64)
        y = totals(y, api.from_numpy(x), state).first().unpartition().sync().numpy()
    np.testing.assert_array_equal(y.reshape(-1)[1:], x.reshape(-1).cumsum()[:-1])


@pytest.mark.parametrize("dtype", ["bool", "i8", "u8", "f16", "bf16", "f32", "f64"])
def test_every_width_of_a_total(dtype: str) -> None:
    """Its bits pass through words of 32 bits. Small whole numbers, and bools, which are combined by `or`."""
    element = ct.bool_ if dtype == "bool" else getattr(ct, dtype)
    combined = either if dtype == "bool" else operator.add

    @ct.entry
    def firsts(y: Mut, x: Tensor, state: SharedMut):
        total = ct.load_tile_like(x, y).reshape(())
        y.store(ct.scan_blocks(state, total, 0, combined).reshape(y.shape))

    x = np.array([0, 0, 1, 0, 1, 1] if dtype == "bool" else [5, -3 if dtype[0] in "if" else 3, 7, 0, 1, 2])
    x = x.astype(element.numpy)
    with on("reference"):
        y, state = api.zeros((6,), element).partition((1,)), api.zeros((24,), u64)
        y = firsts(y, api.from_numpy(x), state).first().unpartition().sync().numpy()
    scan: Any = np.logical_or.accumulate if dtype == "bool" else np.cumsum
    np.testing.assert_array_equal(y[1:].astype(np.float64), scan(x.astype(np.float64))[:-1])


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_a_state_that_is_too_small_is_an_error(backend: str) -> None:
    with on(backend), pytest.raises(KernelAssertionError, match="less than 2 words for each tile block") as caught:
        totals(api.zeros((9,), u32).partition((1,)), api.zeros((9,), u32), api.zeros((17,), u64)).sync()
    assert __file__ in str(caught.value)
    assert "y.store(ct.scan_blocks(state, t.reshape(()), 0, operator.add)" in str(caught.value)


@pytest.mark.parametrize("interpreted", [False, True])
def test_a_state_of_another_dtype_is_refused_at_the_call(interpreted: bool) -> None:
    for state in (api.zeros((18,), i64), api.zeros((18,), i32), api.zeros((2, 18), u64)):
        op = totals(api.zeros((9,), u32).partition((1,)), api.zeros((9,), u32), state)
        op = op.interpret() if interpreted else op
        with on("cpu"), pytest.raises(KernelTypeError, match=r"scan_blocks: state must (be u64|have one)") as caught:
            op.sync()
        assert caught.value.location is not None
        assert caught.value.location.file == __file__
        assert "block_scan.py" not in str(caught.value)


@pytest.mark.parametrize("backend", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_cumsum_of_an_array(backend: str) -> None:
    """Of several tiles; every other element of f32 in bf16, whose sums are rounded once."""
    rng = np.random.default_rng(4)
    x = rng.integers(-9, 9, 50001).astype(np.int32)
    with on(backend):
        array = api.from_numpy(x).sync()
        np.testing.assert_array_equal(api.cumsum(array).sync().numpy(), np.cumsum(x, dtype=np.int32))
        np.testing.assert_array_equal(api.cumsum(array, i64).sync().numpy(), np.cumsum(x, dtype=np.int64))
        halves = api.cumsum(api.convert(array, f32).sync()[::2], bf16).sync().numpy()
    np.testing.assert_array_equal(halves, np.cumsum(x[::2].astype(np.float32)).astype(bf16.numpy))


@pytest.mark.parametrize("backend", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_scan_by_a_function_that_does_not_commute(backend: str) -> None:
    x = np.random.default_rng(5).integers(0, 2**32, 20000, dtype=np.uint32) | np.uint32(1 << 16)
    with on(backend):
        y = api.scan(api.from_numpy(x).sync(), composed, 1 << 16).sync().numpy()
    np.testing.assert_array_equal(y, compositions(x))


@pytest.mark.gpu
def test_sums_of_floats_are_the_same_in_each_run() -> None:
    x = np.random.default_rng(6).standard_normal(1 << 25).astype(np.float32)
    with on("cuda"):
        array = api.from_numpy(x).sync()
        first = api.cumsum(array).sync().numpy()
        for _ in range(20):
            np.testing.assert_array_equal(api.cumsum(array).sync().numpy(), first)
    exact = np.cumsum(x, dtype=np.float64)
    assert np.linalg.norm(first - exact) <= 1e-5 * np.linalg.norm(exact)


def test_arrays_that_are_no_array() -> None:
    assert api.cumsum(api.zeros((0,), i32).sync()).sync().shape == (0,)
    with pytest.raises(ArgumentError, match=r"a tensor of one axis, got one of shape \(2, 3\)"):
        api.cumsum(api.zeros((2, 3)).sync())
    with pytest.raises(ArgumentTypeError, match="scan: x: expected a tensor, got ndarray"):
        api.scan(np.zeros(3), operator.add, 0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="cumsum: dtype: nothing is added in bool"):
        api.cumsum(api.zeros((3,), ct.bool_).sync())
    with pytest.raises(ArgumentTypeError, match=r"cumsum: x: .* api.from_numpy\(array\).sync\(\) makes one of it"):
        api.cumsum([1, 2])  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="cumsum: x: expected a tensor, got the op zeros, which has not run"):
        api.cumsum(api.zeros((3,)))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"cumsum: axis: .* got 1; scan rows in a kernel"):
        api.cumsum(api.zeros((3,)).sync(), axis=1)


known: Any = operator  # `and_` and its kind have no types


@pytest.mark.parametrize(
    ("function", "identity", "dtype", "right"),
    [
        (known.add, 1.0, f32, "0"),
        (known.mul, 0, i32, "1"),
        (known.or_, 1, u32, "0"),
        (known.xor, -1, i32, "0"),
        (known.and_, 0, i32, "-1"),
        (known.and_, 1, u32, str(2**32 - 1)),
        (ct.maxi, 0, i32, str(-(2**31))),
        (max, -1e9, f32, r"float\('-inf'\)"),
        (min, 0, u32, str(2**32 - 1)),
        (ct.min_tile, float("nan"), f32, r"float\('inf'\)"),
    ],
)
def test_a_wrong_identity_of_a_known_function_is_refused(function: Any, identity: Any, dtype: Any, right: str) -> None:
    with pytest.raises(ArgumentError, match=rf"scan: identity: .* would change elements.* is {right}$"):
        api.scan(api.zeros((3,), dtype).sync(), function, identity)


def test_identities_that_are_right() -> None:
    x = np.array([3, 1, 2])
    cases: list[tuple[Any, ...]] = [
        (max, float(np.finfo(np.float32).min), f32, np.maximum),
        (min, float("inf"), bf16, np.minimum),
        (ct.maxi, 0, u32, np.maximum),
        (known.mul, True, i32, np.multiply),
        (known.and_, -1, i64, np.bitwise_and),
    ]
    for function, identity, dtype, ufunc in cases:
        y = api.scan(api.from_numpy(x, dtype).sync(), function, identity).sync().numpy()
        np.testing.assert_array_equal(y, ufunc.accumulate(x.astype(dtype.numpy)))


def test_functions_and_identities_that_are_none() -> None:
    x = api.zeros((3,), i32).sync()
    with pytest.raises(ArgumentTypeError, match=r"kernels do not call np.maximum; write ct.max_tile"):
        api.scan(x, np.maximum, -1e9)
    with pytest.raises(ArgumentTypeError, match=r"scan: function: an object of Adds may change.*frozen=True"):
        api.scan(x, Adds(), 0)
    with pytest.raises(ArgumentTypeError, match="scan: function: expected one, got 3"):
        api.scan(x, 3, 0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="scan: identity: expected a number, got 'a'"):
        api.scan(x, operator.add, "a")
    with pytest.raises(ArgumentError, match=r"scan: identity: 0.5 is no value of i32"):
        api.scan(x, either, 0.5)


def test_a_scan_that_is_dropped_is_named_by_the_call() -> None:
    with pytest.warns(UnrunOperationWarning, match="the operation cumsum made here was never run"):
        api.cumsum(api.zeros((3,)).sync())
    ops = [totals(api.zeros((9,), u32).partition((1,)), api.zeros((9,), u32), api.zeros((18,), u64)).first()]
    with pytest.warns(UnrunOperationWarning, match="the operation totals made here was never run"):
        ops.clear()


@pytest.mark.parametrize("identities", [(0.0, 0, False), (False, 0, 0.0)])
def test_equal_identities_of_other_types_are_the_number_of_the_dtype(identities: tuple[Any, ...]) -> None:
    """Whatever came first: 0, 0.0 and False are equal, but no i32 is 0.0."""

    def add(a: Any, b: Any) -> Any:
        return a + b

    x = api.from_numpy(np.array([1, 2, 3], np.int32)).sync()
    for identity in identities:
        assert api.scan(x, add, identity).to_numpy().sync().tolist() == [1, 3, 6]


def test_zeros_of_both_signs_are_two_identities() -> None:
    x = api.from_numpy(np.array([-0.0], np.float32)).sync()
    sums = [api.scan(x, operator.add, zero).to_numpy().sync() for zero in (0.0, -0.0)]
    assert np.signbit(sums).ravel().tolist() == [False, True]


def test_kernels_of_functions_made_in_a_loop_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_MAX_SCAN_KERNELS", 4)
    monkeypatch.setattr(kernels, "_scan_kernels", {})
    for n in range(10):
        kernels.scan_kernel(lambda a, b, n=n: a + b, 0)
    assert len(kernels._scan_kernels) <= 4  # pyright: ignore[reportPrivateUsage]
