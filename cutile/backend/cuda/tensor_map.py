"""Tensor maps (`CUtensorMap`): their arguments, and the encoded ones.

A kernel that copies tiles by TMA takes a descriptor of 128 bytes by value in place of a tensor's address. The driver
takes about 5 us for one, as much as a launch. So each is encoded once for a place in memory, and kept.
"""

import ctypes
from typing import Literal, NamedTuple

from cutile.backend.cuda.grids import GpuStream
from cutile.backend.interface import Parameter, Place
from cutile.dtypes import DTypeLike
from cutile.errors import LaunchError

# The limits of `cuTensorMapEncodeTiled` (CUDA driver API, "Tensor Map Object Management").
MAP_BYTES = 128
MAP_ALIGNMENT = 64
MAX_TMA_AXES = 5
MAX_TMA_BOX = 256
"""Elements of a copy along one axis."""
GRAIN = 16
"""Bytes that divide the address, every stride, and the row of a copy."""
MAX_DESCRIPTORS = 4096
"""Descriptors kept for one parameter of one kernel. When there are more, all are dropped and encoded anew on demand."""

_FLOATS = ("f16", "bf16", "f32", "f64")


def element_of(dtype: DTypeLike, *, rounded: bool = False) -> str:
    """The name of an element type in `GpuStream.encode_tensor_map`.

    Integers and floats of 8 bits are copied as unsigned integers of their size.

    Example:
        >>> from cutile.dtypes import bf16, i8
        >>> element_of(bf16), element_of(i8)
        ('bf16', 'u8')
    """
    if rounded:
        return "tf32"
    return dtype.name if dtype.name in _FLOATS else f"u{dtype.bits}"


Swizzle = Literal[0, 32, 64, 128]


class TensorMap(NamedTuple):
    """The form of a tensor map: all of it but the tensor's place in memory.

    The descriptor's element type is the parameter's dtype; elements past the tensor's edges are loaded as zeros and
    not stored.

    Attributes:
        box: extents of one copy, one per axis of the tensor, in the tensor's order of axes.
        swizzle: bytes of a row in shared memory over which 16-byte pieces are permuted; 0 for none.
        order: the tensor's axes from the outermost in memory to the one with stride 1; empty for the order they have.
            The transposed view `(K, N)` of a matrix stored by rows of `K` has the order `(1, 0)`.
        rounded: whether f32 elements are rounded to tf32 as they are loaded.
        step: every `step`-th row of a box is copied, along the axis next to the contiguous one.

    Example:
        >>> TensorMap((64, 256), 128, order=(1, 0)).memory_order
        (1, 0)
    """

    box: tuple[int, ...]
    swizzle: Swizzle = 0
    order: tuple[int, ...] = ()
    rounded: bool = False
    step: int = 1

    @property
    def memory_order(self) -> tuple[int, ...]:
        """`order`, spelled out."""
        return self.order or tuple(range(len(self.box)))


class Descriptor(NamedTuple):
    """The arguments of `GpuStream.encode_tensor_map`, with the innermost axis first."""

    element: str
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    step: int


def descriptor(parameter: Parameter, place: Place) -> Descriptor:
    """The descriptor of the tensor at a place.

    Raises:
        LaunchError: TMA takes no such tensor, or no such box; says which rule it breaks.
    """
    assert parameter.map is not None, f"{parameter.name} has no tensor map"
    form = TensorMap(*parameter.map)  # the disk cache returns a plain tuple
    address, shape, steps = place
    size = parameter.dtype.bits // 8
    order = form.memory_order[::-1]
    extents = tuple(shape[axis] for axis in order)
    # The stride of an axis with one element means nothing, but has to keep the rules of strides.
    strides = tuple(steps[axis] * size if shape[axis] > 1 else _rounded_up(extents[0] * size) for axis in order[1:])
    tensor_map = Descriptor(
        element_of(parameter.dtype, rounded=form.rounded),
        address,
        extents,
        strides,
        tuple(form.box[axis] for axis in order),
        form.swizzle,
        form.step,
    )
    fault = _fault(tensor_map, size, steps[order[0]] if extents[0] > 1 else 1)
    if fault:
        raise LaunchError(
            f"parameter {parameter.name!r}: no bulk copies of a tensor of {parameter.dtype} with shape {shape} and "
            f"strides {steps} at {address:#x}: {fault}"
        )
    return tensor_map


def _rounded_up(nbytes: int) -> int:
    return -(-nbytes // GRAIN) * GRAIN


def _fault(tensor_map: Descriptor, size: int, innermost: int) -> str | None:
    """The first rule of `cuTensorMapEncodeTiled` that does not hold; None if all hold.

    Args:
        tensor_map: the arguments to check.
        size: bytes of an element.
        innermost: the stride of the innermost axis, in elements.
    """
    row = tensor_map.box[0] * size
    if not 1 <= len(tensor_map.extents) <= MAX_TMA_AXES:
        return f"a descriptor has 1 to {MAX_TMA_AXES} axes, got {len(tensor_map.extents)}"
    if innermost != 1:
        return f"the innermost axis must have stride 1, got {innermost}"
    if tensor_map.address % GRAIN:
        return f"the address must be a multiple of {GRAIN} bytes"
    for stride in tensor_map.strides:
        if stride % GRAIN or not 0 < stride < 2**40:
            return f"a stride must be a multiple of {GRAIN} bytes, above 0 and below 2**40, got {stride} bytes"
    if min(tensor_map.extents) < 1:
        return f"a tensor without elements has no descriptor, got extents {tensor_map.extents[::-1]}"
    if max(tensor_map.extents) > 2**32:
        return "an extent is at most 2**32"
    if not all(1 <= extent <= MAX_TMA_BOX for extent in tensor_map.box):
        return f"a copy has 1 to {MAX_TMA_BOX} elements along each axis, got {tensor_map.box[::-1]}"
    if row % GRAIN or (tensor_map.swizzle and row > tensor_map.swizzle):
        limit = f" and at most the swizzle's {tensor_map.swizzle}" if tensor_map.swizzle else ""
        return f"a copy's row must be a multiple of {GRAIN} bytes{limit}, got {row}"
    return None


class Encoded:
    """The bytes of one descriptor, where a launch can point to them.

    Attributes:
        address: the address of the bytes, a multiple of `MAP_ALIGNMENT`.
    """

    __slots__ = ("_memory", "address")

    def __init__(self, data: bytes) -> None:
        self._memory = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
        self.address = -(-ctypes.addressof(self._memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        ctypes.memmove(self.address, data, MAP_BYTES)


class TensorMaps:
    """The descriptors of one parameter, by the tensor's place.

    A place is an address, extents and strides. A descriptor holds for every device.

    Args:
        parameter: of the kind "tensor_map".
    """

    def __init__(self, parameter: Parameter) -> None:
        self._parameter = parameter
        self._encoded: dict[Place, Encoded] = {}

    def get(self, place: Place, stream: GpuStream) -> Encoded:
        """The descriptor of the tensor at a place.

        The caller holds it for as long as a launch may read it.

        Raises:
            LaunchError: TMA takes no such tensor.
        """
        encoded = self._encoded.get(place)
        if encoded is None:
            if len(self._encoded) >= MAX_DESCRIPTORS:
                self._encoded = {}  # not `clear`: other threads may be reading the old dict
            encoded = Encoded(stream.encode_tensor_map(*descriptor(self._parameter, place)))
            self._encoded[place] = encoded
        return encoded
