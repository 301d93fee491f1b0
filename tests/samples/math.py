"""Functions of one float tile. f16 and bf16 round an f32 result once."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cutile.dtypes import bf16, f16, f32, f64
from tests.samples.row import FLOATS, Row

WIDE, NARROW = (f32, f64), (f16, bf16)


def _wide(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """The function in long double (f64) or float64 (f32), rounded once: what the error is measured against."""

    def apply(x: Any, y: Any) -> Any:
        wider = np.longdouble if x.dtype == np.float64 else np.float64
        return function(x.astype(wider)).astype(x.dtype)

    return apply


def _rows(name: str, function: Callable[[Any], Any], ulps: float, domain: str = "any") -> tuple[Row, ...]:
    expression = f"ct.{name}(x)"
    return (
        Row(name, expression, _wide(function), WIDE, ulps=ulps, domain=domain),
        Row(name, expression, _wide(function), NARROW, ulps=1, domain=domain),
    )


ROWS = (
    *_rows("exp", np.exp, 3),
    *_rows("exp2", np.exp2, 3),
    *_rows("log", np.log, 3),
    *_rows("log2", np.log2, 3),
    *_rows("rsqrt", lambda x: 1 / np.sqrt(x), 3),
    *_rows("sin", np.sin, 3, "small"),
    *_rows("cos", np.cos, 3, "small"),
    *_rows("tanh", np.tanh, 4),
    Row("sqrt", "ct.sqrt(x)", lambda x, y: np.sqrt(x), FLOATS),  # rounded correctly
    Row("floor", "ct.floor(x)", _wide(np.floor), FLOATS),
    Row("ceil", "ct.ceil(x)", _wide(np.ceil), FLOATS),
)
