"""`ReadsValues`: how the values of a tensor get to the host."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cuda_async import DeviceOp
from cutile.host.memory import Array
from cutile.host.transfer import ToHost, values_now
from cutile.launch.views import View

__all__ = ("ReadsValues",)


class ReadsValues:
    """The part of `Tensor` that reads its values."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _usable(self, use: str) -> View: ...

    def to_host_vec(self) -> DeviceOp[Array]:
        """An op that yields the values as a NumPy array of one axis, in row-major order.

        Raises as `dup`.

        Example:
            >>> api.eye(2).sync().to_host_vec().sync()
            array([1., 0., 0., 1.], dtype=float32)
        """
        view = self._usable("to_host_vec")
        return ToHost(view, (math.prod(view.shape),), "to_host_vec")

    def to_numpy(self) -> DeviceOp[Array]:
        """An op that yields the values as a NumPy array of this shape. Raises as `dup`.

        Example:
            >>> from cutile import api, f32
            >>> api.ones((2, 2), f32).to_numpy().sync()
            array([[1., 1.],
                   [1., 1.]], dtype=float32)
        """
        view = self._usable("to_numpy")
        return ToHost(view, view.shape, "to_numpy")

    def numpy(self) -> Array:
        """The values as a NumPy array of this shape, now: waits for them.

        `await tensor.to_numpy()` does not block.

        Raises:
            OwnershipError: the tensor is held, or an operation that has not finished writes it.
            ReentrancyError: called inside a function given to then(), map() or inspect().
            NotReadyError: the tensor is one of `api.meta`, without memory.

        Example:
            >>> from cutile import api, f32
            >>> api.ones((3,), f32).sync().numpy()
            array([1., 1., 1.], dtype=float32)
        """
        return values_now(self._usable("numpy"))
