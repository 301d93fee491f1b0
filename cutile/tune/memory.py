"""Memory that a search must leave as it was, and comparisons of what is there.

Copies are made of what operations write, to try on or to put back. What configurations write is compared: sums in
another order may differ by roundings, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cuda_async import DeviceOp, ExecutionContext, OutOfMemoryError, Storage, Stream, Use, download, upload
from cutile.dtypes import DTypeLike
from cutile.errors import TuningError
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

_ALIGNED = 64
"""Bytes to which allocations are aligned; a copy begins as far beyond such an address as what it is of."""


@dataclass(frozen=True, eq=False)
class Region:
    """Bytes of a storage.

    Attributes:
        name: the argument that they are of.
        storage: the memory.
        start, stop: bytes from its start.
    """

    name: str
    storage: Storage
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """How many bytes there are."""
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

    It borrows nothing: the caller knows that nobody else uses them.
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
            stream.copy(
                destination.storage.address + destination.start, source.storage.address + source.start, source.nbytes
            )


class Fetch(DeviceOp[list[Bytes]]):
    """Copies bytes to the host."""

    __slots__ = ("_regions",)

    def __init__(self, regions: Sequence[Region]) -> None:
        super().__init__()
        self._regions = regions

    def execute(self, context: ExecutionContext) -> list[Bytes]:
        arrays = [np.empty(region.nbytes, np.uint8) for region in self._regions]
        for region, array in zip(self._regions, arrays, strict=True):
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
        upload(context, region.storage, array.ctypes.data, array.nbytes, offset=region.start, keep=array)


def like(region: Region, stream: Stream) -> Region:
    """As many bytes, as far from an aligned address, in new memory.

    Raises OutOfMemoryError.
    """
    begin = (region.storage.address + region.start) % _ALIGNED
    storage = Storage.allocate(stream, region.nbytes + begin)
    return Region(region.name, storage, begin, begin + region.nbytes)


class Scratch:
    """Copies of what a kernel writes, for trials.

    Args:
        what: the kernel's name, for errors.
        regions: what it writes.
        stream: where trials run.

    Attributes:
        copies: the copies, one for each region.

    Raises:
        TuningError: they do not fit; says how many bytes they are.
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
        """Have the copies hold what the originals hold."""
        Copies(list(zip(self.copies, self._originals, strict=True))).sync_on(self._stream)

    def fetch(self) -> list[Bytes]:
        """The bytes of the copies."""
        return Fetch(self.copies).sync_on(self._stream)


class Backup:
    """What memory held before a search, to be put back.

    Copies are on the device, or on the host where that is full.

    Args:
        what: the search's name, for errors.
        stream: where copies run.
    """

    def __init__(self, what: str, stream: Stream) -> None:
        self._what = what
        self._stream = stream
        self._kept: list[tuple[Region, Region | Bytes]] = []

    def keep(self, regions: Iterable[Region]) -> None:
        """Copy what is not kept yet.

        Raises:
            TuningError: it fits neither on the device nor on the host; says how many bytes it is.
        """
        for region in regions:
            if not any(_within(region, known) for known, _ in self._kept):
                self._kept.append((region, self._copy(region)))

    def _copy(self, region: Region) -> Region | Bytes:
        try:
            copy = like(region, self._stream)
        except OutOfMemoryError:
            copy = None
        if copy is not None:
            Copies([(copy, region)]).sync_on(self._stream)
            return copy
        try:
            return Fetch([region]).sync_on(self._stream)[0]
        except MemoryError as error:
            raise TuningError(
                f"{self._what}: a search puts back what its trials write, and a copy of {region.name!r}, "
                f"{region.nbytes:,} bytes, fits neither on {self._stream.device} nor on the host; search with smaller "
                "tensors"
            ) from error

    def restore(self) -> None:
        """Put everything back, the latest copy first.

        Where regions overlap, the earliest holds what was there.
        """
        for region, copy in reversed(self._kept):
            op = Copies([(region, copy)]) if isinstance(copy, Region) else _PutBack(region, copy)
            op.sync_on(self._stream)


def _within(region: Region, other: Region) -> bool:
    return region.storage is other.storage and other.start <= region.start and region.stop <= other.stop


_PIECE = 1 << 20  # elements that are compared at once, in float64

_TOLERANCE = {64: 1e-8, 32: 2e-3, 16: 2e-2, 8: 0.25}
"""By the bits of a float: how far results may be apart, relative to the larger of an element and the root mean square
of all. It is wide: it tells a wrong kernel from one that adds up in another order, and no more."""

_BF16 = 5e-2


class DisagreementWarning(UserWarning):
    """Some configurations compute another result than most, and are not used."""


@dataclass(frozen=True)
class Output:
    """What a kernel writes of one argument.

    Attributes:
        name: the argument.
        dtype: the element type.
        strides, shape: in elements, of the tensor; `offset` elements lie before the first.
        offset: elements before that of index 0.
    """

    name: str
    dtype: DTypeLike
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def elements(self, data: Bytes) -> np.ndarray[Any, Any]:
        """The elements in the bytes that a tensor occupies."""
        kind = self.dtype.numpy
        strides = tuple(stride * kind.itemsize for stride in self.strides)
        return np.ndarray(self.shape, kind, data, self.offset * kind.itemsize, strides)


def tolerance(dtype: DTypeLike) -> float | None:
    """How far elements may be apart; None where they must be the same bits."""
    if dtype.numpy.kind not in "fV":  # "V": the floats that NumPy itself does not have
        return None
    return _BF16 if dtype.name == "bf16" else _TOLERANCE.get(dtype.bits)


def difference(output: Output, first: Bytes, second: Bytes) -> str | None:
    """The first element in which two results differ by more than roundings, as words.

    None where none does.
    """
    if first.tobytes() == second.tobytes():
        return None
    left, other = output.elements(first), output.elements(second)
    allowed = tolerance(output.dtype)
    different = (left != other).reshape(-1) if allowed is None else _apart(left, other, allowed)
    if not different.any():
        return None
    index = tuple(int(each) for each in np.unravel_index(int(different.argmax()), left.shape))
    place = f"[{', '.join(map(str, index))}]" if index else ""
    return f"{output.name}{place} is {left[index]} in place of {other[index]}"


def _apart(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], allowed: float) -> np.ndarray[Any, Any]:
    """Where two arrays of floats differ by more than is allowed, in row-major order."""
    left, right = one.reshape(-1), other.reshape(-1)
    squares, count = 0.0, 0
    for start in range(0, right.size, _PIECE):
        piece = right[start : start + _PIECE].astype(np.float64)
        piece = piece[np.isfinite(piece)]
        squares, count = squares + float(np.square(piece).sum()), count + piece.size
    scale = (squares / count) ** 0.5 if count else 0.0
    apart = np.zeros(left.size, np.bool_)
    for start in range(0, left.size, _PIECE):
        a, b = (each[start : start + _PIECE].astype(np.float64) for each in (left, right))
        with np.errstate(invalid="ignore"):
            near = np.abs(a - b) <= allowed * np.maximum(np.abs(b), scale)
        apart[start : start + _PIECE] = ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))
    return apart


@dataclass
class _Group:
    """Configurations that agree.

    Attributes:
        results: what the first of them computed, one for each output.
        configs: all of them.
    """

    results: Sequence[Bytes]
    configs: list[Config]


@dataclass
class Agreement:
    """The results of configurations, by what they agree on.

    Attributes:
        outputs: what is compared.
    """

    outputs: Sequence[Output]
    _groups: list[_Group] = field(default_factory=list[_Group])

    def add(self, config: Config, results: Sequence[Bytes]) -> None:
        """Note what a configuration computed."""
        for group in self._groups:
            if self._difference(results, group.results) is None:
                group.configs.append(config)
                return
        self._groups.append(_Group(results, [config]))

    def _difference(self, results: Sequence[Bytes], others: Sequence[Bytes]) -> str | None:
        for output, one, other in zip(self.outputs, results, others, strict=True):
            words = difference(output, one, other)
            if words is not None:
                return words
        return None

    @property
    def decided(self) -> bool:
        """Whether more configurations agree with one another than any others do."""
        sizes = sorted((len(group.configs) for group in self._groups), reverse=True)
        return len(sizes) < 2 or sizes[0] > sizes[1]

    @property
    def agreeing(self) -> list[Config]:
        """The largest group."""
        return max(self._groups, key=lambda group: len(group.configs)).configs if self._groups else []

    def differing(self) -> dict[Config, str]:
        """Each configuration of a smaller group, with the first differing element."""
        if not self._groups:
            return {}
        most = max(self._groups, key=lambda group: len(group.configs))
        return {
            config: self._difference(group.results, most.results) or ""
            for group in self._groups
            if group is not most
            for config in group.configs
        }
