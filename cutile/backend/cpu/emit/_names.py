"""The names that generated code may import, which no variable has.

Numba is not imported to know them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from cutile.conversion import NEAREST_EVEN, NEGATIVE_INF, POSITIVE_INF, ZERO
from cutile.dtypes import STORAGE_DTYPES
from cutile.ops.registry import OPS, family

FUNCTIONS = {name: {"pow": "power"}.get(name, name) for name, op in OPS.items() if family(op) == "math"}
"""What an operation on floats calls: the intrinsic of its name, but where Python has a function of that name."""


def _imported() -> Iterator[str]:
    """What `intrinsics/__init__.py` imports, but for its tables."""
    text = (Path(__file__).parents[1] / "intrinsics/__init__.py").read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom):
            yield from (name for each in node.names if not (name := each.asname or each.name).isupper())


DIRECTIONS = {NEAREST_EVEN: "", POSITIVE_INF: "_upward", NEGATIVE_INF: "_downward", ZERO: "_to_zero"}
"""How the names of conversions end, by their rounding."""


def _conversions() -> Iterator[str]:
    for dtype in STORAGE_DTYPES:
        if dtype.format is not None:
            yield f"{dtype.name}_value"
            yield from (f"{dtype.name}_bits{suffix}" for suffix in DIRECTIONS.values())
    for suffix in filter(None, DIRECTIONS.values()):
        yield from (f"f16_round{suffix}", f"bf16_round{suffix}")
        yield from (f"f32{suffix}", f"f64{suffix}", f"f64{suffix}_unsigned")
    for bits in (8, 16, 32, 64):
        yield from (f"saturated_i{bits}", f"saturated_u{bits}", f"as_i{bits}", f"as_u{bits}")
    yield from ("as_f32", "as_f64", "nearest", "truncated", "whole_to_odd", "whole_to_odd_unsigned")


CONVERSIONS = frozenset(_conversions())
"""The conversions that generated code may import: the keys of `CONVERSIONS` in `intrinsics/cast.py`."""


RESERVED: frozenset[str] = frozenset((*_imported(), *FUNCTIONS.values(), *CONVERSIONS, "range"))
"""All of them, and what else generated code calls."""
