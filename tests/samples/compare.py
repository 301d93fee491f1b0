"""Comparisons and selection."""

from typing import Any

import numpy as np

from cutile.dtypes import bool_, f16, f32, i32, u8
from tests.samples.row import Row

SOME = (f32, f16, i32, u8)
MORE = (*SOME, bool_)


def _where(condition: Any, x: Any, y: Any) -> Any:
    return np.where(condition, x, y)  # pyright: ignore[reportUnknownVariableType]


ROWS = (
    Row("eq", "ct.select(x == y, x, y - x)", lambda x, y: _where(x == y, x, y - x), SOME),
    Row("ne", "ct.select(x != y, x, y + y)", lambda x, y: _where(x != y, x, y + y), SOME),
    Row("eq", "x == y", np.equal, (bool_,)),
    Row("ne", "x != y", np.not_equal, (bool_,)),
    Row("lt", "ct.select(x < y, x, y)", lambda x, y: _where(x < y, x, y), MORE),
    Row("le", "ct.select(x <= y, y, x)", lambda x, y: _where(x <= y, y, x), MORE),
    Row("gt", "ct.select(x > y, x, y)", lambda x, y: _where(x > y, x, y), MORE),
    Row("ge", "ct.select(x >= y, x, y)", lambda x, y: _where(x >= y, x, y), MORE, (3, 8)),
    Row("select", "ct.select((x > 1) | (y > 1), x, 0)", lambda x, y: _where((x > 1) | (y > 1), x, 0), SOME),
    Row("select", "ct.select(~(x < y) ^ (x == y), x, y)", lambda x, y: _where(~(x < y) ^ (x == y), x, y), SOME),
)
