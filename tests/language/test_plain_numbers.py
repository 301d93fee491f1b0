"""Extents, counts, block indices and what `range` counts are plain numbers: they take the dtype beside them."""

from __future__ import annotations

import math

import numpy as np
import pytest

import cutile as ct
from cutile.dtypes import DTypeLike, bf16, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from tests.support.kernels import kernel
from tests.support.memory import BACKENDS, launch

EVERYWHERE = [*BACKENDS, "interpret"]


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("dtype", [f16, bf16, f32, f64], ids=str)
def test_a_mean_divides_by_the_extent(dtype: DTypeLike, backend: str) -> None:
    text = (
        "def mean(y: Mut, x: Tensor):\n"
        "    t = ct.load_tile(x, (y.shape[0], 8), (ct.get_tile_block_id()[0], 0))\n"
        "    y.store(ct.reduce_sum(t, 1) / x.shape[1])\n"
    )
    x = np.arange(24).reshape(4, 6).astype(dtype.numpy)
    y = np.zeros(4, dtype.numpy)
    launch(kernel(text), (y, (2,)), x, backend=backend)
    np.testing.assert_array_equal(y, (np.arange(24).reshape(4, 6).sum(1) / 6).astype(dtype.numpy))


NUMBERS = """
def numbers(y: Mut, x: Tensor):
    i, n = ct.get_tile_block_id()[0], x.shape[0]
    t = y.load()
    for k in range(ct.num_tiles(x.partition((4,)), 0)):
        t = t + k * (n - 1) // 2
    half = 1.0 / n + n / 2
    t = max(t, -n) * half + min(i, n) + abs(-i)
    y.store(ct.select(t > i, t, ct.ceil_div(n, 4)) - ct.get_num_tile_blocks()[0])
"""


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_numbers_of_numbers_are_numbers(backend: str) -> None:
    y, x = np.arange(8, dtype=np.float32), np.zeros(10, np.float32)
    wanted = y.copy()
    launch(kernel(NUMBERS), (y, (4,)), x, backend=backend)
    i = np.arange(8, dtype=np.float32) // 4
    for k in range(3):
        wanted = wanted + np.float32(k * 9 // 2)
    wanted = np.maximum(wanted, -10) * (np.float32(0.1) + np.float32(5)) + i + i
    np.testing.assert_array_equal(y, np.where(wanted > i, wanted, 3) - np.float32(2))


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_they_widen_beside_i64(backend: str) -> None:
    text = "def f(y: Mut, x: Tensor):\n    y.store(ct.load_tile_like(x, y) * x.shape[0] + ct.get_tile_block_id()[0])\n"
    x = np.arange(4, dtype=np.int64) * 2**40
    y = np.zeros(4, np.int64)
    launch(kernel(text), (y, (2,)), x, backend=backend)
    np.testing.assert_array_equal(y, x * 4 + np.arange(4) // 2)


LOOPS = """
def loops(y: Mut, x: Tensor, n: i32):
    k, down, strong = 0, x.shape[0], 0
    t = y.load()
    while True:
        k += 1
        down = down - 1 if down > 2 else 2
        strong = strong + n
        t = t + k * down
        if k * k > n:
            break
    size = x.shape[0] if n > 3 else 7
    y.store(t + k - down + size + ct.f32(strong))
"""


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("n", [0, 10])
def test_numbers_stay_numbers_through_loops_and_branches(n: int, backend: str) -> None:
    y, x = np.arange(8, dtype=np.float32), np.zeros(5, np.float32)
    k, down, wanted = 0, 5, y.copy()
    while True:
        k, down = k + 1, down - 1 if down > 2 else 2
        wanted = wanted + k * down
        if k * k > n:
            break
    wanted = wanted + k - down + (5 if n > 3 else 7) + k * n
    launch(kernel(LOOPS), (y, (4,)), x, n, backend=backend)
    np.testing.assert_array_equal(y, wanted)


RETURNED = {
    "from a loop": "for i in range(n):\n        if i == 2:\n            return i\n    return 0",
    "in a tuple": "for i in range(n):\n        if i == 2:\n            return (i, i)[1]\n    return 0",
    "from a nest": "for i in range(n):\n        for j in range(n):\n            if i + j == 2:\n"
    "                return j\n    return 0",
    "a float": "for i in range(n):\n        if i == 2:\n            return i / 1\n    return 0.5",
    "assigned in a loop alone": "for i in range(3):\n        q = i\n    return q",
    "a float that a loop changes": "q = 0.25\n    for i in range(n - 1):\n        q = q * 2\n    return q",
    "a float of every turn": "for i in range(1, 5):\n        q = i / 2\n    return q",
    "past 32 bits": "for i in range(n):\n        if i == 2:\n            return i * 2**40\n    return 0",
}  # fmt: skip
"""Bodies of functions of n = 4, that return 2, or 2**41."""


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("body", RETURNED)
def test_numbers_stay_numbers_on_the_way_out_of_a_loop(body: str, backend: str) -> None:
    text = f"def f(n):\n    {RETURNED[body]}\n\ndef k(y: Mut, n: i32):\n    y.store(y.load() + f(n))\n"
    y = np.arange(4, dtype=np.float32 if "32" in body else np.float16)
    launch(kernel(text), (y, (4,)), 4, backend=backend)
    assert y.tolist() == (np.arange(4, dtype=y.dtype) + y.dtype.type(2**41 if "32" in body else 2)).tolist()


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_a_sum_that_began_as_a_float_takes_the_dtype_of_its_terms(backend: str) -> None:
    text = (
        "def k(y: Mut, x: Tensor):\n    total = 0.0\n    for i in range(x.shape[0]):\n"
        "        total = total + ct.reduce_sum(x.partition((1,)).load(i), 0)\n    y.store(total)\n"
    )
    for dtype in (np.float16, np.float32, np.float64):
        y, x = np.zeros(2, dtype), np.arange(5).astype(dtype)
        launch(kernel(text), (y, (2,)), x, backend=backend)
        assert y.tolist() == [10, 10]


def test_what_a_loop_gives_a_dtype_has_it() -> None:
    text = "def f(y: Mut, n: i32):\n    k = 0\n    for i in range(3):\n        k = k + n\n    y.store(y.load() * k)\n"
    with pytest.raises(ct.KernelTypeError, match="do not mix: f32 and i32"):
        launch(kernel(text), (np.ones(4, np.float32), (4,)), 2)


@pytest.mark.parametrize(
    ("expression", "dtype", "message"),
    [
        ("t * n", f32, "do not mix: f32 and i32"),  # n was given a dtype
        ("t * (n + x.shape[0])", f32, "do not mix: f32 and i32"),
        ("t * x.shape[0]", ct.u8, "do not mix: u8 and i32"),  # may not fit
        ("t * (1.0 / x.shape[0])", f64, ""),
        ("t & x.shape[0]", i64, ""),
    ],
)
def test_what_was_given_a_dtype_keeps_it(expression: str, dtype: DTypeLike, message: str) -> None:
    text = f"def f(y: Mut, x: Tensor, n: i32):\n    t = y.load()\n    y.store({expression})\n"
    y = np.ones(4, dtype.numpy)
    if not message:
        launch(kernel(text), (y, (4,)), y.copy(), 2)
        return
    with pytest.raises(ct.KernelTypeError, match=message):
        launch(kernel(text), (y, (4,)), y.copy(), 2)


# Past 32 bits

EXACT = {
    "beside a tile": ("y.load() + x.shape[0] * 100_000_000", 30 * 10**8),
    "a power": ("y.load() + x.shape[0] ** 8 + (x.shape[0] << 40)", 30**8 + (30 << 40)),
    "a quotient": (
        "y.load() + (x.shape[0] * 10**9 + 7) // 11 - (x.shape[0] * 10**9) % 97",
        30_000_000_007 // 11 - 30 * 10**9 % 97,
    ),
    "the smaller": ("y.load() + min(x.shape[0] * 10**9, 2**40) + max(2**33, x.shape[0])", 30 * 10**9 + 2**33),
    "a magnitude": ("y.load() + abs(-x.shape[0] * 10**9) + (~(x.shape[0] << 30))", 30 * 10**9 + ~(30 << 30)),
    "a choice": ("y.load() + (x.shape[0] * 10**9 if x.shape[0] > 3 else x.shape[0])", 30 * 10**9),
    "a selection": ("y.load() + ct.select(x.shape[0] > 3, x.shape[0] * 10**9, 1)", 30 * 10**9),
    "a helper": ("y.load() + scaled(x.shape[0])", 30 * 10**9),
    "a broadcast": ("y.load() + ct.broadcast(x.shape[0] * 10**9, y.shape)", 30 * 10**9),
    "a bound": ("y.load() + ct.assume_bounds(x.shape[0], 1, 99) * 10**9", 30 * 10**9),
    "a count": (
        "y.load() + ct.ceil_div(x.shape[0] * 10**9, 3) + ct.num_tiles(x.partition((7,)), 0) * 10**9",
        15 * 10**9,
    ),
    "blocks": ("y.load() + (ct.get_tile_block_id()[0] - ct.get_num_tile_blocks()[0]) * 2**40", -(2**40)),
}


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_numbers_are_exact_past_32_bits(backend: str) -> None:
    helper = "def scaled(n):\n    if n > 3:\n        return n * 10**9\n    return n\n\n\n"
    lines = [f"    y.store({expression})\n" for expression, _ in EXACT.values()]
    made = kernel(f"{helper}def f(y: Mut, x: Tensor):\n{''.join(lines)}")
    y = np.arange(4, dtype=np.int64)
    launch(made, (y, (4,)), np.zeros(30, np.float32), backend=backend)
    np.testing.assert_array_equal(y, np.arange(4) + sum(wanted for _, wanted in EXACT.values()))


FARTHER = """
def loops(y: Mut, x: Tensor, n: i32):
    total, size, last, rows = 0, 1, 0, x.shape[0]
    for i in range(x.shape[0]):
        total += 10**9
        if i > n + 20:
            rows = rows * 10**3
    while size < 2**40:
        size = size * 8
    for i in range(x.shape[0] * 10**9, x.shape[0] * 10**9 + 5, 2):
        last = i
        if last > 30 * 10**9 + 3:
            break
    for i in range(2**31 - 2, 2**31 + 2):
        total += i
    for i in range(n, x.shape[0] * 10**9, 10**9):
        total += i
    y.store(y.load() + total + size + last + rows)
"""


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_loops_carry_and_count_numbers_past_32_bits(backend: str) -> None:
    y = np.arange(4, dtype=np.int64)
    launch(kernel(FARTHER), (y, (4,)), np.zeros(30, np.float32), 5, backend=backend)
    total = 30 * 10**9 + sum(range(2**31 - 2, 2**31 + 2)) + sum(range(5, 30 * 10**9, 10**9))
    np.testing.assert_array_equal(y, np.arange(4) + total + 8**14 + 30 * 10**9 + 4 + 30 * 10**12)


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_a_mean_of_more_than_32_bits_of_elements(dtype: DTypeLike, backend: str) -> None:
    text = "def f(y: Mut, x: Tensor):\n    y.store(y.load() / (x.shape[0] * x.shape[0] * x.shape[0]))\n"
    y = np.full(2, 2.0**40, dtype.numpy)
    launch(kernel(text), (y, (2,)), np.zeros(2048, np.float32), backend=backend)
    np.testing.assert_array_equal(y, 2.0**7)


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_beside_i32_a_result_wraps_and_a_comparison_does_not(backend: str) -> None:
    text = (
        "def f(y: Mut, x: Tensor, n: i32):\n"
        "    t, big = y.load(), x.shape[0] * 10**9\n"
        "    t = ct.select((t < big) & (t >= -big) & (n < big), t + big, 0)\n"
        "    y.store(min(t, big) - max(t, -big) + t + big // t)\n"
    )
    y = np.arange(4, dtype=np.int32)
    launch(kernel(text), (y, (4,)), np.zeros(30, np.float32), 7, backend=backend)
    with np.errstate(over="ignore"):
        t = (np.arange(4) + 30 * 10**9).astype(np.int32)
        wanted = t + (30 * 10**9 // t.astype(np.int64)).astype(np.int32)
    np.testing.assert_array_equal(y, wanted)


JOINS = {
    "a loop over a wide number": "{wide}\n    for i in range(m):\n        v = {strong}",
    "a loop that gives a wide number": "v = {strong}\n    for i in range(m):\n        {wide}",
    "a loop that reads it": "{wide}\n    for i in range(m):\n        v = v // 2 if i > n else {strong}",
    "a while": "{wide}\n    while v > 0:\n        v = {strong}",
    "a loop in a loop": "v = {strong}\n    for i in range(m):\n        for j in range(m):\n            {wide}",
    "a loop with a break": "{wide}\n    for i in range(m):\n        if i > n:\n            break\n        v = {strong}",
    "an if": "v = {strong}\n    if m > 0:\n        {wide}",
    "the other side": "{wide}\n    if m > 0:\n        v = {strong}",
    "an expression": "{wide}\n    v = v if m == 0 else {strong}",
    "an operand of `or`": "{wide}\n    v = {strong} or v",
    "a match": "v = {strong}\n    match m:\n        case 0:\n            {wide}",
    "a function": "{wide}\n    v = either(v, {strong}, m)",
}
"""Variables that are a plain number past 32 bits on one path, and a parameter of i32 on the other."""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", JOINS)
def test_a_number_past_32_bits_does_not_become_an_i32_without_a_word(name: str, backend: str) -> None:
    either = "def either(a, b, m):\n    if m > 0:\n        return a\n    return b\n\n\n"
    head = either + "def f(y: Mut, x: Tensor, n: i32, m: i32):\n    "
    body = head + JOINS[name] + "\n    y.store(ct.broadcast(ct.i64(v), y.shape))\n"
    x, text = np.zeros(30, np.float32), body.format(wide="v = x.shape[0] * 150_000_000", strong="n")
    with pytest.raises(ct.KernelTypeError, match=r"no one type|changes its type|different types"):
        launch(kernel(text), (np.zeros(4, np.int64), (4,)), x, 0, 0, backend=backend)
    results: list[list[int]] = []
    for dtype, strong in (("i64", "ct.i64(n)"), ("i32", "n")):
        text = body.format(wide=f"v = ct.{dtype}(x.shape[0] * 150_000_000)", strong=strong)
        y = np.zeros(4, np.int64)
        launch(kernel(text), (y, (4,)), x, 0, 0, backend=backend)
        results.append(y.tolist())
    assert results[1] == np.array(results[0]).astype(np.int32).tolist()  # what `ct.i32` leaves of it, and says


STRONG_AT_LAST = {
    "a choice": "k = n if i > 2 else k + 1",
    "a branch": "k = k * 3\n        if i > 2:\n            k = n",
    "an inner loop": "k = k + 1\n        for j in range(2):\n            k = n + j",
    "a variable that becomes strong": "k = u if i > 2 else k + 1\n        u = n",
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("start", ["0", "x.shape[0]"])
@pytest.mark.parametrize("name", STRONG_AT_LAST)
def test_a_count_that_is_of_a_dtype_in_the_end_is_not_refused(name: str, start: str, backend: str) -> None:
    """While `k` is taken for a plain number, `k + 1` may need more than 32 bits; in the end it is an i32, and wraps."""
    loop = f"for i in range(5):\n        {STRONG_AT_LAST[name]}\n"
    text = f"def f(y: Mut, x: Tensor, n: i32):\n    k, u = {start}, n\n    {loop}"
    y, values = np.zeros(4, np.int32), {"k": 30 if "x" in start else 0, "u": 7, "n": 7}
    launch(kernel(text + "    y.store(y.load() + k)\n"), (y, (4,)), np.zeros(30, np.float32), 7, backend=backend)
    exec(loop, {}, values)
    assert y.tolist() == [values["k"]] * 4


def test_a_counter_of_a_loop_is_stored_as_what_is_beside_it() -> None:
    text = (
        "def f(y: Mut, n: i32):\n"
        "    i = 0\n"
        "    while i < n:\n"
        "        i += 3\n"
        "    y.store(ct.broadcast(i, y.shape) + ct.iota(4) * i)\n"
    )
    y = np.zeros(4, np.int32)
    launch(kernel(text), (y, (4,)), 10)
    np.testing.assert_array_equal(y, 12 + np.arange(4) * 12)


CONSTANTS = {
    "ct.select(y.load() > 1.0, 1, 2.5)": [2.5, 2.5, 1.0, 1.0],
    "ct.min_tile(1, 2.5) + y.load()": [1.0, 2.0, 3.0, 4.0],
    "ct.select(ct.eq_tile(2, 2.0), y.load(), 0.0)": [0.0, 1.0, 2.0, 3.0],
    "ct.convert_tile(ct.max_tile(2**40, 0) // 2**40, f32) + y.load()": [1.0, 2.0, 3.0, 4.0],
    "ct.f32(ct.clamp(2**40, 0, ct.get_num_tile_blocks()[0])) * y.load()": [0.0, 1.0, 2.0, 3.0],
}


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("expression", CONSTANTS)
def test_constants_alone_have_one_dtype(expression: str, backend: str) -> None:
    y = np.arange(4, dtype=np.float32)
    launch(kernel(f"def constants(y: Mut):\n    y.store({expression})\n"), (y, (4,)), backend=backend)
    assert y.tolist() == CONSTANTS[expression]


CALLS = {
    "math.prod(x.shape)": 24,
    "math.prod((x.shape[0], 2.5, 2))": 20,
    "math.prod(()) + math.prod((2, 3), start=4)": 25,
    "math.prod(x.shape) // math.prod(x.shape[1:])": 4,
    "int(x.shape[1] // 4) + int(n > 3) * 5 + int(x.shape[0] == 3) * 100": 6,
    "float(x.shape[1]) / 4 + float(x.shape[0] / 8)": 2,
    "sum(int(n == k) * k for k in range(6))": 4,
}
"""Functions of Python of plain numbers and flags, for an x of 4 x 6 and n = 4."""


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("dtype", [f16, f32], ids=str)
def test_functions_of_python_of_plain_numbers(dtype: DTypeLike, backend: str) -> None:
    lines = [f"def calls({', '.join(f'y{k}: Mut' for k in range(len(CALLS)))}, x: Tensor, n: i32):"]
    lines += [f"    y{k}.store(y{k}.load() + ({call}))" for k, call in enumerate(CALLS)]
    results = [np.zeros(4, dtype.numpy) for _ in CALLS]
    text = "\n".join(lines) + "\n"
    launch(kernel(text, math=math), *((y, (4,)) for y in results), np.zeros((4, 6), np.float32), 4, backend=backend)
    assert [y.tolist() for y in results] == [[value] * 4 for value in CALLS.values()]


KNOWN_OR_NOT = (
    "ct.broadcast({}, t.shape)",
    "ct.broadcast({}, t.shape) + t",
    "t - ct.broadcast({}, (1,))",
    "max(ct.broadcast({}, t.shape), t)",
    "ct.select(ct.broadcast({}, t.shape) < t, t, ct.broadcast({}, t.shape))",
    "ct.broadcast({}, (2, 2)).reshape((4,)) * t",
    "ct.broadcast({}, (1,))[:, None].reshape((1,)) + t",
)


@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("dtype", [i32, i64, f16, f32, f64], ids=str)
def test_a_number_that_is_known_is_as_weak_as_one_that_is_not(dtype: DTypeLike, backend: str) -> None:
    """A constant, a generic, an extent, and what a loop has counted."""
    text = "def f(z: Mut, y: Tensor, x: Tensor, *, N: Const = 3):\n    part, c = z.partition_mut((1, 4)), 0\n"
    text += "    for k in range(3):\n        c += 1\n    t = y.load_tile((4,), 0)\n"
    spelled = [form.format(*[number] * 2) for form in KNOWN_OR_NOT for number in ("3", "N", "x.shape[0]", "c")]
    text += "".join(f"    part.store(({each})[None, :], ({k}, 0))\n" for k, each in enumerate(spelled))
    z, y = np.zeros((len(spelled), 4), dtype.numpy), np.arange(4).astype(dtype.numpy)
    launch(kernel(text), (z, z.shape), y, np.zeros(3, np.float32), backend=backend)
    wanted = (3 + 0 * y, 3 + y, y - 3, np.maximum(y, 3), np.maximum(y, 3), 3 * y, 3 + y)
    for k, (each, row) in enumerate(zip(spelled, z, strict=True)):
        np.testing.assert_array_equal(row, wanted[k // 4], err_msg=each)


@pytest.mark.parametrize("dtype", [i8, i16, u8, u16, u32, u64], ids=str)
def test_what_may_not_hold_a_number_says_how_to_convert_it(dtype: DTypeLike) -> None:
    """The number takes the tile's dtype: the tile's has a reason, the number's has none."""
    text = "def f(z: Mut, x: Tensor):\n    z.store(z.load() + {})\n"
    z, x = np.arange(4).astype(dtype.numpy), np.zeros(30, np.float32)
    with pytest.raises(ct.KernelTypeError, match=f"Convert it: ct.{dtype}\\(number\\)"):
        launch(kernel(text.format("x.shape[0]")), (z, (4,)), x)
    with pytest.raises(ct.KernelTypeError, match=f"Convert it: ct.convert_tile\\(tile, ct.{dtype}\\)"):
        launch(kernel(text.format("ct.broadcast(x.shape[0], (1,))")), (z, (4,)), x)
    for converted in (f"ct.{dtype}(x.shape[0])", f"ct.convert_tile(ct.broadcast(x.shape[0], (1,)), ct.{dtype})"):
        launch(kernel(text.format(converted)), (z, (4,)), x)
    np.testing.assert_array_equal(z, 60 + np.arange(4))
