"""`Tile`: the type of a kernel's values, as a type checker sees it.

A tile is an array of fixed shape held by one tile block. A scalar is the tile of shape `()`. Kernels are compiled from
their source, so nothing here runs: calling a method outside a kernel raises and says so. Operators mean what NumPy
means: `//` and `%` floor, `!=` is true for NaN, axes of size 1 broadcast.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from types import EllipsisType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from cutile.errors import ArgumentTypeError


class Live(Protocol):
    """The interpreter's hook: what the language's functions mean while it runs."""

    def operation(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call one of the language's functions."""
        ...

    def method(self, owner: Any, name: str, args: Sequence[Any]) -> Any:
        """Call a method of an object that was made outside of the kernel."""
        ...


live: ContextVar[Live | None] = ContextVar("cutile_live", default=None)
"""The running interpreter, which gives the language's functions their meaning; None outside of interpreted kernels."""


_ON_HOST = {
    "ceil_div": "-(-a // b)",
    "constant": "api.full(value, shape, dtype)",
    "cumsum": "api.cumsum(tensor)",
    "iota": "api.arange(length, dtype)",
    "rand": "api.rand(shape)",
    "randn": "api.randn(mean, std, shape)",
    "scan": "api.scan(tensor, function, identity)",
}
"""What to write on the host in place of the language's functions of these names."""


def outside_kernel(what: str) -> NoReturn:
    """Raise: `what` means something only in a function that a kernel is compiled from."""
    raise ArgumentTypeError(
        f"{what} was called on the host. It means something only inside a kernel: put it into a function decorated "
        f"with @cutile.entry, and launch that.{f' On the host write {_ON_HOST[what]}.' if what in _ON_HOST else ''}"
    )


class Tile:
    """A tile inside a kernel: a dtype, a shape known at compile time, and operators.

    Example:
        >>> import cutile as ct
        >>> @ct.entry
        ... def double(y: ct.Mut):
        ...     t = y.load()          # a Tile
        ...     y.store(t + t)
    """

    def __class_getitem__(cls, facts: Any) -> Any:
        return types.GenericAlias(cls, facts)  # `Tile[f32, 4]`, in the annotations of helpers

    @property
    def dtype(self) -> Any:
        """The element type, as a class such as `cutile.f32`.

        Example:
            >>> run(lambda x: x + ct.constant(1, x.shape, x.dtype), [1.0, 2.0])
            [2.0, 3.0]
        """
        outside_kernel("Tile.dtype")

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents, constants at compile time.

        Example:
            >>> run(lambda x: x + ct.iota(x.shape), [1, 1], dtype="i32")
            [1, 2]
        """
        outside_kernel("Tile.shape")

    @property
    def ndim(self) -> int:
        """The number of axes.

        Example:
            >>> run(lambda x: x * x.ndim + x.reshape((1, 2)).ndim, [1.0, 2.0])
            [3.0, 4.0]
        """
        outside_kernel("Tile.ndim")

    def reshape(self, shape: tuple[int, ...]) -> Tile:
        """The same elements in row-major order under another shape; see `cutile.reshape`."""
        outside_kernel("Tile.reshape")

    def broadcast(self, shape: tuple[int, ...]) -> Tile:
        """Axes of size 1 repeated to `shape`; see `cutile.broadcast`."""
        outside_kernel("Tile.broadcast")

    def transpose(self) -> Tile:
        """The transpose of a tile of rank 2; see `cutile.transpose`.

        Example:
            >>> run(lambda x: x.reshape((2, 2)).transpose().reshape((4,)), [1.0, 2.0, 3.0, 4.0])
            [1.0, 3.0, 2.0, 4.0]
        """
        outside_kernel("Tile.transpose")

    def any(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tile:
        """Whether any element is true, or not 0: along constant axes, or of all.

        Args:
            axis: a constant, or a tuple of them; negative ones count from the end.
            keepdims: whether the result keeps the axes, with an extent of 1.

        Returns:
            A tile of bool without the axes: a scalar, which a branch may ask for, without `axis`.

        Example:
            >>> run(lambda x: ct.select((x > 2.0).any(), x, 0.0), [1.0, 2.0, 3.0])
            [1.0, 2.0, 3.0]
        """
        outside_kernel("Tile.any")

    def all(self, axis: int | tuple[int, ...] | None = None, keepdims: bool = False) -> Tile:
        """Whether all elements are true, or not 0: along constant axes, or of all.

        Args:
            axis: a constant, or a tuple of them; negative ones count from the end.
            keepdims: whether the result keeps the axes, with an extent of 1.

        Returns:
            A tile of bool without the axes: a scalar, which a branch may ask for, without `axis`.

        Example:
            >>> run(lambda x: ct.select((x > 2.0).all(), x, 0.0), [1.0, 2.0, 3.0])
            [0.0, 0.0, 0.0]
        """
        outside_kernel("Tile.all")

    def pack(self, shape: tuple[int, ...] | None = None) -> Tile:
        """The bytes of a tile of one axis, pairs of 4-bit floats for `f4e2m1fn`.

        See `cutile.pack`.
        """
        outside_kernel("Tile.pack")

    def unpack(self, shape: tuple[int, ...] | None = None) -> Tile:
        """The 4-bit floats in a tile of pairs; see `cutile.unpack`."""
        outside_kernel("Tile.unpack")

    def astype(self, dtype: Any) -> Tile:
        """The elements converted to `dtype`; see `cutile.convert_tile`."""
        outside_kernel("Tile.astype")

    def __add__(self, other: Tile | float) -> Tile:
        outside_kernel("Tile +")

    def __radd__(self, other: float) -> Tile:
        outside_kernel("Tile +")

    def __sub__(self, other: Tile | float) -> Tile:
        outside_kernel("Tile -")

    def __rsub__(self, other: float) -> Tile:
        outside_kernel("Tile -")

    def __mul__(self, other: Tile | float) -> Tile:
        outside_kernel("Tile *")

    def __rmul__(self, other: float) -> Tile:
        outside_kernel("Tile *")

    def __truediv__(self, other: Tile | float) -> Tile:
        outside_kernel("Tile /")

    def __rtruediv__(self, other: float) -> Tile:
        outside_kernel("Tile /")

    def __floordiv__(self, other: Tile | float) -> Tile:
        outside_kernel("Tile //")

    def __rfloordiv__(self, other: float) -> Tile:
        outside_kernel("Tile //")

    def __mod__(self, other: Tile | float) -> Tile:
        outside_kernel("Tile %")

    def __rmod__(self, other: float) -> Tile:
        outside_kernel("Tile %")

    def __pow__(self, other: Tile | float) -> Tile:
        outside_kernel("Tile **")

    def __rpow__(self, other: float) -> Tile:
        outside_kernel("Tile **")

    def __and__(self, other: Tile | int) -> Tile:
        outside_kernel("Tile &")

    def __rand__(self, other: int) -> Tile:
        outside_kernel("Tile &")

    def __or__(self, other: Tile | int) -> Tile:
        outside_kernel("Tile |")

    def __ror__(self, other: int) -> Tile:
        outside_kernel("Tile |")

    def __xor__(self, other: Tile | int) -> Tile:
        outside_kernel("Tile ^")

    def __rxor__(self, other: int) -> Tile:
        outside_kernel("Tile ^")

    def __lshift__(self, other: Tile | int) -> Tile:
        outside_kernel("Tile <<")

    def __rshift__(self, other: Tile | int) -> Tile:
        outside_kernel("Tile >>")

    def __neg__(self) -> Tile:
        outside_kernel("-Tile")

    def __pos__(self) -> Tile:
        outside_kernel("+Tile")

    def __invert__(self) -> Tile:
        outside_kernel("~Tile")

    def __abs__(self) -> Tile:
        outside_kernel("abs(Tile)")

    def __round__(self) -> Tile:
        outside_kernel("round(Tile)")

    def __lt__(self, other: Tile | float) -> Condition:
        outside_kernel("Tile <")

    def __le__(self, other: Tile | float) -> Condition:
        outside_kernel("Tile <=")

    def __gt__(self, other: Tile | float) -> Condition:
        outside_kernel("Tile >")

    def __ge__(self, other: Tile | float) -> Condition:
        outside_kernel("Tile >=")

    def __eq__(self, other: object) -> Tile:  # type: ignore[override]  # as in NumPy: element-wise, a tile of bool
        outside_kernel("Tile ==")

    def __ne__(self, other: object) -> Tile:  # type: ignore[override]  # as in NumPy: element-wise, a tile of bool
        outside_kernel("Tile !=")

    def __matmul__(self, other: Tile) -> Tile:
        outside_kernel("Tile @")

    __hash__ = object.__hash__

    if TYPE_CHECKING:
        # For type checkers alone: at run time Python would take an object with `__getitem__` for an iterable.

        def __getitem__(self, key: NewAxes) -> Tile: ...
        def __index__(self) -> int: ...  # of a scalar: range(first, end)


if TYPE_CHECKING:
    _Axis = slice[None, None, None] | EllipsisType | None
    NewAxes = _Axis | tuple[_Axis, ...]
    """What a tile may be indexed with: `t[:, None]` adds an axis."""

    class Condition(Tile, Any):
        """A tile of bool.

        Python's `max(t, 0.0)` and `min` take values whose comparisons give a bool: a type checker accepts this as one.
        """
