"""The Python that is refused: one message and remedy per construct."""

from __future__ import annotations

import ast
from typing import NoReturn

from cutile.errors import KernelSyntaxError
from cutile.frontend.frame import Frame

REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    ast.List: ("a list", "Use a tuple: the values of a kernel are fixed in number."),
    ast.Dict: ("a dict", "Use separate variables or a tuple."),
    ast.Set: ("a set", "Use separate variables or a tuple."),
    ast.ListComp: ("a list comprehension", "Write a loop over ct.static_range."),
    ast.SetComp: ("a set comprehension", "Write a loop over ct.static_range."),
    ast.DictComp: ("a dict comprehension", "Write a loop over ct.static_range."),
    ast.GeneratorExp: ("a generator expression", "Write a loop over ct.static_range."),
    ast.Lambda: ("a lambda", "Define a plain function outside the kernel and call it."),
    ast.Await: ("await", "A kernel runs on the device; await the op that launches it."),
    ast.Yield: ("yield", "Store results into a Mut parameter."),
    ast.YieldFrom: ("yield", "Store results into a Mut parameter."),
    ast.NamedExpr: ("an assignment expression (:=)", "Assign on a line of its own."),
    ast.Try: ("try", "Nothing in a kernel raises; check arguments on the host."),
    ast.Raise: ("raise", "Nothing in a kernel raises; check arguments on the host."),
    ast.With: ("with", "A kernel has no context managers."),
    ast.Import: ("an import", "Import at the top of the file."),
    ast.ImportFrom: ("an import", "Import at the top of the file."),
    ast.Global: ("global", "A kernel cannot write globals; store into a Mut parameter."),
    ast.Nonlocal: ("nonlocal", "A kernel cannot write outer variables; store into a Mut parameter."),
    ast.Delete: ("del", "Just stop using the name."),
    ast.ClassDef: ("a class", "Define it outside; a kernel uses numbers, tiles and tuples."),
    ast.FunctionDef: ("a nested function", "Define a plain function outside the kernel and call it."),
    ast.AsyncFunctionDef: ("an async function", "Define a plain function outside the kernel and call it."),
    ast.AsyncFor: ("async for", "Use a plain for loop."),
    ast.AsyncWith: ("async with", "A kernel has no context managers."),
    ast.Match: ("match", "Use if and elif."),
    ast.Assert: ("assert", "Check arguments on the host, before the launch."),
    ast.Break: ("break", "Put the condition into a while loop, or select what each step does."),
    ast.Continue: ("continue", "Put the rest of the body under an if."),
    ast.Starred: ("* here", "Write the values out."),
}


def refuse(frame: Frame, node: ast.AST, what: str = "") -> NoReturn:
    """Raise the error for a construct that cutile does not compile."""
    known = REFUSED.get(type(node), (type(node).__name__, "Write it with operators, loops and cutile's operations."))
    raise KernelSyntaxError(f"{what or known[0]} is not compiled in a kernel", frame.locate(node), known[1])
