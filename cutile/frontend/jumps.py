"""`break`, `continue` and `return`: where control goes is noted.

`execute` puts what follows under a condition.
"""

from __future__ import annotations

import ast

from cutile.errors import KernelTypeError
from cutile.frontend.flow import Exit
from cutile.frontend.frame import RETURNED, Frame
from cutile.frontend.operators import is_number
from cutile.frontend.structure import leaves, same_constants
from cutile.frontend.values import Undefined


def break_statement(frame: Frame, node: ast.Break) -> None:
    """Leave the innermost loop."""
    del node
    loop = frame.loop
    assert loop is not None  # Python refuses the text otherwise
    here = {name: value for name, value in frame.variables.items() if not isinstance(value, Undefined)}
    constants = {name: value for name, value in here.items() if all(map(is_number, leaves(value)))}
    if loop.at_break is not None:
        constants = {
            name: value
            for name, value in constants.items()
            if name in loop.constants and same_constants(value, loop.constants[name])
        }
    loop.constants = constants
    before = here if loop.at_break is None else loop.at_break
    loop.at_break = {name: value for name, value in before.items() if name in here}
    frame.flow.leave(Exit.BREAK)


def continue_statement(frame: Frame, node: ast.Continue) -> None:
    """Go on with the next turn of the innermost loop."""
    del node
    frame.flow.leave(Exit.CONTINUE)


def return_statement(frame: Frame, node: ast.Return) -> None:
    """Leave the function, with a value unless it is a kernel."""
    if frame.is_entry and node.value is not None:
        frame.syntax_error(node, "a kernel returns nothing", "Store results into a Mut parameter.")
    frame.variables[RETURNED] = None if node.value is None else frame.evaluate(node.value)
    frame.places[RETURNED] = node
    frame.flow.leave(Exit.RETURN)


def returned(frame: Frame) -> object:
    """What the function gave, now that its body has been compiled."""
    value = frame.variables.get(RETURNED)
    if Exit.RETURN in frame.flow.taken and frame.flow.falls and value is not None:
        raise KernelTypeError(
            f"{frame.source.name}() returns a value on some paths only",
            frame.locate(frame.places[RETURNED]),
            "Return a value on every path: add a return at the end of the function.",
        )
    return value
