"""Functions of one float tile. f16 and bf16 compute in f32 and round once."""

from __future__ import annotations

from typing import Any

import numpy as np

from cutile.ir.accuracy import Accuracy
from cutile.ops.elementwise import FloatUnary


class Exp(FloatUnary, name="exp", spelled=("exp",), accuracy=Accuracy(f32=2.0, f64=1.0)):
    """`e ** x`.

    Examples:
        >>> run(lambda x: ct.exp(x), [0.0, float("-inf")])
        [1.0, 0.0]
    """

    function = staticmethod(np.exp)


class Exp2(FloatUnary, name="exp2", spelled=("exp2",), accuracy=Accuracy(f32=2.0, f64=1.0)):
    """`2 ** x`.

    Examples:
        >>> run(lambda x: ct.exp2(x), [0.0, 1.0, 3.0])
        [1.0, 2.0, 8.0]
    """

    function = staticmethod(np.exp2)


class Log(FloatUnary, name="log", spelled=("log",), accuracy=Accuracy(f32=1.0, f64=1.0)):
    """The natural logarithm; NaN below zero, -inf at zero.

    Examples:
        >>> run(lambda x: ct.log(x), [1.0, 0.0])
        [0.0, -inf]
    """

    function = staticmethod(np.log)


class Log2(FloatUnary, name="log2", spelled=("log2",), accuracy=Accuracy(f32=1.5, f64=1.5)):
    """The logarithm to base 2; NaN below zero, -inf at zero.

    Examples:
        >>> run(lambda x: ct.log2(x), [1.0, 8.0])
        [0.0, 3.0]
    """

    function = staticmethod(np.log2)


class Sqrt(FloatUnary, name="sqrt", spelled=("sqrt",)):
    """The square root, rounded to nearest; NaN below zero.

    Examples:
        >>> run(lambda x: ct.sqrt(x), [4.0, 9.0])
        [2.0, 3.0]
    """

    function = staticmethod(np.sqrt)


def _rsqrt(x: Any) -> Any:
    return (1.0 / np.sqrt(x.astype(np.float64))).astype(x.dtype)


class Rsqrt(FloatUnary, name="rsqrt", spelled=("rsqrt",), accuracy=Accuracy(f32=2.0, f64=1.5)):
    """`1 / sqrt(x)`.

    Examples:
        >>> run(lambda x: ct.rsqrt(x), [4.0, 16.0])
        [0.5, 0.25]
    """

    function = staticmethod(_rsqrt)


class Sin(FloatUnary, name="sin", spelled=("sin",), accuracy=Accuracy(f32=2.0, f64=2.0)):
    """The sine of `x` radians.

    Examples:
        >>> run(lambda x: ct.sin(x), [0.0])
        [0.0]
    """

    function = staticmethod(np.sin)


class Cos(FloatUnary, name="cos", spelled=("cos",), accuracy=Accuracy(f32=2.0, f64=2.0)):
    """The cosine of `x` radians.

    Examples:
        >>> run(lambda x: ct.cos(x), [0.0])
        [1.0]
    """

    function = staticmethod(np.cos)


class Tanh(FloatUnary, name="tanh", spelled=("tanh",), accuracy=Accuracy(f32=2.0, f64=2.0)):
    """The hyperbolic tangent.

    Examples:
        >>> run(lambda x: ct.tanh(x), [0.0, float("inf")])
        [0.0, 1.0]
    """

    function = staticmethod(np.tanh)


class Floor(FloatUnary, name="floor", spelled=("floor",)):
    """The largest whole number that is not above `x`.

    Examples:
        >>> run(lambda x: ct.floor(x), [1.5, -1.5])
        [1.0, -2.0]
    """

    function = staticmethod(np.floor)


class Ceil(FloatUnary, name="ceil", spelled=("ceil",)):
    """The smallest whole number that is not below `x`.

    Examples:
        >>> run(lambda x: ct.ceil(x), [1.5, -1.5])
        [2.0, -1.0]
    """

    function = staticmethod(np.ceil)
