"""`Device`: a GPU, or this machine's CPU, behind one face.

Interned: one object for one device.

It owns the driver and the list of things to give back. Finalizers only append to that list (no
lock, no driver call: they run wherever the garbage collector does); it is emptied at the next
submission or by the completion thread.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from cuda_async.errors import ArgumentError, ArgumentTypeError, NoDeviceError
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
    """What a device is at.

    Attributes:
        memory: bytes free, in all, in use by us, and kept by the pool.
        deferred: how many things finalizers left to be given back at the next submission.
        idle_events: events of the device's pool that nobody uses now.
        uses_checked: how many uses of memory were checked; None where the debug mode is off.
        races: of those, the pairs that nothing orders.
    """

    memory: MemoryInfo
    deferred: int
    idle_events: int
    uses_checked: int | None
    races: int


_devices: dict[tuple[DeviceKind, int], Device] = {}
_devices_lock = new_lock()


class Device:
    """A GPU (`Device(0)`), or the CPU (`Device.host()`).

    As a context manager it is the default device of the block.

    Args:
        which: number of the CUDA device, or the name of any device: `cpu`, `cuda` or `cuda:1`.

    Raises:
        NoDeviceError: there is no such GPU, or no driver; the message says what was looked for.
        TypeError: `which` is neither.
        ValueError: a name that no device has.

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
    """What `global_policy` returns for this device, once it was asked for."""
    garbage: deque[Callable[[], None]]
    """What finalizers left to be done; see `collect`."""
    reports: ReportMemory
    """In which launches tell what failed."""
    idle_events: deque[DriverEvent]
    """The pool of events: those that nobody uses now."""
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
        """Wrap a driver of one's own (a `SimDriver`, say) in a device of its own."""
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
            ordinal: the number of the GPU that it is of.
            owner: held as long as the device is.

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
            ValueError: it names no device.
            NoDeviceError: this machine has no such device.
        """
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
        """Whether its work may be Python functions that touch its memory: not on a GPU."""
        return self.driver.runs_host_code

    @property
    def kind(self) -> DeviceKind:
        """`cuda`, `host` (the CPU) or `sim`."""
        return self.properties.kind

    @property
    def ordinal(self) -> int:
        """Its number among the devices of its kind."""
        return self.properties.ordinal

    @property
    def name(self) -> str:
        """The name that the system gives it."""
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
        """Bytes of the cache that all of it shares (0 where the system does not say)."""
        return self.properties.l2_cache_bytes

    def memory_info(self) -> MemoryInfo:
        """Bytes free, in all, used by us, and kept by the pool for reuse."""
        return self.driver.memory_info()

    def statistics(self) -> DeviceStatistics:
        """What this device is at."""
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
            sm_margin: multiprocessors that kernels with a persistent grid leave free on it. Such a kernel takes all
                others until it ends, so that a collective on another stream would wait for it, or it for the
                collective: leave as many as that one has thread blocks (`Communicator.max_ctas`). None, as that has it
                where it is left to NCCL, leaves none. Without effect on a CPU.

        Raises:
            TypeError: `sm_margin` is no whole number.
            ValueError: it is negative, or leaves the stream no multiprocessor.
        """
        try:
            margin = 0 if sm_margin is None else operator.index(sm_margin)
        except TypeError:
            raise ArgumentTypeError(
                f"sm_margin: expected a whole number of multiprocessors, got {sm_margin!r}"
            ) from None
        if self.kind == registry.ACCELERATOR and margin >= self.multiprocessor_count:
            raise ArgumentError(
                f"sm_margin: expected 0 to {self.multiprocessor_count - 1} of the {self.multiprocessor_count} "
                f"multiprocessors of {self}, got {margin}"
            )
        if margin < 0:
            raise ArgumentError(f"sm_margin: expected 0 or more multiprocessors, got {margin}")
        self.collect()
        return Stream(self, self.driver.create_stream(), sm_margin=margin)

    def new_event(self, *, timing: bool = False) -> Event:
        """Make an event; with `timing` it can be measured from."""
        return Event(self, timing=timing)

    def default_mem_pool(self) -> MemPool:
        """Where this device's memory comes from, to be looked at and set."""
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
        """Wait for the default policy's streams (others: synchronize them)."""
        from cuda_async.core.policy import policy_streams

        for stream in policy_streams(self):
            stream.synchronize()

    # -- what it gives back -------------------------------------------------------------------

    def defer(self, give_back: Callable[[], None]) -> None:
        """Have `give_back` called at the next safe moment. For finalizers: takes no lock."""
        self.garbage.append(give_back)

    def collect(self) -> None:
        """Give back what finalizers left.

        Called at each submission; never inside a capture.
        """
        garbage = self.garbage
        while garbage:
            try:
                give_back = garbage.popleft()
            except IndexError:
                return
            give_back()

    def borrow_event(self) -> DriverEvent:
        """An event from this device's pool of events, to be returned."""
        try:
            return self.idle_events.popleft()
        except IndexError:
            return self.driver.create_event()

    def record_event(self, stream: DriverStream) -> DriverEvent:
        """An event from the pool, recorded on `stream` for its waiters.

        The caller returns it to the pool. Raises DriverError.
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
        """Take back an event from `borrow_event` that nobody waits for any more."""
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
    """A device as people name it.

    A name is the device itself, the number of a GPU, or `cpu`, `cuda`, `cuda:1`.

    Raises:
        NoDeviceError: this machine has no such device.
        TypeError: it is none of these.
        ValueError: a name that no device has.
    """
    if isinstance(which, Device):
        return which
    if isinstance(which, str):
        return Device.parse(which)
    if isinstance(which, int) and not isinstance(which, bool):
        return Device.of_kind(registry.ACCELERATOR, which)
    raise ArgumentTypeError(
        f"expected a device, the number of a GPU, or a name such as 'cpu' or 'cuda:1'; got {type(which).__name__}: "
        f"{which!r}"
    )


_process_default: list[Device] = []


def device_count(kind: DeviceKind = registry.ACCELERATOR) -> int:
    """How many devices of this kind can be used.

    Never raises where there is no driver.

    >>> device_count("host")
    1
    """
    return registry.count(kind)


def set_default_device(device: Device | int | str | None) -> None:
    """Set the device of operations that name none.

    None goes back to the best one found. Raises as `Device` does.

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

    That of the innermost `with device:`; else the one set by `set_default_device`; else what
    `CUDA_ASYNC_DEVICE` names; else the best one found.

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
    named = config().device
    try:
        return Device.parse(named) if named else None
    except (ValueError, NoDeviceError) as error:
        error.add_note(f"the variable CUDA_ASYNC_DEVICE is {named!r}")
        raise
