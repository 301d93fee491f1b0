"""Comparisons and selection."""

from typing import Any

import numpy as np

from tests.samples.row import ANY, NUMBERS, Row


def _where(condition: Any, x: Any, y: Any) -> Any:
    return np.where(condition, x, y)  # pyright: ignore[reportUnknownVariableType]


ROWS = (
    Row("eq", "ct.select(x == y, x, y - x)", lambda x, y: _where(x == y, x, y - x)),
    Row("ne", "ct.select(x != y, x, y + y)", lambda x, y: _where(x != y, x, y + y)),
    Row("lt", "ct.select(x < y, x, y)", lambda x, y: _where(x < y, x, y), ANY),
    Row("le", "ct.select(x <= y, y, x)", lambda x, y: _where(x <= y, y, x), ANY),
    Row("gt", "ct.select(x > y, x, y)", lambda x, y: _where(x > y, x, y), ANY),
    Row("ge", "ct.select(x >= y, x, y)", lambda x, y: _where(x >= y, x, y), ANY, (3, 8)),
    Row("select", "ct.select((x > 1) | (y > 1), x, 0)", lambda x, y: _where((x > 1) | (y > 1), x, 0), NUMBERS),
    Row("select", "ct.select(~(x < y) ^ (x == y), x, y)", lambda x, y: _where(~(x < y) ^ (x == y), x, y)),
)
