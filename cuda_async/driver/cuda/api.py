"""The CUDA bindings, which have no types; calls of them that raise; their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cuda.bindings.driver as _bindings  # pyright: ignore

from cuda_async.errors import DeviceLostError, DriverError, OutOfMemoryError

__all__ = ("check", "cu", "error_of", "is_pending", "ordinal_of")

cu: Any = _bindings
"""The module `cuda.bindings.driver`, which has no types."""

_SUCCESS: Any = cu.CUresult.CUDA_SUCCESS
_NOT_READY: Any = cu.CUresult.CUDA_ERROR_NOT_READY
_OUT_OF_MEMORY: Any = cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY

# After one of these errors every call on the context fails with the same error. The driver's reference says so of an
# error here, or the error tells of a context that is gone, or of memory or a link that the hardware could not correct.
_STICKY = frozenset(
    (
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA_ERROR_NVLINK_UNCORRECTABLE",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_INVALID_ADDRESS_SPACE",
        "CUDA_ERROR_INVALID_PC",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_ASSERT",
        "CUDA_ERROR_CONTEXT_IS_DESTROYED",
        "CUDA_ERROR_MPS_CLIENT_TERMINATED",
        "CUDA_ERROR_TENSOR_MEMORY_LEAK",
        "CUDA_ERROR_CONTAINED",
        "CUDA_ERROR_EXTERNAL_DEVICE",
    )
)

_REMEDIES = {
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "another process may have the device for itself, or nobody may use it: "
    "`nvidia-smi -q -d COMPUTE` shows its compute mode, and `nvidia-smi -c DEFAULT` shares it",
}


def error_of(code: Any, call: str) -> DriverError | None:
    """The exception for a result code; None for success and 'not ready'."""
    if code in (_SUCCESS, _NOT_READY):
        return None
    _, text = cu.cuGetErrorString(code)
    detail = f"{text.decode() if text else 'unknown error'} (in {call})"
    if code == _OUT_OF_MEMORY:
        return OutOfMemoryError(int(code), code.name, detail)
    if code.name in _STICKY:
        return DeviceLostError(
            int(code), code.name, f"{detail}; the device's context cannot be used any more by this process"
        )
    remedy = _REMEDIES.get(code.name)
    return DriverError(int(code), code.name, f"{detail}; {remedy}" if remedy else detail)


def is_pending(code: Any) -> bool:
    """Whether the result code of a query says that the work still runs."""
    return code == _NOT_READY


def check(result: tuple[Any, ...], call: Callable[..., Any]) -> Any:
    """The values that a call of the bindings returned behind its code.

    One value is returned as it is, several as a tuple, none as None.

    Raises:
        DriverError: the call failed.
    """
    code = result[0]
    if code is not _SUCCESS and code != _SUCCESS:  # `is` first: comparing enum members takes longer
        error = error_of(code, getattr(call, "__name__", str(call)))
        if error is not None:
            raise error
    if len(result) == 2:
        return result[1]
    return result[1:] or None


def ordinal_of(address: int) -> int:
    """The number of the CUDA device that an address belongs to.

    Raises:
        DriverError: it is no address of a device.
    """
    check(cu.cuInit(0), cu.cuInit)  # needed if this package has opened no device yet
    attribute = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(check(cu.cuPointerGetAttribute(attribute, address), cu.cuPointerGetAttribute))
