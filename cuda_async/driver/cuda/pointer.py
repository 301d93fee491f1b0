"""The device of an address, for memory of a library that does not name the device."""

from __future__ import annotations

from cuda_async.driver.cuda.api import check, cu

__all__ = ("ordinal_of",)


def ordinal_of(address: int) -> int:
    """The number of the CUDA device that an address belongs to.

    Raises:
        DriverError: it is no address of a device.
    """
    check(cu.cuInit(0), cu.cuInit)  # no device of this package may be open yet
    attribute = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(check(cu.cuPointerGetAttribute(attribute, address), cu.cuPointerGetAttribute))
