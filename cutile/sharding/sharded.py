"""`Sharded`: a tensor in parts, one on each device of a mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from cutile.dtypes import DTypeLike
from cutile.errors import ArgumentError

if TYPE_CHECKING:
    from cuda_async import DeviceOp
    from cutile.host.tensor import Tensor
    from cutile.sharding.mesh import Mesh

__all__ = ("PARTIAL", "Layout", "Sharded", "bounds")

PARTIAL: Final = "partial"
"""The layout of a tensor that is the sum of its parts."""

Layout = int | Literal["partial"] | None
"""The axis that is split over the devices; None where each has all; `PARTIAL` where they are to be added up."""


def bounds(extent: int, world: int) -> list[tuple[int, int]]:
    """Where each device's part of an axis begins and ends.

    Parts differ by one element at most.

    Raises:
        ValueError: a device would have none.
    """
    if extent < world:
        raise ArgumentError(f"an axis of {extent} elements cannot be split over {world} devices: one would have none")
    return [(rank * extent // world, (rank + 1) * extent // world) for rank in range(world)]


@dataclass(frozen=True, slots=True, eq=False)
class Sharded:
    """A tensor in parts.

    Made by a `Mesh`.

    Attributes:
        mesh: the devices.
        parts: those of this process's devices, in order.
        layout: how they make the tensor: the axis that is split; None where each device has all of it; `PARTIAL`
            where the parts are to be added up.
        extents: of every device's part along the axis that is split; empty where none is.
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
        """Take parts for a tensor.

        Args:
            mesh: the devices.
            parts: those of this process's devices.
            layout: how they make the tensor.
            extent: of the whole axis that is split.
            like: the extents of tensors that the parts may be split as, if they do not say it themselves.

        Raises:
            ValueError: they do not fit together, or what other processes have is not known.
        """
        shapes = [part.shape for part in parts]
        if isinstance(layout, int) and not -len(shapes[0]) <= layout < len(shapes[0]):
            raise ArgumentError(f"axis {layout}: the parts have {len(shapes[0])} axes")
        axis = layout % len(shapes[0]) if isinstance(layout, int) else None
        rests = {tuple(extent for i, extent in enumerate(shape) if i != axis) for shape in shapes}
        dtypes = {part.dtype for part in parts}
        if len(rests) > 1 or len(dtypes) > 1 or len({len(shape) for shape in shapes}) > 1:
            what = ", ".join(f"{part.dtype}{list(part.shape)}" for part in parts)
            where = "in all axes" if axis is None else f"in all axes but {axis}"
            raise ArgumentError(f"expected parts of one dtype that agree {where}, got {what}")
        if axis is None:
            return cls(mesh, tuple(parts), layout)
        mine = [shape[axis] for shape in shapes]
        return cls(mesh, tuple(parts), axis, _extents(mesh, axis, mine, extent, like))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole tensor."""
        shape = list(self.parts[0].shape)
        if isinstance(self.layout, int):
            shape[self.layout] = sum(self.extents)
        return tuple(shape)

    @property
    def dtype(self) -> DTypeLike:
        """Of its elements."""
        return self.parts[0].dtype

    def reshard(self, layout: int | None) -> DeviceOp[Sharded]:
        """The same tensor in another layout: see `Mesh.reshard`."""
        return self.mesh.reshard(self, layout)

    def to_numpy(self) -> DeviceOp[np.ndarray[Any, np.dtype[Any]]]:
        """The whole tensor, on the host.

        Of several processes all have to ask, and each gets it.
        """
        return self.reshard(None).then(lambda whole: whole.parts[0].to_numpy())

    def __repr__(self) -> str:
        how = "replicated" if self.layout is None else f"split along axis {self.layout}"
        how = "partial sums" if self.layout == PARTIAL else how
        return f"<Sharded {self.dtype}{list(self.shape)} over {len(self.mesh)} devices, {how}>"


def _extents(
    mesh: Mesh, axis: int, mine: Sequence[int], extent: int | None, like: Sequence[tuple[int, ...]]
) -> tuple[int, ...]:
    """The extents of all parts along an axis, of which this process has `mine`."""
    ranks = mesh.communicator.ranks
    if extent is not None:
        like = [tuple(stop - start for start, stop in bounds(extent, len(mesh)))]
    elif len(ranks) == len(mesh):
        return tuple(mine)
    matching = {extents for extents in like if [extents[rank] for rank in ranks] == list(mine)}
    if len(matching) == 1:
        return matching.pop()
    if extent is not None:
        raise ArgumentError(f"extent: an axis of {extent} elements has parts of {like[0]}, and these have {mine}")
    raise ArgumentError(
        f"the parts of this process have {mine} elements along axis {axis}, and those of the other processes are not "
        "known: pass extent=, the elements of the whole axis"
    )
