"""Functions and classes of `cutile.torch` as their source text has them: PyTorch need not be installed to show them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = "cutile.torch"


@cache
def names() -> dict[str, str]:
    """The public names, and the module that has each."""
    tree = _tree(f"{PACKAGE}.__init__")
    return {
        alias.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def member(name: str) -> Any:
    """A function or class with its signature and docstrings, for `inspect`.

    Raises:
        LookupError: there is no such name.
    """
    module = names().get(name)
    if module is None:
        raise LookupError(f"{PACKAGE} has no {name!r}")
    for node in _tree(module).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return _made(node, module)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and ast.unparse(node.targets[0]) == name:
            return member(node.value.id)  # another name for it
    raise LookupError(f"{module} defines no {name!r}")


def _tree(module: str) -> ast.Module:
    folder = Path(__file__).parents[1]
    return ast.parse(folder.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text(encoding="utf-8"))


def _made(node: ast.FunctionDef | ast.ClassDef, module: str) -> Any:
    """What `inspect` sees as the definition. Nothing of the text is evaluated but literals."""
    documentation = ast.get_docstring(node) or ""
    if isinstance(node, ast.FunctionDef):
        return _function(node, module, documentation)
    methods = {each.name: _made(each, module) for each in node.body if isinstance(each, ast.FunctionDef)}
    made: Any = type(node.name, (), {**methods, "__doc__": documentation, "__module__": module})
    if "__init__" in methods:
        signature = inspect.signature(methods["__init__"])
        made.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # without self
    return made


def _function(node: ast.FunctionDef, module: str, documentation: str) -> Any:
    def made() -> None: ...

    shown: Any = made
    shown.__name__, shown.__qualname__, shown.__module__ = node.name, node.name, module
    shown.__doc__ = documentation
    shown.__signature__ = inspect.Signature(
        list(_parameters(node.args)), return_annotation=_annotation(node.returns, inspect.Signature.empty)
    )
    return shown


def _parameters(arguments: ast.arguments) -> Iterator[inspect.Parameter]:
    empty, kinds = inspect.Parameter.empty, inspect.Parameter
    placed = [(each, kinds.POSITIONAL_ONLY) for each in arguments.posonlyargs]
    placed += [(each, kinds.POSITIONAL_OR_KEYWORD) for each in arguments.args]
    defaults: list[ast.expr | None] = [*[None] * (len(placed) - len(arguments.defaults)), *arguments.defaults]
    listed = [(each, kind, default) for (each, kind), default in zip(placed, defaults, strict=True)]
    if arguments.vararg is not None:
        listed.append((arguments.vararg, kinds.VAR_POSITIONAL, None))
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    listed += [(each, kinds.KEYWORD_ONLY, default) for each, default in named]
    if arguments.kwarg is not None:
        listed.append((arguments.kwarg, kinds.VAR_KEYWORD, None))
    for each, kind, default in listed:
        value = empty if default is None else ast.literal_eval(default)
        yield inspect.Parameter(each.arg, kind, default=value, annotation=_annotation(each.annotation, empty))


def _annotation(node: ast.expr | None, absent: Any) -> Any:
    """The text of an annotation, as `from __future__ import annotations` leaves it."""
    return absent if node is None else ast.unparse(node)
