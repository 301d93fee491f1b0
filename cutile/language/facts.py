"""Bases of annotations and markers, and what launches take for each annotation."""

from __future__ import annotations

import types
from collections.abc import Awaitable
from enum import Enum
from typing import Any, Protocol


class Subscriptable:
    """Base of annotations with facts in brackets, as in `Tensor[f32, Dyn, 128]`.

    Python may evaluate such an annotation: it gives an alias that keeps the facts.
    """

    def __class_getitem__(cls, facts: Any) -> Any:
        return types.GenericAlias(cls, facts)


class ReadOperand(Protocol):
    """What a launch takes for a `Tensor`: a tensor, a view, a shared handle."""

    def __kernel_input__(self) -> Any: ...


class PointedOperand(Protocol):
    """A handle of several tensors by their addresses."""

    def __kernel_inputs__(self) -> Any: ...


class ForeignOperand(Protocol):
    """Another library's tensor, which is read as it is: PyTorch, CuPy, JAX, NumPy."""

    @property
    def __dlpack__(self) -> Any: ...


class NumbaOperand(Protocol):
    """A device array of Numba's."""

    @property
    def __cuda_array_interface__(self) -> Any: ...


class WrittenOperand(Protocol):
    """What a launch takes for a `Mut`: a partition."""

    def __kernel_output__(self) -> Any: ...


class SharedOperand(Protocol):
    """What a launch takes for a `SharedMut`: a tensor, or what `tensor.mut` is."""

    def __kernel_shared__(self) -> Any: ...


_Read = ReadOperand | PointedOperand | ForeignOperand | NumbaOperand
TensorArgument = _Read | Awaitable[_Read]
"""For a `Tensor`, as type checkers see it; an op that yields one is awaitable."""
MutArgument = WrittenOperand | Awaitable[WrittenOperand]
"""For a `Mut`."""
SharedArgument = SharedOperand | Awaitable[SharedOperand]
"""For a `SharedMut`."""


class Marker(Enum):
    """Base of the markers: they print as kernels write them."""

    def __repr__(self) -> str:
        return f"ct.{type(self).__name__}.{self.name}"
