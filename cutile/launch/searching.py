"""Launches that search for their configuration.

`op.generics([{"BK": 32}, {"BK": 64}])`.

Here is what a launch knows of it: the configurations, read and checked, and whom to ask for the fastest. The search
itself is registered by `cutile.autotune`, which stands above this. `SearchedOp` has the fastest configuration searched,
and takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, cast

from cuda_async import Device, DeviceOp, default_device
from cuda_async.core.prerequisite import Prerequisite
from cutile.backend.interface import CompileOptions
from cutile.compile.declared import checked_options
from cutile.compile.kernels import Plan
from cutile.errors import GenericsError
from cutile.frontend.parameters import Generic
from cutile.launch.arguments import Checked, is_op
from cutile.launch.fastpath import ViewUse
from cutile.launch.launchable import Launchable
from cutile.launch.views import open_names

__all__ = (
    "OPTIONS",
    "Configuration",
    "LaunchFacts",
    "LaunchSearch",
    "Space",
    "configurations",
    "is_search",
    "open_search",
    "register_search",
    "space_of",
    "SearchedOp",
)

OPTIONS = "options"
"""The key of a configuration under which its compile options stand."""


@dataclass(frozen=True, eq=False)
class Configuration:
    """One configuration of a launch.

    Attributes:
        generics: what the kernel's generics are.
        extents: what the names in partitions' tiles are.
        options: compile options; None for those of the launch.
        label: all of it by name, as numbers and words that a file can hold.
    """

    generics: Mapping[str, Any]
    extents: Mapping[str, Any]
    options: CompileOptions | None
    label: Mapping[str, int | float | str | bool | tuple[Any, ...] | None]


Key = Callable[..., Any] | Sequence[str]
"""What besides dtypes, layouts and the device a choice depends on: a function of the arguments, or names of them."""


@dataclass(frozen=True, eq=False)
class Space:
    """What is searched, as its user says it.

    Attributes:
        configs: dictionaries, or lists of generics in declared order.
        key: what a choice depends on; None for extents, rounded up to powers of two.
        compare: whether configurations whose results differ from the others' are refused.
        bench: how long a measurement takes; `cutile.bench.BenchOptions`.
    """

    configs: tuple[Any, ...]
    key: Key | None = None
    compare: bool = True
    bench: Any = None


class LaunchFacts(NamedTuple):
    """What a search may know of a launch.

    Attributes:
        launchable: the kernel.
        arguments: as they were passed.
        checked: what each is to the launch.
        generics: those that were given beside the configurations.
        options: the launch's compile options.
        backend: by what it is compiled; None for the device's own.
        device: where its arguments are.
        again: makes the same launch with other arguments, generics and options.
    """

    launchable: Launchable
    arguments: tuple[Any, ...]
    checked: Sequence[Any]
    generics: Mapping[str, Any]
    options: CompileOptions
    backend: str | None
    device: Device
    again: Callable[[tuple[Any, ...], Mapping[str, Any], CompileOptions], DeviceOp[Any]]

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.launchable.name


class LaunchSearch(Protocol):
    """The search of a kernel's launches."""

    def known(self, launch: LaunchFacts) -> Configuration | None:
        """The fastest configuration, if an earlier search has found it.

        The search may have been of another process.
        """
        ...

    def run(self, launch: LaunchFacts, device: Device) -> None:
        """Search, on `device`; waits for it.

        Raises TuningError where nothing could be measured; says why.
        """
        ...

    def unknown(self, launch: LaunchFacts) -> Exception:
        """The error of a launch that needs the answer where nobody can wait for a search."""
        ...


Maker = Callable[[Launchable, Space, "tuple[str, ...]"], LaunchSearch]

_makers: list[Maker] = []


def register_search(make: Maker) -> None:
    """Have `make(launchable, space, names)` called for launches that search.

    `names` are those in partitions' tiles.
    """
    _makers[:] = [make]


def open_search(launchable: Launchable, space: Space, checked: Sequence[Any]) -> LaunchSearch:
    """The search of a launch with these arguments.

    All launches of a kernel over one space share it.

    Raises:
        GenericsError: a configuration does not fit the kernel; says which.
    """
    names = open_names(checked)
    searches: dict[tuple[Space, tuple[str, ...]], LaunchSearch] = launchable.memo.setdefault("searches", {})
    search = searches.get((space, names))
    if search is None:
        search = searches[space, names] = _makers[0](launchable, space, names)
    return search


def space_of(launchable: Launchable, values: Sequence[Any]) -> Space:
    """The space of `.generics(values)`; the same for values that read the same."""
    spaces: dict[str, Space] = launchable.memo.setdefault("spaces", {})
    return spaces.setdefault(repr(values), Space(tuple(values)))


def is_search(values: object, generics: Sequence[Generic]) -> bool:
    """Whether `.generics(values)` is a search.

    Dictionaries, or lists alone; not values, some of which are shapes.

    Args:
        values: what is given.
        generics: the kernel's.

    Example:
        >>> [is_search(values, ()) for values in ([64, 128], [{"BK": 64}], [[64], [128]], [(2, 2), 64])]
        [False, True, True, False]
    """
    if not isinstance(values, list | tuple) or not values:
        return False
    items = cast("Sequence[Any]", values)
    if any(isinstance(each, Mapping) for each in items):
        return True
    shapes = len(items) == len(generics) and all(generic.kind == "shape" for generic in generics)
    return not shapes and all(isinstance(each, list) for each in items)


def configurations(launchable: Launchable, space: Space, names: Sequence[str]) -> list[Configuration]:
    """Read the configurations of a launch, each once.

    Args:
        launchable: the kernel.
        space: what is searched.
        names: the names in the tiles of partitions.

    Raises:
        GenericsError: one is no configuration, or does not fit the kernel; says which.
    """
    configurations: dict[str, Configuration] = {}
    for number, given in enumerate(space.configs):
        one = _configuration(launchable, number, given, names)
        configurations.setdefault(repr(one.label), one)
    return list(configurations.values())


def _configuration(launchable: Launchable, number: int, entry: Any, names: Sequence[str]) -> Configuration:
    where = f"{launchable.name}: configuration {number}"
    own = {each.name for each in launchable.kernel.signature.generics}
    if isinstance(entry, Mapping):
        values = dict(cast("Mapping[Any, Any]", entry))
        options = None
        if OPTIONS in values and OPTIONS not in own:
            options = checked_options(values.pop(OPTIONS), f"{where}: 'options'")
        strange = [key for key in values if key not in own and key not in names]
        if strange:
            known = [*own, *(name for name in names if name not in own), OPTIONS]
            raise GenericsError(
                f"{where}: there is nothing called {strange[0]!r}; it may have {', '.join(map(str, known))}. The "
                'extents of a tile are named where it is cut: z.partition(("BM", "BN"))'
            )
        generics = launchable.kernel.generics(None, {key: value for key, value in values.items() if key in own})
    elif isinstance(entry, list):
        options, values = None, {}
        generics = launchable.kernel.generics(cast("list[Any]", entry), {})
    else:
        raise GenericsError(
            f"{where}: expected a dictionary or a list of values, as the others are, got {entry!r}; one flat list of "
            "values is no search"
        )
    extents = {name: values.get(name, generics.get(name)) for name in names}
    extents = {name: value for name, value in extents.items() if value is not None}
    label = {name: _plain(value) for name, value in {**generics, **extents}.items()}
    if options is not None:
        label[OPTIONS] = _words(options)
    return Configuration(generics, extents, options, label)


def _plain(value: Any) -> int | float | str | bool | tuple[Any, ...] | None:
    if value is None or type(value) in (int, float, str, bool):
        return value
    return tuple(map(_plain, cast("tuple[Any, ...]", value))) if isinstance(value, tuple) else str(value)


def _words(options: CompileOptions) -> str:
    """Options as words, those alone that are not the default: `num_worker_warps=8`."""
    default = CompileOptions()
    fields = [name for name in CompileOptions.__dataclass_fields__ if getattr(options, name) != getattr(default, name)]
    return ", ".join(f"{name}={getattr(options, name)!r}" for name in fields) or "default"


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
