"""`Form`: what every launch of a kernel has in common. Worked out once, so that a call does as little as possible."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from cuda_async import OwnershipError, Storage
from cuda_async.lease import Lease
from cutile.backend.interface import CompileOptions
from cutile.compile.kernels import KernelCache, Plan
from cutile.dtypes import f64
from cutile.launch.arguments import Checked, check_argument, is_op
from cutile.launch.grid import Grid, launch_grid
from cutile.launch.grouping import Taken, putting_together
from cutile.launch.named_extents import refuse_disagreement
from cutile.launch.pointers import Pointer
from cutile.launch.scalars import EVERY_FLOAT, plain_scalar
from cutile.launch.views import PointingView, TiledView, View

ViewUse = tuple[str, Storage, bool, int, int]
"""What a launch does to the memory of an argument: a `Use` of `cuda_async`, as a plain tuple."""

Known = tuple[list[Checked], Sequence[ViewUse], Plan, Grid, bool]
"""Checked arguments, what is done to their memory, the specialization, the grid; whether nobody else has a lease."""


class _Named(NamedTuple):
    position: int
    name: str


class Form:
    """A kernel as its launches see it.

    Attributes:
        kernel: its specializations.
        code, defaults: the function's code and keyword defaults, as they were read.
        name: the kernel's.
        arity: how many arguments it takes; -1 where they have to be arranged first.
        width: how many arguments a call has, which are as many as a launch yields.
        yields: makes the named tuple that a launch yields, of all its arguments.
        recognize: the short cut (see `recognizer`); None where the kernel has generics that the call has to
            settle, or raw pointers.
        memo: what others work out once of it, by their names.
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
        self._arranged: dict[Hashable, Form] = {}
        pointers = any(kind == "pointer" for _, kind in named)
        self.memo: dict[str, Any] = {}
        self.recognize = None if signature.generic_scalars or pointers else recognizer(kernel)
        self._tensors = tuple(each for each, kind in named if kind in ("tensor", "mut"))
        self._outputs = tuple(each for each, kind in named if kind == "mut")

    def arranged(self, arguments: tuple[Any, ...]) -> tuple[Form, tuple[Any, ...]]:
        """What launches these arguments, and the parts of them that it takes.

        Raises:
            ArgumentError, ArgumentTypeError: an argument is not the group that the signature declares.
        """
        if self.arity >= 0:
            return self, arguments
        taken = Taken(self.kernel.signature, arguments)
        form = self._arranged.get(taken.key)
        if form is None:
            form = Form(self.kernel.arrange(taken.key, taken.signature), self._result)
            form = self._arranged.setdefault(taken.key, form)
        return form, tuple(taken.parts)

    def check(self, position: int, argument: Any) -> Checked:
        """What the argument at `position` is to the launch. Raises as `check_argument` does."""
        return check_argument(self.name, self.kernel.signature.parameters[position], argument)

    def uses(self, checked: Sequence[Any]) -> list[ViewUse]:
        """What a launch does to the memory of its arguments, as far as they are known."""
        found: list[ViewUse] = []
        for position, name in self._tensors:
            view = checked[position]
            if view is None:
                continue
            found.append((name, view.storage, view.writes, *view.byte_range))
            if isinstance(view, PointingView):
                writes = view.others_written
                pointed = enumerate(view.others)
                found += [(f"{name}[{i}]", each.storage, writes, *each.byte_range) for i, each in pointed]
        return found

    def plan(self, checked: list[Checked], generics: Mapping[str, Any], options: CompileOptions) -> Plan:
        """The specialization; scalars whose dtype is a generic are checked in place, now that it is known.

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


def recognizer(kernel: KernelCache) -> Callable[[tuple[Any, ...], Lease], Known | None]:
    """Make the short cut of a kernel's calls, a function of the arguments and a lease to be filled: for saxpy

        def recognize(arguments, lease):
            y, a, x = arguments
            try:
                c0 = y.__kernel_output__()
                c1 = a if type(a) is float and -65504.0 <= a <= 65504.0 else scalar(1, a)
                c2 = x.__kernel_input__()
            except (AttributeError, OwnershipError):
                return None
            plan = plans.get((c0.layout, c2.layout))
            if c1 is None or plan is None: return None
            s0 = c0.storage
            s2 = c2.storage
            uses = lease.uses = (("y", s0, True, c0.start, c0.stop), ("x", s2, False, c2.start, c2.stop))
            l0 = s0.leases; l0.append(lease)
            l2 = s2.leases; l2.append(lease)
            return [c0, c1, c2], uses, plan, c0.grid, len(l0) == len(l2) == 1

    It knows what was seen before: arguments of the usual kinds, whose specialization was made by an earlier call.
    Where it answers None the long way finds out, which also says what is wrong.
    """
    signature = kernel.signature
    parameters = signature.parameters

    def scalar(position: int, argument: Any) -> Checked:
        return None if is_op(argument) else check_argument(signature.name, parameters[position], argument)

    calls = {"tensor": "a{i}.__kernel_input__()", "mut": "a{i}.__kernel_output__()", "scalar": "scalar({i}, a{i})"}
    kinds = list(enumerate(parameters))
    taken: list[str] = []
    for i, parameter in kinds:
        call = calls[parameter.kind].format(i=i)
        if parameter.kind == "scalar" and getattr(parameter.dtype, "kind", None) == "float":
            inside = "" if parameter.dtype is f64 else f" and {-EVERY_FLOAT} <= a{i} <= {EVERY_FLOAT}"
            call = f"a{i} if type(a{i}) is float{inside} else {call}"
        taken.append(f"c{i} = {call}")
    tensors = [(i, each) for i, each in kinds if each.kind != "scalar"]
    uses = [f"({each.title!r}, s{i}, {each.kind == 'mut'}, c{i}.start, c{i}.stop)" for i, each in tensors]
    keys = [f"c{i}.facts" if each.declares else f"c{i}.layout" for i, each in tensors]
    scalars = [f"c{i} is None" for i, each in kinds if each.kind == "scalar"]
    grids = [f"c{i}.grid" for i, each in tensors if each.kind == "mut"]
    # One partition tells the grid; several must agree; without any it has to be given: the long way says so.
    # One of which the launch covers a prefix does not tell it.
    unlike = [f"{grids[0]} != {each}" for each in grids[1:]] if grids else ["True"]
    unlike += [f"not {each.removesuffix('.grid')}.exact" for each in grids]
    unlike += [
        f"c{each.position}.shape[{each.axis}] != c{each.other}.shape[{each.other_axis}]"
        for each in signature.agreements
    ]
    lines = [
        "def recognize(arguments, lease):",
        f"    {''.join(f'a{i}, ' for i, _ in kinds)}= arguments" if kinds else "    pass",
        "    try:",
        *(f"        {line}" for line in taken or ["pass"]),
        "    except (AttributeError, OwnershipError):",
        "        return None",
        f"    plan = plans.get(({''.join(f'{key}, ' for key in keys)}))",
        f"    if {' or '.join(['plan is None', *scalars, *unlike])}:",
        "        return None",
        *(f"    s{i} = c{i}.storage" for i, _ in tensors),
        f"    uses = lease.uses = ({''.join(f'{use}, ' for use in uses)})",
        *(f"    l{i} = s{i}.leases; l{i}.append(lease)" for i, _ in tensors),
        f"    alone = {''.join(f'len(l{i}) == ' for i, _ in tensors)}1",
        f"    return [{', '.join(f'c{i}' for i, _ in kinds)}], uses, plan, {(grids or ['None'])[0]}, alone",
    ]
    names: dict[str, Any] = {"OwnershipError": OwnershipError, "plans": kernel.plans, "scalar": scalar}
    exec("\n".join(lines), names)
    return names["recognize"]


def _maker(result: Any, *, mapped: bool) -> Callable[[tuple[Any, ...]], Any]:
    """What makes a launch's named tuple of its arguments; mapped ones are yielded as the plain partitions they were."""
    make: Callable[[Iterable[Any]], Any] = functools.partial(cast("Any", tuple).__new__, result)
    if not mapped:
        return make
    return lambda arguments: make(getattr(each, "__kernel_yields__", each) for each in arguments)
