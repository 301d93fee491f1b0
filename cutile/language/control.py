"""Decisions at compile time: unrolled loops, assertions, constants."""

from __future__ import annotations

from typing import Any

from cutile.language.declare import operation


@operation
def static_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """`range` over constants whose loop is unrolled.

    The loop variable is a constant in each copy of the body.

    Args:
        start, stop, step: constants, as for `range`.

    Returns:
        An iterable for a `for` loop.

    Raises:
        KernelTypeError: an argument is not constant.

    Example:
        >>> @ct.entry
        ... def fill(y: ct.Mut):
        ...     part = y.partition_mut((1,))
        ...     for i in ct.static_range(3):                  # i is a constant here
        ...         part.store(ct.constant(i * i, (1,), y.dtype), i)
        >>> fill(ct.api.zeros((3,)).partition((3,))).first().unpartition().to_numpy().sync().tolist()
        [0.0, 1.0, 4.0]
    """
    ...


@operation
def static_assert(condition: Any, message: str | None = None) -> None:
    """Refuse to compile the kernel unless `condition` is true.

    Args:
        condition: a constant, known when the kernel is compiled.
        message: the text of the error.

    Raises:
        KernelTypeError: the condition is false, or not constant.

    Example:
        >>> @ct.entry
        ... def halves(y: ct.Mut, *, BM: ct.Const = 64):
        ...     ct.static_assert(BM % 2 == 0, "BM must be even")
        ...     y.store(0.5 * y.load())
    """
    ...


@operation
def static_eval(value: Any) -> Any:
    """A constant: the value that Python computes for an expression at compile time.

    Comprehensions, dicts and sets are allowed.

    The compiler computes a call of a plain function with constants in the same way, wherever the call stands.
    `static_eval` does that for a whole expression, and refuses one that is not constant.

    Args:
        value: an expression of constants: numbers, generics, shapes, dtypes, tuples and functions of Python.

    Returns:
        The constant. A list becomes a tuple.

    Raises:
        KernelTypeError: the expression is not constant.

    Example:
        >>> @ct.entry
        ... def fill(y: ct.Mut, *, MODE: ct.Const[str] = "high"):
        ...     level = ct.static_eval({"low": 1.0, "high": 2.0}[MODE])
        ...     y.store(level)
        >>> fill(ct.api.zeros((2,)).partition((2,))).first().unpartition().to_numpy().sync()
        array([2., 2.], dtype=float32)
    """
    ...


__all__ = (
    "static_assert",
    "static_eval",
    "static_range",
)
