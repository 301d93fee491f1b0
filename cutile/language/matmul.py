"""Matrix products, as functions.

The class `Mma` in `cutile/ops/matmul.py` has a table of the types that are multiplied.
"""

from __future__ import annotations

from cutile.language.declare import operation
from cutile.language.markers import signedness
from cutile.tile import Tile


@operation
def mma(a: Tile, b: Tile, acc: Tile, use_fast_acc: bool = False) -> Tile:
    """`a @ b + acc`: `a` is M x K, `b` is K x N, `acc` is M x N; or batches of these.

    f16 and bf16 accumulate in f32 (f16 also in f16), floats of 8 bits in f32 or f16, tf32 in f32, f32 in f32 (exact
    products), f64 in f64, i8 and u8 in i32.

    Args:
        a, b: the factors, of one dtype; floats of 8 bits may differ, as may i8 and u8.
        acc: the accumulator, to which the products are added.
        use_fast_acc: for floats of 8 bits with an accumulator of f32: whether all sums stay in the tensor cores.
            Hopper's tensor cores keep about 14 bits of such a sum; in return the product takes less time or fewer
            registers. No effect on other hardware.

    Returns:
        A tile of the shape and dtype of `acc`.

    Raises:
        KernelTypeError: the shapes or the dtypes do not fit together.

    Example:
        >>> run(lambda x: ct.mma(x.reshape((2, 2)), x.reshape((2, 2)), ct.constant(0.0, (2, 2), ct.f32)).reshape((4,)),
        ...     [1.0, 2.0, 3.0, 4.0])
        [7.0, 10.0, 15.0, 22.0]
    """
    ...


@operation
def matmul(a: Tile, b: Tile) -> Tile:
    """`a @ b`, as NumPy has it.

    Products of matrices, of vectors, and of batches of matrices, which broadcast.

    An `a` of one axis is a row, a `b` of one axis a column, and the result lacks that axis.

    Args:
        a, b: ... x M x K and ... x K x N, of types that `mma` multiplies.

    Returns:
        A tile ... x M x N of the dtype of the factors; but i32 for i8 and u8, and f32 for floats of 8 bits and tf32.
            The sums run in the accumulators of `mma`, and are rounded once.

    Raises:
        KernelTypeError: the shapes or the dtypes do not fit together.

    Example:
        >>> run(lambda x: ct.matmul(x.reshape((2, 2)), x.reshape((2, 2))).reshape((4,)), [1.0, 2.0, 3.0, 4.0])
        [7.0, 10.0, 15.0, 22.0]
        >>> run(lambda x, y: x * (x @ y), [1.0, 2.0], [3.0, 4.0])
        [11.0, 22.0]
    """
    ...


@operation
def mmaf(a: Tile, b: Tile, acc: Tile, use_fast_acc: bool = False) -> Tile:
    """`mma` of floats.

    Args:
        a, b: floats: M x K and K x N, or batches of these.
        acc: M x N.
        use_fast_acc: as for `mma`.

    Returns:
        A tile of the shape and dtype of `acc`.

    Raises:
        KernelTypeError: a factor is no float, or shapes or dtypes do not fit together.

    Example:
        >>> run(lambda x: ct.mmaf(x.reshape((2, 2)), x.reshape((2, 2)), ct.constant(0.0, (2, 2), ct.f32)).reshape((4,)),
        ...     [1.0, 2.0, 3.0, 4.0])
        [7.0, 10.0, 15.0, 22.0]
    """
    ...


@operation
def mmai(
    a: Tile,
    b: Tile,
    acc: Tile,
    a_signedness: signedness | None = None,
    b_signedness: signedness | None = None,
) -> Tile:
    """`mma` of i8 and u8, with sums in i32.

    Args:
        a, b: tiles of i8 or u8: M x K and K x N, or batches of these.
        acc: a tile of i32, M x N; sums wrap.
        a_signedness, b_signedness: how the bits of `a` and of `b` are read; None for as their dtype says.

    Returns:
        A tile of the shape of `acc`, of i32.

    Raises:
        KernelTypeError: a factor is not of i8 or u8, or the shapes do not fit together.

    Example:
        >>> run(lambda x: ct.mmai(x.reshape((2, 2)).astype(ct.i8), x.reshape((2, 2)).astype(ct.u8),
        ...                       ct.constant(0, (2, 2), ct.i32)).astype(ct.f32).reshape((4,)), [1.0, 2.0, 3.0, 4.0])
        [7.0, 10.0, 15.0, 22.0]
    """
    ...


@operation
def mmaf_scaled(a: Tile, b: Tile, acc: Tile, a_scale: Tile, b_scale: Tile) -> Tile:
    """`(a * a_scale) @ (b * b_scale) + acc`.

    There is a scale for each block of 16 or 32 numbers along K.

    Args:
        a, b: M x K and K x N, of f4e2m1fn, f8e4m3fn or f8e5m2.
        acc: M x N, of f32.
        a_scale, b_scale: M x (K / block) and (K / block) x N, of f8e8m0fnu or f8e4m3fn.

    Returns:
        A tile of the shape of `acc`, of f32.

    Raises:
        KernelTypeError: the shapes or the dtypes do not fit together.

    Example:
        >>> run(lambda x: ct.mmaf_scaled(ct.constant(1.0, (1, 32), ct.f4e2m1fn), ct.constant(3.0, (32, 1), ct.f4e2m1fn),
        ...     ct.constant(0.0, (1, 1), ct.f32), ct.constant(2.0, (1, 1), ct.f8e8m0fnu),
        ...     ct.constant(0.5, (1, 1), ct.f8e8m0fnu)).reshape((1,)), [0.0])
        [96.0]
    """
    ...


__all__ = (
    "matmul",
    "mma",
    "mmaf",
    "mmaf_scaled",
    "mmai",
)
