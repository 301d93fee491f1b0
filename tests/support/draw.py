"""Input arrays for samples: ordinary values, and where a row allows it the special ones of the dtype."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from cutile.dtypes import DTypeLike


def _limits(dtype: Any) -> Any:
    return ml_dtypes.finfo(dtype)  # pyright: ignore[reportUnknownVariableType]


def _coin(rng: np.random.Generator, shape: tuple[int, ...], chance: float) -> Any:
    return rng.random(shape) < chance


def draw(dtype: DTypeLike, shape: tuple[int, ...], domain: str, seed: int) -> np.ndarray[Any, Any]:
    """Random values of a dtype; `domain` "any" mixes in special ones, "positive" and "small" (-4 to 4) do not."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind != "float":
        info: Any = np.iinfo(dtype.numpy)
        low, high = (-3, 4) if domain == "small" else (info.min, info.max)
        values = rng.integers(
            max(low, info.min), high, shape, dtype=np.int64 if info.min < 0 else np.uint64, endpoint=True
        )
        small = rng.integers(max(-9, info.min), 9, shape, dtype=np.int64)
        mixed = np.where(_coin(rng, shape, 0.5), small.astype(dtype.numpy), values.astype(dtype.numpy))
        if domain == "any":
            return _mix(mixed, np.array([0, 1, info.min, info.max], dtype.numpy), rng)
        return mixed
    values = rng.standard_normal(shape) * 2
    if domain == "positive":
        values = np.abs(values) + 0.1
    if domain == "small":
        values = np.clip(values, -4, 4)
    array = values.astype(dtype.numpy)
    if domain != "any":
        return array
    info = _limits(dtype.numpy)
    special: list[float] = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, float(info.max), float(info.tiny)]
    special.append(float(info.smallest_subnormal))
    return _mix(array, np.array(special, np.float64).astype(dtype.numpy), rng)


def _mix(values: np.ndarray[Any, Any], special: np.ndarray[Any, Any], rng: np.random.Generator) -> Any:
    chosen = special[rng.integers(0, len(special), values.shape)]
    return np.where(_coin(rng, values.shape, 0.3), chosen, values)


def ulps_between(got: Any, expected: Any) -> float:
    """The largest distance in units of the last place of `wanted`; infinite where only one is NaN or infinite."""
    if got.dtype.kind in "iub" and got.dtype.names is None and expected.dtype.kind in "iub":
        return 0.0 if np.array_equal(got, expected) else float("inf")
    a, b = got.astype(np.float64), expected.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if np.all(same):
        return 0.0
    a, b = a[~same], b[~same]
    if not np.all(np.isfinite(a) & np.isfinite(b)):
        return float("inf")
    info = _limits(expected.dtype)
    exponent = np.floor(np.log2(np.maximum(np.abs(b), float(info.tiny))))
    return float(np.max(np.abs(a - b) / (np.exp2(exponent) * float(info.eps))))
