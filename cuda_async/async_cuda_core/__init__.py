"""Streams and buffers whose calls are awaited.

The interface of the Rust crate async-cuda-core, in Python.

    from cuda_async.async_cuda_core import DeviceBuffer, HostBuffer, Stream

    stream = await Stream.new()
    host = await HostBuffer.from_slice([1.0, 2.0, 3.0])
    device = await DeviceBuffer.new(3, stream)
    await device.copy_from(host, stream)               # copies, and synchronizes
    await host.copy_from(device, stream)
    host.to_vec()

Every call of the device is made on one runtime thread, in the order in which the calls were awaited; the caller never
blocks. A call that is not awaited does nothing. The crate requires that no future is leaked. Here work in flight owns
the memory that it uses: to drop a buffer, or to cancel a task, never frees memory that the device may touch. Cancelling
withdraws a call that has not begun, and waits for a call that runs at that moment.

It works on every device of `cuda_async`, the CPU included. `stream.inner` and `buffer.storage` are the stream and the
memory for operations of the package: kernels, graphs, combinators.
"""

from cuda_async.async_cuda_core.device_buffer import DeviceBuffer
from cuda_async.async_cuda_core.device_buffer_2d import DeviceBuffer2D
from cuda_async.async_cuda_core.host_buffer import HostBuffer
from cuda_async.async_cuda_core.runtime import Call
from cuda_async.async_cuda_core.stream import Device, MemoryInfo, Stream, num_devices
from cuda_async.errors import DeviceError as Error
from cuda_async.errors import DriverError as CudaError

__all__ = (
    "Call",
    "CudaError",
    "Device",
    "DeviceBuffer",
    "DeviceBuffer2D",
    "Error",
    "HostBuffer",
    "MemoryInfo",
    "Stream",
    "num_devices",
)
