"""Expressions: one function per kind of syntax, dispatched by the node's type."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable
from typing import Any

from cutile.errors import KernelNameError
from cutile.frontend import operators
from cutile.frontend.calls import call, handler_of
from cutile.frontend.control import if_expression
from cutile.frontend.frame import Frame
from cutile.frontend.inline import inline
from cutile.frontend.operators import is_number
from cutile.frontend.registry import METHODS
from cutile.frontend.syntax import refuse
from cutile.frontend.tensors import extent
from cutile.frontend.values import Method, MutRef, PartitionRef, TensorRef, describe, is_tile, items_of
from cutile.ir.core import Value
from cutile.ops.arith import And, Or


def evaluate(frame: Frame, node: ast.expr) -> Any:
    """What an expression means; operations it needs are appended."""
    visit = _VISITORS.get(type(node))
    if visit is None:
        refuse(frame, node)
    with frame.at(node):
        return visit(frame, node)


def _constant(frame: Frame, node: ast.Constant) -> Any:
    if isinstance(node.value, bool | int | float | str | type(None)):
        return node.value
    return refuse(frame, node)


def _name(frame: Frame, node: ast.Name) -> Any:
    return frame.name(node)


def _tuple(frame: Frame, node: ast.Tuple) -> Any:
    items: list[Any] = []
    for each in node.elts:
        if isinstance(each, ast.Starred):
            value = evaluate(frame, each.value)
            if not isinstance(value, tuple):
                frame.type_error(f"* takes a tuple, got {describe(value)}", each)
            items.extend(items_of(value))
        else:
            items.append(evaluate(frame, each))
    return tuple(items)


def _binary(frame: Frame, node: ast.BinOp) -> Any:
    left, right = evaluate(frame, node.left), evaluate(frame, node.right)
    return operators.binary(frame, type(node.op), left, right)


def _unary(frame: Frame, node: ast.UnaryOp) -> Any:
    return operators.unary(frame, type(node.op), evaluate(frame, node.operand))


def _compare(frame: Frame, node: ast.Compare) -> Any:
    left = evaluate(frame, node.left)
    result: Any = True
    for kind, right_node in zip(node.ops, node.comparators, strict=True):
        right = evaluate(frame, right_node)
        one = operators.comparison(frame, type(kind), left, right)
        result = one if result is True else _both(frame, And, result, one)
        left = right
    return result


def _both(frame: Frame, op: Any, left: Any, right: Any) -> Any:
    x, y = operators.unify(frame, [left, right], "and" if op is And else "or")
    return frame.emit(op(x=x, y=y))


def _logical(frame: Frame, node: ast.BoolOp) -> Any:
    """`and`/`or`: as in Python where the left side is constant; else both sides are computed, which loads allow."""
    is_and = isinstance(node.op, ast.And)
    result: Any = None
    for each in node.values:
        value = operators.truth(frame, evaluate(frame, each), each)
        if isinstance(value, bool) and value is not is_and:
            return value  # False in `and`, True in `or`: decided, whatever was before
        if not isinstance(value, bool):
            result = value if result is None else _both(frame, And if is_and else Or, result, value)
    return is_and if result is None else result


def _conditional(frame: Frame, node: ast.IfExp) -> Any:
    condition = operators.truth(frame, evaluate(frame, node.test), node.test)
    if isinstance(condition, bool):
        return evaluate(frame, node.body if condition else node.orelse)
    return if_expression(frame, condition, node)


def _attribute(frame: Frame, node: ast.Attribute) -> Any:
    owner = evaluate(frame, node.value)
    name = node.attr
    return attribute_of(frame, owner, name, node)


def attribute_of(frame: Frame, owner: Any, name: str, node: ast.AST) -> Any:
    """`owner.name`."""
    if isinstance(owner, types.ModuleType):
        if not hasattr(owner, name):
            raise KernelNameError(f"module {owner.__name__!r} has no {name!r}", frame.locate(node))
        return getattr(owner, name)
    if is_tile(owner) or isinstance(owner, TensorRef | MutRef | PartitionRef):
        return _fact(frame, owner, name, node)
    if isinstance(owner, type) and hasattr(owner, name):
        return getattr(owner, name)
    frame.type_error(f"{describe(owner)} has no attribute {name!r} in a kernel", node)


def _fact(frame: Frame, owner: Any, name: str, node: ast.AST) -> Any:
    """`.shape`, `.dtype`, `.ndim`, or a method."""
    if isinstance(owner, Value):
        shape: Any = owner.tile.shape
        dtype = owner.tile.dtype
    elif isinstance(owner, MutRef):
        shape, dtype = owner.value.mut.tile, owner.value.mut.dtype
    elif isinstance(owner, PartitionRef):
        shape, dtype = owner.shape, owner.value.tensor.dtype
    else:
        tensor: TensorRef = owner
        dtype = tensor.value.tensor.dtype
        shape = (
            tuple(extent(frame, tensor.value, axis) for axis in range(tensor.value.tensor.rank))
            if name == "shape"
            else (None,) * tensor.value.tensor.rank
        )
    if name == "shape":
        return shape
    if name == "dtype":
        return dtype
    if name == "ndim":
        return len(shape)
    if any((each, name) in METHODS for each in type(owner).__mro__):
        return Method(owner, name)
    known = sorted({"shape", "dtype", "ndim", *(method for each, method in METHODS if isinstance(owner, each))})
    frame.type_error(f"{describe(owner)} has no attribute {name!r}", node, f"It has {', '.join(known)}.")


def _subscript(frame: Frame, node: ast.Subscript) -> Any:
    owner = evaluate(frame, node.value)
    if isinstance(owner, tuple):
        items = items_of(owner)
        if isinstance(node.slice, ast.Slice):
            bounds = [None if each is None else evaluate(frame, each) for each in _bounds(node.slice)]
            if all(each is None or isinstance(each, int) for each in bounds):
                return items[slice(*bounds)]
            frame.type_error("the bounds of a slice must be constant integers", node.slice)
        index = evaluate(frame, node.slice)
        if not isinstance(index, int):
            frame.type_error(f"a tuple's index must be a constant integer, got {describe(index)}", node.slice)
        if not -len(items) <= index < len(items):
            frame.type_error(f"index {index} of a tuple of {len(items)}", node.slice)
        return items[index]
    remedy = "Reduce it, or reshape and select." if is_tile(owner) else "Load a tile first."
    frame.type_error(f"{describe(owner)} cannot be indexed with []", node, remedy)


def _bounds(node: ast.Slice) -> tuple[ast.expr | None, ...]:
    return node.lower, node.upper, node.step


def _call(frame: Frame, node: ast.Call) -> Any:
    function = evaluate(frame, node.func)
    args: list[Any] = []
    for each in node.args:
        if isinstance(each, ast.Starred):
            args.extend(_tuple(frame, ast.Tuple(elts=[each])))
        else:
            args.append(evaluate(frame, each))
    kwargs: dict[str, Any] = {}
    for each in node.keywords:
        if each.arg is None:
            refuse(frame, each.value, "**kwargs in a call")
        kwargs[each.arg] = evaluate(frame, each.value)
    name = ast.unparse(node.func)
    handler = handler_of(function)
    if handler is not None:
        return call(frame, handler, name, args, kwargs)
    if isinstance(function, types.FunctionType):
        return inline(frame, function, node, args, kwargs)
    if hasattr(function, "__wrapped_kernel__"):
        frame.type_error(f"{name} is a kernel; a kernel cannot call a kernel", node, "Call a plain function instead.")
    frame.type_error(
        f"{name} ({describe(function)}) cannot be called in a kernel",
        node,
        "A kernel may call cutile's operations and plain Python functions, which are compiled with it.",
    )


def _string(frame: Frame, node: ast.JoinedStr) -> Any:
    parts: list[str] = []
    for each in node.values:
        value = each.value if isinstance(each, ast.Constant) else evaluate(frame, each.value)  # type: ignore[attr-defined]
        if not is_number(value) and not isinstance(value, str):
            frame.type_error("an f-string in a kernel may hold constants only", each)
        parts.append(str(value))
    return "".join(parts)


_VISITORS: dict[type[ast.expr], Callable[[Frame, Any], Any]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Tuple: _tuple,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _logical,
    ast.IfExp: _conditional,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Call: _call,
    ast.JoinedStr: _string,
}
