"""Who used which element of memory last, on which line, and how.

Plainly, or so that others may do so at the same time.

Memory is a tensor's (`Elements`), or what an address leads to that lies in none (`Loose`). Both count elements from 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ("NOBODY", "SEVERAL", "WAYS", "Elements", "History", "Loose", "Way", "addresses")

Array = np.ndarray[Any, Any]
Way = tuple[bool, bool]
"""Whether an access writes, and whether it is strong: atomic, or ordered otherwise than weakly."""

NOBODY, SEVERAL = 0, -1
WAYS: tuple[Way, ...] = ((False, False), (True, False), (False, True), (True, True))


class History:
    """The accesses of some elements.

    Of each way the block that was last, and the number of the place it was at.
    """

    def __init__(self, size: int) -> None:
        self.who: dict[Way, Array] = {way: np.zeros(size, np.int32) for way in WAYS}
        self.where: dict[Way, Array] = {way: np.zeros(size, np.int32) for way in WAYS}

    def name(self, element: int, verb: str) -> str:
        """The element, and what is done to it."""
        raise NotImplementedError

    def remember(self, touched: Array, way: Way, block: int, place: int) -> None:
        """Note an access by a block."""
        who = self.who[way]
        before = who[touched]
        who[touched] = np.where((before == NOBODY) | (before == block), block, SEVERAL)
        self.where[way][touched] = place


class Elements(History):
    """Those of a tensor.

    Args:
        tensor: the name.
        array: the elements.
        written: of each, whether anything ever wrote it.
    """

    def __init__(self, tensor: str, array: Array, written: Array) -> None:
        super().__init__(array.size)
        self.tensor = tensor
        self.array = array
        self.written = written
        self._addresses: Array | None = None
        self._order: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self.array.shape

    def index(self, element: int) -> tuple[int, ...]:
        """The index of an element in the tensor."""
        return tuple(int(each) for each in np.unravel_index(element, self.shape))

    def name(self, element: int, verb: str) -> str:
        return f"{self.tensor!r} is {verb} at {self.index(element)}"

    def addresses_of(self, touched: Array) -> Array:
        """Where elements are."""
        return addresses(self.array)[touched]

    def at(self, where: Array) -> Array:
        """The elements that hold the bytes at these addresses.

        -1 for those that lie elsewhere.
        """
        if self._addresses is None or self._order is None:
            places = addresses(self.array)
            self._order = np.argsort(places, kind="stable")
            self._addresses = places[self._order]
        position = np.searchsorted(self._addresses, where, side="right") - 1
        nearest = np.maximum(position, 0)
        inside = (position >= 0) & (where < self._addresses[nearest] + self.array.itemsize)
        return np.where(inside, self._order[nearest], -1)


class Loose(History):
    """Memory that raw addresses lead to, outside of all tensors."""

    def __init__(self) -> None:
        super().__init__(0)
        self._numbers: dict[int, int] = {}
        self._addresses: list[int] = []

    def at(self, addresses: Sequence[int]) -> Array:
        """The numbers of the addresses; new ones get the next."""
        for address in addresses:
            if self._numbers.setdefault(address, len(self._addresses)) == len(self._addresses):
                self._addresses.append(address)
        missing = len(self._addresses) - self.who[False, False].size
        if missing:
            for each in (self.who, self.where):
                for way in WAYS:
                    each[way] = np.append(each[way], np.zeros(missing + len(self._addresses), np.int32))
        return np.array([self._numbers[address] for address in addresses], np.int64)

    def name(self, element: int, verb: str) -> str:
        return f"the memory at {self._addresses[element]:#x} is {verb}"


def addresses(array: Array) -> Array:
    """The address of each element, in row-major order."""
    place = np.full((), array.__array_interface__["data"][0], np.int64)
    for extent, stride in zip(array.shape, array.strides, strict=True):
        place = place[..., None] + np.arange(extent, dtype=np.int64) * stride
    return place.ravel()
