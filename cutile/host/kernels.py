"""Kernels of the host's own operations on a GPU.

They do the work that the driver's copies and fills cannot do.

The module is imported when first needed. Its kernels are compiled at their first launch, as any kernel.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from cuda_async import DeviceOp
from cuda_async.combinators import Titled
from cutile.backend.interface import CompileOptions
from cutile.block_scan import scan_unchecked
from cutile.compile.facts import constant_key
from cutile.dtypes import DTypeLike, f32, f64, u64
from cutile.entry import Kernel, entry
from cutile.errors import ArgumentError, ArgumentTypeError, as_text
from cutile.host.creation import Empty, Full, as_element
from cutile.host.shapes import is_contiguous, row_major_strides
from cutile.host.tensor import Tensor as HostTensor
from cutile.language import (
    Const,
    Mut,
    SharedMut,
    Tensor,
    addf,
    addi,
    andi,
    constant,
    convert_tile,
    extract,
    get_tile_block_id,
    iota,
    load_tile_like,
    max_tile,
    maxf,
    maxi,
    min_tile,
    minf,
    mini,
    mulf,
    muli,
    ori,
    reverse,
    select,
    xori,
)
from cutile.language import scan as scan_of_tile
from cutile.launch.kernel_op import KernelOp
from cutile.launch.views import TiledView, View

__all__ = (
    "SCAN_TILES",
    "ScanSizes",
    "ScanTiles",
    "below_one",
    "cast",
    "convert_to_new",
    "count",
    "count_onto",
    "fill_onto",
    "gather",
    "gather_onto",
    "gather_to_new",
    "half_open",
    "knows_scan_registers",
    "ones",
    "ones_onto",
    "ramp",
    "ramp_onto",
    "scan_kernel",
    "scan_launch",
    "scan_op",
    "scan_sizes",
)

T = TypeVar("T")

_TILES = {1: (1024,), 2: (32, 64), 3: (1, 32, 64)}  # by rank


@entry
def gather(dst: Mut, src: Tensor):
    """dst = src, whatever their strides."""
    dst.store(load_tile_like(src, dst))


@entry
def count(dst: Mut):
    """dst[i] = i."""
    (n,) = dst.shape
    block, _, _ = get_tile_block_id()
    dst.store(convert_tile(iota((n,)) + block * n, dst.dtype))


@entry
def ramp(dst: Mut, start: f64, step: f64):
    """dst[i] = start + i * step."""
    (n,) = dst.shape
    block, _, _ = get_tile_block_id()
    dst.store(convert_tile(convert_tile(iota((n,)) + block * n, f64) * step + start, dst.dtype))


@entry
def ones(dst: Mut):
    """dst = 1."""
    dst.store(constant(1, dst.shape, dst.dtype))


@entry
def below_one(dst: Mut):
    """dst = 0 where it is 1: numbers in (0, 1] become numbers in [0, 1)."""
    number = dst.load()
    dst.store(select(number < 1, number, number - number))  # 0 of the tensor's dtype


@entry
def cast(dst: Mut, src: Tensor):
    """dst = src, as another dtype."""
    dst.store(convert_tile(load_tile_like(src, dst), dst.dtype))


class _Elements:
    """Elements as an argument of a kernel here: to be read, or in tiles to be written."""

    def __init__(self, view: View) -> None:
        self.view = view

    def __kernel_input__(self) -> View:
        return self.view

    def __kernel_output__(self) -> TiledView:
        return TiledView(self.view, _tile(self.view))


def _tile(view: View) -> tuple[int, ...]:
    tile = _TILES.get(len(view.shape))
    if tile is None:
        raise ArgumentError(
            f"elements of shape {view.shape} and strides {view.strides} are not contiguous, and a GPU kernel writes at "
            f"most {max(_TILES)} axes; take slices of fewer axes"
        )
    return tile


def count_onto(destination: View) -> DeviceOp[None]:
    """An op that gives the elements of a view of one axis their own positions.

    Raises:
        OwnershipError: an operation that has not finished uses them.
    """
    return count(_Elements(destination)).map(lambda done: None)


def ramp_onto(destination: View, start: float, step: float) -> DeviceOp[None]:
    """An op that writes numbers in equal steps to a view of one axis.

    Raises as `count_onto`.
    """
    return ramp(_Elements(destination), start, step).map(lambda done: None)


def ones_onto(destination: View) -> DeviceOp[None]:
    """An op that sets the elements of a view of one axis to 1. Raises as `count_onto`."""
    return ones(_Elements(destination)).map(lambda done: None)


def half_open(destination: View) -> DeviceOp[None]:
    """An op that replaces 1 by 0 in a view of one axis. Raises as `count_onto`."""
    return below_one(_Elements(destination)).map(lambda done: None)


def gather_onto(destination: View, source: View) -> DeviceOp[None]:
    """An op that copies elements onto others of the same shape and dtype.

    Raises:
        ArgumentError: they have more than 3 axes.
        OwnershipError: they overlap, or an operation that has not finished uses one of the two.
    """
    return Titled(gather(_Elements(destination), _Elements(source)), lambda done: None, "memcpy")


def fill_onto(destination: View, element: np.ndarray[Any, Any], result: T) -> DeviceOp[T]:
    """An op that gives elements the same value, and yields `result`.

    Raises as `gather_onto`.
    """
    value = Full(destination.shape, destination.dtype, element, "full")
    return Titled(gather(_Elements(destination), value), lambda done: result, "fill")


def gather_to_new(source: View, make: Callable[[View], T]) -> DeviceOp[T]:
    """An op that copies elements to a new contiguous tensor, and yields `make` of it.

    Raises:
        ArgumentError: they have more than 3 axes.
        OwnershipError: an operation that has not finished writes them.
    """
    return Titled(_to_new(gather, source, source.dtype), lambda tensor: make(tensor.__kernel_input__()), "dup")


def convert_to_new(source: View, dtype: DTypeLike) -> DeviceOp[HostTensor]:
    """An op that copies elements to a new contiguous tensor of another dtype.

    Raises:
        ArgumentError: they are not contiguous and have more than 3 axes.
        OwnershipError: an operation that has not finished writes them.
    """
    shape = source.shape
    if len(shape) == 1 or not is_contiguous(shape, source.strides):
        return Titled(_to_new(cast, source, dtype), lambda tensor: tensor, "convert")
    flat = (math.prod(shape),)
    source = View(source.storage, source.offset, source.dtype, flat, row_major_strides(flat))
    return Titled(_to_new(cast, source, dtype), lambda tensor: tensor.reshape(shape), "convert")


def _to_new(kernel: Kernel, source: View, dtype: DTypeLike) -> DeviceOp[HostTensor]:
    """An op that yields a new tensor of the source's shape.

    `kernel(new, source)` writes it.
    """
    new = Empty(source.shape, dtype).partition(_tile(source))
    return kernel(new, _Elements(source)).first().unpartition()


@dataclass(frozen=True)
class ScanTiles:
    """The tiles of `scan_kernel` on one kind of device, for 256 threads.

    Attributes:
        shared_bytes: bytes of shared memory that a multiprocessor of the device has at least.
        elements: elements of a tile, by the bits of an element. f16 and bf16 are scanned in f32, and count as 32 bits.
        occupancy: tile blocks on a multiprocessor, by the bits of an element. Some load while others wait for totals.
    """

    shared_bytes: int
    elements: dict[int, int]
    occupancy: dict[int, int]


_OCCUPANCY_OF_4, _OCCUPANCY_OF_3 = {8: 4, 16: 4, 32: 4, 64: 3}, {8: 3, 16: 3, 32: 3, 64: 3}  # by the bits of an element
SCAN_TILES = (
    ScanTiles(228 << 10, {8: 8192, 16: 8192, 32: 10240, 64: 4096}, _OCCUPANCY_OF_4),  # Hopper
    ScanTiles(164 << 10, {8: 8192, 16: 8192, 32: 8192, 64: 4096}, _OCCUPANCY_OF_4),  # A100
    ScanTiles(0, {8: 6144, 16: 6144, 32: 6144, 64: 3072}, _OCCUPANCY_OF_3),
)
"""From the most shared memory to the least. A tile is exchanged through shared memory, so its bytes times the occupancy
have to fit. Larger tiles of 32 bits are faster (H200, `docs/benchmarks/memory`); none spills registers."""


_MAX_SCAN_KERNELS = 256  # kernels in the cache, which is then cleared: a lambda in a loop is another function each time
_scan_kernels: dict[tuple[Callable[[Any, Any], Any], Hashable], Kernel] = {}


def scan_kernel(function: Callable[[Any, Any], Any], identity: Any) -> Kernel:
    """The scan by a function as a kernel, compiled once for each element type."""
    key = function, constant_key(identity)  # 0, 0.0, -0.0 and False are equal, and give different kernels
    kernel = _scan_kernels.get(key)
    if kernel is None:
        if len(_scan_kernels) >= _MAX_SCAN_KERNELS:
            _scan_kernels.clear()
        kernel = _scan_kernels.setdefault(key, _new_scan_kernel(function, identity))
    return kernel


def _new_scan_kernel(function: Callable[[Any, Any], Any], identity: Any) -> Kernel:
    @entry
    def array_scan(y: Mut, x: Tensor, state: SharedMut, *, WIDE: Const = 0):
        """y[i] = function(y[i - 1], x[i]), in f32 where WIDE is 1."""
        tile = load_tile_like(x, y).astype(f32 if WIDE else y.dtype)
        inside = scan_of_tile(tile, 0, reverse.FORWARD, identity, function)
        total = extract(inside, (y.shape[0] - 1,), (1,)).reshape(())  # a reduction takes more registers
        before = scan_unchecked(state, total, identity, function)
        y.store(function(before, inside).astype(y.dtype))

    return array_scan


def scan_op(
    x: HostTensor, function: Callable[[Any, Any], Any], identity: Any, dtype: DTypeLike, caller: str
) -> DeviceOp[HostTensor]:
    """An op that yields the running results of a function over a tensor of one axis.

    `caller` is the function of `api` that errors name.

    Raises:
        ArgumentError: `x` has another number of axes, `dtype` cannot hold the identity, or the function is known to
            have another identity.
        ArgumentTypeError: kernels cannot call the function, or the identity is no number.
    """
    identity = _checked_identity(function, identity, dtype, caller)
    if len(x.shape) != 1:
        raise ArgumentError(
            f"{caller}: expected a tensor of one axis, got one of shape {x.shape}; reshape((-1,)) it, or scan rows in "
            "a kernel: ct.cumsum(tile, 1), ct.scan(tile, 1, ...)"
        )
    result = Empty(x.shape, dtype)
    if not x.shape[0]:
        return result
    sizes = scan_sizes(x.shape[0], dtype, x.device.shared_memory_bytes)
    state = Full((sizes.words,), u64, np.zeros((), np.uint64), "zeros")
    tiles = result.partition((sizes.tile,))
    launch = scan_launch(tiles, x, state, function, identity, dtype, sizes.occupancy)
    return Titled(launch.first().unpartition(), lambda tensor: tensor, caller)


_operator: Any = operator  # `and_` and its kind have no types
_IDENTITIES: dict[Any, str] = {
    **dict.fromkeys((_operator.add, _operator.or_, _operator.xor, addi, addf, ori, xori), "0"),
    **dict.fromkeys((_operator.mul, muli, mulf), "1"),
    **dict.fromkeys((max, maxi, maxf, max_tile), "lowest"),
    **dict.fromkeys((min, mini, minf, min_tile), "highest"),
    **dict.fromkeys((_operator.and_, andi), "ones"),
}
"""The identities of well-known functions: 0, 1, the dtype's lowest or highest number, or all bits set."""

_OF_NUMPY = {
    "add": "operator.add", "multiply": "operator.mul", "maximum": "ct.max_tile", "minimum": "ct.min_tile",
    "bitwise_and": "operator.and_", "bitwise_or": "operator.or_", "bitwise_xor": "operator.xor",
    "logical_and": "operator.and_", "logical_or": "operator.or_", "logical_xor": "operator.xor",
}  # fmt: skip
"""Functions of the language, by their names in NumPy."""


def _checked_identity(function: Callable[[Any, Any], Any], identity: Any, dtype: DTypeLike, caller: str) -> Any:
    """The identity as a Python number of the dtype: a bool, an int or a float.

    Raises as `scan_op`.
    """
    if not callable(function) or isinstance(function, np.ufunc):
        name = getattr(function, "__name__", "")
        remedy = _OF_NUMPY.get(name, "a def, a lambda, or a function of operator or of cutile")
        words = f"kernels do not call np.{name}" if callable(function) else f"expected one, got {as_text(function)}"
        raise ArgumentTypeError(f"{caller}: function: {words}; write {remedy}")
    try:
        hash(function)  # kernels are kept by function
    except TypeError:
        raise ArgumentTypeError(
            f"{caller}: function: an object of {type(function).__name__} may change; decorate the class with "
            "@dataclass(frozen=True)"
        ) from None
    computed = f32 if dtype.is_half else dtype  # halves are scanned in f32
    element = as_element(identity, computed, caller, "identity").item()
    kind = _IDENTITIES.get(function)
    if kind is None:
        return element
    if kind in ("lowest", "highest") and dtype.is_float:
        fits = element <= dtype.min if kind == "lowest" else element >= dtype.max
        remedy = "float('-inf')" if kind == "lowest" else "float('inf')"
    else:
        ones = -1 if dtype.is_signed else dtype.max
        number = {"0": 0, "1": 1, "lowest": dtype.min, "highest": dtype.max, "ones": ones}[kind]
        fits, remedy = element == number, repr(bool(number) if dtype.is_bool else number)
    if not fits:
        raise ArgumentError(
            f"{caller}: identity: {as_text(identity)} would change elements of {dtype}; the identity of "
            f"{getattr(function, '__name__', 'the function')} is {remedy}"
        )
    return element


@dataclass(frozen=True)
class ScanSizes:
    """How one array is scanned.

    Attributes:
        tile: elements of a tile.
        words: words of u64 in the state: 2 for each tile, or 4 for elements of 64 bits (see `scan_blocks`).
        occupancy: tile blocks on a multiprocessor.
    """

    tile: int
    words: int
    occupancy: int


def scan_sizes(n: int, dtype: DTypeLike, shared_bytes: int) -> ScanSizes:
    """How an array of `n` elements is scanned.

    A multiprocessor has `shared_bytes` of shared memory.
    """
    tiles = next(tiles for tiles in SCAN_TILES if tiles.shared_bytes <= shared_bytes)
    bits = 32 if dtype.is_half else dtype.bits
    tile = tiles.elements[bits]
    return ScanSizes(tile, (4 if bits == 64 else 2) * -(-n // tile), tiles.occupancy[bits])


def scan_launch(
    y: Any, x: Any, state: Any, function: Callable[[Any, Any], Any], identity: Any, dtype: DTypeLike, occupancy: int
) -> KernelOp:
    """The launch that scans `x` onto the tiles of `y`; its `state` is zeros."""
    launch = scan_kernel(function, identity)(y, x, state, WIDE=int(dtype.is_half))
    if not knows_scan_registers(function, x.dtype, dtype, contiguous=is_contiguous(x.shape, x.strides)):
        return launch.compile_options(CompileOptions(num_worker_warps=8))
    return launch.compile_options(CompileOptions(num_worker_warps=8, occupancy=occupancy))


def knows_scan_registers(
    function: Callable[[Any, Any], Any], source: DTypeLike, dtype: DTypeLike, *, contiguous: bool
) -> bool:
    """Whether a scan is known to fit the registers that the occupancy leaves it.

    Sums of contiguous elements do, in their own dtype or from f16, bf16 or f32 to another of these. Other conversions,
    and addresses of single elements, take more registers, and may spill.
    """
    plain = source is dtype or (source.is_float and dtype.is_float and max(source.bits, dtype.bits) <= 32)
    return function is operator.add and contiguous and plain
