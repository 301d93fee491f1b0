"""The operations that make tensors and fill them: empty, full, arange.

On the CPU the workers fill; on a GPU memory is set by patterns of 1, 2 or 4 bytes, and what is no such pattern starts
as a block from the host that is copied onto what follows it, twice as much each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from cuda_async import DeviceOp, ExecutionContext, Use, upload
from cutile.conversion import convert as converted
from cutile.conversion import element
from cutile.dtypes import DTypeLike, f4e2m1fnx2, i64
from cutile.errors import ArgumentError, ArgumentTypeError
from cutile.host.memory import Array, array_of, for_rows, runs_host_code
from cutile.host.shapes import is_contiguous
from cutile.host.tensor import Tensor
from cutile.host.transfer import copy_into, fresh
from cutile.launch.views import View

__all__ = ("LONGEST_COUNT", "Arange", "Create", "Empty", "Fill", "Full", "as_element", "enqueue_fill", "fill_elements")

T = TypeVar("T")

_BLOCK_BYTES = 1 << 16
_LONGEST_PATTERN = 4
LONGEST_COUNT = 1 << 20  # on a GPU: up to here the host counts in less time than it takes to load a kernel


def as_element(value: Any, dtype: DTypeLike, function: str) -> Array:
    """A number as an array of no axes and this dtype.

    Raises:
        ArgumentTypeError: it is no number.
        ArgumentError: the dtype cannot hold it: a fraction in an integer, or out of range.
    """
    given = np.asarray(value)
    if given.ndim != 0 or given.dtype.kind not in "biufV":
        raise ArgumentTypeError(f"{function}: value: expected a number, got {value!r}")
    if dtype is f4e2m1fnx2 and given != 0:
        raise ArgumentError(
            f"{function}: value: f4e2m1fnx2 holds pairs, and one number is none, but for 0; give the bytes: "
            "api.from_numpy(np.full(shape, 0x22, np.uint8), f4e2m1fnx2)"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = given.astype(np.float64)
        made = element(given, dtype)
        back = made.astype(np.float64)
    if dtype.kind == "storage" and dtype.format is not None:
        limit, least = dtype.format.largest, 2.0**dtype.format.least_exponent
        lost = bool(np.isnan(back) != np.isnan(wanted)) or (dtype.format.nan is None and bool(np.isnan(wanted)))
        if lost or bool(np.abs(wanted) > limit) or (dtype.format.positive and wanted < least):
            raise ArgumentError(f"{function}: value: {value!r} is no value of {dtype.name}")
    elif dtype.kind != "float":
        whole = bool(np.isfinite(wanted)) and wanted == np.floor(wanted)
        if not whole or int(value) != int(made):
            raise ArgumentError(f"{function}: value: {value!r} is no value of {dtype.name}")
    elif bool(np.isinf(back)) and not bool(np.isinf(wanted)):
        raise ArgumentError(f"{function}: value: {value!r} is out of the range of {dtype.name}")
    return made


class Create(DeviceOp[Tensor]):
    """Allocates a tensor and writes it."""

    __slots__ = ("_dtype", "_shape")

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        super().__init__()
        self._shape = shape
        self._dtype = dtype

    def execute(self, context: ExecutionContext) -> Tensor:
        view = fresh(context, self._dtype, self._shape, spare=self.spare_elements())
        self.write(context, view)
        return Tensor(view)

    def spare_elements(self) -> int:
        """How many elements beyond the last one `write` may touch."""
        return 0

    def write(self, context: ExecutionContext, view: View) -> None:
        """Enqueue what gives the elements their values."""


class Empty(Create):
    """A tensor with undefined contents."""

    __slots__ = ()


class Full(Create):
    """A tensor with the same value everywhere."""

    __slots__ = ("_element", "_name")

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, element: Array, name: str) -> None:
        super().__init__(shape, dtype)
        self._element = element
        self._name = name

    def label(self) -> str:
        return self._name

    def write(self, context: ExecutionContext, view: View) -> None:
        enqueue_fill(context, view, self._element)


class Arange(Create):
    """A tensor that counts from 0, along one axis."""

    __slots__ = ()

    def write(self, context: ExecutionContext, view: View) -> None:
        if runs_host_code(context.device):
            array = array_of(view)
            view.storage.use(context.stream, write=True)
            for_rows(context.stream, view.shape, array.nbytes, _count(array, view.dtype))
            return
        if view.shape[0] > LONGEST_COUNT:
            from cutile.host.kernels import count_onto

            context.execute(count_onto(view))
            return
        values = converted(np.arange(view.shape[0]), i64, view.dtype)
        upload(context, view.storage, values.ctypes.data, values.nbytes, keep=values)


def _count(array: Array, dtype: DTypeLike) -> Callable[[int, int], None]:
    """A body that gives elements their own positions."""

    def count(start: int, stop: int) -> None:
        array[start:stop] = converted(np.arange(start, stop), i64, dtype)

    return count


class Fill(DeviceOp[T]):
    """Gives every element the same value, contiguous elements on a GPU; yields `result`."""

    __slots__ = ("_element", "_result", "_view")

    has_effects = True
    graph_node = True

    def __init__(self, view: View, element: Array, result: T) -> None:
        super().__init__()
        self._view = view
        self._element = element
        self._result = result
        self.lend(Use("tensor", view.storage, True, *view.byte_range))

    def execute(self, context: ExecutionContext) -> T:
        enqueue_fill(context, self._view, self._element)
        return self._result


def fill_elements(view: View, element: Array, result: T) -> DeviceOp[T]:
    """An op that gives every element the same value, and yields `result`.

    Raises:
        OwnershipError: an operation that has not finished uses them.
    """
    if is_contiguous(view.shape, view.strides) or runs_host_code(view.storage.device):
        return Fill(view, element, result)
    full = Full(view.shape, view.dtype, element, "full")
    return full.then(lambda source: copy_into(view, source.__kernel_input__())).map(lambda _: result)


def _pattern(element: Array) -> bytes:
    """The shortest run of bytes that, repeated, makes the element."""
    text = element.tobytes()
    for length in (1, 2, 4):
        if length < len(text) and text == text[:length] * (len(text) // length):
            return text[:length]
    return text


def enqueue_fill(context: ExecutionContext, view: View, element: Array) -> None:
    """Enqueue giving every element the same value; on a GPU contiguous elements only."""
    stream = context.stream
    pattern = _pattern(element)
    low, high = view.byte_range
    contiguous = is_contiguous(view.shape, view.strides)
    if contiguous and len(pattern) <= _LONGEST_PATTERN:
        view.storage.use(stream, write=True)
        stream.fill(view.address, high - low, pattern)
    elif runs_host_code(context.device):
        array = array_of(view)
        if contiguous:
            array = array.reshape(-1)
        view.storage.use(stream, write=True)
        for_rows(stream, array.shape, array.nbytes, _assign(array, element))
    else:
        _fill_by_doubling(context, view, high - low, element)


def _assign(array: Array, element: Array) -> Callable[[int, int], None]:
    """A body that fills rows."""

    def assign(start: int, stop: int) -> None:
        array[start:stop] = element

    return assign


def _fill_by_doubling(context: ExecutionContext, view: View, nbytes: int, element: Array) -> None:
    stream = context.stream
    block = np.full(min(nbytes, _BLOCK_BYTES) // element.itemsize, element)
    upload(context, view.storage, block.ctypes.data, block.nbytes, offset=view.offset, keep=block)
    done = block.nbytes
    while done < nbytes:
        more = min(done, nbytes - done)
        stream.copy(view.address + done, view.address, more)
        done += more
