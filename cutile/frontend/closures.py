"""Functions and lambdas that are defined inside a kernel or helper.

They see its variables as they are when called.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from typing import Any

from cutile.frontend.frame import Frame
from cutile.frontend.syntax import refuse


@dataclass(frozen=True, eq=False)
class Closure:
    """A function defined in a kernel.

    Its syntax, and the frame whose variables it sees.
    """

    name: str
    node: ast.FunctionDef | ast.Lambda
    frame: Frame
    signature: inspect.Signature

    @property
    def body(self) -> list[ast.stmt]:
        """The statements to compile at a call."""
        if isinstance(self.node, ast.FunctionDef):
            return self.node.body
        return [ast.copy_location(ast.Return(value=self.node.body), self.node.body)]

    def __repr__(self) -> str:
        return f"{self.name}{self.signature.replace(return_annotation=inspect.Signature.empty)}"


def define(frame: Frame, node: ast.FunctionDef) -> None:
    """`def` inside a kernel."""
    if node.decorator_list:
        refuse(frame, node.decorator_list[0], "a decorator of a nested function", "Call the outer function yourself.")
    frame.variables[node.name] = Closure(node.name, node, frame, _signature(frame, node.args))
    frame.places[node.name] = node


def lambda_expression(frame: Frame, node: ast.Lambda) -> Closure:
    """`lambda` inside a kernel."""
    return Closure("<lambda>", node, frame, _signature(frame, node.args))


def _signature(frame: Frame, arguments: ast.arguments) -> inspect.Signature:
    """The parameters, with defaults evaluated now, as Python does."""
    kinds = inspect.Parameter
    empty: Any = kinds.empty
    plain = [(each, kinds.POSITIONAL_ONLY) for each in arguments.posonlyargs]
    plain += [(each, kinds.POSITIONAL_OR_KEYWORD) for each in arguments.args]
    defaults: list[Any] = [frame.evaluate(each) for each in arguments.defaults]
    defaults = [empty] * (len(plain) - len(defaults)) + defaults
    parameters = [kinds(each.arg, kind, default=value) for (each, kind), value in zip(plain, defaults, strict=True)]
    if arguments.vararg is not None:
        parameters.append(kinds(arguments.vararg.arg, kinds.VAR_POSITIONAL))
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        value = empty if default is None else frame.evaluate(default)
        parameters.append(kinds(each.arg, kinds.KEYWORD_ONLY, default=value))
    if arguments.kwarg is not None:
        parameters.append(kinds(arguments.kwarg.arg, kinds.VAR_KEYWORD))
    return inspect.Signature(parameters)
