"""Tensors as values: chosen, carried, sliced in kernels; outputs of many axes; bare floats."""

from __future__ import annotations

import itertools
import math
import textwrap
from typing import Any

import numpy as np
import pytest

import cutile as ct
from cutile import Mut, Tensor, api, f32, f64, i32
from cutile.errors import KernelError
from tests.support.devices import EVERYWHERE, on
from tests.support.kernels import define, kernel
from tests.support.memory import CPU_BACKENDS, launch

X = np.arange(20, dtype=np.float32)
W = X[14::-1].copy() * 2
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a")


def result(op: Any) -> Any:
    return op.sync().y.unpartition().to_numpy().sync()


def tensor(array: np.ndarray[Any, Any]) -> Any:
    return api.from_numpy(array).sync()


# Branches and loops


@ct.entry
def walking(y: Mut, x: Tensor, w: Tensor, n: i32):
    z, p = x, (x.partition((4,)), 0)
    t = ct.constant(0.0, (4,), f32)
    for i in range(n):
        t += z.load_tile((4,), (0,)) + p[0].load(0)
        z = z.slice(0, 1) if i > 1 else w
        p = (z.partition((4,)), i)
    other = x if n > 3 else w.slice(0, 2, -1)
    y.store(t + z.load_tile((4,), (0,)) + z.shape[0] + p[1] + other.load_tile((4,), (1,)) * other.strides[0])


def walked(n: int) -> Any:
    z, p, q = X, X, 0
    t = np.zeros(4, np.float32)
    for i in range(n):
        t = t + z[:4] + p[:4]
        z = z[1:] if i > 1 else W
        p, q = z, i
    other = X if n > 3 else W[2:-1]
    return t + z[:4] + len(z) + q + other[4:8]


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_tensors_are_chosen_by_branches_and_carried_by_loops(backend: str) -> None:
    with on(backend):
        for n in (0, 1, 2, 5, 7):
            got = result(walking(api.zeros((4,)).partition((4,)), tensor(X), tensor(W), n))
            np.testing.assert_array_equal(got, walked(n))


def test_strides_and_dtypes_that_differ() -> None:
    """A tensor with columns for rows has strides of its own; one of another dtype cannot stand for it."""
    text = """
def chosen(y: Mut, x: Tensor, w: Tensor, n: i32):
    z = x if n > 0 else w
    y.store(z.load_tile((2, 4), (0, 0)))
"""
    square = X[:16].reshape(4, 4)
    compiled = kernel(text)
    for n, expected in ((1, square), (0, square.T * 2)):
        transposed = tensor(square * 2).T
        got = result(compiled(api.zeros((2, 4)).partition((2, 4)), tensor(square), transposed, n))
        np.testing.assert_array_equal(got, expected[:2])
    with pytest.raises(KernelError, match=r"different types in the two branches: tensor of f32 .* tensor of i32"):
        compiled(api.zeros((2, 4)).partition((2, 4)), tensor(square), tensor(square.astype(np.int32)), 1).sync()


# Slices

BOUNDS = [(0, 4), (2, 6), (-3, -1), (3, 100), (-100, 2), (4, 2), (None, 3), (3, None), (None, -2)]


@ct.entry
def ragged(y: Mut, x: Tensor, offsets: Tensor):
    i = ct.get_tile_block_id()[0]
    first, last = (ct.tile_to_scalar(offsets.load_tile((1,), (i + k,)).reshape(())) for k in range(2))
    rows = x.slice(0, first, last)
    part = rows.partition((2, 4))
    total = ct.constant(0.0, (), f32)
    for r in range(ct.num_tiles(part, 0)):
        for c in range(ct.num_tiles(part, 1)):
            total += ct.reduce_sum(ct.reduce_sum(part.load((r, c)), 0), 0)
    y.store(total + 1000 * rows.shape[0])


VIEW = """
def viewed(y: Mut, x: Tensor, addresses: Tensor):
    y.store(y.load() + ct.load_tensor(addresses, 0, (4,), (1,), x.dtype).load_tile((1,), (3,)))
"""


def test_a_kernel_with_a_tensor_at_an_address_has_a_plan() -> None:
    """Its kernel is described as any other: what opens a view computes no element."""
    x, y = np.arange(4, dtype=np.float32), np.zeros(2, np.float32)
    addresses = np.array([x.ctypes.data], np.int64)
    launch(ct.entry(unsafe=True)(define(VIEW)), (y, (1,)), x, addresses, backend="cpu")
    assert y.tolist() == [3, 3]


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_ragged_segments(backend: str) -> None:
    rows = np.arange(70, dtype=np.float32).reshape(10, 7)
    offsets = np.array([0, 3, 3, 4, 10], np.int32)
    expected = [rows[a:b].sum() + 1000 * (b - a) for a, b in itertools.pairwise(offsets)]
    with on(backend):
        np.testing.assert_array_equal(
            result(ragged(api.zeros((4,)).partition((1,)), tensor(rows), tensor(offsets))), expected
        )


@pytest.mark.parametrize("backend", CPU_BACKENDS)
def test_bounds_mean_what_they_mean_in_numpy(backend: str) -> None:
    text = """
def sliced(y: Mut, x: Tensor, a: i32, b: i32):
    z = x.slice(1, {0}, {1})
    y.store(z.load_tile((4, 8), (0, 0)) + 100 * z.shape[1] + x.slice(-2, -1).shape[0])
"""
    rows = np.arange(32, dtype=np.float32).reshape(4, 8)
    with on(backend):
        at_run_time = kernel(text.format("a", "b"))
        for a, b in BOUNDS:
            inside = rows[:, a:b]
            expected = np.full((4, 8), 100.0 * inside.shape[1] + 1)
            expected[:, : inside.shape[1]] += inside
            made = at_run_time if a is not None and b is not None else kernel(text.format(a, b))
            got = result(made(api.zeros((4, 8)).partition((4, 8)), tensor(rows), a or 0, b or 0))
            np.testing.assert_array_equal(got, expected, str((a, b)))


@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("dtype", ["u32", "u64", "i64"])
def test_bounds_of_any_size_stay_inside(dtype: str, backend: str) -> None:
    """An unsigned bound is never negative: from 2**63 on it is the end, and not a number from there back."""
    text = f"""
def sliced(y: Mut, x: Tensor, a: ct.{dtype}, b: ct.{dtype}):
    y.store(ct.constant(0, (1,), f32) + x.slice(0, a, b).shape[0])
"""
    limits = np.iinfo(getattr(np, {"u": "uint", "i": "int"}[dtype[0]] + dtype[1:]))
    bounds = sorted({*range(10), int(limits.min), int(limits.max), *(2**63 + n for n in (0, 1, 2**40)), 2**31})
    bounds = [bound for bound in bounds if limits.min <= bound <= limits.max]
    with on(backend):
        sliced = kernel(text)
        for a, b in itertools.product(bounds, repeat=2):
            got = result(sliced(api.zeros((1,)).partition((1,)), tensor(X), a, b))
            assert got == len(X[a:b]), (a, b)


def test_slices_are_compiled_for_gpus() -> None:
    y, x = api.zeros((4,)).sync(), tensor(X)
    for arch in ARCHITECTURES:
        assert "tensor_view" in walking.inspect(y.partition((4,)), x, x, 1, stage="lowered", arch=arch)
        assert walking.inspect(y.partition((4,)), x, x, 1, arch=arch)


# Tuples of tensors, and windows


@ct.entry
def picked(y: Mut, xs: list[Tensor]):
    t = ct.constant(0.0, y.shape, f32)
    for i in range(len(xs)):
        t += xs[i].load_tile(y.shape, (0,)) * (i + 1) + xs[i].shape[0]
    y.store(t)


@ct.entry(unsafe=True)
def overlapping(y: Mut):
    windows = ct.make_strided_view(y, (4,), (2,))
    for i in range(3):
        windows.store(ct.constant(1.0, (4,), f32) * (i + 1), i)  # type: ignore[attr-defined]


@ct.entry
def put_rows(y: Mut, x: Tensor):
    view = ct.make_gather_scatter_view(y, (2, 2), axis=0)
    ct.store_gather_scatter_view_tko(view, x.load_tile((2, 2), (0, 0)), (2 - 2 * ct.iota((2,)), 0))


@ct.entry
def padded(y: Mut, x: Tensor):
    i, j, _ = ct.get_tile_block_id()
    windows = ct.make_strided_view(x, (4, 4), (1, 2), starts=(-1, -2))
    y.store(ct.reduce_sum(ct.reduce_sum(windows.load((i, j)), 1), 0) + ct.num_tiles(windows, 1))


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_lists_of_tensors_and_windows(backend: str) -> None:
    with on(backend):
        lengths = (8, 5, 3)
        got = result(picked(api.zeros((8,)).partition((8,)), [tensor(X[:n]) for n in lengths]))
        np.testing.assert_array_equal(got, sum(np.pad(X[:n], (0, 8 - n)) * (i + 1) + n for i, n in enumerate(lengths)))
        got = result(overlapping(api.zeros((8,)).sync().partition((8,))))
        np.testing.assert_array_equal(got, [1, 1, 2, 2, 3, 3, 3, 3])
        got = result(put_rows(api.zeros((3, 2)).sync().partition((3, 2)), tensor(X[:4].reshape(2, 2))))
        np.testing.assert_array_equal(got, [[2, 3], [0, 0], [0, 1]])
        image = np.arange(30, dtype=np.float32).reshape(5, 6)
        around = np.pad(image, ((1, 9), (2, 9)))
        wanted = [[around[i : i + 4, 2 * j : 2 * j + 4].sum() + 4 for j in range(4)] for i in range(6)]
        np.testing.assert_array_equal(result(padded(api.zeros((6, 4)).partition((1, 1)), tensor(image))), wanted)


@ct.entry
def moved(y: Mut, x: Tensor, *, ROW: ct.Const, COLUMN: ct.Const):
    i, j, _ = ct.get_tile_block_id()
    y.store(ct.make_strided_view(x, y.shape, y.shape, starts=(ROW, COLUMN)).load((i, j)))


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_each_tile_has_a_window_wherever_windows_start(backend: str) -> None:
    """Also where the last tile has fewer elements than the windows are moved by."""
    starts = ((1, -1), (0, 2), (4, 5), (5, -4), (-5, 3))
    with on(backend):
        for (row, column), height, width in itertools.product(starts, range(1, 10), (4, 5)):
            x = np.arange(1, 1 + height * width, dtype=np.float32).reshape(height, width)
            got = result(moved(api.zeros(x.shape).partition((4, 3)), x, ROW=row, COLUMN=column))
            around = np.pad(x, 9)[9 + row :, 9 + column :][:height, :width]
            np.testing.assert_array_equal(got, around, err_msg=f"{x.shape} from {row}, {column}")


@pytest.mark.parametrize("access", ["load_pipelined(0)", "load_unchecked(0)", "inside(0)"])
def test_windows_with_starts_refuse_what_ignores_the_starts(access: str) -> None:
    text = f"""
def shifted(y: Mut, x: Tensor):
    windows = ct.make_strided_view(x, (4,), (4,), starts=(-1,))
    windows.{access}
"""
    with pytest.raises(KernelError, match="windows with starts are loaded by"):
        ct.entry(unsafe=True)(define(text))(api.zeros((4,)).partition((4,)), tensor(X)).sync()


def test_an_index_into_a_tuple_of_tensors_is_checked() -> None:
    text = "def at(y: Mut, xs: tuple[Tensor, ...], n: i32):\n    y.store(xs[n].load_tile(y.shape, (0,)))\n"
    with pytest.raises(ct.LaunchError, match="into a tuple of 2 tensors is 2; it must be at least 0 and below 2"):
        kernel(text)(api.zeros((4,)).partition((4,)), (tensor(X), tensor(W)), 2).sync()


# Many axes


@ct.entry
def folded(y: Mut, x: Tensor):
    index = y.index
    y.store(ct.load_tile_like(x, y) * 2.0 + y.load() + x.load_tile(y.shape, index) + index[y.ndim - 1])


@ct.entry
def nested(y: Mut):
    part = y.partition_mut((1, 1, 1, 2))
    for i in range(ct.num_tiles(part, 0)):
        for j in range(ct.num_tiles(part, 3)):
            part.store(ct.constant(1.0, part.shape, f32) * (i * 10 + j + 1), (i, 0, 0, j))


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_outputs_have_up_to_eight_axes(backend: str) -> None:
    with on(backend):
        most = ((2,) * 8, (1, 2) * 4) if backend != "cpu" else ((2, 1, 3, 2, 2), (1, 1, 2, 1, 2))
        for shape, tile in (((2, 3, 5, 4), (1, 2, 2, 4)), most, ((3, 4, 5), (2, 2, 2))):
            x = np.random.default_rng(0).integers(0, 9, shape).astype(np.float32)
            part = api.ones(shape).sync().partition(tile)
            assert math.prod(part.grid()) == math.prod(-(-n // t) for n, t in zip(shape, tile, strict=True))
            got = result(folded(part, tensor(x)))
            np.testing.assert_array_equal(got, 3 * x + 1 + np.arange(shape[-1]) // tile[-1])
        got = result(nested(api.zeros((3, 2, 2, 5)).sync().partition((2, 1, 1, 3))))
        wanted = np.ones((3, 2, 2, 5)) + 10 * (np.arange(3) % 2)[:, None, None, None] + (np.arange(5) % 3) // 2
        np.testing.assert_array_equal(got, wanted)


def test_outputs_of_many_axes_are_compiled_for_gpus() -> None:
    y, x = api.zeros((2, 3, 4, 8)).sync(), api.zeros((2, 3, 4, 8)).sync()
    for arch in ARCHITECTURES:
        assert folded.inspect(y.partition((1, 1, 4, 8)), x, arch=arch)


# Bare floats


@ct.entry
def exact(y: Mut, x: Tensor):
    r = y.partition_mut((1,))
    r.store(ct.broadcast(math.pi, (1,)).astype(f64), 0)
    r.store(ct.broadcast(0.1, (1, 1)).reshape((1,)).astype(f64), 1)
    r.store(ct.select(x.shape[0] > 3, 0.1, 0.2).astype(f64), 2)  # type: ignore[arg-type]
    r.store((x.shape[0] / 3).astype(f64), 3)  # type: ignore[attr-defined]
    r.store(x.load_tile((1,), (0,)) * (x.shape[0] * 0.1), 4)
    r.store(ct.convert_tile(-ct.broadcast(math.e, (1,)), f64), 5)
    r.store(f64(ct.f32(0.1)), 6)


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_bare_floats_are_exact_beside_f64(backend: str) -> None:
    with on(backend):
        got = result(exact(api.zeros((7,), f64).partition((7,)), api.ones((5,), f64).sync()))
    wanted = [math.pi, 0.1, 0.1, 5 / 3, 0.5, -math.e, float(np.float32(0.1))]
    np.testing.assert_array_equal(got, wanted)


ONCE = (
    "one * V", "zero + V", "ct.select(zero == 0, V, zero)", "max(zero, V)", "ct.constant(V, (4,), D)",
    "ct.fma(one, V, zero)", "ct.broadcast(V, (4,)) + zero", "ct.broadcast(V, (4,)).astype(D)",
    "ct.convert_tile(V, D)", "ct.convert_scalar(V, D)", "ct.ftof(V, D)", "D(V)", "one * (V if n > 0 else 2.0)",
    "one * (V if s > 0.0 else 2.0)", "abs(ct.broadcast(-V, (2, 2))).transpose().reshape((4,)).astype(D)",
    "ct.select(zero == 0, V, 2.0).astype(D)", "max(ct.broadcast(V, (4,)), 0.5).astype(D)",
    "ct.ftof(U, D, rounding=ct.rounding.POSITIVE_INF)",
)  # fmt: skip
"""Ways to a tile of a number, which is rounded to the tile's dtype."""


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize(("dtype", "bits"), [(ct.f16, 10), (ct.bf16, 7)])
def test_a_number_is_rounded_once(backend: str, dtype: Any, bits: int) -> None:
    """V lies above the middle of two numbers of 16 bits, and the middle is the nearest f32."""
    step = 2.0**-bits
    numbers = {"V": 1 + step / 2 + 2.0**-40, "U": 1 + 2.0**-40, "D": dtype}
    stores = "".join(f"    z.store(zero + {way}, {row})\n" for row, way in enumerate(ONCE))
    text = (
        "def k(y: Mut, x: Tensor, s: f32, *, V: Const, U: Const, D: DType):\n"
        "    z, one = y.partition_mut((4,)), x.load_tile((4,), 0)\n    zero, n = one - one, x.shape[0]\n" + stores
    )
    with on(backend):
        y = api.zeros((4 * len(ONCE),), dtype).partition((4 * len(ONCE),))
        got = result(kernel(text, f32=ct.f32)(y, api.ones((4,), dtype).sync(), 1.0, **numbers))
    for way, row in zip(ONCE, got.astype(np.float64).reshape(-1, 4), strict=True):
        assert (row == 1 + step).all(), way


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_a_number_is_converted_as_it_is_written(backend: str) -> None:
    text = """
        def k(y: Mut, f: Mut):
            z = y.partition_mut((1,))
            z.store(ct.convert_tile(16777217.0, y.dtype), 0)
            z.store(ct.broadcast(16777217.0, (1,)).astype(y.dtype), 1)
            z.store(ct.broadcast(1e-60, (1,)).astype(ct.bool_).astype(y.dtype), 2)
            total = ct.broadcast(0.1, (1,))
            for _ in ct.static_range(40):
                total = total + total
            f.store(total.astype(f.dtype))
    """
    with on(backend):
        out = kernel(textwrap.dedent(text).lstrip())(
            api.zeros((3,), ct.i32).partition((3,)), api.zeros((1,), f64).partition((1,))
        ).sync()
    assert out[0].unpartition().numpy().tolist() == [16777217, 16777217, 1]
    assert out[1].unpartition().numpy().tolist() == [0.1 * 2.0**40]


def test_a_tensor_changes_its_form_with_or_without_a_value_before_the_loop() -> None:
    """The stride of `z` is an argument of the launch, that of `x` is 1."""
    text = """
        def k(y: Mut, x: Tensor, z: Tensor):
            t = x
            BEFORE
            for i in range(4):
                u = t
                t = z
            y.store(ct.load_tile_like(u, y))
    """
    text, x = textwrap.dedent(text).lstrip(), np.arange(16, dtype=np.float32)
    for before in ("pass", "u = x"):
        y = np.zeros(2, np.float32)
        launch(kernel(text.replace("BEFORE", before)), (y, (2,)), x, x[::2], backend="cpu")
        np.testing.assert_array_equal(y, [0, 2])


def test_any_number_of_tiles_may_change_their_shapes() -> None:
    """Each is overwritten in every iteration, so the loop carries none of them."""
    names = [f"t{number}" for number in range(20)]
    lines = [f"    {name} = ct.constant(1.0, (4,), ct.f32)" for name in names]
    lines += ["    total = y.load()", "    for k in range(3):"]
    for name in names:
        lines += [f"        {name} = ct.constant(1.0, (2,), ct.f32)", f"        total = total + {name}"]
    text = "\n".join(["def k(y: Mut):", *lines, "    y.store(total)"]) + "\n"
    y = np.zeros(2, np.float32)
    launch(kernel(text), (y, (2,)), backend="cpu")
    np.testing.assert_array_equal(y, 60)
