"""What a random kernel is launched with. Each is data: its values come from the case's seed, its memory from a device.

An output is judged with all of the array that it lies in, so that what is written beside it is seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cutile import api
from cutile.dtypes import DTypeLike

NDArray = np.ndarray[Any, Any]
Layout = Literal["rows", "columns", "inner", "odd", "step"]
LAYOUTS: tuple[Layout, ...] = ("rows", "columns", "inner", "odd", "step")
"""How an array lies: whole; axes reversed; within a larger one, on 16 bytes or off them; every other element of one."""


def random_values(rng: np.random.Generator, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray:
    """Numbers small enough to be converted to any dtype: floats within 2, integers within 50."""
    if dtype.kind in ("float", "storage"):
        return rng.uniform(-2, 2, shape).astype(dtype.numpy)
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    return rng.integers(0 if dtype.kind == "uint" else -50, 50, shape).astype(dtype.numpy)


@dataclass(frozen=True)
class Place:
    """An argument on a device: what is passed, and the tensor to look at afterwards (None: nothing is written)."""

    passed: Any
    written: Any = None


@dataclass(frozen=True)
class Scalar:
    """A number."""

    name: str
    dtype: DTypeLike
    value: float

    @property
    def annotation(self) -> str:
        """What the kernel's signature says."""
        return self.dtype.name

    def place(self, rng: np.random.Generator) -> Place:
        """The number itself."""
        return Place(self.value)


@dataclass(frozen=True)
class Input:
    """A tensor to be read; `whole` makes its values whole numbers, `small` such from -2 to 2."""

    name: str
    dtype: DTypeLike
    shape: tuple[int, ...]
    layout: Layout = "rows"
    whole: bool = False
    small: bool = False

    @property
    def annotation(self) -> str:
        """What the kernel's signature says."""
        return "Tensor"

    def place(self, rng: np.random.Generator) -> Place:
        """The elements in an array of their layout."""
        return Place(self.look(self.base(rng)))

    def base(self, rng: np.random.Generator) -> Any:
        """The whole array on the device."""
        if self.small:
            return api.from_numpy(rng.integers(-2, 3, self._extents()).astype(self.dtype.numpy)).sync()
        values = random_values(rng, self.dtype, self._extents())
        return api.from_numpy(np.floor(values) if self.whole and self.dtype.kind == "float" else values).sync()

    def _extents(self) -> tuple[int, ...]:
        per_vector = 128 // self.dtype.bits
        match self.layout:
            case "rows":
                return self.shape
            case "columns":
                return self.shape[::-1]
            case "inner":
                *leading, last = self.shape
                return (*(each + 2 for each in leading), -(-last // per_vector) * per_vector + 2 * per_vector)
            case "odd":
                return tuple(each + 3 for each in self.shape)
            case "step":
                return tuple(2 * each for each in self.shape)

    def look(self, base: Any) -> Any:
        """The elements in the whole array."""
        match self.layout:
            case "rows":
                return base
            case "columns":
                return base.transpose()
            case "inner":
                starts = (*(1 for _ in self.shape[1:]), 128 // self.dtype.bits)
                return base[tuple(slice(a, a + each) for a, each in zip(starts, self.shape, strict=True))]
            case "odd":
                return base[tuple(slice(1, 1 + each) for each in self.shape)]
            case "step":
                return base[tuple(slice(None, None, 2) for _ in self.shape)]


@dataclass(frozen=True)
class Output(Input):
    """A partition to be written; with a map, the stream of tiles of so many blocks."""

    tile: tuple[int, ...] = ()
    prefix: bool = False
    map: tuple[int, ...] = ()
    blocks: int = 0

    @property
    def annotation(self) -> str:
        """What the kernel's signature says."""
        return "ct.MappedPartitionMut" if self.map else "Mut"

    def place(self, rng: np.random.Generator) -> Place:
        """The elements, cut into tiles."""
        base = self.base(rng)
        part = self.look(base).mut.partition(self.tile)
        if self.prefix:
            part = part.prefix()
        return Place(part.map(self.map, self.blocks) if self.map else part, base)


@dataclass(frozen=True)
class Pointer:
    """The address of an array; `written` says whether the kernel writes it."""

    name: str
    dtype: DTypeLike
    size: int
    written: bool = False

    @property
    def annotation(self) -> str:
        """What the kernel's signature says."""
        return "ct.Ptr"

    def place(self, rng: np.random.Generator) -> Place:
        """The array's address."""
        array = api.from_numpy(random_values(rng, self.dtype, (self.size,))).sync()
        return Place(array.device_pointer(), array)


@dataclass(frozen=True)
class Tensors:
    """A tensor of the addresses of tensors."""

    name: str
    dtype: DTypeLike
    count: int
    shape: tuple[int, ...]

    @property
    def annotation(self) -> str:
        """What the kernel's signature says."""
        return "Tensor"

    def place(self, rng: np.random.Generator) -> Place:
        """The tensors, and their addresses in memory."""
        each = [api.from_numpy(random_values(rng, self.dtype, self.shape)).sync() for _ in range(self.count)]
        return Place(api.device_vec(each).sync())


Argument = Tensors | Scalar | Input | Output | Pointer
