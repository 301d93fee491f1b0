"""What `@entry(...)` says of a kernel, beside its parameters.

How its accesses are checked is part of it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cutile.backend.interface import DEFAULT_OPTIONS, CompileOptions, Target
from cutile.backend.registry import backend_of
from cutile.compile.specialize import Specialization
from cutile.config import STAGES, Config
from cutile.errors import ArgumentError, ArgumentTypeError
from cutile.ir import Function, MutType, TensorType, Type


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


@dataclass(frozen=True)
class Declared:
    """The keywords of `@entry`, checked.

    Attributes:
        unsafe: whether the kernel may use raw pointers and unchecked views.
        rules: how its accesses are checked.
        default: the options of launches that give none.
        hints: the same by architecture, which come first.
        print_ir: print the IR as written when the kernel is compiled.
        dump_dir: write every stage into files in this folder when the kernel is compiled.
    """

    unsafe: bool = False
    rules: AccessRules = DEFAULT_RULES
    default: CompileOptions = DEFAULT_OPTIONS
    hints: tuple[tuple[str, CompileOptions], ...] = ()
    print_ir: bool = False
    dump_dir: Path | None = None

    def shown(self, settings: Config) -> Config:
        """The settings, with the stages that the kernel itself asks to see."""
        if self.dump_dir is not None:
            return replace(settings, dump=STAGES, dump_directory=self.dump_dir)
        if self.print_ir and "ir" not in settings.dump:
            return replace(settings, dump=(*settings.dump, "ir"))
        return settings

    def options(self, requested: CompileOptions, target: Target) -> CompileOptions:
        """The options of a launch.

        Its own where it gives some, else the hints for the target's architecture.
        """
        if requested is not self.default:
            return requested
        found = dict(self.hints)
        return found.get(target.arch) or found.get(target.arch.removesuffix("a")) or requested


DEFAULT_DECLARED = Declared()
"""What a kernel has that says nothing."""


def checked_options(options: object, where: str) -> CompileOptions:
    """What a caller gave as options.

    Raises:
        ArgumentTypeError: it is no `CompileOptions`.
    """
    if not isinstance(options, CompileOptions):
        raise ArgumentTypeError(f"{where}: expected CompileOptions(...), such as occupancy=2; got {options!r}")
    return options


def checked_hints(hints: Mapping[str, CompileOptions] | None) -> tuple[tuple[str, CompileOptions], ...]:
    """The argument `optimization_hints`, in an order of its own.

    Raises:
        ValueError: a key is no architecture.
        TypeError: a value is no `CompileOptions`.
    """
    for arch, options in (hints or {}).items():
        if backend_of(arch) is None:
            raise ArgumentError(
                f"entry: optimization_hints: {arch!r} is no architecture; write one such as 'sm_90', with its options: "
                "{'sm_90': CompileOptions(occupancy=2)}"
            )
        if not isinstance(options, CompileOptions):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentTypeError(
                f"entry: optimization_hints: {arch!r}: expected CompileOptions(...), got {options!r}"
            )
    return tuple(sorted((hints or {}).items()))


def capped(specialization: Specialization, options: CompileOptions) -> Specialization:
    """The specialization, with no more alignment assumed than the options allow."""

    def cap(type: Type) -> Type:
        tensor = type.tensor if isinstance(type, MutType) else type
        if not isinstance(tensor, TensorType):
            return type
        alignment = max(tensor.dtype.bits // 8, min(tensor.alignment, options.max_divisibility))
        tensor = replace(tensor, alignment=alignment)
        return replace(type, tensor=tensor) if isinstance(type, MutType) else tensor

    return replace(specialization, parameters={name: cap(type) for name, type in specialization.parameters.items()})
