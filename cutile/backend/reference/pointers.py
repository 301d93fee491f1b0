"""Memory by address, lane by lane: in row-major order, each lane whole before the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cutile.backend.reference.memory import Array, array_at
from cutile.dtypes import DTypeLike, from_numpy


def _lanes(pointers: Array, mask: Array) -> Iterator[tuple[tuple[int, ...], int]]:
    """The index and the address of every lane whose bit is set."""
    for index in np.ndindex(pointers.shape):
        if mask[index]:
            yield index, int(pointers[index])


def _element(address: int, dtype: DTypeLike) -> Array:
    return array_at(address, dtype, (), ())


def load_lanes(pointers: Array, mask: Array, pad: Array) -> Array:
    """The elements at the pointers; `pad` where the mask is not set."""
    found = np.array(pad)
    for index, address in _lanes(pointers, mask):
        found[index] = _element(address, from_numpy(found.dtype))
    return found


def store_lanes(pointers: Array, value: Array, mask: Array) -> None:
    """Write the elements at the pointers."""
    for index, address in _lanes(pointers, mask):
        _element(address, from_numpy(value.dtype))[...] = value[index]


def update_lanes(change: Callable[..., Any], pointers: Array, mask: Array, *operands: Array) -> Array:
    """Change the elements at the pointers to `change(old, *operands)`; the old ones, 0 where the mask is not set."""
    before = np.zeros(pointers.shape, operands[0].dtype)
    dtype = from_numpy(before.dtype)
    for index, address in _lanes(pointers, mask):
        place = _element(address, dtype)
        before[index] = place
        place[...] = change(np.array(place), *(each[index] for each in operands))
    return before
