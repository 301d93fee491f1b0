"""One CUDA device: its context, memory pool, streams, events and loaded code."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from cuda_async.config import config
from cuda_async.driver.blocks import BlockCache
from cuda_async.driver.cuda.api import cu
from cuda_async.driver.cuda.context import PrimaryContext
from cuda_async.driver.cuda.host_functions import HostFunctions
from cuda_async.driver.cuda.module import OPT_IN_SHARED_BYTES, BorrowedFunction, CudaModule
from cuda_async.driver.cuda.nvrtc import compile_to_ptx
from cuda_async.driver.cuda.stream import BorrowedStream, CudaEvent, CudaFunction, CudaStream, EarlyFunction
from cuda_async.driver.cuda.tensor_map import encode_tensor_map
from cuda_async.driver.interface import (
    DeviceProperties,
    Driver,
    DriverEvent,
    DriverFunction,
    DriverModule,
    DriverStream,
    Early,
    MemoryInfo,
)
from cuda_async.errors import LaunchError

__all__ = ("CudaDriver",)

_PINNED_KEPT = 1 << 30
"""Bytes of freed page-locked memory that are kept for reuse: locking the pages of a new allocation is slow."""


class _PinnedBlock:
    """Page-locked host memory, visible to every device."""

    def __init__(self, context: PrimaryContext, size: int) -> None:
        self._context = context
        self.size = size
        self.address = int(context.call(cu.cuMemHostAlloc, size, cu.CU_MEMHOSTALLOC_PORTABLE))

    def release(self) -> None:
        self._context.call(cu.cuMemFreeHost, self.address)


class CudaDriver(Driver):
    """A CUDA device. Opened once for each ordinal, by `Device`, and never closed."""

    works_alone = True
    dlpack_type = 2
    array_interface = "__cuda_array_interface__"

    def __init__(self, ordinal: int, context: PrimaryContext | None = None) -> None:
        self.context = context or PrimaryContext(ordinal)
        self.garbage: deque[tuple[Any, Any]] = deque()
        """Calls that finalizers leave to `collect`: (function of the bindings, its argument).

        A finalizer runs on any thread and within any call, where it must not call the driver.
        """
        self.host_functions = HostFunctions(self)
        self._streams: deque[Any] = deque()  # handles of streams that were closed, for the next ones
        self._peers: set[int] = set()
        """Ordinals of the devices for which `connect` has been called."""
        self._pinned = BlockCache(lambda size: _PinnedBlock(self.context, size), _PINNED_KEPT)
        self._properties = self._read_properties()
        self.pool: Any = self._create_pool()

    def _attribute(self, name: str) -> int:
        attribute = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.context.call(cu.cuDeviceGetAttribute, attribute, self.context.device))

    def _read_properties(self) -> DeviceProperties:
        major = self._attribute("COMPUTE_CAPABILITY_MAJOR")
        minor = self._attribute("COMPUTE_CAPABILITY_MINOR")
        name: bytes = self.context.call(cu.cuDeviceGetName, 256, self.context.device)
        return DeviceProperties(
            kind="cuda",
            ordinal=self.context.ordinal,
            name=name.partition(b"\0")[0].decode(),
            # From Hopper on, the architecture-specific targets ("a") alone have wgmma and tcgen05 (PTX ISA, .target).
            arch=f"sm_{major}{minor}{'a' if major >= 9 else ''}",
            multiprocessor_count=self._attribute("MULTIPROCESSOR_COUNT"),
            l2_cache_bytes=self._attribute("L2_CACHE_SIZE"),
            total_memory_bytes=int(self.context.call(cu.cuDeviceTotalMem, self.context.device)),
            shared_memory_bytes=self._attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        )

    def _create_pool(self) -> Any:
        # Not the device's default pool: other libraries share it, and its release threshold is one for all of them.
        properties = cu.CUmemPoolProps()
        properties.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.handleTypes = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        properties.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = self.context.ordinal
        pool = self.context.call(cu.cuMemPoolCreate, properties)
        nbytes = config().pool_bytes
        threshold = cu.cuuint64_t(2**64 - 1 if nbytes is None else nbytes)  # by default no memory goes back
        attribute = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self.context.call(cu.cuMemPoolSetAttribute, pool, attribute, threshold)
        return pool

    def connect(self, other: CudaDriver) -> None:
        """Give `other` access to this device's pool, if the hardware permits it.

        If it does not, the driver copies through the host.
        """
        if other is self or other.context.ordinal in self._peers:
            return
        self._peers.add(other.context.ordinal)
        device, peer = self.context.device, other.context.device
        if not self.context.call(cu.cuDeviceCanAccessPeer, peer, device):
            return
        access = cu.CUmemAccessDesc()
        access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        access.location.id = other.context.ordinal
        access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self.context.call(cu.cuMemPoolSetAccess, self.pool, [access], 1)

    @property
    def properties(self) -> DeviceProperties:
        return self._properties

    def create_stream(self) -> DriverStream:
        try:
            handle = self._streams.popleft()
        except IndexError:
            handle = self.context.call(cu.cuStreamCreate, int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
        return CudaStream(self, handle)

    def take_back(self, handle: Any) -> None:
        """Keep the handle of a closed stream for the next stream.

        It is not destroyed, since its work may still run. The next stream's work then runs behind it, which costs time
        and changes no result.
        """
        self._streams.append(handle)

    def create_event(self, *, timing: bool = False) -> DriverEvent:
        return CudaEvent(self, timing)

    def load_function(self, image: bytes, entry: str, shared_bytes: int, *, early: Early = "never") -> object:
        module = self.context.call(cu.cuModuleLoadData, image)
        try:
            handle = self.context.call(cu.cuModuleGetFunction, module, entry.encode())
            if shared_bytes > OPT_IN_SHARED_BYTES:
                attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self.context.call(cu.cuFuncSetAttribute, handle, attribute, shared_bytes)
        except BaseException:
            self.garbage.append((cu.cuModuleUnload, module))  # later: an error of unloading now would hide this one
            raise
        if early == "never":
            return CudaFunction(self, module, handle)
        return EarlyFunction(self, module, handle, always=early == "always")

    def resident_blocks(self, function: object, threads: int, shared_bytes: int, cluster: int) -> int:
        return _resident_blocks(self.context, function, threads, shared_bytes, cluster, self._properties)

    def encode_tensor_map(
        self,
        element: str,
        address: int,
        extents: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        swizzle: int,
        step: int = 1,
    ) -> bytes:
        return encode_tensor_map(self.context, element, address, extents, strides, box, swizzle, step)

    def load_module(self, image: bytes) -> DriverModule:
        return CudaModule.load(self, image)

    def compile_source(self, source: str, name: str, options: tuple[str, ...]) -> str:
        return compile_to_ptx(source, name, self._properties.arch, options)

    def borrow_module(self, raw: int) -> DriverModule:
        return CudaModule(self, cu.CUmodule(raw), owned=False)

    def borrow_function(self, raw: int) -> DriverFunction:
        return BorrowedFunction(self, raw)

    def borrow_stream(self, raw: int) -> DriverStream:
        return BorrowedStream(self, cu.CUstream(raw))

    def pin(self, nbytes: int) -> int:
        return self._pinned.allocate(nbytes)

    def unpin(self, address: int, nbytes: int) -> None:
        self._pinned.free(address)

    def memory_info(self) -> MemoryInfo:
        free, total = self.context.call(cu.cuMemGetInfo)
        pool = cu.CUmemPool_attribute
        used = self.context.call(cu.cuMemPoolGetAttribute, self.pool, pool.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
        reserved = self.context.call(cu.cuMemPoolGetAttribute, self.pool, pool.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
        return MemoryInfo(int(free), int(total), int(used), int(reserved))

    def pool_high(self) -> tuple[int, int]:
        pool = cu.CUmemPool_attribute
        used = self.context.call(cu.cuMemPoolGetAttribute, self.pool, pool.CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        reserved = self.context.call(cu.cuMemPoolGetAttribute, self.pool, pool.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        return int(used), int(reserved)

    def reset_pool_high(self, *, used: bool, reserved: bool) -> None:
        pool = cu.CUmemPool_attribute
        if used:
            self._set_pool(pool.CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)
        if reserved:
            self._set_pool(pool.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)

    def keep_free(self, nbytes: int) -> None:
        self._set_pool(cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, nbytes)

    def _set_pool(self, attribute: Any, number: int) -> None:
        self.context.call(cu.cuMemPoolSetAttribute, self.pool, attribute, cu.cuuint64_t(number))

    def trim(self, keep_bytes: int = 0) -> None:
        self._pinned.trim(keep_bytes)
        # The pool counts a free as done only after a synchronisation: querying an event is not enough.
        self.context.call(cu.cuCtxSynchronize)
        self.context.call(cu.cuMemPoolTrimTo, self.pool, keep_bytes)

    @contextmanager
    def unrestricted(self) -> Generator[None]:
        # Another library may capture in the mode "global" or "thread local". Its capture fails if this thread makes an
        # unsafe call, such as an allocation, unless the thread's mode is "relaxed" (cuThreadExchangeStreamCaptureMode).
        relaxed = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = self.context.call(cu.cuThreadExchangeStreamCaptureMode, relaxed)
        try:
            yield
        finally:
            self.context.call(cu.cuThreadExchangeStreamCaptureMode, cu.CUstreamCaptureMode(before))

    def check(self) -> None:
        self.context.check()

    def collect(self) -> None:
        """Make the calls in `garbage`, which finalizers left."""
        while self.garbage:
            try:
                function, argument = self.garbage.popleft()
            except IndexError:  # another thread took the last one
                return
            self.context.call(function, argument)


def _resident_blocks(
    context: PrimaryContext,
    function: object,
    threads: int,
    shared_bytes: int,
    cluster: int,
    properties: DeviceProperties,
) -> int:
    """The number of blocks that the device runs at once; see `Driver.resident_blocks`."""
    if not isinstance(function, CudaFunction):
        raise LaunchError(f"resident_blocks: expected what load_function returned, got {type(function).__name__}")
    if cluster == 1:
        ask = cu.cuOccupancyMaxActiveBlocksPerMultiprocessor
        blocks = int(context.call(ask, function.handle, threads, shared_bytes))  # of one multiprocessor
        return blocks * properties.multiprocessor_count
    attribute = cu.CUlaunchAttribute()
    attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    shape = attribute.value.clusterDim
    shape.x, shape.y, shape.z = cluster, 1, 1
    config: Any = cu.CUlaunchConfig()
    # The answer is for the whole device, whatever the grid is. The grid must consist of whole clusters.
    config.gridDimX, config.gridDimY, config.gridDimZ = cluster, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = shared_bytes
    config.attrs = [attribute]
    config.numAttrs = 1
    return int(context.call(cu.cuOccupancyMaxActiveClusters, function.handle, config)) * cluster
