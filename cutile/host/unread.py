"""What a tensor says when it is taken for its values, or for another library's array.

A tensor is a handle: its values are the device's. To read them waits for the device, and that should be seen in the
code, so no conversion is implicit; to compute with them takes a kernel. Each refusal says what to write. Type checkers
see none of the refusals that are not plain methods, so that they refuse the same lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from cuda_async import NotReadyError
from cuda_async.lease import current_holder
from cutile.host.elsewhere import KERNEL, READ, TENSORS

__all__ = ("NotItsValues",)


class NotItsValues:
    """The part of `Tensor` that refuses to be its values."""

    __slots__ = ()

    __array_ufunc__ = None  # array + tensor: TypeError, not an array of objects

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
            raise TypeError(
                f"{self!r} is memory of a device, which Python neither pickles nor copies: write "
                "tensor.to_numpy().sync(), or tensor.dup() for a copy on the device"
            )

        def __setitem__(self, key: object, value: object) -> NoReturn:
            raise TypeError(
                f"elements of {self!r} are not assigned to on the host: write api.fill(tensor[...].mut, value) or "
                "api.memcpy(tensor[...].mut, source), or a kernel"
            )

        def _no_arithmetic(self, *others: object) -> NoReturn:
            raise TypeError(f"{self!r} is not computed with on the host: write {KERNEL}")

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _no_arithmetic
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __abs__ = _no_arithmetic
        __matmul__ = __rmatmul__ = __and__ = __or__ = __xor__ = __invert__ = _no_arithmetic
        __lt__ = __le__ = __gt__ = __ge__ = _no_arithmetic

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
        raise TypeError(
            f"{self!r} does not turn into {wanted} by itself, since that waits for the device: write {READ}"
        )
