"""`DeviceVec`: a tensor of the addresses of other tensors.

It is for kernels whose number of operands is known only at the launch.

    weights = api.device_vec([w0, w1, w2]).sync()
    grouped(y.partition((1, 64)), weights, ...)         # in the kernel: ct.load_tensor(weights, i, shape, strides, f32)

A launch with a `DeviceVec` uses all tensors in it. It is ordered behind their other users, and holds them to its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from cuda_async import DeviceOp
from cutile.dtypes import DTypeLike, i64
from cutile.errors import ArgumentError, ArgumentTypeError
from cutile.host.tensor import Tensor
from cutile.host.transfer import FromHost
from cutile.launch.views import PointingView, View

__all__ = ("DeviceVec", "device_vec")


class DeviceVec:
    """Tensors of one dtype, and their addresses on the device.

    Made by `api.device_vec`.

    Attributes:
        inner: the addresses, a tensor of i64 with one element for each tensor.
        tensors: the tensors.
    """

    def __init__(self, view: View, tensors: Sequence[Tensor], writes: bool) -> None:
        self.inner = Tensor(view)
        self.tensors = tuple(tensors)
        self._writes = writes

    @property
    def dtype(self) -> DTypeLike:
        """The element type of the tensors."""
        return self.tensors[0].dtype

    def __len__(self) -> int:
        return len(self.tensors)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.tensors)

    def __kernel_inputs__(self) -> PointingView:
        """The addresses, and the elements at them.

        Raises OwnershipError if a tensor is held.

        The plural keeps a launch off the fast path, which orders one storage for each argument.
        """
        view = self.inner.__kernel_input__()
        return PointingView(
            view.storage,
            view.offset,
            view.dtype,
            view.shape,
            view.strides,
            _views(self.tensors, self._writes),
            self._writes,
        )

    def __repr__(self) -> str:
        return f"DeviceVec({len(self)} tensors of {self.dtype.name})"


def device_vec(tensors: Sequence[Tensor], *, mut: bool = False) -> DeviceOp[DeviceVec]:
    """An op that yields the addresses of tensors, for `ct.load_tensor` in a kernel.

    A kernel gets them as a tensor of i64, of shape (number of tensors,).

    Args:
        tensors: at least one, of one dtype and any shapes; each stays usable.
        mut: whether kernels write to the tensors.

    Raises:
        ArgumentError: there are no tensors.
        ArgumentTypeError: the tensors have different dtypes, or one is no tensor.
        OwnershipError: a tensor is held, or cannot be written.

    Example:
        >>> import cutile as ct
        >>> @ct.entry(unsafe=True)
        ... def sums(y: ct.Mut, rows: ct.Tensor, n: ct.i32):
        ...     row = ct.load_tensor(rows, ct.get_tile_block_id()[0], (n,), (1,), ct.f32)
        ...     y.store(ct.reduce_sum(row.load_tile((4,), (0,)), 0))
        >>> rows = ct.api.device_vec([ct.api.ones((3,)).sync(), ct.api.arange(3, ct.f32).sync()]).sync()
        >>> sums(ct.api.zeros((2,)).sync().partition((1,)), rows, 3).first().unpartition().to_numpy().sync()
        array([3., 3.], dtype=float32)
    """
    if isinstance(tensors, Tensor) or not hasattr(tensors, "__iter__"):
        raise ArgumentTypeError(f"device_vec: expected a list of tensors, got {type(tensors).__name__}; write [tensor]")
    members = tuple(tensors)
    if not members:
        raise ArgumentError("device_vec: there are no tensors; give at least one")
    for each in members:
        if not isinstance(each, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentTypeError(f"device_vec: expected tensors, got {type(each).__name__}")
    kinds = {each.dtype for each in members}
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.name for kind in kinds))
        raise ArgumentTypeError(f"device_vec: the tensors have different dtypes ({names}); convert them to one")
    addresses = np.array([view.address for view in _views(members, mut)], np.int64)
    return FromHost(addresses, i64, lambda view: DeviceVec(view, members, mut))


def _views(tensors: Sequence[Tensor], writes: bool) -> tuple[View, ...]:
    if writes:
        return tuple(each.mut.__kernel_destination__() for each in tensors)
    return tuple(each.__kernel_input__() for each in tensors)
