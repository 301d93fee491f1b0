"""TMA copies on a GPU, in a process of their own, since a wait for a wrong barrier never ends.

python -m tests.backend.cuda.bulk_run
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from cuda_async import Device, DeviceOp, ExecutionContext, Storage
from cutile import api
from cutile.backend.cuda.load import load
from cutile.backend.cuda.tensor_map import Swizzle, TensorMap
from cutile.backend.interface import Executable
from cutile.dtypes import DTypeLike, bf16, f16, f32, i8, i32
from tests.backend.cuda.bulk import bulk_copy, census

POISON = 77


class Copy(DeviceOp[None]):
    """Launch the kernel over all boxes."""

    has_effects = True

    def __init__(self, made: Executable, places: list[Any], storages: list[Storage], grid: tuple[int, int]) -> None:
        self._loaded = load(made)
        self._places, self._storages, self._grid = places, storages, grid
        super().__init__()

    def execute(self, context: ExecutionContext) -> None:
        for storage in self._storages:
            storage.use(context.stream, write=True)
        rows, columns = self._grid
        self._loaded.launch((rows, columns, 1), [columns, *self._places], context.stream)
        context.keep(self._loaded)


def swizzled(rows: np.ndarray[Any, Any], swizzle: int) -> np.ndarray[Any, Any]:
    """Rows of `swizzle` bytes as a swizzled copy writes them: piece `p` of row `r` at `p` xor a few bits of `r`."""
    pieces = swizzle // 16
    height, width = rows.shape
    cut = rows.reshape(height, pieces, width // pieces)
    out = np.empty_like(cut)
    for row in range(height):
        shift = row * pieces // 8 % pieces if pieces < 8 else row % 8
        for piece in range(pieces):
            out[row, piece ^ shift] = cut[row, piece]
    return out.reshape(height, width)


def check(dtype: DTypeLike, shape: tuple[int, int], *, turned: bool, load: Swizzle, store: Swizzle) -> None:
    """Copy a matrix box by box and compare; if the two maps swizzle differently, each box is permuted."""
    size = dtype.bits // 8
    width = (load or store or 128) // size
    box = (width, 32) if turned else (32, width)
    order = (1, 0) if turned else ()
    executable = bulk_copy(dtype, TensorMap(box, load, order), TensorMap(box, store, order))
    random = np.random.default_rng(hash((shape, load, store)) & 0xFFFF)
    values = random.integers(-100, 100, shape).astype(dtype.numpy)
    device = Device(0)
    stream = device.new_stream()
    source, target = (
        api.from_numpy(np.ascontiguousarray(each)).sync_on(stream) for each in (values, np.full_like(values, POISON))
    )
    views: list[Any] = []
    for each in (source, target):
        view = (each.transpose() if turned else each).__kernel_input__()
        views.append(view)
    rows, columns = -(-shape[0] // 32), -(-shape[1] // width)
    places = [(view.address, view.shape, view.strides) for view in views]
    Copy(executable, places, [view.storage for view in views], (rows, columns)).sync_on(stream)
    copied = target.to_numpy().sync_on(stream)
    wanted = values
    if load != store:
        padded = np.zeros((rows * 32, columns * width), dtype.numpy)
        padded[: shape[0], : shape[1]] = values
        for i in range(rows):
            for j in range(columns):
                at = slice(i * 32, i * 32 + 32), slice(j * width, j * width + width)
                padded[at] = swizzled(padded[at], load)
        wanted = padded[: shape[0], : shape[1]]
    assert np.array_equal(copied, wanted), f"{dtype} {shape} turned={turned} {load}->{store}"
    print("right", dtype, shape, "turned" if turned else "", load, store)


class Count(DeviceOp[None]):
    """Launch the kernel that counts blocks by their clusters."""

    has_effects = True

    def __init__(self, made: Executable, out: Storage, grid: int) -> None:
        self._loaded, self._out, self._grid = load(made), out, grid
        super().__init__()

    def execute(self, context: ExecutionContext) -> None:
        self._out.use(context.stream, write=True)
        grid = (self._grid, 1, 1)
        self._loaded.launch(grid, [self._out.address, 0, self._grid], context.stream)
        prepared = self._loaded.prepare(grid, [self._out.address, 0, self._grid], context.stream)
        prepared.launch()
        context.keep(self._loaded)


def check_clusters() -> None:
    """Blocks by their clusters, whose size only the machine code has, not the launch."""
    stream = Device(0).new_stream()
    processors = Device(0).properties.multiprocessor_count
    for cluster, persistent, grid in ((1, 0, 999), (2, 0, 999), (4, 0, 64), (2, 1, 10**6), (1, 1, 10**6), (2, 1, 7)):
        out = api.zeros((32,), i32).sync_on(stream)
        made = census(cluster=cluster, persistent=persistent, workspace=256)
        Count(made, out.__kernel_input__().storage, grid).sync_on(stream)
        counts = {at: int(n) for at, n in enumerate(out.to_numpy().sync_on(stream)) if n}
        (blocks,) = counts.values()
        print("cluster", cluster, "persistent", persistent, "grid", grid, "blocks by cluster", counts)
        assert counts.keys() == {cluster}
        if persistent and grid > 10**5:
            assert 2 * processors <= blocks <= 2 * 32 * processors
            assert blocks % (2 * cluster) == 0
        else:
            assert blocks == 2 * -(-grid // cluster) * cluster


def main() -> None:
    """Every swizzle, edges, transposed views, elements of one to four bytes."""
    for swizzle in (0, 32, 64, 128):
        check(f16, (777, 1000), turned=False, load=swizzle, store=swizzle)
    for swizzle in (32, 64, 128):
        check(f16, (64, 256), turned=False, load=swizzle, store=0)
        check(f16, (70, 200), turned=False, load=swizzle, store=0)
    check(bf16, (100, 136), turned=True, load=128, store=128)
    check(f32, (333, 36), turned=False, load=128, store=128)
    check(i8, (40, 144), turned=True, load=64, store=64)
    check(f32, (1, 8), turned=False, load=128, store=128)
    check_clusters()
    print("all right")


if __name__ == "__main__":
    sys.exit(main())
