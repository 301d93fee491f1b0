"""The search of a composite: which of its configurations is the fastest.

known on disk   take it: the kernels, the device, the configurations and the key are what they were
else            trace the operation of each configuration, compile all their kernels at once; run each, compare what
                they yield with what the first yields; measure those that agree; put back what was written
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from cuda_async import Device, DeviceOp, Stream
from cutile.errors import CutileError, TuningError
from cutile.launch.searching import Configuration, Space
from cutile.launch.views import OpenTiledView, TiledView, View
from cutile.tune.choices import Choice, digest_of, load, save
from cutile.tune.launches import BENCH
from cutile.tune.memory import Backup, Bytes, Fetch, Output, Region, difference, written_by
from cutile.tune.record import Provenance, submitted
from cutile.tune.space import Config
from cutile.tune.table import Tuned
from cutile.tune.tuner import Autotuner

__all__ = ("CompositeChoice", "key_of", "search")

Make = Callable[[Mapping[str, Any]], DeviceOp[Any]]


@dataclass(frozen=True, eq=False)
class CompositeChoice:
    """What a search of a composite has found.

    Attributes:
        config: the fastest configuration.
        key: for which arguments, as text.
        tuned: the table of all that were tried; None where an earlier process has searched.
    """

    config: Mapping[str, Any]
    key: str
    tuned: Tuned | None


def key_of(space: Space, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Hashable:
    """The arguments that share a choice, as a key.

    Of tensors the dtypes, the layouts, and the extents rounded up to powers of two; numbers as they are.
    """
    if callable(space.key):
        return space.key(*arguments, **named)
    return tuple(map(_part, arguments)), tuple((name, _part(value)) for name, value in sorted(named.items()))


def _part(argument: Any) -> Hashable:
    views = list(_views(argument))
    if views:
        return tuple((str(view.layout), tuple(1 << (n - 1).bit_length() for n in view.shape)) for view in views)
    return repr(argument)


def search(name: str, make: Make, space: Space, key: str, device: Device) -> CompositeChoice:
    """Look the fastest configuration up, or find it on `device`.

    Raises:
        TuningError: no configuration can be used, or what they write cannot be put back.
    """
    configs = [Config(config) for config in space.configs]
    with device:
        digest = _digest(name, make, configs, key, device)
        found = load(digest, name, key, [_configuration(config) for config in configs])
        if found is not None:
            return CompositeChoice(dict(found.configuration.generics), key, None)
        stream = device.new_stream()
        tuner = Autotuner(name).configs(configs).bench(space.bench or BENCH).log(None)
        if space.compare:
            tuner.check(_Judge(_reference(name, make, configs, stream), stream))
        tuned = tuner.run(make, stream=stream)
    best = tuned.best
    save(digest, Choice(name, _configuration(best), key, tuned.median_ms, len(tuned.trials), tuned))
    return CompositeChoice(dict(best), key, tuned)


def _configuration(config: Config) -> Configuration:
    return Configuration(config, {}, None, config)


def _digest(name: str, make: Make, configs: list[Config], key: str, device: Device) -> str:
    """The name of a choice on disk: a digest of all that it depends on.

    That includes the kernels of the first configuration whose operation can be made.
    """
    for config in configs:
        try:
            facts = Provenance.of(lambda config=config: make(config), device)
        except CutileError:
            continue  # the search runs all configurations, and reports this error
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
            return _fetched(make(config).sync_on(stream), stream)
        except CutileError as error:
            reasons.append(f"  {config.id}: {error}")
        finally:
            backup.restore()
    raise TuningError("\n".join([f"{name}: no configuration can be used", *reasons]))


def _fetched(result: object, stream: Stream) -> Result:
    views = list(_views(result))
    regions = [Region("the result", view.storage, *view.byte_range) for view in views]
    outputs = [
        Output(f"result {number}", view.dtype, view.shape, view.strides, _before(view))
        for number, view in enumerate(views)
    ]
    return outputs, Fetch(regions).sync_on(stream)


def _before(view: View) -> int:
    return (view.offset - view.start) // (view.dtype.bits // 8)


def _views(result: object) -> Iterator[View]:
    """The tensors in what an operation takes or yields."""
    if isinstance(result, Mapping):
        result = tuple(cast("Mapping[Any, Any]", result).values())
    if isinstance(result, tuple | list):
        for item in cast("tuple[Any, ...]", result):
            yield from _views(item)
        return
    read = getattr(result, "__kernel_input__", None) or getattr(result, "__kernel_output__", None)
    view = read() if read is not None else None
    if isinstance(view, TiledView | OpenTiledView):
        view = view.view
    if isinstance(view, View) and 0 not in view.shape:
        yield view


@dataclass(frozen=True)
class _Judge:
    """Refuses results that differ from the reference by more than roundings."""

    reference: Result
    stream: Stream

    def __call__(self, result: object) -> None:
        outputs, expected = self.reference
        mine, data = _fetched(result, self.stream)
        if [output.shape for output in mine] != [output.shape for output in outputs]:
            raise AssertionError("its tensors have other shapes than those of the first configuration")
        for output, one, other in zip(outputs, data, expected, strict=True):
            words = difference(output, one, other)
            if words is not None:
                raise AssertionError(f"{words}, as the first configuration has it")
