"""The interface of drivers: streams, events, memory, copies, launches.

Three drivers implement it, and pass one test suite: `cuda`, `host` (the CPU) and `sim` (virtual time, for tests). They
never import one another. Their common rules:

- A stream is an ordered queue. Enqueueing never waits, and a stream that waits for an event occupies no thread.
- `wait_event` waits for the record that is the event's latest when it is called; an event that was never recorded is
  complete.
- Allocation is ordered by the stream: later work on the same stream may use an address at once.
- An error in enqueued work fails the work behind it, up to the next `begin_run`. Work of other streams that waits for
  it fails as well (`DependencyError`). If nobody waits for the failed work, the next waiter of the stream gets the
  error, though its own work is done. After an error with which a device cannot go on, all fails (`DeviceLostError`).

A driver does not order streams that share memory: `storage.py` does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

from cuda_async.errors import LaunchError

__all__ = (
    "Check",
    "DeviceKind",
    "DeviceProperties",
    "Driver",
    "DriverEvent",
    "DriverFunction",
    "DriverGraph",
    "DriverModule",
    "DriverStream",
    "Early",
    "Finish",
    "Launcher",
    "Meet",
    "MemoryInfo",
)

DeviceKind = Literal["cuda", "host", "sim"]

Early = Literal["never", "in graphs", "always"]  # when a GPU's kernel may begin before the kernel ahead has ended
Check = Callable[[], bool | None]
"""Raises the failure of finished work; see `DriverStream.check_behind`."""


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """Properties of a device.

    Attributes:
        kind: the kind of driver.
        ordinal: the number of the device, from 0.
        name: the product's name.
        arch: the target of compilers: 'sm_90a' on a GPU, 'cpu' otherwise.
        multiprocessor_count: multiprocessors of a GPU; cores that this process may use of a CPU.
        l2_cache_bytes: bytes of the last-level cache; 0 if unknown.
        total_memory_bytes: bytes of memory.
        shared_memory_bytes: bytes of shared memory of one multiprocessor; 0 of a CPU.
    """

    kind: DeviceKind
    ordinal: int
    name: str
    arch: str
    multiprocessor_count: int
    l2_cache_bytes: int
    total_memory_bytes: int
    shared_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Bytes of a device's memory.

    Attributes:
        free: bytes that can be allocated.
        total: bytes of the device.
        used: bytes in allocations of this process.
        reserved: bytes that the pool holds, in use or not.
    """

    free: int
    total: int
    used: int
    reserved: int


class DriverEvent(ABC):
    """A point in a stream, for which other streams and threads can wait."""

    __slots__ = ()

    @abstractmethod
    def query(self) -> bool:
        """Whether the latest record has completed, or failed. Never waits, never raises."""

    @abstractmethod
    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for the latest record, without the GIL.

        Returns whether it completed.
        """

    def forget(self) -> None:  # noqa: B027 - most keep no failure
        """Drop the failure once its waiter has it: the traceback keeps frames alive."""

    @abstractmethod
    def failure(self) -> BaseException | None:
        """The latest record's error, once `query` or `wait` saw it complete."""

    @abstractmethod
    def elapsed_ms(self, end: DriverEvent) -> float:
        """Milliseconds from this event to `end`; both complete and made with `timing`."""

    @abstractmethod
    def notify(self, callback: Callable[[], None]) -> bool:
        """Have a driver's thread call `callback` once the latest record completes.

        Returns False, and never calls it, if the driver has no thread that may run Python: then poll `query`.
        If the record is complete already, `callback` is called at once.
        """

    def without_failure(self) -> DriverEvent:
        """An event of the same point. Work that waits for it does not fail with it."""
        return self

    @abstractmethod
    def close(self) -> None:
        """Free the event. Pending waits for it stay valid."""


Launcher = Callable[["DriverStream", int, int], None]
"""`launch(stream, blocks, parameters)`; see `DriverStream.launcher`."""


Finish = Callable[["BaseException | None", "float | None"], None]
"""`finish(error, time)`: a meeting is over for this stream. `time` is on the device's clock; None without a clock."""

Meet = Callable[[Finish, "BaseException | None", float], None]
"""`meet(finish, failure, time)`; see `DriverStream.meet`."""


class DriverStream(ABC):
    """An ordered queue of work on one device."""

    __slots__ = ()

    @abstractmethod
    def begin_run(self) -> None:
        """Begin a run: errors of earlier work, but for a lost device, do not fail it.

        The device is the calling thread's current one until `end_run`: calls of the driver then need not switch. Calls
        of the two methods nest.

        Raises:
            DeviceLostError: the device was lost.
            ContextError: this process is a fork of the device's owner.
        """

    @abstractmethod
    def end_run(self) -> None:
        """End a run: all of its work is enqueued. Called on the thread that began it."""

    def begin_single(self) -> None:
        """Begin a run of one piece of work, which is enqueued next.

        `end_run` is not called. This raises as `begin_run`, or the call that enqueues the work does.
        """
        self.begin_run()
        self.end_run()

    def continue_run(self) -> None:  # noqa: B027 - nothing to do where a failure names its run
        """Continue the last run with the work that is enqueued next.

        If a waiter follows that run, and so gets its failure, a new run begins, as by `begin_single`.
        """

    def expect_output(self) -> None:  # noqa: B027 - work that runs in this process prints at once
        """Work that is enqueued from here on may print.

        If the device buffers output, the driver writes it out when it finds the work complete.
        """

    def enter(self) -> None:  # noqa: B027 - most devices are current on every thread
        """Make the device this thread's current one until `leave`, for other libraries."""

    def leave(self) -> None:  # noqa: B027 - as `enter`
        """Restore the device that was current before `enter`."""

    @abstractmethod
    def check_behind(self, check: Check, *, expect: Callable[[], None] | None = None) -> None:
        """Call `check` when the work enqueued so far is over, to raise the work's failure.

        Args:
            check: returns False while it cannot tell: then the work does not count as over, and it is called again. It
                is called on any thread, and for each waiter that looks for failures, also before the end of the work.
                In a capture it is called for each launch of the graph. It must not use the driver, nor wait.
            expect: called when a waiter comes that has nothing else to do. The check's questions to other processes
                are then asked while the work goes on. It must not wait. Not every driver calls it, and no capture does.
        """

    def awaited(self) -> None:  # noqa: B027 - nothing to do where checks ask nobody
        """Note that a caller waits for the work so far, and has nothing else to do."""

    @abstractmethod
    def record(self, event: DriverEvent) -> None:
        """Make `event` complete when all work enqueued so far has."""

    @abstractmethod
    def followed(self) -> None:
        """Note that a caller waits for the work of the present run: it follows the run.

        That waiter alone gets the run's failure. Until a run is followed, a failure is also that of later records.
        """

    def forget(self, failure: BaseException) -> None:  # noqa: B027 - most keep no failure
        """Drop a failure once its waiter has it; later waiters get a copy.

        The traceback of a failure keeps frames alive.
        """

    @abstractmethod
    def wait_event(self, event: DriverEvent) -> None:
        """Later work waits, on the device, for the latest record of `event`."""

    @abstractmethod
    def query(self) -> bool:
        """Whether all enqueued work has completed, or failed. Never waits, never raises."""

    @abstractmethod
    def allocate(self, nbytes: int) -> int:
        """Allocate `nbytes` > 0, aligned to 64 bytes at least; return the address.

        Raises:
            OutOfMemoryError: it does not fit.
        """

    @abstractmethod
    def free(self, address: int) -> None:
        """Free an address of `allocate` when the work enqueued so far has completed."""

    @abstractmethod
    def copy(self, destination: int, source: int, nbytes: int) -> None:
        """Copy within this device, or between it and page-locked host memory."""

    @abstractmethod
    def copy_peer(
        self, destination: int, destination_driver: Driver, source: int, source_driver: Driver, nbytes: int
    ) -> None:
        """Copy between two devices of this kind, if necessary through host memory."""

    @abstractmethod
    def fill(self, destination: int, nbytes: int, pattern: bytes) -> None:
        """Repeat `pattern` over `nbytes` bytes at `destination`.

        The pattern has 1, 2 or 4 bytes, a divisor of `nbytes`.
        """

    @abstractmethod
    def call(self, function: Callable[[], None]) -> None:
        """Call `function` on a host thread, in stream order. It must not call the driver."""

    def meet(self, make: Callable[[], Meet]) -> None:
        """Enqueue a meeting with other streams, maybe of other processes.

        Later work waits until it is over.

        Args:
            make: called now; in a capture, at each launch of the graph. It returns a function, which the stream calls
                as `meet(finish, failure, time)` when the work before the meeting is over. `failure` is the error of
                that work, `time` its end in seconds on the device's clock. The function sees to it that `finish` is
                called once, on any thread, now or later.

        Raises:
            LaunchError: streams of this device cannot be parked.
        """
        raise LaunchError("meet: streams of this device do not wait for the host; use a CPU or simulated device")

    parked: int = 0
    """The number of meetings that are enqueued and not over: later work waits for them."""

    threads: int = 1
    """The number of threads that one piece of host code may use, its worker's included."""

    @abstractmethod
    def parallel_for(self, body: Callable[[int, int], None], count: int, grain: int) -> None:
        """Call `body(start, stop)` over pieces of [0, count), on several workers.

        A piece is at most `grain` long.

        Raises:
            LaunchError: the device runs no host code (CUDA), or the numbers are not positive.
        """

    @abstractmethod
    def launch_function(
        self,
        function: object,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        parameters: int,
    ) -> None:
        """Launch a function that `Driver.load_function` returned.

        `parameters` is the address of a `void*` array, which is read before the call returns.

        Raises:
            LaunchError: the device runs no GPU code, or the launch shape is refused.
        """

    def prepare_launch(
        self,
        function: object,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        parameters: int,
    ) -> Callable[[], None]:
        """A function that calls `launch_function` with these arguments.

        A driver prepares here what is the same in all calls. The memory behind `parameters` is read at each call.
        Raises as `launch_function` does.
        """
        return lambda: self.launch_function(function, grid, block, shared_bytes, parameters)

    def launcher(self, function: object, block: tuple[int, int, int], shared_bytes: int) -> Launcher:
        """A function `launch(stream, blocks, parameters)`, for any stream of the device.

        It launches `function` as `launch_function` does, over a grid of one axis. A driver prepares here what is the
        same in all launches.
        """

        def launch(stream: DriverStream, blocks: int, parameters: int) -> None:
            stream.launch_function(function, (blocks, 1, 1), block, shared_bytes, parameters)

        return launch

    @abstractmethod
    def begin_capture(self) -> None:
        """Record copies, fills and launches from here on, in place of running them.

        Other streams run their work as before.
        """

    @abstractmethod
    def end_capture(self) -> DriverGraph:
        """End the recording, whatever happened in it, and return it.

        Raises:
            DriverError: the recording cannot be used; the stream can.
        """

    @abstractmethod
    def launch_graph(self, graph: DriverGraph) -> None:
        """Enqueue the recorded work. Launches of one graph run one after the other."""

    @property
    def raw(self) -> int:
        """The driver's handle, as a number.

        Raises:
            LaunchError: the streams of this device have none.
        """
        raise LaunchError("this stream has no handle outside this package; streams of a CUDA device have one")

    @abstractmethod
    def close(self) -> None:
        """Free the stream when its work is done. Does not wait."""


class DriverGraph(ABC):
    """Recorded work that can be launched any number of times."""

    __slots__ = ()

    @property
    @abstractmethod
    def nodes(self) -> int:
        """The number of recorded copies, fills and launches."""

    @abstractmethod
    def instantiate(self) -> None:
        """Make the recording launchable. If this fails, close the graph all the same."""

    @abstractmethod
    def upload(self, stream: DriverStream) -> None:
        """Copy the graph to the device now: otherwise the first launch does it."""

    @abstractmethod
    def close(self) -> None:
        """Free the graph; no launch may be in flight."""


class DriverFunction(ABC):
    """A kernel of a module, for `DriverStream.launch_function`.

    Its module stays loaded as long as it lives.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def parameter_sizes(self) -> tuple[int, ...] | None:
        """The size of each parameter in bytes, as the driver reports them.

        None where it cannot.
        """

    @abstractmethod
    def allow_shared(self, nbytes: int) -> None:
        """Permit launches with this many bytes of dynamic shared memory."""

    @property
    @abstractmethod
    def raw(self) -> int:
        """The driver's handle, as a number."""


class DriverModule(ABC):
    """Loaded code, unloaded when nobody refers to it or to one of its functions."""

    __slots__ = ()

    @abstractmethod
    def function(self, name: str) -> DriverFunction:
        """Find a kernel.

        Raises:
            DriverError: there is none of this name.
        """

    @property
    @abstractmethod
    def raw(self) -> int:
        """The driver's handle, as a number."""


class Driver(ABC):
    """One device."""

    works_alone: bool = False
    """Whether the device works beside the CPU, so that a thread that polls does not slow it down."""

    runs_host_code: bool = False
    """Whether work of the device may be a Python function that touches its memory."""

    dlpack_type: int = 0
    """The kind of device by which libraries exchange memory (`DLDeviceType`): 1 for the CPU's, 2 for CUDA's."""

    array_interface: str = ""
    """The attribute by which older libraries exchange its memory, such as `__cuda_array_interface__`; "" for none."""

    @property
    @abstractmethod
    def properties(self) -> DeviceProperties: ...

    @abstractmethod
    def create_stream(self) -> DriverStream: ...

    @abstractmethod
    def create_event(self, *, timing: bool = False) -> DriverEvent: ...

    @abstractmethod
    def load_function(self, image: bytes, entry: str, shared_bytes: int, *, early: Early = "never") -> object:
        """Load machine code (a cubin) and return its function `entry`.

        It may use `shared_bytes` of dynamic shared memory. The code stays loaded as long as the returned object lives.
        `early` says when its launches may begin while the kernel ahead still runs: the function itself waits for that
        kernel (`griddepcontrol.wait`).
        """

    def resident_blocks(self, function: object, threads: int, shared_bytes: int, cluster: int) -> int:
        """The number of blocks of a loaded function that the device runs at once.

        Args:
            function: the function.
            threads: threads of a block.
            shared_bytes: dynamic shared memory of a block.
            cluster: blocks of a cluster; only whole clusters count.

        Raises:
            LaunchError: the device runs no GPU code.
        """
        raise self._runs_no_gpu_code("resident_blocks")

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
        """The 128 bytes that describe a tensor to a GPU's TMA unit (`CUtensorMap`).

        Innermost axis first.

        Args:
            element: "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "tf32" or "f64".
            address: the address of the first element.
            extents: 1 to 5 extents, in elements.
            strides: the strides in bytes of the axes after the first, whose stride is one element.
            box: the extents of one copy, in elements.
            swizzle: bytes of a row within which pieces are permuted in shared memory: 0, 32, 64 or 128.
            step: the traversal stride of the second axis: every `step`-th element is copied; the box counts all.

        Raises:
            DriverError: the driver refuses it.
            LaunchError: the device runs no GPU code.
        """
        raise self._runs_no_gpu_code("encode_tensor_map")

    def load_module(self, image: bytes) -> DriverModule:
        """Load a cubin, a fat binary or PTX text with a zero byte at its end.

        Raises:
            DriverError: the driver refuses the image.
            LaunchError: the device runs no GPU code.
        """
        raise self._runs_no_gpu_code("load_module")

    def compile_source(self, source: str, name: str, options: tuple[str, ...]) -> str:
        """Compile CUDA C++ for this device to PTX.

        Raises:
            KernelCacheError: the compiler is missing, or refuses the source; the message has its log.
            LaunchError: the device runs no GPU code.
        """
        raise self._runs_no_gpu_code("compile_source")

    def borrow_module(self, raw: int) -> DriverModule:
        """Wrap a module that its owner unloads. Raises LaunchError as `load_module`."""
        raise self._runs_no_gpu_code("borrow_module")

    def borrow_function(self, raw: int) -> DriverFunction:
        """Wrap a function of a module that its owner unloads. Raises as `borrow_module`."""
        raise self._runs_no_gpu_code("borrow_function")

    def borrow_stream(self, raw: int) -> DriverStream:
        """Wrap a stream that its owner destroys.

        Raises:
            LaunchError: the streams of this device have no handle outside this package.
        """
        raise LaunchError(f"borrow_stream: streams of {self.properties.name} exist in this package only")

    def _runs_no_gpu_code(self, call: str) -> LaunchError:
        return LaunchError(f"{call}: {self.properties.name} runs no GPU code; use a CUDA device, Device(0)")

    @abstractmethod
    def pin(self, nbytes: int) -> int:
        """Allocate page-locked host memory; return its address."""

    @abstractmethod
    def unpin(self, address: int, nbytes: int) -> None:
        """Free an address of `pin`; no work may use it any more."""

    @abstractmethod
    def memory_info(self) -> MemoryInfo: ...

    def pool_high(self) -> tuple[int, int]:
        """The most bytes in use, and the most held by the pool, since the last resets."""
        raise self._runs_no_gpu_code("pool_high")

    def reset_pool_high(self, *, used: bool, reserved: bool) -> None:
        """Reset one or both numbers of `pool_high` to the present ones."""
        raise self._runs_no_gpu_code("reset_pool_high")

    def keep_free(self, nbytes: int) -> None:
        """Have the pool keep up to this many bytes of freed memory for reuse."""
        raise self._runs_no_gpu_code("keep_free")

    @abstractmethod
    def trim(self, keep_bytes: int = 0) -> None:
        """Give freed memory of the pool back to the system, down to `keep_bytes`."""

    def unrestricted(self) -> AbstractContextManager[None]:
        """Allow this thread to allocate, load and query while another library captures.

        Work that is enqueued on the capturing stream is captured as before.
        """
        return nullcontext()

    @abstractmethod
    def check(self) -> None:
        """Raise an error if the device cannot be used.

        Raises:
            DeviceLostError: the device was lost.
            ContextError: this process is a fork of the device's owner.
        """
