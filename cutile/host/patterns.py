"""Tensors whose values follow from their positions: `linspace`, `eye`, `eye_rect`. (`arange` is in `creation.py`.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cuda_async import DeviceOp, ExecutionContext, upload
from cutile.conversion import convert, element
from cutile.dtypes import DTypeLike, f32, f64
from cutile.errors import ArgumentError, ArgumentTypeError
from cutile.host.checks import DTypeSpec, finite, float_type, new_shape, number_type
from cutile.host.creation import LONGEST_COUNT, Create, enqueue_fill
from cutile.host.memory import Array, array_of, for_rows, runs_host_code
from cutile.host.tensor import Tensor
from cutile.launch.views import View

__all__ = ("eye", "eye_rect", "linspace")


def linspace(start: float, stop: float, n: int, dtype: DTypeSpec = f32) -> DeviceOp[Tensor]:
    """An op that yields `n` numbers from `start` to `stop`, both included, in equal steps, as a tensor of one axis.

    Args:
        start: the first number; the only one where `n` is 1.
        stop: the last number.
        n: how many, at least 1.
        dtype: a floating-point type. The numbers are computed in f64 and rounded once.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        ArgumentError: `n` is not positive, or an end is infinite or NaN.

    Example:
        >>> from cutile import api
        >>> api.linspace(0, 1, 5).to_numpy().sync()
        array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    shape = new_shape(n, "linspace")
    if len(shape) != 1:
        raise ArgumentError(f"linspace: n: expected one number, got {n!r}")
    ends = finite(start, "start", "linspace"), finite(stop, "stop", "linspace")
    return _Linspace(shape, float_type(dtype, "linspace"), *ends)


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
        elif count <= LONGEST_COUNT:
            values = np.empty(count, view.dtype.numpy)
            self._ramp(values)(0, count)
            upload(context, view.storage, values.ctypes.data, values.nbytes, keep=values)
        else:
            from cutile.host.kernels import ramp_onto

            context.execute(ramp_onto(view, self._start, self._step))
            size = view.dtype.bits // 8
            last = View(view.storage, view.offset + (count - 1) * size, view.dtype, (), ())
            enqueue_fill(context, last, element(self._stop, view.dtype))  # not a rounding away from it

    def _ramp(self, array: Array) -> Callable[[int, int], None]:
        """A body that writes numbers."""
        count = array.shape[0]
        first, step, last, dtype = self._start, self._step, self._stop, self._dtype

        def ramp(start: int, stop: int) -> None:
            numbers = first + step * np.arange(start, stop, dtype=np.float64)
            if stop == count:
                numbers[-1] = last
            array[start:stop] = convert(numbers, f64, dtype)

        return ramp


def eye(n: int, dtype: DTypeSpec = f32) -> DeviceOp[Tensor]:
    """An op that yields the identity matrix with `n` rows. Arguments and errors as for `eye_rect`.

    Example:
        >>> from cutile import api
        >>> api.eye(2).to_numpy().sync()
        array([[1., 0.],
               [0., 1.]], dtype=float32)
    """
    return eye_rect(n, n, dtype)


def eye_rect(rows: int, cols: int, dtype: DTypeSpec = f32) -> DeviceOp[Tensor]:
    """An op that yields a matrix of ones where the row is the column, and zeros elsewhere.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        ArgumentError: `rows` or `cols` is not positive.

    Example:
        >>> from cutile import api
        >>> api.eye_rect(2, 3).to_numpy().sync()
        array([[1., 0., 0.],
               [0., 1., 0.]], dtype=float32)
    """
    return _Eye(new_shape((rows, cols), "eye_rect"), _with_zero(dtype))


def _with_zero(dtype: DTypeSpec) -> DTypeLike:
    chosen = number_type(dtype, "eye_rect")
    if chosen.format is not None and chosen.format.positive:
        raise ArgumentTypeError(f"eye_rect: dtype: {chosen.name} has no zero")
    return chosen


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
        elif rows * cols <= LONGEST_COUNT:
            values: np.ndarray[Any, np.dtype[Any]] = convert(np.eye(rows, cols), f64, view.dtype)
            upload(context, view.storage, values.ctypes.data, values.nbytes, keep=values)
        else:
            from cutile.host.kernels import ones_onto

            enqueue_fill(context, view, np.zeros((), view.dtype.numpy))
            context.execute(ones_onto(View(view.storage, view.offset, view.dtype, (min(rows, cols),), (cols + 1,))))


def _diagonal(array: Array, one: Array) -> Callable[[int, int], None]:
    """A body that writes rows."""

    def write(start: int, stop: int) -> None:
        array[start:stop] = 0
        ones = np.arange(start, min(stop, array.shape[1]))
        array[ones, ones] = one

    return write
