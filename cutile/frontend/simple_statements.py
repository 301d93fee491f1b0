"""Assignments, `break`, `continue`, `return`, and refused statements.

Tiles are values, so only names and tuples of names can be assigned to. A jump is noted in the frame's flow; `execute`
puts the statements after it under a condition. Each construct of Python that kernels do not have is refused, with a
message and a remedy.
"""

from __future__ import annotations

import ast
from typing import Any, NoReturn

from cutile.errors import KernelSyntaxError, KernelTypeError
from cutile.frontend.flow import Exit
from cutile.frontend.frame import RETURNED, Frame
from cutile.frontend.operators import is_number
from cutile.frontend.structure import children, gone_through, leaves, same_constants
from cutile.frontend.values import ListItems, Range, Table, TensorRef, Undefined, describe, is_tile, items_of
from cutile.ir.core import Value


def assign(frame: Frame, target: ast.expr, value: Any) -> None:
    """`target = value`."""
    if isinstance(target, ast.Name):
        if isinstance(value, ListItems):
            value.holders.add((id(frame), target.id))
        # The first name of a value is its name in the IR and in errors.
        if isinstance(value, Value) and not value.name and target.id != "_":
            value.name = target.id
        if isinstance(value, TensorRef) and not value.value.name:
            value.value.name = target.id
        frame.variables[target.id] = value
        frame.places[target.id] = target
        return
    if isinstance(target, ast.Tuple | ast.List):
        _unpack(frame, target, value)
        return
    if isinstance(target, ast.Attribute):
        frame.syntax_error(
            target,
            "an assignment to an attribute is not compiled in a kernel",
            "Values do not change: make a new one, s = dataclasses.replace(s, field=value).",
        )
    if isinstance(target, ast.Subscript):
        owner = frame.evaluate(target.value)
        remedy = (
            "Tiles are values: compute a new one, with ct.select where some elements stay, and store that."
            if is_tile(owner)
            else "Values do not change: build a new tuple, t = (*t[:i], value, *t[i + 1:])."
            if children(owner) is not None
            else "Values do not change: write the dict with all its items, d = {key: value, ...}."
            if isinstance(owner, Table)
            else "Tensors are written through a Mut parameter: y.store(tile)."
        )
        frame.syntax_error(target, "an assignment to an element is not compiled in a kernel", remedy)
    frame.syntax_error(target, "this cannot be assigned to", "Assign to a name or a tuple of names.")


def _unpack(frame: Frame, target: ast.Tuple | ast.List, value: Any) -> None:
    if not isinstance(value, tuple | str):
        remedy = "Only tuples unpack." + (
            " tuple(range(3)) is one."
            if isinstance(value, Range)
            else ""
            if not is_tile(value)
            else " A scalar is one number."
            if value.tile.is_scalar
            else " A tile has no items: reshape or reduce it."
        )
        frame.type_error(f"cannot unpack {describe(value)}", target, remedy)
    items = items_of(gone_through(frame, value))
    stars = [position for position, each in enumerate(target.elts) if isinstance(each, ast.Starred)]
    if not stars:
        if len(items) != len(target.elts):
            frame.type_error(
                f"cannot unpack {len(items)} values into {len(target.elts)} names",
                target,
                "Write one name per value; `_` for those that are not needed, `*rest` for the others.",
            )
        for each, item in zip(target.elts, items, strict=True):
            assign(frame, each, item)
        return
    at = stars[0]
    after = len(target.elts) - at - 1
    if len(items) < at + after:
        frame.type_error(
            f"cannot unpack {len(items)} values into {at + after} names and a starred one",
            target,
            "Write fewer names.",
        )
    for each, item in zip(target.elts[:at], items, strict=False):
        assign(frame, each, item)
    starred = target.elts[at]
    assert isinstance(starred, ast.Starred)
    assign(frame, starred.value, ListItems(items[at : len(items) - after]))
    for each, item in zip(target.elts[at + 1 :], items[len(items) - after :], strict=True):
        assign(frame, each, item)


def break_statement(frame: Frame, node: ast.Break) -> None:
    """Leave the innermost loop."""
    del node
    loop = frame.loop
    assert loop is not None  # Python refuses the text otherwise
    constants = {
        name: value
        for name, value in frame.variables.items()
        if not isinstance(value, Undefined) and all(map(is_number, leaves(value)))
    }
    if Exit.BREAK in loop.at:
        constants = {
            name: value
            for name, value in constants.items()
            if name in loop.constants and same_constants(value, loop.constants[name])
        }
    loop.constants = constants
    loop.leave(Exit.BREAK, frame.variables)
    frame.flow.leave(Exit.BREAK)


def continue_statement(frame: Frame, node: ast.Continue) -> None:
    """Go on with the next iteration of the innermost loop."""
    del node
    assert frame.loop is not None  # Python refuses the text otherwise
    frame.loop.leave(Exit.CONTINUE, frame.variables)
    frame.flow.leave(Exit.CONTINUE)


def return_statement(frame: Frame, node: ast.Return) -> None:
    """Leave the function, with a value unless it is a kernel."""
    if frame.is_entry and node.value is not None:
        frame.syntax_error(node, "a kernel returns nothing", "Store results into a Mut parameter.")
    frame.variables[RETURNED] = None if node.value is None else frame.evaluate(node.value)
    frame.places[RETURNED] = node
    frame.flow.leave(Exit.RETURN)


def returned(frame: Frame) -> object:
    """The value that the function returned, once its body has been compiled."""
    value = frame.variables.get(RETURNED)
    if Exit.RETURN in frame.flow.taken and frame.flow.falls and value is not None:
        raise KernelTypeError(
            f"{frame.source.name}() returns a value on some paths only",
            frame.locate(frame.places[RETURNED]),
            "Return a value on every path: add a return at the end of the function.",
        )
    return value


_MATERIAL = "Use a tuple, a named tuple or a dataclass: the values of a kernel are fixed in number and kind."
_RAISES = "Nothing in a kernel raises: check arguments on the host, or use ct.static_assert for what is constant."

REFUSED: dict[str, tuple[str, str]] = {
    "Set": ("a set", _MATERIAL),
    "SetComp": ("a set comprehension", "Write a list comprehension, which makes a tuple."),
    "Starred": ("a starred item", "Write the items out."),
    "Yield": ("yield", "Return a tuple, or store results into a Mut parameter."),
    "YieldFrom": ("yield from", "Return a tuple, or store results into a Mut parameter."),
    "Try": ("try", _RAISES),
    "TryStar": ("try with except*", _RAISES),
    "Raise": ("raise", _RAISES),
    "AsyncFunctionDef": ("an async function", "Nothing in a kernel waits: write a plain function."),
    "ClassDef": ("a class", "Define it outside the kernel, as a dataclass or NamedTuple."),
    "Import": ("import", "Import at the top of the file: a kernel sees the names there."),
    "ImportFrom": ("from ... import", "Import at the top of the file: a kernel sees the names there."),
    "Global": ("global", "A kernel cannot write globals: store into a Mut parameter."),
    "Nonlocal": ("nonlocal", "A nested function cannot write outer variables: return the value, and assign it."),
    "Delete": ("del", "Just stop using the name: nothing in a kernel needs freeing."),
    "TypeAlias": ("a type alias", "Define it outside the kernel, or assign the dtype to a name: E = ct.f32."),
    "TemplateStr": ("a template string", "Use an f-string of constants."),
}
"""The name and the remedy of each refused construct.

The key is the name of the node's class, since older versions of Python do not have all classes.
"""


def refuse(frame: Frame, node: ast.AST, what: str = "", remedy: str = "") -> NoReturn:
    """Raise the error for a construct that cutile does not compile."""
    name = type(node).__name__
    known = REFUSED.get(name, (name, "Write it with operators, loops and cutile's operations."))
    raise KernelSyntaxError(f"{what or known[0]} is not compiled in a kernel", frame.locate(node), remedy or known[1])
