"""`SharedTensor`: a read-only handle to a tensor with counted owners.

It is `Arc<Tensor>` in cuTile Rust.

An owner is a handle that `tensor.shared()` or `handle.clone()` made, until it is dropped: by `drop()`, at the end of a
`with` block, or when nothing refers to it. The number of Python references to one handle does not count. While there is
an owner, operations refuse the tensor itself, as they refuse a partitioned one.
"""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import NoReturn, SupportsIndex

from cuda_async import OwnershipError
from cuda_async.locks import new_lock
from cuda_async.site import Site, format_site, kept_by_notebook, user_site
from cutile.host.partition import Partition, TileLike, as_any_tile
from cutile.host.shapes import DTypeSpec, ShapeLike, whole_shape
from cutile.host.tensor import Tensor
from cutile.host.views import reinterpreted, reshaped
from cutile.launch.views import View

__all__ = ("SharedGroup", "SharedTensor", "share")


class SharedGroup:
    """The owners of one tensor.

    The tensor refers to it weakly, the handles strongly: when the last handle goes, so does the group, and the tensor
    is usable again.
    """

    __slots__ = ("__weakref__", "_lock", "_owners", "_site", "ended")

    def __init__(self) -> None:
        self._site: Site = user_site()
        self._owners: weakref.WeakSet[SharedTensor] = weakref.WeakSet()
        self._lock = new_lock()
        self.ended: Site | None = None
        """The line that reclaimed the tensor from all handles; None before that."""

    def describe(self) -> str:
        """The first handle of the tensor, for error messages."""
        return f"the shared handle made at {format_site(self._site)}"

    def remedy(self) -> str:
        """How to get the tensor back."""
        return "Read the handle itself, or drop() all handles, or unwrap_arc() the last one."

    def kept(self) -> str:
        """Where a notebook may keep a handle."""
        return kept_by_notebook(self._site)

    def dissolve(self) -> None:
        """End all handles, for `Tensor.reclaim`, which makes the tensor usable again."""
        self.ended = user_site()

    def owners(self) -> list[SharedTensor]:
        """The handles that are neither dropped nor collected."""
        with self._lock:
            return list(self._owners)

    def add(self, owner: SharedTensor) -> None:
        """Add an owner."""
        with self._lock:
            self._owners.add(owner)

    def remove(self, owner: SharedTensor) -> None:
        """Remove an owner."""
        with self._lock:
            self._owners.discard(owner)


def share(tensor: Tensor, view: View) -> SharedTensor:
    """The first handle of a tensor; see `Tensor.shared`."""
    group = SharedGroup()
    handle = SharedTensor(view, tensor, group)
    tensor._give(group)  # pyright: ignore[reportPrivateUsage]  # handles and tensor are one mechanism
    return handle


class SharedTensor(Tensor):
    """A read-only handle to a tensor; made by `tensor.shared()` and `clone()`.

    Kernels read it like the tensor, several at once. A `with` block drops it at its end.

    Example:
        >>> from cutile import api, f32
        >>> x = api.ones((4, 8), f32).sync()
        >>> weights = x.shared()
        >>> with weights.clone() as other:
        ...     weights.owners, other.shape
        (2, (4, 8))
        >>> weights.unwrap_arc() is x
        True
    """

    __slots__ = ("_ended", "_group", "_site", "_tensor")

    _exports_read_only = True

    def __init__(self, view: View, tensor: Tensor, group: SharedGroup) -> None:
        super().__init__(view)
        self._tensor = tensor
        self._group: SharedGroup | None = group
        self._site: Site = user_site()
        self._ended: Site | None = None
        group.add(self)

    @property
    def owners(self) -> int:
        """How many handles own the tensor, this one included.

        Raises:
            OwnershipError: this handle was dropped.
        """
        return len(self._alive("owners").owners())

    def clone(self) -> SharedTensor:
        """Make another handle, which owns the tensor too.

        Raises:
            OwnershipError: this handle was dropped.

        Example:
            >>> from cutile import api
            >>> first = api.zeros((8,)).sync().shared()
            >>> second = first.clone()
            >>> second.owners
            2
        """
        return SharedTensor(self._view, self._tensor, self._alive("clone"))

    def drop(self) -> None:
        """End this handle. The tensor is usable again when its last handle has ended.

        A second call does nothing.

        Example:
            >>> from cutile import api
            >>> x = api.zeros((8,)).sync()
            >>> handle = x.shared()
            >>> handle.drop()
            >>> api.fill(x, 1.0).sync() is x
            True
        """
        group, self._group = self._group, None
        if group is not None:
            self._ended = user_site()
            group.remove(self)

    def reshape(self, shape: ShapeLike, *more: SupportsIndex) -> SharedTensor:
        """Make another handle, to the same memory in another shape.

        It owns the tensor too. Takes and raises what `Tensor.reshape` does.
        """
        view = reshaped(self._usable("reshape"), whole_shape(shape, more, "reshape"), "reshape")
        return SharedTensor(view, Tensor(view), self._alive("reshape"))

    def reinterpret(self, dtype: DTypeSpec, shape: ShapeLike) -> SharedTensor:
        """Make another handle, to the same bytes as another dtype.

        It owns the tensor too. Takes and raises what `Tensor.reinterpret` does.
        """
        view = reinterpreted(self._usable("reinterpret"), dtype, shape)
        return SharedTensor(view, Tensor(view), self._alive("reinterpret"))

    def unwrap_arc(self) -> Tensor:
        """End this handle and return the tensor, if the handle is its only owner.

        Raises:
            OwnershipError: there are other owners, or this handle was dropped.

        Example:
            >>> from cutile import api
            >>> x = api.zeros((8,)).sync()
            >>> x.shared().unwrap_arc() is x
            True
        """
        self._single("unwrap_arc")
        self.drop()
        return self._tensor

    def try_partition(self, shape: TileLike) -> Partition:
        """End this handle, if it is the only owner, and partition the tensor.

        See `Tensor.partition`.

        Raises:
            OwnershipError: there are other owners, or this handle was dropped.
            ArgumentError: `shape` is no shape of at most 8 axes, as many as the tensor has. The handle stays usable.

        Example:
            >>> from cutile import api
            >>> api.zeros((8,)).sync().shared().try_partition((4,)).grid()
            (2, 1, 1)
        """
        tile = as_any_tile(shape, self._tensor.shape)
        self._single("try_partition")
        self.drop()
        return self._tensor.partition(tile)

    def partition(self, shape: TileLike) -> Partition:
        """The same as `try_partition`."""
        return self.try_partition(shape)

    def shared(self) -> SharedTensor:
        """The same as `clone`."""
        return self.clone()

    def __kernel_input__(self) -> View:
        """The elements, to be read by a kernel.

        Raises OwnershipError where this handle was dropped.
        """
        return self._usable("launch")

    def __kernel_destination__(self) -> View:
        self._refuse_write()

    def __kernel_shared__(self) -> NoReturn:
        self._refuse_write()

    @property
    def mut(self) -> NoReturn:
        """Refused: a shared tensor is read-only.

        Raises:
            OwnershipError: always.
        """
        self._refuse_write()

    def _refuse_write(self) -> NoReturn:
        raise OwnershipError(
            "write: a shared tensor is read-only; the only owner may take the tensor back (unwrap_arc()) or partition "
            "it (try_partition())"
        )

    def __enter__(self) -> SharedTensor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()

    def _usable(self, use: str) -> View:
        self._alive(use)
        return self._view

    def _alive(self, use: str) -> SharedGroup:
        group = self._group
        ended = self._ended if group is None else group.ended
        if group is None or ended is not None:
            where = "" if ended is None else f" at {format_site(ended)}"
            raise OwnershipError(
                f"{use}: the shared handle made at {format_site(self._site)} was dropped{where}; clone() it before, or "
                "share the tensor again"
            )
        return group

    def _single(self, use: str) -> None:
        others = [owner for owner in self._alive(use).owners() if owner is not self]
        if others:
            lines = ", ".join(sorted(format_site(owner._site) for owner in others))
            raise OwnershipError(
                f"{use}: the tensor has {len(others) + 1} owners; the others are the handles made at {lines}. "
                "drop() those first."
            )
