"""The Python that is refused: one message and remedy per construct."""

from __future__ import annotations

import ast
from typing import NoReturn

from cutile.errors import KernelSyntaxError
from cutile.frontend.frame import Frame

_MATERIAL = "Use a tuple, a named tuple or a dataclass: the values of a kernel are fixed in number and kind."
_RAISES = "Nothing in a kernel raises: check arguments on the host, or use ct.static_assert for what is constant."

REFUSED: dict[str, tuple[str, str]] = {
    "Set": ("a set", _MATERIAL),
    "SetComp": ("a set comprehension", "Write a list comprehension, which makes a tuple."),
    "DictComp": ("a dict comprehension", "Write the items out, or compute it with ct.static_eval."),
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
"""What each refused construct is called, and what to do instead, by the name of its node: some are of newer Pythons."""


def refuse(frame: Frame, node: ast.AST, what: str = "", remedy: str = "") -> NoReturn:
    """Raise the error for a construct that cutile does not compile."""
    name = type(node).__name__
    known = REFUSED.get(name, (name, "Write it with operators, loops and cutile's operations."))
    raise KernelSyntaxError(f"{what or known[0]} is not compiled in a kernel", frame.locate(node), remedy or known[1])
