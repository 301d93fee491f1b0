"""Configurations, and the searchers that say which configuration is tried next."""

from __future__ import annotations

import hashlib
import itertools
import json
import keyword
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

from cutile.errors import ArgumentError, ArgumentTypeError, as_text

if TYPE_CHECKING:
    from cutile.tune.log import Trial

Value = int | float | str | bool | None | tuple[Any, ...]
"""The value of a parameter: something that JSON can hold, or a tuple of such values. Lists become tuples."""


class Config(Mapping[str, Value]):
    """One configuration: parameters by name.

    A mapping whose parameters are also attributes. Configurations are equal if their `id` is the same text: so `1`,
    `1.0` and `True` differ, and a NaN equals itself, also after it was read from a log.

    Args:
        values: a mapping.
        named: parameters by name.

    Raises:
        ValueError: a name that is no identifier, or that a mapping needs for itself.
        TypeError: a value that a log cannot hold.

    Example:
        >>> config = Config(BM=128, BK=64)
        >>> config.BM, config["BK"], config.id
        (128, 64, 'BK=64,BM=128')
    """

    __slots__ = ("_values", "id")

    id: str
    """The parameters as `name=value`, by name, with commas between them."""

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **named: Any) -> None:
        parameters = {**dict(values), **named}
        for name in parameters:
            if not _is_name(name):
                raise ArgumentError(
                    f"Config: a parameter cannot be called {name!r}; take an identifier that is not taken"
                )
        self._values = {name: _value(name, parameters[name]) for name in sorted(parameters)}
        self.id = ",".join(f"{name}={value!r}" for name, value in self._values.items())

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"{self!r} has no parameter {name!r}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    def __reduce__(self) -> tuple[type[Config], tuple[dict[str, Value]]]:
        # Copies are made by the constructor: a blank object has no `_values`, for which `__getattr__` would recurse.
        return Config, (self._values,)


def _is_name(name: object) -> bool:
    text = name if isinstance(name, str) else ""
    return text.isidentifier() and not keyword.iskeyword(text) and not hasattr(Config, text) and text[0] != "_"


def _value(name: str, value: Any) -> Value:
    if value is None or type(value) in (int, float, str, bool):
        return value
    if isinstance(value, list | tuple):
        return tuple(_value(name, each) for each in cast("Sequence[Any]", value))
    scalar: object = None
    with suppress(Exception):  # `item` may be missing, or fail with any error, as that of an array does
        scalar = value.item()  # the Python number of a NumPy scalar
    if isinstance(scalar, int | float | str) and type(scalar) in (int, float, str, bool):
        return scalar
    raise ArgumentTypeError(
        f"Config: {name}: expected an int, float, str, bool, None or a tuple of such, which a log can hold, got "
        f"{type(value).__name__}; give what stands for it, and look it up in the function"
    )


def _axis_values(name: str, choices: Any) -> list[Any]:
    if isinstance(choices, str) or not isinstance(choices, Iterable):
        raise ArgumentTypeError(
            f"GridSearch: {name}: expected the values to try, such as [{as_text(choices)}], got {as_text(choices)}"
        )
    return list(cast("Iterable[Any]", choices))


def space_hash(parameters: Iterable[str]) -> str:
    """A digest of the names of a space's parameters.

    Values do not count. A log has a record for each configuration, so that it serves a space to which values are added.

    Example:
        >>> space_hash(["BM", "BK"]) == space_hash(["BK", "BM"]) != space_hash(["BM"])
        True
    """
    digest = hashlib.sha256(json.dumps(sorted(parameters)).encode()).hexdigest()
    return digest[:16]  # 64 bits, to keep the file names of logs short


class Searcher(Protocol):
    """Chooses the configurations to try: `GridSearch`, or a random or guided search.

    A configuration that `Autotuner.prune` refuses is skipped, and the searcher is not told of it: `ask` must not wait
    for its trial, nor return it again and again.
    """

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters; a log belongs to a set of names."""
        ...

    def ask(self, count: int) -> Sequence[Config]:
        """At most `count` configurations to try next; none when the search is over.

        They are compiled at once, and measured one after the other. The next call of `ask` comes after `tell` got the
        outcomes of all but those that were pruned.
        """
        ...

    def tell(self, trial: Trial) -> None:
        """Take the outcome of a configuration.

        `ask` returned the configuration, or it was measured first (`Autotuner.require`). The outcome may be of an
        earlier run, from the log (`Trial.resumed`).
        """
        ...


class GridSearch:
    """Every configuration of a list, or every combination of values, in order.

    Args:
        configs: configurations, or mappings; equal ones are visited once.
        axes: the values of each parameter by name; the last one varies fastest.

    Raises:
        TypeError: an axis is one value.
        ValueError: there is no configuration, or both a list and axes.

    Example:
        >>> [config.id for config in GridSearch(BM=[64, 128], BK=[32])]
        ['BK=32,BM=64', 'BK=32,BM=128']
    """

    def __init__(self, configs: Iterable[Mapping[str, Any]] | None = None, /, **axes: Iterable[Any]) -> None:
        if configs is not None and axes:
            raise ArgumentError("GridSearch: give a list of configurations, or values by name, not both")
        if configs is None:
            values = [_axis_values(name, choices) for name, choices in axes.items()]
            # Without axes, `product()` would yield one empty combination.
            configs = [dict(zip(axes, each, strict=True)) for each in itertools.product(*values)] if axes else []
        # A dictionary drops repeated configurations, and keeps the order.
        self._configs = list(dict.fromkeys(each if isinstance(each, Config) else Config(each) for each in configs))
        if not self._configs:
            raise ArgumentError("GridSearch: there is no configuration to try")
        self._visited: set[Config] = set()  # asked for, or told

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(sorted({name for config in self._configs for name in config}))

    def ask(self, count: int) -> Sequence[Config]:
        """The next configurations that were neither asked for nor told."""
        batch = list(itertools.islice((each for each in self._configs if each not in self._visited), count))
        self._visited.update(batch)
        return batch

    def tell(self, trial: Trial) -> None:
        """Do not return the trial's configuration any more."""
        self._visited.add(trial.config)

    def __iter__(self) -> Iterator[Config]:
        return iter(self._configs)

    def __len__(self) -> int:
        return len(self._configs)
