"""`Launchable`: the data that all launches of one kernel share, computed once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from cuda_async import default_device
from cutile.backend.interface import CompileOptions
from cutile.compile.kernels import KernelCache, Plan
from cutile.errors import LaunchError
from cutile.launch.arguments import Checked, Pointer, check_argument, give_back, is_op, plain_scalar
from cutile.launch.fastpath import ViewUse, recognizer
from cutile.launch.grid import launch_grid
from cutile.launch.grouping import Taken, putting_together
from cutile.launch.named_extents import refuse_disagreement
from cutile.launch.open_tiles import tiled
from cutile.launch.target import chosen_backend, target_of
from cutile.launch.views import Grid, PointingView, TiledView, View


class _Named(NamedTuple):
    position: int
    name: str


class Launchable:
    """A kernel as its launches see it.

    Attributes:
        kernel: its specializations.
        code, defaults: the function's code and keyword defaults, as they were read.
        name: the kernel's.
        arity: launch parameters; -1 if groups among the arguments must be taken apart first.
        width: arguments of a call. A launch yields as many.
        yields: makes the named tuple that a launch yields, of all its arguments.
        recognize: the fast path (see `fastpath.recognizer`); None where the kernel has scalars whose dtype is a
            generic, or raw pointers: the long way checks those.
        memo: caches of other modules, by module.
    """

    __slots__ = (
        "_arranged", "_outputs", "_result", "_tensors", "arity", "code", "defaults", "kernel", "memo", "name",
        "recognize", "width", "yields",
    )  # fmt: skip

    def __init__(self, kernel: KernelCache, result: type[tuple[Any, ...]]) -> None:
        signature = kernel.signature
        named = [(_Named(position, each.title), each.kind) for position, each in enumerate(signature.parameters)]
        self.kernel = kernel
        self.code, self.defaults = kernel.function.__code__, kernel.function.__kwdefaults__
        self.name = signature.name
        self.width = len(signature.declared)
        # A call of a kernel with groups always takes the long way, which takes them apart.
        self.arity = -1 if signature.grouped and not signature.arrangement else len(named)
        self.yields = _maker(result, mapped=any(each.mapped for each in signature.parameters))
        if signature.arrangement:
            self.yields = putting_together(signature, self.yields)
        self._result = result
        self._arranged: dict[Hashable, Launchable] = {}
        pointers = any(kind == "pointer" for _, kind in named)
        self.memo: dict[str, Any] = {}
        self.recognize = None if signature.generic_scalars or pointers else recognizer(kernel)
        self._tensors = tuple(each for each, kind in named if kind in ("tensor", "mut"))
        self._outputs = tuple(each for each, kind in named if kind == "mut")

    def arranged(self, arguments: tuple[Any, ...]) -> tuple[Launchable, tuple[Any, ...]]:
        """The launchable for the arguments' groups, and the arguments flattened.

        Raises:
            ArgumentError, ArgumentTypeError: an argument is not the group that the signature declares.
        """
        if self.arity >= 0:
            return self, arguments
        arrangement = Taken(self.kernel.signature, arguments)
        launchable = self._arranged.get(arrangement.key)
        if launchable is None:
            launchable = Launchable(self.kernel.arrange(arrangement.key, arrangement.signature), self._result)
            launchable = self._arranged.setdefault(arrangement.key, launchable)
        return launchable, tuple(arrangement.parts)

    def family(self) -> tuple[Launchable, ...]:
        """This launchable, and one for each structure of groups seen so far."""
        return self, *self._arranged.values()

    def check(self, position: int, argument: Any) -> Checked:
        """Check one argument against its parameter.

        Raises as `check_argument` does.
        """
        return check_argument(self.name, self.kernel.signature.parameters[position], argument)

    def uses(self, checked: Sequence[Any]) -> list[ViewUse]:
        """The memory that a launch reads and writes, of arguments that have run."""
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
        """Whether some argument says what the grid is."""
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
    ) -> str:
        """The text of one stage of the compilation. Nothing is lent.

        Raises:
            ArgumentError, ArgumentTypeError, GenericsError: the arguments do not fit.
            LaunchError: an argument is an op that has not run, so its type is not known yet.
            ValueError: there is no such stage.
        """
        try:
            if any(map(is_op, arguments)):
                raise LaunchError(
                    f"{self.name}: to inspect it, pass tensors rather than ops that have not run: .sync() yields them"
                )
            checked = [self.check(position, argument) for position, argument in enumerate(arguments)]
            checked = tiled(self.name, self.kernel.signature.names, checked, generics)
            uses = self.uses(checked)
            device = uses[0][1].device if uses else default_device()
            return self.plan(checked, generics, options).render(target_of(device, chosen_backend(), arch), stage)
        finally:
            give_back(arguments)


def _maker(result: Any, *, mapped: bool) -> Callable[[tuple[Any, ...]], Any]:
    """A function from a launch's arguments to its named tuple.

    In place of a mapped partition it puts the partition that was mapped.
    """
    make: Callable[[Iterable[Any]], Any] = functools.partial(cast("Any", tuple).__new__, result)
    if not mapped:
        return make
    return lambda arguments: make(getattr(each, "__kernel_yields__", each) for each in arguments)
