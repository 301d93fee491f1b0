"""Small operations of these tests, on unsigned 32-bit words, which run on every driver.

On a GPU the kernel is PTX text, which the driver compiles itself; elsewhere a NumPy function.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from cuda_async import (
    Device,
    DeviceOp,
    ExecutionContext,
    Pending,
    Storage,
    Stream,
    Use,
    download,
    upload,
    with_context,
)

Words = npt.NDArray[np.uint32]

PTX = b"""
.version 7.5
.target sm_75
.address_size 64
.visible .entry affine(.param .u64 p, .param .u32 n, .param .u32 m, .param .u32 a)
{
    .reg .pred %p<2>;
    .reg .b32 %r<10>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [p];
    ld.param.u32 %r1, [n];
    ld.param.u32 %r2, [m];
    ld.param.u32 %r3, [a];
    mov.u32 %r4, %ctaid.x;
    mov.u32 %r5, %ntid.x;
    mov.u32 %r6, %tid.x;
    mad.lo.u32 %r7, %r4, %r5, %r6;
    setp.ge.u32 %p1, %r7, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %d2, %d1;
    mul.wide.u32 %d3, %r7, 4;
    add.s64 %d2, %d2, %d3;
    ld.global.u32 %r8, [%d2];
    mad.lo.u32 %r8, %r8, %r2, %r3;
    st.global.u32 [%d2], %r8;
DONE:
    ret;
}
.visible .entry trap_now()
{
    trap;
}
\0"""


def words_at(address: int, count: int) -> Words:
    """Host memory as an array, without owning it."""
    return np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(address))


@cache
def _function(device: Device, entry: str) -> object:
    return device.driver.load_function(PTX, entry, 0)


def launch_affine(stream: Stream, address: int, count: int, factor: int, addend: int, grain: int = 64) -> None:
    """Enqueue x = factor * x + addend over `count` words."""
    if stream.device.kind == "cuda":
        values: list[Any] = [ctypes.c_uint64(address), *map(ctypes.c_uint32, (count, factor, addend))]
        pointers = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in values))
        stream.launch_function(
            _function(stream.device, "affine"), (-(-count // 128), 1, 1), (128, 1, 1), 0, ctypes.addressof(pointers)
        )
        return
    words = words_at(address, count)

    def body(start: int, stop: int) -> None:
        words[start:stop] = words[start:stop] * np.uint32(factor) + np.uint32(addend)

    stream.parallel_for(body, count, grain)


def trap(stream: Stream) -> None:
    """Enqueue a kernel that kills the context (CUDA only)."""
    stream.launch_function(_function(stream.device, "trap_now"), (1, 1, 1), (1, 1, 1), 0, 0)


class Affine(DeviceOp[Storage]):
    """x = factor * x + addend, in place; yields the storage."""

    has_effects = True
    graph_node = True

    def __init__(self, storage: Storage, factor: int, addend: int) -> None:
        super().__init__()
        self._storage, self._factor, self._addend = storage, factor, addend
        self.lend(Use("x", storage, write=True))

    def execute(self, context: ExecutionContext) -> Storage:
        return self._enqueue(context.stream)

    def fast_path(self, *, waited: bool) -> Callable[[Stream], Storage]:
        return self._enqueue

    def _enqueue(self, stream: Stream) -> Storage:
        storage = self._storage
        storage.use(stream, write=True)
        launch_affine(stream, storage.address, storage.nbytes // 4, self._factor, self._addend)
        return storage


class CopyTo(DeviceOp[tuple[Storage, Storage]]):
    """destination = source; yields both."""

    has_effects = True
    graph_node = True
    arity = 2

    def __init__(self, destination: Storage, source: Storage) -> None:
        super().__init__()
        self._destination, self._source = destination, source
        self.lend(Use("destination", destination, write=True), Use("source", source, write=False))

    def execute(self, context: ExecutionContext) -> tuple[Storage, Storage]:
        context.overwrite(self._destination)
        self._source.use(context.stream, write=False)
        context.stream.copy(self._destination.address, self._source.address, self._source.nbytes)
        return self._destination, self._source


class Read(DeviceOp[Any]):
    """The words of a storage, on the host (a `Pending` until the run completes)."""

    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self._storage = storage
        self.lend(Use("source", storage, write=False))

    def execute(self, context: ExecutionContext) -> Pending[Words]:
        result = np.empty(self._storage.nbytes // 4, np.uint32)
        download(context, self._storage, result.ctypes.data, result.nbytes, keep=result)
        pending = Pending[Words]("the words of a storage", self.site)
        context.on_complete(lambda: pending.set(result))
        return pending


class Call(DeviceOp[None]):
    """Calls a host function in stream order."""

    has_effects = True

    def __init__(self, function: Callable[[], None]) -> None:
        super().__init__()
        self._function = function

    def execute(self, context: ExecutionContext) -> None:
        context.stream.call(self._function)


class _Upload(DeviceOp[Storage]):
    def __init__(self, words: Words) -> None:
        super().__init__()
        self._words = words

    def execute(self, context: ExecutionContext) -> Storage:
        storage = context.allocate(self._words.nbytes)
        upload(context, storage, self._words.ctypes.data, self._words.nbytes, keep=self._words)
        return storage


def words(*values: int, count: int | None = None) -> DeviceOp[Storage]:
    """New storage that holds these words, or `count` times the one."""
    array = np.array(values, np.uint32)
    return _Upload(array if count is None else np.repeat(array, count))


def allocate(nbytes: int) -> DeviceOp[Storage]:
    """New storage, contents undefined."""
    from cuda_async import value

    return with_context(lambda context: value(context.allocate(nbytes)))
