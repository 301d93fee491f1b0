"""Comparisons, which give tiles of bool, and selection by them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from cutile.dtypes import bool_
from cutile.errors import KernelTypeError
from cutile.ir import ANY_TILE, BOOL_TILE, COMPUTED_TILE, Op, Type, Value, operand
from cutile.ops.elementwise import require_same


class Compare(Op):
    """Two tiles of one type in, a tile of bool out.

    Attributes:
        function: the NumPy meaning.
    """

    function: ClassVar[Any]
    x: Value = operand(COMPUTED_TILE)
    y: Value = operand(COMPUTED_TILE)

    def infer(self) -> tuple[Type, ...]:
        return (require_same(self.name, x=self.x, y=self.y).with_dtype(bool_),)

    def reference(self, x: Any, y: Any) -> Any:
        return np.asarray(type(self).function(x, y)).astype(np.bool_)


class Eq(Compare, name="eq", spelled=("x == y", "eq_tile", "cmpi", "cmpf")):
    """`x == y`; false where either is NaN.

    Examples:
        >>> run(lambda x, y: ct.select(x == y, x, -x), [1.0, 2.0], [1.0, 3.0])
        [1.0, -2.0]
    """

    function = staticmethod(np.equal)


class Ne(Compare, name="ne", spelled=("x != y", "ne_tile", "cmpi", "cmpf")):
    """`x != y`; true where either is NaN, as in NumPy.

    Examples:
        >>> run(lambda x, y: ct.select(x != y, x, -x), [1.0, 2.0], [1.0, 3.0])
        [-1.0, 2.0]
    """

    function = staticmethod(np.not_equal)


class Lt(Compare, name="lt", spelled=("x < y", "lt_tile", "cmpi", "cmpf")):
    """`x < y`; false where either is NaN.

    Examples:
        >>> run(lambda x, y: ct.select(x < y, x, y), [1.0, 4.0], [2.0, 3.0])
        [1.0, 3.0]
    """

    function = staticmethod(np.less)


class Le(Compare, name="le", spelled=("x <= y", "le_tile", "cmpi", "cmpf")):
    """`x <= y`; false where either is NaN.

    Examples:
        >>> run(lambda x, y: ct.select(x <= y, x, -x), [1.0, 4.0], [1.0, 3.0])
        [1.0, -4.0]
    """

    function = staticmethod(np.less_equal)


class Gt(Compare, name="gt", spelled=("x > y", "gt_tile", "cmpi", "cmpf")):
    """`x > y`; false where either is NaN.

    Examples:
        >>> run(lambda x, y: ct.select(x > y, x, y), [1.0, 4.0], [2.0, 3.0])
        [2.0, 4.0]
    """

    function = staticmethod(np.greater)


class Ge(Compare, name="ge", spelled=("x >= y", "ge_tile", "cmpi", "cmpf")):
    """`x >= y`; false where either is NaN.

    Examples:
        >>> run(lambda x, y: ct.select(x >= y, x, -x), [1.0, 4.0], [1.0, 5.0])
        [1.0, -4.0]
    """

    function = staticmethod(np.greater_equal)


class Select(Op, name="select", spelled=("select",)):
    """`x` where `condition` is true, else `y`; element by element."""

    condition: Value = operand(BOOL_TILE)
    x: Value = operand(ANY_TILE)
    y: Value = operand(ANY_TILE)

    def infer(self) -> tuple[Type, ...]:
        result = require_same(self.name, x=self.x, y=self.y)
        if self.condition.tile.shape != result.shape:
            raise KernelTypeError(
                f"select: the condition has the shape {self.condition.tile.shape}, the values {result.shape}"
            )
        return (result,)

    def reference(self, condition: Any, x: Any, y: Any) -> Any:
        return np.where(condition, x, y)  # pyright: ignore[reportUnknownVariableType]
