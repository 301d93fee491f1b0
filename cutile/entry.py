"""`@entry`: a Python function as a kernel.

Calling the kernel makes a `KernelOp`, and runs nothing.
"""

from __future__ import annotations

import ast
import collections
import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, Self, TypedDict, Unpack, overload

from cutile.backend.interface import DEFAULT_OPTIONS, OPTIONS_ELSEWHERE, CompileOptions
from cutile.compile.declared import AccessRules, Declared, checked_hints, checked_options
from cutile.compile.kernels import KernelCache, plan_key
from cutile.errors import ArgumentError, ArgumentTypeError, GenericsError, KernelTypeError, own_keywords
from cutile.launch.arguments import check_argument, give_back
from cutile.launch.kernel_op import KernelOp
from cutile.launch.launchable import Launchable, leaves_of
from cutile.launch.notebook import Listing, kernel_html, kernel_text, result_html, result_text
from cutile.launch.searching import Space

if TYPE_CHECKING:
    from cutile.entry_types import (
        B1,
        B2,
        B3,
        B4,
        B5,
        B6,
        B7,
        B8,
        EntryDecorator,
        Kernel1,
        Kernel2,
        Kernel3,
        Kernel4,
        Kernel5,
        Kernel6,
        Kernel7,
        Kernel8,
    )  # fmt: skip

_NO_GENERICS: Mapping[str, Any] = {}


class Kernel:
    """A tile kernel. Made by `@entry`.

    A call lends the arguments to the kernel, and returns an op that yields a named tuple of them:

        out = saxpy(y.partition((256,)), 2.0, x).sync()      # out.y, out.a, out.x

    Generics may be given by name: `gemm(z, x, y, BK=128)`. So may the grid, where no partition gives it:
    `histogram(counts, x, grid=1000)`, which is `histogram(counts, x).grid(1000)`.
    """

    # The front end, which does not import this module, knows kernels by it: it refuses to decorate or call one.
    __wrapped_kernel__ = True
    __qualname__: str

    def __init__(self, function: Callable[..., None], declared: Declared) -> None:
        self._function: Any = function
        self._declared = declared
        self._options = declared.default
        self._default_key = plan_key(_NO_GENERICS, declared.default)  # computed once, for launches without generics
        self._space: Space | None = None
        self._launchable = self._renew()  # ahead of `update_wrapper`: it refuses kernels, whose attributes that copies
        doc = self.__doc__
        functools.update_wrapper(self, function)
        self.__doc__ = doc
        _join_autoreload()

    def _doc(self) -> str:
        return inspect.cleandoc(self._function.__doc__ or "")

    def _renew(self) -> Launchable:
        """Read the function as it is now."""
        cache = KernelCache(self._function, self._declared)
        defaults = _positional_defaults(tuple(cache.signature.declared), self._function.__defaults__)
        _check_declaration(cache, defaults, self._declared.rules.preconditions)
        launchable = self._launchable = Launchable(cache, _result(cache.source.name, tuple(cache.signature.declared)))
        # help() shows no signature of an object that is no function: the docstring has it.
        self.__doc__ = "\n\n".join(each for each in (cache.source.signature_text, self._doc()) if each)
        return launchable

    @property
    def launchable(self) -> Launchable:
        """The data that all launches share.

        They are read again if the function's code or keyword defaults were replaced. Positional defaults are read by
        each launch that needs some.
        """
        launchable, function = self._launchable, self._function
        if function.__code__ is not launchable.code or function.__kwdefaults__ != launchable.keyword_defaults:
            return self._renew()
        return launchable

    def __call__(self, /, *arguments: Any, **named: Any) -> KernelOp:
        """Make a launch.

        Raises ArgumentError, ArgumentTypeError, GenericsError, LaunchError, OwnershipError.
        """
        launchable, function = self._launchable, self._function
        # The property `launchable`, inlined: each launch would pay for its call.
        if function.__code__ is not launchable.code or function.__kwdefaults__ != launchable.keyword_defaults:
            launchable = self._renew()
        if len(arguments) == launchable.arity and not named:
            op = KernelOp(launchable, arguments, _NO_GENERICS, self._options, self._default_key)
            return op if self._space is None else op.search(self._space)
        if len(arguments) == launchable.arity:  # generics by name, which an equal call before has checked
            known = launchable.known_generics(named)
            if known is not None:
                return KernelOp(launchable, arguments, known[0], self._options, known[1])
        all_named = dict(named)
        grid = named.pop("grid", None) if "grid" in named and not _has(launchable, "grid") else None
        launchable, parts, generics = self._bound_arguments(launchable, arguments, named)
        launchable.learn_generics(all_named, generics, self._options)
        op = KernelOp(launchable, parts, generics, self._options)
        if grid is not None:
            op.grid(grid)
        return op if self._space is None or generics else op.search(self._space)

    def searched(self, space: Space) -> Self:
        """Have launches without generics search this space, and return the kernel.

        `@ct.autotune` calls it.
        """
        self._space = space
        return self

    @property
    def choices(self) -> tuple[Any, ...]:
        """The results of searches of its launches, in this process.

        Each is a `cutile.tune.Choice`.

        A choice has the configuration, its key, its time and, if this process has searched, the table of all trials
        (`tuned`).
        """
        family = self.launchable.family()
        return tuple(choice for launchable in family for choice in launchable.memo.get("choices", {}).values())

    def _bound_arguments(
        self, launchable: Launchable, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Launchable, tuple[Any, ...], Mapping[str, Any]]:
        """The launchable for the arguments, these in order, and the generics by name.

        Arguments that do not fit are given back.
        """
        every = (*arguments, *named.values())
        try:
            return self._fitted_arguments(launchable, arguments, named)
        except (ArgumentError, GenericsError):
            give_back(leaves_of(every))
            raise

    def _fitted_arguments(
        self, launchable: Launchable, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Launchable, tuple[Any, ...], Mapping[str, Any]]:
        """`_bound_arguments`, which gives the arguments back if this raises.

        Arguments are removed from `named`, which then has the generics.
        """
        signature = launchable.kernel.signature
        names = tuple(signature.declared)
        if len(arguments) > len(names):
            generics = ", ".join(f"{each.name}=..." for each in signature.generics)
            raise ArgumentError(
                f"{signature.name} takes {len(names)} arguments ({', '.join(names)}), got {len(arguments)}"
                + (f"; generics are given by name: {generics}" if generics else "")
            )
        values = dict(zip(names, arguments, strict=False))
        for name in names:
            if name in named:
                if name in values:
                    raise ArgumentError(f"{signature.name}: argument {name!r} was given twice")
                values[name] = named.pop(name)
        values = {**_positional_defaults(names, self._function.__defaults__), **values}
        missing = [name for name in names if name not in values]
        if missing:
            unknown = ", ".join(name for name in named if name not in signature.generic_names)
            raise ArgumentError(
                f"{signature.name} takes {len(names)} arguments ({', '.join(names)}); missing: {', '.join(missing)}"
                + (f"; it has none called {unknown}" if unknown else "")
            )
        try:
            generics = launchable.kernel.generics(None, named)
        except GenericsError as error:
            if not error.extent:
                raise
            raise GenericsError(
                f"{error}; if the partition names the extent, as in .partition(({error.extent!r},)), give it by "
                f"{signature.name}(...).generics({error.extent}=...)"
            ) from None
        return *launchable.arranged(tuple(values[name] for name in names)), generics

    def __setattr__(self, name: str, value: object) -> None:
        if name != "__dict__":  # IPython's autoreload sets all attributes of the old function, its dictionary too
            object.__setattr__(self, name, value)

    @property
    def __code__(self) -> types.CodeType:
        """The function's code. Reloading sets it; the next launch compiles the new code."""
        return self._function.__code__

    @__code__.setter
    def __code__(self, code: types.CodeType) -> None:
        self._function.__code__ = code

    @property
    def __defaults__(self) -> tuple[Any, ...] | None:
        """The function's defaults."""
        return self._function.__defaults__

    @__defaults__.setter
    def __defaults__(self, defaults: tuple[Any, ...] | None) -> None:
        self._function.__defaults__ = defaults

    @property
    def __kwdefaults__(self) -> dict[str, Any] | None:
        """The function's keyword defaults: the default values of generics."""
        return self._function.__kwdefaults__

    @__kwdefaults__.setter
    def __kwdefaults__(self, defaults: dict[str, Any] | None) -> None:
        self._function.__kwdefaults__ = defaults

    @property
    def __closure__(self) -> tuple[types.CellType, ...] | None:
        """The function's closure."""
        return self._function.__closure__

    def become(self, other: Kernel) -> None:
        """Become `other` from the next launch on.

        IPython's autoreload calls it: a reloaded module defines its kernels anew.
        """
        self._function, self._declared, self._options = other._function, other._declared, other._options
        self._default_key = other._default_key
        self._space = other._space
        functools.update_wrapper(self, other._function)
        self._renew()

    def __getitem__(self, grid: object) -> NoReturn:
        name = self._launchable.name
        raise ArgumentTypeError(
            f"{name}[...]: a launch gets its grid from the partitions that it writes, as in "
            f"{name}(y.partition((64, 64)), ...), or from .grid(...), as in {name}(...).grid({grid!r})"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            kernel = self.__dict__.get("__name__", "kernel")
            words = f"kernel {kernel!r} has no attribute {name!r}"
            if not name.startswith("_") and hasattr(KernelOp, name):
                words += f": a launch has it, which a call makes: {kernel}(...).{name}"
            elif name in _ATTRIBUTES:
                words += f": write {_ATTRIBUTES[name].format(kernel)}"
            raise AttributeError(words, name=name, obj=self)

    def inspect(self, /, *arguments: Any, stage: str = "source", arch: str | None = None, **named: Any) -> str:
        """The text of one stage of the compilation for these arguments.

        Args:
            arguments: as for a launch; nothing is lent.
            stage: "ir" (as written), "passes" (after the neutral passes), "lowered" (after the target's),
                "source" (the generated Python file), "plan" (see `explain`), "log" (what the toolchain said).
            arch: compile for this architecture, such as "sm_90a", in place of the arguments' device.
            named: arguments and generics by name, and the grid, as for a launch. The grid does not change the code.

        Raises:
            ArgumentError, ArgumentTypeError, GenericsError, LaunchError: they do not fit the kernel.

        Example:
            >>> import cutile as ct
            >>> @ct.entry
            ... def double(y: ct.Mut):
            ...     y.store(2 * y.load())
            >>> y = ct.api.ones((256,), ct.i32).sync()
            >>> "mul(" in double.inspect(y.partition((64,)), stage="ir")
            True
        """
        launchable = self.launchable
        grid = named.pop("grid", None) if not _has(launchable, "grid") else None
        launchable, parts, generics = self._bound_arguments(launchable, arguments, named)
        return Listing(launchable.render(parts, generics, self._options, stage, arch, grid))

    def explain(self, /, *arguments: Any, arch: str | None = None, **named: Any) -> str:
        """The plan for these arguments in some ten lines, and why it is not faster.

        Compiles, runs nothing.

        Of a GPU: the instruction of each product, the stages and bytes of each pipeline, what which warps do, which
        thread block does which tiles, how results are written, registers, spills, shared memory, thread blocks that fit
        on a multiprocessor, and what keeps the kernel from a better plan. Of a CPU: threads, vectors, what is fused.

        Args:
            arguments: as for a launch; nothing is lent. `api.meta` makes tensors without elements.
            arch: explain it for this architecture, such as "sm_90a", in place of the arguments' device; no GPU is
                needed.
            named: arguments and generics by name, and the grid, as for a launch.

        Raises:
            ArgumentError, ArgumentTypeError, GenericsError, LaunchError: the arguments do not fit the kernel.
            KernelError: the kernel does not compile; shows the place.
            UnsupportedTargetError: nothing compiles for `arch`.

        Example:
            >>> import cutile as ct
            >>> @ct.entry
            ... def double(y: ct.Mut):
            ...     y.store(2 * y.load())
            >>> y = ct.api.meta((4096,), ct.f32)
            >>> print(double.explain(y.partition((1024,)), arch="sm_90a").splitlines()[2])
              warps           4 warps, all alike: 128 threads
        """
        return self.inspect(*arguments, stage="plan", arch=arch, **named)

    @property
    def cache(self) -> KernelCache:
        """The kernel's source, signature and compilations."""
        return self.launchable.kernel

    @property
    def specializations(self) -> int:
        """The number of specializations in memory."""
        return len(self._launchable.kernel)

    def __reduce__(self) -> str:
        return self.__qualname__  # a kernel is pickled by its name, as a function is

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(kernel_text(self.cache, self._doc()))

    def _repr_html_(self) -> str:
        return kernel_html(self.cache, self._doc())

    def __repr__(self) -> str:
        signature = self.cache.signature
        generics = ", ".join(generic.name for generic in signature.generics)
        return f"<kernel {signature.name}({', '.join(signature.declared)}{'; ' + generics if generics else ''})>"


def _positional_defaults(names: Sequence[str], defaults: Sequence[Any] | None) -> dict[str, Any]:
    """The defaults of positional parameters, by name.

    As in Python, the last parameters have them.
    """
    return dict(zip(reversed(names), reversed(defaults or ()), strict=False))


def _check_declaration(cache: KernelCache, defaults: Mapping[str, Any], preconditions: Sequence[str]) -> None:
    """Refuse defaults that do not fit, and preconditions over unknown names.

    Raises:
        KernelTypeError: shows the line of `def`.
    """
    signature, place = cache.signature, cache.source.locate(cache.source.tree)
    scalars = {each.name: each for each in signature.parameters if each.kind == "scalar"}
    for name, default in defaults.items():
        parameter = scalars.get(name)
        if parameter is not None and isinstance(default, bool | int | float):
            try:
                check_argument(signature.name, parameter, default)
            except ArgumentError as error:
                raise KernelTypeError(f"{error}, its default", place) from None
    vocabulary = {*signature.names, *signature.declared, *signature.generic_names, "grid", "min", "max"}
    for text in preconditions:
        try:
            names = [each.id for each in ast.walk(ast.parse(text, mode="eval")) if isinstance(each, ast.Name)]
        except SyntaxError:
            continue  # reported with its form, when the kernel is compiled
        for name in names:
            if name not in vocabulary:
                raise KernelTypeError(
                    f"{signature.name}: the precondition {text!r} has {name!r}, which is no parameter",
                    place,
                    f"Preconditions are about extents (x.shape[0]), integer scalars and generics; the parameters are "
                    f"{', '.join(signature.names)}.",
                )


def _has(launchable: Launchable, name: str) -> bool:
    """Whether a kernel has a parameter or a generic of a name."""
    signature = launchable.kernel.signature
    return name in signature.declared or any(each.name == name for each in signature.generics)


def _are_kernels(old: object, new: object) -> bool:
    return isinstance(old, Kernel) and isinstance(new, Kernel)


_RULE = _are_kernels, Kernel.become


def _join_autoreload() -> None:
    """Let IPython's autoreload replace kernels imported by name, as it does functions."""
    rules: list[object] | None = getattr(sys.modules.get("IPython.extensions.autoreload"), "UPDATE_RULES", None)
    if rules is not None and _RULE not in rules:
        rules.append(_RULE)


def _result(kernel: str, names: Sequence[str]) -> type[tuple[Any, ...]]:
    """The class of a launch's result, a named tuple of all arguments.

    Its error for a missing attribute helps a caller who takes the tuple for one argument.
    """
    # `rename`: no field may begin with an underscore. The field of a parameter `_x` is `_0`, by its position.
    fields: Any = collections.namedtuple(kernel, names, rename=True)  # pyright: ignore[reportUntypedNamedTuple]

    def missing(self: tuple[Any, ...], name: str) -> NoReturn:
        first = fields._fields[0] if fields._fields else "..."
        raise AttributeError(
            f"what {kernel} yields has no attribute {name!r}: it is a tuple of all arguments "
            f"({', '.join(fields._fields)}). Take one, such as out.{first}; out.{first}.unpartition() is the tensor "
            "of a partition",
            name=name,
            obj=self,
        )

    def pretty(self: tuple[Any, ...], printer: Any, cycle: bool) -> None:
        printer.text(result_text(self))

    def html(self: tuple[Any, ...]) -> str:
        return result_html(self)

    display = {"_repr_pretty_": pretty, "_repr_html_": html}
    return type(kernel, (fields,), {"__slots__": (), "__getattr__": missing, "__module__": __name__, **display})


class _Declaration(TypedDict, total=False):
    """The keywords of `@entry(...)`; `entry` describes them."""

    options: CompileOptions | None
    unsafe: bool
    preconditions: Sequence[str]
    unchecked_accesses: bool
    deny_in_kernel_checks: bool
    check_accesses: bool
    optimization_hints: Mapping[str, CompileOptions] | None
    print_ir: bool
    dump_dir: str | Path | None


_AHEAD, _TEXT = "ct.compile_ahead({}, *arguments)", "{}.inspect(*arguments, stage='source', arch='sm_90a')"
_ATTRIBUTES: dict[str, str] = {
    **dict.fromkeys(("compile", "precompile", "warmup"), _AHEAD),
    **dict.fromkeys(("asm", "code", "inspect_asm", "inspect_llvm", "inspect_ptx", "ptx"), _TEXT),
    "autotune": "@ct.autotune(configurations) above @ct.entry, or {}(...).generics([{{...}}, {{...}}])",
    "fn": "the function under another name, before ct.entry(function) makes a kernel of it",
    "launch": "{0}(*arguments).sync(), or await {0}(*arguments)",
    "run": "{0}(*arguments).sync(), or await {0}(*arguments)",
}
"""What to write for an attribute that other libraries' kernels have, by its name; `{}` is the kernel's name."""

_OPTIONS = "write options=ct.CompileOptions({})"
_KEYWORDS: dict[str, str] = {
    **{name: remedy for name, remedy in OPTIONS_ELSEWHERE.items() if not remedy.startswith("write ")},
    **{name: _OPTIONS.format(remedy[6:]) for name, remedy in OPTIONS_ELSEWHERE.items() if remedy.startswith("write ")},
    **{name: _OPTIONS.format(f"{name}=...") for name in CompileOptions.__dataclass_fields__},
    "grid": "a launch has it, from the partitions that it writes, or by k(...).grid((x, y, z))",
    "num_warps": _OPTIONS.format("num_worker_warps=4"),
    "num_ctas": _OPTIONS.format("num_cta_in_cga=2"),
}
"""What to write in place of another library's keyword of a decorator, by that keyword."""


@overload
def entry(
    function: Callable[Concatenate[B1, B2, B3, B4, B5, B6, B7, B8, ...], None], **named: Unpack[_Declaration]
) -> Kernel8[B1, B2, B3, B4, B5, B6, B7, B8]: ...
@overload
def entry(
    function: Callable[Concatenate[B1, B2, B3, B4, B5, B6, B7, ...], None], **named: Unpack[_Declaration]
) -> Kernel7[B1, B2, B3, B4, B5, B6, B7]: ...
@overload
def entry(
    function: Callable[Concatenate[B1, B2, B3, B4, B5, B6, ...], None], **named: Unpack[_Declaration]
) -> Kernel6[B1, B2, B3, B4, B5, B6]: ...
@overload
def entry(
    function: Callable[Concatenate[B1, B2, B3, B4, B5, ...], None], **named: Unpack[_Declaration]
) -> Kernel5[B1, B2, B3, B4, B5]: ...
@overload
def entry(
    function: Callable[Concatenate[B1, B2, B3, B4, ...], None], **named: Unpack[_Declaration]
) -> Kernel4[B1, B2, B3, B4]: ...
@overload
def entry(
    function: Callable[Concatenate[B1, B2, B3, ...], None], **named: Unpack[_Declaration]
) -> Kernel3[B1, B2, B3]: ...
@overload
def entry(function: Callable[Concatenate[B1, B2, ...], None], **named: Unpack[_Declaration]) -> Kernel2[B1, B2]: ...
@overload
def entry(function: Callable[Concatenate[B1, ...], None], **named: Unpack[_Declaration]) -> Kernel1[B1]: ...
@overload
def entry(  # pyright: ignore[reportOverlappingOverload]  # for parameters that are groups, or may be None
    function: Callable[..., None], **named: Unpack[_Declaration]
) -> Kernel: ...
@overload
def entry(**named: Unpack[_Declaration]) -> EntryDecorator: ...
@own_keywords(_KEYWORDS)
def entry(
    function: Callable[..., None] | None = None,
    *,
    options: CompileOptions | None = None,
    unsafe: bool = False,
    preconditions: Sequence[str] = (),
    unchecked_accesses: bool = False,
    deny_in_kernel_checks: bool = False,
    check_accesses: bool = False,
    optimization_hints: Mapping[str, CompileOptions] | None = None,
    print_ir: bool = False,
    dump_dir: str | Path | None = None,
) -> Any:
    """Make a kernel of a Python function.

    Its source text is read now: later edits of the file change nothing.

    Args:
        function: the function; annotations say what each parameter is (see `cutile.Tensor`, `cutile.Mut`).
        options: hints for the compiler, for every launch that gives none.
        unsafe: whether the kernel may use raw pointers and unchecked views. Nothing then checks which memory it
            reaches; the caller must hold and order the memory that its pointers lead to.
        preconditions: comparisons of extents, integer scalars and generics, such as `"x.shape[0] % 64 == 0"`. Each
            launch verifies them, and index checks are proved with them.
        unchecked_accesses: check no index. A tile outside of its tensor is padding when loaded, dropped when stored.
        deny_in_kernel_checks: an index check that would stay in the kernel is an error when the kernel is compiled.
        check_accesses: the debug mode: every index check and every `assume_...` is checked in the kernel itself, as
            with `CUTILE_FORCE_CHECKS=1`.
        optimization_hints: options by architecture, such as `{"sm_90": CompileOptions(occupancy=2)}`. On such a GPU
            they replace `options` as a whole, unless the launch gives options.
        print_ir: print the IR, as written, whenever the kernel is compiled (`CUTILE_DUMP` does it for every kernel).
        dump_dir: write every stage of each compilation into files in this folder.

    Raises:
        KernelError: the source or the signature cannot be understood; shows the place.
        ArgumentTypeError: `options` are no `CompileOptions`.
        ValueError: two of `unchecked_accesses`, `deny_in_kernel_checks` and `check_accesses` are given, or hints for an
            unknown architecture.

    Example:
        >>> import cutile as ct
        >>> @ct.entry
        ... def increment(y: ct.Mut):
        ...     y.store(y.load() + 1)
    """
    declared = Declared(
        unsafe=unsafe,
        rules=AccessRules.of(preconditions, unchecked_accesses, deny_in_kernel_checks, check_accesses),
        default=DEFAULT_OPTIONS if options is None else checked_options(options, "entry: options"),
        hints=checked_hints(optimization_hints),
        print_ir=print_ir,
        dump_dir=Path(dump_dir) if dump_dir is not None else None,
    )
    return functools.partial(Kernel, declared=declared) if function is None else Kernel(function, declared)
