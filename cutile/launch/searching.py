"""Launches that search for their configuration.

`op.generics([{"BK": 32}, {"BK": 64}])` is such a launch.

This file reads and checks the configurations. `SearchedOp` starts the search, and takes the fastest configuration.
`cutile.autotune`, which imports this package, registers the search itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, cast

from cuda_async import Device, DeviceOp, default_device
from cuda_async.core.prerequisite import Prerequisite
from cutile.backend.interface import OPTIONS_ELSEWHERE, CompileOptions
from cutile.compile.declared import checked_options
from cutile.compile.kernels import Plan
from cutile.errors import GenericsError
from cutile.frontend.parameters import Generic
from cutile.launch.arguments import is_op
from cutile.launch.launchable import Launchable, LaunchState
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
        generics: values of the kernel's generics.
        extents: extents by their names in partitions' tiles.
        options: compile options; None for the launch's own.
        label: all of it by name, as numbers and words that a file can hold.
    """

    generics: Mapping[str, Any]
    extents: Mapping[str, Any]
    options: CompileOptions | None
    label: Mapping[str, int | float | str | bool | tuple[Any, ...] | None]


Key = Callable[..., Any] | Sequence[str]
"""The inputs of a choice: a function of the arguments, or names of arguments."""


@dataclass(frozen=True, eq=False)
class Space:
    """The configurations of a search as its user gives them, and their comparison.

    Attributes:
        configs: dictionaries, or lists of generics in declared order.
        key: the inputs of a choice besides dtypes, layouts and device; None for extents, rounded up to powers of two.
        compare: whether configurations whose results differ from the others' are refused.
        bench: how to measure, a `cutile.bench.BenchOptions`; None for its defaults.
    """

    configs: tuple[Any, ...]
    key: Key | None = None
    compare: bool = True
    bench: Any = None


class LaunchFacts(NamedTuple):
    """Facts of a launch that a search may use.

    Attributes:
        launchable: the kernel.
        arguments: the arguments as they were passed.
        checked: the checked arguments.
        generics: the generics that were given beside the configurations.
        options: the launch's compile options.
        backend: the backend's name; None for the device's own.
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
        """The fastest configuration if a search has found it; else None.

        Another process may have searched.
        """
        ...

    def run(self, launch: LaunchFacts, device: Device) -> None:
        """Search on `device`, and wait for the end.

        Raises TuningError if no configuration could be measured.
        """
        ...

    def unknown(self, launch: LaunchFacts) -> Exception:
        """The error of a launch that cannot wait for its search, such as in a graph."""
        ...


Maker = Callable[[Launchable, Space, "tuple[str, ...]"], LaunchSearch]

_makers: list[Maker] = []


def register_search(make: Maker) -> None:
    """Have `make(launchable, space, names)` make searches.

    `names` are the names in partitions' tiles.
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
    """The space of `.generics(values)`.

    Values of equal `repr` have one object, so that launches share a search.
    """
    spaces: dict[str, Space] = launchable.memo.setdefault("spaces", {})
    return spaces.setdefault(repr(values), Space(tuple(values)))


def is_search(values: object, generics: Sequence[Generic]) -> bool:
    """Whether `.generics(values)` is a search.

    It is if a dictionary is among the values, or if all values are lists. One exception: if all generics of the kernel
    are shapes, and there are as many lists as generics, the lists are the shapes.

    Args:
        values: the argument of `.generics`.
        generics: the kernel's generics.

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
        space: the configurations as the user gave them.
        names: the names in the tiles of partitions.

    Raises:
        GenericsError: one is no configuration, or does not fit the kernel; says which.
    """
    configurations: dict[str, Configuration] = {}
    for number, entry in enumerate(space.configs):
        configuration = _configuration(launchable, number, entry, names)
        configurations.setdefault(repr(configuration.label), configuration)
    return list(configurations.values())


def _configuration(launchable: Launchable, number: int, entry: Any, names: Sequence[str]) -> Configuration:
    where = f"{launchable.name}: configuration {number}"
    own_names = launchable.kernel.signature.generic_names
    if isinstance(entry, Mapping):
        values = dict(cast("Mapping[Any, Any]", entry))
        options = None
        if OPTIONS in values and OPTIONS not in own_names:
            options = checked_options(values.pop(OPTIONS), f"{where}: 'options'")
        unknown_keys = [key for key in values if key not in own_names and key not in names]
        if unknown_keys:
            unknown = unknown_keys[0]
            keys = [*own_names, *(name for name in names if name not in own_names), OPTIONS]
            remedy = 'The extents of a tile are named where it is cut: z.partition(("BM", "BN"))'
            if unknown in OPTIONS_ELSEWHERE or unknown in CompileOptions.__dataclass_fields__:
                spelled = OPTIONS_ELSEWHERE.get(unknown, f"write {unknown}=...")
                remedy = f"Hints for the compiler stand in {OPTIONS!r}: ct.CompileOptions(...); there {spelled}"
            raise GenericsError(
                f"{where}: there is nothing called {unknown!r}; it may have {', '.join(map(str, keys))}. {remedy}"
            )
        generics = launchable.kernel.generics(None, {key: value for key, value in values.items() if key in own_names})
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
    """The options that are not the default, as text: `num_worker_warps=8`."""
    default = CompileOptions()
    fields = [name for name in CompileOptions.__dataclass_fields__ if getattr(options, name) != getattr(default, name)]
    return ", ".join(f"{name}={getattr(options, name)!r}" for name in fields) or "default"


class SearchedOp(LaunchState):
    """The part of `KernelOp` that searches.

    Attributes:
        _space: the configurations to be searched; None once one is chosen, or for no search.
        _extents: extents by their names in partitions' tiles.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        _plan: Plan | None
        _space: Space | None

        def _giving_back(self) -> AbstractContextManager[None]: ...
        def _check_known(self) -> None: ...
        def _put(self, arguments: list[Any]) -> None: ...
        def _again(
            self, arguments: tuple[Any, ...], generics: Mapping[str, Any], options: CompileOptions
        ) -> DeviceOp[Any]: ...

    def search(self, space: Space) -> Self:
        """Have a search find the fastest configuration of a space before this runs.

        `.generics([{...}, ...])` calls it.

        Raises:
            GenericsError: a configuration does not fit the kernel; says which.
        """
        with self._giving_back():
            self._space, self._plan = space, None
            if not self._lazy:
                self._search_of_space(space)
            Prerequisite.exists = True  # runs look for prerequisites only once one may exist
        return self

    def _take_extents(self, named: dict[str, Any]) -> dict[str, Any]:
        """Store the values of extents in partitions' tiles; return the values of generics.

        A name that is both is stored and returned. A name that is neither is returned, for the error.
        """
        own_names = self._launchable.kernel.signature.generic_names
        # Ops may yet yield partitions with tiles of any names: `_put` checks the names then.
        names = [name for name in named if name not in own_names] if self._lazy else open_names(self._checked)
        if not names:
            return named
        self._extents = {**self._extents, **{name: named[name] for name in names if name in named}}
        return {name: value for name, value in named.items() if name in own_names or name not in names}

    def _search_of_space(self, space: Space) -> LaunchSearch:
        """The search of this launch. Raises GenericsError if a configuration does not fit."""
        return open_search(self._launchable, space, self._checked)

    def _decide(self) -> LaunchSearch | None:
        """Take the configuration that the search has found.

        Returns the search if it has found none yet; None if no search is left to be made.
        """
        space = self._space
        if space is None:
            return None
        search = self._search_of_space(space)
        configuration = search.known(self._facts())
        if configuration is None:
            return search
        self._space = None
        self._configure(configuration)
        return None

    def _require_decision(self) -> None:
        """Take the configuration that the search has found.

        Raises TuningError if it has found none.
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
        self._generics, self._more = {**self._generics, **configuration.generics}, None
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
            self._require_decision()

    @staticmethod
    def _run_now(argument: DeviceOp[Any], device: Device) -> Any:
        argument.unclaim()
        return argument.sync_on(device.new_stream())
