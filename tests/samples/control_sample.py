"""Python as people write it: functions that mean the same when Python runs them on NumPy arrays as in a kernel.

Each `text` defines `f(x, n, m)`: `x` is a tile of i32, `n` and `m` are i32 scalars; `f` returns a tile. `ct` is
`PLAIN` where Python runs the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from cutile import dtypes


@dataclass(frozen=True)
class Sample:
    """A function in the kernel language, with the scalars to call it with."""

    text: str
    calls: tuple[tuple[int, int], ...] = ((0, 3), (5, 2), (-3, 7))


def _static_assert(condition: bool, message: str = "") -> None:
    assert condition, message


def _converted(x: Any, dtype: Any) -> Any:
    return np.asarray(x).astype(getattr(dtype, "numpy", dtype))


PLAIN = SimpleNamespace(
    static_range=range,
    static_assert=_static_assert,
    select=np.where,
    reduce_max=np.max,
    convert_tile=_converted,
    i32=np.int32,
    i8=dtypes.i8,
    u8=dtypes.u8,
    f16=dtypes.f16,
    f32=dtypes.f32,
)
"""The operations that the samples use, as NumPy has them."""
