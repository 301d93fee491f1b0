"""What Python takes: stores that a constant leaves out, names used twice, 0 and 1 for a bool, steps of 0."""

from __future__ import annotations

import functools
import itertools
import operator
import textwrap
from typing import Any

import numpy as np
import pytest

import cutile as ct
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, launch

ALL = [*BACKENDS, "interpret"]

BEFORE = [
    "i, _, _ = ct.get_tile_block_id()",
    "_ = 3.5",
    "_ = (1, 2)",
    "_ = 'text'",
    "_ = y",
    "_ = ct.constant(1, (2,), i32)",
]
LOOPS = {
    "for": "for j in range(n):\n        _ = y.load()\n        y.store(_ * 3)",
    "while": "while n > 0:\n        n = n - 1\n        _ = y.load()\n        y.store(_ * 3)",
    "left": "for j in range(10):\n        if j == n:\n            break\n        _ = y.load()\n        y.store(_ * 3)",
    "nested": "for j in range(n):\n        for k in range(1):\n            _ = y.load()\n            y.store(_ * 3)",
    "branch": "for j in range(n):\n        if j == 1:\n            _ = y.load()\n        else:\n"
    "            _ = 1 * y.load()\n        y.store(_ * 3)",
    "items": "for j in range(n):\n        _, k = y.load(), j\n        y.store(_ * 3)",
}


@pytest.mark.parametrize(("before", "loop"), [*itertools.product(BEFORE, LOOPS)])
def test_a_name_that_a_loop_overwrites_may_have_been_anything(before: str, loop: str) -> None:
    y = np.ones(4, np.float32)
    overwriting = kernel(f"def overwriting(y: Mut, n: i32):\n    {before}\n    {LOOPS[loop]}\n")
    for backend in ("reference", "interpret"):
        y[:] = 1
        launch(overwriting, (y, (4,)), 2, backend=backend)
        assert np.all(y == 9), backend


@pytest.mark.parametrize(
    "inner",
    ["f = lambda t: t", "f = lambda: (t := 1.0)", "def f():\n        t = 1.0\n        return lambda: t"],
)
def test_an_inner_function_may_have_a_name_that_a_loop_overwrites(inner: str) -> None:
    text = f"def own(y: Mut, n: i32):\n    t = (1, 2)\n    {inner}\n    for j in range(n):\n        t = y.load()\n"
    y = np.ones(4, np.float32)
    launch(kernel(f"{text}        y.store(t * 3)\n"), (y, (4,)), 2, backend="reference")
    assert np.all(y == 9)


@pytest.mark.parametrize(
    "reads",
    [
        "def f():\n        return t[0]\n    for j in range(n):\n        y.store(y.load() + f())",
        "f = lambda: (lambda: t[0])()\n    for j in range(n):\n        y.store(y.load() + f())",
        "for j in range(n):\n        sum([1 for t in range(3)])\n        y.store(y.load() + t[0])",
        "for j in range(n):\n        u = (t := (3, 4))[0] if j == 0 else 0\n        y.store(y.load() + t[0])",
    ],
)
def test_a_loop_that_reads_the_value_of_its_last_turn_is_refused_where_its_type_changes(reads: str) -> None:
    """Such a loop was compiled with the value from before it in every turn."""
    text = f"def read(y: Mut, n: i32):\n    t = (1, 2)\n    {reads}\n        t = (9, 8, 7)\n"
    with pytest.raises(ct.KernelTypeError, match="'t' changes its type in the loop"):
        launch(kernel(text), (np.ones(4, np.float32), (4,)), 3, backend="reference")


def test_a_loop_that_runs_passes_on_what_it_made_of_the_name() -> None:
    y = np.ones(4, np.float32)
    passed = kernel(
        "def passed(y: Mut):\n    _ = (1, 2)\n    for j in range(3):\n        _ = y.load() * 2\n    y.store(_ + 1)\n"
    )
    launch(passed, (y, (4,)), backend="reference")
    assert np.all(y == 3)


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (
            "for j in range(n):\n        t = y.load()\n    y.store(t)",
            "'t' has no one type here: it is scalar i32 before the loop",
        ),
        ("for j in range(n):\n        if j > 1:\n            t = y.load()\n        y.store(t)", "no one type here"),
        ("for j in range(n):\n        y.store(y.load() + t)\n        t = y.load()", "'t' changes its type in the loop"),
        (
            "for j in range(n):\n        f = lambda: t\n        y.store(y.load() + f())\n        t = y.load()",
            "changes its type",
        ),
        ("while t > 0:\n        t = y.load()\n    y.store(y.load())", "'t' changes its type in the loop"),
    ],
)
def test_what_a_turn_or_the_rest_reads_keeps_its_type(loop: str, message: str) -> None:
    y = np.ones(4, np.float32)
    read = kernel(f"def read(y: Mut, n: i32):\n    t = ct.get_tile_block_id()[0] + n\n    {loop}\n")
    with pytest.raises(ct.KernelTypeError, match=message):
        launch(read, (y, (4,)), 2, backend="reference")


TWO_TYPES = {
    "a branch in a loop": "for j in range(3):\n        if n > 5:\n            if n > 7:\n                t = ct.f32(j)",
    "ahead of a break": "for j in range(3):\n        if j > 0:\n            if n > 7:\n                t = ct.f32(j)\n"
    "            break\n        t = t + 1",
    "ahead of a continue": "for j in range(3):\n        if j:\n            if n > 7:\n                t = ct.f32(j)\n"
    "            continue\n        t = t + 1",
    "a loop whose other call passes it on": "t = after(n, True, 2) + ct.i32(after(n, False, n))",
}
"""Loops that give `t` another type where n is 9, or 0."""


@pytest.mark.parametrize("name", TWO_TYPES)
@pytest.mark.parametrize("n", [0, 9])
def test_a_value_of_two_types_is_no_zero(name: str, n: int) -> None:
    """It was 0, or the value from before the loop, wherever the other type was."""
    text = (
        "def after(n, is_fresh, count):\n"
        "    if not is_fresh:\n        t = 2.5 * ct.f32(n)\n"
        "    for j in range(count):\n        t = n + j\n"
        "    return t\n\n\n"
        f"def f(y: Mut, n: i32):\n    t = n\n    {TWO_TYPES[name]}\n    y.store(y.load() + ct.f32(t))\n"
    )
    with pytest.raises(ct.KernelTypeError, match=r"has no one type here|changes its type"):
        launch(kernel(text), (np.ones(4, np.float32), (4,)), n, backend="reference")


def test_a_faulty_variable_is_no_error_of_the_loop_after_it() -> None:
    loop = "t = x.nonsense\n    for j in range(2):\n        t = x\n    y.store(t.load_tile((4,), (0,)))"
    with pytest.raises(ct.KernelError, match="no attribute 'nonsense'") as caught:
        launch(
            kernel(f"def f(y: Mut, x: Tensor):\n    {loop}\n"),
            (np.ones(4, np.float32), (4,)),
            np.ones(4, np.float32),
            backend="reference",
        )
    assert str(caught.value).count("in f\n") == 1


FLOATS = {
    "p = q; q = q + y.load().reshape(())": (11, 15),
    "p, q = q, p": (3, 2.5),
    "p = q; q = 1.5 + j": (2.5, 3.5),
}
"""What p = 2.5 and q = 3 become in three iterations where y is 4: q becomes a float, and p takes it from q."""


@pytest.mark.parametrize("body", FLOATS)
@pytest.mark.parametrize("backend", ALL)
def test_a_float_follows_a_number_that_becomes_one(body: str, backend: Any) -> None:
    """The first guess of q's type, an integer's, was taken for that of p: `the number 2.5 does not fit beside i32`."""
    loop = f"for j in range(n):\n        {body}\n    y.store(y.load() * 0 + p + 10 * q)\n"
    (p, q), y = FLOATS[body], np.full(1, 4, np.float32)
    launch(kernel(f"def follow(y: Mut, n: i32):\n    p, q = 2.5, 3\n    {loop}"), (y, (1,)), 3, backend=backend)
    assert y[0] == np.float32(p + 10 * q)


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (
            "for j in range(n):\n        p = j\n    y.store(y.load() * p)",
            "'p' has no one type here: it is float 2.5 before",
        ),
        (
            "for j in range(n):\n        y.store(y.load() * p)\n        p = n",
            "'p' changes its type in the loop: it is float 2.5",
        ),
    ],
)
def test_a_float_does_not_become_an_integer(loop: str, message: str) -> None:
    """The error was that the number 2.5 does not fit beside a tile of i32."""
    with pytest.raises(ct.KernelTypeError, match=message):
        launch(
            kernel(f"def rounded(y: Mut, n: i32):\n    p = 2.5\n    {loop}\n"),
            (np.ones(4, np.float32), (4,)),
            2,
            backend="reference",
        )


EMPTY = {
    "loop": "for i in range(0):\n        y.store(1 + y.load())",
    "unrolled": "for i in ct.static_range(N):\n        y.store(1 + y.load())",
    "condition": "if N == 1:\n        y.store(1 + y.load())",
    "helper": "if N == 1:\n        put(y)",
    "return": "if N == 0:\n        return\n    y.store(1 + y.load())",
    "match": "match N:\n        case 1:\n            y.store(1 + y.load())",
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_store_may_be_left_out_by_a_constant(name: str) -> None:
    text = "def put(y):\n    y.store(1 + y.load())\n\ndef empty(y: Mut, *, N: Const = 0):\n    "
    for backend in ("reference", "interpret"):
        y = np.ones(4, np.float32)
        launch(kernel(text + EMPTY[name] + "\n"), (y, (4,)), backend=backend)
        assert np.all(y == 1), backend


@pytest.mark.parametrize("backend", ALL)
def test_a_kernel_that_does_nothing_is_built(backend: str) -> None:
    y = np.ones(4, np.float32)
    launch(kernel(f"def empty(y: Mut, *, N: Const = 0):\n    {EMPTY['unrolled']}\n"), (y, (4,)), backend=backend)
    assert np.all(y == 1)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_a_kernel_that_does_nothing_is_built_for_a_gpu(arch: str) -> None:
    empty = kernel(f"def empty(y: Mut, *, N: Const = 0):\n    {EMPTY['unrolled']}\n")
    y = ct.api.ones((4,), ct.f32).sync()
    source = empty.inspect(y.partition((4,)), arch=arch, stage="source")
    assert ("    pass" if arch == "sm_80" else "    grid_dependency_wait()") in source.splitlines()


def test_a_kernel_without_any_store_is_still_refused() -> None:
    y = np.ones(4, np.float32)
    for body in ("t = y.load()", "if N:\n        t = 2 * y.load()", "t = ct.exp(y.load())"):
        with pytest.raises(ct.KernelTypeError, match="stores nothing"):
            launch(kernel(f"def idle(y: Mut, *, N: Const = 0):\n    {body}\n"), (y, (4,)), backend="reference")


@pytest.mark.parametrize("flag", [0, 1, True, np.bool_(True), np.int64(0), 1.0])
def test_a_bool_may_be_given_as_a_number(flag: object) -> None:
    y = np.ones(4, np.float32)
    selecting = kernel(
        "def chosen(y: Mut, flag: ct.bool_):\n    y.store(ct.select(flag, y.load() + 1, y.load() * 5))\n"
    )
    launch(selecting, (y, (4,)), flag, backend="reference")
    assert np.all(y == (2 if flag else 5))
    with pytest.raises(ct.ArgumentTypeError, match=r"'flag' must be a bool \(or 0 or 1\), got 2"):
        launch(selecting, (y, (4,)), 2, backend="reference")


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("leave", ["", "        if i == 100:\n            break\n"])
def test_a_step_that_turns_out_to_be_0_makes_no_turn(backend: str, leave: str) -> None:
    y = np.ones(4, np.float32)
    text = f"def stepped(y: Mut, step: i32):\n    for i in range(0, 5, step):\n{leave}        y.store(y.load() + 1)\n"
    launch(kernel(text + "    y.store(y.load() * 7)\n"), (y, (4,)), 0, backend=backend)
    assert np.all(y == 7)


@pytest.mark.parametrize("items", ["(1, 2, 3)", "(n, 7)", "(2,)", "()"])
def test_a_scalar_may_be_one_of_several(items: str) -> None:
    text = f"def among(y: Mut, n: i32):\n    if n in {items}:\n        y.store(y.load() + 1)\n"
    text += f"    if n not in {items}:\n        y.store(y.load() + 10)\n"
    for n in (2, 5):
        y = np.zeros(4, np.float32)
        for backend in ("reference", "interpret"):
            y[:] = 0
            launch(kernel(text), (y, (4,)), n, backend=backend)
            assert np.all(y == (1 if eval(f"n in {items}", {"n": n}) else 10)), (n, backend)


POWERS = [0.25, 0.5, 1, 2, 2.0, 4, 8.0, 1024, 10, 2.718281828459045, -2.0]


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("backend", ALL)
def test_powers_of_numbers(backend: str, dtype: str) -> None:
    """LLVM writes exp2 and ldexp for some of them: the C library's, which objects may call as they may pow."""
    if dtype == "f32" and backend == "cuda":
        pytest.skip("f32 has instructions of its own there")
    x = np.array(
        [0.3, 1.7, -1.2, 3.0, 0.0, -0.0, np.inf, -np.inf, np.nan, -1074.0, 1024.0],
        np.dtype(dtype.replace("f", "float")),
    )
    for base in POWERS:
        power = kernel(f"def power(y: Mut, x: Tensor):\n    y.store(({base!r}) ** ct.load_tile_like(x, y))\n")
        whole = kernel(
            "def whole(y: Mut, x: Tensor):\n"
            f"    y.store(({base!r}) ** ct.load_tile_like(x, y).astype(ct.i32).astype(ct.{dtype}))\n"
        )
        y, z = np.zeros_like(x), np.zeros_like(x[:6])
        launch(power, (y, (4,)), x, backend=backend)
        launch(whole, (z, (4,)), x[:6], backend=backend)
        rtol = 1e-14 if dtype == "f64" else 1e-6
        with np.errstate(all="ignore"):
            wide = np.float64(base) ** x.astype(np.float64)
            np.testing.assert_allclose(y, wide.astype(x.dtype), rtol, np.finfo(x.dtype).smallest_normal)
            np.testing.assert_allclose(z, np.float64(base) ** np.trunc(x[:6].astype(np.float64)), rtol)


@pytest.mark.parametrize("backend", ALL)
def test_a_constant_range_may_be_spread(backend: str) -> None:
    spread = kernel(
        "def spread(y: Mut, n: i32):\n    items = (*range(1, 4), n)\n    y.store(sum(items) + max(*range(5), n))\n"
    )
    y = np.zeros(4, np.int32)
    launch(spread, (y, (4,)), 7, backend=backend)
    assert y.tolist() == [20] * 4


def test_a_range_that_is_not_known_is_not_spread() -> None:
    spread = kernel("def spread(y: Mut, n: i32):\n    items = (0, *range(n))\n    y.store(items[0])\n")
    with pytest.raises(ct.KernelTypeError, match="a range whose bounds are known only when the kernel runs"):
        launch(spread, (np.zeros(4, np.int32), (4,)), 7)


@pytest.mark.parametrize("function", [operator.add, operator.mul, max, min])
@pytest.mark.parametrize("backend", ALL)
def test_functions_of_python_are_constants(backend: str, function: Any) -> None:
    """By a generic, by another name, and as what a reduction folds with."""
    text = """
        def by_name(a, b):
            return other_name(a, b)


        def folded(y: Mut, x: Tensor, *, F: Const):
            t = ct.load_tile_like(x, y)
            y.store(F(t, 3.0) + by_name(t, 2.0) + ct.reduce(t, 0, 1.0, F))
    """
    x, y = np.array([1.0, 2.5, 4.0, 8.0], np.float32), np.zeros(4, np.float32)
    identity = {operator.add: 0.0, operator.mul: 1.0, max: -np.inf, min: np.inf}[function]
    folded = kernel(textwrap.dedent(text).replace("0, 1.0, F", f"0, float('{identity}'), F"), other_name=function)
    launch(folded, (y, (4,)), x, backend=backend, F=function)
    of: Any = {max: np.maximum, min: np.minimum}.get(function, function)
    assert y.tolist() == (of(x, 3) + of(x, 2) + functools.reduce(function, x.tolist())).tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_may_have_the_names_of_generated_code(backend: str) -> None:
    """Those of extents, strides and the grid, of ranges and of functions beside the kernel's own parameters."""
    text = """
        def k(y: Mut, x: Tensor, x_extent_0: i32, x_stride_0: i32, grid_x: i32, first: i32, fail: i32, report: i32):
            t = ct.load_tile_like(x, y) * x_extent_0 + x_stride_0
            for last in range(grid_x):
                t += first
            ct.cuda_tile_assert(fail == 6, "six")
            y.store(t + report)
    """
    x, y = np.arange(10, dtype=np.int32), np.zeros(10, np.int32)
    launch(kernel(textwrap.dedent(text)), (y, (4,)), x, 2, 3, 4, 5, 6, 7, backend=backend)
    np.testing.assert_array_equal(y, x * 2 + 3 + 4 * 5 + 7)


@pytest.mark.parametrize("backend", [*BACKENDS, "interpret"])
def test_a_list_takes_the_items_of_a_tuple_in_place(backend: str) -> None:
    """`+` of a list and a tuple is refused, as in Python; `+=` takes any sequence."""
    y = np.zeros(4, np.int32)
    launch(
        kernel("def f(y: Mut):\n    a = [1]\n    a += (2, 4)\n    y.store(a[2] if a == [1, 2, 4] else 0)\n"),
        (y, (4,)),
        backend=backend,
    )
    assert y.tolist() == [4, 4, 4, 4]
