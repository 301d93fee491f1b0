"""Random numbers: `rand`, `randn`, `randn_f16`.

The Philox generators are cuRAND's on a GPU, NumPy's on the CPU.

The two give different numbers for one seed. Each gives the same numbers for a seed every time, whatever the number of
workers. Without a seed, each run of an op takes a new seed from the operating system.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from cuda_async import DeviceOp, ExecutionContext
from cuda_async.core.capture import is_traced, refuse_in_capture
from cutile.dtypes import DTypeLike, f16, f32, f64
from cutile.errors import ArgumentError, ArgumentTypeError, as_text
from cutile.host.creation import Create, convert
from cutile.host.memory import Array, array_of, runs_host_code
from cutile.host.shapes import DTypeSpec, ShapeLike, element_type, finite, float_type, new_shape, row_major_strides
from cutile.host.tensor import Tensor
from cutile.launch.views import View

__all__ = ("rand", "randn", "randn_f16")

_CHUNK = 1 << 16
"""Elements that one generator makes on the CPU. Another size gives other numbers for a seed."""


def rand(shape: ShapeLike, seed: int | None = None, dtype: DTypeSpec = f32) -> DeviceOp[Tensor]:
    """An op that yields random numbers, uniform in [0, 1).

    Args:
        shape: the extents, each at least 0.
        seed: 0 to 2**64 - 1; the same seed gives the same numbers. None gives other numbers at each run.
        dtype: f32 or f64.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        ArgumentError: an extent is negative, or the seed is out of range.

    Example:
        >>> from cutile import api
        >>> a, b = (api.rand((2, 3), seed=1).to_numpy().sync() for _ in range(2))
        >>> bool((a == b).all() and (a >= 0).all() and (a < 1).all())
        True
    """
    element = element_type(dtype, "rand")
    if element not in (f32, f64):
        raise ArgumentTypeError(
            f"rand: dtype: expected f32 or f64, got {element.name}, in which numbers below 1 would round to 1; "
            "convert what it yields if that is meant"
        )
    return _Uniform(new_shape(shape, "rand"), element, _seed(seed, "rand"))


def randn(
    mean: float, std: float, shape: ShapeLike, seed: int | None = None, dtype: DTypeSpec = f32
) -> DeviceOp[Tensor]:
    """An op that yields random numbers, normally distributed.

    Args:
        mean: the mean.
        std: the standard deviation, at least 0.
        shape, seed: as for `rand`.
        dtype: a floating-point type. All but f32 and f64 are drawn as f32, and converted as by `convert`.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        ArgumentError: an extent is negative, the seed is out of range, `std` is negative, or `mean` or `std` is
            infinite, NaN or out of the range of `dtype`.

    Example:
        >>> from cutile import api
        >>> api.randn(0.0, 1.0, (32, 64, 128), seed=7).sync().shape
        (32, 64, 128)
    """
    element = float_type(dtype, "randn")
    extents = new_shape(shape, "randn")
    center, width = finite(mean, "mean", "randn", element), finite(std, "std", "randn", element)
    if width < 0:
        raise ArgumentError(f"randn: std: expected a standard deviation of at least 0, got {as_text(std)}")
    if element in (f32, f64):
        return _Normal(extents, element, _seed(seed, "randn"), center, width)
    normal = _Normal(extents, f32, _seed(seed, "randn"), center, width)
    return normal.then(lambda tensor: convert(tensor, element))


def randn_f16(mean: float, std: float, shape: ShapeLike, seed: int | None = None) -> DeviceOp[Tensor]:
    """`randn` for f16; arguments and errors as there.

    Example:
        >>> from cutile import api
        >>> api.randn_f16(0.0, 1.0, (2, 3), seed=1).sync().dtype
        f16
    """
    return randn(mean, std, shape, seed, f16)


def _seed(seed: Any, function: str) -> int | None:
    if seed is None:
        return None
    try:
        number = operator.index(seed)
    except TypeError:
        raise ArgumentTypeError(f"{function}: seed: expected an integer or None, got {as_text(seed)}") from None
    if not 0 <= number < 1 << 64:
        raise ArgumentError(f"{function}: seed: expected 0 to 2**64 - 1, got {as_text(number)}")
    return number


class _Random(Create):
    """Random numbers."""

    __slots__ = ("_seed",)

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, seed: int | None) -> None:
        super().__init__(shape, dtype)
        self._seed = seed

    def write(self, context: ExecutionContext, view: View) -> None:
        if is_traced(context.stream):
            view.storage.use(context.stream, write=True)
            return
        refuse_in_capture(context.stream.recorder, "drawing random numbers")
        seed = int.from_bytes(os.urandom(8), "little") if self._seed is None else self._seed
        stream = context.stream
        view.storage.use(stream, write=True)
        if runs_host_code(context.device):
            flat = array_of(view).reshape(-1)
            stream.parallel_for(_in_chunks(flat, seed, self.draw), -(-flat.size // _CHUNK), 1)
            return
        from cuda_async.driver.cuda.curand import Generator

        self.generate(context, view, Generator.of(context.device.driver, stream.cu_stream()), seed)
        stream.sequence += 1

    def draw(self, generator: np.random.Generator, out: Array) -> None:
        """Fill `out`, on the CPU."""
        raise NotImplementedError

    def generate(self, context: ExecutionContext, view: View, generator: Any, seed: int) -> None:
        """Enqueue filling a contiguous view, on a GPU."""
        raise NotImplementedError


def _in_chunks(
    flat: Array, seed: int, draw: Callable[[np.random.Generator, Array], None]
) -> Callable[[int, int], None]:
    """The function that fills chunks, each from its own part of one random sequence."""

    def fill(start: int, stop: int) -> None:
        for chunk in range(start, stop):
            # Philox counts in four words of 64 bits. The chunk is the highest, so that no chunk counts into the next.
            generator = np.random.Generator(np.random.Philox(key=seed, counter=chunk << 192))
            draw(generator, flat[chunk * _CHUNK : (chunk + 1) * _CHUNK])

    return fill


class _Uniform(_Random):
    """Uniform in [0, 1)."""

    __slots__ = ()

    def label(self) -> str:
        return "rand"

    def draw(self, generator: np.random.Generator, out: Array) -> None:
        generator.random(out=out, dtype=out.dtype)

    def generate(self, context: ExecutionContext, view: View, generator: Any, seed: int) -> None:
        from cutile.host.kernels import half_open

        count = math.prod(view.shape)
        generator.uniform(view.address, count, view.dtype.bits, seed)
        # cuRAND's numbers are in (0, 1]: 1 becomes 0.
        context.execute(half_open(View(view.storage, view.offset, view.dtype, (count,), row_major_strides((count,)))))


class _Normal(_Random):
    """Normal."""

    __slots__ = ("_mean", "_std")

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, seed: int | None, mean: float, std: float) -> None:
        super().__init__(shape, dtype, seed)
        self._mean = mean
        self._std = std

    def label(self) -> str:
        return "randn"

    def spare_elements(self) -> int:
        return 1  # cuRAND draws normal numbers in pairs

    def draw(self, generator: np.random.Generator, out: Array) -> None:
        generator.standard_normal(out=out, dtype=out.dtype)
        out *= out.dtype.type(self._std)
        out += out.dtype.type(self._mean)

    def generate(self, context: ExecutionContext, view: View, generator: Any, seed: int) -> None:
        count = math.prod(view.shape)
        generator.normal(view.address, count + count % 2, view.dtype.bits, seed, self._mean, self._std)
