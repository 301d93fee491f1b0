"""What a launch needs to know of a tensor, and how an object says that it is one.

An object that may be passed to a `Tensor` parameter has `__kernel_input__`, one for a `Mut` parameter
`__kernel_output__`. The op gives back the same object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cuda_async import Storage
from cutile.dtypes import DTypeLike


@dataclass(frozen=True, slots=True)
class View:
    """Elements in memory.

    Attributes:
        storage: the memory, which orders its users.
        offset: bytes from its start to the first element.
        dtype: the element type.
        shape: extents, each at least 1.
        strides: in elements, one per axis; 0 repeats (read-only views), negative runs backwards.
    """

    storage: Storage
    offset: int
    dtype: DTypeLike
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def address(self) -> int:
        """The address of the first element (the one at index 0 of every axis)."""
        return self.storage.address + self.offset

    def byte_range(self) -> tuple[int, int]:
        """The first byte, and the one after the last, that any element occupies, counted from the storage's start."""
        size = self.dtype.bits // 8
        reach = [(extent - 1) * stride * size for extent, stride in zip(self.shape, self.strides, strict=True)]
        low = sum(each for each in reach if each < 0)
        high = sum(each for each in reach if each > 0)
        return self.offset + low, self.offset + high + size


@dataclass(frozen=True, slots=True)
class TiledView:
    """A view cut into tiles of `tile`: what a `Mut` parameter takes."""

    view: View
    tile: tuple[int, ...]


@runtime_checkable
class KernelInput(Protocol):
    """What a `Tensor` parameter takes."""

    def __kernel_input__(self) -> View:
        """The elements to be read. Raises OwnershipError where the object no longer holds them."""
        ...


@runtime_checkable
class KernelOutput(Protocol):
    """What a `Mut` parameter takes."""

    def __kernel_output__(self) -> TiledView:
        """The elements to be read and written. Raises OwnershipError where the object no longer holds them."""
        ...
