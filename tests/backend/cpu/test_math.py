"""Functions of one float against 80-bit results: the stated error, special values, and that loops vectorise."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cutile.backend.cpu.build import assembly
from cutile.backend.cpu.target import features
from cutile.backend.interface import Source
from tests.backend.cpu.programs import source
from tests.backend.cpu.run import Array, map_all
from tests.support.exact import erf, erfc, erfinv, lgamma
from tests.support.programs import mut, tensor

COUNT = 1 << 16
FLOATS = (np.float32, np.float64)


def rsqrt(x: Any) -> Any:
    return 1 / np.sqrt(x)


def spread(dtype: Any, rng: np.random.Generator) -> Array:
    """Positive floats of every exponent, subnormal ones too."""
    bits, top = (np.uint32, 0x7F800000) if dtype is np.float32 else (np.uint64, 0x7FF0000000000000)
    return rng.integers(1, top, COUNT, bits).view(dtype)


def near_one(dtype: Any, rng: np.random.Generator) -> Array:
    return (1 + rng.uniform(-1e-3, 1e-3, COUNT)).astype(dtype)


def near_quarters(dtype: Any, rng: np.random.Generator) -> Array:
    """Multiples of pi/4, where one of sine and cosine nearly vanishes, or the quadrant changes."""
    return (rng.integers(-3000, 3000, COUNT) * (np.pi / 4)).astype(dtype)


def between(low: float, high: float) -> Callable[[Any, np.random.Generator], Array]:
    return lambda dtype, rng: rng.uniform(low, high, COUNT).astype(dtype)


def few(low: float, high: float, share: int = 8) -> Callable[[Any, np.random.Generator], Array]:
    """One sample in so many, where the exact function takes long."""
    return lambda dtype, rng: rng.uniform(low, high, COUNT // share).astype(dtype)


def near_minus_one(dtype: Any, rng: np.random.Generator) -> Array:
    """Numbers at all distances from -1, down to the least."""
    least = float(np.finfo(dtype).epsneg)
    return (np.exp2(rng.uniform(np.log2(least), 0, COUNT // 32)) - 1).astype(dtype)


LIBRARY = {
    "sin": 1.0, "cos": 1.0, "tan": 1.0, "sinh": 2.0, "cosh": 2.0, "erf": 1.0, "erfc": 5.0, "erfinv": 2.0, "lgamma": 4.0,
    "power": 1.0, "atan2": 1.0, "hypot": 1.0, "log10": 2.0, "cbrt": 4.0, "log1p": 1.0, "expm1": 1.0, "asin": 1.0,
    "acos": 1.0, "atan": 1.0, "asinh": 3.0, "acosh": 3.0, "atanh": 2.0,
}  # fmt: skip
"""The functions that call the C library's in f64, with the error in ulp that they are assumed to keep."""

# The name, the exact function, the largest error in units of the last place, and the samples that are looked at.
ROWS: tuple[tuple[str, Any, float, tuple[Any, ...]], ...] = (
    ("exp", np.exp, 1.0, (between(-104, 89), between(-746, 710), between(-1, 1))),
    ("exp2", np.exp2, 1.0, (between(-151, 129), between(-1076, 1025), between(-1, 1))),
    ("log", np.log, 1.0, (spread, near_one, between(0.5, 2))),
    ("log2", np.log2, 1.5, (spread, near_one, between(0.5, 2))),
    ("tanh", np.tanh, 1.5, (between(-25, 25), between(-1, 1), between(-1e-6, 1e-6))),
    ("rsqrt", rsqrt, 1.5, (spread,)),
    ("sqrt", np.sqrt, 0.5, (spread,)),
    ("sin", np.sin, 0.51, (between(-10, 10), between(-1e4, 1e4), between(-1e-3, 1e-3), near_quarters)),
    ("cos", np.cos, 0.51, (between(-10, 10), between(-1e4, 1e4), between(-1e-3, 1e-3), near_quarters)),
    ("tan", np.tan, 0.51, (between(-10, 10), between(-1e4, 1e4), between(-1e-3, 1e-3), near_quarters)),
    ("sinh", np.sinh, 0.51, (between(-95, 95), between(-1, 1), between(-2e-3, 2e-3), between(-1e-6, 1e-6))),
    ("cosh", np.cosh, 0.51, (between(-95, 95), between(-1, 1), between(-1e-3, 1e-3))),
    ("erf", erf, 0.51, (few(-6, 6), few(-1.1, 1.1), few(-1e-6, 1e-6))),
    ("erfc", erfc, 0.51, (few(-6, 10.5), few(-1.1, 1.1), few(1, 27))),
    ("erfinv", erfinv, 0.51, (few(-1, 1, 32), few(0.99, 1, 32), near_minus_one, few(-1e-6, 1e-6, 32))),
    ("log10", np.log10, 0.51, (spread, near_one, between(0.5, 2))),
    ("cbrt", np.cbrt, 0.51, (spread, near_one, between(-10, 10))),
    ("log1p", np.log1p, 0.51, (spread, between(-1, 1), between(-1e-3, 1e-3), between(-1e-6, 1e-6), near_minus_one)),
    ("expm1", np.expm1, 0.51, (between(-110, 89), between(-1, 1), between(-1e-3, 1e-3), between(-1e-6, 1e-6))),
    ("asin", np.arcsin, 0.51, (between(-1, 1), between(0.999, 1), between(-1e-3, 1e-3), spread)),
    ("acos", np.arccos, 0.51, (between(-1, 1), between(0.999, 1), between(-1, -0.999), between(-1e-3, 1e-3))),
    ("atan", np.arctan, 0.51, (between(-10, 10), between(-1, 1), between(-1e-3, 1e-3), near_one, spread)),
    ("asinh", np.arcsinh, 0.51, (between(-10, 10), between(-0.02, 0.02), between(-1e-6, 1e-6), spread)),
    ("acosh", np.arccosh, 0.51, (between(1, 10), between(1, 1.001), near_one, spread)),
    ("atanh", np.arctanh, 0.51, (between(-1, 1), between(-0.02, 0.02), between(0.999, 1), spread)),
    (
        "lgamma",
        lgamma,
        0.51,
        (few(0, 4, 64), few(0.99, 1.01, 64), few(1.99, 2.01, 64), few(4, 60, 64), few(60, 1e30, 64)),
    ),
)
# The same of two operands, each of which has one of the samples.
ROWS_OF_TWO: tuple[tuple[str, Any, float, tuple[Any, ...]], ...] = (
    ("power", np.power, 0.51, (between(0.1, 10), between(0, 2), between(0.9, 1.1))),
    ("atan2", np.arctan2, 0.51, (between(-10, 10), spread, between(-1e-3, 1e-3))),
    ("hypot", np.hypot, 0.51, (between(-10, 10), spread, between(1, 2))),
)
OF_TWO = [row[0] for row in ROWS_OF_TWO]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("name", "exact", "bound", "samples"), ROWS + ROWS_OF_TWO, ids=[row[0] for row in ROWS + ROWS_OF_TWO]
)
def test_the_error_is_as_stated(name: str, exact: Any, bound: float, samples: Any, dtype: Any) -> None:
    rng = np.random.default_rng(5)
    for sample in samples:
        operands = [sample(dtype, rng) for _ in range(2 if name in OF_TWO else 1)]
        result = map_all(name, *operands)
        with np.errstate(all="ignore"):
            wide = exact(*(x.astype(np.longdouble) for x in operands))
            nearest = wide.astype(dtype)
            finite = np.isfinite(nearest)
            np.testing.assert_array_equal(np.isfinite(result), finite)
            unit = np.spacing(np.abs(nearest[finite])).astype(np.longdouble)
            error = np.abs(result[finite].astype(np.longdouble) - wide[finite]) / unit
        if name in LIBRARY and dtype is np.float64:
            bound = LIBRARY[name]
        assert float(error.max(initial=0)) <= bound, f"{name} at {[x[finite][int(np.argmax(error))] for x in operands]}"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("name", "exact"), [(row[0], row[1]) for row in ROWS], ids=[row[0] for row in ROWS])
def test_special_values(name: str, exact: Any, dtype: Any) -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, np.finfo(dtype).tiny, -np.finfo(dtype).max], dtype)
    if name in ("sin", "cos", "tan"):
        x = x[:-1]
    result = map_all(name, x)
    with np.errstate(all="ignore"):
        expected = exact(x)
    np.testing.assert_allclose(result, expected, rtol=4 * np.finfo(dtype).eps)
    zeros = expected == 0
    np.testing.assert_array_equal(np.signbit(result[zeros]), np.signbit(expected[zeros]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_angles(dtype: Any) -> None:
    """Both zeros, infinities and NaN, each beside each, and beside the least and the largest number."""
    least, largest = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    parts = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, least, -least, largest, -largest]
    y, x = (each.ravel() for each in np.meshgrid(np.array(parts, dtype), np.array(parts, dtype)))
    result, expected = map_all("atan2", y, x), np.arctan2(y, x)
    np.testing.assert_allclose(result, expected, rtol=4 * np.finfo(dtype).eps, atol=0)
    np.testing.assert_array_equal(np.signbit(result[expected == 0]), np.signbit(expected[expected == 0]))


def test_what_is_exact_stays_so() -> None:
    np.testing.assert_array_equal(map_all("log10", np.float32(10) ** np.arange(11, dtype=np.float32)), np.arange(11))
    np.testing.assert_array_equal(map_all("cbrt", np.arange(-99, 100, dtype=np.float32) ** 3), np.arange(-99, 100))


def test_powers_of_two_are_exact() -> None:
    whole = np.arange(-126, 128)
    x = np.ldexp(np.float32(1), whole)
    np.testing.assert_array_equal(map_all("log2", x), whole)
    np.testing.assert_array_equal(map_all("exp2", map_all("log2", x)), x)


@pytest.mark.skipif("+avx2" not in features(), reason="looks for the vector registers of AVX2 and later")
@pytest.mark.parametrize(
    "name",
    [
        "exp",
        "exp2",
        "log",
        "log2",
        "tanh",
        "rsqrt",
        "sin",
        "cos",
        "tan",
        "sinh",
        "cosh",
        "erf",
        "erfc",
        "erfinv",
        "hypot",
        "power",
        "atan2",
        "log10",
        "cbrt",
        "log1p",
        "expm1",
        "asin",
        "acos",
        "atan",
        "asinh",
        "acosh",
        "atanh",
        "f16_round",
        "bf16_round",
    ],
)
def test_loops_use_vectors(name: str) -> None:
    arguments = "x[at], y[at]" if name in OF_TWO else "x[at]"
    text = (
        f"from cutile.backend.cpu.intrinsics import {name}\n\n\n"
        f"def map_all(y, x, first, last):\n    for at in range(first, last):\n        y[at] = {name}({arguments})\n"
    )
    facts = {"signature": ("f32*", "f32*", "i64", "i64"), "scratch": (), "noalias": True}
    machine_code = assembly(Source(text, "map_all", (), facts=facts))
    assert "ymm" in machine_code or "zmm" in machine_code


@pytest.mark.skipif("+avx2" not in features(), reason="looks for the vector registers of AVX2 and later")
@pytest.mark.parametrize("name", ["min", "max"])
def test_folds_by_extremes_use_vectors(name: str) -> None:
    text = f"""
        def fold(out: Mut, x: Tensor):
            t = x.load_tile((1, 4096), (ct.get_tile_block_id()[0], 0))
            out.store(ct.reduce_{name}(t, 1))
    """
    machine_code = assembly(source(text, {"out": mut(1), "x": tensor(2)}))
    wide = [line for line in machine_code.splitlines() if f"v{name}ps" in line and ("ymm" in line or "zmm" in line)]
    assert wide


def test_f32_angles_of_huge_arguments() -> None:
    """The C library's f64 functions are the reference, since they reduce exactly: 80 bits of pi are not enough.

    16367173 * 2**72 is the f32 that is closest to a whole number of quarter turns: 2**-29.9 of one.
    """
    rng = np.random.default_rng(7)
    x = rng.integers(0x3F000000, 0x7F800000, 1 << 16, np.uint32).view(np.float32)
    x = np.concatenate([x, -x, np.array([1.5 * 2.0**127, 2.0**100, 1.1e19, 16367173 * 2.0**72], np.float32)])
    for name in ("sin", "cos", "tan"):
        wide = map_all(name, x.astype(np.float64))
        error = np.abs(map_all(name, x).astype(np.float64) - wide) / np.spacing(np.abs(wide.astype(np.float32)))
        assert float(error.max()) <= 0.51


ALONG = """
def fold(out: Mut, x: Tensor):
    t = x.load_tile({load}, (ct.get_tile_block_id()[0], 0))
    out.store(ct.{call}.astype(out.dtype))
"""


@pytest.mark.skipif("+avx2" not in features(), reason="looks for the vector registers of AVX2 and later")
@pytest.mark.parametrize(
    ("call", "load", "stored", "instruction"),
    [
        ("argmax(t, 1)", (1, 4096), (1,), "vcmp"),
        ("argmax(t, 0)", (256, 64), (64,), "vcmp"),
        ("reduce(t, 1, 1.0, lambda a, b: a * b + 1.0)", (1, 4096), (1,), "vmul|vfmadd"),
        ("reduce_max(t, 1, nan=True)", (1, 4096), (1,), "vmax|vrange"),
        ("cumsum(t, 0)", (256, 64), (256, 64), "vaddps"),
    ],
)
def test_folds_use_vectors(call: str, load: tuple[int, int], stored: tuple[int, ...], instruction: str) -> None:
    made = assembly(source(ALONG.format(load=load, call=call), {"out": mut(*stored), "x": tensor(2)}))
    lines = [line for line in made.splitlines() if re.search(rf"\s({instruction})", line)]
    assert any("ymm" in line or "zmm" in line for line in lines)
