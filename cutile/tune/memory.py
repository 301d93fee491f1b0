"""Copies of the memory that trials write, and comparisons of their results.

A search must leave memory as it was. So the memory that operations write is copied: trials run on the copies
(`Scratch`), or the copies are put back (`Backup`). The results of configurations are compared (`Agreement`): sums in
another order may differ by roundings, and by nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cuda_async import DeviceOp, ExecutionContext, OutOfMemoryError, Storage, Stream, Use, download, upload
from cutile.dtypes import DTypeLike
from cutile.errors import TuningError
from cutile.launch.views import View
from cutile.tune.space import Config

__all__ = (
    "Backup",
    "Bytes",
    "Copies",
    "Fetch",
    "Region",
    "Scratch",
    "like",
    "written_by",
    "Agreement",
    "DisagreementWarning",
    "Output",
    "difference",
    "tolerance",
)

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
"""Bytes on the host."""

_ALIGNMENT = 64
"""Bytes. Each allocation begins at a multiple of them (`Storage.allocate`). A copy begins as far beyond a multiple as
its original. So both have the alignment that kernels assume, which is at most 16 bytes."""


@dataclass(frozen=True, eq=False)
class Region:
    """Bytes of a storage.

    Attributes:
        name: the argument that has the bytes.
        storage: the memory.
        start, stop: bytes from the start of the storage.
    """

    name: str
    storage: Storage
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.stop - self.start


def written_by(uses: Iterable[Use]) -> list[Region]:
    """The memory that uses write, where it exists."""
    return [
        Region(name, storage, start, storage.nbytes if stop is None else stop)
        for name, storage, write, start, stop in uses
        if write and isinstance(storage, Storage) and not storage.without_memory
    ]


class Copies(DeviceOp[None]):
    """Copies bytes on a device.

    It takes no lease: the caller knows that nobody else uses the bytes.
    """

    __slots__ = ("_pairs",)

    def __init__(self, pairs: Sequence[tuple[Region, Region]]) -> None:
        """Copy the second of each pair onto the first."""
        super().__init__()
        self._pairs = pairs

    def execute(self, context: ExecutionContext) -> None:
        stream = context.stream
        for destination, source in self._pairs:
            source.storage.use(stream, write=False)
            destination.storage.use(stream, write=True)
            if source.nbytes:
                start = source.storage.address + source.start
                stream.copy(destination.storage.address + destination.start, start, source.nbytes)


class Fetch(DeviceOp[list[Bytes]]):
    """Copies bytes to the host."""

    __slots__ = ("_regions",)

    def __init__(self, regions: Sequence[Region]) -> None:
        super().__init__()
        self._regions = regions

    def execute(self, context: ExecutionContext) -> list[Bytes]:
        arrays = [np.empty(region.nbytes, np.uint8) for region in self._regions]
        for region, array in zip(self._regions, arrays, strict=True):
            if region.nbytes:
                download(context, region.storage, array.ctypes.data, array.nbytes, offset=region.start, keep=array)
        return arrays


class _PutBack(DeviceOp[None]):
    """Copies bytes from the host."""

    __slots__ = ("_bytes", "_region")

    def __init__(self, region: Region, array: Bytes) -> None:
        super().__init__()
        self._region, self._bytes = region, array

    def execute(self, context: ExecutionContext) -> None:
        region, array = self._region, self._bytes
        if not region.nbytes:  # `upload` refuses 0 bytes
            return
        upload(context, region.storage, array.ctypes.data, array.nbytes, offset=region.start, keep=array)


def like(region: Region, stream: Stream) -> Region:
    """New memory of the size and alignment of a region.

    Raises:
        OutOfMemoryError: it does not fit on the device.
    """
    begin = (region.storage.address + region.start) % _ALIGNMENT
    storage = Storage.allocate(stream, max(region.nbytes, 1) + begin)  # `allocate` refuses 0 bytes
    return Region(region.name, storage, begin, begin + region.nbytes)


class Scratch:
    """Copies of the memory that a kernel writes; trials run on them.

    Args:
        what: the kernel's name, for errors.
        regions: the memory that it writes.
        stream: the stream of the trials.

    Attributes:
        copies: the copies, one for each region.

    Raises:
        TuningError: the copies do not fit; says how many bytes they take.
    """

    def __init__(self, what: str, regions: Sequence[Region], stream: Stream) -> None:
        self._originals = regions
        self._stream = stream
        try:
            self.copies = [like(region, stream) for region in regions]
        except OutOfMemoryError as error:
            listed = ", ".join(f"{region.name}: {region.nbytes:,}" for region in regions)
            raise TuningError(
                f"{what}: a search tries configurations on a copy of what the kernel writes, "
                f"{sum(region.nbytes for region in regions):,} bytes ({listed}), which do not fit on {stream.device}. "
                "Search with smaller tensors, whose configurations serve these where key= says so, free memory, or "
                f"name one configuration: .generics({{...}}) without a list. {error}"
            ) from error

    def refresh(self) -> None:
        """Copy the originals to the copies."""
        Copies(list(zip(self.copies, self._originals, strict=True))).sync_on(self._stream)

    def fetch(self) -> list[Bytes]:
        """The bytes of the copies."""
        return Fetch(self.copies).sync_on(self._stream)


class Backup:
    """Copies of memory as it was before a search, to be put back.

    They are on the device, or on the host where the device is full.

    Args:
        what: the search's name, for errors.
        stream: the stream on which memory is copied.
    """

    def __init__(self, what: str, stream: Stream) -> None:
        self._what = what
        self._stream = stream
        self._copies: list[tuple[Region, Region | Bytes]] = []

    def keep(self, regions: Iterable[Region]) -> None:
        """Copy the regions of which there is no copy yet.

        Raises:
            TuningError: a copy fits neither on the device nor on the host; says how many bytes it has.
        """
        for region in regions:
            if not any(_within(region, copied) for copied, _ in self._copies):
                self._copies.append((region, self._copy(region)))

    def _copy(self, region: Region) -> Region | Bytes:
        """Copy a region on the device, or to the host if the device is full."""
        try:
            copy = like(region, self._stream)
        except OutOfMemoryError:
            copy = None  # the host takes it
        if copy is not None:
            Copies([(copy, region)]).sync_on(self._stream)
            return copy
        try:
            return Fetch([region]).sync_on(self._stream)[0]
        except MemoryError as error:  # of NumPy's array, or of the page-locked memory between (`OutOfMemoryError`)
            raise TuningError(
                f"{self._what}: a search puts back what its trials write, and a copy of {region.name!r}, "
                f"{region.nbytes:,} bytes, fits neither on {self._stream.device} nor on the host; search with smaller "
                "tensors"
            ) from error

    def restore(self) -> None:
        """Put everything back, the latest copy first.

        Where regions overlap, the earliest copy is right: a trial may have written before a later copy was made.
        """
        for region, copy in reversed(self._copies):
            op = Copies([(region, copy)]) if isinstance(copy, Region) else _PutBack(region, copy)
            op.sync_on(self._stream)


def _within(region: Region, other: Region) -> bool:
    return region.storage is other.storage and other.start <= region.start and region.stop <= other.stop


_PIECE = 1 << 20  # elements that are compared at once: their float64 copies take 8 MiB each

_TOLERANCE = {64: 1e-8, 32: 2e-3, 16: 2e-2, 8: 0.25}
"""By the bits of a float: the largest difference of two results, relative to the larger of an element and the root mean
square of all elements. It is wide, so that only a wrong kernel exceeds it, and none that adds up in another order. One
rounding is 2**-53 of a number in f64, 2**-24 in f32, 2**-11 in f16, and 2**-4 or 2**-3 in 8 bits."""

_BF16_TOLERANCE = 5e-2  # one rounding is 2**-8 of a number, and 2**-11 in f16


class DisagreementWarning(UserWarning):
    """Some configurations compute another result than most, and are not used."""


@dataclass(frozen=True)
class Output:
    """A tensor that a kernel writes, in the bytes that it occupies.

    Attributes:
        name: the argument.
        dtype: the element type.
        shape: the tensor's extents.
        strides: in elements; they may be negative.
        offset: elements between the first byte and the element of index 0.
    """

    name: str
    dtype: DTypeLike
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, name: str, view: View) -> Output:
        """The output in a view's elements.

        With negative strides, some of them lie before that of index 0.
        """
        return cls(name, view.dtype, view.shape, view.strides, (view.offset - view.start) // (view.dtype.bits // 8))

    def elements(self, data: Bytes) -> np.ndarray[Any, Any]:
        """The tensor over its bytes, as a NumPy array."""
        dtype = self.dtype.numpy
        strides = tuple(stride * dtype.itemsize for stride in self.strides)
        return np.ndarray(self.shape, dtype, data, self.offset * dtype.itemsize, strides)


def tolerance(dtype: DTypeLike) -> float | None:
    """The largest relative difference of elements; None where they must be equal."""
    if dtype.numpy.kind not in "fV":  # "V": the floats that NumPy itself does not have
        return None
    return _BF16_TOLERANCE if dtype.name == "bf16" else _TOLERANCE.get(dtype.bits)


def difference(output: Output, first: Bytes, second: Bytes) -> str | None:
    """The first element in which two results differ, as words; or None.

    Differences up to the tolerance of the dtype are roundings. They are relative to the elements of `second`.
    """
    if np.array_equal(first, second):
        return None
    one_result, other_result = output.elements(first), output.elements(second)
    allowed = tolerance(output.dtype)
    differs = (one_result != other_result).reshape(-1) if allowed is None else _apart(one_result, other_result, allowed)
    if not differs.any():
        return None
    index = tuple(int(each) for each in np.unravel_index(int(differs.argmax()), one_result.shape))
    place = f"[{', '.join(map(str, index))}]" if index else ""
    return f"{output.name}{place} is {one_result[index]} in place of {other_result[index]}"


def _apart(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any], allowed: float) -> np.ndarray[Any, Any]:
    """Where two arrays of floats differ by more than is allowed, in row-major order."""
    left, right = first.reshape(-1), second.reshape(-1)
    norm, count = 0.0, 0
    for start in range(0, right.size, _PIECE):
        piece = right[start : start + _PIECE].astype(np.float64)
        piece = piece[np.isfinite(piece)]
        largest = float(np.abs(piece).max(initial=0.0))
        if largest > 0:  # ratios to the largest are squared: the squares of large float64 would overflow
            norm = math.hypot(norm, largest * float(np.square(piece / largest).sum()) ** 0.5)
        count += piece.size
    scale = norm / count**0.5 if count else 0.0  # the root mean square
    differs = np.zeros(left.size, np.bool_)
    for start in range(0, left.size, _PIECE):
        a, b = (each[start : start + _PIECE].astype(np.float64) for each in (left, right))
        with np.errstate(invalid="ignore", over="ignore"):  # infinities and NaNs are compared below
            # Finite elements alone: an infinite one would allow every difference.
            is_near = np.isfinite(b) & (np.abs(a - b) <= allowed * np.maximum(np.abs(b), scale))
        differs[start : start + _PIECE] = ~(is_near | (a == b) | (np.isnan(a) & np.isnan(b)))
    return differs


@dataclass
class _Group:
    """Configurations that agree.

    Attributes:
        results: the results of the first of them, one for each output.
        configs: the configurations.
    """

    results: Sequence[Bytes]
    configs: list[Config]


@dataclass
class Agreement:
    """Groups of configurations whose results agree.

    Attributes:
        outputs: the tensors that are compared.
    """

    outputs: Sequence[Output]
    _groups: list[_Group] = field(default_factory=list[_Group])

    def add(self, config: Config, results: Sequence[Bytes]) -> None:
        """Add a configuration with its results."""
        for group in self._groups:
            if self._difference(results, group.results) is None:
                group.configs.append(config)
                return
        self._groups.append(_Group(results, [config]))

    def _difference(self, results: Sequence[Bytes], others: Sequence[Bytes]) -> str | None:
        for output, first, second in zip(self.outputs, results, others, strict=True):
            words = difference(output, first, second)
            if words is not None:
                return words
        return None

    @property
    def decided(self) -> bool:
        """Whether one group is larger than any other."""
        sizes = sorted((len(group.configs) for group in self._groups), reverse=True)
        return len(sizes) < 2 or sizes[0] > sizes[1]

    @property
    def agreeing(self) -> list[Config]:
        """The configurations of the largest group."""
        return max(self._groups, key=lambda group: len(group.configs)).configs if self._groups else []

    def differing(self) -> dict[Config, str]:
        """Each configuration of a smaller group, with the first differing element.

        The text is empty where the results of the smaller group agree with the largest group's. `add` compared them the
        other way round, and a difference is relative to the second results.
        """
        if not self._groups:
            return {}
        largest = max(self._groups, key=lambda group: len(group.configs))
        return {
            config: self._difference(group.results, largest.results) or ""
            for group in self._groups
            if group is not largest
            for config in group.configs
        }
