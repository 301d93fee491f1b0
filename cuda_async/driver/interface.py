"""What a driver must provide: streams, events, memory, copies, launches.

Three siblings implement it and pass one test suite: `cuda`, `host` (the CPU) and `sim` (virtual
time, for tests). They never import one another. The rules they share:

- A stream is an ordered queue. Enqueueing never waits, and a stream that waits for an event
  occupies no thread.
- `wait_event` waits for the record that is the event's latest when it is called; an event that was
  never recorded is complete.
- Memory is ordered by the stream: an address may be used at once by work on the same stream.
- An error in enqueued work fails the work behind it, up to the next `begin_run`. Work of other
  streams that waits for it fails as well (`DependencyError`). If nobody waits for the failed work, the
  next waiter of the stream gets the error, though its own work is done. Where a device cannot go on
  after an error (CUDA), everything fails: `DeviceLostError`.

Ordering between streams that share memory is not a driver's business: see `storage.py`.
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
    "Finish",
    "Launcher",
    "Meet",
    "MemoryInfo",
)

DeviceKind = Literal["cuda", "host", "sim"]

Check = Callable[[], bool | None]
"""Says how work went that is over; see `DriverStream.check_behind`."""


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What a device is.

    `arch` is a compiler target: 'sm_90a' on a GPU, 'cpu' otherwise.
    """

    kind: DeviceKind
    ordinal: int
    name: str
    arch: str
    multiprocessor_count: int
    l2_cache_bytes: int
    total_memory_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Bytes of a device's memory.

    Attributes:
        free: that can be allocated.
        total: of the device.
        used: in allocations of this process.
        reserved: held by the pool, in use or not.
    """

    free: int
    total: int
    used: int
    reserved: int


class DriverEvent(ABC):
    """A point in a stream that others can wait for."""

    __slots__ = ()

    @abstractmethod
    def query(self) -> bool:
        """Whether the latest record has completed, well or not. Never waits, never raises."""

    @abstractmethod
    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for the latest record, without the GIL.

        Returns whether it completed.
        """

    def forget(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Drop the failure, which its waiter has: exceptions keep frames alive."""

    @abstractmethod
    def failure(self) -> BaseException | None:
        """The latest record's error, once `query` or `wait` saw it complete."""

    @abstractmethod
    def elapsed_ms(self, end: DriverEvent) -> float:
        """Milliseconds from this event to `end`; both complete and made with `timing`."""

    @abstractmethod
    def notify(self, callback: Callable[[], None]) -> bool:
        """Have a driver's thread call `callback` once the latest record completes.

        Returns False where the driver has no thread that may run Python: then poll `query`.
        Calls it at once if the record is complete already.
        """

    def without_failure(self) -> DriverEvent:
        """The same point, for waits that order work and pass no failure on."""
        return self

    @abstractmethod
    def close(self) -> None:
        """Give the event back. Pending waits for it stay valid."""


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
        """A run begins: errors of earlier work do not fail its work.

        A device that is lost at an error cannot keep this. The device becomes the calling thread's
        current one until `end_run`, which saves the driver time. Calls of the two nest.

        Raises:
            DeviceLostError: the device was lost.
            ContextError: this process is a fork of the device's owner.
        """

    @abstractmethod
    def end_run(self) -> None:
        """The run has enqueued all of its work. Called on the thread that began it."""

    def begin_single(self) -> None:
        """A run of one piece of work begins, which is enqueued next.

        `end_run` is not called. Raises as `begin_run`, or lets the enqueuing call raise.
        """
        self.begin_run()
        self.end_run()

    def continue_run(self) -> None:  # noqa: B027 - nothing to do where a failure names its run
        """Work is enqueued next that goes on with the run before.

        Where somebody follows that one, and has its failure, a run begins, as by `begin_single`.
        """

    def expect_output(self) -> None:
        """Work enqueued from here on may print.

        A driver whose device buffers the output writes it when the work is seen to have completed.
        """
        del self  # nothing to do here: work that runs in this process prints at once

    def enter(self) -> None:  # noqa: B027 - most devices are current on every thread
        """Make the device this thread's current one, for libraries, until `leave`."""

    def leave(self) -> None:  # noqa: B027 - as `enter`
        """Restore what was current before `enter`."""

    @abstractmethod
    def check_behind(self, check: Check, *, expect: Callable[[], None] | None = None) -> None:
        """Call `check` when the work enqueued so far is over: it raises its failure.

        It returns False while it cannot tell: then the work does not count as over, and it is called again. It is
        called on any thread, and for each waiter that looks for failures, also before the end of the work. In a capture
        it is called for each launch of the graph. It must not use the driver, nor wait.

        Args:
            check: what is called.
            expect: called once somebody begins to wait for the work, so that what the check asks others is asked while
                the work goes on. It must not wait. Not called by every driver, nor in a capture.
        """

    def awaited(self) -> None:  # noqa: B027 - nothing to do where checks ask nobody
        """Somebody waits for the work enqueued so far, without following it."""

    @abstractmethod
    def record(self, event: DriverEvent) -> None:
        """Make `event` complete when all work enqueued so far has."""

    @abstractmethod
    def followed(self) -> None:
        """Somebody waits for what was enqueued since the run began.

        That waiter alone gets its failure. The failure of a run that nobody follows is the failure of the next
        records as well, up to those of a run that is followed.
        """

    def forget(self, failure: BaseException) -> None:  # noqa: B027 - most have nothing to let go of
        """Drop a failure, which its waiter has; later waiters get a copy.

        An exception keeps the frames of its traceback alive.
        """

    @abstractmethod
    def wait_event(self, event: DriverEvent) -> None:
        """Later work waits, on the device, for the latest record of `event`."""

    @abstractmethod
    def query(self) -> bool:
        """Whether everything enqueued is over, well or not. Never waits, nor raises."""

    @abstractmethod
    def allocate(self, nbytes: int) -> int:
        """Allocate `nbytes` > 0, aligned to 64 bytes at least; return the address.

        Raises:
            OutOfMemoryError: it does not fit.
        """

    @abstractmethod
    def free(self, address: int) -> None:
        """Free what `allocate` returned, once the work enqueued so far has completed."""

    @abstractmethod
    def copy(self, destination: int, source: int, nbytes: int) -> None:
        """Copy within this device, or between it and page-locked host memory."""

    @abstractmethod
    def copy_peer(
        self, destination: int, destination_driver: Driver, source: int, source_driver: Driver, nbytes: int
    ) -> None:
        """Copy between two devices of this kind, through host memory if need be."""

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

        `make()` is called now; in a capture it is called at each launch of the graph. It returns a function, which the
        stream calls as `meet(finish, failure, time)` when the work before the meeting is done. `failure` is the error
        of that work, `time` its end on the device's clock. The function sees to it that `finish` is called once, on
        any thread, at once or later.

        Raises:
            LaunchError: streams of this device cannot be parked.
        """
        raise LaunchError("meet: streams of this device do not wait for the host; use a CPU or simulated device")

    parked: int = 0
    """How many meetings are enqueued and not over: later work waits for them."""

    threads: int = 1
    """How many threads one piece of host code may use, its worker's included."""

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
        """Launch what `Driver.load_function` returned.

        `parameters` is the address of a `void*` array, read before the call returns.

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
        """From here on, copies, fills and launches are recorded and not run.

        Other streams run their work as before.
        """

    @abstractmethod
    def end_capture(self) -> DriverGraph:
        """End the recording, whatever happened in it, and return what was recorded.

        Raises:
            DriverError: the recording is unusable; the stream is not.
        """

    @abstractmethod
    def launch_graph(self, graph: DriverGraph) -> None:
        """Enqueue a run of everything recorded. Launches of one graph follow one another."""

    @property
    def raw(self) -> int:
        """The driver's handle, as a number.

        Raises:
            LaunchError: the streams of this device have none.
        """
        raise LaunchError("this stream has no handle outside this package; streams of a CUDA device have one")

    @abstractmethod
    def close(self) -> None:
        """Give the stream back once its work is done. Does not wait."""


class DriverGraph(ABC):
    """Recorded work that can be launched any number of times."""

    __slots__ = ()

    @property
    @abstractmethod
    def nodes(self) -> int:
        """How many copies, fills and launches were recorded."""

    @abstractmethod
    def instantiate(self) -> None:
        """Make the recording launchable. The graph is still to be closed where this fails."""

    @abstractmethod
    def upload(self, stream: DriverStream) -> None:
        """Bring what the first launch needs to the device."""

    @abstractmethod
    def close(self) -> None:
        """Give the graph back; no launch is in flight."""


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
    """Whether the device works without this process's processor, so that polling does not slow it down."""

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
    def load_function(self, image: bytes, entry: str, shared_bytes: int, *, early: bool = False) -> object:
        """Load machine code (a cubin) and return its function `entry`.

        It is allowed `shared_bytes` of dynamic shared memory. The code stays loaded as long as the returned object
        lives.

        `early`: its launches may begin while the kernel ahead of them in the stream still runs. The
        function waits for that kernel itself before it touches memory that the other may use.
        """

    def resident_blocks(self, function: object, threads: int, shared_bytes: int, cluster: int) -> int:
        """How many blocks of a loaded function the device holds at once.

        Args:
            function: the function.
            threads: of a block.
            shared_bytes: dynamic shared memory of a block.
            cluster: blocks of a cluster; the answer counts whole ones.

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
            address: of the first element.
            extents: in elements; 1 to 5 of them.
            strides: of the axes after the first, which has stride 1, in bytes.
            box: extents of one copy, in elements.
            swizzle: bytes of a row over which pieces are permuted in shared memory: 0, 32, 64 or 128.
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
        """Wrap a module that somebody else unloads.

        Raises LaunchError where the device runs no GPU code.
        """
        raise self._runs_no_gpu_code("borrow_module")

    def borrow_function(self, raw: int) -> DriverFunction:
        """Wrap a function of a module that somebody else unloads.

        Raises as `borrow_module`.
        """
        raise self._runs_no_gpu_code("borrow_function")

    def borrow_stream(self, raw: int) -> DriverStream:
        """Wrap a stream that somebody else destroys.

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
        """Free what `pin` returned; no work may use it any more."""

    @abstractmethod
    def memory_info(self) -> MemoryInfo: ...

    def pool_high(self) -> tuple[int, int]:
        """The most bytes in use, and held by the pool, since the marks were reset."""
        raise self._runs_no_gpu_code("pool_high")

    def reset_pool_high(self, *, used: bool, reserved: bool) -> None:
        """Reset one or both of these marks to what is there now."""
        raise self._runs_no_gpu_code("reset_pool_high")

    def keep_free(self, nbytes: int) -> None:
        """Have the pool keep up to this many bytes of freed memory for reuse."""
        raise self._runs_no_gpu_code("keep_free")

    @abstractmethod
    def trim(self, keep_bytes: int = 0) -> None:
        """Give cached free memory back to the system, down to `keep_bytes`."""

    def unrestricted(self) -> AbstractContextManager[None]:
        """Allow this thread to allocate, load and query while another library captures.

        Work that is enqueued on the capturing stream is captured as before.
        """
        return nullcontext()

    @abstractmethod
    def check(self) -> None:
        """Raise what makes this device unusable.

        It was lost, or this process is a fork of its owner.
        """
