"""Control flow and assigned names of statements.

`Flow` says where control goes after a statement: on to the next one, or out by `break`, `continue` or `return`. The IR
has structured control flow only. A jump that is decided when the kernel runs becomes a bool scalar, and the statements
after it become the body of an `if` on that scalar (`branches.guarded`).

The functions read syntax alone: which names statements bind, whether they jump, and whether a loop's body may read the
value that a variable has from the iteration before.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cutile.ir.core import Value


class Exit(enum.Enum):
    """A way out of statements; `BREAK` and `CONTINUE` are of the innermost loop."""

    BREAK = "break"
    CONTINUE = "continue"
    RETURN = "return"
    SKIP_ELSE = "skip else"
    """Past the `else` of a loop: the way of the paths that left the loop by its `break`."""


Flag = Literal[True] | Value
"""Whether an exit was taken: True where every path took it, else a bool scalar."""


@dataclass
class Flow:
    """The state of control after a statement.

    Attributes:
        falls: whether some path goes on to the next statement.
        taken: the exits that some path took.
    """

    falls: bool = True
    taken: dict[Exit, Flag] = field(default_factory=dict[Exit, Flag])

    def leave(self, exit: Exit) -> None:
        """Note that every path takes `exit` here."""
        self.falls = False
        self.taken = {exit: True}

    def rejoin(self, exit: Exit) -> bool:
        """Let the paths that took `exit` go on from here; returns whether there were any."""
        was_taken = self.taken.pop(exit, None) is not None
        self.falls = self.falls or was_taken
        return was_taken

    def settle(self) -> None:
        """Replace the flag of the only exit by True where no path falls through."""
        if not self.falls and len(self.taken) == 1:
            self.taken = dict.fromkeys(self.taken, True)


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that belong to one function, parents first.

    Nodes inside nested functions and classes are left out, and so are the targets of comprehensions: their names belong
    to other scopes.
    """
    rest = [node]
    while rest:
        node = rest.pop()
        yield node
        if isinstance(node, _SCOPES):
            continue
        children: list[ast.AST] = []
        for child in ast.iter_child_nodes(node):
            children += [child.iter, *child.ifs] if isinstance(child, ast.comprehension) else [child]
        rest += reversed(children)


def assigned(body: Sequence[ast.AST]) -> dict[str, ast.AST]:
    """The names that statements assign, with the first place of each."""
    names: dict[str, ast.AST] = {}
    for statement in body:
        for node in _within(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
                names.setdefault(node.id, node)
            elif isinstance(node, ast.FunctionDef) or (
                isinstance(node, ast.MatchAs | ast.MatchStar) and node.name is not None
            ):
                names.setdefault(str(node.name), node)
    return names


def imported(node: ast.AST) -> set[str]:
    """The names that a statement binds by syntax that no kernel has: imports, classes."""
    names: set[str] = set()
    for part in _within(node):
        if isinstance(part, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in part.names}
        elif isinstance(part, ast.ClassDef | ast.AsyncFunctionDef | ast.ExceptHandler) and part.name is not None:
            names.add(part.name)
    return names


_IN_PLACE = {
    *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse"),
    *("update", "setdefault", "popitem", "add", "discard"),
}
"""Methods by which Python changes a list, dict or set."""


def changed_in_place(node: ast.AST) -> set[str]:
    """The names whose values a statement would change in Python.

    `t.append(x)`, `t[i] = x` and `t.total = x` change `t`.
    """
    names: set[str] = set()
    for part in _within(node):
        owner = None
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in _IN_PLACE:
            owner = part.func.value
        elif isinstance(part, ast.Subscript | ast.Attribute) and not isinstance(part.ctx, ast.Load):
            owner = part.value
        while isinstance(owner, ast.Subscript | ast.Attribute):
            owner = owner.value
        if isinstance(owner, ast.Name):
            names.add(owner.id)
    return names


def leaves_loop(body: Sequence[ast.stmt]) -> tuple[bool, bool]:
    """Whether a loop's body has a `break` of that loop, and whether it has a `return`."""
    breaks = returns = False
    for statement in body:
        if isinstance(statement, ast.Break):
            breaks = True
        elif isinstance(statement, ast.Return):
            returns = True
        elif isinstance(statement, ast.For | ast.While):
            inner = leaves_loop(statement.body)  # a `break` there leaves the inner loop
            after = leaves_loop(statement.orelse)  # a `break` there leaves the outer loop
            breaks, returns = breaks or after[0], returns or inner[1] or after[1]
        else:
            for nested in _bodies(statement):
                inner = leaves_loop(nested)
                breaks, returns = breaks or inner[0], returns or inner[1]
    return breaks, returns


def _bodies(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks of an `if` or `match`, whose `break` leaves the loop around it."""
    if isinstance(statement, ast.If):
        yield statement.body
        yield statement.orelse
    elif isinstance(statement, ast.Match):
        for case in statement.cases:
            yield case.body


def is_only_overwritten(loop: ast.For | ast.While, name: str, function: Sequence[ast.stmt]) -> bool:
    """Whether each iteration assigns the variable before it reads the variable.

    Args:
        function: the body of the function that has the loop. An inner function that is defined outside of the loop may
            read the variable wherever the loop calls it.
    """
    if isinstance(loop, ast.While) and _loads(loop.test, name):
        return False
    inside = {id(node) for node in ast.walk(loop)}
    for node in (node for statement in function for node in _within(statement) if id(node) not in inside):
        if isinstance(node, ast.FunctionDef | ast.Lambda) and _reads_around(node, name):
            return False
    return not _first_use_in(loop.body, name)[0]


def _reads_around(function: ast.FunctionDef | ast.Lambda, name: str) -> bool:
    """Whether calls of an inner function read the variable of the function around it.

    They do not if the inner function has a variable of that name itself.
    """
    body = function.body if isinstance(function, ast.FunctionDef) else [function.body]
    own = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)} | assigned(body).keys()
    if name in own:
        return False
    for statement in body:
        for node in _within(statement):
            if isinstance(node, ast.FunctionDef | ast.Lambda):  # the call computes its defaults
                if _loads(node.args, name) or _reads_around(node, name):
                    return True
            elif isinstance(node, ast.Name) and node.id == name:
                return True
    return False


def _loads(node: ast.AST, name: str) -> bool:
    """Whether a node reads the name anywhere, also in a function that it defines."""
    return any(isinstance(each, ast.Name) and each.id == name and not _is_stored(each) for each in ast.walk(node))


def _stores(node: ast.AST, name: str) -> bool:
    """Whether a target or an expression assigns the name, whatever its conditions are."""
    parts: list[ast.AST]
    match node:
        case ast.Name():
            return node.id == name and _is_stored(node)
        case ast.IfExp():
            parts = [node.test]
        case ast.BoolOp():
            parts = [node.values[0]]
        case ast.Compare():
            parts = [node.left, node.comparators[0]]
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            parts = [node.generators[0].iter]  # the rest is computed for each item, and there may be none
        case ast.Lambda():
            parts = []
        case _:
            parts = [*ast.iter_child_nodes(node)]
    return any(_stores(part, name) for part in parts)


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _first_use_in(body: Sequence[ast.stmt], name: str) -> tuple[bool, bool]:
    """Whether some path may read the name first, and whether all paths assign it.

    A path that jumps does not reach the end of the statements. It counts as one that assigns the name.
    """
    for statement in body:
        reads, assigns = _first_use(statement, name)
        if reads or assigns:
            return reads, assigns
    return False, False


def _first_use(node: ast.stmt, name: str) -> tuple[bool, bool]:
    """`_first_use_in` of one statement.

    A kind of statement that is not listed counts as one that assigns nothing. So, in doubt, a variable is carried.
    """
    match node:
        case ast.Assign(targets=targets, value=value):
            return _loads(node, name), any(_stores(each, name) for each in targets) or _stores(value, name)
        case ast.AnnAssign(target=target, value=ast.expr()):
            return _loads(node, name), _stores(target, name)
        case ast.AugAssign(target=target):
            return _loads(node, name) or _stores(target, name), False  # `x += 1` reads x
        case ast.Break() | ast.Continue() | ast.Return(value=None):
            return False, True  # no path goes on, and no path lacks the assignment
        case ast.If(test=test, body=then, orelse=orelse):
            first, second = _first_use_in(then, name), _first_use_in(orelse, name)
            return _loads(test, name) or first[0] or second[0], first[1] and second[1]
        case ast.For(target=target, iter=over, body=inner, orelse=orelse):
            # A loop may run no iteration: what it assigns does not count.
            reads = not _stores(target, name) and _first_use_in(inner, name)[0]
            return _loads(over, name) or reads or _first_use_in(orelse, name)[0], False
        case ast.While(test=test, body=inner, orelse=orelse):
            return _loads(test, name) or _first_use_in(inner, name)[0] or _first_use_in(orelse, name)[0], False
        case _:
            return _loads(node, name), False
