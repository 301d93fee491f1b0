"""`Frame`: the state of compiling one function body. Inlined helpers get a frame of their own with the same builder."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from cutile.errors import KernelError, KernelNameError, KernelSyntaxError, KernelTypeError, Location
from cutile.frontend.names import MISSING, Captures, compile_time, lookup
from cutile.frontend.source import FunctionSource
from cutile.frontend.values import Undefined
from cutile.ir.builder import Builder
from cutile.ir.core import Op, Value

NOT_RETURNED: Any = object()


@dataclass
class Frame:
    """One function being compiled.

    Attributes:
        function: the Python function, for its globals and closure.
        variables: what its local names mean now.
        evaluate: compiles an expression; set by `build`, so that modules here need not import one another in a circle.
        execute: compiles statements.
        active: the helpers being inlined, outermost first.
        dynamic_depth: how many loops and branches that are decided at run time enclose the current statement.
        returned: what `return` gave, once it was reached.
        unsafe: whether the kernel was declared with `@entry(unsafe=True)`.
    """

    function: Callable[..., Any]
    source: FunctionSource
    builder: Builder
    captures: Captures
    evaluate: Callable[[Frame, ast.expr], Any]
    execute: Callable[[Frame, Sequence[ast.stmt]], None]
    variables: dict[str, Any] = field(default_factory=dict[str, Any])
    caller: Location | None = None
    active: tuple[Callable[..., Any], ...] = ()
    dynamic_depth: int = 0
    returned: Any = NOT_RETURNED
    is_entry: bool = False
    unsafe: bool = False

    def locate(self, node: ast.AST) -> Location:
        """The place of a node, with the chain of calls that led here."""
        return self.source.locate(node, self.caller)

    @contextmanager
    def at(self, node: ast.AST) -> Any:
        """Operations built inside come from `node`; errors raised inside without a place get this one."""
        before = self.builder.location
        self.builder.location = self.locate(node)
        try:
            yield
        except KernelError as error:
            if error.location is not None:
                raise
            raise type(error)(error.message, self.locate(node), error.remedy) from None
        finally:
            self.builder.location = before

    def emit(self, op: Op, name: str = "") -> Value:
        """Append an operation and return its only result."""
        return self.builder.value(op, name)

    def type_error(self, message: str, node: ast.AST | None = None, remedy: str = "") -> NoReturn:
        """Raise a KernelTypeError at `node` (or at the expression being compiled)."""
        raise KernelTypeError(message, self.locate(node) if node is not None else None, remedy)

    def require_unsafe(self, what: str) -> None:
        """Refuse `what` unless the kernel says `@entry(unsafe=True)`: nothing checks the addresses that it uses."""
        if not self.unsafe:
            raise KernelTypeError(
                f"{what} can reach any memory, and nothing checks that it should",
                None,
                "Declare the kernel with @ct.entry(unsafe=True) to take that on yourself.",
            )

    def syntax_error(self, node: ast.AST, message: str, remedy: str) -> NoReturn:
        """Raise a KernelSyntaxError at `node`."""
        raise KernelSyntaxError(message, self.locate(node), remedy)

    def name(self, node: ast.Name) -> Any:
        """What a name means here.

        Raises:
            KernelNameError: nothing, or a variable that only some paths define.
        """
        name = node.id
        if name in self.variables:
            value = self.variables[name]
            if isinstance(value, Undefined):
                raise KernelNameError(
                    f"{name!r} may be undefined here: {value.why}",
                    self.locate(node),
                    f"Give {name!r} a value before.",
                )
            return value
        found = lookup(self.function, name)
        if found is MISSING:
            raise KernelNameError(f"name {name!r} is not defined", self.locate(node), self._suggest(name))
        self.captures.record(self.function, name, found)
        return compile_time(found, name)

    def _suggest(self, name: str) -> str:
        import difflib

        scope: dict[str, Any] = self.function.__globals__  # type: ignore[attr-defined]
        near = difflib.get_close_matches(name, [*self.variables, *scope], n=1)
        return f"Did you mean {near[0]!r}?" if near else "Define it before, or import it."
