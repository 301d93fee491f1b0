"""Programs that the CPU backend once computed otherwise than the reference, made short."""

from __future__ import annotations

import numpy as np
import pytest

import cutile as ct
from cuda_async import Device
from cutile.dtypes import DTypeLike, f16, f32, f64, i16, i32, i64, u32
from cutile.launch.target import use_backend
from tests.support.kernels import define, kernel
from tests.support.memory import launch

BITS = ("(a ^ t) & u", "(a | t) & u", "(a | t) ^ u", "a & (t ^ u)", "a ^ (t | u) & t")


def test_operators_on_bits_keep_their_parentheses() -> None:
    names = [f"out{at}" for at in range(len(BITS))]
    stores = "".join(f"    {name}.store({bits})\n" for name, bits in zip(names, BITS, strict=True))
    text = f"""
def k({": Mut, ".join(names)}: Mut, x: Tensor, y: Tensor, a: i64):
    t, u = ct.load_tile_like(x, out0), ct.load_tile_like(y, out0)
{stores}"""
    x, y = np.arange(-50, 50), np.arange(100) * 7 % 61
    outs = [np.zeros(100, np.int64) for _ in BITS]
    launch(kernel(text), *((out, (32,)) for out in outs), x, y, 5, backend="cpu")
    for out, bits in zip(outs, BITS, strict=True):
        np.testing.assert_array_equal(out, eval(bits, {"t": x, "u": y, "a": 5}), bits)


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_an_extreme_of_what_cannot_be_nan_still_drops_nan(dtype: DTypeLike) -> None:
    """Columns beyond the last whole vector take another path through the machine code."""
    text = """
def k(least: Mut, most: Mut, x: Tensor):
    x = ct.load_tile_like(x, least)
    t, u = min(x, 2), max(x, 2)
    least.store(ct.reduce_min(t, 0).reshape((1, -1)).broadcast(t.shape))
    most.store(ct.reduce_max(u, 0).reshape((1, -1)).broadcast(t.shape))
"""
    x = np.random.default_rng(3).uniform(-4, 4, (6, 29)).astype(dtype.numpy)
    x[1, ::3] = np.nan
    least, most = np.zeros_like(x), np.zeros_like(x)
    launch(kernel(text), (least, (2, 33)), (most, (2, 33)), x, backend="cpu")
    for out, drop, reduce in ((least, np.fmin, np.min), (most, np.fmax, np.max)):
        expected = reduce(drop(x, 2).reshape(3, 2, 29), axis=1, keepdims=True)
        np.testing.assert_array_equal(out.reshape(3, 2, 29), np.broadcast_to(expected, (3, 2, 29)))


def test_a_choice_between_one_value_and_itself_is_that_value() -> None:
    text = """
def k(out: Mut, n: i32):
    t = out.load()
    out.store((t if n > 2 else t) + 1)
"""
    out = np.zeros(8, np.float32)
    launch(kernel(text), (out, (4,)), 3, backend="cpu")
    np.testing.assert_array_equal(out, 1)


def test_a_scalar_computed_inside_a_loop_is_computed_again_outside_of_it() -> None:
    text = """
def k(out: Mut, n: i32):
    t = out.load()
    u = -t
    for i in range(n):
        if n > 3:
            u = t
    v = -(t if n > 0 else u)
    for i in range(n):
        if n > 3:
            break
        v = v + t
    out.store(v)
"""
    for n, sign in ((2, 1.0), (5, -1.0), (-1, 1.0)):
        out = np.ones(8, np.float32)
        launch(kernel(text), (out, (4,)), n, backend="cpu")
        np.testing.assert_array_equal(out, sign)


def test_tiles_of_three_axes_that_grow_keep_little_memory() -> None:
    """Blocks are joined along any axis; memory as wide as each of them may get was 96 GiB a thread."""
    text = """
def k(out: Mut, x: Tensor, n: i32):
    t = ct.load_tile_like(x, out)
    if n > 2:
        t = ct.tanh(t) * t
    out.store(t)
"""
    x = np.random.default_rng(4).uniform(-2, 2, (5, 43, 30)).astype(np.float32)
    out = np.zeros_like(x)
    launch(kernel(text), (out, (1, 8, 4)), x, 3, backend="cpu")
    np.testing.assert_allclose(out, np.tanh(x) * x, rtol=1e-5, atol=1e-6)


def test_a_tensor_chosen_for_tiles_of_one_element_has_a_plan_to_tell() -> None:
    """A branch that gives an address and an extent stands in the loop over blocks, where elements are computed."""
    text = """
def k(out: Mut, x: Tensor, z: Tensor, n: i32):
    part = z if n > 3 else x.slice(0, 0, n)
    out.store(part.load_tile((1,), (n - 1,)))
"""
    x, z, out = np.arange(3.0), np.arange(10.0, 15.0), np.zeros(2)
    for n, expected in ((2, 1.0), (4, 13.0)):
        launch(kernel(text), (out, (1,)), x, z, n, backend="cpu")
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(("source", "target"), [(f32, i32), (f32, u32), (f16, i16), (f64, i64)], ids=str)
def test_a_clamp_to_a_bound_that_rounds_out_of_range_saturates(source: DTypeLike, target: DTypeLike) -> None:
    """2**31 - 1 is 2**31 in f32: a number that was clamped to it need not fit."""
    bounds = np.iinfo(target.numpy)
    text = f"""
def k(out: Mut, x: Tensor):
    t = ct.load_tile_like(x, out)
    out.store(min(max(t, {bounds.min}), {bounds.max}).astype(ct.{target.name}))
"""
    x = np.array([np.inf, -np.inf, 1, 2.0**15], source.numpy)
    out = np.zeros(4, target.numpy)
    launch(kernel(text), (out, (4,)), x, backend="cpu")
    np.testing.assert_array_equal(out, [bounds.max, bounds.min, 1, min(2**15, bounds.max)])


SLICED = {
    "a part read before it is written": """
def k(y: SharedMut, z: Mut):
    t = y.slice(0, 0, 8).partition((8,)).load((0,))
    y.partition((8,)).store(t - 100, (0,))
    z.store(t)
""",
    "a part that overlaps the tile it is stored to": """
def k(y: SharedMut, z: Mut):
    t = y.slice(0, 4, 16).partition((8,)).load((0,))
    y.partition((8,)).store(t, (1,))
    z.store(y.partition((8,)).load((1,)))
""",
    "a part read before its elements are scattered": """
def k(y: SharedMut, z: Mut):
    t = y.slice(0, 4, 16).partition((8,)).load((0,))
    ct.scatter(y, (ct.iota((8,)) + 8,), t)
    z.store(t)
""",
}


@pytest.mark.parametrize("name", SLICED)
def test_a_slice_of_a_tensor_is_read_before_the_tensor_is_written(name: str) -> None:
    compiled = ct.entry(unsafe=True)(define(SLICED[name], SharedMut=ct.SharedMut))
    results: list[list[float]] = []
    for backend in ("reference", "cpu"):
        y, z = ct.api.arange(16, f32).sync(), ct.api.zeros((8,), f32).sync()
        with use_backend(backend):
            out = compiled(y, z.partition((8,))).sync_on(Device.host().new_stream())
        results.append([*out.y.numpy(), *out.z.unpartition().numpy()])
    assert results[0] == results[1]


@pytest.mark.parametrize(("elements", "index"), [(10, "ct.get_tile_block_id()[0]"), (64, "1")])
def test_a_tile_is_stored_as_a_whole_beside_a_store_to_the_own_tile(elements: int, index: str) -> None:
    """The edge of `y` cuts no store to `z`, and tile blocks that store `y` together store one tile of `z`."""
    text = f"    t = y.load() + 3.0\n    y.store(t)\n    z.partition((8,)).store(t, {index})\n"
    compiled = ct.entry(unsafe=True)(define("def k(y: Mut, z: SharedMut):\n" + text, SharedMut=ct.SharedMut))
    results: list[list[float]] = []
    for backend in ("reference", "cpu"):
        y, z = ct.api.zeros((elements,), f32).sync(), ct.api.zeros((64,), f32).sync()
        with use_backend(backend):
            out = compiled(y.partition((8,)), z).sync_on(Device.host().new_stream())
        results.append([*out.z.numpy()])
    assert results[0] == results[1]
    assert results[0].count(3.0) == (16 if elements == 10 else 8)


PASSED_ON = {
    "a loop": "for i in range(n):\n        p = ct.make_strided_view(z, (8,), (8,))",
    "a branch": "if ct.gather(x, n) > 0.5:\n        p = ct.make_strided_view(z, (8,), (8,))",
    "a while": "i = ct.i32(0)\n    while i < n:\n        p = ct.make_strided_view(z, (8,), (8,))\n        i += 1",
}


@pytest.mark.parametrize("name", PASSED_ON)
def test_a_view_from_a_loop_or_branch_is_read_before_its_tensor_is_written(name: str) -> None:
    text = f"""
def k(z: Mut, x: Tensor, n: i32):
    p = ct.make_strided_view(x, (8,), (8,))
    {PASSED_ON[name]}
    v = p.load((0,))
    z.store(ct.load_tile_like(x, z))
    z.store(v)
"""
    compiled = ct.entry(define(text))
    for backend in ("reference", "cpu"):
        z, x = ct.api.zeros((8,), f32).sync(), ct.api.ones((8,), f32).sync()
        with use_backend(backend):
            out = compiled(z.partition((8,)), x, 1).sync_on(Device.host().new_stream())
        assert out.z.unpartition().numpy().tolist() == [0.0] * 8


def test_memory_at_an_address_is_read_before_it_is_written_by_address() -> None:
    text = """
def k(y: Mut, p: Ptr[f32]):
    t = ct.make_tensor_view(p, (8,), (1,)).partition((8,)).load((0,))
    ct.store_ptr_tko(p + ct.iota((8,)), t - 100)
    y.store(t)
"""
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    launch(ct.entry(unsafe=True)(define(text, Ptr=ct.Ptr)), (y, (8,)), x.ctypes.data, backend="cpu")
    np.testing.assert_array_equal(y, np.arange(8))
    np.testing.assert_array_equal(x, np.arange(8) - 100)


@pytest.mark.parametrize("name", ["grid_x", "y_extent_0", "y_stride_0", "say", "fail", "first"])
def test_a_parameter_may_have_any_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"""
def k(y: Mut, {name}: f64):
    print({name})
    assert {name} > 2
    y.store(y.load() + {name})
"""
    y = np.zeros(16)[::2]
    launch(kernel(text), (y, (8,)), 5.0, backend="cpu")
    np.testing.assert_array_equal(y, 5)
    assert capsys.readouterr().out == "5\n"


def test_a_variable_may_have_the_name_of_a_function_that_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    """Its block ends before the first call, so that its name may be given again."""
    text = """
def k(y: Mut, n: i32):
    t = y.load()
    for i in range(n):
        say = i * n + 1
        t = t + (say * say).astype(f64)
    print(n)
    y.store(t)
"""
    y = np.zeros(8)
    launch(kernel(text), (y, (8,)), 3, backend="cpu")
    np.testing.assert_array_equal(y, 1 + 16 + 49)
    assert capsys.readouterr().out == "3\n"
