"""New tiles: constants, counted numbers, random numbers.

Random numbers are Philox 4x32-10, as in cuRAND and in torch on GPUs. A number depends on its seed, counter and
subsequence alone, not on the tiles, the blocks or the backend. The counter is mostly the index of the element. Words
and uniform numbers have the same bits everywhere.

J. Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from cutile.dtypes import DTypeLike, i32
from cutile.language.declare import composition, operation
from cutile.tile import Tile

__all__ = (
    "constant",
    "iota",
    "philox",
    "rand",
    "randint",
    "randn",
)


@operation
def constant(value: float | bool, shape: tuple[int, ...], dtype: DTypeLike) -> Tile:
    """A tile whose elements are all a compile-time `value`.

    Args:
        value: a number or a bool, known when the kernel is compiled.
        shape: constant extents, each at least 1. `()` makes a scalar.
        dtype: any element type.

    Returns:
        A tile of `shape` and `dtype`.

    Raises:
        KernelTypeError: the value or the shape is not constant, or `dtype` does not hold the value.

    Example:
        >>> run(lambda x: x + ct.constant(3, (2,), ct.f32), [1.0, 2.0])
        [4.0, 5.0]
    """
    ...


@operation
def iota(shape: tuple[int] | int, dtype: DTypeLike = i32, start: Tile | int = 0, step: Tile | int = 1) -> Tile:
    """`start, start + step, start + 2 * step, ...` as a tile of rank 1.

    Args:
        shape: one constant extent, at least 1.
        dtype: an integer dtype; elements beyond its range wrap.
        start, step: numbers, or scalars of `dtype`.

    Returns:
        A tile of one axis, of `dtype`.

    Raises:
        KernelTypeError: the shape does not have one axis, `dtype` is no integer dtype, or `dtype` does not hold a
            constant `start` or `step`.

    Example:
        >>> run(lambda x: x + ct.convert_tile(ct.iota((4,)), x.dtype), [10.0, 10.0, 10.0, 10.0])
        [10.0, 11.0, 12.0, 13.0]
        >>> run(lambda x: x + ct.iota((4,), ct.i32, 10, -2), [0, 0, 0, 0], dtype="i32")
        [10, 8, 6, 4]
    """
    ...


@composition()
def philox(seed: Tile | int, counter: Tile | int, subsequence: Tile | int = 0) -> tuple[Tile, Tile, Tile, Tile]:
    """Four independent tiles of 32 random bits: Philox 4x32-10.

    `counter` and `subsequence` are the four words of Philox's counter block, low words first. `seed` is the two words
    of its key. In cuRAND's terms `counter` is `offset / 4`; `seed` and `subsequence` have the same names there.

    Args:
        seed: a number or an integer scalar, of 64 bits.
        counter: a tile of integers, or a number: one for each element. Negative ones count modulo `2**64`.
        subsequence: like `counter`; equal counters of different subsequences give different numbers.

    Returns:
        Four tiles of u32, of the shape of `counter` and `subsequence`, which broadcast.

    Raises:
        KernelTypeError: an argument is no integer, or `seed` is no scalar.

    Example:
        >>> run(lambda x: x ^ ct.philox(0, ct.iota((2,)))[0].astype(ct.i64), [0, 0], dtype="i64")
        [1713891541, 4175744164]
    """
    ...


@composition()
def rand(seed: Tile | int, counter: Tile | int, subsequence: Tile | int = 0) -> Tile:
    """Random f32 from 0 to below 1: multiples of `2**-24`, all equally likely.

    Each is made of the highest 24 bits of the first word of `philox`.

    Args:
        seed: a number or an integer scalar, of 64 bits.
        counter: a tile of integers, or a number: one for each element, such as its index in the tensor.
        subsequence: like `counter`; equal counters of different subsequences give different numbers.

    Returns:
        A tile of f32, of the shape of `counter` and `subsequence`, which broadcast; the same bits on every backend.

    Raises:
        KernelTypeError: an argument is no integer, or `seed` is no scalar.

    Example:
        >>> run(lambda x: ct.rand(7, ct.iota((4,))), [0.0] * 4)
        [0.9545971155166626, 0.4069603681564331, 0.006075084209442139, 0.39019906520843506]
        >>> run(lambda x: ct.select(ct.rand(7, ct.iota((4,))) < 0.5, 0.0, 2.0 * x), [1.0] * 4)      # dropout
        [2.0, 0.0, 0.0, 0.0]
    """
    ...


@composition(note="of the logarithm, the root and the sine of Box and Muller together", f32=4.0)
def randn(seed: Tile | int, counter: Tile | int, subsequence: Tile | int = 0) -> Tile:
    """Random f32 of the standard normal distribution.

    The transform of Box and Muller: `sqrt(-2 * log(u)) * sin(v)`. As in cuRAND, `u` (above 0, at most 1) and `v` (up to
    2 pi) are made of the first two words of `philox`. They have the same bits on every backend. The result is within 4
    ulp of the exact value for them.

    Args:
        seed: a number or an integer scalar, of 64 bits.
        counter: a tile of integers, or a number: one for each element, such as its index in the tensor.
        subsequence: like `counter`; equal counters of different subsequences give different numbers.

    Returns:
        A tile of f32, of the shape of `counter` and `subsequence`, which broadcast.

    Raises:
        KernelTypeError: an argument is no integer, or `seed` is no scalar.

    Example:
        >>> run(lambda x: round(ct.randn(7, ct.iota((4,))) * 100.0), [0.0] * 4)
        [-30.0, -129.0, 17.0, 137.0]
    """
    ...


@composition()
def randint(
    seed: Tile | int, counter: Tile | int, low: Tile | int, high: Tile | int, subsequence: Tile | int = 0
) -> Tile:
    """Random i32 from `low` to below `high`.

    The result is `low` plus the upper 32 bits of the product of `high - low` and the first word of `philox`. One number
    is at most about `1 + (high - low) / 2**32` times as likely as another.

    Args:
        seed: a number or an integer scalar, of 64 bits.
        counter: a tile of integers, or a number: one for each element, such as its index in the tensor.
        low, high: the bounds: numbers or i32. `high` must be above `low`, and is not drawn itself. Nothing checks
            bounds that are not constant.
        subsequence: like `counter`; equal counters of different subsequences give different numbers.

    Returns:
        A tile of i32, of the shape of `counter` and `subsequence`, which broadcast; the same bits on every backend.

    Raises:
        KernelTypeError: an argument is no integer, `seed` is no scalar, or constants with `high` not above `low`.

    Example:
        >>> run(lambda x: ct.randint(7, ct.iota((6,)), 1, 7), [0] * 6, dtype="i32")
        [6, 3, 1, 3, 2, 3]
    """
    ...
