"""Memory that a search must leave as it was.

Copies of what operations write, to try on or to put back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from cuda_async import DeviceOp, ExecutionContext, OutOfMemoryError, Storage, Stream, download, upload
from cuda_async.core.operation import whole
from cutile.errors import TuningError

__all__ = ("Backup", "Bytes", "Copies", "Fetch", "Region", "Scratch", "like", "written_by")

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


def written_by(op: DeviceOp[object]) -> list[Region]:
    """The memory that an unrun operation will write, as far as leases tell."""
    return [
        Region(name, storage, start, storage.nbytes if stop is None else stop)
        for part in whole(op)
        for lease in part.leases
        for name, storage, write, start, stop in lease.uses
        if write and isinstance(storage, Storage) and not storage.without_memory
    ]


class Copies(DeviceOp[None]):
    """Copies bytes on a device.

    It borrows nothing: whoever runs it knows that nobody else uses them.
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
