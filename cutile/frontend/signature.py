"""A kernel's signature, read from the annotations in its syntax tree: parameters, and generics in declared order."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from cutile.dtypes import DType, DTypeLike, is_dtype
from cutile.errors import KernelNameError, KernelSyntaxError, KernelTypeError, Location
from cutile.frontend.captures import MISSING, lookup
from cutile.frontend.source import FunctionSource, take_source
from cutile.language import Const, Dyn, MappedPartitionMut, Mut, Ptr, Shape, Tensor

REQUIRED: Any = object()
_PLAIN = "Write it as a plain `def` statement, with each parameter annotated."
Extent = int | str | None  # a constant, a generic's name, or dynamic


@dataclass(frozen=True)
class Generic:
    """A compile-time parameter: an integer, an element type, or a shape, which is a tuple of integers."""

    name: str
    kind: Literal["const", "dtype", "shape"]
    default: Any
    location: Location

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is REQUIRED


@dataclass(frozen=True)
class Parameter:
    """A launch parameter.

    Attributes:
        kind: "tensor", "mut", "scalar" or "pointer".
        dtype: the element type, a generic's name, or None for the argument's own.
        extents: the declared extents; the name of a generic that is all of them; None where nothing is declared.
        mapped: whether it takes a mapped partition.
    """

    name: str
    kind: Literal["tensor", "mut", "scalar", "pointer"]
    dtype: DTypeLike | str | None
    extents: tuple[Extent, ...] | str | None
    location: Location
    mapped: bool = False


@dataclass(frozen=True)
class Signature:
    """Parameters and generics of a kernel."""

    name: str
    parameters: tuple[Parameter, ...]
    generics: tuple[Generic, ...]

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters' names."""
        return tuple(each.name for each in self.parameters)

    @functools.cached_property
    def generic_scalars(self) -> tuple[int, ...]:
        """The positions of scalars whose dtype is a generic."""
        return tuple(
            position
            for position, each in enumerate(self.parameters)
            if each.kind == "scalar" and isinstance(each.dtype, str)
        )


class _Reader:
    def __init__(self, function: Callable[..., Any], source: FunctionSource) -> None:
        self._function = function
        self._source = source
        self._generics: dict[str, Generic] = {}

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
                raise self._syntax(refused, f"{what} in a kernel's signature", "Name each parameter.")
        if arguments.defaults:
            raise self._syntax(
                arguments.defaults[0],
                "a default value of a launch parameter",
                "Only keyword-only generics (after `*`) may have defaults.",
            )
        for each in getattr(tree, "type_params", ()):
            self._type_parameter(each)
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            self._keyword(each, default)
        parameters = tuple(self._parameter(each) for each in (*arguments.posonlyargs, *arguments.args))
        return Signature(self._source.name, parameters, tuple(self._generics.values()))

    def _syntax(self, node: ast.AST, what: str, remedy: str) -> KernelSyntaxError:
        return KernelSyntaxError(f"kernel {self._source.name!r}: {what}", self._source.locate(node), remedy)

    def _decorated(self, wrapped: Any) -> KernelSyntaxError:
        """A decorator between `@entry` and the function."""
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
        bound = self._resolve(node.bound) if getattr(node, "bound", None) is not None else None
        default = getattr(node, "default_value", None)
        self._add_generic(node, node.name, bound, REQUIRED if default is None else self._constant(default))

    def _keyword(self, node: ast.arg, default: ast.expr | None) -> None:
        if node.annotation is None:
            raise self._syntax(node, f"generic {node.arg!r} has no annotation", f"Write `{node.arg}: Const`.")
        bound = self._resolve(node.annotation)
        defaults: dict[str, Any] = getattr(self._function, "__kwdefaults__", None) or {}
        self._add_generic(node, node.arg, bound, REQUIRED if default is None else defaults.get(node.arg, REQUIRED))

    def _constant(self, node: ast.expr) -> Any:
        """The default of a generic."""
        try:
            return ast.literal_eval(node)
        except ValueError:
            return self._resolve(node)

    def _add_generic(self, node: ast.AST, name: str, bound: Any, default: Any) -> None:
        if bound is Const or bound is int:
            kind: Literal["const", "dtype", "shape"] = "const"
        elif bound is DType:
            kind = "dtype"
        elif bound is Shape:
            kind = "shape"
        else:
            raise self._syntax(
                node, f"generic {name!r} is neither a Const, nor a DType, nor a Shape", f"Write `{name}: Const`."
            )
        self._generics[name] = Generic(name, kind, default, self._source.locate(node))

    def _parameter(self, node: ast.arg) -> Parameter:
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
        annotation = self._unquote(node.annotation)
        subscript: ast.expr | None = None
        if isinstance(annotation, ast.Subscript):
            annotation, subscript = annotation.value, annotation.slice
        if isinstance(annotation, ast.Name) and annotation.id in self._generics:
            return Parameter(node.arg, "scalar", annotation.id, None, place)
        head = self._resolve(annotation)
        if is_dtype(head):
            return Parameter(node.arg, "scalar", head, None, place)
        if head is Ptr:
            dtype = None if subscript is None else self._facts(subscript)[0]
            return Parameter(node.arg, "pointer", dtype, None, place)
        written = head is Mut or head is MappedPartitionMut
        if not written and not _is_tensor(head):
            raise KernelTypeError(
                f"kernel {self._source.name!r}: parameter {node.arg!r} is annotated with {ast.unparse(annotation)}",
                self._source.locate(node.annotation),
                _instead_of(head),
            )
        if written and subscript is not None:
            inner = self._unquote(subscript)
            if isinstance(inner, ast.Subscript) and _is_tensor(self._resolve(inner.value)):
                subscript = inner.slice
            elif isinstance(inner, ast.Name) and _is_tensor(self._try_resolve(inner)):
                subscript = None
        dtype, extents = self._facts(subscript) if subscript is not None else (None, None)
        kind: Literal["mut", "tensor"] = "mut" if written else "tensor"
        return Parameter(node.arg, kind, dtype, extents, place, head is MappedPartitionMut)

    def _facts(self, node: ast.expr) -> tuple[DTypeLike | str | None, tuple[Extent, ...] | str | None]:
        items = list(node.elts) if isinstance(node, ast.Tuple) else [node]
        dtype = self._element(self._unquote(items[0]))
        if len(items) == 2 and (shape := self._whole_shape(items[1])) is not None:
            return dtype, shape
        extents = tuple(self._extent(self._unquote(item)) for item in items[1:])
        return dtype, extents if len(items) > 1 else None

    def _element(self, node: ast.expr) -> DTypeLike | str:
        if isinstance(node, ast.Name) and node.id in self._generics:
            return node.id
        found = self._resolve(node)
        if is_dtype(found):
            return found
        raise self._syntax(node, f"{ast.unparse(node)} is no element type", "The first fact is a dtype, such as f32.")

    def _whole_shape(self, node: ast.expr) -> str | None:
        """The generic that `S` or `*S` names, if it is a shape."""
        name = self._unquote(node.value if isinstance(node, ast.Starred) else node)
        found = self._generics.get(name.id) if isinstance(name, ast.Name) else None
        return found.name if found is not None and found.kind == "shape" else None

    def _extent(self, node: ast.expr) -> Extent:
        if isinstance(node, ast.Name) and node.id in self._generics:
            return node.id
        try:
            value = ast.literal_eval(node)
        except ValueError:
            value = self._resolve(node)
        if isinstance(value, int) and not isinstance(value, bool):
            return None if value == Dyn else value
        raise self._syntax(
            node, f"{ast.unparse(node)} is no extent", "An extent is an integer, Dyn, or the name of a generic."
        )

    def _unquote(self, node: ast.expr) -> ast.expr:
        """The expression in a string annotation, placed where the string stands."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            inner = ast.parse(node.value, mode="eval").body
            for each in ast.walk(inner):
                ast.copy_location(each, node)
            return inner
        return node

    def _try_resolve(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return lookup(self._function, node.id)
        if isinstance(node, ast.Attribute):
            owner = self._try_resolve(node.value)
            return MISSING if owner is MISSING else getattr(owner, node.attr, MISSING)
        return MISSING

    def _resolve(self, node: ast.expr) -> Any:
        """What a name or dotted name in an annotation means. Annotations are looked up, never evaluated."""
        node = self._unquote(node)
        if isinstance(node, ast.Subscript):
            node = node.value
        found = self._try_resolve(node)
        if found is MISSING:
            raise KernelNameError(
                f"kernel {self._source.name!r}: the annotation {ast.unparse(node)!r} means nothing here",
                self._source.locate(node),
                "Import it: from cutile import Const, Mut, Tensor, f32.",
            )
        return found


def read_signature(function: Callable[..., Any], source: FunctionSource) -> Signature:
    """Read the signature of a kernel.

    Raises:
        KernelSyntaxError, KernelNameError, KernelTypeError: an annotation cannot be understood.
    """
    return _Reader(function, source).read()


def refuse_pointers(signature: Signature) -> None:
    """Refuse raw pointers in the signature of a kernel that does not say `@entry(unsafe=True)`.

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


def _is_tensor(annotation: object) -> bool:
    """Whether it means a tensor parameter: what callers hold, a subclass of what authors write, may stand for it."""
    return isinstance(annotation, type) and issubclass(annotation, Tensor)


def _instead_of(annotation: object) -> str:
    """The remedy for an annotation that means something else in Python, or stands in the wrong place here."""
    if annotation is Const or annotation is Shape or annotation is DType:
        return "It annotates generics: put the parameter after `*`, and give it by name or with .generics([...])."
    if getattr(annotation, "__name__", "") == "constexpr":
        return "A constant is a generic: `*, BLOCK: Const` behind the other parameters, given by name."
    scalars: dict[object, str] = {int: "i32 or i64", float: "f32 or f64", bool: "bool_"}
    remedy = "Expected Mut, Tensor, Ptr, or a dtype such as f32."
    return (
        f"{remedy} For a scalar say how many bits it has: {scalars[annotation]}." if annotation in scalars else remedy
    )
