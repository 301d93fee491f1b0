"""What a launch does about `.generics([{...}, {...}])`.

It has the fastest configuration searched, and takes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Self

from cuda_async import Device, DeviceOp, default_device
from cuda_async.core.prerequisite import Prerequisite
from cutile.backend.interface import CompileOptions
from cutile.compile.kernels import Plan
from cutile.launch.arguments import Checked, is_op
from cutile.launch.fastpath import ViewUse
from cutile.launch.launchable import Launchable
from cutile.launch.open_tiles import open_names
from cutile.launch.searching import Configuration, LaunchFacts, LaunchSearch, Space, open_search

__all__ = ("SearchedOp",)


class SearchedOp:
    """The part of `KernelOp` that searches.

    Attributes:
        _space: what is searched, until the answer is known.
        _extents: what the names in partitions' tiles are.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        _arguments: tuple[Any, ...]
        _backend: str | None
        _checked: list[Checked]
        _extents: Mapping[str, Any]
        _launchable: Launchable
        _generics: Mapping[str, Any]
        _lazy: tuple[DeviceOp[Any], ...]
        _options: CompileOptions
        _plan: Plan | None
        _space: Space | None
        _uses: Sequence[ViewUse]

        def _giving_back(self) -> AbstractContextManager[None]: ...
        def _check_known(self) -> None: ...
        def _put(self, arguments: list[Any]) -> None: ...
        def _again(
            self, arguments: tuple[Any, ...], generics: Mapping[str, Any], options: CompileOptions
        ) -> DeviceOp[Any]: ...

    def search(self, space: Space) -> Self:
        """Have the fastest configuration of a space found before this runs.

        What `.generics([{...}, ...])` does.

        Raises:
            GenericsError: a configuration does not fit the kernel; says which.
        """
        with self._giving_back():
            self._space, self._plan = space, None
            if not self._lazy:
                self._opened(space)
            Prerequisite.exists = True
        return self

    def _take_extents(self, named: dict[str, Any]) -> dict[str, Any]:
        """Keep what partitions name of the generics given by name.

        The others, and what is both, are returned.
        """
        own = {each.name for each in self._launchable.kernel.signature.generics}
        # The tiles of partitions that are yet to be made may have any names: `_put` looks whether they do.
        names = [name for name in named if name not in own] if self._lazy else open_names(self._checked)
        if not names:
            return named
        self._extents = {**self._extents, **{name: named[name] for name in names if name in named}}
        return {name: value for name, value in named.items() if name in own or name not in names}

    def _opened(self, space: Space) -> LaunchSearch:
        """The search of this launch.

        Raises GenericsError where a configuration does not fit.
        """
        return open_search(self._launchable, space, self._checked)

    def _decide(self) -> LaunchSearch | None:
        """Take the configuration that a search has found, if one is searched.

        None; or the search, if it has not.
        """
        space = self._space
        if space is None:
            return None
        search = self._opened(space)
        configuration = search.known(self._facts())
        if configuration is None:
            return search
        self._space = None
        self._configure(configuration)
        return None

    def _decided(self) -> None:
        """`_decide`, where nobody can wait for a search.

        Raises TuningError, which says what to run first.
        """
        search = self._decide()
        if search is not None:
            raise search.unknown(self._facts())

    def _facts(self) -> LaunchFacts:
        device = self._uses[0][1].device if self._uses else default_device()
        return LaunchFacts(
            self._launchable,
            self._arguments,
            self._checked,
            self._generics,
            self._options,
            self._backend,
            device,
            self._again,
        )

    def _configure(self, configuration: Configuration) -> None:
        self._generics = {**self._generics, **configuration.generics}
        self._extents = {**self._extents, **configuration.extents}
        if configuration.options is not None:
            self._options = configuration.options
        self._check_known()

    def _find(self, device: Device) -> None:
        """Run the lazy arguments, and search unless the answer is known."""
        if self._lazy:
            self._put([self._run_now(each, device) if is_op(each) else each for each in self._arguments])
            self._lazy = ()
        search = self._decide()
        if search is not None:
            search.run(self._facts(), device)
            self._decided()

    @staticmethod
    def _run_now(argument: DeviceOp[Any], device: Device) -> Any:
        argument.unclaim()
        return argument.sync_on(device.new_stream())
