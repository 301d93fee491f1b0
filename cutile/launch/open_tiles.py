"""Partitions whose tile has names: `z.partition(("BM", "BN"))`.

A launch's generics tell the extents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from cuda_async import Storage
from cutile.errors import GenericsError, MissingGenericsError
from cutile.launch.views import TiledView, View

__all__ = ("OpenTiledView", "open_names", "shown", "tiled")


@dataclass(slots=True, eq=False)
class OpenTiledView:
    """A view that a launch will cut into tiles.

    What a `Mut` parameter takes until its generics are known.

    Attributes:
        view: the elements.
        tile: the extents of a tile; of some there are names alone.
        exact: whether a launch's grid will be the partition's own.
        map, layout, facts, grid: as of a `TiledView`, not known yet. No launch recognises them.
        storage, shape, start, stop: the view's.
    """

    writes: ClassVar[bool] = True
    map: ClassVar[None] = None
    layout: ClassVar[None] = None
    facts: ClassVar[None] = None
    grid: ClassVar[None] = None

    view: View
    tile: tuple[int | str, ...]
    exact: bool = True
    storage: Storage = field(init=False, repr=False)
    shape: tuple[int, ...] = field(init=False, repr=False)
    start: int = field(init=False, repr=False)
    stop: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.storage, self.shape = self.view.storage, self.view.shape
        self.start, self.stop = self.view.start, self.view.stop

    @property
    def byte_range(self) -> tuple[int, int]:
        """`start` and `stop`."""
        return self.start, self.stop

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the tile."""
        return tuple(each for each in self.tile if isinstance(each, str))

    def tiled(self, extents: Mapping[str, Any], what: str) -> TiledView:
        """The view cut into tiles.

        Args:
            extents: what the names stand for.
            what: the kernel and its argument, for errors.

        Raises:
            MissingGenericsError: a name stands for nothing.
            GenericsError: a name stands for no extent.
        """
        missing = [name for name in self.names if name not in extents]
        if missing:
            generics = ", ".join(f"{name}=..." for name in self.names)
            raise MissingGenericsError(
                f"{what} is cut into tiles of {shown(self.tile)}, and nothing says what {' and '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'}; give it with .generics({generics}), or a list of "
                "configurations to be searched: .generics([{...}, {...}])"
            )
        tile = tuple(extents[each] if isinstance(each, str) else each for each in self.tile)
        for name, extent in zip(self.tile, tile, strict=True):
            if isinstance(extent, bool) or not isinstance(extent, int) or extent < 1:
                raise GenericsError(f"{what}: {name!r} is an extent of its tiles, a positive int; got {extent!r}")
        return TiledView(self.view, tile, exact=self.exact)


def shown(tile: Iterable[int | str]) -> str:
    """A tile as words: `BM x 64`."""
    return " x ".join(map(str, tile))


def open_names(checked: Iterable[Any]) -> tuple[str, ...]:
    """The names in the tiles of a launch's arguments, each once."""
    return tuple(dict.fromkeys(name for each in checked if isinstance(each, OpenTiledView) for name in each.names))


def tiled(kernel: str, names: Sequence[str], checked: list[Any], extents: Mapping[str, Any]) -> list[Any]:
    """A launch's checked arguments with every partition cut.

    Raises as `OpenTiledView.tiled`.

    Args:
        kernel: its name.
        names: the parameters' names.
        checked: the arguments; returned as they are where nothing is open.
        extents: what the names in tiles stand for.
    """
    if not any(isinstance(argument, OpenTiledView) for argument in checked):
        return checked
    return [
        argument.tiled(extents, f"{kernel}: argument {name!r}") if isinstance(argument, OpenTiledView) else argument
        for name, argument in zip(names, checked, strict=True)
    ]
