"""How a kernel's accesses are checked, as its `@entry` says."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cutile.errors import ArgumentError
from cutile.ir.core import Function


@dataclass(frozen=True)
class AccessRules:
    """What `@entry` says of accesses.

    Attributes:
        checks: "place" proves index checks, moves them to the launch, or leaves them in the kernel; "deny" is the same,
            and what would stay in the kernel is an error; "keep" leaves all of them in the kernel, and checks what the
            author assumes (the debug mode); "none" checks nothing.
        preconditions: Python comparisons over extents, integer scalars and generics, which the launch verifies.
    """

    checks: str = "place"
    preconditions: tuple[str, ...] = ()

    @staticmethod
    def of(preconditions: Sequence[str], unchecked: bool, deny: bool, check: bool) -> AccessRules:
        """The rules that the arguments of `@entry` give.

        Raises:
            ArgumentError: they contradict one another.
        """
        names = [name for name, given in (("none", unchecked), ("deny", deny), ("keep", check)) if given]
        if len(names) > 1:
            raise ArgumentError(
                "entry: unchecked_accesses, deny_in_kernel_checks and check_accesses exclude one another; give one"
            )
        texts = (preconditions,) if isinstance(preconditions, str) else tuple(preconditions)
        return AccessRules(names[0] if names else "place", texts)

    def note(self, function: Function, generics: Mapping[str, Any], *, force: bool) -> None:
        """Write the rules into a function's facts, for the passes.

        `force`: every check stays, whatever `@entry` says (`CUTILE_FORCE_CHECKS`).
        """
        mode = "keep" if force else self.checks
        if mode != "place":
            function.facts["checks"] = mode
        if self.preconditions:
            function.facts["preconditions"] = tuple(_with_constants(text, generics) for text in self.preconditions)


DEFAULT_RULES = AccessRules()
"""Rules of an `@entry` without arguments."""


def _with_constants(text: str, generics: Mapping[str, Any]) -> str:
    """A precondition with the values of constant generics in place of their names."""

    class Constants(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            value = generics.get(node.id)
            return ast.Constant(int(value)) if isinstance(value, int) else node  # an enum's repr is no text of a number

    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return text  # the pass that reads it says what is wrong
    return ast.unparse(Constants().visit(tree))
