"""`Device`: a GPU, or this machine's CPU. There is one object for each device.

A device owns its driver, and a list of calls that give things back to the driver. Finalizers append to that list. They
neither take locks nor call the driver, since the garbage collector may run them inside any other code. The calls are
made at the next submission.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, cast

from cuda_async.config import config
from cuda_async.core.defaults import current_device, enter, innermost, leave
from cuda_async.core.event import Event
from cuda_async.core.report import ReportMemory
from cuda_async.core.stream import Stream
from cuda_async.driver import registry
from cuda_async.driver.checked import CheckedDriver
from cuda_async.driver.interface import (
    DeviceKind,
    DeviceProperties,
    Driver,
    DriverEvent,
    DriverStream,
    MemoryInfo,
)
from cuda_async.errors import ArgumentError, ArgumentTypeError, NoDeviceError, as_text
from cuda_async.locks import new_lock

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from cuda_async.core.memory import MemPool
    from cuda_async.core.module import Module
    from cuda_async.core.policy import SchedulingPolicy

__all__ = ("Device", "DeviceStatistics", "as_device", "default_device", "device_count", "set_default_device")


@dataclass(frozen=True, slots=True)
class DeviceStatistics:
    """Counts of a device.

    Attributes:
        memory: bytes free, in all, in use by us, and kept by the pool.
        deferred: calls that finalizers left for the next submission.
        idle_events: events of the device's pool that are not in use now.
        uses_checked: uses of memory that were checked; None where the debug mode is off.
        races: pairs of uses among them that nothing orders; 0 where the debug mode is off.
    """

    memory: MemoryInfo
    deferred: int
    idle_events: int
    uses_checked: int | None
    races: int


_devices: dict[tuple[DeviceKind, int], Device] = {}
_devices_lock = new_lock()


# Names that users of other libraries try as attributes of `Device`, and what to write instead.
_DEVICES = {
    "count": "device_count()",
    "cpu": "Device.host()",
    "cuda": "Device(0) or Device('cuda:1')",
    "current": "default_device()",
    "default": "default_device()",
    "gpu": "Device(0) or Device('cuda:1')",
}


class _DeviceNames(type):
    """The class of `Device`, which answers names of other libraries' devices."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> NoReturn:
            remedy = f"; write {_DEVICES[name]}" if name in _DEVICES else ""
            raise AttributeError(f"{cls.__name__} has no attribute {name!r}{remedy}", name=name, obj=cls)


class Device(metaclass=_DeviceNames):
    """A GPU (`Device(0)`), or the CPU (`Device.host()`).

    As a context manager it is the default device inside the block.

    Args:
        which: number of the CUDA device, or the name of any device: `cpu`, `cuda` or `cuda:1`.

    Raises:
        NoDeviceError: there is no such GPU, or no driver; the message says what was looked for.
        TypeError: `which` is neither a number nor a name.
        ValueError: no device has this name.

    Example:
        >>> from cuda_async import Device
        >>> cpu = Device.host()
        >>> cpu.kind, cpu.arch, cpu is Device.host(), cpu is Device("cpu")
        ('host', 'cpu', True, True)
    """

    __slots__ = ("__weakref__", "_staging", "driver", "garbage", "idle_events", "policy", "properties", "reports")

    driver: Driver
    properties: DeviceProperties
    policy: SchedulingPolicy | None
    """The policy that `global_policy` returns for this device; None before its first call."""
    garbage: deque[Callable[[], None]]
    """Calls that finalizers left; see `collect`."""
    reports: ReportMemory
    """Reports into which launches write failures."""
    idle_events: deque[DriverEvent]
    """The pool of events that are not in use."""
    _staging: Stream | None

    def __new__(cls, which: int | str = 0) -> Device:
        return as_device(which)

    @classmethod
    def of_kind(cls, kind: DeviceKind, ordinal: int = 0) -> Device:
        """Return the device of this kind and number."""
        device = _devices.get((kind, ordinal))
        if device is None:
            with _devices_lock:
                device = _devices.get((kind, ordinal))
                if device is None:
                    device = _devices[kind, ordinal] = cls.from_driver(registry.open_driver(kind, ordinal))
        return device

    @classmethod
    def from_driver(cls, driver: Driver) -> Device:
        """Make a device of a driver of your own, such as a `SimDriver`."""
        self = object.__new__(cls)
        self.driver = driver
        self.properties = driver.properties
        self.policy = None
        self.garbage = deque()
        self.reports = ReportMemory(driver)
        self.idle_events = deque()
        self._staging = None
        return self

    @classmethod
    def borrow_raw(cls, context: int, ordinal: int = 0, *, owner: object = None) -> Device:
        """A GPU in a context (`CUcontext`) that another library made, and destroys.

        Args:
            context: the handle.
            ordinal: the number of the context's GPU.
            owner: held as long as the device lives.

        Raises:
            NoDeviceError: there is no such GPU.
        """
        return cls.from_driver(registry.borrow_driver(ordinal, context, owner))

    @classmethod
    def host(cls) -> Device:
        """The CPU of this machine."""
        return cls.of_kind("host")

    @classmethod
    def best(cls) -> Device:
        """The first GPU if this machine has one that works, else the CPU."""
        return cls.of_kind(registry.ACCELERATOR) if device_count() > 0 else cls.host()

    @classmethod
    def parse(cls, text: str) -> Device:
        """Return the device that `text` names: `cpu`, `cuda` or `cuda:1`.

        Raises:
            TypeError: it is no text.
            ValueError: it names no device.
            NoDeviceError: this machine has no such device.
        """
        if not isinstance(cast("object", text), str):
            raise ArgumentTypeError(
                f"text: expected the name of a device, such as 'cpu' or 'cuda:1'; got {type(text).__name__}: "
                f"{as_text(text)}"
            )
        name, _, number = text.strip().partition(":")
        kind = registry.NAMES.get(name)
        if kind == "host" and not number:
            return cls.host()
        if kind not in (None, "host") and (not number or number.isdecimal()):
            return cls.of_kind(kind, int(number or 0))
        raise ArgumentError(f"device {text!r}: expected 'cpu', 'cuda' or 'cuda:<number>', as in Device('cuda:0')")

    # -- what it is ---------------------------------------------------------------------------

    @property
    def runs_host_code(self) -> bool:
        """Whether enqueued Python functions may touch its memory. Not on a GPU."""
        return self.driver.runs_host_code

    @property
    def kind(self) -> DeviceKind:
        """`cuda`, `host` (the CPU) or `sim`."""
        return self.properties.kind

    @property
    def ordinal(self) -> int:
        """The number among the devices of its kind, from 0."""
        return self.properties.ordinal

    @property
    def name(self) -> str:
        """The system's name of the device."""
        return self.properties.name

    @property
    def arch(self) -> str:
        """The compiler target: `sm_90a` on a Hopper GPU, `cpu` on the host."""
        return self.properties.arch

    @property
    def multiprocessor_count(self) -> int:
        """Streaming multiprocessors of a GPU, usable cores of a CPU."""
        return self.properties.multiprocessor_count

    @property
    def l2_cache_bytes(self) -> int:
        """Bytes of the cache that all its multiprocessors share; 0 where that is unknown."""
        return self.properties.l2_cache_bytes

    @property
    def shared_memory_bytes(self) -> int:
        """Bytes of shared memory of one multiprocessor; 0 of a CPU."""
        return self.properties.shared_memory_bytes

    def memory_info(self) -> MemoryInfo:
        """Bytes free, in all, used by us, and kept by the pool for reuse."""
        return self.driver.memory_info()

    def statistics(self) -> DeviceStatistics:
        """Counts of this device now."""
        driver = self.driver
        checked = driver if isinstance(driver, CheckedDriver) else None
        return DeviceStatistics(
            driver.memory_info(),
            len(self.garbage),
            len(self.idle_events),
            None if checked is None else checked.uses,
            0 if checked is None else len(checked.races),
        )

    # -- what it makes ------------------------------------------------------------------------

    def new_stream(self, *, sm_margin: int | None = 0) -> Stream:
        """Make a stream; its work may overlap with that of other streams.

        Args:
            sm_margin: multiprocessors that kernels with a persistent grid leave free on this stream. Such a kernel
                takes all others until it ends. Without a margin a collective on another stream would wait for the
                kernel, or the kernel for the collective: leave as many multiprocessors as the collective has thread
                blocks (`Communicator.max_ctas`, which is None if NCCL chooses their number). None leaves none. On a CPU
                it has no effect.

        Raises:
            TypeError: `sm_margin` is no whole number.
            ValueError: it is negative, or leaves the stream no multiprocessor.
        """
        try:
            margin = 0 if sm_margin is None else operator.index(sm_margin)
        except TypeError:
            raise ArgumentTypeError(
                f"sm_margin: expected a whole number of multiprocessors, got {as_text(sm_margin)}"
            ) from None
        if self.kind == registry.ACCELERATOR and margin >= self.multiprocessor_count:
            raise ArgumentError(
                f"sm_margin: expected 0 to {self.multiprocessor_count - 1} of the {self.multiprocessor_count} "
                f"multiprocessors of {self}, got {as_text(margin)}"
            )
        if margin < 0:
            raise ArgumentError(f"sm_margin: expected 0 or more multiprocessors, got {as_text(margin)}")
        self.collect()
        return Stream(self, self.driver.create_stream(), sm_margin=margin)

    def new_event(self, *, timing: bool = False) -> Event:
        """Make an event; with `timing` it takes part in `Event.elapsed_time`."""
        return Event(self, timing=timing)

    def default_mem_pool(self) -> MemPool:
        """The pool of this device's memory: its statistics and settings."""
        from cuda_async.core.memory import MemPool

        return MemPool(self)

    def load_module_from_ptx_src(self, source: str | bytes) -> Module:
        """Load PTX text; see `module.py`. Raises DriverError, LaunchError."""
        from cuda_async.core.module import load_module_from_ptx_src

        return load_module_from_ptx_src(source, self)

    def load_module_from_bytes(self, image: bytes) -> Module:
        """Load a cubin or a fat binary; see `module.py`. Raises DriverError, LaunchError."""
        from cuda_async.core.module import load_module_from_bytes

        return load_module_from_bytes(image, self)

    def load_module_from_file(self, path: str | Path) -> Module:
        """Load PTX, a cubin or CUDA C++, by the file's suffix; see `module.py`."""
        from cuda_async.core.module import load_module_from_file

        return load_module_from_file(path, self)

    def load_module_from_cuda_src(self, source: str, *, name: str = "kernel.cu", options: Sequence[str] = ()) -> Module:
        """Compile CUDA C++ through NVRTC and load it; see `module.py`.

        Raises KernelCacheError, LaunchError.
        """
        from cuda_async.core.module import load_module_from_cuda_src

        return load_module_from_cuda_src(source, self, name=name, options=options)

    def synchronize(self) -> None:
        """Wait for the streams of this device's policy, and for no others.

        Raises:
            DeviceError: work failed, as for `Stream.synchronize`. The first failure is raised after all waits.
        """
        from cuda_async.core.policy import policy_streams

        failure: Exception | None = None
        for stream in policy_streams(self):
            try:
                stream.synchronize()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # the error has this frame, which must not have the error

    # -- what is given back -------------------------------------------------------------------

    def defer(self, give_back: Callable[[], None]) -> None:
        """Have `give_back` called at the next safe moment. For finalizers: takes no lock."""
        self.garbage.append(give_back)

    def collect(self) -> None:
        """Make the calls that finalizers left.

        Called at each submission, and never inside a capture.
        """
        garbage = self.garbage
        while garbage:
            try:
                give_back = garbage.popleft()
            except IndexError:  # another thread took the last one
                return
            give_back()

    def borrow_event(self) -> DriverEvent:
        """An event from this device's pool, which the caller returns by `return_event`."""
        try:
            return self.idle_events.popleft()
        except IndexError:
            return self.driver.create_event()

    def record_event(self, stream: DriverStream) -> DriverEvent:
        """An event from the pool, recorded on `stream`, for a caller that waits for it.

        The caller returns it by `return_event`.

        Raises:
            DriverError: it could not be recorded.
        """
        event = self.borrow_event()
        try:
            stream.record(event)
            stream.followed()
        except BaseException:
            self.return_event(event)
            raise
        return event

    def return_event(self, event: DriverEvent) -> None:
        """Return an event to the pool. No thread may wait for it any more."""
        self.idle_events.append(event)

    def staging_stream(self) -> Stream:
        """The stream for large host copies by workers, to and from page-locked memory."""
        if self._staging is None:
            self._staging = Stream(self, self.driver.create_stream())
        return self._staging

    # -- defaults -----------------------------------------------------------------------------

    def __enter__(self) -> Device:
        enter(current_device, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave(current_device)

    def __reduce__(self) -> tuple[Callable[[DeviceKind, int], Device], tuple[DeviceKind, int]]:
        return Device.of_kind, (self.kind, self.ordinal)

    def __repr__(self) -> str:
        return "cpu" if self.kind == "host" else f"{self.kind}:{self.ordinal}"


def as_device(which: Device | int | str) -> Device:
    """The device that `which` names.

    Args:
        which: the device itself, the number of a GPU, or `cpu`, `cuda`, `cuda:1`.

    Raises:
        NoDeviceError: this machine has no such device.
        TypeError: `which` is none of these.
        ValueError: no device has this name.
    """
    if isinstance(which, Device):
        return which
    if isinstance(which, str):
        return Device.parse(which)
    if not isinstance(which, bool):
        try:
            number = operator.index(which)
        except TypeError:
            pass
        else:
            return Device.of_kind(registry.ACCELERATOR, number)
    raise ArgumentTypeError(
        f"expected a device, the number of a GPU, or a name such as 'cpu' or 'cuda:1'; got {type(which).__name__}: "
        f"{as_text(which)}"
    )


_process_default: list[Device] = []  # one device, or none before it is needed


def device_count(kind: DeviceKind = registry.ACCELERATOR) -> int:
    """The number of usable devices of a kind; 0 where there is no driver.

    >>> device_count("host")
    1
    """
    return registry.count(kind)


def set_default_device(device: Device | int | str | None) -> None:
    """Set the device of operations that name none.

    None undoes the setting. Raises as `Device` does.

    Example:
        >>> from cuda_async import default_device, set_default_device
        >>> set_default_device("cpu")
        >>> default_device()
        cpu
        >>> set_default_device(None)
    """
    _process_default[:] = [] if device is None else [as_device(device)]


def default_device() -> Device:
    """The device of operations that name none.

    It is the device of the innermost `with device:`; else the one set by `set_default_device`; else the one that
    `CUDA_ASYNC_DEVICE` names; else the best one (`Device.best`).

    Example:
        >>> from cuda_async import Device, default_device
        >>> with Device("cpu"):
        ...     default_device()
        cpu
    """
    device = innermost(current_device)
    if device is not None:
        return device
    if not _process_default:
        _process_default.append(_configured() or Device.best())
    return _process_default[0]


def _configured() -> Device | None:
    """The device that `CUDA_ASYNC_DEVICE` names, if it is set."""
    name = config().device
    try:
        return Device.parse(name) if name else None
    except (ValueError, NoDeviceError) as error:
        error.add_note(f"the variable CUDA_ASYNC_DEVICE is {name!r}")
        raise
