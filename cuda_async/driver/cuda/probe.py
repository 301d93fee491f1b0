"""Is there a CUDA driver, and how many devices does it see?

Asked once, and safely.

The driver library is loaded with `ctypes` and asked directly, before any CUDA binding is touched:
on a machine without a driver the bindings' objects raise, hang or abort when used.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from cuda_async.errors import NoDeviceError
from cuda_async.installed import install_command

if TYPE_CHECKING:
    from cuda_async.driver.interface import Driver

__all__ = ("Probe", "count_devices", "open_device", "probe", "why_none")

_LIBRARIES = {"win32": ("nvcuda.dll",), "linux": ("libcuda.so.1", "libcuda.so")}


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found: how many devices, and, if none, why and what helps."""

    devices: int
    reason: str


@cache
def probe() -> Probe:
    """Look for a driver and count its devices. Never raises."""
    names = _LIBRARIES.get(sys.platform, ())
    if not names:
        return Probe(0, f"CUDA does not exist for {sys.platform}; use Device.host()")
    library = _load(names)
    if library is None:
        return Probe(
            0,
            f"no NVIDIA driver was found (looked for {' and '.join(names)}); install the driver, or use "
            "Device.host(), the CPU",
        )
    code = int(library.cuInit(0))
    if code != 0:
        return Probe(
            0,
            f"the NVIDIA driver was found but cuInit failed with error {code}; nvidia-smi says more. "
            "Device.host() is the CPU",
        )
    count = ctypes.c_int(0)
    code = int(library.cuDeviceGetCount(ctypes.byref(count)))
    if code != 0 or count.value < 1:
        visible = "" if code == 0 else f" (error {code})"
        return Probe(
            0,
            f"the NVIDIA driver sees no device{visible}; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use "
            "Device.host(), the CPU",
        )
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        install = f"install the CUDA extra: {install_command('cuda')}"
        return Probe(0, f"there are {count.value} NVIDIA devices, but the package cuda-bindings is missing; {install}")
    return Probe(count.value, "")


def _load(names: tuple[str, ...]) -> ctypes.CDLL | None:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def count_devices() -> int:
    """How many CUDA devices can be used; 0 without a driver."""
    return probe().devices


def why_none() -> str | None:
    """Why no CUDA device can be used, with the remedy; None if one can."""
    return probe().reason or None


def open_device(ordinal: int, context: int | None = None, owner: object = None) -> Driver:
    """Open CUDA device `ordinal`.

    In the context of this handle, which `owner` keeps, if one is given.

    Raises:
        NoDeviceError: there is none, or fewer; the message says what was looked for and what helps.
    """
    state = probe()
    if state.reason:
        raise NoDeviceError(ordinal, f"GPU {ordinal} was asked for, but {state.reason}")
    if not 0 <= ordinal < state.devices:
        raise NoDeviceError(
            ordinal,
            f"GPU {ordinal} was asked for, but there are {state.devices}, numbered from 0; "
            "CUDA_VISIBLE_DEVICES may hide some",
        )
    from cuda_async.driver.cuda.device import CudaDriver

    if context is None:
        return CudaDriver(ordinal)
    from cuda_async.driver.cuda.context import BorrowedContext

    return CudaDriver(ordinal, BorrowedContext(ordinal, context, owner))
