"""Tensors whose parts lie on several devices.

A `Mesh` is a row of devices. Tensors are split over them (`Sharded`), and kernels run on each part.

    with Mesh([Device(0), Device(1)]) as mesh:                 # or [Device.host()] * 4, or Mesh(Communicator.join())
        x = mesh.replicate(tokens).sync()
        up, down = mesh.shard(w1, axis=1).sync(), mesh.shard(w2, axis=0).sync()
        h = mesh.map(matmul, x, up, layout=1)                  # each device has some columns of h
        y = h.then(lambda h: mesh.map(matmul, h, down, layout=PARTIAL)).then(lambda y: y.reshard(None))

`mesh.map` gives each device its part, as a partition gives each tile block its tile. Only `reshard` communicates.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, overload

import numpy as np

from cuda_async import Device, DeviceOp, spread, value
from cuda_async import zip as zip_ops
from cuda_async.collective import Communicator
from cutile.dtypes import DTypeLike
from cutile.errors import ArgumentError, ArgumentTypeError, as_text
from cutile.host import api
from cutile.host.tensor import Tensor
from cutile.host.transfer import copy_into, fresh_op
from cutile.host.views import piece

if TYPE_CHECKING:
    from types import TracebackType

    from cutile.launch.views import View

__all__ = ("PARTIAL", "Layout", "Mesh", "Sharded")

PARTIAL: Final = "partial"
"""The layout of a tensor that is the sum of its parts."""

Layout = int | Literal["partial"] | None
"""The axis that is split over the devices; None if each has the whole tensor; `PARTIAL` if the parts are summands."""


def _bounds(extent: int, world: int) -> list[tuple[int, int]]:
    """The start and stop of each device's part of an axis.

    Parts differ by one element at most.

    Raises:
        ValueError: a device would have none.
    """
    if extent < world:
        raise ArgumentError(f"an axis of {extent} elements cannot be split over {world} devices: one would have none")
    return [(rank * extent // world, (rank + 1) * extent // world) for rank in range(world)]


def _as_axis(axis: Any, expected: str) -> int:
    """An axis as an int; Python's and NumPy's integers are axes."""
    try:
        return operator.index(axis)
    except TypeError:
        raise ArgumentTypeError(f"{expected}, got {axis!r}") from None


@overload
def _as_layout(layout: object, name: str, *, partial: Literal[False]) -> int | None: ...
@overload
def _as_layout(layout: object, name: str) -> Layout: ...
def _as_layout(layout: object, name: str, *, partial: bool = True) -> Layout:
    """Check a layout.

    Raises:
        TypeError: it is no layout.
    """
    if layout is None or (partial and isinstance(layout, str) and layout == PARTIAL):
        return layout
    return _as_axis(
        layout, f"{name}: expected an axis, PARTIAL or None" if partial else f"{name}: expected an axis or None"
    )


@dataclass(frozen=True, slots=True, eq=False)
class Sharded:
    """A tensor in parts. Made by a `Mesh`.

    Attributes:
        mesh: the devices.
        parts: the parts of this process's devices, in order.
        layout: the axis that is split; None if each device has the whole tensor; `PARTIAL` if the tensor is the sum of
            the parts.
        extents: the extent of every device's part along the split axis; empty if no axis is split.
    """

    mesh: Mesh
    parts: tuple[Tensor, ...]
    layout: Layout
    extents: tuple[int, ...] = ()

    @classmethod
    def assemble(
        cls,
        mesh: Mesh,
        parts: Sequence[Tensor],
        layout: Layout,
        *,
        extent: int | None = None,
        like: Sequence[tuple[int, ...]] = (),
    ) -> Sharded:
        """Make a tensor of parts.

        Args:
            mesh: the devices.
            parts: the parts of this process's devices.
            layout: how the parts make the tensor.
            extent: the extent of the whole split axis, if it is known.
            like: `extents` of other tensors, one of which the parts may match.

        Raises:
            ValueError: the parts do not fit together, or the extents of other processes' parts are not known.
        """
        shapes = [part.shape for part in parts]
        layout = _as_layout(layout, "layout")
        if isinstance(layout, int) and not -len(shapes[0]) <= layout < len(shapes[0]):
            raise ArgumentError(f"axis {layout}: the parts have {len(shapes[0])} axes")
        axis = layout % len(shapes[0]) if isinstance(layout, int) else None
        other_extents = {tuple(extent for i, extent in enumerate(shape) if i != axis) for shape in shapes}
        dtypes = {part.dtype for part in parts}
        if len(other_extents) > 1 or len(dtypes) > 1 or len({len(shape) for shape in shapes}) > 1:
            what = ", ".join(f"{part.dtype}{list(part.shape)}" for part in parts)
            where = "in all axes" if axis is None else f"in all axes but {axis}"
            raise ArgumentError(f"expected parts of one dtype that agree {where}, got {what}")
        if axis is None:
            return cls(mesh, tuple(parts), layout)
        own_extents = [shape[axis] for shape in shapes]
        return cls(mesh, tuple(parts), axis, _extents(mesh, axis, own_extents, extent, like))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        shape = list(self.parts[0].shape)
        if isinstance(self.layout, int):
            shape[self.layout] = sum(self.extents)
        return tuple(shape)

    @property
    def dtype(self) -> DTypeLike:
        """The element type."""
        return self.parts[0].dtype

    def reshard(self, layout: int | None) -> DeviceOp[Sharded]:
        """The same tensor in another layout: see `Mesh.reshard`."""
        return self.mesh.reshard(self, layout)

    def to_numpy(self) -> DeviceOp[np.ndarray[Any, np.dtype[Any]]]:
        """An op that yields the whole tensor on the host.

        All processes of the mesh must run it. Partial sums are added up in copies, which takes memory for them.
        """
        whole = value(self)
        if self.layout == PARTIAL:  # `reshard` would leave the sum in the parts, and the next one would add it up again
            whole = self.mesh.map(Tensor.dup, self, layout=PARTIAL)
        return whole.then(lambda x: x.reshard(None)).then(lambda x: x.parts[0].to_numpy())

    def numpy(self) -> np.ndarray[Any, np.dtype[Any]]:
        """The whole tensor as a NumPy array, now: waits for it.

        All processes of the mesh must call it.
        """
        return self.to_numpy().sync()

    def __repr__(self) -> str:
        layout = "replicated" if self.layout is None else f"split along axis {self.layout}"
        layout = "partial sums" if self.layout == PARTIAL else layout
        return f"<Sharded {self.dtype}{list(self.shape)} over {len(self.mesh)} devices, {layout}>"


def _extents(
    mesh: Mesh, axis: int, own_extents: Sequence[int], extent: int | None, like: Sequence[tuple[int, ...]]
) -> tuple[int, ...]:
    """The extents of all parts along an axis, of which this process has `own_extents`.

    Nothing is asked of other processes. Their extents follow from the extent of the whole axis, or from another tensor
    that is split in the same way.
    """
    ranks = mesh.communicator.ranks
    if extent is not None:
        like = [tuple(stop - start for start, stop in _bounds(extent, len(mesh)))]
    elif len(ranks) == len(mesh):
        return tuple(own_extents)
    candidates = {extents for extents in like if [extents[rank] for rank in ranks] == list(own_extents)}
    if len(candidates) == 1:
        return candidates.pop()
    if extent is not None:
        raise ArgumentError(
            f"extent: an axis of {extent} elements has parts of {like[0]}, and these have {own_extents}"
        )
    raise ArgumentError(
        f"the parts of this process have {own_extents} elements along axis {axis}, and those of the other processes "
        "are not known: pass extent=, the elements of the whole axis"
    )


class Mesh:
    """A row of devices, of one process or of several.

    Each of several processes has a mesh over its communicator, and all make the same calls. `Sharded.parts` are then
    the parts of one process.

    Args:
        devices: devices of one kind, or their names such as `"cuda:1"`; the CPU may be given any number of times. Or a
            communicator, which the caller closes.

    Raises:
        ValueError: there are no devices, or they are of different kinds.
        LaunchError: there are no collectives among them.

    Example:
        >>> import numpy as np
        >>> from cuda_async import Device
        >>> from cutile.sharding import Mesh
        >>> with Mesh([Device.host()] * 2) as mesh:
        ...     x = mesh.shard(np.arange(6, dtype=np.float32).reshape(3, 2), axis=0).sync()
        ...     x, [part.shape for part in x.parts], x.to_numpy().sync()[2]
        (<Sharded f32[3, 2] over 2 devices, split along axis 0>, [(1, 2), (2, 2)], array([4., 5.], dtype=float32))
    """

    def __init__(self, devices: Sequence[Device | int | str] | Communicator) -> None:
        self._ours = not isinstance(devices, Communicator)
        self.communicator = devices if isinstance(devices, Communicator) else Communicator.of(devices)
        self.devices = self.communicator.devices
        """The devices of this process."""

    def __len__(self) -> int:
        """The number of devices of all processes."""
        return self.communicator.world

    # -- tensors onto the devices -------------------------------------------------------------

    def shard(self, array: Any, *, axis: int = 0) -> DeviceOp[Sharded]:
        """Bring an array to the devices, each its part of an axis.

        Args:
            array: an array or list, as for `api.from_numpy`.
            axis: the axis to split. Parts differ by one element at most.

        Raises:
            ValueError: there is no such axis, or it is shorter than the mesh.
        """
        array = np.asarray(array)
        axis = _as_axis(axis, "shard: expected an axis")
        if not -array.ndim <= axis < array.ndim:
            raise ArgumentError(f"shard: axis {axis} of an array of {array.ndim} axes")
        axis %= array.ndim
        leading = (slice(None),) * axis  # the axes ahead of it, whole
        spans = _bounds(array.shape[axis], len(self))
        parts = [array[(*leading, slice(*spans[rank]))] for rank in self.communicator.ranks]
        return self._spread([api.from_numpy(part) for part in parts], axis, extent=array.shape[axis])

    def replicate(self, array: Any) -> DeviceOp[Sharded]:
        """Bring an array to each device.

        Args:
            array: an array or list, as for `api.from_numpy`.
        """
        array = np.asarray(array)
        return self._spread([api.from_numpy(array) for _ in self.devices], None)

    # -- work on the devices ------------------------------------------------------------------

    def map(
        self,
        function: Callable[..., DeviceOp[Any]],
        *arguments: Any,
        layout: Layout = 0,
        extent: int | None = None,
    ) -> DeviceOp[Sharded]:
        """Run an operation on each device at the same time, on its parts of the arguments.

        Args:
            function: called once for each device; returns an operation that yields the device's part of the result.
            arguments: a `Sharded` gives each device its part; anything else is passed as it is.
            layout: how the results make a tensor: the axis along which they lie side by side, `PARTIAL` if they are
                summands, None if they are all the same.
            extent: the extent of the whole axis along which the results lie; parts differ by one element at most.
                Several processes need it if no argument is split as the results are.

        Raises:
            ValueError: an argument is on another mesh, or the results do not fit together.
            TypeError: the function returns no operation, or `layout` is none.

        Example:
            >>> with Mesh([Device.host()] * 2) as mesh:
            ...     x = mesh.shard([1.0, 2.0, 3.0, 4.0]).sync()
            ...     mesh.map(api.convert, x, "i32").sync().to_numpy().sync()
            array([1, 2, 3, 4], dtype=int32)
        """
        if not callable(function):
            raise ArgumentTypeError(f"map: expected a function of the parts, got {as_text(function)}")
        layout = _as_layout(layout, "map: layout")
        for argument in arguments:
            if isinstance(argument, Sharded) and argument.mesh is not self:
                raise ArgumentError(f"map: {argument!r} is on another mesh")
        ops: list[DeviceOp[Any]] = []
        try:
            for place in range(len(self.devices)):
                local = [item.parts[place] if isinstance(item, Sharded) else item for item in arguments]
                op = function(*local)
                if not isinstance(op, DeviceOp):
                    name = getattr(function, "__name__", function)
                    raise ArgumentTypeError(f"map: expected {name} to return an operation, got {type(op).__name__}")
                ops.append(op)
        except BaseException:
            for op in ops:  # else they would hold what was lent to them for as long as the error lives
                op.discard()
            raise
        like = [item.extents for item in arguments if isinstance(item, Sharded) and item.extents]
        return self._spread(ops, layout, extent=extent, like=like)

    def _spread(
        self,
        ops: Sequence[DeviceOp[Any]],
        layout: Layout,
        *,
        extent: int | None = None,
        like: Sequence[tuple[int, ...]] = (),
    ) -> DeviceOp[Sharded]:
        whole = spread(ops, self.devices)
        return whole.map(lambda parts: Sharded.assemble(self, parts, layout, extent=extent, like=like))

    # -- where layouts meet -------------------------------------------------------------------

    def reshard(self, x: Sharded, layout: int | None) -> DeviceOp[Sharded]:
        """The same tensor in another layout.

        From `PARTIAL`: an all-reduce in place, after which the parts of `x` hold the sum. `x` is of no use then: its
        layout would have the sums added up again. From an axis to None: each part is broadcast. From an axis to
        another: each part is broadcast, and each device keeps its new part of the whole tensor, for which it needs
        memory meanwhile.

        Args:
            x: a tensor on this mesh.
            layout: the axis to be split, or None for all of it on each device.

        Raises:
            ValueError: there is no such axis, it is shorter than the mesh, or `x` is on another mesh.
            TypeError: `layout` is neither an axis nor None.

        Example:
            >>> with Mesh([Device.host()] * 2) as mesh:
            ...     x = mesh.shard(np.ones((4, 6), np.float32), axis=0).sync()
            ...     [part.shape for part in x.parts], [part.shape for part in x.reshard(1).sync().parts]
            ([(2, 6), (2, 6)], [(4, 3), (4, 3)])
        """
        if x.mesh is not self:
            raise ArgumentError(f"reshard: {x!r} is on another mesh")
        layout = _as_layout(layout, "reshard", partial=False)
        if layout is not None:
            if not -len(x.shape) <= layout < len(x.shape):
                raise ArgumentError(f"reshard: axis {layout} of a tensor of {len(x.shape)} axes")
            layout %= len(x.shape)
            _bounds(x.shape[layout], len(self))
        if x.layout == layout:
            return value(x)
        if x.layout == PARTIAL:
            sums = self._on_each(self.communicator.all_reduce, x.parts)
            whole: DeviceOp[Sharded] = sums.map(lambda _: Sharded(self, x.parts, None))
        elif x.layout is None:
            whole = value(x)
        else:
            whole = self._gathered(x, x.layout)
        return whole if layout is None else whole.then(lambda whole: self._split(whole, layout))

    def _on_each(
        self, collective: Callable[..., DeviceOp[Any]], parts: Sequence[Tensor], **options: int
    ) -> DeviceOp[Any]:
        """A collective of the parts.

        On one device it takes the operand itself, on several a list.
        """
        return collective(parts[0] if len(self.devices) == 1 else list(parts), **options)

    def _split(self, x: Sharded, axis: int) -> DeviceOp[Sharded]:
        """Copy each device's part out of its whole tensor."""
        spans = _bounds(x.shape[axis], len(self))
        leading = [slice(None)] * axis
        local = [spans[rank] for rank in self.communicator.ranks]
        ops = [part[(*leading, slice(*span))].dup() for part, span in zip(x.parts, local, strict=True)]
        return self._spread(ops, axis, extent=x.shape[axis])

    def _gathered(self, x: Sharded, axis: int) -> DeviceOp[Sharded]:
        """Broadcast each part, and join all parts on every device."""
        copies = [self._copies(x, axis, source) for source in range(len(self))]
        return zip_ops(*copies).then(lambda parts: self._joined(x, parts, axis))

    def _copies(self, x: Sharded, axis: int, source: int) -> DeviceOp[tuple[Tensor, ...]]:
        """The part of the device `source` on every device.

        `source` itself keeps its part without a copy.
        """
        shape, dtype = (*x.shape[:axis], x.extents[source], *x.shape[axis + 1 :]), x.dtype
        targets = [
            value(part) if rank == source else api.empty(shape, dtype)
            for rank, part in zip(self.communicator.ranks, x.parts, strict=True)
        ]

        def send(parts: tuple[Tensor, ...]) -> DeviceOp[tuple[Tensor, ...]]:
            return self._on_each(self.communicator.broadcast, parts, root=source).map(lambda _: parts)

        return spread(targets, self.devices).then(send)

    def _joined(self, x: Sharded, parts: tuple[tuple[Tensor, ...], ...], axis: int) -> DeviceOp[Sharded]:
        """The whole tensor on each device, joined from its copies of all parts."""
        places = range(len(self.devices))
        ops = [_side_by_side([copies[place] for copies in parts], x.shape, axis) for place in places]
        return self._spread(ops, None)

    # -- its end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the communicator, if the mesh made it. Tensors stay."""
        if self._ours:
            self.communicator.close()

    def __enter__(self) -> Mesh:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        others = f" and {len(self) - len(self.devices)} of other processes" if len(self) > len(self.devices) else ""
        return f"<Mesh of {', '.join(map(str, self.devices))}{others}>"


def _side_by_side(parts: Sequence[Tensor], shape: tuple[int, ...], axis: int) -> DeviceOp[Tensor]:
    """A new tensor of parts that lie side by side along an axis."""

    def fill(view: View) -> DeviceOp[Tensor]:
        whole: DeviceOp[Any] = value(None)
        start = 0
        for part in parts:
            extents = (*shape[:axis], part.shape[axis], *shape[axis + 1 :])
            target = piece(view, start * view.strides[axis], extents, view.strides)
            # One after the other: rows of the parts alternate in memory. So the byte ranges of the parts overlap, and
            # leases of copies at the same time would conflict.
            whole = whole.then(lambda _, target=target, part=part: copy_into(target, part.__kernel_input__()))
            start += part.shape[axis]
        return whole.map(lambda _: Tensor(view))

    return fresh_op(parts[0].dtype, shape).then(fill)
