"""The search of a launch for its fastest configuration.

It is the search of `op.generics([{...}, {...}])`.

`known` looks the choice up, in memory and on disk, by kernel, device, dtypes, layouts and key. `run` compiles all
configurations, runs each once on copies of the memory that the kernel writes, and compares the results. It measures
those that agree, and keeps the winner. Only the winner's launch, which follows, writes the caller's memory.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from cuda_async import Device, DeviceOp, Storage
from cuda_async.locks import new_lock
from cutile.backend.registry import backend
from cutile.bench import BenchOptions
from cutile.compile.ahead import Builders
from cutile.compile.driver import front
from cutile.compile.kernels import Plan
from cutile.compile.key import own_digest
from cutile.errors import ArgumentError, CutileError, GenericsError, TuningError
from cutile.launch.arguments import Pointer
from cutile.launch.launchable import Launchable, without_places
from cutile.launch.searching import Configuration, Key, LaunchFacts, Space, configurations
from cutile.launch.target import INTERPRET, target_of
from cutile.launch.variables import place_of
from cutile.launch.views import OpenTiledView, PointingView, SharedView, TiledView, View, tiled
from cutile.tune.choices import Choice, digest_of, load, save
from cutile.tune.log import Invalid, Trial, TrialLog, failure_lines
from cutile.tune.memory import Agreement, Backup, DisagreementWarning, Output, Region, Scratch
from cutile.tune.search import DeviceOracle, InvalidError, Search
from cutile.tune.space import Config, GridSearch
from cutile.tune.table import NotebookTable, Tuned, default_progress

__all__ = ("KernelSearch", "rounded_extents")

BENCH = BenchOptions(warmup_ms=5.0, rep_ms=30.0)
"""How long a measurement takes by default. Rough medians are enough, since the run-off decides between the two best."""

_lock = new_lock()  # one search at a time: two at once would slow each other down, and falsify both measurements


class KernelSearch:
    """The search of a kernel's launches over one space; see `LaunchSearch`.

    Args:
        launchable: the kernel.
        space: the configurations, and how they are compared and measured.
        names: the names in the tiles of partitions.

    Raises:
        GenericsError: a configuration does not fit the kernel, or the key names no parameter.
    """

    def __init__(self, launchable: Launchable, space: Space, names: Sequence[str]) -> None:
        self._space = space
        self._configurations = configurations(launchable, space, names)
        _require_extents(launchable, self._configurations, names)
        self._labels = repr([dict(each.label) for each in self._configurations])
        self._configs = dict(_named(self._configurations))
        self._key = _key_function(launchable, space.key)
        self._digests: dict[object, str] = {}  # of choices that were looked up on disk, by `_identity`

    # -- looking choices up ------------------------------------------------------------------------

    def known(self, launch: LaunchFacts) -> Configuration | None:
        """The fastest configuration, if it is known; see `LaunchSearch`.

        An interpreted launch takes the first one: its time says nothing of a compiled kernel. So does a launch whose
        output has no elements: it runs nothing.
        """
        outputs = (each for each in launch.checked if isinstance(each, TiledView | OpenTiledView))
        if launch.backend == INTERPRET or len(self._configurations) == 1 or any(0 in each.shape for each in outputs):
            return self._configurations[0]
        key = self._identity(launch)
        table: dict[object, Choice] = launch.launchable.memo.setdefault("choices", {})
        choice = table.get(key)
        if choice is None and key not in self._digests:  # the disk is asked once: its digest needs the kernel's IR
            digest = self._digests[key] = self._digest(launch)
            choice = load(digest, launch.name, self._words(launch), self._configurations)
            if choice is not None:
                table[key] = choice
        return None if choice is None else choice.configuration

    def unknown(self, launch: LaunchFacts) -> TuningError:
        """The error of a launch that needs the answer where nobody can wait for a search."""
        name, first = launch.name, self._configurations[0]
        example = ", ".join(f"{each}={value!r}" for each, value in first.label.items() if each != "options")
        return TuningError(
            f"{name}: which of {len(self._configurations)} configurations is the fastest for {self._words(launch)} is "
            "not known, and a search waits for the device, which cannot be done inside then(), in a graph, or by "
            f"explain and render. Run one such launch before, by itself: {name}(...).generics([...]).sync(), which "
            f"keeps what it finds; or name a configuration: .generics({example})"
        )

    def _identity(self, launch: LaunchFacts) -> object:
        """The key of a choice in memory. It must be cheap: every launch makes one."""
        layouts = tuple(
            each.view.layout if isinstance(each, OpenTiledView) else each.layout
            for each in launch.checked
            if isinstance(each, View | TiledView | OpenTiledView)
        )
        generics = tuple(launch.generics.items())
        return self, launch.device, launch.backend, launch.options, generics, layouts, self._key(launch)

    def _words(self, launch: LaunchFacts) -> str:
        """The key as words: `x f32 (1024, 512), y f32 (512, 512) on cpu`."""
        words: list[str] = []
        for name, argument in zip(launch.launchable.kernel.signature.names, launch.checked, strict=True):
            if isinstance(argument, View | TiledView | OpenTiledView):
                view = argument if isinstance(argument, View) else argument.view
                words.append(f"{name} {view.dtype.name} {argument.shape}")
        return f"{', '.join(words) or 'these arguments'} on {launch.device}"

    def _digest(self, launch: LaunchFacts) -> str:
        """The name of a choice on disk.

        The `repr` of a layout is the same in each process.
        """
        target = target_of(launch.device, launch.backend)
        layouts = [
            repr(each.view.layout if isinstance(each, OpenTiledView) else each.layout)
            for each in launch.checked
            if isinstance(each, View | TiledView | OpenTiledView)
        ]
        toolchain = backend(target.backend).version()
        parts = [
            launch.name,
            self._code(launch),
            self._labels,
            repr(launch.options),
            repr(self._key(launch)),
        ]
        parts += [repr(sorted((name, str(value)) for name, value in launch.generics.items())), *layouts]
        return digest_of([*parts, launch.device.name, repr(target), own_digest(), toolchain])

    def _code(self, launch: LaunchFacts) -> str:
        """The IR of the first configuration that has one; else the kernel's source.

        Helpers and captured values are in the IR.
        """
        target = target_of(launch.device, launch.backend)
        for configuration in self._configurations:
            try:
                return without_places(_plan(launch, configuration).render(target, "ir"))
            except CutileError:
                continue  # the search refuses this configuration, with the reason
        return "\n".join(launch.launchable.kernel.source.lines.values())

    # -- searching ----------------------------------------------------------------------------

    def run(self, launch: LaunchFacts, device: Device) -> None:
        """Search, and keep the winner; see `LaunchSearch`.

        Raises:
            TuningError: no configuration can be used, no majority agrees, or copies of the memory do not fit.
        """
        with _lock, device:
            if self.known(launch) is not None:
                return  # another thread has searched while this one waited for the lock
            key = self._identity(launch)
            tuned = self._search(launch, device)
            best = self._configs[tuned.best]
            choice = Choice(launch.name, best, self._words(launch), tuned.median_ms, len(tuned.trials), tuned)
            launch.launchable.memo["choices"][key] = choice
            # `known` has made the digest, unless the user's key function returned another key there.
            save(self._digests.get(key) or self._digest(launch), choice)

    def _search(self, launch: LaunchFacts, device: Device) -> Tuned:
        """Compare and measure all configurations; returns the table with the winner."""
        name, bench = launch.name, self._space.bench or BENCH
        stream = device.new_stream()
        scratch = Scratch(name, _written(launch), stream)
        with Builders() as builders, _variables_kept(launch, self._configurations, device) as restore:

            def candidate(config: Config) -> DeviceOp[Any]:
                return _trial(launch, self._configs[config], scratch)

            def refresh() -> None:
                scratch.refresh()
                restore()

            oracle = _Oracle(candidate, stream, builders, bench, poison=refresh)
            refused = self._compare(launch, oracle, scratch)
            usable = [config for config in self._configs if config not in refused]
            if not usable:
                raise TuningError("\n".join([f"{name}: no configuration can be used", *failure_lines(refused)]))
            progress = default_progress(name)
            search = Search(
                name, oracle, GridSearch(usable), TrialLog(None, name, ()), total=len(usable), progress=progress
            )
            search.run()
            winner, finalists, runoff, remarks = search.finish()
        trials = [search.trials.get(config) or Trial(config, refused[config]) for config in self._configs]
        tuned = Tuned(
            name, winner.config, tuple(trials), runoff, tuple(each.config for each in finalists), None, False,
            tuple(remarks),
        )  # fmt: skip
        if isinstance(progress, NotebookTable):
            progress.done(tuned.title)
        return tuned

    def _compare(self, launch: LaunchFacts, oracle: _Oracle, scratch: Scratch) -> dict[Config, Invalid]:
        """Compile all, run each once; refuse failures and results of a minority.

        Raises:
            TuningError: no group of configurations with one result is larger than all others.

        Warns:
            DisagreementWarning: names the configurations that differ.
        """
        agreement = Agreement(_outputs(launch) if self._space.compare else [])
        refused: dict[Config, Invalid] = {}
        configs = list(self._configs)
        for config, outcome in zip(configs, oracle.prepare(configs), strict=True):
            try:
                if outcome is not None:
                    raise InvalidError(outcome)
                oracle.run_once(config)
                agreement.add(config, scratch.fetch() if self._space.compare else [])
            except InvalidError as error:
                refused[config] = error.outcome
        oracle.prepared = True
        differing = agreement.differing()
        if not differing:
            return refused
        words_of_differing = "; ".join(f"{config.id} ({words})" for config, words in differing.items())
        name, others = launch.name, ", ".join(config.id for config in agreement.agreeing)
        if not agreement.decided:
            raise TuningError(
                f"{name}: the configurations compute different results, and no result is that of most: "
                f"{words_of_differing}; otherwise with {others}. Judge them with cutile.tune.Autotuner(...).check, "
                "leave out those that are wrong, or, where results may differ, search with @ct.autotune(configs, "
                "compare=False)"
            )
        warnings.warn(
            f"{name}: {len(differing)} of {len(configs)} configurations compute another result than the others, and "
            f"are not used: {words_of_differing}; otherwise with {others}",
            DisagreementWarning,
            stacklevel=2,
        )
        return refused | {config: Invalid(f"another result: {words}", "check") for config, words in differing.items()}


class _Oracle(DeviceOracle):
    """The device, for configurations that were compiled and compared beforehand."""

    prepared = False
    """Whether all configurations are compiled."""

    def look(self, config: Config) -> str:
        """The configuration alone: there is no log whose trials it must match."""
        return config.id

    def prepare(self, configs: Sequence[Config]) -> list[Invalid | None]:
        """Compile the configurations, unless that is done."""
        return [None] * len(configs) if self.prepared else super().prepare(configs)

    def run_once(self, config: Config) -> None:
        """Run a configuration on fresh copies. Raises InvalidError where it fails."""
        self._try_once(config)


# -- launches of trials -----------------------------------------------------------------------


class _Argument:
    """An argument of a trial.

    It has a view of the caller's memory, or of a copy if the kernel writes it. Launches call its methods for the view,
    to read, to write or to share the memory.
    """

    __slots__ = ("_view",)

    def __init__(self, view: View | TiledView) -> None:
        self._view = view

    def __kernel_input__(self) -> View | TiledView:
        return self._view

    def __kernel_output__(self) -> View | TiledView:
        return self._view

    def __kernel_shared__(self) -> View | TiledView:
        return self._view


def _names_checked(launch: LaunchFacts) -> Iterator[tuple[str, Any]]:
    return zip(launch.launchable.kernel.signature.names, launch.checked, strict=True)


def _written(launch: LaunchFacts) -> list[Region]:
    """The bytes that a launch writes.

    Raises:
        TuningError: it may write through an address, and the extent of the memory there is unknown.
    """
    regions: list[Region] = []
    for name, argument in _names_checked(launch):
        if isinstance(argument, Pointer) or (isinstance(argument, PointingView) and argument.others_written):
            raise TuningError(
                f"{launch.name}: a search tries configurations on copies, and what the address in {name!r} leads "
                "to cannot be copied for it; measure them with cutile.tune.Autotuner, which runs what you give it"
            )
        if isinstance(argument, SharedView | TiledView | OpenTiledView):
            regions.append(Region(name, argument.storage, *argument.byte_range))
    return regions


def _outputs(launch: LaunchFacts) -> list[Output]:
    """The tensors that a launch writes, in the order of `_written`."""
    outputs: list[Output] = []
    for name, argument in _names_checked(launch):
        if isinstance(argument, SharedView | TiledView | OpenTiledView):
            outputs.append(Output.of(name, argument if isinstance(argument, View) else argument.view))
    return outputs


def _named_values(launch: LaunchFacts, configuration: Configuration) -> Mapping[str, Any]:
    return {**launch.generics, **configuration.generics, **configuration.extents}


def _plan(launch: LaunchFacts, configuration: Configuration) -> Plan:
    """The kernel specialized to a configuration.

    Raises CutileError where the configuration does not fit.
    """
    launchable, names = launch.launchable, launch.launchable.kernel.signature.names
    checked = tiled(launchable.name, names, list(launch.checked), _named_values(launch, configuration))
    options = launch.options if configuration.options is None else configuration.options
    return launchable.plan(list(checked), {**launch.generics, **configuration.generics}, options)


def _trial(launch: LaunchFacts, configuration: Configuration, scratch: Scratch) -> DeviceOp[Any]:
    """The launch with a configuration, on copies."""
    launchable, names = launch.launchable, launch.launchable.kernel.signature.names
    checked = tiled(launchable.name, names, list(launch.checked), _named_values(launch, configuration))
    copies = iter(scratch.copies)  # of the written arguments, in the order of `_written`
    arguments: list[Any] = []
    for original, argument in zip(launch.arguments, checked, strict=True):
        if isinstance(argument, TiledView):
            view = _moved(argument.view, next(copies))
            arguments.append(_Argument(TiledView(view, argument.tile, argument.map, argument.blocks, argument.exact)))
        elif isinstance(argument, SharedView):
            arguments.append(_Argument(_moved(argument, next(copies))))
        else:
            arguments.append(_Argument(argument) if isinstance(argument, View) else original)
    options = launch.options if configuration.options is None else configuration.options
    return launch.again(tuple(arguments), {**launch.generics, **configuration.generics}, options)


def _moved(view: View, copy: Region) -> View:
    """The same elements in a copy of their bytes."""
    return type(view)(copy.storage, copy.start + view.offset - view.start, view.dtype, view.shape, view.strides)


@contextmanager
def _variables_kept(
    launch: LaunchFacts, configurations: Sequence[Configuration], device: Device
) -> Generator[Callable[[], None]]:
    """Keep the device's variables that the kernel uses.

    Yields a function that puts their values back, which also happens at the end.
    """
    target = target_of(device, launch.backend)
    stream = device.new_stream()
    places: dict[int, Storage] = {}  # each storage once: variables may share one
    for configuration in configurations:
        try:
            variables = front(_plan(launch, configuration).request(target)).variables
        except CutileError:
            continue  # it is refused when it is tried, with the reason
        for each in variables:
            storage = place_of(each, stream)
            places[id(storage)] = storage
        break  # all configurations use the same variables, those that the function names
    backup = Backup(launch.name, stream)
    backup.keep(Region("a variable", storage, 0, storage.nbytes) for storage in places.values())
    try:
        yield backup.restore if places else lambda: None
    finally:
        backup.restore()


# -- names and keys ---------------------------------------------------------------------------


def _require_extents(launchable: Launchable, configurations: Sequence[Configuration], names: Sequence[str]) -> None:
    """Refuse a configuration that lacks an extent which others have.

    An extent that no configuration has, or that is a generic, may be given beside the configurations.

    Raises:
        GenericsError: there is one; says which.
    """
    own = launchable.kernel.signature.generic_names
    common = [name for name in names if name not in own and any(name in each.extents for each in configurations)]
    for configuration in configurations:
        if missing := [name for name in common if name not in configuration.extents]:
            label, verb = dict(configuration.label), "is" if len(missing) == 1 else "are"
            raise GenericsError(
                f"{launchable.name}: configuration {label!r} does not say what {' and '.join(missing)} {verb}, "
                "which a partition names and others say; write it into each"
            )


def _named(configurations: Sequence[Configuration]) -> Iterator[tuple[Config, Configuration]]:
    """Each configuration with the `Config` that names it in tables."""
    for number, configuration in enumerate(configurations):
        try:
            yield Config(configuration.label), configuration
        except ArgumentError:  # a generic has the name of an attribute of `Config`, such as `id`
            yield Config(number=number), configuration


def _key_function(launchable: Launchable, key: Key | None) -> Callable[[LaunchFacts], object]:
    """The function that makes the key of a launch.

    Raises:
        GenericsError: a text of the key names no parameter, and no extent of a parameter.
    """
    if key is None:
        return _default_key
    if callable(key):
        return lambda launch: _hashable_key(key(*launch.arguments), launchable.name)
    names = launchable.kernel.signature.names
    parts: list[tuple[int, int | None]] = []
    for text in [key] if isinstance(key, str) else key:
        part = _PART.fullmatch(str(text))
        if part is None or part["name"] not in names:
            raise GenericsError(
                f"{launchable.name}: key={key!r}: expected names of its parameters ({', '.join(names)}), or their "
                f'extents, such as "{names[0] if names else "x"}.shape[0]"; or a function of the arguments'
            )
        parts.append((names.index(part["name"]), int(part["axis"]) if part["axis"] else None))
    return lambda launch: tuple(_part(launch, position, axis) for position, axis in parts)


_PART = re.compile(r"(?P<name>\w+)(\.shape(\[(?P<axis>-?\d+)\])?)?")
"""A text of a key: `n`, `x`, `x.shape` or `x.shape[0]`."""


def _part(launch: LaunchFacts, position: int, axis: int | None) -> object:
    value: Any = launch.checked[position]
    shape: tuple[int, ...] | None = getattr(value, "shape", None)
    if axis is None:
        return value if shape is None else shape
    name = launch.launchable.kernel.signature.names[position]
    if shape is None or not -len(shape) <= axis < len(shape):
        raise GenericsError(f"{launch.name}: key: argument {name!r} has no axis {axis}")
    return shape[axis]


def _default_key(launch: LaunchFacts) -> object:
    """The extents of tensors, rounded up to powers of two."""
    return tuple(
        rounded_extents(each.shape) for each in launch.checked if isinstance(each, View | TiledView | OpenTiledView)
    )


def rounded_extents(shape: Sequence[int]) -> tuple[int, ...]:
    """Extents rounded up to powers of two: launches of like sizes share a choice.

    >>> rounded_extents((1, 5, 64))
    (1, 8, 64)
    """
    return tuple(1 << (extent - 1).bit_length() for extent in shape)


def _hashable_key(value: Any, name: str) -> object:
    """The key that a user's function returned, with tuples in place of lists.

    Raises GenericsError for a value that may have no hash, or another `repr` in another process.
    """

    def hashable(part: Any) -> object:
        if isinstance(part, tuple | list):
            return tuple(map(hashable, cast("Sequence[Any]", part)))
        if part is not None and not isinstance(part, int | float | str | bool):
            raise GenericsError(
                f"{name}: key: expected a function that returns numbers, strings or tuples of such, got {value!r}"
            )
        return part

    return hashable(value)
