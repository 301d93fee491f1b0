"""`DevicePointer`: an address on a device with the type of what is there, for other libraries."""

from __future__ import annotations

from cutile.dtypes import DTypeLike

__all__ = ("DevicePointer",)


class DevicePointer(int):
    """An address on a device, and the dtype of what is there. Owns nothing.

    Attributes:
        dtype: the element type.
    """

    dtype: DTypeLike

    def __new__(cls, address: int, dtype: DTypeLike) -> DevicePointer:
        self = super().__new__(cls, address)
        self.dtype = dtype
        return self

    def cu_deviceptr(self) -> int:
        """The address as a plain number: a `CUdeviceptr` on a GPU."""
        return int(self)

    def __repr__(self) -> str:
        return f"DevicePointer({int(self):#x}, {self.dtype.name})"
