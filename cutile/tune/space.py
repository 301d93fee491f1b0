"""What is searched: configurations, spaces of them, and who says which comes next."""

from __future__ import annotations

import hashlib
import itertools
import json
import keyword
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from cutile.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from cutile.tune.log import Trial

Value = int | float | str | bool | None | tuple[Any, ...]
"""What a parameter may be: what a line of a log can hold, and a tuple of such (lists become tuples)."""


class Config(Mapping[str, Value]):
    """One configuration: parameters by name.

    A mapping, and its parameters are attributes.

    Two are equal when their parameters are; `id` says them in the order of their names.

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
        values_ = {**dict(values), **named}
        for name in values_:
            if not _is_name(name):
                raise ArgumentError(
                    f"Config: a parameter cannot be called {name!r}; take an identifier that is not taken"
                )
        self._values = {name: _value(name, values_[name]) for name in sorted(values_)}
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
        return Config, (self._values,)


def _is_name(name: object) -> bool:
    text = name if isinstance(name, str) else ""
    return text.isidentifier() and not keyword.iskeyword(text) and not hasattr(Config, text) and text[0] != "_"


def _value(name: str, value: Any) -> Value:
    if value is None or type(value) in (int, float, str, bool):
        return value
    if isinstance(value, list | tuple):
        return tuple(_value(name, each) for each in cast("Sequence[Any]", value))
    plain = getattr(value, "item", None)  # a NumPy scalar
    if plain is not None and type(plain()) in (int, float, str, bool):
        return plain()
    raise ArgumentTypeError(
        f"Config: {name}: expected an int, float, str, bool, None or a tuple of such, which a log can hold, got "
        f"{type(value).__name__}; give what stands for it, and look it up in the function"
    )


def _values(name: str, choices: Any) -> list[Any]:
    if isinstance(choices, str) or not isinstance(choices, Iterable):
        raise ArgumentTypeError(
            f"GridSearch: {name}: expected the values to try, such as [{choices!r}], got {choices!r}"
        )
    return list(cast("Iterable[Any]", choices))


def space_hash(parameters: Iterable[str]) -> str:
    """What identifies a space: the names of its parameters.

    Not their values: each configuration has a record of its own, so that a log serves a space that has grown.

    Example:
        >>> space_hash(["BM", "BK"]) == space_hash(["BK", "BM"]) != space_hash(["BM"])
        True
    """
    return hashlib.sha256(json.dumps(sorted(parameters)).encode()).hexdigest()[:16]


class Searcher(Protocol):
    """Who says which configurations come next.

    `GridSearch` is one; a random or a guided search is another.
    """

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters, which identify the space."""
        ...

    def ask(self, count: int) -> Sequence[Config]:
        """At most `count` configurations to try next; none when the search is over.

        Several are compiled at once and measured one after the other; each is told before the next is asked for.
        """
        ...

    def tell(self, trial: Trial) -> None:
        """What became of a configuration.

        One that was asked for, or one that an earlier run has in the log.
        """
        ...


class GridSearch:
    """Every configuration of a list, or every combination of values, in order.

    It resumes where a log ends.

    Args:
        configs: configurations, or mappings; each is visited once.
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
            values = [_values(name, each) for name, each in axes.items()]
            configs = [dict(zip(axes, each, strict=True)) for each in itertools.product(*values)] if axes else []
        made = [each if isinstance(each, Config) else Config(each) for each in configs]
        self._configs = list(dict.fromkeys(made))
        if not self._configs:
            raise ArgumentError("GridSearch: there is no configuration to try")
        self._done: set[Config] = set()

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(sorted({name for config in self._configs for name in config}))

    def ask(self, count: int) -> Sequence[Config]:
        """The next of those that were neither asked for nor told."""
        found = list(itertools.islice((each for each in self._configs if each not in self._done), count))
        self._done.update(found)
        return found

    def tell(self, trial: Trial) -> None:
        """Note what has been tried."""
        self._done.add(trial.config)

    def __iter__(self) -> Iterator[Config]:
        return iter(self._configs)

    def __len__(self) -> int:
        return len(self._configs)
