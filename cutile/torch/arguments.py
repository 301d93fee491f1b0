# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
# (torch is not among what the tests install)
"""PyTorch's tensors as arguments of a launch, and the refusal of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cutile.errors import ArgumentError, ArgumentTypeError
from cutile.host.foreign import torch_dtype
from cutile.host.shapes import as_shape
from cutile.host.tensor import Tensor
from cutile.launch.views import SharedView, TiledView, View
from cutile.torch.streams import TorchMemory

__all__ = (
    "PLAIN_TENSORS",
    "Partition",
    "Placed",
    "Read",
    "Shared",
    "Written",
    "check_tensor",
    "cut_tensor",
    "partition",
    "view_of",
)

PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
"""The types of tensors that have memory of their own; other subclasses may have none."""


class Partition:
    """A PyTorch tensor that a kernel writes, cut into tiles. Made by `partition`.

    Attributes:
        tensor: the tensor.
        cut: the tile's shape; after `map` or `prefix`, a tuple of that word, the cut and its arguments. Hashable: it is
            a part of the key of a launch.

    Example:
        >>> import torch, cutile.torch as ctt
        >>> ctt.partition(torch.zeros(8, 100), (1, 100))
        <partition of (8, 100) torch.float32 by (1, 100)>
    """

    __slots__ = ("cut", "tensor")

    def __init__(self, tensor: torch.Tensor, tile: Sequence[int] | int | tuple[Any, ...]) -> None:
        self.tensor = tensor
        self.cut: tuple[Any, ...] = tile if type(tile) is tuple else _as_tuple(tile)

    def map(self, map_shape: Sequence[int] | int, num_tile_blocks: int) -> Partition:
        """Share the tiles among `num_tile_blocks` blocks, as `cutile.Partition.map` does.

        Example:
            >>> import torch, cutile.torch as ctt
            >>> @ct.entry
            ... def double(y: ct.MappedPartitionMut, x: ct.Tensor):
            ...     for index in y.iter_indices():
            ...         y.store(2 * x.partition(y.shape).load(index), index)
            >>> x = torch.arange(6.0)
            >>> y = torch.empty_like(x)
            >>> ctt.launch(double, ctt.partition(y, (2,)).map(1, 2), x)  # two blocks for three tiles
            >>> y
            tensor([ 0.,  2.,  4.,  6.,  8., 10.])
        """
        shape = map_shape if isinstance(map_shape, int) else tuple(map_shape)
        return Partition(self.tensor, ("map", self.cut, shape, num_tile_blocks))

    def prefix(self) -> Partition:
        """Let a launch cover only the first tiles of each axis.

        It is `cutile.Partition.prefix` for `launch`.

        Example:
            >>> import torch, cutile.torch as ctt
            >>> @ct.entry
            ... def fill(y: ct.Mut):
            ...     y.store(1.0)
            >>> y = torch.zeros(6)
            >>> ctt.launch(fill, ctt.partition(y, (2,)).prefix(), grid=(2, 1, 1))
            >>> y
            tensor([1., 1., 1., 1., 0., 0.])
        """
        return Partition(self.tensor, ("prefix", self.cut))

    def __repr__(self) -> str:
        return f"<partition of {tuple(self.tensor.shape)} {self.tensor.dtype} by {self.cut}>"


def _as_tuple(tile: Any) -> tuple[Any, ...]:
    return tuple(tile) if isinstance(tile, Sequence) else (tile,)


partition = Partition
"""Cut a PyTorch tensor into tiles, which a kernel writes: an argument of `launch`. The tensor stays usable.

`partition(tensor, (1, 1024))` costs next to nothing; nothing is checked before the launch.
"""


def cut_tensor(tensor: Tensor, cut: Any) -> Any:
    """The partition of one of our tensors, by the `cut` of a `Partition`."""
    if isinstance(cut, tuple) and cut and cut[0] == "map":
        return cut_tensor(tensor, cut[1]).map(cut[2], cut[3])
    if isinstance(cut, tuple) and cut and cut[0] == "prefix":
        return cut_tensor(tensor, cut[1]).prefix()
    return tensor.mut.partition(cut)


class Read:
    """An argument of a `Tensor` parameter."""

    def __init__(self, view: View) -> None:
        self._view = view

    def __kernel_input__(self) -> View:
        return self._view


class Written:
    """An argument of a `Mut` parameter."""

    def __init__(self, view: View, cut: Any) -> None:
        self._tiled: TiledView = cut_tensor(Tensor(view), cut).__kernel_output__()

    def __kernel_output__(self) -> TiledView:
        return self._tiled


class Shared:
    """An argument of a `SharedMut` parameter."""

    def __init__(self, view: View) -> None:
        self._view: SharedView = Tensor(view).__kernel_shared__()

    def __kernel_shared__(self) -> SharedView:
        return self._view


class Placed:
    """The elements of one launch's argument: a remembered layout at an address."""

    __slots__ = ("address", "shape", "storage", "strides")

    def __init__(self, address: int, seen: View | TiledView) -> None:
        self.address = address
        self.shape = seen.shape
        self.strides = seen.strides
        self.storage = seen.storage


def check_tensor(tensor: Any, what: str) -> None:
    """Refuse a tensor that a launch cannot take as it is.

    Raises:
        ArgumentTypeError: it is no tensor, or has no memory of its own, such as a tensor of a trace.
        ArgumentError: it is on a device that kernels do not run on, requires a gradient, or is not dense.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentTypeError(f"{what} must be a tensor of PyTorch's, got {type(tensor).__name__}{_remedy(tensor)}")
    if type(tensor) not in PLAIN_TENSORS or torch._is_functional_tensor(tensor):
        name = type(tensor).__name__
        raise ArgumentTypeError(
            f"{what} is a {name}, which has no memory of its own. Under torch.compile and other transformations, "
            "launch inside an operator (cutile.torch.register), its backward included; of a wrapper, pass what it wraps"
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise ArgumentError(f"{what} is on the device {tensor.device}; kernels run on cpu and cuda")
    if tensor.layout is not torch.strided:
        raise ArgumentError(f"{what} has the layout {tensor.layout}; pass tensor.to_dense()")
    if tensor.is_conj() or tensor.is_neg():
        raise ArgumentError(f"{what} is a view that is negated when it is read; pass tensor.resolve_neg()")
    if torch.is_grad_enabled() and tensor.requires_grad:
        raise ArgumentError(
            f"{what} requires a gradient, and a launch records none: register an operator with backward=..., launch "
            "inside a torch.autograd.Function, or pass tensor.detach()"
        )


def _remedy(value: Any) -> str:
    if isinstance(value, Tensor):
        return "; one of ours is torch.from_dlpack(tensor)"
    return "; torch.from_numpy(array) takes an array" if type(value).__module__ == "numpy" else ""


def view_of(tensor: torch.Tensor, memory: TorchMemory, what: str) -> View:
    """The elements of a tensor.

    Raises:
        ArgumentTypeError: there is no such element type here.
    """
    dtype = torch_dtype(tensor.dtype)
    if dtype is None:
        raise ArgumentTypeError(f"{what}: no element type for {tensor.dtype}")
    shape = tuple(tensor.shape)
    as_shape(shape)
    return View(memory, tensor.data_ptr(), dtype, shape, tuple(tensor.stride()))
