"""Raw GPU kernels as operations: `AsyncKernelLaunch` and its `LaunchConfig`.

    op = AsyncKernelLaunch(function)                       # a kernel of a loaded module: core/module.py
    op.push_arg(np.uint32(n)).push_arg(2.0)
    op.push_output(y.partition(256)).push_input(x)         # pointers; the memory is lent to the launch
    op.set_launch_config(LaunchConfig(grid_dim=(n // 256, 1, 1), block_dim=(256, 1, 1)))
    await op

Parameters are given one by one, in the kernel's order. Each is checked against the size that the driver reports, and
against its declared type if the code came as PTX text. Kernels written for `cutile` need none of this: call them.
"""

from __future__ import annotations

import ctypes
import functools
import math
import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from cuda_async.core.context import ExecutionContext
from cuda_async.core.lease import Use
from cuda_async.core.module import Function
from cuda_async.core.storage import Storage
from cuda_async.errors import ArgumentTypeError, ContextError, LaunchError, as_text
from cuda_async.op import DeviceOp

__all__ = ("AsyncKernelLaunch", "LaunchConfig")

Extents = tuple[int, int, int]

_FORMATS = {
    "u8": "B", "s8": "b", "b8": "B", "u16": "H", "s16": "h", "b16": "H", "f16": "e",
    "u32": "I", "s32": "i", "b32": "I", "f32": "f", "u64": "Q", "s64": "q", "b64": "Q", "f64": "d",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """The shape of a launch.

    Args:
        grid_dim: thread blocks along x, y, z; the axes that are left out have one: 4 means (4, 1, 1).
        block_dim: threads of a block along x, y, z; likewise.
        shared_mem_bytes: bytes of dynamic shared memory of a block.

    Raises:
        LaunchError: an extent is not a positive whole number, or the bytes are no whole number or negative.

    Example:
        >>> LaunchConfig(4, (32, 8, 1)).grid_dim
        (4, 1, 1)
    """

    grid_dim: Extents
    block_dim: Extents
    shared_mem_bytes: int = 0

    def __init__(self, grid_dim: Extents | int, block_dim: Extents | int, shared_mem_bytes: int = 0) -> None:
        object.__setattr__(self, "grid_dim", _extents("grid_dim", grid_dim))
        object.__setattr__(self, "block_dim", _extents("block_dim", block_dim))
        try:
            nbytes = operator.index(shared_mem_bytes)
        except TypeError:
            nbytes = -1
        if nbytes < 0:
            raise LaunchError(f"shared_mem_bytes: expected a number of bytes, got {as_text(shared_mem_bytes)}")
        object.__setattr__(self, "shared_mem_bytes", nbytes)


def _extents(name: str, extents: Any) -> Extents:
    try:
        items = (
            (operator.index(extents), 1, 1)
            if not isinstance(extents, tuple | list)
            else tuple(operator.index(extent) for extent in cast("tuple[Any, ...]", extents))
        )
    except TypeError:
        items = ()
    if not 1 <= len(items) <= 3 or any(extent < 1 for extent in items):
        raise LaunchError(f"{name}: expected one to three positive extents, got {as_text(extents)}")
    x, y, z = (*items, 1, 1)[:3]
    return x, y, z


class _View(Protocol):
    """Elements in memory. `strides` count elements; `byte_range` is in the storage."""

    @property
    def storage(self) -> Storage: ...
    @property
    def address(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def byte_range(self) -> tuple[int, int]: ...


class _Tiled(Protocol):
    """Elements cut into tiles."""

    @property
    def view(self) -> _View: ...
    @property
    def tile(self) -> tuple[int, ...]: ...


@runtime_checkable
class _Readable(Protocol):
    """An argument that kernels of `cutile` read: a tensor."""

    def __kernel_input__(self) -> _View: ...


@runtime_checkable
class _Partitioned(Protocol):
    """An argument that kernels of `cutile` write: a partition."""

    def __kernel_output__(self) -> _Tiled: ...


@runtime_checkable
class _Writable(Protocol):
    """The destination of a copy: a tensor, or `tensor.mut`."""

    def __kernel_destination__(self) -> _View: ...


Push = TypeVar("Push", bound=Callable[..., Any])


def _building(push: Push) -> Push:
    """Have a `push_*` method discard the operation if it raises.

    The arguments are free then, and the operation does not warn that it was never run.
    """

    @functools.wraps(push)
    def checked(self: AsyncKernelLaunch, *arguments: Any, **named: Any) -> Any:
        try:
            return push(self, *arguments, **named)
        except BaseException:
            self.discard()
            raise

    return cast("Push", checked)


class AsyncKernelLaunch(DeviceOp[None]):
    """A launch of a raw kernel.

    It yields None. Tensors and partitions that were pushed may be used again when the launch is done.

    The `push_*` methods append one parameter each (a tensor several) and return the operation. Where one raises, the
    operation is discarded.

    Args:
        function: a kernel of a loaded module.

    Raises:
        TypeError: `function` is no `Function`.

    Example (a function of Python stands for the kernel, and a simulated device for the GPU):
        >>> import ctypes
        >>> from cuda_async import AsyncKernelLaunch, Device, LaunchConfig
        >>> from cuda_async.driver.fake_code import FakeFunction
        >>> from cuda_async.testing import SimDriver
        >>> driver = SimDriver()
        >>> kernel = FakeFunction("show", [ctypes.c_uint32], lambda grid, block, n: print(grid, block, n))
        >>> driver.define_module(b"a cubin", kernel)
        >>> device = Device.from_driver(driver)
        >>> function = device.load_module_from_bytes(b"a cubin").load_function("show")
        >>> op = AsyncKernelLaunch(function).push_arg(7, "uint32").set_launch_config(LaunchConfig(4, 32))
        >>> op.sync_on(device.new_stream())
        (4, 1, 1) (32, 1, 1) 7
    """

    __slots__ = ("_arguments", "_config", "_function", "_lent", "_uses")

    has_effects = True

    def __init__(self, function: Function) -> None:
        if not isinstance(cast("object", function), Function):
            raise ArgumentTypeError(
                f"function: expected a kernel of a loaded module, as of module.load_function(name), got "
                f"{type(function).__name__}: {as_text(function)}"
            )
        self._function = function
        self._arguments: list[bytes] = []
        self._uses: list[tuple[Storage, bool]] = []
        self._lent: list[object] = []
        self._config: LaunchConfig | None = None
        super().__init__()

    def label(self) -> str:
        return self._function.name

    # -- parameters ---------------------------------------------------------------------------

    @_building
    def push_arg(self, argument: Any, dtype: Any = None) -> AsyncKernelLaunch:
        """Append a number, or the parameters of a partition or tensor.

        A partition appends its pointer, then its shape, strides, tile shape and tile strides, each number as an i32.
        It is lent to be written. A tensor appends the same parameters as by `push_arg_arc`.

        Args:
            argument: a NumPy or ctypes scalar, which brings its type; a Python number where the type is known, from
                PTX text or from `dtype`; a partition; a tensor.
            dtype: the number's type: a NumPy dtype or something with one as `numpy` (`cutile.f32`).

        Raises:
            LaunchError: the kernel has no such parameter, or one of another size or kind; or a Python number's type
                is not known.
            OwnershipError: the partition or tensor is held, or used in a conflicting way.
        """
        if isinstance(argument, _Partitioned):
            tiled = argument.__kernel_output__()
            self._lend("partition", argument, tiled.view, write=True)
            # The strides come twice: elements of a tile are as far apart as those of the whole.
            return self._pointer(tiled.view.address)._extents(
                *tiled.view.shape, *tiled.view.strides, *tiled.tile, *tiled.view.strides
            )
        if isinstance(argument, _Readable):
            return self.push_arg_arc(argument)
        position = len(self._arguments)
        size, declared = self._expected(position)
        self._append(_packed(argument, dtype, declared, f"{self.label()}: parameter {position}"), size)
        return self

    @_building
    def push_arg_arc(self, tensor: Any) -> AsyncKernelLaunch:
        """Append a tensor to be read: its pointer, then its shape and its strides.

        Each extent, and each stride in elements, is an i32.

        Raises:
            LaunchError: the kernel's parameters do not fit, or this is no tensor.
            OwnershipError: the tensor is held, or an operation in flight writes it.
        """
        view = self._readable(tensor, "push_arg_arc")
        return self._pointer(view.address)._extents(*view.shape, *view.strides)

    @_building
    def push_input(self, tensor: Any) -> AsyncKernelLaunch:
        """Append the pointer to a tensor, or to a `Storage`, that the kernel reads.

        It is lent to the launch, which is ordered behind earlier writes of it.

        Raises as `push_arg_arc`.
        """
        if isinstance(tensor, Storage):
            return self._whole(tensor, write=False)
        return self._pointer(self._readable(tensor, "push_input").address)

    @_building
    def push_output(self, tensor: Any) -> AsyncKernelLaunch:
        """Append the pointer to memory that the kernel writes.

        The memory is that of a partition, of a tensor, of `view.mut`, or a `Storage`. It is lent to the launch, which
        is ordered behind earlier uses of it.

        Raises as `push_arg_arc`.
        """
        if isinstance(tensor, Storage):
            return self._whole(tensor, write=True)
        if isinstance(tensor, _Partitioned):
            view = tensor.__kernel_output__().view
        elif isinstance(tensor, _Writable):
            view = tensor.__kernel_destination__()
        else:
            raise LaunchError(f"{self.label()}: push_output: expected a tensor, got {type(tensor).__name__}")
        self._lend("output", tensor, view, write=True)
        return self._pointer(view.address)

    @_building
    def push_device_ptr(self, address: int) -> AsyncKernelLaunch:
        """Append an address.

        Unsafe: nothing holds the memory, and nothing orders the launch behind other users of the memory.

        Raises:
            LaunchError: the kernel has no such parameter, or that one is no pointer; or the address does not fit in 64
                bits.
        """
        return self._pointer(operator.index(address))

    @_building
    def set_launch_config(self, config: LaunchConfig) -> AsyncKernelLaunch:
        """Set the shape of the launch, before the operation runs.

        Raises:
            TypeError: `config` is no `LaunchConfig`.
        """
        if not isinstance(cast("object", config), LaunchConfig):
            raise ArgumentTypeError(
                f"{self.label()}: set_launch_config: expected LaunchConfig(grid_dim, block_dim), got "
                f"{type(config).__name__}: {as_text(config)}"
            )
        self._config = config
        return self

    # -- packing ------------------------------------------------------------------------------

    def _expected(self, position: int) -> tuple[int | None, str | None]:
        """The size in bytes and the PTX type of a parameter; None where unknown."""
        sizes, types = self._function.parameter_sizes, self._function.parameter_types
        parameters = sizes if sizes is not None else types
        if parameters is not None and position >= len(parameters):
            self._reject(f"{self.label()} takes {len(parameters)} parameters, and another one was pushed")
        return (None if sizes is None else sizes[position]), (None if types is None else types[position])

    def _append(self, packed: bytes, size: int | None) -> None:
        if size is not None and len(packed) != size:
            self._reject(
                f"{self.label()}: parameter {len(self._arguments)} has {size} bytes, got {len(packed)}; "
                "give the number with its type, such as numpy.float32(2)"
            )
        self._arguments.append(packed)

    def _pointer(self, address: int) -> AsyncKernelLaunch:
        size, declared = self._expected(len(self._arguments))
        if declared is not None and declared not in ("u64", "b64", "s64"):
            self._reject(f"{self.label()}: parameter {len(self._arguments)} is a {declared}, and no pointer")
        try:
            self._append(struct.pack("=Q", address), size)
        except struct.error:
            self._reject(f"{self.label()}: parameter {len(self._arguments)}: {address} is no address")
        return self

    def _extents(self, *extents: int) -> AsyncKernelLaunch:
        for extent in extents:
            size, _ = self._expected(len(self._arguments))
            try:
                self._append(struct.pack("=i", extent), size)
            except struct.error:
                self._reject(f"{self.label()}: {extent} is too large for the i32 of parameter {len(self._arguments)}")
        return self

    def _readable(self, tensor: Any, method: str) -> _View:
        if not isinstance(tensor, _Readable):
            raise LaunchError(f"{self.label()}: {method}: expected a tensor, got {type(tensor).__name__}")
        view = tensor.__kernel_input__()
        self._lend("input", tensor, view, write=False)
        return view

    def _whole(self, storage: Storage, *, write: bool) -> AsyncKernelLaunch:
        self.lend(Use(f"parameter {len(self._arguments)}", storage, write))
        self._uses.append((storage, write))
        return self._pointer(storage.address)

    def _lend(self, name: str, argument: object, view: _View, *, write: bool) -> None:
        self._lent.append(argument)
        self.lend(Use(f"{name} (parameter {len(self._arguments)})", view.storage, write, *view.byte_range))
        self._uses.append((view.storage, write))

    def _reject(self, message: str) -> None:
        raise LaunchError(message)

    def _give_back(self) -> None:
        super()._give_back()
        for argument in getattr(self, "_lent", ()):  # absent where __init__ failed
            release = getattr(argument, "__kernel_give_back__", None)
            if release is not None:
                release()

    # -- running ------------------------------------------------------------------------------

    def execute(self, context: ExecutionContext) -> None:
        """Enqueue the launch.

        Raises:
            LaunchError: there is no launch configuration, parameters are missing, or the device refuses the shape.
            ContextError: the function is loaded on another device.
        """
        function, config = self._function, self._config
        if config is None:
            raise LaunchError(
                f"{self.label()}: Await called before launching the kernel: set_launch_config() was not called"
            )
        if function.device is not context.device:
            raise ContextError(
                context.device.ordinal,
                f"{self.label()} is loaded on {function.device} and was launched on {context.device}; "
                "load the module there too",
            )
        parameters = function.parameter_sizes or function.parameter_types
        if parameters is not None and len(parameters) != len(self._arguments):
            raise LaunchError(f"{self.label()} takes {len(parameters)} parameters, got {len(self._arguments)}")
        for storage, write in self._uses:
            storage.use(context.stream, write=write)
        if config.shared_mem_bytes:
            function.driver.allow_shared(config.shared_mem_bytes)
        # The driver copies the parameters at the launch: the buffers may be freed when this function returns.
        buffers = [ctypes.create_string_buffer(packed, len(packed)) for packed in self._arguments]
        pointers = (ctypes.c_void_p * len(buffers))(*(ctypes.addressof(buffer) for buffer in buffers))
        context.stream.launch_function(
            function.driver, config.grid_dim, config.block_dim, config.shared_mem_bytes, ctypes.addressof(pointers)
        )
        context.keep(function)


# -- numbers to bytes -------------------------------------------------------------------------


def _packed(number: Any, dtype: Any, declared: str | None, where: str) -> bytes:
    """The bytes of a number: of type `dtype`, else of its own, else of the kernel's.

    Args:
        number: a Python, NumPy or ctypes number.
        dtype: a dtype, or an object that has one as `numpy`; None for none.
        declared: the parameter's PTX type; None where unknown.
        where: the kernel and the parameter, for errors.
    """
    is_ctypes = isinstance(number, ctypes._SimpleCData)  # pyright: ignore[reportPrivateUsage]
    plain: Any = cast("Any", number).value if is_ctypes else number
    if dtype is not None:
        return _typed(plain, getattr(dtype, "numpy", dtype), declared, where)
    if is_ctypes:
        _check_kind("f" if isinstance(plain, float) else "i", declared, where, plain)
        return bytes(cast("Any", number))
    if not isinstance(number, bool | int | float):
        kind = getattr(number, "dtype", None)
        if kind is None or getattr(number, "ndim", 1) != 0:
            raise LaunchError(f"{where}: expected a number, a partition or a tensor, got {type(number).__name__}")
        return _typed(number, kind, declared, where)
    if type(number).__module__ == "numpy":  # numpy.float64 is a subclass of float, and has a type of its own
        return _typed(number, cast("Any", number).dtype, declared, where)
    if declared not in _FORMATS:
        raise LaunchError(
            f"{where}: {as_text(number)} has no type, and loaded code tells only sizes. Give it one: "
            f"numpy.float32({as_text(number)}) or push_arg({as_text(number)}, 'float32')"
        )
    return _declared(number, declared, where)


def _declared(number: float, declared: str, where: str) -> bytes:
    if declared[0] != "f" and isinstance(number, float):
        raise LaunchError(f"{where} is a {declared}, got the float {as_text(number)}")
    code = _FORMATS[declared]
    try:
        return struct.pack(f"={code}", number)
    except (struct.error, OverflowError):
        if declared[0] in "bu" and number < 0:  # compilers declare signed integers as unsigned ones
            return _declared(number, f"s{declared[1:]}", where)
        raise LaunchError(f"{where} is a {declared}, which does not hold {as_text(number)}") from None


def _typed(number: Any, dtype: Any, declared: str | None, where: str) -> bytes:
    import numpy as np

    if number is None or isinstance(number, str | bytes):  # NumPy makes floats of them
        raise LaunchError(f"{where}: expected a number, a partition or a tensor, got {type(number).__name__}")
    try:
        with np.errstate(over="ignore"):  # an error follows
            array = np.asarray(number, dtype=dtype)
    except (OverflowError, ValueError, TypeError):
        raise LaunchError(f"{where}: {np.dtype(dtype)} does not hold {as_text(number)}") from None
    if array.ndim:
        raise LaunchError(f"{where}: expected one number, got an array of shape {array.shape}")
    is_integer = array.dtype.kind in "biu"
    # NumPy cuts off fractions, and wraps its own integers.
    if array.item() != number if is_integer else _overflows(array, number):
        raise LaunchError(f"{where}: {array.dtype} does not hold {as_text(number)}")
    _check_kind("i" if is_integer else "f", declared, where, number)
    return array.tobytes()


def _overflows(array: Any, number: Any) -> bool:
    """Whether a float type makes infinity of a finite number, or NaN if it has none."""
    # Kind V without fields: bf16 and smaller floats. Complex numbers and structs have several parts.
    is_float = array.dtype.kind == "f" or (array.dtype.kind == "V" and array.dtype.type.__name__ != "void")
    return is_float and math.isfinite(number) and not math.isfinite(array.item())


def _check_kind(kind: str, declared: str | None, where: str, number: object) -> None:
    # PTX passes 16-bit floats, and all structs, as bits.
    if declared is not None and declared[0] != "b" and (declared[0] == "f") != (kind == "f"):
        raise LaunchError(f"{where} is a {declared}, got {as_text(number)}")
