"""The search of a composite for its fastest configuration.

An earlier search's choice on disk is taken if the kernels, the device, the configurations and the key are the same.
Else the operations of all configurations are traced and their kernels compiled at once. Each operation runs once, and
its result is compared with the result of the first configuration. Those that agree are measured. All memory that
operations write is put back.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from cuda_async import Device, DeviceLostError, DeviceOp, Stream
from cutile.errors import TuningError
from cutile.launch.searching import Configuration, Space
from cutile.launch.views import OpenTiledView, TiledView, View
from cutile.tune.choices import Choice, digest_of, load, save
from cutile.tune.launches import BENCH, rounded_extents
from cutile.tune.log import Invalid
from cutile.tune.memory import Backup, Bytes, Fetch, Output, Region, difference, written_by
from cutile.tune.record import Provenance, submitted
from cutile.tune.space import Config
from cutile.tune.table import Tuned
from cutile.tune.tuner import Autotuner

__all__ = ("CompositeChoice", "key_of", "search")

Make = Callable[[Mapping[str, Any]], DeviceOp[Any]]


@dataclass(frozen=True, eq=False)
class CompositeChoice:
    """The result of a composite's search.

    Attributes:
        config: the fastest configuration.
        key: the arguments that it was chosen for, as text.
        tuned: the table of all trials; None where the choice was read from disk.
    """

    config: Mapping[str, Any]
    key: str
    tuned: Tuned | None


def key_of(space: Space, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Hashable:
    """A key of the arguments; calls with equal keys share a choice.

    Tensors count by dtype, layout, and extents rounded up to powers of two; other arguments by their `repr`.
    """
    if callable(space.key):
        return space.key(*arguments, **named)
    return tuple(map(_part, arguments)), tuple((name, _part(value)) for name, value in sorted(named.items()))


def _part(argument: Any) -> Hashable:
    leaves = list(_leaves(argument))
    if not any(isinstance(leaf, View) for leaf in leaves):
        return repr(argument)
    return tuple(
        (str(leaf.layout), rounded_extents(leaf.shape)) if isinstance(leaf, View) else repr(leaf) for leaf in leaves
    )


def search(name: str, make: Make, space: Space, key: str, device: Device) -> CompositeChoice:
    """Look the fastest configuration up, or find it on `device`.

    Raises:
        TuningError: no configuration can be used, or no copy of the memory that they write fits anywhere.
    """
    configs = [Config(config) for config in space.configs]
    with device:
        digest = _digest(name, make, configs, key, device)
        choice = load(digest, name, key, [_configuration(config) for config in configs])
        if choice is not None:
            return CompositeChoice(dict(choice.configuration.generics), key, None)
        stream = device.new_stream()
        tuner = Autotuner(name).configs(configs).bench(space.bench or BENCH).log(None)  # the choice is saved, below
        if space.compare:
            tuner.check(_Judge(_reference(name, make, configs, stream), stream))
        tuned = tuner.run(make, stream=stream)
    best = tuned.best
    save(digest, Choice(name, _configuration(best), key, tuned.median_ms, len(tuned.trials), tuned))
    return CompositeChoice(dict(best), key, tuned)


def _configuration(config: Config) -> Configuration:
    """A composite's configuration in the form of a launch's, which `Choice` has."""
    return Configuration(config, {}, None, config)


def _digest(name: str, make: Make, configs: list[Config], key: str, device: Device) -> str:
    """The name of a choice on disk: a digest of all that it depends on.

    That includes the kernels of the first configuration whose operation can be made.
    """
    for config in configs:
        try:
            facts = Provenance.of(lambda config=config: make(config), device)
        except Exception:  # whatever a configuration raises: the search tries all of them, and reports this error
            continue
        return digest_of([name, facts.source, facts.device, facts.arch, facts.toolchain, repr(configs), key])
    return digest_of([name, repr(configs), key])


# -- comparing results ------------------------------------------------------------------------


Result = tuple[list[Output], list[Bytes]]


def _reference(name: str, make: Make, configs: list[Config], stream: Stream) -> Result:
    """The results of the first configuration that runs.

    Raises:
        TuningError: no configuration runs.
    """
    reasons: list[str] = []
    for config in configs:
        backup = Backup(name, stream)
        try:
            _, uses = submitted(lambda config=config: make(config), stream.device)
            backup.keep(written_by(uses))
            return _fetched(make(config).sync_on(stream), stream)  # on the host before memory is put back
        except DeviceLostError:
            raise  # no other configuration can run
        except Exception as error:  # of any other kind, such as OutOfMemoryError: the next configuration may run
            reasons.append(f"  {config.id}: {Invalid.of(error, 'run').reason}")
            traceback.clear_frames(error.__traceback__)  # they hold partitions of the arguments
        finally:
            backup.restore()
    raise TuningError("\n".join([f"{name}: no configuration can be used", *reasons]))


def _fetched(result: object, stream: Stream) -> Result:
    """The tensors in an operation's result, with their bytes on the host."""
    views = list(_views(result))
    regions = [Region("the result", view.storage, *view.byte_range) for view in views]
    outputs = [Output.of(f"result {number}", view) for number, view in enumerate(views)]
    return outputs, Fetch(regions).sync_on(stream)


def _views(result: object) -> Iterator[View]:
    """The tensors with elements in an operation's argument or result."""
    return (leaf for leaf in _leaves(result) if isinstance(leaf, View) and 0 not in leaf.shape)


def _leaves(value: object) -> Iterator[object]:
    """The parts of nested tuples, lists and mappings; tensors and partitions as views."""
    if isinstance(value, Mapping):
        value = tuple(cast("Mapping[Any, Any]", value).values())
    if isinstance(value, tuple | list):
        for item in cast("tuple[Any, ...]", value):
            yield from _leaves(item)
        return
    read = getattr(value, "__kernel_input__", None) or getattr(value, "__kernel_output__", None)
    view = read() if read is not None else None
    if isinstance(view, TiledView | OpenTiledView):
        view = view.view
    yield view if isinstance(view, View) else value


@dataclass(frozen=True)
class _Judge:
    """Refuses results that differ from the reference by more than roundings."""

    reference: Result
    stream: Stream

    def __call__(self, result: object) -> None:
        outputs, reference_bytes = self.reference
        own_outputs, data = _fetched(result, self.stream)
        if [output.shape for output in own_outputs] != [output.shape for output in outputs]:
            raise AssertionError("its tensors have other shapes than those of the first configuration")
        for output, result_bytes, expected_bytes in zip(outputs, data, reference_bytes, strict=True):
            words = difference(output, result_bytes, expected_bytes)
            if words is not None:
                raise AssertionError(f"{words}, as the first configuration has it")
