"""What a tensor says when it is taken for its values, or for another library's array.

A tensor is a handle, equal to itself alone: its values are the device's. To read them waits for the device, and that
should be seen in the code, so no conversion is implicit; to compute with them takes a kernel. Each refusal says what to
write. Type checkers see none of the refusals that are not plain methods, so that they refuse the same lines.
"""

from __future__ import annotations

from numbers import Number
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from cuda_async import NotReadyError
from cuda_async.lease import current_holder
from cutile.errors import ArgumentTypeError
from cutile.host.elsewhere import KERNEL, READ, TENSORS

__all__ = ("NotItsValues",)

_OF_SHAPES: dict[Any, str] = {np.shape: "shape", np.ndim: "ndim", np.size: "size"}
_IN_KERNELS = {
    **dict.fromkeys(("add", "sum"), " with + or ct.reduce_sum(tile, axis)"),
    "maximum": " with ct.max_tile(x, y) or ct.reduce_max(tile, axis)",
    "minimum": " with ct.min_tile(x, y) or ct.reduce_min(tile, axis)",
    **dict.fromkeys(("dot", "matmul"), " with ct.mma; kernels.gemm.matmul(x, y) is one"),
}


class NotItsValues:
    """The part of `Tensor` that refuses to be its values."""

    __slots__ = ()

    def __array__(self, dtype: object = None, copy: object = None) -> NoReturn:
        self._no_values("a NumPy array")

    def __float__(self) -> NoReturn:
        self._no_values("a float")

    def __int__(self) -> NoReturn:
        self._no_values("an int")

    def item(self) -> NoReturn:
        """Not here: raises TypeError, and says how to read values."""
        self._no_values("a number")

    def tolist(self) -> NoReturn:
        """Not here: raises TypeError, and says how to read values."""
        self._no_values("a list")

    if not TYPE_CHECKING:

        def __bool__(self) -> NoReturn:  # noqa: PLE0304
            self._no_values("a bool")

        def __contains__(self, item: object) -> NoReturn:
            self._no_values("something to search")

        def __format__(self, how: str) -> str:
            if how:
                self._no_values("a number to format")
            return repr(self)

        def __reduce_ex__(self, protocol: object) -> NoReturn:
            raise ArgumentTypeError(
                f"{self!r} is memory of a device, which Python neither pickles nor copies: write "
                "tensor.to_numpy().sync(), or tensor.dup() for a copy on the device"
            )

        def __setitem__(self, key: object, value: object) -> NoReturn:
            raise ArgumentTypeError(
                f"elements of {self!r} are not assigned to on the host: write api.fill(tensor[...].mut, value) or "
                "api.memcpy(tensor[...].mut, source), or a kernel"
            )

        def _no_arithmetic(self, *others: object) -> NoReturn:
            raise ArgumentTypeError(f"{self!r} is not computed with on the host: write {KERNEL}")

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _no_arithmetic
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __abs__ = _no_arithmetic
        __matmul__ = __rmatmul__ = __and__ = __or__ = __xor__ = __invert__ = _no_arithmetic
        __lt__ = __le__ = __gt__ = __ge__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _no_arithmetic
        __divmod__ = __rdivmod__ = __round__ = __rand__ = __ror__ = __rxor__ = __complex__ = _no_arithmetic

        def __array_ufunc__(self, function: Any, method: str, *inputs: object, **more: object) -> NoReturn:
            self._no_numpy(function)

        def __array_function__(self, function: Any, types: object, inputs: Any, more: Any) -> object:
            if function in _OF_SHAPES and len(inputs) == 1 and not more:  # they read no values
                return getattr(self, _OF_SHAPES[function])
            self._no_numpy(function)

        def _no_numpy(self, function: Any) -> NoReturn:
            name = function.__name__
            if current_holder() is not None:
                self._no_values(f"an argument of np.{name}")
            raise ArgumentTypeError(
                f"np.{name} does not take {self!r}, whose values are the device's: write np.{name} of "
                f"tensor.to_numpy().sync(), or a kernel (@cutile.entry){_IN_KERNELS.get(name, '')}"
            )

        def __eq__(self, other: object) -> bool:
            if isinstance(other, Number) or (hasattr(other, "__array__") and not isinstance(other, NotItsValues)):
                raise ArgumentTypeError(
                    f"{self!r} is not compared with {type(other).__name__} by its values, which are the device's: "
                    f"write {KERNEL}; a tensor is equal to itself alone"
                )
            return NotImplemented  # which leaves identity

        __hash__ = object.__hash__

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # what protocols look for: a property that refuses says so itself
                object.__getattribute__(self, name)
            remedy = f"; write {TENSORS[name]}" if name in TENSORS else ""
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{remedy}", name=name, obj=self
            )

    def _no_values(self, wanted: str) -> NoReturn:
        if current_holder() is not None:
            raise NotReadyError(
                f"{self!r} was read as {wanted} inside a function given to then(), map() or inspect(): it is called at "
                "submission, before the device has computed the values. Read them after sync() or await."
            )
        raise ArgumentTypeError(
            f"{self!r} does not turn into {wanted} by itself, since that waits for the device: write {READ}"
        )
