"""Annotations of parameters, and of fields of named tuples and dataclasses.

A parameter's annotation is read from the syntax tree: its names are looked up, and it is never evaluated. If Python has
evaluated it already, a name means the object that Python found for it.
"""

from __future__ import annotations

import ast
import enum
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from cutile.dtypes import DType, DTypeLike, is_dtype
from cutile.errors import KernelError, KernelNameError, KernelSyntaxError, KernelTypeError, Location
from cutile.frontend.captures import MISSING, lookup
from cutile.frontend.parameters import Declared, Extent, Fixed, Generic, Group, Maybe, NamedExtent, Parameter
from cutile.frontend.structure import field_names
from cutile.language import Const, Dyn, MappedPartitionMut, Mut, Partition, Ptr, Shape, SharedMut, Tensor

_WORDS = "Expected Mut, SharedMut, Tensor, Ptr, or a dtype such as f32; tuples, named tuples and dataclasses of them."
_IMPORTED = (
    "Import it: from cutile import Const, Mut, Tensor, f32. Or define it in the module: an annotation that is kept as "
    "text does not see the function around."
)
_NUMBERS = (bool, int, float)
_CONSTANTS = (bool, int, float, str, tuple, type(None), DType, Callable, types.FunctionType)


@dataclass(frozen=True)
class _Ref:
    """The name of a generic in an annotation."""

    name: str


class Annotations:
    """Reads annotations in one scope.

    In `Tensor[f32, 8]`, `Tensor` is the head, and `f32` and `8` are the facts.

    Args:
        kernel: the kernel's name, for messages.
        function: the function in whose scope the annotations' names are looked up.
        generics: the kernel's, by name.
        locate: the place of a syntax node.
        evaluated: names in the annotations, and the objects that Python found for them (`evaluated_names`).
        scope: the names of a class's module, for annotations of its fields; None for a kernel's.
        within: the classes whose fields are being read, outermost first.
    """

    def __init__(
        self,
        kernel: str,
        function: Callable[..., Any],
        generics: Mapping[str, Generic],
        locate: Callable[[ast.AST], Location],
        evaluated: Mapping[str, Any],
        scope: Mapping[str, Any] | None = None,
        within: tuple[type, ...] = (),
    ) -> None:
        self._kernel = kernel
        self._function = function
        self._generics = generics
        self._locate = locate
        self._evaluated = evaluated
        self._scope = scope
        self._within = within
        self._place: Location | None = None  # of the parameter being read: the annotation of a field has no place

    # Parameters

    def parameter(self, name: str, annotation: Any, place: Location) -> Declared:
        """The declaration of a parameter, or of a part of one.

        Args:
            name: the parameter's; of a part, its path.
            annotation: a syntax node; or an object or text, of a class's field.
            place: where the parameter stands.

        Raises:
            KernelSyntaxError, KernelNameError, KernelTypeError: the annotation cannot be understood.
        """
        self._place = place
        if isinstance(annotation, str):
            annotation = self._parsed(annotation, annotation)
        sides = self._sides(annotation)
        if sides is not None:
            return self._maybe(name, annotation, sides, place)
        head, facts = self._parts(annotation)
        is_tuple: bool = head is tuple  # `tuple[()]` is a tuple of nothing
        if facts is not None and not facts and not is_tuple:
            what = f"{_text(annotation)} has nothing in its brackets"
            raise self._syntax(annotation, place, what, "Leave the brackets out, or give a dtype, as in Tensor[f32].")
        if isinstance(head, _Ref):
            if self._generics[head.name].kind == "dtype":
                return Parameter(name, "scalar", head.name, None, place)
            head = self._generics[head.name]
        if is_dtype(head):
            return Parameter(name, "scalar", head, None, place)
        if head is Ptr:
            dtype = None if facts is None else self._element(facts[0], place)
            return Parameter(name, "pointer", dtype, None, place)
        if head is Mut or head is MappedPartitionMut:
            return self._mut(name, head is MappedPartitionMut, facts, place)
        if head is SharedMut:
            inner = None if facts is None else self._of_tensor(facts)
            dtype, extents = (None, None) if inner is None else self._facts(inner, place)
            return Parameter(name, "shared", dtype, extents, place)
        if is_tensor(head):
            dtype, extents = (None, None) if facts is None else self._facts(facts, place)
            return Parameter(name, "tensor", dtype, extents, place)
        group = self._group(name, head, facts, place)
        if group is not None:
            return group
        if self._within and (head is Const or head is DType or head is Shape):
            return Fixed(self.constant_types(annotation) if head is Const else (tuple,) if head is Shape else (DType,))
        raise KernelTypeError(
            f"kernel {self._kernel!r}: parameter {name!r} is annotated with {_text(annotation)}",
            place if self._within or not isinstance(annotation, ast.expr) else self._locate(annotation),
            self._instead_of(head),
        )

    def _mut(self, name: str, mapped: bool, facts: list[Any] | None, place: Location) -> Parameter:
        dtype: DTypeLike | str | None = None
        extents: tuple[Extent, ...] | str | None = None
        if facts is not None:
            inner = self._of_tensor(facts)
            if inner is not None:
                dtype, extents = self._facts(inner, place)
        return Parameter(name, "mut", dtype, extents, place, mapped)

    def _of_tensor(self, facts: list[Any]) -> list[Any] | None:
        """The facts of `Mut[...]` or `Mut[Tensor[...]]`; None for a plain `Mut[Tensor]`."""
        inner = self._unquote(facts[0])
        head, more = self._try_parts(inner) if len(facts) == 1 else (MISSING, None)
        return more if is_tensor(head) else facts

    def _maybe(self, name: str, annotation: Any, sides: tuple[Any, ...], place: Location) -> Declared:
        """The declaration of `A | B`: `A | None`, or a dtype beside Python's numbers."""
        kinds = [each for each in sides if not _is_none(each)]
        dtypes = [each for each in kinds if is_dtype(self._try_parts(each)[0])]
        numbers = [each for each in kinds if self._try_parts(each)[0] in _NUMBERS]
        # `f32 | float` lets a type checker accept 0.5, which is no f32 for it. The parameter is an f32.
        if len(dtypes) == 1 and len(numbers) == len(kinds) - 1 > 0:
            if len(kinds) == len(sides):
                return self.parameter(name, dtypes[0], place)
            kinds, sides = dtypes, (dtypes[0], None)
        if len(kinds) != 1 or len(sides) != 2:
            raise KernelTypeError(
                f"kernel {self._kernel!r}: parameter {name!r} is annotated with {_text(annotation)}, and one of "
                "several types it cannot be",
                place,
                "A parameter has one type; `Tensor | None` lets a launch leave a tensor out.",
            )
        return Maybe(self.parameter(name, kinds[0], place))

    def _group(self, name: str, head: Any, facts: list[Any] | None, place: Location) -> Group | None:
        """A tuple, a list, a named tuple or a dataclass; None for any other class."""
        if head is tuple or head is list:
            if facts is None:
                raise KernelTypeError(
                    f"kernel {self._kernel!r}: parameter {name!r} is a {head.__name__}, and does not say of what",
                    place,
                    f"Write {head.__name__}[Tensor, ...] for tensors, any number of them." if head is tuple
                    else "Write list[Tensor] for tensors, any number of them.",
                )  # fmt: skip
            if head is list or (len(facts) == 2 and _is_dots(facts[1])):
                return Group(tuple, each=self.parameter(f"{name}[...]", facts[0], place))
            parts = [self.parameter(f"{name}[{i}]", each, place) for i, each in enumerate(facts)]
            return Group(tuple, tuple(("", each) for each in parts))
        names = field_names(head) if isinstance(head, type) else None
        if names is None:
            return None
        if head in self._within:
            raise self._refused(name, place, f"holds itself: {head.__name__}", "A kernel's arguments are finite.")
        hints = _annotations_of(head)
        module = sys.modules.get(head.__module__)
        inner = Annotations(
            self._kernel,
            self._function,
            self._generics,
            self._locate,
            self._evaluated,
            vars(module) if module is not None else {},
            (*self._within, head),
        )
        items: list[tuple[str, Declared]] = []
        for field in names:
            if field not in hints:
                raise self._refused(
                    name, place, f"is a {head.__name__}, whose {field!r} has no annotation",
                    "Annotate each field, as a parameter: Tensor, Mut, a dtype such as f32, or Const.",
                )  # fmt: skip
            items.append((field, inner.parameter(f"{name}.{field}", hints[field], place)))
        return Group(head, tuple(items))

    def _refused(self, name: str, place: Location, what: str, remedy: str) -> KernelTypeError:
        return KernelTypeError(f"kernel {self._kernel!r}: parameter {name!r} {what}", place, remedy)

    # Facts

    def _facts(
        self, facts: list[Any], place: Location
    ) -> tuple[DTypeLike | str | None, tuple[Extent, ...] | str | None]:
        dtype = self._element(facts[0], place)
        if len(facts) == 2 and (shape := self._whole_shape(facts[1])) is not None:
            return dtype, shape
        return dtype, tuple(self._extent(each, place) for each in facts[1:]) if len(facts) > 1 else None

    def _element(self, item: Any, place: Location) -> DTypeLike | str:
        text = item.value if isinstance(item, ast.Constant) else item
        if isinstance(text, str) and text.isidentifier() and text not in self._generics:
            known = self._object_of(ast.Name(text))
            if not is_dtype(known):
                remedy = f'The first fact is a dtype, and extents follow: Tensor[f32, "{text}"].'
                raise self._syntax(item, place, f"{text!r} is no element type", remedy)
        value = self._value(self._unquote(self._parsed(item, item) if isinstance(item, str) else item))
        if isinstance(value, _Ref):
            return value.name
        if is_dtype(value):
            return value
        raise self._syntax(item, place, f"{_text(item)} is no element type", "The first fact is a dtype, such as f32.")

    def _whole_shape(self, item: Any) -> str | None:
        """The generic that `S` or `*S` names, if it is a shape."""
        node = self._unquote(item.value if isinstance(item, ast.Starred) else item)
        name = node.id if isinstance(node, ast.Name) else node
        found = self._generics.get(name) if isinstance(name, str) else None
        return found.name if found is not None and found.kind == "shape" else None

    def _extent(self, item: Any, place: Location) -> Extent:
        text = item.value if isinstance(item, ast.Constant) else item
        if isinstance(text, str) and text.isidentifier():
            return text if text in self._generics else NamedExtent(text)
        value = self._value(self._parsed(item, item) if isinstance(item, str) else self._unquote(item))
        if isinstance(value, _Ref):
            return value.name
        if isinstance(value, int) and not isinstance(value, bool):
            return None if value == Dyn else value
        raise self._syntax(
            item, place, f"{_text(item)} is no extent",
            "An extent is an integer, Dyn, the name of a generic, or a name in quotes that must mean one number "
            "everywhere. There is one for each axis: Tensor[f32, 8, Dyn].",
        )  # fmt: skip

    def constant_types(self, annotation: Any) -> tuple[type, ...]:
        """The types that a constant may have: those in the brackets of `Const[str]`."""
        _, facts = self._parts(annotation)
        kinds: list[type] = []
        for fact in facts or ():
            for side in self._sides(fact) or (fact,):
                kind: Any = type(None) if _is_none(side) else self._parts(side)[0]
                inner = self._parts(side)[1] if kind is type else None
                if inner:  # type[DType], as type checkers want it
                    kind = self._parts(inner[0])[0]
                known = kind in _CONSTANTS or (isinstance(kind, type) and issubclass(kind, enum.Enum))
                if not known and (not isinstance(kind, type) or field_names(cast("type[Any]", kind)) is None):
                    place = self._locate(side) if isinstance(side, ast.expr) else None
                    raise KernelTypeError(
                        f"kernel {self._kernel!r}: Const[{_text(side)}] is no type of a constant",
                        place,
                        "Constants are bools, ints, floats, strings, enums, DType, tuples and frozen dataclasses.",
                    )
                kinds.append(cast("type[Any]", kind))
        return tuple(kinds)

    # Syntax and objects

    def _sides(self, annotation: Any) -> tuple[Any, ...] | None:
        """The alternatives of `A | B`; None for anything else."""
        if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
            left = self._unquote(annotation.left)
            return (*(self._sides(left) or (left,)), self._unquote(annotation.right))
        origin = typing.get_origin(annotation)
        if origin in (types.UnionType, typing.Union):
            return typing.get_args(annotation)
        if isinstance(annotation, ast.Subscript) and self._resolved(annotation.value) is typing.Optional:
            return annotation.slice, ast.Constant(None)
        return None

    def _parts(self, annotation: Any) -> tuple[Any, list[Any] | None]:
        """The head of an annotation, and its facts; None for the facts without brackets."""
        if isinstance(annotation, ast.expr):
            node = self._unquote(annotation)
            if isinstance(node, ast.Subscript):
                inner = node.slice
                return self._resolved(node.value), list(inner.elts) if isinstance(inner, ast.Tuple) else [inner]
            return self._parts(self._resolved(node))
        origin = typing.get_origin(annotation)
        if origin is not None:
            return origin, list(typing.get_args(annotation))
        return annotation, None

    def _try_parts(self, annotation: Any) -> tuple[Any, list[Any] | None]:
        try:
            return self._parts(annotation)
        except KernelError:
            return MISSING, None

    def _value(self, item: Any) -> Any:
        """A fact as a Python value, or the generic that it names."""
        if not isinstance(item, ast.expr):
            return item
        if isinstance(item, ast.Name) and item.id in self._generics:
            return _Ref(item.id)
        try:
            return ast.literal_eval(item)
        except ValueError:
            return self._resolved(item)

    def _unquote(self, node: Any) -> Any:
        """The expression in a string annotation, placed where the string stands."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            inner = self._parsed(node.value, node)
            for each in ast.walk(inner):
                ast.copy_location(each, node)
            return inner
        return node

    def _parsed(self, text: str, node: Any) -> ast.expr:
        """The expression in a text; `node` is the text's own, if it has one."""
        try:
            return ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError) as error:  # ValueError: a null character
            what, remedy = f"the annotation {text!r} is no expression of Python", "Mend the text between the quotes."
            place = self._locate(node) if isinstance(node, ast.expr) and not self._within else self._place
            raise KernelSyntaxError(f"kernel {self._kernel!r}: {what}", place, remedy) from error

    def _resolved(self, node: ast.expr) -> Any:
        """The object of a name or dotted name in an annotation, without its brackets."""
        node = self._unquote(node)
        if isinstance(node, ast.Constant) and node.value is None:
            return None
        if isinstance(node, ast.Subscript):
            node = node.value
        if isinstance(node, ast.Name) and node.id in self._generics:
            return _Ref(node.id)
        value = self._object_of(node)
        if value is MISSING:
            raise KernelNameError(
                f"kernel {self._kernel!r}: the annotation {ast.unparse(node)!r} means nothing here",
                self._locate(node) if not self._within else self._place,
                _IMPORTED,
            )
        return value

    def _object_of(self, node: ast.expr) -> Any:
        """The object of a name or dotted name; MISSING for none."""
        if isinstance(node, ast.Name):
            if self._scope is not None and node.id in self._scope:
                return self._scope[node.id]
            # The closure lacks those names of the function around that the body does not use.
            return self._evaluated[node.id] if node.id in self._evaluated else lookup(self._function, node.id)
        if isinstance(node, ast.Attribute):
            if (text := ast.unparse(node)) in self._evaluated:
                return self._evaluated[text]
            owner = self._object_of(node.value)
            return MISSING if owner is MISSING else getattr(owner, node.attr, MISSING)
        return MISSING

    def is_choice(self, node: ast.expr) -> bool:
        """Whether an annotation is `A | B`."""
        return self._sides(node) is not None

    def named(self, node: ast.expr) -> Any:
        """The object or `Generic` that an annotation names, without its brackets."""
        head = self._parts(node)[0]
        return self._generics[head.name] if isinstance(head, _Ref) else head

    def _syntax(self, node: Any, place: Location, what: str, remedy: str) -> KernelSyntaxError:
        where = self._locate(node) if isinstance(node, ast.expr) and not self._within else place
        return KernelSyntaxError(f"kernel {self._kernel!r}: {what}", where, remedy)

    def _instead_of(self, annotation: object) -> str:
        """The remedy for a misplaced annotation, or one of Python's own, such as `int`."""
        if annotation is Const or annotation is Shape or annotation is DType:
            return "It annotates generics: put the parameter after `*`, and give it by name or with .generics([...])."
        if getattr(annotation, "__name__", "") == "constexpr":
            return "A constant is a generic: `*, BLOCK: Const` behind the other parameters, given by name."
        if isinstance(annotation, type) and issubclass(annotation, Partition):
            return (
                "A kernel cuts what it reads: annotate a Tensor, and write x.partition(shape) in the kernel. It writes "
                "to a Mut, which is launched with y.partition(shape)."
            )
        scalars: dict[object, str] = {int: "i32 or i64", float: "f32 or f64", bool: "bool_"}
        if annotation in scalars:
            return f"{_WORDS} For a scalar say how many bits it has: {scalars[annotation]}." + (
                " A constant is annotated with Const." if self._within else ""
            )
        return f"{_WORDS} A constant is annotated with Const." if self._within else _WORDS


def is_tensor(annotation: object) -> bool:
    """Whether an annotation means a tensor parameter.

    The host's class of tensors, a subclass of the language's, means one, too.
    """
    return isinstance(annotation, type) and issubclass(annotation, Tensor)


def _annotations_of(kind: type) -> dict[str, Any]:
    """The annotations of a class's fields and its bases', evaluated or as written."""
    annotations: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        annotations.update(inspect.get_annotations(base))
    # Named tuples keep an annotation in quotes as a reference.
    return {
        name: each.__forward_arg__ if isinstance(each, typing.ForwardRef) else each
        for name, each in annotations.items()
    }


def evaluated_names(function: Callable[..., Any], tree: ast.FunctionDef) -> dict[str, Any]:
    """Names in a function's annotations, and the objects that Python found for them.

    Dotted names are among them, but no names of annotations that Python keeps as text.
    """
    names: dict[str, Any] = {}
    values: dict[str, Any] = {}
    with suppress(Exception):  # from 3.14 on Python evaluates them here, and an annotation may raise anything
        values = function.__annotations__
    for parameter in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs):
        if parameter.annotation is not None and parameter.arg in values:
            _pair(parameter.annotation, values[parameter.arg], names)
    return names


def _pair(node: ast.expr, value: Any, names: dict[str, Any]) -> None:
    """Note the names in an expression, and their objects in its value."""
    if isinstance(node, ast.Name | ast.Attribute):
        if not isinstance(value, str):
            names.setdefault(ast.unparse(node), value)
    elif isinstance(node, ast.BinOp):
        sides = _leaves(node)
        values = typing.get_args(value)
        if len(sides) == len(values):  # Python leaves out repeated alternatives
            for side, each in zip(sides, values, strict=True):
                _pair(side, each, names)
    elif isinstance(node, ast.Subscript):
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        values = typing.get_args(value)
        if len(items) == len(values):
            _pair(node.value, typing.get_origin(value), names)
            for item, each in zip(items, values, strict=True):
                _pair(item, each, names)


def _leaves(node: ast.expr) -> list[ast.expr]:
    """The alternatives of `A | B | C`."""
    return [*_leaves(node.left), *_leaves(node.right)] if isinstance(node, ast.BinOp) else [node]


def _is_none(item: Any) -> bool:
    return item is None or item is type(None) or (isinstance(item, ast.Constant) and item.value is None)


def _is_dots(item: Any) -> bool:
    return item is ... or (isinstance(item, ast.Constant) and item.value is ...)


def _text(annotation: Any) -> str:
    """An annotation as it is written."""
    if isinstance(annotation, ast.expr):
        return ast.unparse(annotation)
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
