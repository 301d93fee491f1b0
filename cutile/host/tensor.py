"""`Tensor`: a handle to an array on a device; an op reads its values.

The base class `cutile.language.Tensor` has the members for kernels; this one adds those for callers. Partitions are in
`partition.py`, the operations that move data in `transfer.py`, shared ownership in `shared.py`.

Ownership. Building an operation lends it its arguments (`cuda_async.core.lease`): that guards memory. In addition, a
tensor object is *held* while an owned partition or a shared handle stands in its place: using the tensor then raises
`OwnershipError`. The hold ends with `unpartition()`, `unwrap_arc()` or `reclaim()`, or when the holder is gone.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, cast, overload

import numpy as np

from cuda_async import Device, DeviceOp, OwnershipError, Storage
from cuda_async.core.device import as_device
from cutile import language
from cutile.compile.facts import TensorFacts
from cutile.dtypes import DTypeLike
from cutile.errors import ArgumentTypeError
from cutile.host.compat import OldTensorMethods
from cutile.host.display import PrintsValues
from cutile.host.hints import RefusesValues
from cutile.host.memory import DevicePointer
from cutile.host.partition import Holder, MutBorrow, Partition, TileLike, as_any_tile, as_tile, is_open
from cutile.host.shapes import (
    DTypeSpec,
    ShapeLike,
    Span,
    axis_key,
    index_layout,
    is_contiguous,
    is_same_shape,
    slice_layout,
    transpose_layout,
    whole_shape,
)
from cutile.host.transfer import ReadsValues, duplicate
from cutile.host.views import collective_buffer, piece, refuse_common_elements, reinterpreted, reshaped
from cutile.launch.views import OpenTiledView, SharedView, TiledView, View

if TYPE_CHECKING:
    from cuda_async.collective import Buffer
    from cutile.host.shared import SharedTensor
    from cutile.tile import Tile

__all__ = ("Tensor", "TensorView")

Array = np.ndarray[Any, np.dtype[Any]]


class Tensor(OldTensorMethods, ReadsValues, RefusesValues, PrintsValues, language.Tensor):
    """An array on a device.

    Made by the functions of `cutile.api`; never constructed directly.

    Metadata is known at once, also while the device still computes the values. A tensor is equal (`==`) to itself
    alone; a comparison with a number or an array is refused. A `Tensor` parameter of a kernel takes it to be read; a
    `Mut` parameter takes its `partition`.

    Example:
        >>> from cutile import api, f32
        >>> x = api.arange(32, f32).reshape((4, 8)).sync()
        >>> x.shape, x.strides, x.dtype, x.num_bytes
        ((4, 8), (8, 1), f32, 128)
        >>> x[1, 2:4].to_numpy().sync()
        array([10., 11.], dtype=float32)
    """

    __slots__ = ("_distinct", "_hold", "_shared", "_tiled", "_view")

    def __init__(self, view: View) -> None:
        self._view = view
        self._distinct = False  # whether no two indices name one element, once a write has checked it
        self._hold: weakref.ref[Holder] | None = None
        self._tiled: TiledView | None = None
        self._shared: SharedView | None = None

    # -- metadata: nothing waits, nothing is checked -------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self._view.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """The distance to the next element along each axis, in elements."""
        return self._view.strides

    @property
    def dtype(self) -> DTypeLike:
        """The element type, a class such as `cutile.f32`."""
        return self._view.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._view.shape)

    def __len__(self) -> int:
        """The first extent: the number of rows in `for row in tensor`."""
        if not self._view.shape:
            raise ArgumentTypeError(f"{self!r} has no axes, and so no length")
        return self._view.shape[0]

    def __iter__(self) -> Iterator[TensorView]:
        """Read-only views of `tensor[0]`, `tensor[1]`, ..."""
        # Without this, Python would index until an IndexError, and find a tensor without axes empty.
        return map(self.__getitem__, range(len(self)))

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self._view.shape)

    @property
    def num_bytes(self) -> int:
        """The size of the elements in bytes."""
        return self.size * (self._view.dtype.bits // 8)

    @property
    def device(self) -> Device:
        """The device that it is on."""
        return self._view.storage.device

    @property
    def storage(self) -> Storage:
        """The memory that it is in; other tensors may be in it too."""
        return self._view.storage

    @property
    def offset(self) -> int:
        """Bytes from the start of the storage to the first element."""
        return self._view.offset

    def device_id(self) -> int:
        """The number of its device among those of its kind."""
        return self.device.ordinal

    def device_pointer(self) -> DevicePointer:
        """The address of the first element, for other libraries.

        Nothing orders their accesses with operations here.

        Raises:
            NotReadyError: the tensor is one of `api.meta`, without memory.

        Example:
            >>> x = api.zeros((8,)).sync()
            >>> x[2:].device_pointer() - x.device_pointer()
            8
        """
        self.storage.check_memory()
        return DevicePointer(self._view.address, self._view.dtype)

    def spec(self) -> TensorFacts:
        """The facts that kernels are specialized for: unit strides, alignments, extents."""
        return self._view.facts

    def is_contiguous(self) -> bool:
        """Whether the elements follow one another in row-major order."""
        return is_contiguous(self._view.shape, self._view.strides)

    # -- ownership ----------------------------------------------------------------------------

    def holder(self) -> Holder | None:
        """The partition or the group of handles in this tensor's place, if any."""
        return None if self._hold is None else self._hold()

    def _usable(self, use: str) -> View:
        """The elements, unless something stands in this tensor's place.

        Raises:
            OwnershipError: it is held.
        """
        if self._hold is not None:
            holder = self._hold()
            if holder is not None:
                view = self._view
                raise OwnershipError(
                    f"{use}: the tensor ({view.dtype.name}, shape {view.shape}) is held by {holder.describe()}. "
                    f"{holder.remedy()} If that is out of reach, tensor.reclaim() ends it.{holder.kept()}"
                )
            self._hold = None
        return self._view

    def _writable(self, use: str) -> View:
        """The elements, to be written.

        Raises:
            OwnershipError: the tensor is held, is memory that another library lent read-only, or two of its indices
                name one element.
        """
        view = self._usable(use)
        if not self._distinct:
            self._distinct = refuse_common_elements(view, use)
        if view.storage.read_only:
            raise OwnershipError(
                f"{use}: the memory of the tensor ({view.dtype.name}, shape {view.shape}) belongs to another library, "
                "which lent it to be read; dup() gives a copy that can be written"
            )
        return view

    def _give(self, holder: Holder | None) -> None:
        """Have a partition or a shared handle stand in this tensor's place, or nothing."""
        self._hold = None if holder is None else weakref.ref(holder)

    def reclaim(self) -> None:
        """Take the tensor back from its partition or shared handles.

        Those cannot be used any more.

        It helps where they are out of reach, such as in the traceback of a failed call in a notebook.

        Raises:
            OwnershipError: an operation that has not finished writes it.

        Example:
            >>> x = api.zeros((8,)).sync()
            >>> part = x.partition((4,))
            >>> x.reclaim()
            >>> x.partition((2,)).grid()
            (4, 1, 1)
        """
        holder = self.holder()
        if holder is not None:
            holder.dissolve()
        self._hold = None

    def partition(self, shape: TileLike) -> Partition:  # type: ignore[override]  # a kernel's tensor pads
        """Cut the tensor into tiles of `shape`; a kernel writes one per tile block.

        The partition stands in the tensor's place until `unpartition()`, which returns this very object. To keep
        using the tensor between launches, write `tensor.mut.partition(shape)`.

        Args:
            shape: extents of a tile, one for each axis of the tensor, at most 8 of them. They need not divide the
                tensor's: stores clip at the edge. A name may stand for an extent, as in `("BM", 64)`: each launch
                gives its value, by `.generics(BM=128)` or by a search.

        Raises:
            ArgumentError: `shape` is no such shape.
            OwnershipError: the tensor is held, is a read-only view, or two of its indices name one element.

        Example:
            >>> from cutile import api, f32
            >>> y = api.zeros((4, 8), f32).sync()
            >>> part = y.partition((2, 2))
            >>> part.grid()
            (2, 4, 1)
            >>> part.unpartition() is y
            True
            >>> y.partition(("BM", "BN"))
            Partition(f32, tensor_shape=(4, 8), partition_shape=('BM', 'BN'), device=cpu)
        """
        self._writable("partition")
        part = Partition(self, self._cut(shape))
        self._give(part)
        return part

    def partition_prefix(self, shape: TileLike) -> Partition:
        """`partition(shape).prefix()`: a launch may cover the first tiles of each axis.

        Example:
            >>> from cutile import api, f32
            >>> api.zeros((40, 8), f32).sync().partition_prefix((16, 8)).is_prefix
            True
        """
        return self.partition(shape).prefix()

    def _cut(self, shape: TileLike) -> TiledView | OpenTiledView:
        """The elements in tiles of `shape`; the last cut is cached."""
        tiled = self._tiled
        if tiled is None or not is_same_shape(tiled.tile, shape):
            if is_open(shape):
                return OpenTiledView(self._view, as_any_tile(shape, self._view.shape))
            tiled = self._tiled = TiledView(self._view, as_tile(cast("ShapeLike", shape), self._view.shape))
        return tiled

    @property
    def mut(self) -> MutBorrow:
        """The tensor, to be written and still usable: `y.mut.partition(shape)`.

        Until an operation with it has finished, other uses of the same memory raise `OwnershipError`.

        Raises:
            OwnershipError: the tensor is held, or cannot be written (see `partition`).

        Example:
            >>> y = api.zeros((8,)).sync()
            >>> y.mut.partition((4,)).grid()
            (2, 1, 1)
            >>> y.shape  # usable all along
            (8,)
        """
        self._writable("mut")
        return MutBorrow(self)

    def shared(self) -> SharedTensor:
        """A read-only handle with counted owners, which stands in this tensor's place.

        See `SharedTensor`.

        Raises:
            OwnershipError: the tensor is held.

        Example:
            >>> x = api.zeros((8,)).sync()
            >>> with x.shared() as handle:
            ...     handle.owners
            1
        """
        from cutile.host.shared import share

        return share(self, self._usable("shared"))

    # -- the seam to launches -----------------------------------------------------------------

    def __kernel_input__(self) -> View:
        """The elements, to be read by a kernel.

        Raises OwnershipError where the tensor is held.
        """
        return self._view if self._hold is None else self._usable("launch")

    def __kernel_shared__(self) -> SharedView:
        """The elements, to be read and written by any tile block of a kernel.

        Raises OwnershipError where the tensor is held or read-only.
        """
        view = self._writable("launch")
        if self._shared is None:
            self._shared = SharedView(view.storage, view.offset, view.dtype, view.shape, view.strides)
        return self._shared

    def __collective__(self, write: bool) -> Buffer:
        """The elements for a collective. Raises ArgumentError if not contiguous."""
        return collective_buffer(self.__kernel_destination__() if write else self._usable("collective"))

    def __kernel_destination__(self) -> View:
        """The elements, to be written by `memcpy` or `fill`.

        Raises OwnershipError where the tensor is held or read-only.
        """
        return self._writable("write")

    # -- the seam to other libraries: see `exchange.py` ---------------------------------------

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule, to be read: `torch.from_dlpack(tensor)`.

        While the capsule lives, writing the tensor is refused. The capsule of `tensor.mut` may be written.

        On a GPU `stream` is made to wait for the values; on the CPU the caller waits.

        Raises:
            BufferError: the request would need a copy, or the arguments make no sense.
            OwnershipError: the tensor is held, or an operation that has not finished writes it.
            NotReadyError: on the CPU, inside a function given to then(), map() or inspect().
        """
        from cutile.host.exchange import export

        return export(self._usable("__dlpack__"), stream, max_version, dl_device, copy, write=False)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The kind and number of the device, as DLPack has them."""
        from cutile.host.exchange import dlpack_device

        return dlpack_device(self._view)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The elements for Numba and others, on a GPU.

        The protocol does not tell when a library is done with the memory; DLPack does.

        Raises:
            AttributeError: the tensor is not on a GPU, or its dtype has no name in the protocol.
            OwnershipError: the tensor is held.
        """
        from cutile.host.exchange import cuda_array_interface

        return cuda_array_interface(
            self._view, lambda: self._usable("__cuda_array_interface__"), self._exports_read_only
        )

    _exports_read_only = False

    # -- views of the same memory -------------------------------------------------------------

    def reshape(self, shape: ShapeLike, *more: SupportsIndex) -> Tensor:
        """The same memory under another shape; nothing is copied.

        `reshape(4, 8)` is `reshape((4, 8))`. One extent may be -1: it follows from the others.

        Raises:
            ArgumentError: the number of elements differs, or the elements are not contiguous.
            OwnershipError: the tensor is held.

        Example:
            >>> api.arange(6).sync().reshape((2, -1)).shape
            (2, 3)
        """
        return Tensor(reshaped(self._usable("reshape"), whole_shape(shape, more, "reshape"), "reshape"))

    def reinterpret(self, dtype: DTypeSpec, shape: ShapeLike) -> Tensor:
        """The same bytes as another dtype, under another shape; nothing is copied.

        Raises:
            ArgumentTypeError: there is no such dtype.
            ArgumentError: the number of bytes differs, the elements are not contiguous, or the first one is not
                aligned for the dtype.
            OwnershipError: the tensor is held.

        Example:
            >>> from cutile import api, f32, u32
            >>> hex(api.ones((1,), f32).sync().reinterpret(u32, (1,)).to_numpy().sync()[0])
            '0x3f800000'
        """
        return Tensor(reinterpreted(self._usable("reinterpret"), dtype, shape))

    def view(self, shape: ShapeLike, *more: SupportsIndex) -> TensorView:
        """A read-only view under another shape. Takes and raises what `reshape` does.

        Example:
            >>> api.arange(6).sync().view((3, 2)).to_numpy().sync()[2]
            array([4., 5.], dtype=float32)
        """
        return TensorView(reshaped(self._usable("view"), whole_shape(shape, more, "view"), "view"), self)

    @overload
    def slice(self, *ranges: Span | Sequence[Span]) -> TensorView: ...

    @overload
    def slice(self, axis: int, start: int | Tile | None = None, stop: int | Tile | None = None) -> TensorView: ...

    def slice(self, *ranges: Span | Sequence[Span] | int | Tile | None, **named: int | Tile | None) -> TensorView:
        """A read-only view of a part: a range for each axis, or an axis and bounds.

        Ranges are not clipped. An index, `tensor[2:6, ::2]`, clips its bounds and takes steps, as in NumPy.

        Args:
            ranges: `range(2, 6)`, `slice(2, 6)` or `(2, 6)` for each axis, from the first one on; or one list of them.
            axis, start, stop: the one axis to cut and its bounds, which are clipped; negative ones count from the end.

        Raises:
            ArgumentTypeError: an argument is no range, a bound is no integer, or bounds stand without an axis.
            ArgumentError: there are more ranges than axes, or one is out of bounds; or there is no such axis.
            OwnershipError: the tensor is held.

        Example:
            >>> from cutile import api, i32
            >>> x = api.arange(1024, i32).sync()
            >>> x.slice(range(100, 200)).slice(0, -2).to_numpy().sync()
            array([198, 199], dtype=int32)
        """
        if named or (ranges and hasattr(ranges[0], "__index__")):
            return self[axis_key(self.shape, *cast("Any", ranges), **cast("Any", named))]
        view = self._usable("slice")
        return TensorView(piece(view, *slice_layout(ranges, view.shape, view.strides)), self)

    def __getitem__(self, key: Any) -> TensorView:
        """A read-only view of a part, by integers, slices, `...` and None as in NumPy."""
        view = self._usable("index")
        return TensorView(piece(view, *index_layout(key, view.shape, view.strides)), self)

    def transpose(self, axes: ShapeLike | None = None, *more: SupportsIndex) -> TensorView:
        """A read-only view with the axes in another order, `(1, 0)` or `1, 0`.

        None reverses them.

        Raises:
            ArgumentError: `axes` is no permutation.
            OwnershipError: the tensor is held.

        Example:
            >>> x = api.zeros((2, 3, 4)).sync()
            >>> x.transpose((2, 0, 1)).shape, x.transpose().shape
            ((4, 2, 3), (4, 3, 2))
        """
        view = self._usable("transpose")
        order = axes if axes is None and not more else whole_shape(cast("ShapeLike", axes), more, "transpose")
        return TensorView(piece(view, *transpose_layout(order, view.shape, view.strides)), self)

    @property
    def T(self) -> TensorView:
        """A read-only view with the axes reversed."""
        return self.transpose()

    # -- values -------------------------------------------------------------------------------

    def dup(self) -> DeviceOp[Tensor]:
        """An op that yields a copy: a new tensor, contiguous.

        Raises:
            OwnershipError: the tensor is held, or an operation that has not finished writes it.

        Example:
            >>> x = api.arange(6).reshape((2, 3)).sync()
            >>> x.T.dup().sync().strides
            (2, 1)
        """
        return duplicate(self._usable("dup"), Tensor)

    def to_device(self, device: Device | int | str) -> DeviceOp[Tensor]:
        """An op that yields a copy on another device; on this one, a copy like `dup`.

        Run it on a stream of one of the two devices: of the GPU, if the other one is the CPU.

        Args:
            device: the device, the number of a GPU, or a name such as `cpu` or `cuda:1`.

        Raises:
            ArgumentTypeError, ArgumentError: `device` names no device, or the elements are not contiguous.
            NoDeviceError: this machine has no such device.
            OwnershipError: the tensor is held, or an operation that has not finished writes it.

        Example:
            >>> from cuda_async import Device
            >>> x = api.arange(3).sync()
            >>> x.to_device(Device.host()).sync().to_numpy().sync()
            array([0., 1., 2.], dtype=float32)
        """
        from cutile.host.transfer import ToDevice

        return ToDevice(self._usable("to_device"), as_device(device), Tensor)


class TensorView(Tensor):
    """A read-only view of part of a tensor, or of its elements in another order.

    Kernels take it where they take a tensor to read. It does not block writes of the tensor, and shows their results.
    Only uses that overlap are refused: of an unfinished operation, or of one launch. `view.mut` can be written.

    Attributes:
        base: the tensor or view that it is a view of.

    Example:
        >>> x = api.arange(6).reshape((2, 3)).sync()
        >>> x[:, 1].to_numpy().sync()
        array([1., 4.], dtype=float32)
    """

    __slots__ = ("base",)

    def __init__(self, view: View, base: Tensor) -> None:
        super().__init__(view)
        self.base = base

    _exports_read_only = True

    def reshape(self, shape: ShapeLike, *more: SupportsIndex) -> TensorView:
        """The same elements under another shape; see `Tensor.reshape`."""
        return TensorView(reshaped(self._usable("reshape"), whole_shape(shape, more, "reshape"), "reshape"), self)

    def reinterpret(self, dtype: DTypeSpec, shape: ShapeLike) -> TensorView:
        """The same bytes as another dtype; see `Tensor.reinterpret`."""
        return TensorView(reinterpreted(self._usable("reinterpret"), dtype, shape), self)

    def partition(self, shape: TileLike) -> Partition:
        """Refused: a view is read-only.

        Raises:
            OwnershipError: always; `view.mut.partition(shape)` says that writing through the view is meant.
        """
        self._read_only("partition")

    def shared(self) -> SharedTensor:
        """Refused: a view owns nothing to share.

        Raises:
            OwnershipError: always.
        """
        raise OwnershipError("shared: a view owns no memory; share the tensor that it is a view of (view.base)")

    def __kernel_destination__(self) -> View:
        self._read_only("write")

    def __kernel_shared__(self) -> SharedView:
        self._read_only("write")

    def _read_only(self, use: str) -> NoReturn:
        raise OwnershipError(
            f"{use}: a view is read-only ({self!r}). Write the tensor itself, or say view.mut "
            "to write through the view."
        )
