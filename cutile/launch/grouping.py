"""Arguments that are groups, taken apart.

Tuples, lists, named tuples and dataclasses of tensors and scalars.

What is launched is a kernel with a parameter for each part. One is made for each structure that arguments have had.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, cast

from cutile.compile.constants import constant, constant_key
from cutile.errors import ArgumentError, ArgumentTypeError, GenericsError
from cutile.frontend.parameters import (
    Arranged,
    Declared,
    Fixed,
    Given,
    Group,
    Maybe,
    Parameter,
    Piece,
    Whole,
    assembled,
)
from cutile.frontend.signature import Signature
from cutile.launch.arguments import is_op

MOST_PARTS = 256
"""Of all arguments of a launch: each is some parameters of the compiled kernel, of which CUDA takes 4 KiB."""


class Taken:
    """The arguments of one call, taken apart.

    Attributes:
        parts: what the launch parameters are given.
        key: equal for calls that one kernel serves.
    """

    def __init__(self, signature: Signature, arguments: Sequence[Any]) -> None:
        self._signature = signature
        self.parts: list[Any] = []
        self._parameters: list[Parameter] = []
        self._names = {*signature.declared, *(each.name for each in signature.generics)}
        self._keys: list[Hashable] = []
        declared = signature.declared.items()
        self._arrangement = {
            name: self._take(each, argument, name) for (name, each), argument in zip(declared, arguments, strict=True)
        }
        self.key = tuple(self._keys)

    def signature(self) -> Signature:
        """The signature whose launch parameters are the parts."""
        return dataclasses.replace(
            self._signature, parameters=tuple(self._parameters), arrangement=dict(self._arrangement)
        )

    def _take(self, declared: Declared, argument: Any, path: str) -> Arranged:
        if isinstance(declared, Parameter):
            return self._piece(declared, argument, path)
        if isinstance(declared, Maybe):
            self._keys.append(argument is None)
            return Given(None) if argument is None else self._take(declared.item, argument, path)
        if isinstance(declared, Fixed):
            return self._constant(declared, argument, path)
        return self._group(declared, argument, path)

    def _piece(self, declared: Parameter, argument: Any, path: str) -> Piece:
        if path == declared.name and path in self._signature.declared:
            name = path
        else:
            name = "".join(each if each.isalnum() else "_" for each in path.replace("]", ""))
            while name in self._names:
                name += "_"
            self._names.add(name)
        if len(self.parts) == MOST_PARTS:
            raise ArgumentError(
                f"{self._signature.name}: the arguments have more than {MOST_PARTS} tensors and scalars; put them into "
                "fewer tensors, or launch several times"
            )
        self.parts.append(argument)
        self._parameters.append(dataclasses.replace(declared, name=name, path=path if name != path else ""))
        return Piece(name)

    def _constant(self, declared: Fixed, argument: Any, path: str) -> Given:
        try:
            value = constant(argument, declared.types, f"{self._signature.name}: argument {path!r}")
        except GenericsError as error:
            raise ArgumentTypeError(str(error)) from None
        self._keys.append(constant_key(value))
        return Given(value)

    def _group(self, declared: Group, argument: Any, path: str) -> Whole:
        what = f"{self._signature.name}: argument {path!r}"
        if is_op(argument):
            raise ArgumentTypeError(
                f"{what} is an op that has yet to run, and what it yields is needed to know the kernel; "
                "run it first, or make a group of ops"
            )
        if declared.kind is not tuple:
            if not isinstance(argument, declared.kind):
                raise ArgumentTypeError(f"{what} must be a {declared.kind.__name__}, got {_kind(argument)}")
            parts = [(f"{path}.{name}", each, getattr(argument, name, None)) for name, each in declared.items]
            return Whole(declared.kind, tuple(self._take(each, item, where) for where, each, item in parts))
        if not isinstance(argument, tuple | list):
            raise ArgumentTypeError(f"{what} must be a tuple or a list, got {_kind(argument)}")
        items: list[Any] = list(argument)  # pyright: ignore[reportUnknownArgumentType]
        kinds = [each for _, each in declared.items]
        if declared.each is not None:
            kinds = [declared.each] * len(items)
            self._keys.append(len(items))
        elif len(kinds) != len(items):
            raise ArgumentError(f"{what} must have {len(kinds)} items, got {len(items)}")
        return Whole(
            tuple,
            tuple(
                self._take(each, item, f"{path}[{i}]") for i, (each, item) in enumerate(zip(kinds, items, strict=True))
            ),
        )


def _kind(argument: Any) -> str:
    kind = cast("type[Any]", type(argument))
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def leaves_of(arguments: Iterable[Any]) -> Iterator[Any]:
    """The parts of arguments, whatever groups they are in."""
    for item in arguments:
        if isinstance(item, tuple | list):
            yield from leaves_of(item)  # pyright: ignore[reportUnknownArgumentType]
        elif dataclasses.is_dataclass(item) and not isinstance(item, type) and not hasattr(item, "__kernel_input__"):
            yield from leaves_of(getattr(item, field.name) for field in dataclasses.fields(item))
        else:
            yield item


def putting_together(signature: Signature, make: Callable[[tuple[Any, ...]], Any]) -> Callable[[tuple[Any, ...]], Any]:
    """What makes the result of a launch of its parts.

    The arguments again, with what ops among them have yielded.
    """
    arrangement = tuple(signature.arrangement.values())
    names = signature.names

    def together(parts: tuple[Any, ...]) -> Any:
        values = dict(zip(names, parts, strict=True))
        return make(tuple(assembled(each, values) for each in arrangement))

    return together
