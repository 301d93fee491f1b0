"""Operations that make tensors, and conversions to another dtype.

Patterns of 1, 2 or 4 bytes are the device's own fill. For longer patterns the workers of the CPU write the elements;
for a GPU the host writes a block, and copies on the device double the filled part until the tensor is full.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

import numpy as np

from cuda_async import Device, DeviceOp, ExecutionContext, Storage, Stream, Use, default_device, upload
from cuda_async.core.device import as_device
from cuda_async.foreign import import_stream
from cuda_async.site import site_of
from cuda_async.trace import AbsentStorage
from cutile.conversion import convert as converted
from cutile.conversion import element
from cutile.dtypes import DTypeLike, f4e2m1fnx2, f32, f64, i64
from cutile.errors import ArgumentError, ArgumentTypeError, as_text
from cutile.host.memory import Array, array_of, for_rows, runs_host_code
from cutile.host.outline import TensorOutline, tensor_outline
from cutile.host.shapes import (
    DTypeSpec,
    ShapeLike,
    element_type,
    finite,
    float_type,
    is_contiguous,
    new_shape,
    no_value,
    number_type,
    row_major_strides,
)
from cutile.host.tensor import Tensor
from cutile.host.transfer import fresh
from cutile.launch.views import View

__all__ = (
    "Arange",
    "Create",
    "Empty",
    "Fill",
    "Full",
    "MetaStorage",
    "MAX_COUNT_BY_HOST",
    "as_element",
    "convert",
    "enqueue_fill",
    "eye",
    "eye_rect",
    "fill_elements",
    "linspace",
    "meta",
)

T = TypeVar("T")

# Bytes that the host writes of a fill by doubling. The device then takes log2(size / 64 KiB) copies: 14 for 1 GiB.
_BLOCK_BYTES = 1 << 16
_MAX_PATTERN_BYTES = 4  # bytes that cuMemsetD32 repeats
MAX_COUNT_BY_HOST = 1 << 20  # elements that the host writes for a GPU in less time than a kernel takes to load


def as_element(value: Any, dtype: DTypeLike, function: str, name: str = "value") -> Array:
    """A number as an array of no axes and this dtype.

    The caller must not write to the array: other callers get the same one. Errors show `function` and `name`.

    Raises:
        ArgumentTypeError: it is no number.
        ArgumentError: the dtype cannot hold it: a fraction in an integer, or out of range.
    """
    kind = cast("type[Any]", type(value))
    if kind is float or (kind is int and -(2**63) <= value < 2**64):
        return _known_element(kind, repr(value), dtype, function, name)
    return _as_element(value, dtype, function, name)


@lru_cache(maxsize=256)  # a program has few fill values; an element is some hundred bytes
def _known_element(kind: type[Any], text: str, dtype: DTypeLike, function: str, name: str) -> Array:
    """`as_element` by a number's text, in which 0.0 and -0.0, which are equal, differ."""
    return _as_element(kind(text), dtype, function, name)


def _as_element(value: Any, dtype: DTypeLike, function: str, name: str) -> Array:
    if isinstance(value, int) and not -(2**63) <= value < 2**64:  # NumPy would make an array of objects
        if not dtype.is_float:
            raise no_value(f"{function}: {name}", value, dtype)
        try:
            value = float(value)
        except OverflowError:
            raise ArgumentError(f"{function}: {name}: {as_text(value)} is out of the range of {dtype.name}") from None
    # NumPy has an error of its own for lists of different lengths.
    array = None if type(value) in (list, tuple) else np.asarray(value)
    # The types of `ml_dtypes`, such as bfloat16, are of kind V. So are records, whose type is np.void.
    if array is None or array.ndim != 0 or array.dtype.kind not in "biufV" or array.dtype.type is np.void:
        raise ArgumentTypeError(f"{function}: {name}: expected a number, got {as_text(value)}")
    if dtype is f4e2m1fnx2 and array != 0:
        raise ArgumentError(
            f"{function}: {name}: f4e2m1fnx2 holds pairs, and one number is none, but for 0; give the bytes: "
            "api.from_numpy(np.full(shape, 0x22, np.uint8), f4e2m1fnx2)"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        # A float of more than 64 bits stays as it is: as a float64 it may become infinite or a whole number.
        number = array if array.dtype.kind == "f" and array.dtype.itemsize > 8 else array.astype(np.float64)
        result = element(array, dtype)
        result_f64 = result.astype(np.float64)
    # Formats that are only stored saturate: the number is compared with their limits, not with the result.
    if not dtype.computes and dtype.format is not None:
        limit, smallest = dtype.format.largest, 2.0**dtype.format.least_exponent
        nan_is_lost = bool(np.isnan(number)) and (dtype.format.nan is None or not np.isnan(result_f64))
        too_small = dtype.format.positive and number < smallest  # 0 and negative numbers, too
        if nan_is_lost or bool(np.abs(number) > limit) or too_small:
            raise no_value(f"{function}: {name}", value, dtype)
    elif not dtype.is_float:
        is_whole = bool(np.isfinite(number)) and number == np.floor(number)
        if not is_whole or int(value) != int(result):  # as Python's ints: `number` has 53 bits, integers up to 64
            raise no_value(f"{function}: {name}", value, dtype)
    elif bool(np.isinf(result_f64)) and not bool(np.isinf(number)):
        raise ArgumentError(f"{function}: {name}: {as_text(value)} is out of the range of {dtype.name}")
    return result


class Create(DeviceOp[Tensor]):
    """Allocates a tensor and writes it."""

    __slots__ = ("_dtype", "_shape")

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        # Frame 0 is this one, frame 1 the function of `api`, frame 2 the user's. With a class's own `__init__`, or a
        # further function of `api`, frame 2 is one of this package: `site_of` goes on to the first frame outside.
        super().__init__(site_of(sys._getframe(2)))  # pyright: ignore[reportPrivateUsage]
        self._shape = shape
        self._dtype = dtype

    def execute(self, context: ExecutionContext) -> Tensor:
        view = fresh(context, self._dtype, self._shape, spare=self.spare_elements())
        if 0 not in self._shape:
            self.write(context, view)
        return Tensor(view)

    def spare_elements(self) -> int:
        """Elements behind the last one that `write` needs memory for, too."""
        return 0

    def write(self, context: ExecutionContext, view: View) -> None:
        """Enqueue the writing of the elements. Here nothing is written."""


class Empty(Create):
    """A tensor with undefined contents."""

    __slots__ = ("_storage",)

    def outline(self) -> TensorOutline | None:
        return tensor_outline(self._dtype, self._shape)

    def fast_path(self, *, waited: bool) -> Callable[[Stream], Tensor] | None:
        outline = self.outline()
        return None if outline is None else partial(self._allocate, outline)

    def _allocate(self, outline: TensorOutline, stream: Stream) -> Tensor:
        storage = self._storage = self.allocate(stream, outline.nbytes)
        return outline.at(storage)

    # For launches that write the new tensor (`cutile.launch.lazy.NewMemory`). A static attribute, and not a method that
    # calls `Storage.allocate`: each launch would pay for that call.
    allocate = staticmethod(Storage.allocate)

    def written(self) -> Iterable[Storage]:
        storage = getattr(self, "_storage", None)  # set by the fast path
        return () if storage is None else (storage,)


class Full(Empty):
    """A tensor with the same value everywhere."""

    __slots__ = ("_element", "_name", "_period")

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, element: Array, name: str) -> None:
        super().__init__(shape, dtype)
        self._element = element
        self._period = _pattern(element)
        self._name = name

    def label(self) -> str:
        return self._name

    def outline(self) -> TensorOutline | None:
        return super().outline() if len(self._period) <= _MAX_PATTERN_BYTES else None

    def allocate(self, stream: Stream, nbytes: int) -> Storage:  # pyright: ignore[reportIncompatibleMethodOverride]
        storage = Storage.allocate(stream, nbytes)
        storage.use(stream, write=True)
        stream.fill(storage.address, nbytes, self._period)
        return storage

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
        if view.shape[0] > MAX_COUNT_BY_HOST:
            from cutile.host.kernels import count_onto

            context.execute(count_onto(view))
            return
        values = converted(np.arange(view.shape[0]), i64, view.dtype)
        upload(context, view.storage, values.ctypes.data, values.nbytes, keep=values)


def _count(array: Array, dtype: DTypeLike) -> Callable[[int, int], None]:
    """The function of `for_rows` that writes to each element its position."""

    def count(start: int, stop: int) -> None:
        array[start:stop] = converted(np.arange(start, stop), i64, dtype)

    return count


class Fill(DeviceOp[T]):
    """Gives every element the same value, and yields `result`.

    On a GPU the elements are contiguous.
    """

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
        ArgumentError: on a GPU, the elements are not contiguous and have more than 3 axes.
        OwnershipError: an operation that has not finished uses the elements.
    """
    if is_contiguous(view.shape, view.strides) or runs_host_code(view.storage.device):
        return Fill(view, element, result)
    from cutile.host.kernels import fill_onto

    return fill_onto(view, element, result)


def _pattern(element: Array) -> bytes:
    """The element's shortest period of 1, 2 or 4 bytes; all its bytes if it has none."""
    content = element.tobytes()
    for length in (1, 2, 4):  # the widths of cuMemsetD8, D16 and D32
        if length < len(content) and content == content[:length] * (len(content) // length):
            return content[:length]
    return content


def enqueue_fill(context: ExecutionContext, view: View, element: Array) -> None:
    """Enqueue a fill with one value. On a GPU the elements must be contiguous."""
    if 0 in view.shape:
        return
    stream = context.stream
    pattern = _pattern(element)
    low, high = view.byte_range
    contiguous = is_contiguous(view.shape, view.strides)
    if contiguous and len(pattern) <= _MAX_PATTERN_BYTES:
        context.overwrite(view.storage, low, high)
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
    """The function of `for_rows` that fills rows."""

    def assign(start: int, stop: int) -> None:
        array[start:stop] = element

    return assign


def _fill_by_doubling(context: ExecutionContext, view: View, nbytes: int, element: Array) -> None:
    stream = context.stream
    block = np.full(min(nbytes, _BLOCK_BYTES) // element.itemsize, element)
    upload(context, view.storage, block.ctypes.data, block.nbytes, offset=view.offset, keep=block)
    filled = block.nbytes
    while filled < nbytes:
        length = min(filled, nbytes - filled)
        stream.copy(view.address + filled, view.address, length)
        filled += length


def linspace(start: float, stop: float, n: int, dtype: DTypeSpec = f32) -> DeviceOp[Tensor]:
    """An op that yields `n` evenly spaced numbers from `start` to `stop`.

    Both ends are included. The result is a tensor of one axis.

    Args:
        start: the first number; the only one where `n` is 1.
        stop: the last number.
        n: how many; 0 for a tensor without elements.
        dtype: a floating-point type. The numbers are computed in f64 and rounded once.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        ArgumentError: `n` is negative; an end is infinite, NaN or out of the range of `dtype`; or `stop - start` is out
            of the range of f64.

    Example:
        >>> from cutile import api
        >>> api.linspace(0, 1, 5).to_numpy().sync()
        array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    shape = new_shape(n, "linspace")
    if len(shape) != 1:
        raise ArgumentError(f"linspace: n: expected one number, got {as_text(n)}")
    element = float_type(dtype, "linspace")
    first, last = finite(start, "start", "linspace", element), finite(stop, "stop", "linspace", element)
    if not math.isfinite(last - first):
        raise ArgumentError(f"linspace: stop - start: from {first!r} to {last!r} is more than f64 can hold")
    return _Linspace(shape, element, first, last)


class _Linspace(Create):
    """Numbers in equal steps."""

    __slots__ = ("_start", "_step", "_stop")

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, start: float, stop: float) -> None:
        super().__init__(shape, dtype)
        count = shape[0]
        self._start = start
        self._stop = stop if count > 1 else start
        self._step = (stop - start) / (count - 1) if count > 1 else 0.0

    def label(self) -> str:
        return "linspace"

    def write(self, context: ExecutionContext, view: View) -> None:
        count = view.shape[0]
        if runs_host_code(context.device):
            array = array_of(view)
            view.storage.use(context.stream, write=True)
            for_rows(context.stream, view.shape, array.nbytes, self._ramp(array))
        elif count <= MAX_COUNT_BY_HOST:
            values = np.empty(count, view.dtype.numpy)
            self._ramp(values)(0, count)
            upload(context, view.storage, values.ctypes.data, values.nbytes, keep=values)
        else:
            from cutile.host.kernels import ramp_onto

            context.execute(ramp_onto(view, self._start, self._step))
            size = view.dtype.bits // 8
            last = View(view.storage, view.offset + (count - 1) * size, view.dtype, (), ())
            # The last number is `stop` itself, which start + (n - 1) * step may miss by a rounding.
            enqueue_fill(context, last, element(self._stop, view.dtype))

    def _ramp(self, array: Array) -> Callable[[int, int], None]:
        """The function of `for_rows` that writes the numbers."""
        count = array.shape[0]
        first, step, last, dtype = self._start, self._step, self._stop, self._dtype

        def ramp(start: int, stop: int) -> None:
            numbers = first + step * np.arange(start, stop, dtype=np.float64)
            if stop == count:  # the last number is `stop` itself, which the sum may miss by a rounding
                numbers[-1] = last
            array[start:stop] = converted(numbers, f64, dtype)

        return ramp


def eye(n: int, dtype: DTypeSpec = f32) -> DeviceOp[Tensor]:
    """An op that yields the identity matrix with `n` rows.

    Arguments and errors as for `eye_rect`.

    Example:
        >>> from cutile import api
        >>> api.eye(2).to_numpy().sync()
        array([[1., 0.],
               [0., 1.]], dtype=float32)
    """
    return _eye(n, n, dtype, "eye")


def eye_rect(rows: int, cols: int, dtype: DTypeSpec = f32) -> DeviceOp[Tensor]:
    """An op that yields a matrix of ones on the diagonal, and zeros elsewhere.

    Args:
        rows, cols: the extents; 0 for a tensor without elements.
        dtype: the element type of the result. `f8e8m0fnu` is refused: it has no zero.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        ArgumentError: `rows` or `cols` is negative.

    Example:
        >>> from cutile import api
        >>> api.eye_rect(2, 3).to_numpy().sync()
        array([[1., 0., 0.],
               [0., 1., 0.]], dtype=float32)
    """
    return _eye(rows, cols, dtype, "eye_rect")


def _eye(rows: int, cols: int, dtype: DTypeSpec, function: str) -> DeviceOp[Tensor]:
    """`eye_rect` for a function of `api`, which errors name."""
    element = number_type(dtype, function)
    if element.format is not None and element.format.positive:
        raise ArgumentTypeError(f"{function}: dtype: {element.name} has no zero")
    return _Eye(new_shape((rows, cols), function), element)


class _Eye(Create):
    """Ones on the main diagonal, zeros elsewhere."""

    __slots__ = ()

    def label(self) -> str:
        return "eye"

    def write(self, context: ExecutionContext, view: View) -> None:
        rows, cols = view.shape
        if runs_host_code(context.device):
            array = array_of(view)
            view.storage.use(context.stream, write=True)
            for_rows(context.stream, view.shape, array.nbytes, _diagonal(array, element(1, view.dtype)))
        elif rows * cols <= MAX_COUNT_BY_HOST:
            values: np.ndarray[Any, np.dtype[Any]] = converted(np.eye(rows, cols), f64, view.dtype)
            upload(context, view.storage, values.ctypes.data, values.nbytes, keep=values)
        else:
            from cutile.host.kernels import ones_onto

            enqueue_fill(context, view, np.zeros((), view.dtype.numpy))
            # The diagonal as a view: one element every `cols` + 1.
            context.execute(ones_onto(View(view.storage, view.offset, view.dtype, (min(rows, cols),), (cols + 1,))))


def _diagonal(array: Array, number: Array) -> Callable[[int, int], None]:
    """The function of `for_rows` that writes rows of zeros with ones on the diagonal."""

    def write_rows(start: int, stop: int) -> None:
        array[start:stop] = 0
        ones = np.arange(start, min(stop, array.shape[1]))
        array[ones, ones] = number

    return write_rows


def convert(src: Tensor, dtype: DTypeSpec) -> DeviceOp[Tensor]:
    """An op that yields the elements as another dtype.

    The result is a new contiguous tensor of the same shape.

    As `convert_tile` in a kernel: floats round to nearest even, a float to an integer truncates and saturates (NaN
    gives 0), integers wrap, to bool is `!= 0`, and the floats of 8 and 4 bits saturate.

    Args:
        src: a tensor or view; lent to the op.
        dtype: the element type of the result.

    Raises:
        ArgumentTypeError: `src` is no tensor, or `dtype` no element type.
        ArgumentError: on a GPU, `src` is not contiguous and has more than 3 axes.
        OwnershipError: `src` is held, or an operation that has not finished writes it.

    Example:
        >>> from cutile import api, i32
        >>> api.convert(api.linspace(0, 3, 4).sync(), i32).to_numpy().sync()
        array([0, 1, 2, 3], dtype=int32)
    """
    if not isinstance(src, Tensor):
        raise ArgumentTypeError(
            f"convert: src: expected a tensor, got {type(src).__name__}; an op's result is converted in its "
            "then(lambda x: api.convert(x, dtype))"
        )
    element = number_type(dtype, "convert")
    view = src.__kernel_input__()
    number_type(view.dtype, "convert: src")
    if runs_host_code(view.storage.device):
        return _Convert(view, element)
    from cutile.host.kernels import convert_to_new

    return convert_to_new(view, element)


class _Convert(DeviceOp[Tensor]):
    """Elements as another dtype, by the workers of the CPU."""

    __slots__ = ("_dtype", "_view")

    def __init__(self, view: View, dtype: DTypeLike) -> None:
        super().__init__()
        self._view = view
        self._dtype = dtype
        self.lend(Use("src", view.storage, False, *view.byte_range))

    def label(self) -> str:
        return f"convert to {self._dtype.name}"

    def execute(self, context: ExecutionContext) -> Tensor:
        view, stream = self._view, context.stream
        result = fresh(context, self._dtype, view.shape)
        view.storage.use(stream, write=False)
        result.storage.use(stream, write=True)
        destination = array_of(result)
        for_rows(stream, view.shape, destination.nbytes, _cast(destination, array_of(view), view.dtype, self._dtype))
        return Tensor(result)


def _cast(destination: Array, source: Array, source_type: DTypeLike, dtype: DTypeLike) -> Callable[[int, int], None]:
    """The function of `for_rows` that converts rows."""

    def cast(start: int, stop: int) -> None:
        rows = ... if destination.ndim == 0 else slice(start, stop)  # an array of no axes takes no slice
        destination[rows] = converted(source[rows], source_type, dtype)

    return cast


# -- tensors without memory -------------------------------------------------------------------


class MetaStorage(AbsentStorage):
    """The storage of a tensor of `meta`: a size without memory."""

    __slots__ = ()

    reason = (
        "a tensor made by api.meta has no memory: it can be partitioned, viewed and rendered, and a kernel can be "
        "compiled for it; to run one, make the tensor with api.empty or api.zeros"
    )

    def __init__(self, device: Device, nbytes: int) -> None:
        super().__init__(import_stream(device), nbytes)  # a storage has a stream; nothing is submitted to this one


def meta(shape: ShapeLike, dtype: DTypeSpec = f32, *, device: Device | int | str | None = None) -> Tensor:
    """A tensor with a shape and a dtype, and no memory.

    Not an op: there is nothing to run.

    Its layout is that of `empty`: contiguous and aligned. So a kernel compiled for it serves tensors of `empty` too.

    Args:
        shape, dtype: as for `empty`.
        device: where it would be, as for `Tensor.to_device`; the default device if None.

    Raises:
        ArgumentTypeError, ArgumentError: as for `empty`, or `device` names no device.
        NoDeviceError: this machine has no such device.

    Example:
        >>> import cutile as ct
        >>> from cutile import api
        >>> @ct.entry
        ... def double(y: ct.Mut, x: ct.Tensor):
        ...     y.store(2 * ct.load_tile_like(x, y))
        >>> op = double(api.meta((64, 64)).partition((8, 8)), api.meta((64, 64)))
        >>> "double" in op.render("ir")
        True
        >>> op.discard()
    """
    element, extents = element_type(dtype, "meta"), new_shape(shape, "meta")
    nbytes = element.bits // 8
    for extent in extents:
        nbytes *= extent
    storage = MetaStorage(default_device() if device is None else as_device(device), nbytes)
    return Tensor(View(storage, 0, element, extents, row_major_strides(extents)))
