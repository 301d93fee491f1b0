"""What is decided while a kernel is compiled: loops that are unrolled, and conditions that have to hold."""

from __future__ import annotations

from typing import Any

from cutile.language.declare import operation


@operation
def static_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """`range` over constants whose loop is unrolled: the loop variable is a constant in each copy of the body.

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
    """Refuse to compile the kernel unless `condition`, which must be known then, is true.

    A false one raises KernelTypeError with the message, at the line.

    Example:
        >>> @ct.entry
        ... def halves(y: ct.Mut, *, BM: ct.Const = 64):
        ...     ct.static_assert(BM % 2 == 0, "BM must be even")
        ...     y.store(0.5 * y.load())
    """
    ...


__all__ = (
    "static_assert",
    "static_range",
)
