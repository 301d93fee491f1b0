"""16-bit floats: every bit pattern, and rounding at and around every tie."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.backend.cpu.run import map_all

KINDS: tuple[tuple[str, Any], ...] = (("f16", np.float16), ("bf16", ml_dtypes.bfloat16))


@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_every_pattern_there_and_back(name: str, dtype: Any) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = map_all(f"{name}_value", bits, result="f4")
    np.testing.assert_array_equal(values, bits.view(dtype).astype(np.float32))
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(map_all(f"{name}_bits", values, result="u2")[numbers], bits[numbers])
    again = map_all(f"{name}_bits", values, result="u2").view(dtype).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(again), np.isnan(values))


def around_ties(dtype: Any) -> Any:
    """The f32 halfway between neighbours, and just off it."""
    infinity = int(np.array(np.inf, dtype).view(np.uint16))
    bits = np.arange(infinity - 1, dtype=np.uint16)
    low, high = (each.view(dtype).astype(np.float64) for each in (bits, bits + np.uint16(1)))
    middle = ((low + high) / 2).astype(np.float32)
    return np.concatenate([middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(np.inf))])


@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_rounding_is_to_nearest_even(name: str, dtype: Any) -> None:
    x = around_ties(dtype)
    x = np.concatenate([x, -x, np.array([np.inf, -np.inf, 3.4e38, 1e-45], np.float32)])
    with np.errstate(over="ignore"):
        expected = x.astype(dtype)
    np.testing.assert_array_equal(map_all(f"{name}_bits", x, result="u2"), expected.view(np.uint16))
    np.testing.assert_array_equal(map_all(f"{name}_round", x), expected.astype(np.float32))


def test_f64_to_f16_is_rounded_once() -> None:
    """By way of the nearest f32, a value just beyond a tie is rounded to the tie, and then to the wrong side."""
    ties = around_ties(np.float16).astype(np.float64)
    x = np.concatenate([ties, ties * (1 + 2.0**-50), ties * (1 - 2.0**-50)])
    result = map_all("f16_bits", map_all("to_odd", x, result="f4"), result="u2")
    np.testing.assert_array_equal(result, x.astype(np.float16).view(np.uint16))
