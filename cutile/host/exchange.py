"""Exchange with other libraries without copying.

`from_dlpack`, `from_foreign`, `partition`, and exports.

An import is a tensor here over the other library's memory. Before each launch our stream waits for the stream that the
library uses then; after the launch, that stream waits for ours. So both go on in the order of the code, without a wait
on the host. PyTorch, CuPy and Numba tell their stream at any time. Other libraries, JAX among them, are waited for at
the import; they may read our results once our op has been awaited. The other tensor is kept alive until our work on it
is done.

An export is `torch.from_dlpack(tensor)` or `np.from_dlpack(tensor)`. The other library may only read: while the export
lives, an op that would write the tensor raises `OwnershipError`. `torch.from_dlpack(tensor.mut)` may be written; while
it lives, nothing else may use the tensor. On the CPU the export waits for the values. `__cuda_array_interface__` is
there too, but does not tell when the other library is done: until then the caller must not write the tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuda_async import Device, DeviceOp, ExecutionContext, Use
from cuda_async.core.device import as_device
from cuda_async.core.lease import ExportLease, Lease, lend
from cuda_async.core.stream import Stream
from cuda_async.foreign import LEGACY_STREAM, consumer_stream, end_export, wait_for_writer
from cuda_async.site import register_internal_package, user_site
from cutile.errors import ArgumentTypeError
from cutile.host.foreign import CPU, Description, dlpack_code, foreign_view, from_dlpack_view, is_foreign, make_capsule
from cutile.host.memory import Array
from cutile.host.partition import BorrowedPartition, TileLike
from cutile.host.tensor import Tensor
from cutile.host.transfer import FromHost
from cutile.launch.arguments import register_carrier, register_reader
from cutile.launch.views import View

__all__ = ("cuda_array_interface", "dlpack_device", "export", "from_dlpack", "from_foreign", "partition")


def from_dlpack(tensor: Any, *, device: Device | int | str | None = None) -> Tensor:
    """Another library's tensor as one of ours, over the same memory, by DLPack.

    Args:
        tensor: a tensor of PyTorch, CuPy, JAX, NumPy or any other with `__dlpack__` and `__dlpack_device__`.
        device: the tensor's device. It is needed if DLPack has no number for it: a simulated device.

    Raises:
        ArgumentTypeError: it has no `__dlpack__`, or its element type has no counterpart here.
        ArgumentError: it requires a gradient, is on another device than `device`, or on one that cannot be used.
        NoDeviceError: it is on a GPU that this process cannot use.

    Example:
        >>> import numpy as np
        >>> from cutile import api
        >>> array = np.zeros(4, np.float32)
        >>> api.fill(api.from_dlpack(array), 7).sync()
        Tensor(f32, shape=(4,), device=cpu)
        >>> array
        array([7., 7., 7., 7.], dtype=float32)
    """
    if not hasattr(tensor, "__dlpack__"):
        raise ArgumentTypeError(
            f"from_dlpack: {type(tensor).__name__} has no __dlpack__; from_foreign takes other protocols too, and "
            "copy_host_to_device copies lists and arrays"
        )
    if device is None:
        return Tensor(foreign_view(tensor, "from_dlpack"))
    return Tensor(from_dlpack_view(tensor, "from_dlpack", as_device(device)))


def from_foreign(tensor: Any) -> Tensor:
    """Another library's tensor as one of ours, over the same memory.

    It is read by the first of these protocols that it has.

    Args:
        tensor: an object with `__dlpack__`, `__cuda_array_interface__` (Numba's device arrays), `__array_interface__`
            or the buffer protocol (`array.array`, `bytearray`, `memoryview`).

    Raises:
        ArgumentTypeError: it has none of these, or its element type has no counterpart here.
        ArgumentError, NoDeviceError: as for `from_dlpack`.

    Example:
        >>> from array import array
        >>> from cutile import api
        >>> api.from_foreign(array("f", [1, 2, 3])).to_numpy().sync()
        array([1., 2., 3.], dtype=float32)
    """
    return Tensor(foreign_view(tensor, "from_foreign"))


def partition(tensor: Any, shape: TileLike) -> BorrowedPartition:
    """A tensor, ours or another library's, cut into tiles for a `Mut` parameter.

    The tensor stays usable: for our tensor it is `tensor.mut.partition(shape)`.

    Args:
        tensor: our tensor, or an object that `from_foreign` takes; the kernel writes its memory.
        shape: extents of a tile, at most 8 of them.

    Raises:
        ArgumentTypeError, ArgumentError: as for `from_foreign`, or `shape` is no such shape.
        OwnershipError: the tensor is held, or cannot be written (see `Tensor.partition`).

    Example:
        >>> import numpy as np
        >>> from cutile import api
        >>> api.partition(np.zeros((4, 8)), (2, 2)).grid()
        (2, 4, 1)
    """
    ours = tensor if isinstance(tensor, Tensor) else from_foreign(tensor)
    return ours.mut.partition(shape)


def _read(argument: Any, function: str) -> View | None:
    return foreign_view(argument, function) if is_foreign(argument) else None


for _library in ("torch", "cupy", "jax", "numba", "numpy"):
    register_internal_package(_library)  # errors name the user's line, which called the library

register_reader(_read)  # tensors of other libraries go straight into kernels


class _Operand:
    """A NumPy array as an operand.

    A launch reads its elements on the device, and yields the array.
    """

    def __init__(self, array: Array, view: View) -> None:
        self.__kernel_yields__ = array
        self._view = view

    def __kernel_input__(self) -> View:
        return self._view


class _Carry(DeviceOp[_Operand]):
    """Brings a NumPy array to the device: on the CPU as it is, elsewhere by a copy."""

    __slots__ = ("_array",)

    def __init__(self, array: Array) -> None:
        super().__init__()
        self._array = array

    def label(self) -> str:
        return "numpy array"

    def execute(self, context: ExecutionContext) -> _Operand:
        array = self._array
        view = foreign_view(array, "a NumPy array")
        if context.device.kind != "host":
            view = context.execute(FromHost(array, view.dtype, lambda copy: copy))
        return _Operand(array, view)


register_carrier(_Carry)


# -- out --------------------------------------------------------------------------------------


class _Export:
    """The lease on an exported tensor, held by its capsule.

    When the capsule ends, later work here waits for the work that the consumer's stream has by then.
    """

    __slots__ = ("_consumer", "_lease", "_view")

    def __init__(self, view: View, *, write: bool) -> None:
        self._view = view
        self._consumer: Stream | None = None
        use = Use("the tensor given to another library", view.storage, write, *view.byte_range)
        self._lease: Lease = lend((use,), object(), user_site(), kind=ExportLease)

    def order(self, consumer: Stream, *, write: bool) -> None:
        """Have the consumer's stream wait for the data."""
        self._view.storage.use(consumer, write=write)
        consumer.sequence += 1  # stands for the consumer's own work, which we do not see: later users wait for it
        self._consumer = consumer

    def __del__(self) -> None:
        lease = getattr(self, "_lease", None)  # absent where __init__ failed
        if lease is not None:
            lease.give_back()
        consumer = getattr(self, "_consumer", None)
        if consumer is not None:
            end_export(self._view.storage, consumer)


def dlpack_device(view: View) -> tuple[int, int]:
    """The kind and number of a view's device, as DLPack has them."""
    device = view.storage.device
    return device.driver.dlpack_type, device.ordinal


def export(
    view: View,
    stream: int | None,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
    *,
    write: bool,
) -> Any:
    """A DLPack capsule of a view; see `Tensor.__dlpack__`.

    Args:
        view: the elements.
        stream: the consumer's stream on a GPU: 1 or None for the legacy default stream, 2 for the per-thread one, -1
            for no ordering, else a handle. None on the CPU.
        max_version: the newest version of DLPack that the consumer reads; None for versions before 1.0.
        dl_device: the device that the consumer asks for, as DLPack has it; None for the tensor's.
        copy: True is refused: nothing is copied.
        write: whether the consumer may write.

    Raises:
        BufferError: the request would need a copy, or the arguments make no sense.
        OwnershipError: an operation that has not finished uses the elements in a conflicting way.
    """
    here = dlpack_device(view)
    if dl_device is not None and (int(dl_device[0]), int(dl_device[1])) != here:
        raise BufferError(f"__dlpack__: the tensor is on device {here}, not {tuple(dl_device)}; copy it there first")
    if copy:
        raise BufferError("__dlpack__: copies are made by dup(); export what that yields")
    on_cpu = here[0] == CPU
    if on_cpu and stream is not None:
        raise BufferError(f"__dlpack__: a tensor on the CPU has no stream to order, got stream={stream!r}")
    if not on_cpu and stream == 0:
        raise BufferError("__dlpack__: stream 0 is ambiguous; 1 is the legacy default stream, 2 the per-thread one")
    dlpack_code(view.dtype)
    # After all refusals: the traceback of an error would keep the owner alive, and so the tensor lent.
    owner = _Export(view, write=write)
    if on_cpu:
        wait_for_writer(view.storage)
    elif stream != -1:
        consumer = consumer_stream(view.storage.device, LEGACY_STREAM if stream is None else int(stream))
        owner.order(consumer, write=write)
    versioned = max_version is not None and max_version[0] >= 1
    description = Description(view.address, here, view.dtype, view.shape, view.strides, read_only=not write)
    return make_capsule(description, owner, versioned=versioned)


def cuda_array_interface(view: View, usable: Callable[[], View], read_only: bool) -> dict[str, Any]:
    """The elements as `__cuda_array_interface__`, version 3.

    Raises:
        AttributeError: the elements are not on a GPU, or of a type that the protocol has no name for.
        OwnershipError: `usable` raises it: the tensor is held.
    """
    device = view.storage.device
    if device.driver.array_interface != "__cuda_array_interface__":
        raise AttributeError(f"__cuda_array_interface__: the tensor is on {device}; np.from_dlpack(tensor) reads it")
    if view.dtype.name == "bf16" or not view.dtype.computes:
        raise AttributeError(f"__cuda_array_interface__ has no name for {view.dtype.name}; __dlpack__ may")
    usable()
    size = view.dtype.bits // 8
    stream = view.storage.last_writer()
    return {
        "shape": view.shape,
        "typestr": view.dtype.numpy.str,
        "data": (view.address, read_only or view.storage.read_only),
        "strides": tuple(stride * size for stride in view.strides),
        "stream": None if stream is None else stream.cu_stream(),
        "version": 3,
    }
