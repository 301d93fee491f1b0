"""Shapes, strides and element types: their checks, and their arithmetic.

Shapes are tuples of extents, each at least 0. Strides count elements. Indices are those of NumPy. The functions use no
memory and no device. An error names the function, the expected argument, and the actual one.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, cast

import numpy as np

from cutile.conversion import fits, short
from cutile.dtypes import DTypeLike, as_dtype, f4e2m1fnx2
from cutile.errors import ArgumentError, ArgumentIndexError, ArgumentTypeError, as_text

__all__ = (
    "ShapeLike",
    "Span",
    "as_shape",
    "axis_key",
    "index_layout",
    "is_contiguous",
    "is_same_shape",
    "new_bytes",
    "no_value",
    "reshape_shape",
    "row_major_strides",
    "slice_layout",
    "transpose_layout",
    "whole_shape",
    "DTypeSpec",
    "element_type",
    "finite",
    "float_type",
    "new_shape",
    "number_type",
)

Layout = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Offset of the first element in elements, shape, strides."""

ShapeLike = SupportsIndex | Sequence[SupportsIndex]
"""An extent, or a sequence of extents."""

Span = range | builtins.slice | tuple[int, int]
"""Part of an axis: `range(2, 6)`, `slice(2, 6)` or `(2, 6)`."""

_INTEGERS = frozenset((int,))

_MAX_EXTENT = 2**31 - 1  # kernels get extents as 32-bit integers


def _integers(shape: ShapeLike, argument: str) -> tuple[int, ...]:
    kind: object = type(shape)
    if kind is tuple and _INTEGERS.issuperset(map(type, cast("tuple[object, ...]", shape))):
        return cast("tuple[int, ...]", shape)
    items = (shape,) if hasattr(shape, "__index__") else shape
    try:
        return tuple(operator.index(item) for item in cast("Sequence[SupportsIndex]", items))
    except TypeError:
        raise ArgumentTypeError(
            f"{argument}: expected an extent or a sequence of extents such as (4, 8), got {as_text(shape)}"
        ) from None


def whole_shape(first: ShapeLike, more: tuple[SupportsIndex, ...], method: str) -> ShapeLike:
    """The shape from a method's arguments: a shape, or its extents, as in NumPy.

    Raises:
        ArgumentTypeError: a whole shape, and more; or an element type.

    >>> whole_shape((4, 8), (), "reshape"), whole_shape(4, (8,), "reshape")
    ((4, 8), (4, 8))
    """
    if isinstance(first, type | str | np.dtype):  # an element type, which NumPy's and PyTorch's `view` take
        raise ArgumentTypeError(
            f"{method}: expected a shape such as (4, 8), got {as_text(first)}; to read the same bytes as another type, "
            "write tensor.reinterpret(dtype, shape)"
        )
    if not more:
        return first
    if not hasattr(first, "__index__"):
        arguments = ", ".join(map(as_text, (first, *more)))
        raise ArgumentTypeError(f"{method}: expected a shape such as (4, 8), or its extents 4, 8, got {arguments}")
    return (cast("SupportsIndex", first), *more)


def as_shape(shape: ShapeLike, argument: str = "shape", *, least: int = 0) -> tuple[int, ...]:
    """Check a shape and return it as a tuple; `least` is the smallest extent.

    Raises:
        ArgumentTypeError: it is no integer and no sequence of integers.
        ArgumentError: an extent is below `least`, or over 2**31 - 1.

    >>> as_shape(5), as_shape([4, 8])
    ((5,), (4, 8))
    """
    extents = _integers(shape, argument)
    for axis, extent in enumerate(extents):
        if extent < least:
            what = "is empty" if extent == 0 else "is negative"
            raise ArgumentError(
                f"{argument}: axis {axis} of {as_text(extents)} {what}; every extent must be at least {least}"
            )
        if extent > _MAX_EXTENT:
            raise ArgumentError(
                f"{argument}: axis {axis} of {as_text(extents)} is longer than {_MAX_EXTENT}, "
                "the longest that a kernel can index; spread it over two axes"
            )
    return extents


def is_same_shape(shape: tuple[int, ...], request: Any) -> bool:
    """Whether `request`, which is unchecked, is the tuple of ints `shape`.

    A launch then takes the result that was cached for `shape`. Equality is not enough: (4.0, 8) equals (4, 8).

    >>> is_same_shape((4, 8), (4, 8)), is_same_shape((4, 8), (4.0, 8)), is_same_shape((4, 8), [4, 8])
    (True, False, False)
    """
    return shape == request and _INTEGERS.issuperset(map(type, request))


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of elements stored one after the other, the last axis fastest.

    >>> row_major_strides((2, 3, 4))
    (12, 4, 1)
    """
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)  # an empty axis counts as one element, as in NumPy
    return tuple(reversed(strides))


def new_bytes(dtype: DTypeLike, shape: tuple[int, ...], strides: tuple[int, ...], *, spare: int = 0) -> int:
    """Bytes of a new contiguous tensor, and of `spare` elements more.

    Never 0: empty tensors have addresses, too.
    """
    return dtype.bits // 8 * ((strides[0] * max(shape[0], 1) if shape else 1) + spare)


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements follow one another in row-major order.

    Axes of extent 1 do not matter.

    >>> is_contiguous((1, 3), (99, 1)), is_contiguous((3, 2), (1, 3))
    (True, False)
    """
    if 0 in shape:
        return True
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def reshape_shape(new: ShapeLike, old: tuple[int, ...], strides: tuple[int, ...], *, method: str) -> tuple[int, ...]:
    """Check that elements can take another shape without being moved; return it.

    One extent may be -1: it is computed from the number of elements and the other extents. Errors name `method`.

    Raises:
        ArgumentTypeError: `new` is no shape.
        ArgumentError: it holds another number of elements, or the elements are not contiguous.

    >>> reshape_shape((4, -1), (32,), (1,), method="reshape")
    (4, 8)
    """
    request = _integers(new, "shape")
    size = math.prod(old)
    unknown = request.count(-1)
    rest = -math.prod(request)  # with one -1: the product of the other extents, since -1 changes the sign
    inferred = size // rest if unknown == 1 and rest > 0 and size % rest == 0 else -1
    extents = tuple(inferred if extent == -1 else extent for extent in request)
    if -1 not in extents:
        as_shape(extents)
    if math.prod(extents) != size or -1 in extents:
        count = "" if unknown else f" with {math.prod(extents)} elements"
        raise ArgumentError(
            f"{method}: shape {as_text(request)}{count} does not fit a tensor of shape {as_text(old)} "
            f"with {size} elements; the number of elements must stay the same"
        )
    if not is_contiguous(old, strides):
        raise ArgumentError(
            f"{method}: the elements of a tensor of shape {as_text(old)} and strides {as_text(strides)} do not "
            f"follow one another in memory, so they cannot take shape {as_text(request)} without being moved; "
            "dup() gives a contiguous copy"
        )
    return extents


def transpose_layout(axes: ShapeLike | None, shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
    """The axes in another order; None reverses them.

    Raises:
        ArgumentTypeError: `axes` are no integers.
        ArgumentError: `axes` is no permutation of the axes.
    """
    rank = len(shape)
    request = range(rank)[::-1] if axes is None else _integers(axes, "axes")
    order = tuple(axis + rank if axis < 0 else axis for axis in request)
    if sorted(order) != list(range(rank)):
        raise ArgumentError(
            f"transpose: axes {as_text(axes)} are no permutation of the {rank} axes of shape {as_text(shape)}"
        )
    return 0, tuple(shape[axis] for axis in order), tuple(strides[axis] for axis in order)


def slice_layout(spans: Sequence[Any], shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
    """A rectangular part of a tensor.

    `spans` has one span for each axis from the first on, or one list of these. Further axes are taken whole. Bounds are
    not clipped: a span outside its axis is an error.

    Raises:
        ArgumentTypeError: a span is no range, slice or pair.
        ArgumentError: there are more spans than axes, or one is outside its axis.
    """
    if len(spans) == 1 and isinstance(spans[0], list):
        spans = cast("list[Any]", spans[0])
    if len(spans) > len(shape):
        raise ArgumentError(
            f"slice: {len(spans)} ranges for the {len(shape)} axes of shape {as_text(shape)}; at most one each"
        )
    offset = 0
    extents = list(shape)
    for axis, span in enumerate(spans):
        start, stop = _bounds(span, shape[axis], axis)
        if not 0 <= start <= stop <= shape[axis]:
            raise ArgumentError(
                f"slice: range {start}:{stop} of axis {axis}, which has {shape[axis]} elements, is out of bounds"
            )
        # An empty part at the axis's end keeps the offset: behind the last element there may be no memory.
        offset += start * strides[axis] if start < shape[axis] else 0
        extents[axis] = stop - start
    return offset, tuple(extents), strides


def _bounds(span: Any, extent: int, axis: int) -> tuple[int, int]:
    part: Any = span
    if isinstance(span, range | slice):
        start = 0 if part.start is None else part.start
        stop = extent if part.stop is None else part.stop
        step = 1 if part.step is None else part.step
    elif isinstance(span, tuple | list) and len(part) == 2:
        (start, stop), step = part, 1
    else:
        raise ArgumentTypeError(
            f"slice: axis {axis}: expected range(start, stop) or (start, stop), got {as_text(span)}"
        )
    try:
        start, stop, step = map(operator.index, (start, stop, step))
    except TypeError:  # also of an array of several numbers, although it has `__index__`
        raise ArgumentTypeError(
            f"slice: axis {axis}: expected whole numbers, as in (2, 6), got {as_text(span)}"
        ) from None
    if step != 1:
        raise ArgumentError(f"slice: axis {axis} has a step of {as_text(step)}; write tensor[start:stop:step] for that")
    return start, stop


def axis_key(shape: tuple[int, ...], *arguments: Any, **named: Any) -> tuple[slice, ...]:
    """The key of `tensor[:, start:stop]`, for any axis.

    Args:
        shape: the tensor's.
        arguments, named: the axis, the start and the stop, as `Tensor.slice` got them.

    Raises:
        ArgumentTypeError: there is no axis, or an argument too many.
        ArgumentError: there is no such axis.

    >>> axis_key((4, 8), 1, 2, stop=6)
    (slice(None, None, None), slice(2, 6, None))
    """
    try:
        number, start, stop = _axis_and_bounds(*arguments, **named)
    except TypeError:
        words = ", ".join([*map(as_text, arguments), *(f"{name}={as_text(value)}" for name, value in named.items())])
        raise ArgumentTypeError(
            f"slice: expected an axis and its bounds, as in slice(0, 2, 6) or slice(0, stop=6), got slice({words})"
        ) from None
    if not -len(shape) <= number < len(shape):
        raise ArgumentError(
            f"slice: axis {as_text(number)} of a tensor with {len(shape)} axes, of shape {as_text(shape)}"
        )
    return (slice(None),) * (number % len(shape)) + (slice(start, stop),)


def _axis_and_bounds(axis: SupportsIndex, start: Any = None, stop: Any = None) -> tuple[int, Any, Any]:
    return operator.index(axis), start, stop


def index_layout(key: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
    """The part of a tensor that `tensor[key]` selects.

    A key has integers, slices with any step, `...` and None, as in NumPy.

    Raises:
        ArgumentIndexError: an integer is out of bounds, or there are more indices than axes.
        ArgumentTypeError: the key holds something else, such as an array, or `...` twice; or a slice has other bounds
            than integers.
        ValueError: a slice has the step 0.
    """
    items = list(cast("tuple[Any, ...]", key)) if isinstance(key, tuple) else [key]
    count = sum(item is not None and item is not Ellipsis for item in items)
    ellipses = sum(item is Ellipsis for item in items)  # by `is`: arrays compare their elements by `==`
    if ellipses > 1:
        raise ArgumentTypeError("a tensor's index may hold one `...`")
    if count > len(shape):
        raise ArgumentIndexError(
            f"{count} indices for the {len(shape)} axes of shape {as_text(shape)}; at most one each"
        )
    if not ellipses:
        items.append(Ellipsis)
    offset, axis = 0, 0
    extents: list[int] = []
    steps: list[int] = []
    for item in items:
        if item is None:
            extents.append(1)
            steps.append(0)  # any stride would do for an extent of 1
        elif item is Ellipsis:
            end = axis + len(shape) - count
            extents += shape[axis:end]
            steps += strides[axis:end]
            axis = end
        elif isinstance(item, slice):
            start, stop, step = _clipped(cast("Any", item), shape[axis], axis)
            extent = len(range(start, stop, step))
            offset += start * strides[axis] if extent else 0  # an empty part may begin behind the last element
            extents.append(extent)
            steps.append(strides[axis] * step)
            axis += 1
        else:
            offset += _position(item, shape[axis], axis) * strides[axis]
            axis += 1
    return offset, tuple(extents), tuple(steps)


def _clipped(item: slice, extent: int, axis: int) -> tuple[int, int, int]:
    try:
        return item.indices(extent)
    except TypeError:
        raise ArgumentTypeError(
            f"index of axis {axis}: expected whole numbers in a slice, as in tensor[2:6], got {as_text(item)}"
        ) from None


def _position(item: Any, extent: int, axis: int) -> int:
    try:
        if isinstance(item, bool):  # NumPy's masks
            raise TypeError
        position = operator.index(item)
    except TypeError:  # also of an array of several numbers, although it has `__index__`
        raise ArgumentTypeError(
            f"index {as_text(item)} of axis {axis}: expected an integer, a slice, ... or None; a tensor is not indexed "
            "by arrays on the host (write a kernel, or index what to_numpy() gives)"
        ) from None
    if not -extent <= position < extent:
        raise ArgumentIndexError(
            f"index {as_text(position)} of axis {axis} is out of bounds: it has {extent} elements, {-extent} to "
            f"{extent - 1}"
        )
    return position % extent


DTypeSpec = DTypeLike | str | np.dtype[Any] | type[Any]
"""How a caller names an element type: `f32`, `"f32"` or a NumPy dtype."""


def element_type(dtype: DTypeSpec, function: str) -> DTypeLike:
    """The element type that `dtype` names.

    Raises:
        ArgumentTypeError: `dtype` names no element type.
    """
    try:
        return as_dtype(dtype)
    except TypeError as error:
        hint = "; a shape is one argument, such as (4, 8)" if isinstance(dtype, int) else ""
        raise ArgumentTypeError(f"{function}: dtype: {error}{hint}") from None


def no_value(what: str, value: object, dtype: DTypeLike) -> ArgumentError:
    """The error for a number that an element type lacks.

    `what` is the function and its argument.
    """
    words = "False and True" if dtype.kind == "bool" else "numbers"
    if dtype.is_integer:
        words = f"the integers from {dtype.min} to {dtype.max}"
    elif dtype.format is not None:
        words = f"numbers up to {dtype.format.largest:g}{' and no NaN' * (dtype.format.nan is None)}"
        if dtype.format.positive:
            most = math.frexp(dtype.format.largest)[1] - 1
            words = f"the powers of two from 2**{dtype.format.least_exponent} to 2**{most}"
    return ArgumentError(f"{what}: {as_text(value)} is no value of {dtype.name}, which has {words}")


def float_type(dtype: DTypeSpec, function: str) -> DTypeLike:
    """The floating-point type that `dtype` names.

    It may be a type that kernels store and do not compute with, such as the floats of 8 bits.

    Raises:
        ArgumentTypeError: `dtype` names no floating-point type of single numbers.
    """
    element = element_type(dtype, function)
    if element.format is None:
        raise ArgumentTypeError(f"{function}: dtype: expected a floating-point type, got {element.name}")
    return element


def number_type(dtype: DTypeSpec, function: str) -> DTypeLike:
    """The element type that `dtype` names, if an element is one number.

    Raises:
        ArgumentTypeError: `dtype` names no element type, or pairs: f4e2m1fnx2.
    """
    element = element_type(dtype, function)
    if element is f4e2m1fnx2:
        raise ArgumentTypeError(
            f"{function}: dtype: f4e2m1fnx2 holds pairs, not numbers; make f4e2m1fn and put them together in a kernel "
            "with ct.pack, or take the bytes: tensor.reinterpret(f4e2m1fnx2, shape)"
        )
    return element


def new_shape(shape: Any, function: str) -> tuple[int, ...]:
    """Check the shape of a tensor to be made; errors name `function`.

    Raises:
        ArgumentTypeError: `shape` is no shape.
        ArgumentError: an extent is negative or too large.
    """
    try:
        return as_shape(shape)
    except ArgumentTypeError:
        raise ArgumentTypeError(
            f"{function}: shape: expected an extent or a sequence of extents such as (4, 8), got {as_text(shape)}"
        ) from None
    except ArgumentError as error:
        raise ArgumentError(f"{function}: {error}") from None


def finite(value: Any, argument: str, function: str, dtype: DTypeLike) -> float:
    """A finite number in the range of a dtype.

    Formats that are only stored saturate, and take any finite number.

    Raises:
        ArgumentTypeError: it is no number.
        ArgumentError: it is infinite or NaN, or becomes infinite in the dtype.
    """
    try:
        if isinstance(value, str | bytes | np.complexfloating):  # `float` would read texts, and drop imaginary parts
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{function}: {argument}: expected a number, got {as_text(value)}") from None
    except OverflowError:
        raise ArgumentError(
            f"{function}: {argument}: {short(cast('int', value))} is more than a float can hold"
        ) from None
    if not math.isfinite(number):
        raise ArgumentError(f"{function}: {argument}: expected a finite number, got {as_text(value)}")
    if not fits(number, dtype):
        raise ArgumentError(f"{function}: {argument}: {as_text(value)} is out of the range of {dtype.name}")
    return number
