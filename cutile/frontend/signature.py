"""A kernel's signature, read from the annotations in its syntax tree."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from cutile.dtypes import DType
from cutile.errors import KernelError, KernelSyntaxError, KernelTypeError
from cutile.frontend.annotations import Annotations, evaluated_names
from cutile.frontend.parameters import REQUIRED, Arranged, Declared, Generic, NamedExtent, Parameter
from cutile.frontend.source import FunctionSource, take_source
from cutile.language import Const, Shape

_ANNOTATION = {"mut": "Mut", "shared": "SharedMut", "tensor": "Tensor", "pointer": "Pointer"}
_PLAIN = "Write it as a plain `def` statement, with each parameter annotated."


class Agreement(NamedTuple):
    """Two extents of one name, which must be equal.

    The first is axis `axis` of the parameter at `position`. The second is axis `other_axis` of the one at `other`.
    """

    name: str
    position: int
    axis: int
    other: int
    other_axis: int


@dataclass(frozen=True)
class Signature:
    """Parameters and generics of a kernel.

    Attributes:
        declared: the declaration of each parameter, by name and in order.
        generics: in the order of the text.
        parameters: the launch parameters; of a signature with groups, those of one arrangement of its arguments.
        arrangement: how the arguments are made of launch parameters; empty where each argument is one.
    """

    name: str
    declared: Mapping[str, Declared]
    generics: tuple[Generic, ...]
    parameters: tuple[Parameter, ...]
    arrangement: Mapping[str, Arranged] = field(default_factory=dict[str, "Arranged"])

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The launch parameters' names."""
        return tuple(each.name for each in self.parameters)

    @functools.cached_property
    def generic_names(self) -> frozenset[str]:
        """The generics' names."""
        return frozenset(generic.name for generic in self.generics)

    @property
    def grouped(self) -> bool:
        """Whether some parameter is a group, or may be None.

        Launches arrange their arguments first.
        """
        return not all(isinstance(each, Parameter) for each in self.declared.values())

    @functools.cached_property
    def agreements(self) -> tuple[Agreement, ...]:
        """The pairs of extents that must be equal, since they have one name."""
        first: dict[str, tuple[int, int]] = {}
        pairs: list[Agreement] = []
        for position, parameter in enumerate(self.parameters):
            for axis, extent in enumerate(parameter.extents if isinstance(parameter.extents, tuple) else ()):
                if isinstance(extent, NamedExtent):
                    place = first.setdefault(extent.name, (position, axis))
                    if place != (position, axis):
                        pairs.append(Agreement(extent.name, *place, position, axis))
        return tuple(pairs)

    @functools.cached_property
    def generic_scalars(self) -> tuple[int, ...]:
        """The positions of scalars whose dtype is a generic."""
        return tuple(
            position
            for position, each in enumerate(self.parameters)
            if each.kind == "scalar" and isinstance(each.dtype, str)
        )


class _Reader:
    """Reads the signature of one function from its syntax tree."""

    def __init__(self, function: Callable[..., Any], source: FunctionSource) -> None:
        self._function = function
        self._source = source
        self._generics: dict[str, Generic] = {}
        evaluated = evaluated_names(function, source.tree)
        self._annotations = Annotations(source.name, function, self._generics, source.locate, evaluated)

    def read(self) -> Signature:
        tree = self._source.tree
        arguments = tree.args
        if self._function.__code__.co_name == "<lambda>":  # type: ignore[attr-defined]
            place = self._source.locate(tree)
            raise KernelSyntaxError("a kernel is a lambda, whose parameters cannot be annotated", place, _PLAIN)
        wrapped = getattr(self._function, "__wrapped__", None)
        if wrapped is not None and (arguments.vararg is not None or arguments.kwarg is not None):
            raise self._decorated(wrapped)
        for refused, what in ((arguments.vararg, "*args"), (arguments.kwarg, "**kwargs")):
            if refused is not None:
                remedy = "Name each parameter."
                if refused is arguments.vararg:
                    remedy += " Any number of tensors is one argument: xs: tuple[Tensor, ...]."
                raise self._syntax(refused, f"{what} in a kernel's signature", remedy)
        for each in getattr(tree, "type_params", ()):
            self._type_parameter(each)
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            self._keyword(each, default)
        positional = (*arguments.posonlyargs, *arguments.args)
        declared = {each.arg: self._parameter(each) for each in positional}
        defaulted = positional[len(positional) - len(arguments.defaults) :]
        for each, default in zip(defaulted, arguments.defaults, strict=True):
            self._default(each.arg, declared[each.arg], default)
        parameters = tuple(each for each in declared.values() if isinstance(each, Parameter))
        return Signature(self._source.name, declared, tuple(self._generics.values()), parameters)

    def _default(self, name: str, declared: Declared, node: ast.expr) -> None:
        """Refuse a default of a tensor: each launch passes it, or None by `Tensor | None`."""
        if isinstance(declared, Parameter) and declared.kind != "scalar":
            raise self._syntax(
                node,
                f"parameter {name!r} is a {_ANNOTATION[declared.kind]}, and has a default value",
                "Each launch gives it. Where it may be left out, annotate it with `Tensor | None`, and let the "
                "default be None."
                if declared.kind == "tensor"
                else "Each launch gives it.",
            )

    def _syntax(self, node: ast.AST, what: str, remedy: str) -> KernelSyntaxError:
        return KernelSyntaxError(f"kernel {self._source.name!r}: {what}", self._source.locate(node), remedy)

    def _decorated(self, wrapped: Any) -> KernelSyntaxError:
        """The error of a decorator between `@entry` and the function."""
        name, place, what = self._source.name, self._source.locate(self._source.tree), "a decorator"
        with suppress(KernelSyntaxError):
            inner = take_source(inspect.unwrap(wrapped))
            place = inner.locate(inner.tree)
            if inner.tree.decorator_list:
                node = inner.tree.decorator_list[-1]
                place, what = inner.locate(node), f"@{ast.unparse(node)}"
        return KernelSyntaxError(
            f"kernel {name!r} is wrapped by {what}, and takes whatever that passes on: the kernel's parameters are not "
            "its own",
            place,
            "Put @entry directly above `def`; decorate the helpers that it calls, or what launches it.",
        )

    def _type_parameter(self, node: Any) -> None:
        default = getattr(node, "default_value", None)
        bound = getattr(node, "bound", None)
        self._add_generic(node, node.name, bound, REQUIRED if default is None else self._constant(default))

    def _keyword(self, node: ast.arg, default: ast.expr | None) -> None:
        if node.annotation is None:
            raise self._syntax(node, f"generic {node.arg!r} has no annotation", f"Write `{node.arg}: Const`.")
        defaults: dict[str, Any] = getattr(self._function, "__kwdefaults__", None) or {}
        value = REQUIRED if default is None else defaults.get(node.arg, REQUIRED)
        self._add_generic(node, node.arg, node.annotation, value)

    def _constant(self, node: ast.expr) -> Any:
        """The default of a generic."""
        try:
            return ast.literal_eval(node)
        except ValueError:
            return self._annotations.named(node)

    def _add_generic(self, node: ast.AST, name: str, annotation: ast.expr | None, default: Any) -> None:
        """Note a generic, whose annotation says what kind it is."""
        bound = (
            None
            if annotation is None or self._annotations.is_choice(annotation)
            else self._annotations.named(annotation)
        )
        types: tuple[type, ...] = ()
        if bound is Const or bound is int:
            kind: Literal["const", "dtype", "shape"] = "const"
            if annotation is not None and bound is Const:
                types = self._annotations.constant_types(annotation)
        elif bound is DType:
            kind = "dtype"
        elif bound is Shape:
            kind = "shape"
        else:
            raise self._syntax(
                node,
                f"generic {name!r} is neither a Const, nor a DType, nor a Shape",
                self._instead_of_generic(name, annotation, bound),
            )
        self._generics[name] = Generic(name, kind, default, self._source.locate(node), types)

    def _instead_of_generic(self, name: str, annotation: ast.expr | None, bound: Any) -> str:
        """The remedy for a generic's wrong annotation: move a parameter before the `*`."""
        with suppress(KernelError):
            if annotation is not None and bound not in (float, str, bool):
                self._annotations.parameter(name, annotation, self._source.locate(annotation))
                return f"Move {name!r} before the `*`; a constant is annotated with Const."
        return f"Write `{name}: Const`."

    def _parameter(self, node: ast.arg) -> Declared:
        place = self._source.locate(node)
        if node.annotation is None and node.arg in ("self", "cls"):
            raise KernelTypeError(
                f"kernel {self._source.name!r} is a method: it takes {node.arg!r}, which no launch can pass",
                place,
                "Write it as a plain `def` outside of the class, and pass what it needs of the object as arguments or "
                "generics.",
            )
        if node.annotation is None:
            raise KernelTypeError(
                f"kernel {self._source.name!r}: parameter {node.arg!r} has no annotation",
                place,
                "Annotate it: Mut (a partition, written), Tensor (read), or a dtype such as f32 for a scalar.",
            )
        return self._annotations.parameter(node.arg, node.annotation, place)


def read_signature(function: Callable[..., Any], source: FunctionSource) -> Signature:
    """Read the signature of a kernel.

    Raises:
        KernelSyntaxError, KernelNameError, KernelTypeError: an annotation cannot be understood.
    """
    return _Reader(function, source).read()


def refuse_pointers(signature: Signature) -> None:
    """Refuse raw pointers in the signature of a kernel without `@entry(unsafe=True)`.

    Raises:
        KernelTypeError: there is one; shows it.
    """
    for parameter in signature.parameters:
        if parameter.kind == "pointer":
            raise KernelTypeError(
                f"kernel {signature.name!r}: parameter {parameter.name!r} is a raw pointer, which can reach any "
                "memory, and nothing checks that it should",
                parameter.location,
                "Declare the kernel with @ct.entry(unsafe=True) to take that on yourself, or pass a tensor.",
            )
