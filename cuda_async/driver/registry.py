"""The driver of each kind of device. The only file that names the three drivers.

A driver is imported when a device of its kind is first opened: importing CUDA's bindings takes time, and they may be
absent.
"""

from __future__ import annotations

from typing import Final

from cuda_async.driver.debug import checked_if_asked
from cuda_async.driver.interface import DeviceKind, Driver
from cuda_async.errors import NoDeviceError

__all__ = ("ACCELERATOR", "NAMES", "borrow_driver", "count", "open_driver")

ACCELERATOR: Final[DeviceKind] = "cuda"
"""The kind of device of `Device(0)` and `device_count()`. A machine that has one prefers it to the CPU."""

NAMES: Final[dict[str, DeviceKind]] = {"cpu": "host", "host": "host", "cuda": "cuda", "gpu": ACCELERATOR}
"""The kind of device for each name that users write."""


def open_driver(kind: DeviceKind, ordinal: int) -> Driver:
    """Open device `ordinal` of this kind.

    Raises:
        NoDeviceError: this machine has no such device.
    """
    if kind == "cuda":
        from cuda_async.driver.cuda import open_device

        return checked_if_asked(open_device(ordinal))
    if kind == "host":
        from cuda_async.driver.host import HostDriver

        if ordinal != 0:
            raise NoDeviceError(ordinal, f"host device {ordinal} was asked for; there is one, number 0")
        return checked_if_asked(HostDriver())
    raise NoDeviceError(ordinal, "a simulated device is made with cuda_async.testing.SimDriver and Device.from_driver")


def borrow_driver(ordinal: int, context: int, owner: object) -> Driver:
    """Open CUDA device `ordinal` in a context that another library owns.

    Args:
        ordinal: the device's number.
        context: the handle of the context (`CUcontext`).
        owner: an object that keeps the context alive; the driver holds it.

    Raises:
        NoDeviceError: this machine has no such device.
    """
    from cuda_async.driver.cuda import open_device

    return checked_if_asked(open_device(ordinal, context, owner))


def count(kind: DeviceKind) -> int:
    """How many devices of this kind this machine has; 0 where there is no driver."""
    if kind == "cuda":
        from cuda_async.driver.cuda import count_devices

        return count_devices()
    return 1 if kind == "host" else 0
