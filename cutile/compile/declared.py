"""The keywords of `@entry(...)`, checked: options, hints, dumps, access rules."""

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
    """How the accesses of a kernel are checked.

    Attributes:
        checks: "place" proves index checks, moves them to the launch, or leaves them in the kernel. "deny" does so too,
            and a check that would stay in the kernel is an error. "keep", the debug mode, leaves all checks in the
            kernel, and adds checks of each `assume_...`. "none" checks nothing.
        preconditions: Python comparisons over extents, integer scalars and generics, which the launch verifies.
    """

    checks: str = "place"
    preconditions: tuple[str, ...] = ()

    @staticmethod
    def of(preconditions: Sequence[str], unchecked: bool, deny: bool, check: bool) -> AccessRules:
        """The rules that the arguments of `@entry` state.

        Raises:
            ArgumentError: more than one of `unchecked`, `deny` and `check` is true.
        """
        names = [name for name, is_set in (("none", unchecked), ("deny", deny), ("keep", check)) if is_set]
        if len(names) > 1:
            raise ArgumentError(
                "entry: unchecked_accesses, deny_in_kernel_checks and check_accesses exclude one another; give one"
            )
        # A lone text is a sequence too, of its characters.
        texts = (preconditions,) if isinstance(preconditions, str) else tuple(preconditions)
        return AccessRules(names[0] if names else "place", texts)

    def write_facts(self, function: Function, generics: Mapping[str, Any], *, force: bool) -> None:
        """Write the rules into a function's facts, for the passes.

        Args:
            function: the kernel's IR.
            generics: the values of the kernel's generics, by name.
            force: whether every check stays, whatever `@entry` says (`CUTILE_FORCE_CHECKS`).
        """
        mode = "keep" if force else self.checks
        if mode != "place":  # the default, which passes assume without a fact
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
            return ast.Constant(int(value)) if isinstance(value, int) else node  # `unparse` writes a bare int: no enum

    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError:
        return text  # the pass that reads preconditions reports the error
    return ast.unparse(Constants().visit(tree))


@dataclass(frozen=True)
class Declared:
    """The keywords of `@entry`, checked.

    Attributes:
        unsafe: whether the kernel may use raw pointers and unchecked views.
        rules: how its accesses are checked.
        default: the options of launches that give none.
        hints: options by architecture, which come before `default`.
        print_ir: print the IR as written when the kernel is compiled; without effect beside `dump_dir`.
        dump_dir: write every stage, that IR among them, into files in this folder when the kernel is compiled.
    """

    unsafe: bool = False
    rules: AccessRules = DEFAULT_RULES
    default: CompileOptions = DEFAULT_OPTIONS
    hints: tuple[tuple[str, CompileOptions], ...] = ()
    print_ir: bool = False
    dump_dir: Path | None = None

    def dump_settings(self, settings: Config) -> Config:
        """The settings with the stages that `print_ir` and `dump_dir` add.

        Stages are printed, or written into a folder if one is named: never both.
        """
        if self.dump_dir is not None:
            return replace(settings, dump=STAGES, dump_directory=self.dump_dir)
        if self.print_ir and "ir" not in settings.dump:
            return replace(settings, dump=(*settings.dump, "ir"))
        return settings

    def options(self, requested: CompileOptions, target: Target) -> CompileOptions:
        """The options of a launch for a target.

        Args:
            requested: the launch's options; the object `self.default` if it gives none.
            target: the target, whose hints replace `self.default`.
        """
        # Not `!=`: options that a launch gives come before hints, even if they are equal to the default.
        if requested is not self.default:
            return requested
        hints = dict(self.hints)
        # The target of an sm_90 GPU is sm_90a, with the features that only this architecture has. Users write either.
        return hints.get(target.arch) or hints.get(target.arch.removesuffix("a")) or requested


DEFAULT_DECLARED = Declared()
"""The keywords of an `@entry` without arguments."""


def checked_options(options: object, where: str) -> CompileOptions:
    """Check that a user's argument is a `CompileOptions`, and return it.

    Args:
        options: the argument.
        where: its name, for the error.

    Raises:
        ArgumentTypeError: it is no `CompileOptions`.
    """
    if not isinstance(options, CompileOptions):
        raise ArgumentTypeError(f"{where}: expected CompileOptions(...), such as occupancy=2; got {options!r}")
    return options


def checked_hints(hints: Mapping[str, CompileOptions] | None) -> tuple[tuple[str, CompileOptions], ...]:
    """The argument `optimization_hints` as pairs, sorted by architecture.

    Raises:
        ArgumentError: a key is no architecture.
        ArgumentTypeError: it is no mapping, or a value is no `CompileOptions`.
    """
    if hints is None:
        return ()
    if not isinstance(hints, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentTypeError(
            "entry: optimization_hints: expected options by architecture, such as {'sm_90': "
            f"CompileOptions(occupancy=2)}}; got {hints!r}"
        )
    for arch, options in hints.items():
        if not isinstance(arch, str) or backend_of(arch) is None:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(
                f"entry: optimization_hints: {arch!r} is no architecture; write one such as 'sm_90', with its options: "
                "{'sm_90': CompileOptions(occupancy=2)}"
            )
        checked_options(options, f"entry: optimization_hints: {arch!r}")
    return tuple(sorted(hints.items()))


def cap_alignment(specialization: Specialization, options: CompileOptions) -> Specialization:
    """The specialization, with alignments of at most `options.max_divisibility`."""

    def cap(type: Type) -> Type:
        tensor = type.tensor if isinstance(type, MutType) else type
        if not isinstance(tensor, TensorType):
            return type
        # Elements are aligned to their own size, at least. No dtype has less than 8 bits, so that `//` is exact.
        alignment = max(tensor.dtype.bits // 8, min(tensor.alignment, options.max_divisibility))
        tensor = replace(tensor, alignment=alignment)
        return replace(type, tensor=tensor) if isinstance(type, MutType) else tensor

    return replace(specialization, parameters={name: cap(type) for name, type in specialization.parameters.items()})
