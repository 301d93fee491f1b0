"""`Form`: what every launch of a kernel has in common. Worked out once, so that a call does as little as possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cuda_async import Storage
from cutile.backend.interface import DEFAULT_OPTIONS, CompileOptions
from cutile.compile.kernels import KernelCache, Plan
from cutile.launch.arguments import Checked, checker
from cutile.launch.grid import Grid, launch_grid
from cutile.launch.scalars import plain_scalar
from cutile.launch.views import TiledView, View

ViewUse = tuple[str, Storage, bool, int, int]
"""What a launch does to the memory of an argument: a `Use` of `cuda_async`, as a plain tuple."""


class Form:
    """A kernel as its launches see it.

    Attributes:
        kernel: its specializations.
        result: the named tuple that a launch yields.
        checks: what checks the argument at each position; yields None for an op that has yet to run.
    """

    __slots__ = ("_outputs", "_tensors", "checks", "kernel", "name", "result")

    def __init__(self, kernel: KernelCache, result: Callable[..., Any]) -> None:
        signature = kernel.signature
        named = [(position, each.name, each.kind) for position, each in enumerate(signature.parameters)]
        self.kernel = kernel
        self.name = signature.name
        self.result = result
        self.checks = tuple(checker(signature.name, each) for each in signature.parameters)
        self._tensors = tuple((position, name) for position, name, kind in named if kind != "scalar")
        self._outputs = tuple((position, name) for position, name, kind in named if kind == "mut")

    def uses(self, checked: Sequence[Any]) -> list[ViewUse]:
        """What a launch does to the memory of its arguments, as far as they are known."""
        return [
            (name, view.storage, view.writes, *view.byte_range)
            for position, name in self._tensors
            if (view := checked[position]) is not None
        ]

    def plan(self, checked: list[Checked], generics: Mapping[str, Any], options: CompileOptions) -> Plan:
        """The specialization; scalars whose dtype is a generic are checked in place, now that it is known.

        Raises:
            ArgumentError, GenericsError: the arguments contradict the signature or the generics.
        """
        kernel = self.kernel
        plan: Plan | None = None
        if kernel.by_layout and not generics and options is DEFAULT_OPTIONS:
            views: Any = checked
            plan = kernel.plans.get(tuple([views[position].facts.layout for position, _ in self._tensors]))
        if plan is None:
            facts = [each.facts if isinstance(each, View | TiledView) else None for each in checked]
            plan = kernel.plan(facts, generics, options)
        for position in kernel.signature.generic_scalars:
            parameter = kernel.signature.parameters[position]
            dtype = plan.specialization.generics[str(parameter.dtype)]
            checked[position] = plain_scalar(checked[position], dtype, self.name, parameter.name)
        return plan

    def grid(self, checked: Sequence[Any], given: Grid | None) -> Grid:
        """The grid to launch. Raises LaunchError as `launch_grid` does."""
        outputs = self._outputs
        if given is None and len(outputs) == 1:
            return checked[outputs[0][0]].grid
        return launch_grid(self.name, given, [(name, checked[position]) for position, name in outputs])
