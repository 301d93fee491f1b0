"""Generated text, run directly on NumPy arrays: for intrinsics, without a kernel around them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from cutile.backend.cpu.backend import BACKEND
from cutile.backend.cpu.target import host_target
from cutile.backend.interface import Parameter, Source
from cutile.dtypes import i32, u64

Array = np.ndarray[Any, Any]

SPECS = {np.dtype(name): spec for name, spec in (("f4", "f32"), ("f8", "f64"), ("u2", "u16"), ("i8", "i64"))}


class _Now:
    """A stream that runs everything at once, on this thread."""

    threads = 1

    def parallel_for(self, body: Any, count: int, grain: int) -> None:
        del grain
        body(0, count)


@cache
def _loaded(name: str, source_type: str, result_type: str, operands: int) -> Any:
    names = "xz"[:operands]
    text = (
        f"from cutile.backend.cpu.intrinsics import {name}\n\n\n"
        f"def map_all(y, {', '.join(names)}, count, join_x, join_y, join_z, first, last):\n"
        f"    for at in range(count):\n        y[at] = {name}({', '.join(f'{x}[at]' for x in names)})\n"
    )
    facts = {
        "signature": (f"{result_type}*", *[f"{source_type}*"] * operands, "i64", "i64", "i64", "i64", "i64", "i64"),
        "scratch": (), "blas": False, "functions": (), "prints": (), "asserts": (), "noalias": True,
        "max_joined_along": (1, 1, 1), "max_joined": 1,
    }  # fmt: skip
    parameters = (
        *(Parameter(name, "pointer", at, 0, u64) for at, name in enumerate(("y", *names))),
        Parameter("n", "extent", 1, 0, i32),
    )  # fmt: skip
    return BACKEND.load(BACKEND.build(Source(text, "map_all", parameters, facts=facts), host_target()))


def map_all(name: str, *operands: Array, result: str | None = None) -> Array:
    """An intrinsic of one or two arguments of one type, applied to every element."""
    x = operands[0]
    y = np.empty(x.shape, result or x.dtype)
    kernel = _loaded(name, SPECS[x.dtype], SPECS[y.dtype], len(operands))
    kernel.launch((1, 1, 1), [y.ctypes.data, *(each.ctypes.data for each in operands), x.size], _Now())
    return y
