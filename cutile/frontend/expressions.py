"""Expressions: one function for each kind of syntax, by the node's class."""

from __future__ import annotations

import ast
import enum
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

from cutile.errors import KernelNameError
from cutile.frontend import elsewhere, operators
from cutile.frontend.branches import if_expression
from cutile.frontend.calls import invoke
from cutile.frontend.captures import compile_time
from cutile.frontend.constant_calls import NOT_CONSTANT, evaluated, method_of, methods_of
from cutile.frontend.displays import comprehension, dict_comprehension, dictionary, item_of, static_items, table_method
from cutile.frontend.families.debug import f_string
from cutile.frontend.families.grid import own_index
from cutile.frontend.families.memory import extent
from cutile.frontend.families.shape import with_new_axes
from cutile.frontend.frame import Frame, Scope
from cutile.frontend.inline import lambda_expression
from cutile.frontend.logic import compare, logical
from cutile.frontend.plain_numbers import weak
from cutile.frontend.registry import METHODS
from cutile.frontend.simple_statements import assign, refuse
from cutile.frontend.structure import attribute, children, gone_through
from cutile.frontend.tensor_parts import one_of
from cutile.frontend.values import (
    IndexComponent,
    ListItems,
    MappedRef,
    Method,
    MutRef,
    PartitionIndex,
    PartitionRef,
    PointerRef,
    Range,
    Record,
    SharedRef,
    Table,
    TensorRef,
    describe,
    hold_items,
    is_tile,
    items_of,
    plain,
)
from cutile.ir.core import Value
from cutile.language.variable import DeviceVariable
from cutile.ops.pointer import TensorStride


def evaluate(frame: Frame, node: ast.expr) -> Any:
    """The value of an expression; its operations go into the current block."""
    visit = _VISITORS.get(type(node))
    if visit is None:
        refuse(frame, node)  # raises
    with frame.at(node):
        return visit(frame, node)


def _constant(frame: Frame, node: ast.Constant) -> Any:
    if isinstance(node.value, bool | int | float | str | type(None)):
        return node.value
    kinds: dict[type, str] = {complex: "a complex number", bytes: "bytes"}
    return refuse(
        frame, node, kinds.get(type(node.value), "..."), "A kernel holds bools, integers, floats and strings."
    )


def _name(frame: Frame, node: ast.Name) -> Any:
    return frame.name(node)


def _tuple(frame: Frame, node: ast.Tuple | ast.List) -> Any:
    """A tuple. A list is one too, since nothing in a kernel changes."""
    items: list[Any] = []
    for child in node.elts:
        if isinstance(child, ast.Starred):
            value = evaluate(frame, child.value)
            if isinstance(value, Range | str | Table):
                value = static_items(frame, value, child, "*")
            if not isinstance(value, tuple):
                frame.type_error(f"* takes a tuple, got {describe(value)}", child, "Only tuples have items to spread.")
            items.extend(items_of(gone_through(frame, value)))
            continue
        items.append(evaluate(frame, child))
    hold_items(items, items)
    return ListItems(items) if isinstance(node, ast.List) else tuple(items)


def _binary(frame: Frame, node: ast.BinOp) -> Any:
    left, right = evaluate(frame, node.left), evaluate(frame, node.right)
    value = operators.binary(frame, type(node.op), left, right)
    is_list = isinstance(left, ListItems) or isinstance(right, ListItems)  # `2 * [n]` is one, too
    return ListItems(items_of(value)) if is_list and isinstance(value, tuple) else value


def _unary(frame: Frame, node: ast.UnaryOp) -> Any:
    return operators.unary(frame, type(node.op), evaluate(frame, node.operand))


def _attribute(frame: Frame, node: ast.Attribute) -> Any:
    owner = evaluate(frame, node.value)
    name = node.attr
    return attribute_of(frame, owner, name, node)


def attribute_of(frame: Frame, owner: Any, name: str, node: ast.AST) -> Any:
    """`owner.name`."""
    if isinstance(owner, types.ModuleType):
        if not hasattr(owner, name):
            raise KernelNameError(
                f"module {owner.__name__!r} has no {name!r}", frame.locate(node), elsewhere.in_module(owner, name)
            )
        return compile_time(frame.captures.attribute(owner, name), f"{owner.__name__}.{name}", frame.captures)
    if is_tile(owner) or isinstance(owner, TensorRef | MutRef | MappedRef | PartitionRef | PointerRef):
        return _member(frame, owner, name, node)
    if isinstance(owner, PartitionIndex) and (PartitionIndex, name) in METHODS:
        return Method(owner, name)
    if isinstance(owner, DeviceVariable):
        names = {"dtype", *(method for kind, method in METHODS if kind is DeviceVariable)}
        if name not in names:
            frame.type_error(f"{describe(owner)} has no attribute {name!r}", node, elsewhere.among(name, names))
        return owner.dtype if name == "dtype" else Method(owner, name)
    if isinstance(owner, IndexComponent):
        return owner.value if name == "value" else attribute_of(frame, owner.value, name, node)
    if isinstance(owner, Table):
        return table_method(frame, owner, name, node)
    method = method_of(owner, name)
    if method is not None:
        return method
    if isinstance(owner, tuple | Record):
        return attribute(frame, owner, name, node)
    # Constants of the user's classes and enums. Names with underscores are Python's own, which a kernel does not have.
    if isinstance(owner, type | enum.Enum) and not name.startswith("__") and hasattr(owner, name):
        return compile_time(frame.captures.attribute(owner, name), f"{owner!r}.{name}", frame.captures)
    if isinstance(owner, type) and issubclass(owner, enum.Enum) and not name.startswith("_"):
        frame.type_error(f"{owner.__name__} has no {name!r}", node, elsewhere.among(name, owner.__members__))
    frame.type_error(
        f"{describe(owner)} has no attribute {name!r} in a kernel",
        node,
        elsewhere.of_text(name, methods_of(owner))
        if isinstance(owner, str)
        else "Tiles, tensors, partitions, dtypes, tuples and dataclasses have attributes in a kernel, and modules.",
    )


def _member(frame: Frame, owner: Any, name: str, node: ast.AST) -> Any:
    """`.shape`, `.dtype`, `.ndim`, or a method."""
    if isinstance(owner, Value):
        shape: Any = owner.tile.shape
        dtype = owner.tile.dtype
    elif isinstance(owner, MutRef | MappedRef):
        shape, dtype = owner.value.mut.tile, owner.value.mut.dtype
    elif isinstance(owner, PointerRef):
        shape, dtype = owner.value.tile.shape, owner.dtype
    elif isinstance(owner, PartitionRef):
        shape, dtype = owner.shape, owner.value.tensor.dtype
    else:
        tensor: TensorRef = owner
        dtype = tensor.value.tensor.dtype
        # Extents that the type does not have are operations, made for `.shape` alone: other names need only the rank.
        shape = (
            tuple(extent(frame, tensor.value, axis) for axis in range(tensor.value.tensor.rank))
            if name == "shape"
            else (None,) * tensor.value.tensor.rank
        )
    if name == "shape":
        return shape
    if name == "strides" and isinstance(owner, TensorRef):
        return tuple(
            1 if stride == 1 else weak(frame, frame.emit(TensorStride(x=owner.value, axis=axis)))
            for axis, stride in enumerate(owner.value.tensor.strides)  # 1, or None where only the launch knows it
        )
    if name == "index" and isinstance(owner, MutRef):
        return own_index(frame, owner.value)
    if name == "dtype":
        return dtype
    if name == "ndim":
        return len(shape)
    if any((kind, name) in METHODS for kind in type(owner).__mro__):  # base classes: a SharedRef is a TensorRef
        return Method(owner, name)
    names = {"shape", "dtype", "ndim", *(method for kind, method in METHODS if isinstance(owner, kind))}
    names |= {"strides"} if isinstance(owner, TensorRef) else set()
    if isinstance(owner, SharedRef) and name in ("store", "load"):
        remedy = "A SharedMut has no tile of one block: y.partition(shape).store(tile, index) writes where the index "
        remedy += "says, ct.atomic_add(y, index, value) updates elements."
    elif isinstance(owner, TensorRef) and name in ("store", "load"):
        remedy = "Tensors are read: x.load_tile(shape, index), x.partition(shape).load(index). "
        remedy += "What a kernel writes is annotated with Mut, and a partition of the tensor is passed."
    elif isinstance(owner, MutRef):
        remedy = elsewhere.of_mut(name, names | {"index"})
    else:
        if is_tile(owner):
            remedy_of = elsewhere.of_tile
        else:
            remedy_of = elsewhere.of_tensor if isinstance(owner, TensorRef) else elsewhere.among
        remedy = remedy_of(name, names)
    frame.type_error(f"{describe(owner)} has no attribute {name!r}", node, remedy)


def _subscript(frame: Frame, node: ast.Subscript) -> Any:
    owner = evaluate(frame, node.value)
    if is_tile(owner):
        return with_new_axes(frame, owner, [_axis(frame, item) for item in _items(node.slice)], node)
    if isinstance(owner, Table):
        return item_of(frame, owner, evaluate(frame, node.slice), node)
    if isinstance(owner, str):
        return _item(frame, owner, "string", node.slice)
    # A dataclass with a `__getitem__` of the user's. `getattr_static` finds it without running the user's descriptors.
    getitem = inspect.getattr_static(owner.kind, "__getitem__", None) if isinstance(owner, Record) else None
    if isinstance(getitem, types.FunctionType):
        frame.captures.attribute(owner.kind, "__getitem__")  # noted: the kernel depends on it
        return invoke(frame, getitem, [owner, evaluate(frame, node.slice)], {}, node)
    items = children(owner) if isinstance(owner, tuple) else None
    if items is not None:
        if not isinstance(node.slice, ast.Slice):
            index = plain(evaluate(frame, node.slice))
            if is_tile(index) and (tensor := one_of(frame, items, index)) is not None:
                return tensor
            return _at(frame, items, index, "tuple", node.slice)
        part = _item(frame, items, "tuple", node.slice)
        return ListItems(part) if isinstance(owner, ListItems) else part
    frame.type_error(f"{describe(owner)} cannot be indexed with []", node, _in_place_of_brackets(owner))


def _item(frame: Frame, items: Any, what: str, node: ast.expr) -> Any:
    """`items[index]` or `items[start:stop:step]`, of a tuple or string."""
    if not isinstance(node, ast.Slice):
        return _at(frame, items, plain(evaluate(frame, node)), what, node)
    bounds = [None if bound is None else evaluate(frame, bound) for bound in _bounds(node)]
    if bounds[2] == 0:
        frame.type_error("the step of this slice is 0", node, "Use a step above or below 0.")
    if all(bound is None or isinstance(bound, int) for bound in bounds):
        return items[slice(*bounds)]
    frame.type_error(
        "the bounds of a slice must be constant integers",
        node,
        "The number of items is fixed when the kernel is compiled: use numbers or generics.",
    )


def _at(frame: Frame, items: Any, index: Any, what: str, node: ast.expr) -> Any:
    if not isinstance(index, int):
        remedy = "Its items may be of different types: loop over it, or compare the index with each constant."
        frame.type_error(
            f"a {what}'s index must be a constant integer, got {describe(index)}",
            node,
            remedy if what == "tuple" else "Text is known when the kernel is compiled: use a number or generic.",
        )
    if not -len(items) <= index < len(items):
        remedy = f"Its indices are {-len(items)} to {len(items) - 1}." if items else "It is empty."
        frame.type_error(f"index {index} of a {what} of {len(items)}", node, remedy)
    return items[index]


def _items(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def _axis(frame: Frame, node: ast.expr) -> Any:
    """One item between brackets: a slice, the `...`, or a value."""
    if isinstance(node, ast.Slice):
        return slice(*(None if bound is None else evaluate(frame, bound) for bound in _bounds(node)))
    return ... if isinstance(node, ast.Constant) and node.value is ... else evaluate(frame, node)


def _in_place_of_brackets(owner: Any) -> str:
    if isinstance(owner, TensorRef):
        return "x.load_tile(shape, index) loads a tile, ct.gather(x, index) single elements."
    if isinstance(owner, MutRef):
        return "y.load() loads the block's own tile, ct.gather(y, index) single elements."
    if isinstance(owner, Range):
        return "An item of range(start, stop, step) is start + index * step; tuple(range(...)) of constants has all."
    return "Load a tile first."


def _walrus(frame: Frame, node: ast.NamedExpr) -> Any:
    value = evaluate(frame, node.value)
    # In a comprehension `:=` assigns a variable of the function around it. Under a run-time condition within the
    # comprehension, the function would have to merge the variable, but it sees no branch.
    home = frame.home if isinstance(frame, Scope) else frame
    if home.dynamic_depth != frame.dynamic_depth:
        remedy = "Assign on a line of its own, before."
        frame.syntax_error(node, "an assignment (:=) under a condition within a comprehension is not compiled", remedy)
    assign(home, node.target, value)
    return value


def _bounds(node: ast.Slice) -> tuple[ast.expr | None, ...]:
    return node.lower, node.upper, node.step


def _call(frame: Frame, node: ast.Call) -> Any:
    function = evaluate(frame, node.func)
    # `ct.static_eval(...)`: Python evaluates the argument, which need not be an expression that kernels have.
    if getattr(function, "__cutile__", "") == "static_eval" and len(node.args) == 1 and not node.keywords:
        constant = evaluated(frame, node.args[0])
        if constant is not NOT_CONSTANT:
            return constant
    args: list[Any] = []
    for argument in node.args:
        if isinstance(argument, ast.Starred):
            args.extend(_tuple(frame, ast.Tuple(elts=[argument])))  # `f(*t)` has the items of `(*t,)`
        else:
            args.append(evaluate(frame, argument))
    kwargs: dict[str, Any] = {}
    for argument in node.keywords:
        value = (
            _keywords(frame, argument.value)
            if argument.arg is None
            else {argument.arg: evaluate(frame, argument.value)}
        )
        if repeated := kwargs.keys() & value.keys():  # as by `**a, **b`; Python itself refuses `f(x=1, x=2)`
            frame.type_error(
                f"the keyword {min(repeated)!r} is given twice", argument.value, "Leave one of the two out."
            )
        kwargs.update(value)
    return invoke(frame, function, args, kwargs, node, written=True)


def _keywords(frame: Frame, node: ast.expr) -> Mapping[str, Any]:
    """`**keywords` in a call, of a dict whose keys are strings."""
    value = evaluate(frame, node)
    if not isinstance(value, Table) or not all(isinstance(key, str) for key in value.items):
        remedy = "Only a dict has keywords, one for each of its keys, which are strings."
        frame.type_error(f"** takes a dict of keywords, got {describe(value)}", node, remedy)
    return value.items


_VISITORS: dict[type[ast.expr], Callable[[Frame, Any], Any]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Tuple: _tuple,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.List: _tuple,
    ast.Dict: dictionary,
    ast.ListComp: comprehension,
    ast.DictComp: dict_comprehension,
    ast.GeneratorExp: comprehension,
    ast.Lambda: lambda_expression,
    ast.NamedExpr: _walrus,
    ast.Compare: compare,
    ast.BoolOp: logical,
    ast.IfExp: if_expression,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Call: _call,
    ast.JoinedStr: f_string,
}
