"""Bases of annotations and markers, and the launch arguments of each annotation."""

from __future__ import annotations

import types
from collections.abc import Awaitable
from enum import Enum
from typing import Any, Protocol


class Subscriptable:
    """Base of annotations with facts in brackets, as in `Tensor[f32, Dyn, 128]`.

    Where Python evaluates such an annotation, the result is an alias that keeps the facts.
    """

    def __class_getitem__(cls, facts: Any) -> Any:
        return types.GenericAlias(cls, facts)


class ReadOperand(Protocol):
    """A launch argument for a `Tensor`: a tensor, a view, a shared handle."""

    def __kernel_input__(self) -> Any: ...


class PointedOperand(Protocol):
    """A launch argument for a `Tensor` of addresses: a `DeviceVec` of tensors."""

    def __kernel_inputs__(self) -> Any: ...


class ForeignOperand(Protocol):
    """A tensor of PyTorch, CuPy, JAX or NumPy, which the kernel reads in place."""

    @property
    def __dlpack__(self) -> Any: ...


class NumbaOperand(Protocol):
    """A device array of Numba, which the kernel reads in place."""

    @property
    def __cuda_array_interface__(self) -> Any: ...


class WrittenOperand(Protocol):
    """A launch argument for a `Mut`: a partition."""

    def __kernel_output__(self) -> Any: ...


class SharedOperand(Protocol):
    """A launch argument for a `SharedMut`: a tensor, or `tensor.mut`."""

    def __kernel_shared__(self) -> Any: ...


_Read = ReadOperand | PointedOperand | ForeignOperand | NumbaOperand
TensorArgument = _Read | Awaitable[_Read]
"""For a `Tensor`, as type checkers see it. A `DeviceOp` that yields such an argument is awaitable."""
MutArgument = WrittenOperand | Awaitable[WrittenOperand]
"""For a `Mut`."""
SharedArgument = SharedOperand | Awaitable[SharedOperand]
"""For a `SharedMut`."""


class Marker(Enum):
    """Base of the markers: they print as kernels write them."""

    def __repr__(self) -> str:
        return f"ct.{type(self).__name__}.{self.name}"
