"""`Launchable`: the data that all launches of one kernel share, computed once.

Arguments that are groups (tuples, lists, named tuples and dataclasses of tensors and scalars) are taken apart. The
launch then runs a kernel with a parameter for each part. Each structure of groups has a launchable of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from cuda_async import Device, DeviceOp, default_device
from cuda_async.site import Site, format_site
from cutile.backend.interface import CompileOptions, Target
from cutile.compile.driver import Request
from cutile.compile.facts import constant, constant_key
from cutile.compile.kernels import KernelCache, Plan, plan_key
from cutile.errors import ArgumentError, ArgumentTypeError, GenericsError, LaunchError
from cutile.frontend.parameters import (
    Arranged,
    Declared,
    Fixed,
    Given,
    Group,
    Maybe,
    Parameter,
    Piece,
    Whole,
    assembled,
)
from cutile.frontend.signature import Signature
from cutile.launch.arguments import (
    Checked,
    Pointer,
    check_position,
    give_back,
    is_op,
    plain_scalar,
    type_name,
    words_of_argument,
)
from cutile.launch.checks import check_grid, launch_grid, refuse_disagreement
from cutile.launch.compiled_kernel import plan_of_launch
from cutile.launch.fastpath import Recognizers, ViewUse, finder
from cutile.launch.notebook import Listing
from cutile.launch.target import INTERPRET, chosen_backend, shown_target
from cutile.launch.views import Grid, PointingView, TiledView, View, tiled

MAX_PARTS = 256
"""Tensors and scalars of a launch. Each takes several parameters of the compiled kernel; CUDA limits these to 4 KiB."""

MAX_NAMED = 256
"""Sets of generics, given by name, that are remembered for each kernel."""


class FlattenedCall:
    """The arguments of one call, taken apart.

    Attributes:
        parts: the arguments of the launch parameters.
        key: equal for calls that one kernel serves.
    """

    def __init__(self, signature: Signature, arguments: Sequence[Any]) -> None:
        self._signature = signature
        self.parts: list[Any] = []
        self._parameters: list[Parameter] = []
        self._names = {*signature.declared, *(each.name for each in signature.generics)}
        self._keys: list[Hashable] = []
        declared = signature.declared.items()
        self._arrangement = {
            name: self._take(each, argument, name) for (name, each), argument in zip(declared, arguments, strict=True)
        }
        self.key = tuple(self._keys)

    def signature(self) -> Signature:
        """The signature whose launch parameters are the parts."""
        return dataclasses.replace(
            self._signature, parameters=tuple(self._parameters), arrangement=dict(self._arrangement)
        )

    def _take(self, declared: Declared, argument: Any, path: str) -> Arranged:
        if isinstance(declared, Parameter):
            return self._part(declared, argument, path)
        if isinstance(declared, Maybe):
            self._keys.append(argument is None)
            return Given(None) if argument is None else self._take(declared.item, argument, path)
        if isinstance(declared, Fixed):
            return self._constant(declared, argument, path)
        return self._group(declared, argument, path)

    def _part(self, declared: Parameter, argument: Any, path: str) -> Piece:
        if path == declared.name and path in self._signature.declared:
            name = path
        else:
            # A part of a group is named after its path: `pair[0].x` becomes `pair_0_x`.
            name = "".join(each if each.isalnum() else "_" for each in path.replace("]", ""))
            while name in self._names:
                name += "_"
            self._names.add(name)
        if len(self.parts) == MAX_PARTS:
            raise ArgumentError(
                f"{self._signature.name}: the arguments have more than {MAX_PARTS} tensors and scalars; put them into "
                "fewer tensors, or launch several times"
            )
        self.parts.append(argument)
        self._parameters.append(dataclasses.replace(declared, name=name, path=path if name != path else ""))
        return Piece(name)

    def _constant(self, declared: Fixed, argument: Any, path: str) -> Given:
        try:
            value = constant(argument, declared.types, f"{self._signature.name}: argument {path!r}")
        except GenericsError as error:
            raise ArgumentTypeError(str(error)) from None
        self._keys.append(constant_key(value))
        return Given(value)

    def _group(self, declared: Group, argument: Any, path: str) -> Whole:
        what = f"{self._signature.name}: argument {path!r}"
        if is_op(argument):
            raise ArgumentTypeError(
                f"{what} is an op that has yet to run, and what it yields is needed to know the kernel; "
                "run it first, or make a group of ops"
            )
        if declared.kind is not tuple:
            if not isinstance(argument, declared.kind):
                raise ArgumentTypeError(f"{what} must be a {declared.kind.__name__}, got {type_name(argument)}")
            for name, item in declared.items:
                if not hasattr(argument, name):
                    raise ArgumentTypeError(
                        f"{what} is a {declared.kind.__name__} whose field {name!r} has no value, and must be "
                        f"{_words_of(item)}; a field with init=False gets a value in __post_init__, or from a default"
                    )
            parts = [(f"{path}.{name}", each, getattr(argument, name)) for name, each in declared.items]
            return Whole(declared.kind, tuple(self._take(each, item, where) for where, each, item in parts))
        if not isinstance(argument, tuple | list):
            raise ArgumentTypeError(f"{what} must be a tuple or a list, got {type_name(argument)}")
        items: list[Any] = list(argument)  # pyright: ignore[reportUnknownArgumentType]
        kinds = [each for _, each in declared.items]
        if declared.each is not None:
            kinds = [declared.each] * len(items)
            self._keys.append(len(items))
        elif len(kinds) != len(items):
            raise ArgumentError(f"{what} must have {len(kinds)} items, got {len(items)}")
        return Whole(
            tuple,
            tuple(
                self._take(each, item, f"{path}[{i}]") for i, (each, item) in enumerate(zip(kinds, items, strict=True))
            ),
        )


def _words_of(declared: Declared) -> str:
    """What a parameter takes, in words."""
    if isinstance(declared, Maybe):
        return f"{_words_of(declared.item)}, or None"
    if isinstance(declared, Fixed):
        return "a constant"
    if isinstance(declared, Group):
        return f"a {declared.kind.__name__}"
    if declared.kind == "scalar":
        return f"a scalar of {declared.dtype}"
    return "a partition" if declared.kind == "mut" else f"a {'pointer' if declared.kind == 'pointer' else 'tensor'}"


def leaves_of(arguments: Iterable[Any]) -> Iterator[Any]:
    """The parts of arguments, whatever groups they are in."""
    for item in arguments:
        if isinstance(item, tuple | list):
            yield from leaves_of(item)  # pyright: ignore[reportUnknownArgumentType]
        elif dataclasses.is_dataclass(item) and not isinstance(item, type) and not hasattr(item, "__kernel_input__"):
            yield from leaves_of(getattr(item, field.name, None) for field in dataclasses.fields(item))
        else:
            yield item


def regrouping(signature: Signature, make: Callable[[tuple[Any, ...]], Any]) -> Callable[[tuple[Any, ...]], Any]:
    """The function that makes a launch's result from its parts, in their groups."""
    arrangement = tuple(signature.arrangement.values())
    names = signature.names

    def regrouped(parts: tuple[Any, ...]) -> Any:
        values = dict(zip(names, parts, strict=True))
        return make(tuple(assembled(each, values) for each in arrangement))

    return regrouped


class _Named(NamedTuple):
    position: int
    name: str


class LaunchState:
    """Attributes of `KernelOp` that its parts in other files share."""

    __slots__ = ()

    if TYPE_CHECKING:
        _arguments: tuple[Any, ...]
        _backend: str | None
        _checked: list[Checked]
        _extents: Mapping[str, Any]
        _generics: Mapping[str, Any]
        _launchable: Launchable
        _lazy: tuple[DeviceOp[Any], ...]
        _more: tuple[Any, ...] | None
        _options: CompileOptions
        _uses: Sequence[ViewUse]


class Launchable:
    """A kernel as its launches see it.

    Attributes:
        kernel: its specializations.
        code, keyword_defaults: the function's when it was read; `Kernel` compares them with the present ones.
        name: the kernel's name.
        arity: the number of launch parameters; -1 if groups among the arguments must be taken apart first.
        kinds: of the launch parameters (see `Declared.kind`).
        grouped: whether the launch parameters are the parts of groups among a call's arguments.
        width: the number of arguments of a call. A launch yields as many.
        yields: makes the named tuple that a launch yields, of all its arguments.
        recognizers, find: the fast path of checks (see `fastpath.Recognizers`, `fastpath.finder`).
        named: the results of `known_generics`, by the names and ints that calls gave.
        memo: caches of other modules, by module.
    """

    __slots__ = (
        "_arranged", "_outputs", "_result", "_tensors", "arity", "code", "find", "grouped", "kernel",
        "keyword_defaults", "kinds", "memo", "name", "named", "recognizers", "width", "yields",
    )  # fmt: skip

    def __init__(self, kernel: KernelCache, result: type[tuple[Any, ...]]) -> None:
        signature = kernel.signature
        named = [(_Named(position, each.title), each.kind) for position, each in enumerate(signature.parameters)]
        self.kernel = kernel
        self.kinds = tuple(kind for _, kind in named)
        self.code, self.keyword_defaults = kernel.function.__code__, kernel.function.__kwdefaults__
        self.name = signature.name
        self.width = len(signature.declared)
        # -1: a call of a kernel with groups takes the general way, which takes them apart.
        self.arity = -1 if signature.grouped and not signature.arrangement else len(named)
        self.yields = _maker(result, mapped=any(each.mapped for each in signature.parameters))
        self.grouped = bool(signature.arrangement)
        if self.grouped:
            self.yields = regrouping(signature, self.yields)
        self._result = result
        self._arranged: dict[Hashable, Launchable] = {}
        self.memo: dict[str, Any] = {}
        self.recognizers, self.find = Recognizers(kernel), finder(kernel)
        self.named: dict[tuple[tuple[str, Any], ...], tuple[Mapping[str, Any], tuple[Any, ...]]] = {}
        self._tensors = tuple(each for each, kind in named if kind in ("tensor", "mut", "shared"))
        self._outputs = tuple(each for each, kind in named if kind == "mut")

    def arranged(self, arguments: tuple[Any, ...]) -> tuple[Launchable, tuple[Any, ...]]:
        """The launchable for the arguments' groups, and the arguments flattened.

        Raises:
            ArgumentError, ArgumentTypeError: an argument is not the group that the signature declares.
        """
        if self.arity >= 0:
            return self, arguments
        arrangement = FlattenedCall(self.kernel.signature, arguments)
        launchable = self._arranged.get(arrangement.key)
        if launchable is None:
            launchable = Launchable(self.kernel.arrange(arrangement.key, arrangement.signature), self._result)
            launchable = self._arranged.setdefault(arrangement.key, launchable)
        return launchable, tuple(arrangement.parts)

    def known_generics(self, named: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[Any, ...]] | None:
        """Generics that a call gives by name, and the item that they add to a plan's key.

        None where no call has given these values before, or where one is no int.
        """
        for value in named.values():
            if type(value) is not int:  # 64.0 and True are equal to ints
                return None
        return self.named.get((*named.items(),))

    def learn_generics(self, named: Mapping[str, Any], generics: Mapping[str, Any], options: CompileOptions) -> None:
        """Remember the generics of a call for `known_generics`.

        Only calls that give nothing but generics by name, all of them ints, are remembered.

        Args:
            named: everything that the call gave by name: generics, arguments, the grid.
            generics: the checked generics among them.
            options: the kernel's own options.
        """
        if named == generics and all(type(each) is int for each in named.values()) and len(self.named) < MAX_NAMED:
            self.named[(*named.items(),)] = generics, plan_key(generics, options)

    def family(self) -> tuple[Launchable, ...]:
        """This launchable, and one for each structure of groups seen so far."""
        return self, *self._arranged.values()

    def check(self, position: int, argument: Any) -> Checked:
        """Check one argument against its parameter.

        Raises as `check_position` does.
        """
        return check_position(self.kernel.signature, position, argument)

    def uses(self, checked: Sequence[Any]) -> list[ViewUse]:
        """The memory that a launch reads and writes.

        Arguments that are ops count once they have run.
        """
        uses: list[ViewUse] = []
        for position, name in self._tensors:
            view = checked[position]
            if view is None:
                continue
            uses.append((name, view.storage, view.writes, *view.byte_range))
            if isinstance(view, PointingView):
                writes = view.others_written
                pointed = enumerate(view.others)
                uses += [(f"{name}[{i}]", each.storage, writes, *each.byte_range) for i, each in pointed]
        return uses

    def plan(self, checked: list[Checked], generics: Mapping[str, Any], options: CompileOptions) -> Plan:
        """The plan of a launch: its specialization and compile options.

        Scalars whose dtype is a generic are converted in place, in `checked`: the dtype is known now.

        Raises:
            ArgumentError, GenericsError: the arguments contradict the signature or the generics.
        """
        signature = self.kernel.signature
        facts = [each.facts if isinstance(each, View | TiledView | Pointer) else None for each in checked]
        plan = self.kernel.plan(facts, generics, options)
        if signature.agreements:
            refuse_disagreement(signature, checked)
        for position in signature.generic_scalars:
            parameter = signature.parameters[position]
            dtype = plan.specialization.generics[str(parameter.dtype)]
            checked[position] = plain_scalar(checked[position], dtype, self.name, parameter.title)
        return plan

    def tells_grid(self, checked: Sequence[Any]) -> bool:
        """Whether a partition determines the grid."""
        return any(checked[each.position].exact for each in self._outputs)

    def grid(self, checked: Sequence[Any], given: Grid | None) -> Grid:
        """The grid to launch. Raises LaunchError as `launch_grid` does."""
        return launch_grid(self.name, given, [(each.name, checked[each.position]) for each in self._outputs])

    def render(
        self,
        arguments: Sequence[Any],
        generics: Mapping[str, Any],
        options: CompileOptions,
        stage: str,
        arch: str | None,
        grid: tuple[int, ...] | int | None = None,
    ) -> str:
        """The text of one stage of the compilation. Nothing is lent.

        Raises:
            ArgumentError, ArgumentTypeError, GenericsError: the arguments do not fit.
            LaunchError: an argument is an op that has not run, so its type is not known yet; or `grid` does not fit.
            ValueError: there is no such stage.
        """
        try:
            if any(map(is_op, arguments)):
                raise LaunchError(
                    f"{self.name}: to inspect it, pass tensors rather than ops that have not run: .sync() yields them"
                )
            checked = [self.check(position, argument) for position, argument in enumerate(arguments)]
            checked = tiled(self.name, self.kernel.signature.names, checked, generics)
            if grid is not None:
                self.grid(checked, check_grid(self.name, grid))
            uses = self.uses(checked)
            device = uses[0][1].device if uses else default_device()
            return self.plan(checked, generics, options).render(shown_target(device, chosen_backend(), arch), stage)
        finally:
            give_back(arguments)


def _maker(result: Any, *, mapped: bool) -> Callable[[tuple[Any, ...]], Any]:
    """The function that makes a launch's named tuple of its arguments.

    A mapped partition yields the partition that was mapped.
    """
    # As `result._make`, which would check the number of items at each launch.
    make: Callable[[Iterable[Any]], Any] = functools.partial(cast("Any", tuple).__new__, result)
    if not mapped:
        return make
    return lambda arguments: make(getattr(each, "__kernel_yields__", each) for each in arguments)


# -- launches of traced operations -------------------------------------------------------------

_PLACE = re.compile(r"  // \d[^\"\n]*$", re.MULTILINE)
"""A comment with the line of the source, at the end of a line of IR."""


def without_places(ir: str) -> str:
    """IR without the comments that name lines of the source."""
    return _PLACE.sub("", ir)


def launch_words(launchable: Launchable, checked: Sequence[Checked], grid: Grid | None, options: CompileOptions) -> str:
    """A launch as text: layouts, extents and numbers of its arguments, grid, options."""
    names = launchable.kernel.signature.names
    arguments = [f"{name} {words_of_argument(argument)}" for name, argument in zip(names, checked, strict=True)]
    return f"{launchable.name}({', '.join(arguments)}) grid {grid} {options}"


@dataclass(frozen=True, eq=False)
class TracedLaunch:
    """One launch of an operation that was traced. It lends no argument.

    Made by `launches_of`.
    """

    _launchable: Launchable
    _plan: Plan
    _checked: tuple[Checked, ...]
    _grid: Grid
    _options: CompileOptions
    _device: Device
    _backend: str | None
    _site: Site

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self._launchable.name

    @property
    def grid(self) -> Grid:
        """Tile blocks along three axes."""
        return self._grid

    @property
    def generics(self) -> Mapping[str, Any]:
        """The values of the kernel's generics, by name."""
        return self._plan.specialization.generics

    @property
    def site(self) -> Site:
        """The file and line that made the launch."""
        return self._site

    def _target(self, arch: str | None) -> Target | None:
        """The target of its compilation; None where it is interpreted."""
        if arch is None and self._backend == INTERPRET:
            return None
        return shown_target(self._device, self._backend, arch)

    def request(self, arch: str | None = None) -> Request | None:
        """The compilation that it needs, for the device or for an architecture.

        None where the launch is interpreted.

        Raises:
            UnsupportedTargetError: nothing compiles for `arch`.
        """
        target = self._target(arch)
        return None if target is None else self._plan.request(target)

    def compile(self, arch: str | None = None) -> None:
        """Compile the kernel now, and the variant that a launch over this grid takes.

        Raises:
            KernelError: the kernel does not compile; shows the place.
            UnsupportedTargetError: nothing compiles for `arch`.
        """
        target = self._target(arch)
        if target is not None:
            plan_of_launch(self._plan, target, self._checked, self._grid).compiled(target)

    def render(self, stage: str, arch: str | None = None) -> str:
        """The text of one stage of the compilation; see `Kernel.inspect`.

        Raises:
            ValueError: there is no such stage.
            UnsupportedTargetError: nothing compiles for `arch`.
        """
        return Listing(self._plan.render(shown_target(self._device, self._backend, arch), stage))

    def explain(self, arch: str | None = None) -> str:
        """The plan of the launch, and why it is not faster; see `Kernel.explain`."""
        return self.render("plan", arch)

    def code(self) -> str:
        """The kernel's IR, the same wherever it is in its file."""
        return without_places(self.render("ir"))

    def words(self) -> str:
        """Its arguments' layouts, extents and numbers, its grid and options, as text."""
        return launch_words(self._launchable, self._checked, self._grid, self._options)

    def __repr__(self) -> str:
        generics = ", ".join(f"{name}={value}" for name, value in self.generics.items())
        return f"<launch of {self.name}({generics}) grid {self._grid} made at {format_site(self._site)}>"
