"""The CUDA driver of this machine, and the number of its devices.

Both are looked up once in a process. The driver library is loaded with `ctypes` and called directly, before any CUDA
binding is used: on a machine without a driver the bindings raise, hang or abort.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from cuda_async.errors import NoDeviceError, as_text
from cuda_async.installed import install_command

if TYPE_CHECKING:
    from cuda_async.driver.interface import Driver

__all__ = ("Probe", "count_devices", "open_device", "probe", "why_none")

_LIBRARIES = {"win32": ("nvcuda.dll",), "linux": ("libcuda.so.1", "libcuda.so")}
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


@dataclass(frozen=True, slots=True)
class Probe:
    """The devices that were found.

    Attributes:
        devices: their number.
        reason: why there is none that can be used, with the remedy; empty if there is one.
    """

    devices: int
    reason: str


@cache
def probe() -> Probe:
    """Look for a driver and count its devices. Never raises.

    Once `cuInit` was called here, CUDA cannot be used in a child of `fork`: `cuInit` fails there.
    """
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
    # Other functions of the driver, cuDeviceGetCount included, fail before cuInit. Its argument has to be 0.
    code = int(library.cuInit(0))
    if code not in (0, _NO_DEVICE):
        return Probe(
            0,
            f"the NVIDIA driver was found but cuInit failed with error {code}; nvidia-smi says more. "
            "Device.host() is the CPU",
        )
    count = ctypes.c_int(0)
    if code == 0:  # else cuInit found no device, as with CUDA_VISIBLE_DEVICES=""
        code = int(library.cuDeviceGetCount(ctypes.byref(count)))
    if code != 0 or count.value < 1:
        failure = "" if code in (0, _NO_DEVICE) else f" (error {code})"
        return Probe(
            0,
            f"the NVIDIA driver sees no device{failure}; check nvidia-smi and CUDA_VISIBLE_DEVICES, or use "
            "Device.host(), the CPU",
        )
    if not _has_bindings():
        remedy = f"install the CUDA extra: {install_command('cuda')}"
        return Probe(0, f"there are {count.value} NVIDIA devices, but the package cuda-bindings is missing; {remedy}")
    return Probe(count.value, "")


def _has_bindings() -> bool:
    try:
        return importlib.util.find_spec("cuda.bindings") is not None
    except Exception:  # `find_spec` imports `cuda`: it may be missing, or be a user's module that raises anything
        return False


def _load(names: tuple[str, ...]) -> ctypes.CDLL | None:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def count_devices() -> int:
    """The number of CUDA devices that can be used; 0 without a driver."""
    return probe().devices


def why_none() -> str | None:
    """Why no CUDA device can be used, with the remedy; None if one can."""
    return probe().reason or None


def open_device(ordinal: int, context: int | None = None, owner: object = None) -> Driver:
    """Open CUDA device `ordinal`, in its primary context or in one of the caller's.

    Args:
        ordinal: the device's number, from 0.
        context: the handle of the context; None for the primary context.
        owner: an object that keeps this context alive, and is itself kept as long as the driver.

    Raises:
        NoDeviceError: there is no device of this number; the message says what was looked for and what helps.
    """
    result = probe()
    if result.reason:
        raise NoDeviceError(ordinal, f"GPU {as_text(ordinal)} was asked for, but {result.reason}")
    if not 0 <= ordinal < result.devices:
        raise NoDeviceError(
            ordinal,
            f"GPU {as_text(ordinal)} was asked for, but there are {result.devices}, numbered from 0; "
            "CUDA_VISIBLE_DEVICES may hide some",
        )
    from cuda_async.driver.cuda.device import CudaDriver  # imports the bindings: only now known to be there

    if context is None:
        return CudaDriver(ordinal)
    from cuda_async.driver.cuda.context import BorrowedContext

    return CudaDriver(ordinal, BorrowedContext(ordinal, context, owner))
